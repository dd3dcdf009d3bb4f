//! A small result of `vmeter irq`: two VFs of two vectors, two strategies.

use super::{envelope, estimate};
use vmeter_irq::result::*;
use vmeter_irq::IrqStrategy;

fn run(strategy: IrqStrategy, round: usize, scale: f64) -> IrqRun {
    IrqRun {
        strategy,
        round,
        warmup: round == 0,
        prepared_s: if strategy == IrqStrategy::PerVm { 0.0002 } else { 0.0 },
        vfs_s: vec![0.001 * scale, 0.002 * scale],
        shared_s: 0.0,
        total_s: 0.003 * scale,
        cpu_s: 0.0004 * scale,
        commits: if strategy == IrqStrategy::PerVm { 1 } else { 4 },
        set_irqs: None,
    }
}

fn row(strategy: IrqStrategy, vf: usize, scale: f64) -> IrqRow {
    let samples = [0.00101, 0.00099, 0.001].map(|s| s * vf as f64 * scale);
    IrqRow {
        vf,
        irqfds_assigned: vf * 2,
        strategy,
        milliseconds: vf as f64 * scale,
        estimate: estimate(&samples),
    }
}

fn curve(order: Order) -> IrqCurve {
    let quadratic = order == Order::Quadratic;
    IrqCurve {
        order,
        p_value: if quadratic { 0.0001 } else { 0.41 },
        aicc_linear: Some(-80.5),
        aicc_quadratic: Some(if quadratic { -104.25 } else { -77.0 }),
        quadratic_share: if quadratic { 0.625 } else { 0.02 },
        coefficients: vec![1e-5, 2e-4, 3e-6],
        exponent: Some(1.75),
        exponent_ci95: Some([1.5, 2.0]),
    }
}

fn fit(strategy: IrqStrategy, order: Order) -> IrqFit {
    IrqFit {
        strategy,
        time: curve(order),
        cpu: curve(Order::Linear),
        points: vec![IrqFitPoint {
            vectors: 4,
            samples_s: vec![0.003, 0.0031],
            min_s: 0.003,
            cpu_samples_s: vec![0.0004, 0.0005],
            min_cpu_s: 0.0004,
        }],
        at_limit: Some(IrqAtLimit {
            vfs: 2048,
            vectors: 4096,
            predicted_s: 12.5,
            measured: Some(estimate(&[12.0, 13.0])),
            samples_s: vec![12.0, 13.0],
        }),
    }
}

fn total(strategy: IrqStrategy, scale: f64) -> IrqTotal {
    let one = strategy == IrqStrategy::PerVm;
    IrqTotal {
        strategy,
        milliseconds: 3.0 * scale,
        estimate: estimate(&[0.00303, 0.00297, 0.003].map(|s| s * scale)),
        cpu: estimate(&[0.0004, 0.00041].map(|s| s * scale)),
        prepared: estimate(&[if one { 0.0002 } else { 0.0 }]),
        commits: if one { 1 } else { 4 },
        ratio: one.then(|| estimate(&[7.9, 8.0, 8.1])),
        ratio_to: one.then_some(IrqStrategy::PerVector),
        set_irqs: None,
        delivery: Some(IrqDelivery { raised: 4, arrived: 4, stray: 0, held: None }),
    }
}

pub fn result() -> IrqResult {
    let part = |name: &str, share: f64| IrqCommitPart {
        name: name.into(),
        total_s: 0.002 * share,
        median_s: 0.0005 * share,
        share,
    };
    let step = |at_s: f64, what: &str| IrqStep { at_s, what: what.into() };
    IrqResult {
        envelope: envelope("irq"),
        setup: IrqSetup {
            vfs: 2,
            vectors: 2,
            vcpus: 2,
            busy_cpus: 1,
            running_vcpus: 1,
            runs: 3,
            warmup: 1,
            seed: 7,
            gsi_limit: 4096,
            cpus: vec![0, 1],
            devices: vec![],
        },
        rows: vec![
            row(IrqStrategy::PerVector, 1, 1.0),
            row(IrqStrategy::PerVm, 1, 0.125),
            row(IrqStrategy::PerVector, 2, 1.0),
            row(IrqStrategy::PerVm, 2, 0.125),
        ],
        totals: vec![total(IrqStrategy::PerVector, 1.0), total(IrqStrategy::PerVm, 0.125)],
        fit: vec![
            fit(IrqStrategy::PerVector, Order::Quadratic),
            fit(IrqStrategy::PerVm, Order::Linear),
        ],
        together: Vec::new(),
        anatomy: vec![IrqAnatomy {
            strategy: IrqStrategy::PerVector,
            commits: 4,
            commit_s: 0.002,
            irqfd_s: 0.0005,
            total_s: 0.0035,
            parts: vec![part("waiting for SRCU readers", 0.875), part("copying", 0.125)],
            cause: "each commit waits for readers of the old table".into(),
            chain: vec![step(0.0, "KVM_SET_GSI_ROUTING"), step(0.0004, "synchronize_srcu done")],
            lost_events: 0,
        }],
        runs: vec![
            run(IrqStrategy::PerVector, 0, 1.1),
            run(IrqStrategy::PerVector, 1, 1.0),
            run(IrqStrategy::PerVm, 1, 0.125),
        ],
        warnings: vec!["interrupts of the host came in between".into()],
        hints: vec!["vmeter irq --vfs 8".into()],
    }
}
