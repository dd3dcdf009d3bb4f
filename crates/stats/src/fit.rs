//! How a cost grows with a parameter: straight lines, least squares and robust.

use crate::dist::{normal_quantile, t_quantile, t_two_sided};
use crate::sample::{mean, median, sorted};
use serde::{Deserialize, Serialize};

/// A straight line through points.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LinearFit {
    /// Cost at parameter 0.
    pub intercept: f64,
    /// Cost per unit of the parameter.
    pub slope: f64,
    /// 95 % interval of the slope; the slope itself twice where nothing is left to judge by
    /// (two points).
    pub slope_ci95: [f64; 2],
    /// p-value against a slope of 0.
    pub p_value: f64,
    /// Standard deviation around the line.
    pub residual_sd: f64,
    /// Share of the variance that the line explains, 0 to 1.
    pub r_squared: f64,
    /// Points used.
    pub n: usize,
}

/// The finite points.
pub(crate) fn finite(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    points.iter().copied().filter(|(x, y)| x.is_finite() && y.is_finite()).collect()
}

/// Ordinary least squares with Student's t interval of the slope (N. Draper, H. Smith,
/// Applied Regression Analysis, 3rd ed. 1998, ch. 1). Each run is a point (parameter, cost).
///
/// None unless two different parameters were measured.
pub fn linear_fit(points: &[(f64, f64)]) -> Option<LinearFit> {
    let points = finite(points);
    let n = points.len();
    let centre_x = mean(&points.iter().map(|p| p.0).collect::<Vec<_>>());
    let centre_y = mean(&points.iter().map(|p| p.1).collect::<Vec<_>>());
    let (mut sxx, mut sxy, mut syy) = (0.0, 0.0, 0.0);
    for (x, y) in &points {
        let (dx, dy) = (x - centre_x, y - centre_y);
        sxx += dx * dx;
        sxy += dx * dy;
        syy += dy * dy;
    }
    let distinct = points.iter().any(|p| p.0 != points[0].0);
    if !distinct || sxx <= 0.0 || !sxx.is_finite() {
        return None;
    }
    let slope = sxy / sxx;
    // Subtracting slope x sxy would leave rounding noise in a perfect fit.
    let left: f64 =
        points.iter().map(|(x, y)| (y - centre_y - slope * (x - centre_x)).powi(2)).sum();
    let df = n as f64 - 2.0;
    let residual_sd = if df > 0.0 { (left / df).sqrt() } else { 0.0 };
    let error = residual_sd / sxx.sqrt();
    let half = if error > 0.0 { t_quantile(0.975, df) * error } else { 0.0 };
    let p_value = match slope {
        0.0 => 1.0,
        _ if df > 0.0 => t_two_sided(slope / error, df),
        _ => 1.0,
    };
    Some(LinearFit {
        intercept: centre_y - slope * centre_x,
        slope,
        slope_ci95: [slope - half, slope + half],
        p_value,
        residual_sd,
        r_squared: if syy > 0.0 { (1.0 - left / syy).clamp(0.0, 1.0) } else { 1.0 },
        n,
    })
}

/// Slope that outliers hardly move: the median of all pairwise slopes (H. Theil, 1950), with
/// P. Sen's interval ("Estimates of the regression coefficient based on Kendall's tau", JASA
/// 63, 1968). Keeps its value while less than 29 % of the points are off.
///
/// `p_value` is that of Kendall's tau; `residual_sd` is scaled from the median absolute
/// residual. None as [`linear_fit`]. Quadratic in the number of points.
pub fn theil_sen(points: &[(f64, f64)]) -> Option<LinearFit> {
    let points = finite(points);
    let mut slopes = Vec::new();
    let mut concordance = 0.0;
    for (i, (x1, y1)) in points.iter().enumerate() {
        for (x2, y2) in &points[i + 1..] {
            if x1 != x2 {
                let slope = (y2 - y1) / (x2 - x1);
                slopes.push(slope);
                concordance += if slope == 0.0 { 0.0 } else { slope.signum() };
            }
        }
    }
    let slopes = sorted(&slopes);
    if slopes.is_empty() {
        return None;
    }
    let slope = crate::sample::sorted_quantile(&slopes, 0.5);
    let intercept = median(&points.iter().map(|(x, y)| y - slope * x).collect::<Vec<_>>());
    let residuals: Vec<f64> = points.iter().map(|(x, y)| y - intercept - slope * x).collect();
    let sd = kendall_sd(&points);
    let reach = normal_quantile(0.975) * sd;
    let end = |offset: f64| {
        let at = (slopes.len() as f64 + offset) / 2.0;
        slopes[(at.max(0.0) as usize).min(slopes.len() - 1)]
    };
    let line = linear_fit(&points)?;
    let distance = (concordance.abs() - 1.0).max(0.0);
    Some(LinearFit {
        intercept,
        slope,
        slope_ci95: [end(-reach), end(reach)],
        p_value: if sd > 0.0 { 2.0 * crate::dist::normal_cdf(-distance / sd) } else { 1.0 },
        residual_sd: crate::sample::mad(&residuals) * crate::sample::MAD_TO_SD,
        ..line
    })
}

/// Standard deviation of Kendall's S without trend, with equal parameters (Sen, 1968, 2.6).
fn kendall_sd(points: &[(f64, f64)]) -> f64 {
    let n = points.len() as f64;
    let xs = sorted(&points.iter().map(|p| p.0).collect::<Vec<_>>());
    let ties: f64 = xs
        .chunk_by(|a, b| a == b)
        .map(|run| run.len() as f64)
        .map(|u| u * (u - 1.0) * (2.0 * u + 5.0))
        .sum();
    ((n * (n - 1.0) * (2.0 * n + 5.0) - ties) / 18.0).max(0.0).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use proptest::prelude::*;

    /// Anscombe's first set (The American Statistician 27, 1973): y = 3.00 + 0.500 x, standard
    /// error of the slope 0.118, R squared 0.667.
    #[test]
    fn anscombe() {
        let y = [8.04, 6.95, 7.58, 8.81, 8.33, 9.96, 7.24, 4.26, 10.84, 4.82, 5.68];
        let x = [10.0, 8.0, 13.0, 9.0, 11.0, 14.0, 6.0, 4.0, 12.0, 7.0, 5.0];
        let points: Vec<(f64, f64)> = x.into_iter().zip(y).collect();
        let fit = linear_fit(&points).unwrap();
        assert!((fit.intercept - 3.00).abs() < 0.001 && (fit.slope - 0.5001).abs() < 0.0001);
        let half = (fit.slope_ci95[1] - fit.slope_ci95[0]) / 2.0;
        assert!((half / 2.262_157 - 0.1179).abs() < 0.0001, "{fit:?}");
        assert!((fit.r_squared - 0.6665).abs() < 0.0001 && (fit.p_value - 0.00217).abs() < 1e-5);
        let robust = theil_sen(&points).unwrap();
        assert!((robust.slope - 0.5).abs() < 0.1 && robust.slope_ci95[0] > 0.0);
    }

    #[test]
    fn a_slow_run_moves_only_least_squares() {
        let mut points: Vec<(f64, f64)> =
            (0..20).map(|i| (f64::from(i), 1.0 + 2.0 * f64::from(i))).collect();
        points[19].1 += 500.0;
        assert!((theil_sen(&points).unwrap().slope - 2.0).abs() < 1e-9);
        assert!(linear_fit(&points).unwrap().slope > 5.0);
    }

    #[test]
    fn intervals_cover_95_percent() {
        let mut rng = Rng::new(31);
        let (mut least, mut robust) = (0, 0);
        for _ in 0..1000 {
            let noisy = |i: i32, rng: &mut Rng| {
                (f64::from(i / 3), 5.0 + 0.3 * f64::from(i / 3) + rng.normal())
            };
            let points: Vec<(f64, f64)> = (0..21).map(|i| noisy(i, &mut rng)).collect();
            let inside = |f: LinearFit| i32::from(f.slope_ci95[0] <= 0.3 && 0.3 <= f.slope_ci95[1]);
            least += inside(linear_fit(&points).unwrap());
            robust += inside(theil_sen(&points).unwrap());
        }
        println!("covered: least squares {least}, Theil-Sen {robust} of 1000");
        assert!((935..=965).contains(&least) && (930..=972).contains(&robust));
    }

    #[test]
    fn no_line_through_one_parameter() {
        assert_eq!(linear_fit(&[(1.0, 2.0), (1.0, 3.0), (f64::NAN, 1.0)]), None);
        assert_eq!(theil_sen(&[(1.0, 2.0)]), None);
        let two = linear_fit(&[(0.0, 1.0), (2.0, 5.0)]).unwrap();
        assert_eq!((two.slope, two.slope_ci95, two.p_value), (2.0, [2.0, 2.0], 1.0));
    }

    proptest! {
        #[test]
        fn any_points(points in prop::collection::vec((any::<f64>(), any::<f64>()), 0..25)) {
            for fit in [linear_fit(&points), theil_sen(&points)].into_iter().flatten() {
                prop_assert!(fit.n >= 2);
            }
        }
    }
}
