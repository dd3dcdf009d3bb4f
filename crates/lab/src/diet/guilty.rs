//! Which change a guest cannot do without: a binary search over how many are made.

/// A search over 0 to `all` changes, made from the first on.
#[derive(Debug)]
pub(super) struct Search {
    all: usize,
    /// So many changes are known to do no harm.
    good: Option<usize>,
    /// So many are known to do, and what happened.
    bad: Option<(usize, String)>,
}

impl Search {
    pub(super) fn new(all: usize) -> Self {
        Search { all, good: None, bad: None }
    }

    /// How many changes to try next: all of them first; none once one is found.
    pub(super) fn next(&self) -> Option<usize> {
        match (&self.bad, self.good) {
            (None, None) => Some(self.all),
            (None, Some(_)) => None,
            (Some((bad, _)), good) => {
                let good = good.unwrap_or(0);
                // That none does no harm is tried too, but last.
                match bad - good {
                    0 => None,
                    1 if self.good.is_some() => None,
                    1 => Some(good),
                    between => Some(good + between / 2),
                }
            }
        }
    }

    /// What came of so many changes.
    pub(super) fn note(&mut self, changes: usize, failed: Option<String>) {
        match failed {
            None => self.good = Some(changes),
            Some(why) => self.bad = Some((changes, why)),
        }
    }

    /// The place of the change that did harm, and what happened; none if even no change did.
    pub(super) fn found(self) -> (Option<usize>, String) {
        let (bad, why) = self.bad.unwrap_or_default();
        (bad.checked_sub(1), why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The place that a search finds where every kernel with that change fails, and its steps.
    fn searched(all: usize, guilty: Option<usize>) -> (Option<usize>, usize) {
        let (mut search, mut steps) = (Search::new(all), 0);
        while let Some(changes) = search.next() {
            steps += 1;
            assert!(steps < 64);
            let failed = guilty.is_none_or(|at| changes > at);
            search.note(changes, failed.then(|| format!("{changes} changes")));
        }
        (search.found().0, steps)
    }

    #[test]
    fn the_change_that_does_harm_is_found() {
        for all in 1..40 {
            for guilty in 0..all {
                let (found, steps) = searched(all, Some(guilty));
                assert_eq!(found, Some(guilty), "of {all}");
                assert!(steps <= 8, "{guilty} of {all}: {steps} steps");
            }
            assert_eq!(searched(all, None).0, None, "of {all}");
        }
    }

    #[test]
    fn without_harm_one_try_is_enough() {
        let mut search = Search::new(12);
        assert_eq!(search.next(), Some(12));
        search.note(12, None);
        assert_eq!(search.next(), None);
    }
}
