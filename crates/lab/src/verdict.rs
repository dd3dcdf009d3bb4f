//! What a comparison of two machines says, in words of an engineer: the typical run, the mean, and what a few
//! slow runs have to do with it. Terms of statistics are in docs/STATISTICS.md and in the JSON.

use crate::gate::runs_wanted;
use vmeter_model::result::Comparison;
use vmeter_model::{Estimate, Verdict};
use vmeter_render::quantity::{p_value, plural, ratio_interval};
use vmeter_render::tone::Tone;
use vmeter_stats::decide::{Decided, MARGIN};
use vmeter_stats::Slow;

/// What the p-value of a comparison is.
pub(crate) const P: &str =
    "the smaller p-value of two tests (typical run, mean), adjusted for both tests and for all \
    comparisons";

/// What slow runs add to what the typical runs of `a` and `b` say, where they move the mean by half of what
/// counts as equal, or leave it unknown.
pub(crate) fn tail(a: &str, b: &str, found: &Decided) -> Option<String> {
    let apart = (found.mean.mean / found.ratio.mean).ln().abs() > MARGIN.ln_1p() / 2.0;
    let width = |estimate: &Estimate| (estimate.ci95[1] / estimate.ci95[0]).ln();
    let unknown = width(&found.mean) > 2.0 * width(&found.ratio);
    slow_runs([a, b], found.slow, found.slow_p_value).filter(|_| apart || unknown)
}

/// `4 of 40 runs of B take 2.9 times as long as its others, 0 of 40 of A`, if any are slow.
pub(crate) fn slow_runs([a, b]: [&str; 2], [of_a, of_b]: [Slow; 2], p: f64) -> Option<String> {
    let most = |name: &str, slow: Slow| {
        let take = if slow.count == 1 { "takes" } else { "take" };
        format!(
            "{} of {} runs of {name} {take} {:.1} times as long as its typical run",
            slow.count, slow.of, slow.times
        )
    };
    let less = |name: &str, slow: Slow| match slow.count {
        0 => format!("none of {} of {name}", slow.of),
        count => format!("{count} of {} of {name} ({:.1} times)", slow.of, slow.times),
    };
    let (first, second) = match of_a.count > of_b.count {
        true => (most(a, of_a), less(b, of_b)),
        false => (most(b, of_b), less(a, of_a)),
    };
    (of_a.count + of_b.count > 0).then(|| format!("{first}, {second} ({})", spelled_p(p)))
}

fn spelled_p(p: f64) -> String {
    match p_value(p) {
        p if p.starts_with('<') => format!("p {p}"),
        p => format!("p = {p}"),
    }
}

/// What the typical run is.
const ESTIMATOR: &str = "(Hodges-Lehmann) ";

/// Sentences of several comparisons, with the estimator's name in the first only.
pub(crate) fn said_once(said: String) -> String {
    match said.split_once(ESTIMATOR) {
        Some((before, rest)) => format!("{before}{ESTIMATOR}{}", rest.replace(ESTIMATOR, "")),
        None => said,
    }
}

/// What a comparison says, in a few sentences.
pub(crate) fn sentence(comparison: &Comparison) -> String {
    let Comparison { a, b, verdict, margin_pct, pairs, .. } = comparison;
    let (ratio, mean) = (&comparison.ratio, ratio_interval(&comparison.mean_ratio));
    let p = spelled_p(comparison.p_value);
    let typical = format!("{ESTIMATOR}takes {} × {a}'s time", ratio_interval(ratio));
    let by_typical = ratio.leaves_out(1.0);
    let mut said = vec![match verdict {
        Verdict::Equal if comparison.exact => return format!("{a} and {b} are equal."),
        Verdict::Faster | Verdict::Slower if by_typical && comparison.tail.is_some() => {
            format!(
                "{b} is {verdict} than {a}: for {b}, the typical run {typical}, and the mean is \
                 {mean} × the mean of {a} ({p})."
            )
        }
        Verdict::Faster | Verdict::Slower if by_typical => {
            format!("{b} is {verdict} than {a}: {b}'s typical run {typical} ({p}).")
        }
        Verdict::Faster | Verdict::Slower => format!(
            "{b} is {verdict} than {a} on average: its mean is {mean} × {a}'s ({p}). Its typical run {typical}."
        ),
        Verdict::Equal => format!(
            "{a} and {b} are equal within {margin_pct} %: for {b}, the typical run {typical}, and \
             the mean is {mean} × the mean of {a}."
        ),
        Verdict::NoDifference if comparison.tail.is_some() => {
            format!("vmeter found no difference between {a} and {b} ({p}): {b}'s typical run \
                {typical}.")
        }
        Verdict::NoDifference => {
            format!("No difference found between {a} and {b} ({p}): {b}'s typical run {typical}.")
        }
        Verdict::Undecidable if *pairs < comparison.pairs_needed => {
            return format!(
                "{a} and {b}: {} of each are too few for a comparison; {} are needed.",
                plural(*pairs as u64, "run"),
                comparison.pairs_needed
            )
        }
        Verdict::Undecidable => format!(
            "It is undecided whether {a} or {b} is faster: for {b}, the typical run {typical}, but \
             the mean is {mean} × the mean of {a}."
        ),
    }];
    if let Some(tail) = &comparison.tail {
        said.push(format!("{tail}."));
        if *verdict == Verdict::NoDifference {
            said.push(format!("{b}'s mean is {mean} × {a}'s."));
        }
    }
    said.extend(more_runs(comparison));
    said.extend(level(comparison));
    said.join(" ")
}

/// What these runs could have shown, or how many would decide.
fn more_runs(comparison: &Comparison) -> Option<String> {
    let (runs, mean) = (comparison.pairs, &comparison.mean_ratio);
    let open = comparison.tail.is_some() && comparison.verdict == Verdict::NoDifference;
    if open || comparison.verdict == Verdict::Undecidable {
        let wanted = runs_wanted(1.0, mean.mean, mean.ci95, runs)?;
        return Some(format!(
            "About {wanted} runs of each machine would decide whether the means differ (80 % power, if the true difference is the observed one)."
        ));
    }
    let seen = comparison.detectable_pct.filter(|_| comparison.verdict == Verdict::NoDifference)?;
    Some(format!("With {runs} runs of each, a true difference of {seen:.1} % would be found with 80 % power."))
}

/// What the brackets of a comparison are: wider than of 95 % where it is one of several looks.
pub(crate) fn interval_pct(comparison: &Comparison) -> f64 {
    if comparison.exact {
        95.0
    } else {
        comparison.sure_pct
    }
}

/// Why intervals are wider than of 95 %.
fn level(comparison: &Comparison) -> Option<String> {
    let sure = interval_pct(comparison);
    ((sure - 95.0).abs() >= 1e-6).then(|| {
        format!(
            "The brackets are {sure} % intervals instead of 95 % ones, because vmeter tested \
                these runs several times while it made them."
        )
    })
}

/// The colour of a verdict.
pub(crate) fn verdict_tone(verdict: Verdict) -> Tone {
    match verdict {
        Verdict::Faster | Verdict::Equal => Tone::Good,
        Verdict::Slower => Tone::Bad,
        Verdict::NoDifference | Verdict::Undecidable => Tone::Muted,
    }
}

/// A verdict in a table.
pub(crate) fn verdict_words(comparison: &Comparison) -> String {
    let Comparison { verdict, margin_pct, pairs, pairs_needed, .. } = comparison;
    match verdict {
        Verdict::Equal if comparison.exact => "equal".into(),
        Verdict::Equal => format!("equal within {margin_pct} %"),
        Verdict::NoDifference => "none found".into(),
        Verdict::Undecidable if pairs < pairs_needed => {
            format!("too few runs ({pairs} of {pairs_needed})")
        }
        Verdict::Undecidable => "not decided".into(),
        other => other.word().into(),
    }
}

/// The ratio of the typical run with its interval, where there is one.
pub(crate) fn ratio_words(comparison: &Comparison) -> String {
    match comparison.pairs < comparison.pairs_needed {
        true => format!("{:.2}", comparison.ratio.mean),
        false => ratio_interval(&comparison.ratio),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::comparison;
    use crate::gate::{GateResult, Limit};
    use vmeter_stats::rng::Rng;
    use vmeter_stats::Rule;

    /// Runs of 100 ms, 1 % noise; those of b in `slow` take `times` as long.
    fn judged(n: usize, slow: &[usize], times: f64, rest: f64) -> Comparison {
        let mut rng = Rng::new(5);
        let mut one =
            |slow: bool| 0.1 * (0.01 * rng.normal()).exp() * if slow { times } else { 1.0 };
        let pairs: Vec<(f64, f64)> =
            (0..n).map(|at| (one(false), rest * one(slow.contains(&at)))).collect();
        let found = Rule::default().decide(&pairs).expect("pairs");
        comparison(("A", "B"), found, found.ratio, &Rule::default())
    }

    #[test]
    fn a_slow_tenth_is_said_and_is_not_equal() {
        let limit = Limit { percent: 3.0, inconclusive: None };
        let found = judged(40, &[3, 11, 12, 30], 2.9, 1.0);
        assert_eq!(found.verdict, Verdict::NoDifference);
        let said = sentence(&found);
        assert!(
            said.contains(
                "4 of 40 runs of B take 2.9 times as long as its typical run, none of 40 of A"
            ),
            "{said}"
        );
        assert!(said.contains("B's mean is 1.19"), "{said}");
        let gate = limit.of_comparison(&found);
        assert_eq!(gate.ruling, GateResult::Inconclusive);
        assert!(
            gate.text.contains("4 of 40 runs of B") && gate.text.contains("would decide"),
            "{}",
            gate.text
        );
        // Fifteen of 100 are no chance: the mean decides by itself, and the gate fails by it.
        let all: Vec<usize> = (0..15).map(|at| 6 * at).collect();
        let found = judged(100, &all, 3.0, 1.0);
        assert_eq!(found.verdict, Verdict::Slower);
        let said = sentence(&found);
        assert!(said.starts_with("B is slower than A") && said.contains("mean is 1.3"), "{said}");
        assert_eq!(limit.of_comparison(&found).ruling, GateResult::Failed);
        // Without them it is as it ever was.
        let found = judged(40, &[], 1.0, 1.0);
        assert_eq!((found.verdict, &found.tail), (Verdict::Equal, &None));
        assert_eq!(limit.of_comparison(&found).ruling, GateResult::Passed);
    }

    #[test]
    fn faster_but_for_some_is_not_faster() {
        let found = judged(30, &[2, 9, 17, 25], 1.5, 0.97);
        assert_eq!(found.verdict, Verdict::Undecidable);
        let said = sentence(&found);
        assert!(said.starts_with("It is undecided whether A or B is faster"), "{said}");
        assert!(said.contains("4 of 30 runs of B take 1.5 times as long"), "{said}");
        assert_eq!(verdict_words(&found), "not decided");
    }
}
