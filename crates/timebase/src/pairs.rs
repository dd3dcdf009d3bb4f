//! Port accesses that two traces have in common.
//!
//! A guest leaves KVM before the device model serves an access, and goes on after that (of a
//! read KVM tells when it has been answered): a device model's own record lies between. Sequences of ports are
//! matched by runs that occur only once in each trace.

use crate::hull::{self, Fit};
use crate::survey::{Access, Survey};
use std::collections::HashMap;

/// Accesses in a row that identify a place.
const RUN: usize = 8;
/// Fewer pairs than this are not trusted.
const LEAST: usize = 16;
/// Points a side that are fitted: hulls need the tightest ones only.
const MOST: usize = 4096;

/// Fits `other`'s clock to `first`'s: the line from `other`'s origin and `first`'s base,
/// these two, and how many pairs it rests on.
pub(super) fn fit(other: &Survey, first: &Survey) -> Option<(Fit, u64, u64, u64)> {
    // One of them has to be the device model's, or nothing is known of the order.
    let (kernel, model) = match (first.of_model, other.of_model) {
        (false, true) => (first, other),
        (true, false) => (other, first),
        _ => return None,
    };
    let pairs = matches(&kernel.accesses, &model.accesses);
    // From all over the trace: the rate and its error rest on the ends.
    let step = pairs.len().div_ceil(MOST).max(1);
    let pairs: Vec<(&Access, &Access)> = pairs.into_iter().step_by(step).collect();
    if pairs.len() < LEAST {
        return None;
    }
    let (origin, base) = (other.first, first.first);
    let x = |stamp: u64| stamp.wrapping_sub(origin) as i64 as f64;
    let y = |stamp: u64| stamp.wrapping_sub(base) as i64 as f64;
    let (mut upper, mut lower) = (Vec::new(), Vec::new());
    for (kernel, model) in &pairs {
        let Some(until) = kernel.until else { continue };
        if other.of_model {
            // Reported <= served <= the guest goes on, all but the middle on the base clock.
            lower.push((x(model.at), y(kernel.at)));
            upper.push((x(model.at), y(until)));
        } else {
            upper.push((x(kernel.at), y(model.at)));
            lower.push((x(until), y(model.at)));
        }
    }
    let end = other.last.saturating_sub(origin) as f64;
    let fit = hull::fit(&upper, &lower, (0.0, end))?;
    Some((fit, origin, base, pairs.len() as u64))
}

/// Pairs of accesses that are the same one.
fn matches<'a>(a: &'a [Access], b: &'a [Access]) -> Vec<(&'a Access, &'a Access)> {
    let (runs_a, runs_b) = (unique_runs(a), unique_runs(b));
    let mut places: Vec<(usize, usize)> =
        runs_a.iter().filter_map(|(run, at)| Some((*at, *runs_b.get(run)?))).collect();
    places.sort_unstable();
    let mut pairs = Vec::new();
    let mut next = (0, 0);
    for (at_a, at_b) in places {
        for step in 0..RUN {
            let place = (at_a + step, at_b + step);
            // Each access once, and in order.
            if place.0 >= next.0 && place.1 >= next.1 {
                if let (Some(a), Some(b)) = (a.get(place.0), b.get(place.1)) {
                    pairs.push((a, b));
                    next = (place.0 + 1, place.1 + 1);
                }
            }
        }
    }
    pairs
}

/// Runs of ports that occur once, with their places.
fn unique_runs(accesses: &[Access]) -> HashMap<[u64; RUN], usize> {
    let mut runs: HashMap<[u64; RUN], Option<usize>> = HashMap::new();
    for (at, window) in accesses.windows(RUN).enumerate() {
        let mut run = [0; RUN];
        run.iter_mut().zip(window).for_each(|(key, access)| *key = access.key);
        runs.entry(run).and_modify(|at| *at = None).or_insert(Some(at));
    }
    runs.into_iter().filter_map(|(run, at)| Some((run, at?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmeter_trace::{Clock, Tick};

    fn survey(accesses: Vec<Access>, of_model: bool) -> Survey {
        let clock = Clock { name: "local".into(), tick: Tick::Nanosecond };
        let first = accesses.first().map_or(0, |access| access.at);
        let last = accesses.last().map_or(0, |access| access.at);
        Survey { clock, first, last, tsc_offset: None, accesses, of_model, tick: None }
    }

    #[test]
    fn a_device_models_log_is_put_on_the_kernels_clock() {
        let mut seed = 7_u64;
        let mut random = move |below: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        // The log's clock is 17 s ahead and 50 ppm fast; the log begins 100 accesses later.
        let log = |ns: u64| 17_000_000_000 + ns + ns / 20_000;
        let (mut kernel, mut model) = (Vec::new(), Vec::new());
        for n in 0..3_000 {
            let (key, at) = (random(40), 1_000_000_000 + n * 200_000);
            let (there, back) = (3_000 + random(30_000), 3_000 + random(30_000));
            kernel.push(Access { key, at, until: Some(at + there + back) });
            if n >= 100 {
                model.push(Access { key, at: log(at + there), until: None });
            }
        }
        let (kernel, model) = (survey(kernel, false), survey(model, true));
        for (first, other, truth) in [(&kernel, &model, false), (&model, &kernel, true)] {
            let (fit, origin, base, pairs) = fit(other, first).expect("a fit");
            assert!(pairs >= 2_500, "{pairs}");
            for ns in [1_100_000_000_u64, 1_300_000_000, 1_590_000_000] {
                let (x, y) = if truth { (ns, log(ns)) } else { (log(ns), ns) };
                let found = (x as f64 - origin as f64) * fit.scale + fit.offset + base as f64;
                let off = (found - y as f64).abs();
                assert!(off <= fit.error + 8.0, "off by {off}, told {}", fit.error);
            }
            assert!(fit.error < 20_000.0);
        }
    }
}
