//! One clock in terms of another, from events that bound each other.
//!
//! If an event at `x` on one clock can't be later than one at `y` on the other, the line
//! that turns `x` into the other clock's time lies below the point (x, y); pairs the other
//! way round lie below the line. The line is sought between the lower hull of the former
//! and the upper hull of the latter: the convex-hull method of A. Duda et al., "Estimating
//! global time in distributed systems", ICDCS 1987. No delay has to be known or symmetric.

/// A line and how far off it can be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fit {
    /// Ticks of the other clock a tick of this one.
    pub scale: f64,
    /// Time on the other clock at `x` = 0.
    pub offset: f64,
    /// Half of the room between the bounds where it is widest over the pairs, ticks.
    pub error: f64,
}

/// A point: a time on this clock, and one on the other.
pub type Point = (f64, f64);

/// Fits a line below all points of `upper` and above all of `lower`; none if there is no
/// such line, or too few points to tell.
pub fn fit(upper: &[Point], lower: &[Point]) -> Option<Fit> {
    let upper = hull(upper, false);
    let lower = hull(lower, true);
    let (first, last) = (upper.first()?, upper.last()?);
    if last.0 <= first.0 || lower.len() < 2 {
        return None;
    }
    // The steepest and the flattest line that fit each touch both hulls.
    let (mut steep, mut flat): (Option<Point>, Option<Point>) = (None, None);
    for u in &upper {
        for l in lower.iter().filter(|l| l.0 != u.0) {
            let slope = (l.1 - u.1) / (l.0 - u.0);
            let line = (slope, u.1 - slope * u.0);
            if !between(line, &upper, &lower) {
                continue;
            }
            if steep.is_none_or(|(s, _)| slope > s) {
                steep = Some(line);
            }
            if flat.is_none_or(|(s, _)| slope < s) {
                flat = Some(line);
            }
        }
    }
    let (steep, flat) = (steep?, flat?);
    let scale = (steep.0 + flat.0) / 2.0;
    let offset = (steep.1 + flat.1) / 2.0;
    // The two lines cross: they part most at an end.
    let apart = |x: f64| (steep.0 * x + steep.1 - flat.0 * x - flat.1).abs();
    let ends = [first.0.min(lower[0].0), last.0.max(lower[lower.len() - 1].0)];
    let error = ends.into_iter().map(apart).fold(0.0, f64::max) / 2.0;
    (scale > 0.0 && scale.is_finite()).then_some(Fit { scale, offset, error })
}

/// True if a line lies between the hulls, rounding aside.
fn between((slope, offset): Point, upper: &[Point], lower: &[Point]) -> bool {
    let at = |x: f64| slope * x + offset;
    let slack = |y: f64| y.abs() * 1e-12 + 1e-6;
    upper.iter().all(|(x, y)| at(*x) <= y + slack(*y))
        && lower.iter().all(|(x, y)| at(*x) >= y - slack(*y))
}

/// The lower hull of points, or the upper one (Andrew's monotone chain).
fn hull(points: &[Point], above: bool) -> Vec<Point> {
    let mut sorted: Vec<Point> =
        points.iter().copied().filter(|(x, y)| x.is_finite() && y.is_finite()).collect();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    if above {
        sorted.reverse();
    }
    let mut chain: Vec<Point> = Vec::new();
    for point in sorted {
        while let [.., a, b] = chain.as_slice() {
            let turn = (b.0 - a.0) * (point.1 - a.1) - (b.1 - a.1) * (point.0 - a.0);
            if turn > 0.0 {
                break;
            }
            chain.pop();
        }
        chain.push(point);
    }
    if above {
        chain.reverse();
    }
    chain
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pairs of a clock that runs `ppm` faster and is `offset` ahead, with delays that are
    /// never the same.
    fn planted(offset: f64, ppm: f64) -> (Vec<Point>, Vec<Point>) {
        let mut seed = 1_u64;
        let mut delay = move || {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            2_000.0 + ((seed >> 33) % 100_000) as f64
        };
        let other = |x: f64| offset + x * (1.0 + ppm * 1e-6);
        let (mut upper, mut lower) = (Vec::new(), Vec::new());
        for n in 0..2_000 {
            let (x, y) = (n as f64 * 1e6, n as f64 * 1e6 + 500_000.0);
            upper.push((x, other(x + delay())));
            lower.push((y, other(y - delay())));
        }
        (upper, lower)
    }

    #[test]
    fn a_planted_offset_and_drift_are_found_within_the_error_told() {
        for (offset, ppm) in [(0.0, 0.0), (5e9, 40.0), (-3e8, -120.0), (1e6, 0.5)] {
            let (upper, lower) = planted(offset, ppm);
            let fit = fit(&upper, &lower).expect("a line between the hulls");
            for x in [0.0, 1e9, 2e9] {
                let truth = offset + x * (1.0 + ppm * 1e-6);
                let found = fit.offset + fit.scale * x;
                assert!(
                    (found - truth).abs() <= fit.error + 1.0,
                    "{offset} {ppm}: {found} for {truth}, error {}",
                    fit.error
                );
            }
            assert!(fit.error < 10_000.0, "{}", fit.error);
        }
    }

    #[test]
    fn contradicting_pairs_and_too_few_have_no_line() {
        assert_eq!(fit(&[], &[]), None);
        assert_eq!(fit(&[(0.0, 0.0), (1.0, 1.0)], &[(0.0, 5.0), (1.0, 6.0)]), None);
        assert_eq!(fit(&[(0.0, 1.0)], &[(0.0, 0.0)]), None);
    }
}
