//! Numbers with as many digits as their interval supports, in a unit that reads well.
//!
//! Rounding follows the Particle Data Group ("Review of Particle Physics",
//! Introduction, section 5.3): the uncertainty keeps two digits when its three
//! leading ones are 100 to 354, one when they are 355 to 949, and is rounded up
//! to 1000 and keeps two above; the value is rounded to the same place.

use vmeter_base::Estimate;

/// What a number counts. All are kept in the base unit (s, bytes, 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Seconds.
    Seconds,
    /// Bytes, shown in powers of 1024.
    Bytes,
    /// Things counted, shown in powers of 1000.
    Count,
    /// A quotient, shown as it is.
    Ratio,
}

/// A power of the unit that a number, or a whole column, is shown in.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    /// Base units in one shown unit.
    pub factor: f64,
    /// Its sign, `""` for the base unit of counts and ratios.
    pub suffix: &'static str,
    /// Most decimals that make sense.
    decimals: i32,
}

const fn scale(factor: f64, suffix: &'static str, decimals: i32) -> Scale {
    Scale { factor, suffix, decimals }
}

const SECONDS: [Scale; 4] =
    [scale(1.0, "s", 3), scale(1e-3, "ms", 3), scale(1e-6, "µs", 3), scale(1e-9, "ns", 1)];
const BYTES: [Scale; 4] = [
    scale(1_073_741_824.0, "GiB", 2),
    scale(1_048_576.0, "MiB", 1),
    scale(1024.0, "KiB", 1),
    scale(1.0, "B", 0),
];
const COUNTS: [Scale; 4] =
    [scale(1e9, "G", 3), scale(1e6, "M", 2), scale(1e3, "k", 1), scale(1.0, "", 1)];
const RATIOS: [Scale; 1] = [scale(1.0, "", 4)];

impl Unit {
    fn scales(self) -> &'static [Scale] {
        match self {
            Unit::Seconds => &SECONDS,
            Unit::Bytes => &BYTES,
            Unit::Count => &COUNTS,
            Unit::Ratio => &RATIOS,
        }
    }

    /// The largest scale in which `value` is at least 1.
    pub fn scale_for(self, value: f64) -> Scale {
        let scales = self.scales();
        let value = value.abs();
        let fitting = scales.iter().find(|s| value >= s.factor);
        *fitting.unwrap_or(if value == 0.0 { &scales[0] } else { &scales[scales.len() - 1] })
    }

    /// The scale for a column whose largest value is `largest`.
    ///
    /// Up to ten seconds stay in ms, so that neighbours a thousand times smaller
    /// remain readable beside the largest.
    pub fn column_scale(self, largest: f64) -> Scale {
        match self {
            Unit::Seconds if (1e-2..10.0).contains(&largest.abs()) => SECONDS[1],
            unit => unit.scale_for(largest),
        }
    }
}

/// A value and what is known of its uncertainty.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quantity {
    /// The value, in base units.
    pub value: f64,
    /// Half the width of its interval; `None` when there is none (a single run).
    pub half_width: Option<f64>,
    /// Uncertainty that the digits follow where no interval is shown beside it.
    pub resolution: Option<f64>,
    /// The upper end of an interval that begins at 0 and is not symmetrical.
    pub at_most: Option<f64>,
    /// What it counts.
    pub unit: Unit,
}

/// A number as text, in two parts so that columns can align both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Digits {
    /// The value.
    pub value: String,
    /// The half width, if there is an interval.
    pub half_width: Option<String>,
}

impl Quantity {
    /// A value known exactly, or of unknown uncertainty.
    pub fn exact(value: f64, unit: Unit) -> Self {
        Quantity { value, half_width: None, resolution: None, at_most: None, unit }
    }

    /// The mean with half the width of its 95 % confidence interval.
    pub fn of(estimate: &Estimate, unit: Unit) -> Self {
        Quantity { half_width: half_width(estimate), ..Quantity::exact(estimate.mean, unit) }
    }

    /// A duration with its interval. No duration is below 0: where the interval would begin there,
    /// it is given by its ends.
    pub fn duration(estimate: &Estimate) -> Self {
        let own = Quantity::of(estimate, Unit::Seconds);
        if own.half_width.is_none() || estimate.ci95[0] > 0.0 || estimate.mean <= 0.0 {
            return own;
        }
        // So wide an interval supports no digits: two of the value show its size.
        let resolution = Some(own.value / 4.0);
        Quantity { half_width: None, resolution, at_most: Some(estimate.ci95[1]), ..own }
    }

    /// The same value with the digits that its interval supports, and no interval beside it.
    pub fn without_interval(self) -> Self {
        let resolution = self.half_width.or(self.resolution);
        Quantity { half_width: None, at_most: None, resolution, ..self }
    }

    /// A median or an extreme, with the digits that the mean's interval supports.
    pub fn beside(value: f64, estimate: &Estimate, unit: Unit) -> Self {
        Quantity { resolution: half_width(estimate), ..Quantity::exact(value, unit) }
    }

    /// The mean with the sample standard deviation.
    pub fn with_sd(estimate: &Estimate, unit: Unit) -> Self {
        let sd = (estimate.n > 1).then_some(estimate.sd);
        Quantity { half_width: sd, ..Quantity::exact(estimate.mean, unit) }
    }

    /// As digits in `scale`.
    pub fn digits(&self, scale: Scale) -> Digits {
        let value = self.value / scale.factor;
        // Nothing in every run needs no interval.
        let half = self.half_width.filter(|half| (self.value, *half) != (0.0, 0.0));
        let half = half.map(|h| h / scale.factor);
        let whole = self.unit == Unit::Count && scale.factor == 1.0;
        let resolution = half.or(self.resolution.map(|r| r / scale.factor));
        let decimals = match resolution {
            Some(h) if h > 0.0 && h.is_finite() => supported_decimals(h).min(scale.decimals),
            Some(_) if whole => 0,
            _ => significant_decimals(value, if whole { 15 } else { 4 }).min(scale.decimals),
        };
        let decimals = if resolution.is_none() && whole { 0 } else { decimals };
        // Rounded to the same digits, they would leave open on which side of 0 the interval begins.
        let differ = |decimals: &i32| {
            half.is_none_or(|half| rounded(half, *decimals) != rounded(value.abs(), *decimals))
        };
        let decimals = (decimals..decimals + 3).find(differ).unwrap_or(decimals);
        Digits {
            value: rounded(value, decimals),
            half_width: half.map(|h| if h == 0.0 { "0".into() } else { rounded(h, decimals) }),
        }
    }

    /// In words, in the unit that fits: `3.912 ± 0.041 s`, `412 ms`, `1,234`.
    pub fn inline(&self) -> String {
        let exact_count = self.unit == Unit::Count && !self.half_width.is_some_and(|h| h > 0.0);
        // What is smaller than its own interval has the interval's unit.
        let wider = self.half_width.filter(|half| *half > self.value.abs());
        let largest = wider.unwrap_or(self.value);
        let scale = if exact_count { COUNTS[3] } else { self.unit.scale_for(largest) };
        let digits = self.digits(scale);
        let mut text = match self.unit {
            _ if exact_count => grouped(&digits.value),
            Unit::Bytes if self.half_width.is_none() => trimmed(&digits.value).to_owned(),
            _ => digits.value,
        };
        if let Some(half) = digits.half_width.filter(|_| !exact_count) {
            text = format!("{text} ± {half}");
        }
        if !scale.suffix.is_empty() {
            text = format!("{text} {}", scale.suffix);
        }
        if let Some(most) = self.at_most {
            text = format!("{text} [0, {}]", brief_seconds(most));
        }
        text
    }
}

/// Half the width of the 95 % confidence interval; `None` for a single sample that has none. One
/// that is cut at 0 counts as if it were not.
pub fn half_width(estimate: &Estimate) -> Option<f64> {
    let [low, high] = estimate.ci95;
    let half = if low == 0.0 { high - estimate.mean } else { (high - low) / 2.0 };
    // A ratio of one run to several has an interval from elsewhere.
    (estimate.n > 1 || low < high).then(|| half.max(0.0))
}

/// Decimals that an uncertainty supports (negative: tens, hundreds).
fn supported_decimals(half_width: f64) -> i32 {
    let exponent = half_width.log10().floor() as i32;
    let leading = half_width / 10f64.powi(exponent);
    if leading < 3.55 {
        1 - exponent
    } else {
        -exponent
    }
}

/// Decimals that show `value` with `digits` significant digits, not negative.
fn significant_decimals(value: f64, digits: i32) -> i32 {
    if value == 0.0 || !value.is_finite() {
        return 0;
    }
    (digits - 1 - value.abs().log10().floor() as i32).max(0)
}

/// From here on a double no longer tells neighbouring integers apart.
const ABSURD: f64 = 9e15;

/// `value` rounded to `decimals` places; negative places round to tens and hundreds.
fn rounded(value: f64, decimals: i32) -> String {
    if !value.is_finite() {
        return "-".into();
    }
    if value.abs() >= ABSURD {
        return format!("{value:.2e}");
    }
    let text = if decimals >= 0 {
        format!("{value:.*}", decimals as usize)
    } else {
        let step = 10f64.powi(-decimals);
        format!("{:.0}", (value / step).round() * step)
    };
    // No reader knows what "-0" is.
    match text.strip_prefix('-') {
        Some(size) if !size.contains(|digit| ('1'..='9').contains(&digit)) => size.to_owned(),
        _ => text,
    }
}

/// An integer's digits in groups of three: `1,309,442,113`.
pub fn grouped(digits: &str) -> String {
    if !digits.bytes().all(|b| b.is_ascii_digit() || b == b'-') {
        return digits.to_owned();
    }
    let (sign, digits) = digits.strip_prefix('-').map_or(("", digits), |rest| ("-", rest));
    let mut out = String::from(sign);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// `1 call`, `2 calls`.
pub fn plural(count: u64, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}

/// Digits without zeros at the end of the fraction.
pub fn trimmed(digits: &str) -> &str {
    if digits.contains('.') {
        digits.trim_end_matches('0').trim_end_matches('.')
    } else {
        digits
    }
}

/// A ratio as what it adds to 1, with its interval: `+1.8% [+1.5%, +2.0%]`.
pub fn added_percent(ratio: &Estimate) -> String {
    let [low, mean, high] = added(ratio);
    match half_width(ratio).filter(|h| *h > 0.0) {
        Some(_) => format!("{mean} [{low}, {high}]"),
        None => mean,
    }
}

/// The interval alone, where there is little room: `+1.5% to +2.0%`.
pub fn added_range(ratio: &Estimate) -> String {
    let [low, mean, high] = added(ratio);
    match half_width(ratio).filter(|h| *h > 0.0) {
        Some(_) => format!("{low} to {high}"),
        None => mean,
    }
}

/// Decimals of a percentage, at most.
const FINEST: i32 = 4;

/// The interval's ends and the mean between them, of as many decimals as it supports.
fn added(ratio: &Estimate) -> [String; 3] {
    let half = half_width(ratio).filter(|h| *h > 0.0);
    let percent = |ratio: f64| (ratio - 1.0) * 100.0;
    let decimals = match half {
        Some(half) => supported_decimals(half * 100.0).clamp(0, FINEST),
        // 0.04 % is not 0.0 %, and 0 is exact.
        None if ratio.mean == 1.0 => 0,
        None => significant_decimals(percent(ratio.mean), 2).clamp(1, FINEST),
    };
    let [low, high] = ratio.ci95;
    [low, ratio.mean, high].map(|value| {
        let percent = rounded(percent(value), decimals);
        let sign = if percent.starts_with('-') { "" } else { "+" };
        format!("{sign}{percent}%")
    })
}

/// A share of 1 as a percentage.
pub fn percent(share: f64) -> String {
    format!("{}%", rounded(share * 100.0, 1))
}

/// A number in a sentence: three significant digits, at most two of them decimals.
pub fn three_digits(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 99.95 || v == 0.0 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.decimals$}")
}

/// A time in a sentence: `178 µs`, `8.50 ms`.
pub fn brief_seconds(seconds: f64) -> String {
    let scale = if seconds == 0.0 { SECONDS[3] } else { Unit::Seconds.scale_for(seconds) };
    format!("{} {}", three_digits(seconds / scale.factor), scale.suffix)
}

/// A share of 1 as a percentage in a sentence: `22 %`, `3.7 %`.
pub fn brief_percent(share: f64) -> String {
    match share * 100.0 {
        p if p >= 9.95 => format!("{p:.0} %"),
        p => format!("{p:.1} %"),
    }
}

/// A p-value with the digits that a permutation test supports.
pub fn p_value(p: f64) -> String {
    match p {
        p if !p.is_finite() => "-".into(),
        p if p < 0.001 => "< 0.001".into(),
        p if p < 0.1 => format!("{p:.3}"),
        p => format!("{p:.2}"),
    }
}

/// A ratio with its interval: `0.862 [0.841, 0.884]`.
pub fn ratio_interval(ratio: &Estimate) -> String {
    let half = half_width(ratio).filter(|h| *h > 0.0);
    let decimals = half.map_or(3, |h| supported_decimals(h).clamp(2, 4));
    if half.is_none() {
        return rounded(ratio.mean, decimals);
    }
    let [low, high] = ratio.ci95.map(|end| rounded(end, decimals));
    format!("{} [{low}, {high}]", rounded(ratio.mean, decimals))
}

/// A duration of one run, as `systemd-analyze` writes them: `1.309s`, `84ms`.
pub fn compact_seconds(seconds: f64) -> String {
    if seconds.abs() >= ABSURD || !seconds.is_finite() {
        return format!("{}s", rounded(seconds, 0));
    }
    if seconds == 0.0 {
        return "0s".into();
    }
    let scale = Unit::Seconds.scale_for(seconds);
    let decimals = match scale.suffix {
        "s" => 3,
        "ms" if seconds < 0.01 => 2,
        "ms" if seconds < 0.1 => 1,
        _ => 0,
    };
    format!("{}{}", rounded(seconds / scale.factor, decimals), scale.suffix)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantity(value: f64, half_width: f64) -> Quantity {
        Quantity { half_width: Some(half_width), ..Quantity::exact(value, Unit::Seconds) }
    }

    #[test]
    fn digits_follow_the_interval() {
        assert_eq!(quantity(3.91234, 0.0412).inline(), "3.91 ± 0.04 s");
        assert_eq!(quantity(3.91234, 0.0212).inline(), "3.912 ± 0.021 s");
        assert_eq!(quantity(0.41234, 0.0097).inline(), "412 ± 10 ms");
        assert_eq!(quantity(0.4123, 0.08).inline(), "410 ± 80 ms");
        assert_eq!(quantity(14.2e-6, 0.3e-6).inline(), "14.20 ± 0.30 µs");
        assert_eq!(quantity(0.0, 0.0).inline(), "0 s");
        // The interval excludes 0, which one more digit shows.
        assert_eq!(quantity(0.00904, 0.0088).inline(), "9.0 ± 8.8 ms");
    }

    #[test]
    fn no_duration_is_below_0() {
        let estimate = |mean: f64, ci95: [f64; 2]| Estimate {
            mean,
            median: mean,
            sd: 1.0,
            ci95,
            min: mean,
            max: mean,
            n: 2,
        };
        let of = |mean, ci95| Quantity::duration(&estimate(mean, ci95)).inline();
        assert_eq!(of(1.0, [-4.0, 6.0]), "1.00 s [0, 6.00 s]");
        assert_eq!(of(0.1, [-0.9, 1.1]), "100 ms [0, 1.10 s]");
        assert_eq!(of(1.0, [0.9, 1.1]), "1.00 ± 0.10 s");
        // Cut at 0 already; a count shows the width that it had.
        assert_eq!(of(1.0, [0.0, 6.0]), "1.00 s [0, 6.00 s]");
        let count = Quantity::of(&estimate(1.0, [0.0, 6.0]), Unit::Count);
        assert_eq!(count.half_width, Some(5.0));
        // A difference may be below 0.
        let saves = Quantity::of(&estimate(0.008, [-0.3, 0.316]), Unit::Seconds);
        assert!(saves.inline().contains('±'));
        let less = Quantity::of(&estimate(-0.0007, [-0.0067, 0.0053]), Unit::Seconds);
        assert_eq!(less.inline(), "-1 ± 6 ms");
    }

    #[test]
    fn without_an_interval_four_digits_and_with_none_left_zero() {
        assert_eq!(Quantity::exact(3.9123456, Unit::Seconds).inline(), "3.912 s");
        assert_eq!(Quantity::exact(0.0, Unit::Seconds).inline(), "0 s");
        assert_eq!(quantity(0.25, 0.0).inline(), "250.0 ± 0 ms");
        assert_eq!(Quantity::exact(f64::NAN, Unit::Seconds).inline(), "- ns");
    }

    #[test]
    fn counts_are_exact_where_they_are_exact() {
        assert_eq!(Quantity::exact(1_309_442_113.0, Unit::Count).inline(), "1,309,442,113");
        let exact = Quantity::exact(432.1e6, Unit::Count);
        let spread = Quantity { half_width: Some(0.3e6), ..exact };
        assert_eq!(spread.inline(), "432.10 ± 0.30 M");
        assert_eq!(Quantity::exact(3.5 * 1024.0, Unit::Bytes).inline(), "3.5 KiB");
    }

    #[test]
    fn sentences_have_three_digits() {
        assert_eq!(brief_seconds(178.4e-6), "178 µs");
        assert_eq!(brief_seconds(8.5e-3), "8.50 ms");
        assert_eq!(brief_seconds(12.34), "12.3 s");
        assert_eq!(brief_seconds(0.0), "0 ns");
        assert_eq!((brief_percent(0.224), brief_percent(0.037)), ("22 %".into(), "3.7 %".into()));
        assert_eq!(three_digits(0.5), "0.50");
    }

    #[test]
    fn what_a_ratio_adds_is_never_rounded_to_nothing() {
        let ratio = |mean: f64, ci95: [f64; 2], n: usize| {
            let (median, sd, min, max) = (mean, 0.0, mean, mean);
            added_percent(&Estimate { mean, median, sd, ci95, min, max, n })
        };
        // One run on a side, and an interval by all builds.
        assert_eq!(ratio(1.0002, [0.97, 1.031], 1), "+0.0% [-3.0%, +3.1%]");
        assert_eq!(ratio(1.0004, [1.0004; 2], 3), "+0.040%");
        assert_eq!(ratio(0.99996, [0.99996; 2], 1), "-0.0040%");
        assert_eq!(ratio(1.0004, [1.00037, 1.00043], 8), "+0.0400% [+0.0370%, +0.0430%]");
        assert_eq!(ratio(1.0, [1.0; 2], 3), "+0%");
        assert_eq!(ratio(1.183, [1.183; 2], 1), "+18.3%");
    }

    #[test]
    fn ratios_and_p_values() {
        let ratio = Estimate {
            mean: 0.8617,
            median: 0.86,
            sd: 0.03,
            ci95: [0.841, 0.8834],
            min: 0.8,
            max: 0.9,
            n: 12,
        };
        assert_eq!(ratio_interval(&ratio), "0.862 [0.841, 0.883]");
        assert_eq!(p_value(0.00021), "< 0.001");
        assert_eq!(p_value(0.0317), "0.032");
        assert_eq!(compact_seconds(0.0843), "84.3ms");
    }
}
