//! Tests of the decision.

use super::*;
use vmeter_stats::rng::Rng;

fn boot(phases: &[(&str, f64)]) -> Boot {
    let total = phases.iter().map(|(_, s)| s).sum();
    Boot {
        total,
        cpu: total,
        parts: phases.iter().map(|(name, s)| ((*name).to_owned(), *s)).collect(),
        phases: phases.iter().map(|(name, _)| (*name).to_owned()).collect(),
        within: Default::default(),
    }
}

/// 10 boots of a host with slow spells, `saved` s less in the phase `b`.
fn boots(rng: &mut Rng, saved: f64) -> Vec<Boot> {
    let one = |rng: &mut Rng| {
        let host = (0.04 * rng.normal()).exp() * if rng.below(8) == 0 { 1.4 } else { 1.0 };
        let mut part = |s: f64| s * host * (0.02 * rng.normal()).exp();
        boot(&[
            ("a", part(1.0)),
            ("b", part(1.5 - saved)),
            ("c", part(0.5)),
            ("d", part(0.2)),
            ("e", part(0.1)),
            ("f", part(0.3)),
        ])
    };
    (0..10).map(|_| one(rng)).collect()
}

fn decided(rng: &mut Rng, saved: f64, expected: &str, questions: usize) -> Vec<Decision> {
    let sides: Vec<(Vec<Boot>, Vec<Boot>)> = (0..questions)
        .map(|at| (boots(rng, 0.0), boots(rng, if at == 0 { saved } else { 0.0 })))
        .collect();
    let borrowed: Vec<(Vec<&Boot>, Vec<&Boot>)> =
        sides.iter().map(|(a, b)| (a.iter().collect(), b.iter().collect())).collect();
    let expected = [expected.to_owned()];
    let questions: Vec<Question<'_>> = borrowed
        .iter()
        .map(|(a, b)| Question { with: a, without: Some(b), expected: &expected })
        .collect();
    decide(&questions)
}

#[test]
fn nothing_is_confirmed_where_nothing_is() {
    let mut rng = Rng::new(14);
    let sessions = 400;
    let wrong =
        (0..sessions).filter(|_| decided(&mut rng, 0.0, "b", 8).iter().any(|d| d.saves || d.costs));
    // At most 1 % of sessions: 4, and 11 with a chance of 0.1 %.
    let wrong = wrong.count();
    assert!(wrong <= 10, "{wrong} of {sessions}");
}

#[test]
fn an_effect_is_found_where_it_is_and_not_where_it_was_expected() {
    let mut rng = Rng::new(3);
    for expected in ["a", "b"] {
        let found = decided(&mut rng, 0.3, expected, 8);
        let first = &found[0];
        assert!(first.saves && first.p_value < 0.01, "{first:?}");
        assert_eq!(first.moved.len(), 1, "{first:?}");
        assert_eq!(first.moved[0].name, "b");
        assert!((first.moved[0].saving.mean - 0.3).abs() < 0.1, "{first:?}");
    }
}

#[test]
fn the_smallest_effect_is_found_as_often_as_it_says() {
    let mut rng = Rng::new(8);
    let known: Vec<f64> = (0..60)
        .filter_map(|_| decided(&mut rng, 0.0, "b", 4)[0].detectable.clone())
        .map(|(least, _)| least)
        .collect();
    let effect = vmeter_stats::median(&known);
    let found = (0..100).filter(|_| decided(&mut rng, effect, "b", 4)[0].saves).count();
    assert!((65..=95).contains(&found), "{found} of 100 at {effect}");
}

#[test]
fn the_interval_shown_is_that_of_the_test() {
    let mut rng = Rng::new(21);
    for _ in 0..100 {
        let (a, b) = (boots(&mut rng, 0.0), boots(&mut rng, 0.03));
        let sides: Vec<Vec<&Boot>> = [&a, &b].map(|s| s.iter().collect()).into();
        let question = Question { with: &sides[0], without: Some(&sides[1]), expected: &[] };
        for quantity in of_two(&question, &sides[1]) {
            let [low, high] = estimate_signed(&quantity.savings).ci95;
            let p = test(&quantity, &question);
            assert_eq!(low > 0.0 || high < 0.0, p < 0.05, "{:?} {p}", quantity.what);
        }
    }
}

#[test]
fn a_loss_is_no_saving() {
    let mut rng = Rng::new(5);
    let found = &decided(&mut rng, -0.9, "b", 3)[0];
    assert!(found.costs && !found.saves, "{found:?}");
}

#[test]
fn a_part_counts_if_it_is_long_enough_to_matter() {
    let with: Vec<Boot> = (0..6)
        .map(|i| boot(&[("a", 2.0), ("long", 0.05 + 1e-4 * f64::from(i)), ("short", 2e-4)]))
        .collect();
    let with: Vec<&Boot> = with.iter().collect();
    for (name, matters) in [("long", true), ("short", false), ("none", false)] {
        let expected = [name.to_owned()];
        let question = Question { with: &with, without: None, expected: &expected };
        let found = &decide(&[question])[0];
        assert_eq!(found.saves, matters, "{name}: {found:?}");
    }
}

/// One boot of ten that a host held up hides no part that nothing stands against.
#[test]
fn a_part_that_one_side_has_alone_is_held_against_what_matters() {
    let without: Vec<Boot> = (0..10).map(|_| boot(&[("a", 2.0)])).collect();
    for (length, matters) in [(0.03, true), (6e-4, false)] {
        let with = |i: u32| if i == 0 { 10.0 * length } else { length + 1e-5 * f64::from(i) };
        let with: Vec<Boot> = (0..10).map(|i| boot(&[("a", 2.0), ("b", with(i))])).collect();
        let sides: Vec<Vec<&Boot>> = [&with, &without].map(|s| s.iter().collect()).into();
        let expected = ["b".to_owned()];
        let question = Question { with: &sides[0], without: Some(&sides[1]), expected: &expected };
        let found = &decide(&[question])[0];
        let named = found.moved.iter().any(|moved| moved.name == "b");
        assert_eq!(named, matters, "{length}: {found:?}");
        assert!(
            found.detectable.as_ref().is_some_and(|(s, _)| *s > PART_MATTERS_S && *s < 0.03),
            "{found:?}"
        );
    }
}

#[test]
fn one_block_decides_nothing() {
    let (a, b) = (boot(&[("a", 2.0)]), boot(&[("a", 1.0)]));
    let question = Question { with: &[&a], without: Some(&[&b]), expected: &[] };
    let found = &decide(&[question])[0];
    assert!(
        !found.saves && found.p_value == 1.0 && found.detectable_whole_s.is_none(),
        "{found:?}"
    );
}
