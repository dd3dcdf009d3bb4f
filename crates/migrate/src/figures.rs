//! From what was heard and sampled to figures.

use crate::beat::{Beat, Kind};
use crate::data::{MigrateRound, MigrateSample};
use vmeter_model::time::seconds;
use vmeter_model::Ns;

/// A time without a heartbeat as long as this is lost to the guest.
const LOST: Ns = 10_000_000;
/// A page with its address, as it is sent.
const FRAMED_PAGE: u64 = crate::guest::PAGE + 8;
/// Most samples kept of a run.
const SAMPLES: usize = 400;

/// The switch as the guest felt it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Gap {
    /// From the last heartbeat at the source to the first at the destination, s.
    pub host_s: f64,
    /// The same by the guest's clock, s.
    pub guest_s: f64,
}

/// Between the last heartbeat of one side and the first of the other.
pub fn gap(source: &[Beat], destination: &[Beat], tsc_hz: f64) -> Option<Gap> {
    let (last, first) = (source.last()?, destination.first()?);
    let cycles = first.tsc.checked_sub(last.tsc)? as f64;
    Some(Gap { host_s: seconds(first.at - last.at), guest_s: cycles / tsc_hz })
}

/// The longest time without a heartbeat, and the sum of those of 10 ms and more, s.
pub fn stalls(beats: &[Beat]) -> (f64, f64) {
    let gaps = beats.windows(2).map(|pair| pair[1].at - pair[0].at);
    let lost = gaps.clone().filter(|gap| *gap >= LOST).sum();
    (seconds(gaps.max().unwrap_or(0)), seconds(lost))
}

/// Those that arrived between two moments.
pub fn between(beats: &[Beat], from: Ns, to: Ns) -> &[Beat] {
    let start = beats.partition_point(|beat| beat.at < from);
    let end = beats.partition_point(|beat| beat.at <= to).max(start);
    &beats[start..end]
}

/// Pages written a second; none for less than two heartbeats.
pub fn dirty_rate(beats: &[Beat]) -> Option<f64> {
    let alive = |beat: &&Beat| beat.kind != Kind::Ready;
    let first = beats.iter().find(alive)?;
    let last = beats.iter().rev().find(alive)?;
    let length = seconds(last.at - first.at);
    (length > 0.0).then(|| (last.pages - first.pages.min(last.pages)) as f64 / length)
}

/// Pages that the guest had written at a moment.
fn written_at(beats: &[Beat], at: Ns) -> u64 {
    let after = beats.partition_point(|beat| beat.at <= at);
    let beat = after.checked_sub(1).and_then(|n| beats.get(n)).or(beats.first());
    beat.map_or(0, |beat| beat.pages)
}

/// A pass as announced: its number and when it began.
pub type Pass = (u64, Ns);

/// Rounds from announcements and samples. `start` and `end` are those of the migration;
/// `last_bytes` were sent with the guest stopped, too quickly for a sample.
pub fn rounds(
    passes: &[Pass],
    samples: &[MigrateSample],
    source: &[Beat],
    (start, end): (Ns, Ns),
    last_bytes: u64,
) -> Vec<MigrateRound> {
    let since = |at: Ns| seconds(at - start);
    let sent_at = |at: f64| {
        let next = samples.partition_point(|sample| sample.at_s < at);
        let of = |sample: &MigrateSample| (sample.at_s, sample.transferred_bytes as f64);
        let (from, before) = next.checked_sub(1).map_or((0.0, 0.0), |last| of(&samples[last]));
        let (to, after) = samples.get(next).map_or((at, before), of);
        // Between two samples the bytes flow evenly.
        let share = if to > from { ((at - from) / (to - from)).clamp(0.0, 1.0) } else { 1.0 };
        (before + (after - before) * share) as u64
    };
    let round = |n: usize| {
        let (number, from) = passes[n];
        let to = passes.get(n + 1).map_or(end, |next| next.1).max(from);
        let first = samples.iter().find(|s| s.round == number && s.remaining_bytes > 0);
        let left =
            first.map_or(last_bytes / FRAMED_PAGE, |s| s.remaining_bytes / crate::guest::PAGE);
        let last = samples.iter().rev().find(|sample| sample.round == number);
        MigrateRound {
            round: number,
            start_s: since(from),
            length_s: seconds(to - from),
            pages: left,
            transferred_bytes: sent_at(since(to)).saturating_sub(sent_at(since(from))),
            written_pages: written_at(source, to).saturating_sub(written_at(source, from)),
            throttle_percent: last.map_or(0, |sample| sample.throttle_percent),
        }
    };
    (0..passes.len()).map(round).collect()
}

/// No more samples than a reader needs; the first of each round stays.
pub fn thinned(samples: Vec<MigrateSample>) -> Vec<MigrateSample> {
    let every = samples.len().div_ceil(SAMPLES).max(1);
    let last = samples.len().saturating_sub(1);
    let mut round = None;
    let keep = |(n, sample): (usize, MigrateSample)| {
        let first = round.replace(sample.round) != Some(sample.round);
        (first || n % every == 0 || n == last).then_some(sample)
    };
    samples.into_iter().enumerate().filter_map(keep).collect()
}

/// Whether the rounds still get shorter.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    best: Option<u64>,
    best_round: u64,
    best_s: f64,
    throttle: u64,
    hold_s: f64,
}

impl Progress {
    /// Rounds without progress after which there will be none.
    const PATIENCE: u64 = 4;
    /// Less than this share of the best so far is progress.
    const STEP: f64 = 0.98;

    /// Also waits so long for progress, s.
    pub fn patient(hold_s: f64) -> Self {
        Self { hold_s, ..Self::default() }
    }

    /// A round has begun at `at_s` with so much to send; true if it is time to give up. While
    /// QEMU throttles the guest more and more, there is hope.
    pub fn round(&mut self, round: u64, at_s: f64, remaining: u64, throttle: u64) -> bool {
        let better = self.best.is_none_or(|best| (remaining as f64) < best as f64 * Self::STEP);
        if better || throttle > self.throttle {
            self.best = Some(self.best.map_or(remaining, |best| best.min(remaining)));
            (self.best_round, self.best_s) = (round, at_s);
        }
        self.throttle = self.throttle.max(throttle);
        let rounds = round.saturating_sub(self.best_round);
        rounds >= Self::PATIENCE && at_s - self.best_s >= self.hold_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beat(at_ms: i64, pages: u64) -> Beat {
        let tsc = at_ms.unsigned_abs() * 1_000_000;
        Beat { at: at_ms * 1_000_000, kind: Kind::Alive, number: 0, pages, tsc }
    }

    #[test]
    fn the_switch() {
        let source = [beat(1, 10), beat(2, 20), beat(30, 30), beat(31, 40)];
        let mut first = beat(95, 41);
        first.tsc = 33_000_000;
        let found = gap(&source, &[first, beat(96, 50)], 1e9).expect("a gap");
        assert!((found.host_s - 0.064).abs() < 1e-9 && (found.guest_s - 0.002).abs() < 1e-9);
        assert_eq!(gap(&source, &[], 1e9), None);
        assert_eq!(stalls(&source), (0.028, 0.028));
        assert_eq!(dirty_rate(&source), Some(1000.0));
        assert_eq!(dirty_rate(&source[..1]), None);
        assert_eq!(between(&source, 2_000_000, 30_000_000).len(), 2);
        assert!(between(&source, 9, 3).is_empty());
    }

    #[test]
    fn rounds_of_a_race() {
        let sample = |at_s: f64, round, remaining_bytes, transferred_bytes| MigrateSample {
            at_s,
            round,
            remaining_bytes,
            transferred_bytes,
            throttle_percent: 0,
        };
        let samples = [
            sample(0.0, 1, 4096 * 100, 0),
            sample(1.0, 2, 4096 * 50, 409_600),
            sample(1.5, 2, 4096, 600_000),
            sample(2.0, 3, 0, 700_000),
        ];
        let beats = [beat(0, 0), beat(1000, 50), beat(2000, 60)];
        let passes = [(1, 0), (2, 1_000_000_000)];
        let rounds = rounds(&passes, &samples, &beats, (0, 2_000_000_000), 0);
        assert_eq!(rounds.len(), 2);
        assert_eq!((rounds[0].pages, rounds[1].pages), (100, 50));
        assert_eq!((rounds[0].transferred_bytes, rounds[1].transferred_bytes), (409_600, 290_400));
        assert_eq!((rounds[0].written_pages, rounds[1].written_pages), (50, 10));
        assert_eq!(thinned(samples.to_vec()).len(), 4);
        let many = vec![sample(0.0, 1, 1, 1); 5000];
        assert!(thinned(many).len() <= SAMPLES + 2);
    }

    #[test]
    fn patience() {
        let mut progress = Progress::default();
        let halving = (1..20).map(|n| (n, 1u64 << (40 - n)));
        assert!(!halving.into_iter().any(|(n, left)| progress.round(n, 0.0, left, 0)));
        let mut progress = Progress::default();
        let given_up = (1..20).find(|n| progress.round(*n, 0.0, 1000, 0));
        assert_eq!(given_up, Some(5));
        let mut progress = Progress::patient(8.0);
        let given_up = (1..20).find(|n| progress.round(*n, *n as f64, 1000, 0));
        assert_eq!(given_up, Some(9));
        let mut progress = Progress::default();
        let throttled = (1..40).find(|n| progress.round(*n, 0.0, 1000, (n * 10).min(99)));
        assert_eq!(throttled, Some(14), "four rounds after the throttle is at its end");
    }
}
