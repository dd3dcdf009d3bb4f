//! Does a cost grow with the number of items? Least squares, with how well it fits.

/// A straight line through points, and how much of their spread it explains.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fit {
    /// Value at number 0.
    pub intercept: f64,
    /// Growth an item.
    pub slope: f64,
    /// Share of the variance explained, 0 to 1.
    pub r2: f64,
    /// Fitted value at the last point.
    pub last: f64,
}

/// Fits a line; none for fewer than 3 points or if all have the same number.
pub fn line(points: &[(f64, f64)]) -> Option<Fit> {
    if points.len() < 3 {
        return None;
    }
    let n = points.len() as f64;
    let mean_x = points.iter().map(|p| p.0).sum::<f64>() / n;
    let mean_y = points.iter().map(|p| p.1).sum::<f64>() / n;
    let (mut xx, mut xy, mut yy) = (0.0, 0.0, 0.0);
    for (x, y) in points {
        xx += (x - mean_x).powi(2);
        xy += (x - mean_x) * (y - mean_y);
        yy += (y - mean_y).powi(2);
    }
    if xx <= 0.0 {
        return None;
    }
    let slope = xy / xx;
    let intercept = mean_y - slope * mean_x;
    let r2 = if yy > 0.0 { xy * xy / (xx * yy) } else { 0.0 };
    let last = intercept + slope * points.last()?.0;
    Some(Fit { intercept, slope, r2, last })
}

/// Drops the highest twentieth of the values' excess: a few instances that an interrupt
/// hit would bend a least-squares line.
pub fn clip(points: &mut [(f64, f64)]) {
    let mut values: Vec<f64> = points.iter().map(|p| p.1).collect();
    values.sort_by(f64::total_cmp);
    let Some(limit) = values.get(values.len().saturating_mul(19) / 20).copied() else { return };
    for point in points {
        point.1 = point.1.min(limit);
    }
}

/// True if the value grows from instance to instance: the line explains at least half of
/// the spread, and its end is at least three times its beginning.
pub fn grows(fit: &Fit, first_x: f64) -> bool {
    let first = (fit.intercept + fit.slope * first_x).max(0.0);
    fit.slope > 0.0 && fit.r2 >= 0.5 && fit.last >= 3.0 * first && fit.last > 0.0
}
