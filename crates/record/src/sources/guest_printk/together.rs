//! Records that came between the same two looks, apart by their own stamps.
//!
//! A look at a log says of its new records that they came since the look before. That much is all that is
//! known of when; how far they are apart their stamps say. (The clock that gives them may lose a tick in
//! between, or make up for one, so that stamps of other looks place none of these: of 1,403 records whose
//! time the trace had as well, 36 were nearer to the one before than their stamps say, by up to 3.6 ms.)

use super::ts;
use std::ops::Range;
use vmeter_kernel_image::printk::PrintkRecord;
use vmeter_model::Ns;

/// The time of each, and its error, from windows: the middle of each, and half of its length.
pub(super) fn apart(
    records: &[PrintkRecord],
    mut windows: Vec<Option<(Ns, Ns)>>,
) -> Vec<Option<(Ns, Ns)>> {
    let mut from = 0;
    while from < records.len() {
        let same = |next: &usize| windows[*next] == windows[from];
        let to = (from + 1..records.len()).take_while(same).last().map_or(from, |last| last) + 1;
        if let Some(placed) = windows[from].and_then(|window| spread(records, from..to, window)) {
            windows[from..to].copy_from_slice(&placed);
        }
        from = to;
    }
    windows
}

/// Records of one window, in its middle; none if their stamps do not fit into it.
fn spread(
    records: &[PrintkRecord],
    group: Range<usize>,
    (middle, half): (Ns, Ns),
) -> Option<Vec<Option<(Ns, Ns)>>> {
    let of_group = &records[group];
    let (first, last) = (ts(of_group.first()?), ts(of_group.last()?));
    let rises = of_group.windows(2).all(|pair| pair[0].ts_ns <= pair[1].ts_ns);
    if !rises || last.saturating_sub(first) / 2 > half {
        return None;
    }
    let place = |record: &PrintkRecord| {
        let off = ts(record).saturating_sub(first).saturating_sub((last - first) / 2);
        Some((middle.saturating_add(off), half.saturating_add(off.abs())))
    };
    Some(of_group.iter().map(place).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(ts: u64) -> PrintkRecord {
        PrintkRecord {
            seq: 0,
            ts_ns: ts,
            level: 6,
            caller_id: 0,
            by_kernel: true,
            text: String::new(),
        }
    }

    #[test]
    fn what_came_in_one_look_is_as_far_apart_as_its_stamps() {
        let records = [5, 100, 140, 300, 900].map(record);
        let windows = vec![None, Some((5_000, 150)), Some((5_000, 150)), Some((6_000, 150)), None];
        let expected = vec![None, Some((4_980, 170)), Some((5_020, 170)), Some((6_000, 150)), None];
        assert_eq!(apart(&records, windows), expected);
        // Stamps that are further apart than the looks, or go back, are of a clock that was exchanged.
        for stamps in [[100, 500], [500, 100]] {
            let windows = vec![Some((5_000, 150)); 2];
            assert_eq!(apart(&stamps.map(record), windows.clone()), windows);
        }
    }

    proptest! {
        #[test]
        fn any_log_is_placed(
            all in proptest::collection::vec((any::<u64>(), 0..3i64, 0..Ns::MAX), 0..60),
        ) {
            let records: Vec<_> = all.iter().map(|(ts, ..)| record(*ts)).collect();
            let windows = all.iter().map(|(_, at, half)| Some((*at, *half))).collect();
            prop_assert_eq!(apart(&records, windows).len(), all.len());
        }

        #[test]
        fn the_truth_is_within_the_error(
            steps in proptest::collection::vec((0..2_000i64, -300..300i64), 1..100),
        ) {
            let (mut at, mut records, mut windows, mut truth) = (10_000, vec![], vec![], vec![]);
            for (step, off) in steps {
                at += step;
                records.push(record((at + off).unsigned_abs()));
                windows.push(Some((at / 4_000 * 4_000 + 2_000, 2_000)));
                truth.push(at);
            }
            for (placed, truth) in apart(&records, windows).into_iter().zip(truth) {
                let (at, error) = placed.expect("placed");
                prop_assert!((at - truth).abs() <= error, "{at} {error} {truth}");
            }
        }
    }
}
