//! Does a cost grow in proportion, or with the square? Which exponent?
//!
//! "Boot is quadratic in vCPUs" is a claim about the order of growth, so the answer comes
//! with its evidence: an F test of the quadratic term, both models' AICc, and how much of
//! the growth is the quadratic term's.

use crate::dist::{f_upper, t_quantile};
use crate::fit::{finite, linear_fit, LinearFit};
use crate::sample::mean;
use serde::{Deserialize, Serialize};

/// Order of growth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// A straight line does.
    Linear,
    /// The square is needed.
    Quadratic,
}

/// Share of the growth over the measured range that must be the square's to call it so.
pub const MATERIAL_SHARE: f64 = 0.1;

/// The choice and its evidence.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct OrderEvidence {
    /// Quadratic if the F test rejects the line at 1 %, AICc prefers the parabola, it bends
    /// upwards, and the bend makes up [`MATERIAL_SHARE`] of the growth; else linear.
    pub order: Order,
    /// p-value of the quadratic term (F test).
    pub p_value: f64,
    /// Small-sample Akaike criterion of the line (N. Sugiura 1978; C. Hurvich, C.-L. Tsai,
    /// Biometrika 76, 1989); lower is better. None where there are too few points.
    pub aicc_linear: Option<f64>,
    /// The same of the parabola.
    pub aicc_quadratic: Option<f64>,
    /// Coefficient of x squared.
    pub quadratic: f64,
    /// Its 95 % interval.
    pub quadratic_ci95: [f64; 2],
    /// Share of the growth from the first to the last parameter that the square makes up.
    pub quadratic_share: f64,
    /// The line's a and b.
    pub line: [f64; 2],
    /// The parabola's a, b and c.
    pub parabola: [f64; 3],
    /// Points used.
    pub n: usize,
}

impl OrderEvidence {
    /// Coefficients of the curve that was chosen, the constant first.
    pub fn coefficients(&self) -> &[f64] {
        match self.order {
            Order::Linear => &self.line,
            Order::Quadratic => &self.parabola,
        }
    }

    /// What the curve that was chosen says at `x`. Beyond the points it is an extrapolation.
    pub fn predict(&self, x: f64) -> f64 {
        self.coefficients().iter().rev().fold(0.0, |sum, c| sum * x + c)
    }
}

/// Chooses between y = a + bx and y = a + bx + cx² (F test of nested models: Draper & Smith,
/// ch. 6; AICc: K. Burnham, D. Anderson, Model Selection and Multimodel Inference, 2002).
///
/// None unless three different parameters and four points were measured.
pub fn choose_order(points: &[(f64, f64)]) -> Option<OrderEvidence> {
    let points = finite(points);
    let n = points.len();
    let basis = Basis::new(&points)?;
    if n < 4 {
        return None;
    }
    let [rss_linear, rss_quadratic] = basis.residual_squares(&points);
    let df = n as f64 - 3.0;
    let p_value = f_upper((rss_linear - rss_quadratic) / (rss_quadratic / df), 1.0, df);
    let half = t_quantile(0.975, df) * (rss_quadratic / df / basis.norms[2]).sqrt();
    let quadratic = basis.coefficients[2];
    let aicc_linear = aicc(rss_linear, n, 3, basis.floor);
    let aicc_quadratic = aicc(rss_quadratic, n, 4, basis.floor);
    let quadratic_share = basis.quadratic_share();
    let better = matches!((aicc_linear, aicc_quadratic), (Some(l), Some(q)) if q < l);
    let needed = p_value <= 0.01 && better;
    let order = if needed && quadratic > 0.0 && quadratic_share >= MATERIAL_SHARE {
        Order::Quadratic
    } else {
        Order::Linear
    };
    Some(OrderEvidence {
        order,
        p_value,
        aicc_linear,
        aicc_quadratic,
        quadratic,
        quadratic_ci95: [quadratic - half, quadratic + half],
        quadratic_share,
        line: basis.line(),
        parabola: basis.parabola(),
        n,
    })
}

/// n ln(RSS / n) + 2k + 2k(k + 1) / (n - k - 1), k counting the variance.
fn aicc(rss: f64, n: usize, k: usize, floor: f64) -> Option<f64> {
    let spare = n.checked_sub(k + 1).filter(|s| *s > 0)? as f64;
    let (n, k) = (n as f64, k as f64);
    Some(n * (rss.max(floor) / n).ln() + 2.0 * k + 2.0 * k * (k + 1.0) / spare)
}

/// 1, x and x² made orthogonal over the points, so that the fit is a few sums and large
/// parameters cost no precision.
struct Basis {
    centre: f64,
    scale: f64,
    /// x² is uncorrelated with x once this much of x (and `offset`) is taken away.
    tilt: f64,
    offset: f64,
    /// Sums of squares of the three functions; of x² in the parameter's own unit.
    norms: [f64; 3],
    /// Coefficients; of x² in the parameter's own unit.
    coefficients: [f64; 3],
    /// Residual squares below this are rounding.
    floor: f64,
    range: [f64; 2],
}

impl Basis {
    fn new(points: &[(f64, f64)]) -> Option<Self> {
        let xs = crate::sample::sorted(&points.iter().map(|p| p.0).collect::<Vec<_>>());
        if xs.chunk_by(|a, b| a == b).count() < 3 {
            return None;
        }
        let range = [*xs.first()?, *xs.last()?];
        let centre = mean(&xs);
        let scale = range[1] - range[0];
        let us: Vec<f64> = points.iter().map(|p| (p.0 - centre) / scale).collect();
        let sum = |f: &dyn Fn(f64) -> f64| us.iter().map(|u| f(*u)).sum::<f64>();
        let n = us.len() as f64;
        let u2 = sum(&|u| u * u);
        let tilt = sum(&|u| u * u * u) / u2;
        let offset = u2 / n;
        let p2 = |u: f64| u * u - tilt * u - offset;
        let p22 = sum(&|u| p2(u) * p2(u));
        let ys = || us.iter().zip(points).map(|(u, p)| (*u, p.1));
        let c0 = mean(&points.iter().map(|p| p.1).collect::<Vec<_>>());
        let c1 = ys().map(|(u, y)| u * (y - c0)).sum::<f64>() / u2;
        let c2 = ys().map(|(u, y)| p2(u) * (y - c0)).sum::<f64>() / p22;
        let largest = points.iter().map(|p| p.1.abs()).fold(0.0, f64::max);
        let floor = n * (largest * 1e-12).powi(2) + f64::MIN_POSITIVE;
        let usable = scale.is_finite() && p22 > 1e-20 && [c0, c1, c2].iter().all(|c| c.is_finite());
        usable.then_some(Self {
            centre,
            scale,
            tilt,
            offset,
            norms: [n, u2, p22 * scale.powi(4)],
            coefficients: [c0, c1, c2 / (scale * scale)],
            floor,
            range,
        })
    }

    /// The line in powers of the parameter.
    fn line(&self) -> [f64; 2] {
        let [c0, c1, _] = self.coefficients;
        let slope = c1 / self.scale;
        [c0 - slope * self.centre, slope]
    }

    /// The parabola in powers of the parameter.
    fn parabola(&self) -> [f64; 3] {
        let [c0, c1, c2] = self.coefficients;
        // In t = x - centre: a + b t + c2 t².
        let a = c0 - c2 * self.scale * self.scale * self.offset;
        let b = c1 / self.scale - c2 * self.scale * self.tilt;
        let m = self.centre;
        [a - b * m + c2 * m * m, b - 2.0 * c2 * m, c2]
    }

    /// What the line and the parabola leave unexplained.
    fn residual_squares(&self, points: &[(f64, f64)]) -> [f64; 2] {
        let c2 = self.coefficients[2] * self.scale * self.scale;
        let [mut linear, mut quadratic] = [0.0, 0.0];
        for (x, y) in points {
            let u = (x - self.centre) / self.scale;
            let left = y - self.coefficients[0] - self.coefficients[1] * u;
            linear += left * left;
            quadratic += (left - c2 * (u * u - self.tilt * u - self.offset)).powi(2);
        }
        let clean = |rss: f64| if rss <= self.floor { 0.0 } else { rss };
        [clean(linear), clean(quadratic)]
    }

    /// Of the parabola's growth over the range, the part of c (x - first)².
    fn quadratic_share(&self) -> f64 {
        let at = |x: f64| (x - self.centre) / self.scale;
        let c2 = self.coefficients[2] * self.scale * self.scale;
        let value = |u: f64| self.coefficients[1] * u + c2 * (u * u - self.tilt * u);
        let growth = value(at(self.range[1])) - value(at(self.range[0]));
        // With u - u0 as variable the square's part at the range's end (1 away) is c2.
        if growth == 0.0 {
            0.0
        } else {
            (c2 / growth).abs()
        }
    }
}

/// Exponent of y = c x^k by least squares on logarithms: `slope` is k, `intercept` ln c.
///
/// A constant cost beneath the growth pulls the exponent down: take the cost at the smallest
/// parameter away first, or use [`choose_order`]. Points that are not above 0 are left out.
pub fn power_law(points: &[(f64, f64)]) -> Option<LinearFit> {
    let logs: Vec<(f64, f64)> = points
        .iter()
        .filter(|(x, y)| *x > 0.0 && *y > 0.0)
        .map(|(x, y)| (x.ln(), y.ln()))
        .collect();
    linear_fit(&logs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use proptest::prelude::*;

    fn noisy(f: impl Fn(f64) -> f64, noise: f64, rng: &mut Rng) -> Vec<(f64, f64)> {
        (1..=65).map(|i| (f64::from(i), f(f64::from(i)) * (1.0 + noise * rng.normal()))).collect()
    }

    #[test]
    fn routes_committed_one_by_one_are_quadratic() {
        // The shape of MSI-X set-up: commit k writes k routes.
        let mut rng = Rng::new(2);
        let each = noisy(|k| 8.0 * k + 0.085 * k * k / 2.0, 0.03, &mut rng);
        let found = choose_order(&each).unwrap();
        assert_eq!(found.order, Order::Quadratic, "{found:?}");
        assert!(found.quadratic_ci95[0] < 0.0425 && 0.0425 < found.quadratic_ci95[1]);
        let once = noisy(|k| 8.0 + 0.125 * k, 0.03, &mut rng);
        assert_eq!(choose_order(&once).unwrap().order, Order::Linear);
    }

    #[test]
    fn a_perfect_parabola_and_a_perfect_line() {
        let parabola: Vec<(f64, f64)> =
            (0..9).map(f64::from).map(|x| (x, 2.0 + 3.0 * x + 0.5 * x * x)).collect();
        let found = choose_order(&parabola).unwrap();
        assert_eq!((found.order, found.p_value), (Order::Quadratic, 0.0));
        assert!((found.quadratic - 0.5).abs() < 1e-9);
        assert!((found.quadratic_share - 32.0 / 56.0).abs() < 1e-9, "{found:?}");
        for (found, known) in found.parabola.iter().zip([2.0, 3.0, 0.5]) {
            assert!((found - known).abs() < 1e-9, "{found} is {known}");
        }
        assert!((found.predict(20.0) - 262.0).abs() < 1e-6);
        let line: Vec<(f64, f64)> = (0..9).map(|i| (f64::from(i), 291.0 * f64::from(i))).collect();
        let found = choose_order(&line).unwrap();
        assert_eq!((found.order, found.p_value), (Order::Linear, 1.0), "{found:?}");
        assert!((found.predict(100.0) - 29_100.0).abs() < 1e-6 && found.coefficients().len() == 2);
    }

    #[test]
    fn lines_are_called_quadratic_less_than_1_percent_of_the_time() {
        let mut rng = Rng::new(8);
        let wrong = (0..1000).filter(|_| {
            let points = noisy(|k| 100.0 + 3.0 * k, 0.05, &mut rng);
            choose_order(&points[..20]).unwrap().order == Order::Quadratic
        });
        let wrong = wrong.count();
        println!("{wrong} of 1000 lines called quadratic");
        assert!(wrong <= 15, "{wrong}");
    }

    #[test]
    fn exponents() {
        let mut rng = Rng::new(4);
        let fit = power_law(&noisy(|x| 0.7 * x.powf(1.5), 0.02, &mut rng)).unwrap();
        assert!((fit.slope - 1.5).abs() < 0.02 && fit.slope_ci95[0] < 1.5, "{fit:?}");
        assert_eq!(power_law(&[(0.0, 1.0), (-1.0, 2.0), (2.0, 3.0)]), None);
    }

    #[test]
    fn too_few_parameters() {
        assert!(choose_order(&[(1.0, 1.0), (2.0, 2.0), (1.0, 1.1), (2.0, 2.1)]).is_none());
        assert!(choose_order(&[(1.0, 1.0), (2.0, 2.0), (3.0, 4.0)]).is_none());
        let four = choose_order(&[(1.0, 1.0), (2.0, 2.0), (3.0, 4.0), (4.0, 9.0)]).unwrap();
        assert_eq!((four.order, four.aicc_linear), (Order::Linear, None));
    }

    proptest! {
        #[test]
        fn any_points(points in prop::collection::vec((any::<f64>(), any::<f64>()), 0..25)) {
            let _ = choose_order(&points);
            let _ = power_law(&points);
        }
    }
}
