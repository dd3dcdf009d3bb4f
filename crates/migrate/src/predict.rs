//! What dirty rate and bandwidth say should happen.
//!
//! Pre-copy is a race (C. Clark et al., "Live migration of virtual machines", NSDI 2005):
//! what was sent is dirtied again meanwhile. QEMU runs it so (migration.c): it sends, in
//! slices of 100 ms, until what is left goes into the downtime limit L at the bandwidth B,
//! that is B L; then it asks which pages were dirtied since it last asked. If all that is
//! left still goes into the limit, it stops the guest and sends it; else that was a round.
//! What exceeds B L shrinks by r / B a round at a dirty rate r, until it is below what a
//! slice sends. So it converges if r < B, or if the whole working set W goes into the limit,
//! W < B L. The downtime budget is used, not spared: an idle guest stands still for it too.

use crate::result::MigrateWorkload;

/// More rounds than this are for ever.
const ROUNDS: u64 = 300;
/// QEMU looks at the bandwidth, and at its limit, this often (BUFFER_DELAY), s.
const SLICE_S: f64 = 0.1;
/// A page as it is sent: with its address.
const WIRE_PAGE: f64 = 4096.0 + 8.0;
/// Address, flag, length, and the lengths of two runs (docs/xbzrle.txt).
const XBZRLE_HEADER: f64 = 8.0 + 3.0 + 4.0;
/// QEMU's largest throttle leaves the guest this share of its time (max-cpu-throttle 99 %).
const THROTTLED: f64 = 0.01;

/// What is known before.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Known {
    /// What the guest does; its dirty rate as measured.
    pub workload: MigrateWorkload,
    /// Bytes/s that go through.
    pub bandwidth: f64,
    /// Downtime limit, s.
    pub limit_s: f64,
    /// Auto-converge is on.
    pub auto_converge: bool,
    /// Post-copy is on.
    pub postcopy: bool,
    /// XBZRLE's cache, bytes; off at 0.
    pub xbzrle: u64,
}

impl Known {
    /// How many pages go over the wire for one, from the second round on: XBZRLE sends only
    /// what changed of a page that its cache holds. A working set that is dirtied in turn is
    /// in the cache as a whole or not at all.
    fn gain(&self) -> f64 {
        let encoded = self.workload.written_bytes as f64 + XBZRLE_HEADER;
        if self.xbzrle >= self.workload.working_set_bytes {
            (WIRE_PAGE / encoded).max(1.0)
        } else {
            1.0
        }
    }
}

/// What should happen.
#[derive(Debug, Clone, PartialEq)]
pub struct Predicted {
    /// Whether it ends by itself.
    pub converges: bool,
    /// Rounds as QEMU counts them, the last (the guest stopped) included.
    pub rounds: Option<u64>,
    /// Total time, s.
    pub total_s: Option<f64>,
    /// Downtime, s: sending what is left within the limit. It may be less, the limit of the
    /// bandwidth being lifted for it; devices come on top.
    pub downtime_s: Option<f64>,
    /// In one sentence.
    pub because: String,
}

/// MB/s.
fn rate(bytes_per_s: f64) -> String {
    format!("{:.0} MB/s", bytes_per_s / 1e6)
}

fn megabytes(bytes: f64) -> String {
    format!("{:.0} MB", bytes / 1e6)
}

/// Predicts.
pub fn predict(known: &Known) -> Predicted {
    let Known { workload, bandwidth, limit_s, .. } = *known;
    let dirty = workload.dirty_bytes_per_s;
    let never = |because: String| Predicted {
        converges: false,
        rounds: None,
        total_s: None,
        downtime_s: None,
        because,
    };
    if known.postcopy {
        let total_s = (workload.resident_bytes + workload.working_set_bytes) as f64 / bandwidth;
        return Predicted {
            converges: true,
            rounds: None,
            total_s: Some(total_s).filter(|s| s.is_finite()),
            downtime_s: None,
            because: "after the first round, post-copy sends each page at most one more time, at \
                any dirty rate"
                .into(),
        };
    }
    if let Some((rounds, total_s, downtime_s)) = race(known, dirty) {
        let because = match dirty {
            0.0 => "nothing is dirtied".to_owned(),
            _ if dirty < bandwidth => {
                format!(
                    "the dirty rate, {}, is below the bandwidth, {}",
                    rate(dirty),
                    rate(bandwidth)
                )
            }
            _ if dirty < bandwidth * known.gain() => format!(
                "XBZRLE sends {} bytes for a dirty page, so it keeps up with dirty rates of up to \
                 {}, although the bandwidth is {}",
                known.workload.written_bytes as f64 + XBZRLE_HEADER,
                rate(bandwidth * known.gain()),
                rate(bandwidth)
            ),
            _ => format!(
                "at a bandwidth of {}, QEMU can send all pages that can be dirty ({}) within the \
                    downtime limit of {:.0} ms",
                rate(bandwidth),
                megabytes(workload.working_set_bytes as f64),
                limit_s * 1e3
            ),
        };
        return Predicted {
            converges: true,
            rounds: Some(rounds),
            total_s: Some(total_s),
            downtime_s: Some(downtime_s),
            because,
        };
    }
    let left =
        (workload.working_set_bytes as f64).min(dirty / bandwidth * workload.resident_bytes as f64);
    let race_lost = format!(
        "the guest's dirty rate, {}, is not below the bandwidth, {}: each round ends with {} \
            still to send, but within the downtime limit of {:.0} ms QEMU can send only {}",
        rate(dirty),
        rate(bandwidth),
        megabytes(left),
        limit_s * 1e3,
        megabytes(bandwidth * limit_s)
    );
    if known.auto_converge && race(known, dirty * THROTTLED).is_some() {
        return Predicted {
            converges: true,
            rounds: None,
            total_s: None,
            downtime_s: None,
            because: format!(
                "{race_lost}; auto-converge slows the guest until its dirty rate is \
                below the bandwidth"
            ),
        };
    }
    never(race_lost)
}

/// Rounds, total and downtime; none if it goes on for ever.
fn race(known: &Known, dirty: f64) -> Option<(u64, f64, f64)> {
    let Known { workload, bandwidth, limit_s, .. } = *known;
    if !(bandwidth > 0.0 && bandwidth.is_finite() && dirty >= 0.0 && limit_s >= 0.0) {
        return None;
    }
    let (room, slice) = (bandwidth * limit_s, bandwidth * SLICE_S);
    let working_set = workload.working_set_bytes as f64;
    let mut left = workload.resident_bytes as f64;
    let mut total_s = 0.0;
    // The last two are the question whether it is enough, and that with the guest stopped.
    for round in 1..ROUNDS {
        let gain = if round == 1 { 1.0 } else { known.gain() };
        let slice = slice * gain;
        let slices = if left < room { 0.0 } else { ((left - room) / slice).floor() + 1.0 };
        let sent = (slices * slice).min(left);
        let round_s = sent / (bandwidth * gain);
        left -= sent;
        total_s += round_s;
        // Pages that are dirtied before they were sent are left once.
        let outside = if round == 1 { left } else { 0.0 };
        left = (left + dirty * round_s).min(working_set + outside).max(left);
        if left < room || left == 0.0 {
            let downtime = left / (bandwidth * gain);
            let sound = total_s.is_finite() && downtime.is_finite();
            return sound.then_some((round + 2, total_s + downtime, downtime));
        }
    }
    None
}

/// What would make it converge, in one sentence.
pub fn remedy(known: &Known) -> String {
    let Known { workload, bandwidth, limit_s, .. } = *known;
    let dirty = workload.dirty_bytes_per_s;
    let working_set = workload.working_set_bytes as f64;
    // The lesser of the two that suffice: faster than the guest, or all of it within the limit.
    let needed = match working_set / limit_s {
        all if all.is_finite() && all < dirty => all,
        _ => dirty,
    };
    let seconds = working_set / bandwidth;
    format!(
        "It would converge with a bandwidth above {} (--bandwidth), a downtime limit of {:.0} ms \
         (--downtime-limit), a throttled guest (--auto-converge), or --postcopy.",
        rate(needed),
        (seconds * 1e3).ceil()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn known(dirty_mb: f64, bandwidth_mb: f64, limit_s: f64) -> Known {
        let workload = MigrateWorkload {
            dirty_bytes_per_s: dirty_mb * 1e6,
            working_set_bytes: 100_000_000,
            resident_bytes: 200_000_000,
            written_bytes: 4096,
        };
        let bandwidth = bandwidth_mb * 1e6;
        Known { workload, bandwidth, limit_s, auto_converge: false, postcopy: false, xbzrle: 0 }
    }

    #[test]
    fn the_race_by_hand() {
        // 200 MB, 10 a slice, until less than 30 are left: 20, sent with the guest stopped.
        let idle = predict(&known(0.0, 100.0, 0.3));
        assert_eq!((idle.converges, idle.rounds), (true, Some(3)));
        assert!((idle.downtime_s.unwrap() - 0.2).abs() < 1e-9, "{idle:?}");
        assert!((idle.total_s.unwrap() - 2.0).abs() < 1e-9, "{idle:?}");
        // 20 + 90 dirtied in 1.8 s; 20 + 45 in 0.9 s; 25 + 20 in 0.4 s; 25 + 10 in 0.2 s; 25 + 5
        // in 0.1 s is no less than 30; 20 + 5 is.
        let half = predict(&known(50.0, 100.0, 0.3));
        assert!(half.converges && half.rounds.unwrap() <= 8, "{half:?}");
        assert!((2.5..4.5).contains(&half.total_s.unwrap()), "{half:?}");
        let lost = predict(&known(200.0, 100.0, 0.3));
        assert!(!lost.converges && lost.because.contains("round ends with 100 MB"), "{lost:?}");
        assert!(remedy(&known(200.0, 100.0, 0.3)).contains("above 200 MB/s"));
        assert!(remedy(&known(200.0, 100.0, 0.3)).contains("1000 ms"));
        // All of the working set within the limit.
        assert!(predict(&known(500.0, 100.0, 1.1)).converges);
        assert!(remedy(&known(900.0, 100.0, 0.5)).contains("above 200 MB/s"));
    }

    #[test]
    fn helped() {
        let mut known = known(200.0, 100.0, 0.3);
        known.auto_converge = true;
        assert!(predict(&known).converges);
        known.auto_converge = false;
        known.postcopy = true;
        assert!(predict(&known).converges);
        known.postcopy = false;
        (known.workload.written_bytes, known.xbzrle) = (64, 128 << 20);
        let found = predict(&known);
        assert!(
            found.converges && found.because.contains("79 bytes for a dirty page"),
            "{found:?}"
        );
        known.xbzrle = 64 << 20;
        assert!(!predict(&known).converges, "a cache below the working set holds none of it");
    }

    proptest! {
        #[test]
        fn any_numbers(dirty in any::<f64>(), bandwidth in any::<f64>(), limit in any::<f64>()) {
            let _ = predict(&known(dirty, bandwidth, limit));
            let _ = remedy(&known(dirty, bandwidth, limit));
        }

        #[test]
        fn more_bandwidth_never_hurts(dirty in 1.0..500.0, bandwidth in 1.0..500.0, more in 1.0..3.0) {
            let before = predict(&known(dirty, bandwidth, 0.3));
            let after = predict(&known(dirty, bandwidth * more, 0.3));
            prop_assert!(!before.converges || after.converges);
        }
    }
}
