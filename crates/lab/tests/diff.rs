//! `vmeter diff` by simulation: what differs is found, and nothing else.

use std::collections::BTreeMap;
use vmeter_lab::diff::{compare_sides, Side};
use vmeter_lab::figures::Figures;
use vmeter_model::result::Envelope;
use vmeter_model::run::{Outcome, SessionMachine};
use vmeter_model::sweep::{DiffKind, Presence, SweptRun};
use vmeter_model::DiffVerdict;
use vmeter_stats::rng::Rng;

const ACTIVITIES: usize = 120;
const PHASES: usize = 8;

/// Boots of one machine on a noisy host: whole runs are slow together, every activity has
/// noise of its own, and now and then one is hit by something.
fn boot(rng: &mut Rng, index: u32, planted: &[(&str, f64)]) -> Figures {
    let slow = (0.04 * rng.normal()).exp();
    let mut activities = BTreeMap::new();
    let mut phases = [0.0; PHASES];
    for n in 0..ACTIVITIES {
        let length = 1e-4 * 1.06f64.powi(n as i32);
        let hit = if rng.uniform() < 0.03 { 1.5 } else { 1.0 };
        let time = length * slow * hit * (0.05 * rng.normal()).exp();
        phases[n % PHASES] += time;
        let key = (format!("phase {}", n % PHASES), format!("initcall f{n}"));
        activities.insert(key, (time, Some((length * 1e9).round())));
    }
    for (name, time) in planted {
        let time = time * (0.05 * rng.normal()).exp();
        phases[0] += time;
        activities.insert(("phase 0".into(), (*name).to_owned()), (time, None));
    }
    let exits = 4000.0 + (30.0 * rng.normal()).round();
    let counts = [("pci_config_reads", 812.0), ("exits", exits)];
    Figures {
        run: SweptRun {
            index,
            outcome: Outcome::Done,
            end: None,
            total_s: phases.iter().sum(),
            cpu_s: 1.0,
            phases: phases.iter().enumerate().map(|(n, s)| (format!("phase {n}"), *s)).collect(),
            counts: counts.map(|(name, n)| (name.to_owned(), n)).into(),
            warnings: vec![],
            host: None,
        },
        activities,
        marks: [("ready".to_owned(), phases.iter().sum())].into(),
        icount: false,
    }
}

fn side(rng: &mut Rng, runs: u32, planted: &[(&str, f64)]) -> Side {
    let line = |rng: &mut Rng| {
        let said = |n: usize| (("kernel", format!("line {n}")), 1.0);
        // Most lines come in every boot, some in every second, some in few.
        let chance = |n: usize| if n < 300 { 1.0 } else { [0.5, 0.1][n % 2] };
        (0..320).filter(|n| rng.uniform() < chance(*n)).map(said).collect()
    };
    Side {
        name: "side".into(),
        machine: SessionMachine::default(),
        envelope: Envelope::default(),
        runs: (0..runs).map(|index| boot(rng, index, planted)).collect(),
        lines: (0..runs).map(|_| line(rng)).collect(),
        failed: 0,
        ends: Default::default(),
        folder: Default::default(),
        by_block: Default::default(),
    }
}

#[test]
fn the_same_machine_has_no_difference() {
    for runs in [2, 3, 5, 10] {
        let mut rng = Rng::new(u64::from(runs));
        let found = (0..100).filter(|_| {
            let (a, b) = (side(&mut rng, runs, &[]), side(&mut rng, runs, &[]));
            compare_sides(&a, &b, 1).verdict == DiffVerdict::NoDifference
        });
        let found = found.count();
        println!("{runs} runs a side: no difference found in {found} of 100");
        assert!(found >= 95, "{runs} runs a side: {found} of 100");
    }
}

#[test]
fn what_was_planted_is_found_and_said_to_be_new() {
    let mut rng = Rng::new(11);
    for _ in 0..20 {
        let a = side(&mut rng, 5, &[]);
        let b = side(&mut rng, 5, &[("/init:planted", 0.6)]);
        let result = compare_sides(&a, &b, 1);
        assert_eq!(result.verdict, DiffVerdict::Slower);
        let first = result.rows.iter().find(|r| r.kind == DiffKind::Activity).expect("a row");
        assert_eq!(first.name, "/init:planted");
        assert_eq!((first.presence, first.seen_in), (Presence::New, [0, 5]));
        assert!(first.significant);
        let back = compare_sides(&b, &a, 1);
        assert_eq!(back.verdict, DiffVerdict::Faster);
        let gone = back.rows.iter().find(|r| r.name == "/init:planted").expect("a row");
        assert_eq!(gone.presence, Presence::Gone);
    }
}

#[test]
fn a_slower_host_is_one_finding_and_what_was_planted_beside_it_another() {
    let mut rng = Rng::new(23);
    let slower = |mut side: Side| {
        for run in &mut side.runs {
            run.run.total_s *= 1.4;
            run.run.phases.iter_mut().for_each(|(_, s)| *s *= 1.4);
            run.activities.values_mut().for_each(|(s, _)| *s *= 1.4);
            run.marks.values_mut().for_each(|s| *s *= 1.4);
        }
        side
    };
    let (mut others, mut raw) = (0, 0);
    for _ in 0..20 {
        let a = side(&mut rng, 8, &[("/init:planted", 0.05)]);
        let b = slower(side(&mut rng, 8, &[("/init:planted", 0.1)]));
        let result = compare_sides(&a, &b, 1);
        assert_eq!(result.verdict, DiffVerdict::Slower);
        let parts = || result.rows.iter().filter(|r| r.kind == DiffKind::Activity);
        assert!(parts().any(|r| r.name == "/init:planted" && r.significant));
        others += parts().filter(|r| r.name != "/init:planted" && r.significant).count();
        raw += parts().filter(|r| r.p_value.is_some_and(|p| p <= 0.025)).count();
    }
    assert!(raw > 20 * 20, "each activity takes longer: {raw}");
    assert!(others <= 10, "{others} of 20 sessions' activities beside the one that was planted");
}

#[test]
fn one_run_a_side_tells_nothing_of_noise_and_virtual_time_has_none() {
    let mut rng = Rng::new(5);
    let (mut a, mut b) = (side(&mut rng, 1, &[]), side(&mut rng, 1, &[]));
    let result = compare_sides(&a, &b, 1);
    assert_eq!(result.verdict, DiffVerdict::NotKnown);
    assert!(result.rows.iter().all(|r| !r.significant && r.p_value.is_none()));
    for run in a.runs.iter_mut().chain(&mut b.runs) {
        run.icount = true;
    }
    b.runs = a.runs.clone();
    b.lines = a.lines.clone();
    assert_eq!(compare_sides(&a, &b, 1).verdict, DiffVerdict::NoDifference);
    b.runs[0].run.total_s += 1e-6;
    assert_eq!(compare_sides(&a, &b, 1).verdict, DiffVerdict::Slower);
}

#[test]
fn a_side_without_runs_is_no_panic() {
    let mut rng = Rng::new(5);
    let (full, empty) = (side(&mut rng, 2, &[]), side(&mut rng, 0, &[]));
    for (a, b) in [(&full, &empty), (&empty, &full), (&empty, &empty)] {
        let result = compare_sides(a, b, 1);
        assert!(result.rows.iter().all(|r| !r.significant), "{}", result.verdict);
    }
}
