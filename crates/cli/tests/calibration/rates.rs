//! Counted trials, their exact intervals, and the table that they make.

use std::cell::RefCell;
use std::io::Write;

/// So many of so many.
#[derive(Debug, Clone, Copy)]
pub struct Rate {
    pub hits: usize,
    pub of: usize,
}

impl Rate {
    /// Of trials, those that are true.
    pub fn of(trials: &[bool]) -> Self {
        Rate { hits: trials.iter().filter(|hit| **hit).count(), of: trials.len() }
    }

    pub fn share(self) -> f64 {
        self.hits as f64 / self.of.max(1) as f64
    }

    /// Exact interval (C. Clopper, E. Pearson, Biometrika 26, 1934), with `tail` on each side.
    pub fn interval(self, tail: f64) -> [f64; 2] {
        let below = |p: f64| binomial_at_most(self.hits, self.of, p);
        let least = |p: f64| {
            1.0 - self.hits.checked_sub(1).map_or(0.0, |k| binomial_at_most(k, self.of, p))
        };
        let low = if self.hits == 0 { 0.0 } else { bisect(|p| least(p) < tail) };
        let high = if self.hits == self.of { 1.0 } else { bisect(|p| below(p) > tail) };
        [low, high]
    }

    /// Is not kept unless the rate may be as low as `level`: its 99 % limit includes it.
    pub fn at_most(self, level: f64, what: &str) {
        let [low, _] = self.interval(0.01);
        self.say(what, &format!("at most {:.1} %", 100.0 * level), low <= level);
    }

    /// Is not kept unless the rate may be as high as `level`.
    pub fn at_least(self, level: f64, what: &str) {
        let [_, high] = self.interval(0.01);
        self.say(what, &format!("at least {:.1} %", 100.0 * level), high >= level);
    }

    /// Is not kept unless the rate may be between the two.
    pub fn between(self, low: f64, high: f64, what: &str) {
        let own = self.interval(0.01);
        let is_kept = own[0] <= high && own[1] >= low;
        self.say(what, &format!("{:.0} to {:.0} %", 100.0 * low, 100.0 * high), is_kept);
    }

    /// For the table alone: nothing is promised.
    pub fn told(self, what: &str) {
        self.say(what, "", true);
    }

    fn say(self, what: &str, wanted: &str, is_kept: bool) {
        if self.of == 0 {
            return;
        }
        let [low, high] = self.interval(0.025).map(|end| 100.0 * end);
        let mark = if is_kept { "" } else { " (**not kept**)" };
        let line = format!(
            "| {what} | {wanted}{mark} | {} of {} | {:.1} % [{low:.1}, {high:.1}] |",
            self.hits,
            self.of,
            100.0 * self.share()
        );
        println!("{line}");
        if !is_kept {
            NOT_KEPT.with_borrow_mut(|all| all.push(line.clone()));
        }
        if let Some(path) = std::env::var_os("VMETER_CALIBRATION") {
            let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
            writeln!(file.expect("the table"), "{line}").expect("the table");
        }
    }
}

thread_local! {
    /// Rows of this test that were not kept.
    static NOT_KEPT: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Fails if a row since the last call was not kept: at the end of a test, so that one does not
/// hide the others.
pub fn all_kept() {
    let broken = NOT_KEPT.take();
    assert!(broken.is_empty(), "not kept:\n{}", broken.join("\n"));
}

/// P(X <= k) of n trials with probability p.
fn binomial_at_most(k: usize, n: usize, p: f64) -> f64 {
    let (mut sum, mut log) = (0.0, n as f64 * (1.0 - p).ln());
    for i in 0..=k {
        if i > 0 {
            log += ((n - i + 1) as f64 / i as f64).ln() + p.ln() - (1.0 - p).ln();
        }
        sum += log.exp();
    }
    sum.min(1.0)
}

/// Where `above` turns from true to false.
fn bisect(above: impl Fn(f64) -> bool) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if above(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    (low + high) / 2.0
}

#[test]
fn exact_intervals() {
    // As tables have them: 0 of 10 and 5 of 10 at 95 %.
    let close = |found: [f64; 2], wanted: [f64; 2]| {
        found.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-3)
    };
    assert!(close(Rate { hits: 0, of: 10 }.interval(0.025), [0.0, 0.3085]));
    assert!(close(Rate { hits: 5, of: 10 }.interval(0.025), [0.1871, 0.8129]));
}
