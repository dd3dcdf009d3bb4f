//! What some instances of a request, a call or an activation have and others have not, and how
//! much longer those take: contrast within one trace.

use crate::moment::Sym;
use vmeter_trace::ops::Lock;

/// Most features that are told apart.
const MOST: usize = 24;

/// What an instance has, or has not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Feature {
    /// It has a kernel worker run that function.
    Work(Sym),
    /// It has another CPU run that function.
    OnCpu(Sym),
    /// That system call is in it.
    Call(Sym),
    /// It waits for a kind of lock of the kernel.
    Lock(Lock),
    /// It waits for a timer.
    Timer,
    /// It waits for a device's interrupt.
    Irq(Sym),
}

/// How many, how long.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Sums {
    /// Instances.
    pub count: u64,
    /// Ticks in all.
    pub ticks: u64,
    /// Sum of the squares of their ticks.
    pub squares: f64,
}

impl Sums {
    /// Takes an instance.
    #[inline]
    pub fn add(&mut self, ticks: u64) {
        self.count += 1;
        self.ticks = self.ticks.saturating_add(ticks);
        self.squares += ticks as f64 * ticks as f64;
    }

    fn without(&self, other: &Sums) -> Sums {
        Sums {
            count: self.count.saturating_sub(other.count),
            ticks: self.ticks.saturating_sub(other.ticks),
            squares: (self.squares - other.squares).max(0.0),
        }
    }

    /// Ticks of one, on average.
    pub fn mean(&self) -> f64 {
        self.ticks as f64 / self.count.max(1) as f64
    }

    /// Square of the mean's standard error.
    fn error2(&self) -> f64 {
        let n = self.count.max(1) as f64;
        let variance = (self.squares / n - self.mean() * self.mean()).max(0.0);
        variance / (n - 1.0).max(1.0)
    }
}

/// Instances, and those that have a feature.
#[derive(Debug, Clone, Default)]
pub struct Split {
    /// All of them.
    pub all: Sums,
    by: Vec<(Feature, Sums)>,
}

/// Those with a feature against those without.
#[derive(Debug, Clone, Copy)]
pub struct Difference {
    /// What they have.
    pub feature: Feature,
    /// Those that have it.
    pub with: Sums,
    /// Those that have not.
    pub without: Sums,
    /// Ticks that those with it take longer, together, and the standard error of that.
    pub extra: (f64, f64),
}

impl Split {
    /// An instance that had these features is over.
    pub fn add(&mut self, ticks: u64, features: &[Feature]) {
        self.all.add(ticks);
        for (at, feature) in features.iter().enumerate() {
            if !features[..at].contains(feature) {
                self.has(*feature, ticks);
            }
        }
    }

    /// One that is over turns out to have a feature.
    pub fn has(&mut self, feature: Feature, ticks: u64) {
        if let Some(sums) = self.of(feature) {
            sums.add(ticks);
        }
    }

    /// Those with a feature; none beyond the limit.
    fn of(&mut self, feature: Feature) -> Option<&mut Sums> {
        let known = self.by.iter().position(|(known, _)| *known == feature);
        if known.is_none() && self.by.len() < MOST {
            self.by.push((feature, Sums::default()));
        }
        let at = known.unwrap_or(self.by.len() - 1);
        self.by.get_mut(at).filter(|(known, _)| *known == feature).map(|(_, sums)| sums)
    }

    /// Adds others of the same kind.
    pub fn absorb(&mut self, other: &Split) {
        let add = |to: &mut Sums, sums: &Sums| {
            to.count += sums.count;
            to.ticks = to.ticks.saturating_add(sums.ticks);
            to.squares += sums.squares;
        };
        add(&mut self.all, &other.all);
        for (feature, sums) in &other.by {
            if let Some(to) = self.of(*feature) {
                add(to, sums);
            }
        }
    }

    /// The feature whose instances take most beyond the others, if they surely do: at least
    /// `least` of each, three standard errors, half as long again.
    pub fn contrast(&self, least: u64) -> Option<Difference> {
        let of = |(feature, with): &(Feature, Sums)| {
            let without = self.all.without(with);
            let extra = (with.mean() - without.mean()) * with.count as f64;
            let error = (with.error2() + without.error2()).sqrt() * with.count as f64;
            let enough = with.count >= least && without.count >= least;
            let sure = extra > 3.0 * error && with.mean() > 1.5 * without.mean();
            let extra = (extra, error);
            (enough && sure).then_some(Difference {
                feature: *feature,
                with: *with,
                without,
                extra,
            })
        };
        let all = self.by.iter().filter_map(of);
        all.max_by(|a, b| a.extra.0.total_cmp(&b.extra.0).then(b.feature.cmp(&a.feature)))
    }
}

/// What the instance that is open now has.
#[derive(Debug, Clone, Copy, Default)]
pub struct Open {
    list: [Option<Feature>; 4],
}

impl Open {
    /// It has a feature.
    pub fn note(&mut self, feature: Feature) {
        let free = self.list.iter_mut().find(|slot| slot.is_none_or(|known| known == feature));
        if let Some(slot) = free {
            *slot = Some(feature);
        }
    }

    /// Nothing was noted.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.list[0].is_none()
    }

    /// What was noted.
    pub fn list(&self) -> impl Iterator<Item = Feature> + '_ {
        self.list.iter().flatten().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_have_it_and_take_longer_are_told() {
        let mut split = Split::default();
        for n in 0..100 {
            let slow = n % 4 == 0;
            split.add(
                100 + n % 7 + if slow { 300 } else { 0 },
                if slow { &[Feature::Timer] } else { &[] },
            );
        }
        let told = split.contrast(20).expect("a difference");
        assert_eq!((told.with.count, told.without.count), (25, 75));
        assert!((told.extra.0 - 7500.0).abs() < 100.0, "{told:?}");
        assert!(split.contrast(30).is_none(), "of 25 nothing is said");
    }

    #[test]
    fn what_all_have_or_what_takes_no_longer_is_no_difference() {
        let mut all = Split::default();
        let mut same = Split::default();
        for n in 0..100 {
            all.add(n, &[Feature::Timer]);
            same.add(100 + n % 7, if n % 2 == 0 { &[Feature::Timer] } else { &[] });
        }
        assert!(all.contrast(20).is_none() && same.contrast(20).is_none());
    }
}
