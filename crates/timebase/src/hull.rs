//! The straight line that relates two clocks, and how wrong it can be.
//!
//! An event of one clock that must come before (after) an event of the other bounds the
//! line from above (below). All lines that respect every bound form a convex set; its
//! extreme lines touch the convex hulls of the two sets of bounds. This is the method of
//! Duda, Harrus, Haddad and Bernard, "Estimating Global Time in Distributed Systems"
//! (ICDCS 1987), which trace viewers use for the traces of several hosts.
//!
//! The line that is chosen runs halfway between the extremes at both ends. The greatest
//! feasible value is a maximum of lines, so convex along the trace, and the least is
//! concave: half the wider gap at the ends bounds the error everywhere between.

/// `offset + scale x`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fit {
    /// Value at 0, ticks of the other clock.
    pub offset: f64,
    /// Ticks of the other clock in a tick.
    pub scale: f64,
    /// Greatest error over the range and all bounds, ticks of the other clock.
    pub error: f64,
}

/// Fewest bounds on each side.
const LEAST: usize = 4;
/// Bounds are matched by content, so a few may be wrong: at most one in so many is left out.
const WRONG: usize = 20;
/// Most that are left out, as each takes a fit.
const MOST_WRONG: usize = 128;
/// Steps of a search that halves, or takes a third off, what doubles can tell apart.
const STEPS: usize = 160;
/// How far the rate may be from the one that the middle of the bounds shows.
const RATES: (f64, f64) = (0.5, 1.5);
/// What a bound may be off by the clocks' resolution, ticks.
const TICK: f64 = 0.5;

/// A point: a time on this clock, and one on the other.
pub type Point = (f64, f64);

/// Fits a line under `upper` and over `lower` bounds, for `range`; none if they don't hold
/// one.
pub fn fit(upper: &[Point], lower: &[Point], range: (f64, f64)) -> Option<Fit> {
    if upper.len() < LEAST || lower.len() < LEAST {
        return None;
    }
    let (mut upper, mut lower) = (sorted(upper), sorted(lower));
    let from = upper.first()?.0.min(lower.first()?.0).min(range.0);
    let to = upper.last()?.0.max(lower.last()?.0).max(range.1);
    let nominal = rate(&upper, &lower)?;
    // What clocks' resolution explains is no contradiction.
    let tolerated = gap(&upper, &lower, nominal) / 2.0 + 1.0;
    let may_drop = ((upper.len() + lower.len()) / WRONG).min(MOST_WRONG);
    let mut dropped = 0;
    let (band, best, slack) = loop {
        let band = Band::of(&upper, &lower);
        let best = band.widest(nominal);
        let slack = (-band.width(best) / 2.0).max(0.0);
        if slack <= tolerated || dropped + 2 > may_drop {
            break (band, best, slack * (1.0 + 1e-9) + TICK);
        }
        let (above, below) = band.touching(best);
        upper.retain(|point| *point != above);
        lower.retain(|point| *point != below);
        dropped += 2;
    };
    let least = band.extreme(best, nominal * RATES.0, slack);
    let most = band.extreme(best, nominal * RATES.1, slack);
    let start = (band.above(least, from) + slack, band.below(most, from) - slack);
    let stop = (band.above(most, to) + slack, band.below(least, to) - slack);
    let (first, last) = ((start.0 + start.1) / 2.0, (stop.0 + stop.1) / 2.0);
    let scale = (last - first) / (to - from);
    let found = Fit {
        offset: first - scale * from,
        scale,
        error: (start.0 - start.1).max(stop.0 - stop.1) / 2.0,
    };
    let sound = found.scale > 0.0 && found.offset.is_finite() && found.error.is_finite();
    sound.then_some(found)
}

fn by_place(a: &Point, b: &Point) -> std::cmp::Ordering {
    a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))
}

fn sorted(points: &[Point]) -> Vec<Point> {
    let mut points = points.to_vec();
    points.sort_by(by_place);
    points
}

/// Ticks of the other clock in a tick, by the median of slopes over half the trace: wrong
/// bounds do not move it.
fn rate(upper: &[Point], lower: &[Point]) -> Option<f64> {
    let mut slopes = Vec::new();
    for points in [upper, lower] {
        for (a, b) in points.iter().zip(points.get(points.len() / 2..)?) {
            let slope = (b.1 - a.1) / (b.0 - a.0);
            if slope.is_finite() && slope > 0.0 {
                slopes.push(slope);
            }
        }
    }
    slopes.sort_by(f64::total_cmp);
    slopes.get(slopes.len() / 2).copied()
}

/// Median distance of an upper bound from the lower one nearest in time.
fn gap(upper: &[Point], lower: &[Point], rate: f64) -> f64 {
    let level = |point: &Point| point.1 - rate * point.0;
    let near = |point: &Point| {
        let at = lower.partition_point(|other| other.0 < point.0);
        lower.get(at).or(lower.last())
    };
    let gaps = upper.iter().filter_map(|point| Some((level(point) - level(near(point)?)).abs()));
    let mut gaps: Vec<f64> = gaps.collect();
    gaps.sort_by(f64::total_cmp);
    gaps.get(gaps.len() / 2).copied().unwrap_or(0.0)
}

/// What lies between the hulls of the two sets of bounds.
struct Band {
    upper: Vec<Point>,
    lower: Vec<Point>,
}

impl Band {
    /// Of sorted bounds.
    fn of(upper: &[Point], lower: &[Point]) -> Band {
        let flip = |points: &[Point]| points.iter().map(|(x, y)| (*x, -y)).collect::<Vec<_>>();
        let flipped = sorted(&flip(lower));
        Band { upper: hull_below(upper), lower: flip(&hull_below(&flipped)) }
    }

    /// Greatest value at `x` of a line of this slope under all upper bounds.
    fn above(&self, slope: f64, x: f64) -> f64 {
        let value = |point: &Point| point.1 - slope * (point.0 - x);
        self.upper.iter().map(value).fold(f64::INFINITY, f64::min)
    }

    /// Least value at `x` of a line of this slope over all lower bounds.
    fn below(&self, slope: f64, x: f64) -> f64 {
        let value = |point: &Point| point.1 - slope * (point.0 - x);
        self.lower.iter().map(value).fold(f64::NEG_INFINITY, f64::max)
    }

    /// Room for lines of this slope; negative if there is none.
    fn width(&self, slope: f64) -> f64 {
        self.above(slope, 0.0) - self.below(slope, 0.0)
    }

    /// The slope with most room: the room is a concave function of the slope.
    fn widest(&self, nominal: f64) -> f64 {
        let (mut low, mut high) = (nominal * RATES.0, nominal * RATES.1);
        for _ in 0..STEPS {
            let (a, b) = (low + (high - low) / 3.0, high - (high - low) / 3.0);
            if self.width(a) < self.width(b) {
                low = a
            } else {
                high = b
            }
        }
        (low + high) / 2.0
    }

    /// The slope nearest to `limit` that has room, from `inside`, which has.
    fn extreme(&self, mut inside: f64, limit: f64, slack: f64) -> f64 {
        let mut outside = limit;
        for _ in 0..STEPS {
            let middle = (inside + outside) / 2.0;
            if self.width(middle) + 2.0 * slack >= 0.0 {
                inside = middle
            } else {
                outside = middle
            }
        }
        inside
    }

    /// The bounds that leave least room at this slope.
    fn touching(&self, slope: f64) -> (Point, Point) {
        let level = |point: &Point| point.1 - slope * point.0;
        let by = |a: &&Point, b: &&Point| level(a).total_cmp(&level(b));
        let above = self.upper.iter().min_by(by).copied().unwrap_or_default();
        (above, self.lower.iter().max_by(by).copied().unwrap_or_default())
    }
}

/// The lower convex hull of sorted points (Andrew's monotone chain).
fn hull_below(points: &[Point]) -> Vec<Point> {
    let mut hull: Vec<Point> = Vec::new();
    for point in points {
        // Of equal x the first is the lowest.
        if hull.last().is_some_and(|last| last.0 >= point.0) {
            continue;
        }
        while let [.., a, b] = hull.as_slice() {
            let turn = (b.0 - a.0) * (point.1 - a.1) - (b.1 - a.1) * (point.0 - a.0);
            if turn > 0.0 {
                break;
            }
            hull.pop();
        }
        hull.push(*point);
    }
    hull
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bounds around a planted line: what a clock shows at the other's stamp.
    fn planted(scale: f64, shift: f64, delays: &[(u16, u16)]) -> (Vec<Point>, Vec<Point>) {
        let both = delays.iter().enumerate().map(|(at, (before, after))| {
            let x = 1e6 + at as f64 * 5e4;
            let y = x * scale + shift;
            ((x, y + f64::from(*after)), (x, y - f64::from(*before)))
        });
        both.unzip()
    }

    #[test]
    fn wrong_pairs_are_left_out() {
        let delays: Vec<(u16, u16)> = (0..200).map(|i| (i % 40, i % 23)).collect();
        let (mut upper, mut lower) = planted(2.5, 9e9, &delays);
        let clean = fit(&upper, &lower, (0.0, 0.0)).expect("a line");
        lower.push((5e6, 9.5e10));
        upper.push((6e6, 3.0));
        let found = fit(&upper, &lower, (0.0, 0.0)).expect("a line");
        assert!((found.scale - clean.scale).abs() < 1e-4, "{found:?} {clean:?}");
        assert!(found.error < 50.0, "{found:?}");
    }

    #[test]
    fn one_sided_bounds_hold_nothing() {
        let (upper, _) = planted(1.0, 50.0, &[(1, 1); 20]);
        assert_eq!(fit(&upper, &[], (0.0, 1.0)), None);
        assert_eq!(fit(&[], &[], (0.0, 1.0)), None);
    }

    proptest! {
        #[test]
        fn the_planted_line_is_within_the_error(
            scale in 0.2f64..5.0,
            shift in -1e12f64..1e12,
            delays in proptest::collection::vec((0u16..2000, 0u16..2000), 20..200),
        ) {
            let (upper, lower) = planted(scale, shift, &delays);
            let found = fit(&upper, &lower, (0.0, 0.0)).expect("a line");
            let last = 1e6 + delays.len() as f64 * 5e4;
            for x in [0.0, last / 2.0, last - 5e4] {
                let wrong = (found.offset + found.scale * x - (x * scale + shift)).abs();
                prop_assert!(wrong <= found.error + 0.5, "{} > {} at {}", wrong, found.error, x);
            }
        }

        #[test]
        fn anything_may_come(
            upper in proptest::collection::vec((any::<f64>(), any::<f64>()), 0..40),
            lower in proptest::collection::vec((any::<f64>(), any::<f64>()), 0..40),
        ) {
            let _ = fit(&upper, &lower, (0.0, 0.0));
        }
    }
}
