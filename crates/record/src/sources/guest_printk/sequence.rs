//! Records in the order in which they were said.
//!
//! Each record of a log is placed by what is best for it: the log's clock, a look from outside, the console.
//! Their errors differ, so that a record can lie behind its successor, within its error. A log is in order: a
//! record is no later than what follows it, and no earlier than what precedes it.

use vmeter_model::Ns;

/// Moves what is out of order, as far as its error allows. Times of records, and their errors.
pub(super) fn in_sequence(placed: &mut [Option<(Ns, Ns)>]) {
    let earliest = |(at, error): (Ns, Ns)| at.saturating_sub(error);
    let latest = |(at, error): (Ns, Ns)| at.saturating_add(error);
    // The latest time of each by all that follow it.
    let mut bound = Ns::MAX;
    let mut by: Vec<Ns> = placed
        .iter()
        .rev()
        .map(|own| {
            let before = bound;
            bound = own.map_or(bound, |own| bound.min(latest(own)));
            before
        })
        .collect();
    by.reverse();
    let (mut from, mut last) = (Ns::MIN, Ns::MIN);
    for (own, by) in placed.iter_mut().zip(by) {
        let Some(was) = *own else { continue };
        let (low, high) = (from.max(earliest(was)), by.min(latest(was)));
        // Sources that contradict each other are left as they are.
        if low <= high {
            let at = was.0.clamp(low, high).max(last.min(high));
            if at != was.0 {
                *own = Some((at, (at - low).max(high - at)));
            }
            last = last.max(at);
        }
        from = from.max(earliest(was));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_look_that_is_rough_does_not_put_a_call_behind_its_return() {
        // A call by a look, its return and the next call by the clock.
        let mut placed = [Some((90, 5)), Some((140, 60)), None, Some((110, 2)), Some((120, 2))];
        in_sequence(&mut placed);
        assert_eq!(placed, [Some((90, 5)), Some((112, 27)), None, Some((112, 4)), Some((120, 2))]);
        // What contradicts the others tells nothing of them.
        let mut placed = [Some((100, 1)), Some((50, 1)), Some((110, 1))];
        let was = placed;
        in_sequence(&mut placed);
        assert_eq!(placed, was);
    }

    proptest! {
        #[test]
        fn what_is_true_stays_within_its_error(
            all in proptest::collection::vec((0i64..100, 0i64..1000, -1.0f64..1.0, any::<bool>()), 0..40)
        ) {
            let mut truth = 0;
            let said = all.into_iter().map(|(gap, error, off, is_placed)| {
                truth += gap;
                let at = truth + (off * error as f64) as i64;
                (truth, is_placed.then_some((at, error)))
            });
            let (truths, mut placed): (Vec<Ns>, Vec<_>) = said.unzip();
            in_sequence(&mut placed);
            let there = || truths.iter().zip(&placed).filter_map(|(t, p)| Some((*t, (*p)?)));
            for (truth, (at, error)) in there() {
                prop_assert!((truth - at).abs() <= error, "{truth} {at} {error}");
            }
            let times: Vec<Ns> = there().map(|(_, (at, _))| at).collect();
            prop_assert!(times.windows(2).all(|pair| pair[0] <= pair[1]), "{times:?}");
        }
    }
}
