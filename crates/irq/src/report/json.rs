//! The JSON body of setting up interrupts. Field names are fixed by schema `vmeter/1`.

use crate::result::*;
use vmeter_render::exported;
use vmeter_render::exported::{Estimate, Word};

exported! {
    /// The fields after the envelope.
    pub(super) struct Body<'a> of IrqResult {
        setup: Setup<'a>,
        rows: Vec<Row>,
        totals: Vec<Total>,
        fit: Vec<Fit<'a>>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        together: Vec<Together<'a>>,
        anatomy: Vec<Anatomy<'a>>,
        runs: Vec<Run<'a>>,
        warnings: &'a [String],
        hints: &'a [String],
    }

    struct Setup<'a> of IrqSetup {
        vfs: usize,
        vectors: usize,
        vcpus: usize,
        busy_cpus: usize,
        running_vcpus: usize,
        runs: usize,
        warmup: usize,
        seed: u64,
        gsi_limit: usize,
        cpus: &'a [usize],
        #[serde(skip_serializing_if = "<[String]>::is_empty")]
        devices: &'a [String],
    }

    struct Run<'a> of IrqRun {
        strategy: Word,
        round: usize,
        warmup: bool,
        prepared_s: f64,
        vfs_s: &'a [f64],
        shared_s: f64,
        total_s: f64,
        cpu_s: f64,
        commits: usize,
        #[serde(skip_serializing_if = "Option::is_none")]
        set_irqs: Option<usize>,
    }

    struct Row of IrqRow {
        vf: usize,
        irqfds_assigned: usize,
        strategy: Word,
        milliseconds: f64,
        estimate: Estimate,
    }

    struct Total of IrqTotal {
        strategy: Word,
        milliseconds: f64,
        estimate: Estimate,
        cpu: Estimate,
        prepared: Estimate,
        commits: usize,
        ratio: Option<Estimate>,
        ratio_to: Option<Word>,
        #[serde(skip_serializing_if = "Option::is_none")]
        set_irqs: Option<usize>,
        delivery: Option<Delivery>,
    }

    struct Delivery of IrqDelivery {
        raised: usize,
        arrived: usize,
        stray: usize,
        #[serde(skip_serializing_if = "Option::is_none")]
        held: Option<usize>,
    }

    struct Fit<'a> of IrqFit {
        strategy: Word,
        #[serde(flatten)]
        time: Curve<'a>,
        cpu: Curve<'a>,
        points: Vec<Point<'a>>,
        at_limit: Option<AtLimit<'a>>,
    }

    struct Curve<'a> of IrqCurve {
        order: &'static str = |curve| super::model(curve.order),
        p_value: f64,
        aicc_linear: Option<f64>,
        aicc_quadratic: Option<f64>,
        quadratic_share: f64,
        coefficients: &'a [f64],
        exponent: Option<f64>,
        exponent_ci95: Option<[f64; 2]> = |curve| curve.exponent_ci95,
    }

    struct Point<'a> of IrqFitPoint {
        vectors: usize,
        samples_s: &'a [f64],
        min_s: f64,
        cpu_samples_s: &'a [f64],
        min_cpu_s: f64,
    }

    struct AtLimit<'a> of IrqAtLimit {
        vfs: usize,
        vectors: usize,
        predicted_s: f64,
        measured: Option<Estimate>,
        samples_s: &'a [f64],
    }

    struct Together<'a> of IrqTogether {
        vms: usize,
        strategy: Word,
        p50_s: f64,
        p99_s: f64,
        all_s: f64,
        rounds: usize,
        samples_s: &'a [f64],
    }

    struct Anatomy<'a> of IrqAnatomy {
        strategy: Word,
        commits: usize,
        commit_s: f64,
        irqfd_s: f64,
        total_s: f64,
        parts: Vec<Part<'a>>,
        cause: &'a str,
        chain: Vec<Step<'a>>,
        lost_events: u64,
    }

    struct Part<'a> of IrqCommitPart {
        name: &'a str,
        total_s: f64,
        median_s: f64,
        share: f64,
    }

    struct Step<'a> of IrqStep {
        at_s: f64,
        what: &'a str,
    }
}
