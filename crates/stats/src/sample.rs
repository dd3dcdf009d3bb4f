//! What describes a sample: mean, spread, order statistics.

/// The finite samples, in order.
pub(crate) fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut finite: Vec<f64> = samples.iter().copied().filter(|x| x.is_finite()).collect();
    finite.sort_by(f64::total_cmp);
    finite
}

/// Arithmetic mean by the updating formula (B. Welford, Technometrics 4, 1962), which does
/// not overflow; 0 for no samples.
pub fn mean(samples: &[f64]) -> f64 {
    let mut mean = 0.0;
    for (i, x) in samples.iter().enumerate() {
        let k = (i + 1) as f64;
        mean += x / k - mean / k;
    }
    mean
}

/// Sum of squared deviations from the mean.
pub fn sum_squares(samples: &[f64]) -> f64 {
    let mean = mean(samples);
    samples.iter().map(|x| (x - mean) * (x - mean)).sum()
}

/// Sample variance (n - 1); 0 for fewer than two samples.
pub(crate) fn variance(samples: &[f64]) -> f64 {
    match samples.len() {
        0 | 1 => 0.0,
        n => sum_squares(samples) / (n - 1) as f64,
    }
}

/// Sample standard deviation (n - 1); exactly 0 for equal samples.
pub fn sd(samples: &[f64]) -> f64 {
    match samples.split_first() {
        Some((first, rest)) if rest.iter().any(|x| x != first) => variance(samples).sqrt(),
        _ => 0.0,
    }
}

/// Correlation of each sample with the next one (lag 1), in the order in which they were taken;
/// none for fewer than eight, or for equal ones.
pub fn lag_1(samples: &[f64]) -> Option<f64> {
    let centre = mean(samples);
    let squares = sum_squares(samples);
    let products: f64 = samples.windows(2).map(|w| (w[0] - centre) * (w[1] - centre)).sum();
    (samples.len() >= 8 && squares > 0.0 && squares.is_finite()).then(|| products / squares)
}

/// Median of the finite samples; 0 for none.
pub fn median(samples: &[f64]) -> f64 {
    quantile(samples, 0.5).unwrap_or(0.0)
}

/// Quantile, linear between order statistics: definition 7 of R. Hyndman, Y. Fan, "Sample
/// quantiles in statistical packages", The American Statistician 50, 1996 (R's and numpy's
/// default). None for no samples.
pub fn quantile(samples: &[f64], q: f64) -> Option<f64> {
    let sorted = sorted(samples);
    (!sorted.is_empty() && !q.is_nan()).then(|| sorted_quantile(&sorted, q))
}

pub(crate) fn sorted_quantile(sorted: &[f64], q: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let at = q.clamp(0.0, 1.0) * last as f64;
    let below = at.floor() as usize;
    let above = (below + 1).min(last);
    let part = at - below as f64;
    sorted[below] * (1.0 - part) + sorted[above] * part
}

/// Median absolute deviation from the median, unscaled.
pub(crate) fn mad(samples: &[f64]) -> f64 {
    let centre = median(samples);
    let deviations: Vec<f64> = samples.iter().map(|x| (x - centre).abs()).collect();
    median(&deviations)
}

/// Turns a MAD into the standard deviation of a normal sample.
pub(crate) const MAD_TO_SD: f64 = 1.482_602_218_505_602;

/// Where the parts begin and end that `cuts`, in order, make of what is from `begin` to `end`.
pub(crate) fn parts_between(begin: usize, cuts: &[usize], end: usize) -> Vec<[usize; 2]> {
    let begins = std::iter::once(begin).chain(cuts.iter().copied());
    let ends = cuts.iter().copied().chain(std::iter::once(end));
    begins.zip(ends).map(|(begin, end)| [begin, end]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_type_7() {
        let xs = [1.0, 2.0, 3.0, 4.0];
        assert_eq!(quantile(&xs, 0.25), Some(1.75));
        assert!((quantile(&xs, 0.99).unwrap() - 3.97).abs() < 1e-12);
        assert_eq!(quantile(&xs, 7.0), Some(4.0));
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(quantile(&xs, f64::NAN), None);
    }
}
