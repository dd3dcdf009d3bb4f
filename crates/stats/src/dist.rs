//! The distributions that tests and intervals need, total over their arguments.

use statrs::distribution::{ChiSquared, ContinuousCDF, FisherSnedecor, Normal, StudentsT};

/// Quantile of Student's t; infinite for df <= 0, the normal's for infinite df.
pub fn t_quantile(p: f64, df: f64) -> f64 {
    match StudentsT::new(0.0, 1.0, df) {
        Ok(t) if df.is_finite() => t.inverse_cdf(p.clamp(0.0, 1.0)),
        _ if df > 0.0 => normal_quantile(p),
        _ => f64::INFINITY,
    }
}

/// Two-sided p-value of a t statistic; 1 where df is no number above 0.
pub fn t_two_sided(t: f64, df: f64) -> f64 {
    if t.is_nan() {
        return 1.0;
    }
    match StudentsT::new(0.0, 1.0, df) {
        Ok(dist) if t.is_finite() => (2.0 * dist.sf(t.abs())).min(1.0),
        Ok(_) => 0.0,
        Err(_) => 1.0,
    }
}

/// Upper tail of the F distribution; 1 where the degrees of freedom are none.
pub fn f_upper(f: f64, df1: f64, df2: f64) -> f64 {
    match FisherSnedecor::new(df1, df2) {
        Ok(_) if f == f64::INFINITY => 0.0,
        Ok(dist) if f > 0.0 => dist.sf(f),
        _ => 1.0,
    }
}

/// Quantile of chi squared; 0 where the degrees of freedom are none.
pub fn chi_squared_quantile(p: f64, df: f64) -> f64 {
    ChiSquared::new(df).map_or(0.0, |dist| dist.inverse_cdf(p.clamp(0.0, 1.0)))
}

/// Standard normal distribution function.
pub fn normal_cdf(z: f64) -> f64 {
    Normal::standard().cdf(z)
}

/// Quantile of the standard normal, infinite at 0 and 1.
pub fn normal_quantile(p: f64) -> f64 {
    Normal::standard().inverse_cdf(p.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2 (t) and 1.3.6.7.3 (F).
    #[test]
    fn quantiles_are_those_of_the_tables() {
        // 1.3.6.7.4: chi squared.
        assert!((chi_squared_quantile(0.95, 10.0) - 18.307).abs() < 1e-3);
        assert!((chi_squared_quantile(0.05, 19.0) - 10.117).abs() < 1e-3);
        assert_eq!(chi_squared_quantile(0.5, 0.0), 0.0);
        let table = [
            (1.0, 0.975, 12.706),
            (2.0, 0.975, 4.303),
            (4.0, 0.975, 2.776),
            (9.0, 0.975, 2.262),
            (10.0, 0.995, 3.169),
            (29.0, 0.95, 1.699),
            (60.0, 0.999, 3.232),
            (100.0, 0.975, 1.984),
        ];
        for (df, p, expected) in table {
            let found = t_quantile(p, df);
            assert!((found - expected).abs() < 6e-4, "t({p}, {df}) = {found}, not {expected}");
            assert!((t_two_sided(found, df) - 2.0 * (1.0 - p)).abs() < 1e-9);
        }
        assert!((f_upper(4.965, 1.0, 10.0) - 0.05).abs() < 1e-5);
        assert!((f_upper(3.098, 3.0, 20.0) - 0.05).abs() < 1e-4);
        assert!((normal_quantile(0.975) - 1.959_963_984_540).abs() < 1e-9);
        assert!((normal_cdf(-1.0) - 0.158_655_253_931).abs() < 1e-9);
    }

    #[test]
    fn odd_arguments_have_answers() {
        assert_eq!(t_quantile(0.975, 0.0), f64::INFINITY);
        assert!((t_quantile(0.975, f64::INFINITY) - 1.96).abs() < 1e-3);
        assert_eq!(t_two_sided(f64::NAN, 3.0), 1.0);
        assert_eq!(t_two_sided(f64::INFINITY, 3.0), 0.0);
        assert_eq!(t_two_sided(1.0, f64::NAN), 1.0);
        assert_eq!(f_upper(f64::NAN, 1.0, 1.0), 1.0);
        assert_eq!(f_upper(f64::INFINITY, 1.0, 1.0), 0.0);
    }
}
