//! Several recordings a side: do the machines differ, and not only two recordings?
//!
//! Two boots of one machine never have the same counts: some per cent between recordings is
//! usual, which two Poisson rates of a million events each take for a difference. With several
//! recordings a side that scatter is seen, and is what a difference is held against: counts by
//! a quasi-Poisson rate ratio (P. McCullagh, J. Nelder, "Generalized Linear Models", 1989,
//! 4.5.2), times by Welch's test on each recording's mean logarithm of time.

use vmeter_stats::dist::t_two_sided;

/// Fewer recordings of a side than this have no scatter.
pub const FEWEST: usize = 2;

/// How often something happened in one recording, and what that is of (seconds, or 1).
pub type Rate = (u64, f64);

/// Two-sided p-value that two sides have one rate, their recordings scattering as they do; none
/// where a side has too few, or nothing happened at all.
pub fn counts(a: &[Rate], b: &[Rate]) -> Option<f64> {
    let usable = |side: &[Rate]| side.len() >= FEWEST && side.iter().all(|(_, of)| *of > 0.0);
    if !usable(a) || !usable(b) {
        return None;
    }
    let sums = [a, b].map(|side| {
        let count = side.iter().map(|(n, _)| *n as f64).sum::<f64>();
        (count, side.iter().map(|(_, of)| of).sum::<f64>())
    });
    if sums.iter().all(|(count, _)| *count == 0.0) {
        return None;
    }
    let squares: f64 = [a, b].iter().zip(sums).map(|(side, sum)| pearson(side, sum)).sum();
    let freedom = (a.len() + b.len() - 2) as f64;
    let dispersion = (squares / freedom).max(1.0);
    // Half an event each keeps the logarithm where one side has none.
    let spare = if sums.iter().any(|(count, _)| *count == 0.0) { 0.5 } else { 0.0 };
    let [(a, of_a), (b, of_b)] = sums.map(|(count, of)| (count + spare, of));
    let error = (dispersion * (1.0 / a + 1.0 / b)).sqrt();
    Some(t_two_sided(((b / of_b) / (a / of_a)).ln() / error, freedom))
}

/// Pearson's squares of one side about its own rate.
fn pearson(side: &[Rate], (count, of): (f64, f64)) -> f64 {
    let expected = |own: f64| count / of * own;
    let square = |&(n, own): &Rate| match expected(own) {
        e if e > 0.0 => (n as f64 - e).powi(2) / e,
        _ => 0.0,
    };
    side.iter().map(square).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmeter_stats::rng::Rng;

    /// Sessions of `each` recordings a side, machines that differ by `effect`, recordings of
    /// one machine by 1 %: the share that is called different.
    fn called(seed: u64, each: usize, mean: f64, effect: f64) -> f64 {
        let mut rng = Rng::new(seed);
        let mut side = |factor: f64| -> Vec<Rate> {
            let mut one = || {
                let rate = mean * factor * (1.0 + 0.01 * rng.normal());
                (rate + rate.sqrt() * rng.normal()).max(0.0).round() as u64
            };
            (0..each).map(|_| (one(), 1.0)).collect()
        };
        let trials = 2000;
        let found = (0..trials).filter(|_| {
            let (a, b) = (side(1.0), side(1.0 + effect));
            counts(&a, &b).is_some_and(|p| p < 0.05)
        });
        found.count() as f64 / f64::from(trials)
    }

    #[test]
    fn recordings_that_scatter_by_a_per_cent_are_no_difference() {
        for mean in [1e4, 1e5, 1e6] {
            assert!(called(1, 3, mean, 0.0) < 0.065, "{mean}: {}", called(1, 3, mean, 0.0));
        }
        assert!(called(2, 2, 1e6, 0.0) < 0.065);
        assert!(called(3, 4, 1e6, 0.05) > 0.9, "5 % is five times their scatter");
    }

    #[test]
    fn nothing_and_too_few() {
        assert_eq!(counts(&[(1, 1.0)], &[(5, 1.0), (6, 1.0)]), None);
        assert_eq!(counts(&[(0, 1.0), (0, 1.0)], &[(0, 1.0), (0, 1.0)]), None);
        assert_eq!(counts(&[(1, 0.0), (1, 1.0)], &[(1, 1.0), (1, 1.0)]), None);
        let new = counts(&[(0, 1.0); 3], &[(400, 1.0), (410, 1.0), (390, 1.0)]);
        assert!(new.expect("a test") < 0.05);
    }
}
