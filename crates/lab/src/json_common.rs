//! What the JSON of several commands has in common. Names are fixed by `vmeter/1`.

use serde::Serialize;
use std::borrow::Cow;
use std::collections::BTreeMap;
use vmeter_model::result;
use vmeter_model::run::{Fault, Outcome, SessionMachine, WatchLevel};
use vmeter_model::shard::HostEffect;
use vmeter_model::MachineSpec;
use vmeter_render::exported;
use vmeter_render::exported::{Estimate, Of, Word};

exported! {
    /// A machine: what was asked, and what was chosen.
    pub(crate) struct Machine<'a> of SessionMachine {
        label: &'a str,
        argv: &'a [String],
        chosen: Vec<ResolvedOption<'a>>,
        provenance: BTreeMap<&'a str, &'a str>,
        spec: Spec<'a>,
    }

    struct ResolvedOption<'a> of vmeter_model::ResolvedOption {
        what: &'a str,
        value: &'a str,
        note: &'a str,
    }

    /// The MACHINE options.
    struct Spec<'a> of MachineSpec {
        vmm: Option<&'a str>,
        accel: Option<&'static str> = |spec| spec.accel.map(|accel| accel.name()),
        machine: Option<&'a str>,
        firmware: Option<&'a str>,
        kernel: Option<Cow<'a, str>>,
        initrd: Option<Cow<'a, str>>,
        append: &'a [String],
        smp: Option<u32>,
        memory_mib: Option<u32>,
        pcie_root_ports: Option<u32>,
        init: Option<&'a str>,
        root: Option<&'a str>,
        until: Option<&'a str>,
        mark: &'a [String],
        timeout_s: Option<u32>,
        command: &'a [String],
        no_inject: bool,
        #[serde(skip_serializing_if = "<[String]>::is_empty")]
        vmm_arg: &'a [String],
    }

    /// What ended a run.
    pub(crate) struct End<'a> of vmeter_model::End {
        cause: &'static str = |end| end.cause.word(),
        evidence: &'a str,
    }

    pub(crate) struct Phase<'a> of result::Phase {
        name: &'a str,
        estimate: Estimate,
        share: f64,
    }

    /// One machine over another.
    pub(crate) struct Comparison<'a> of result::Comparison {
        a: &'a str,
        b: &'a str,
        ratio: Estimate,
        mean_ratio: Estimate,
        #[serde(skip_serializing_if = "Option::is_none")]
        tail: Option<&'a str> = |comparison| comparison.tail.as_deref(),
        sure_pct: f64,
        cpu_ratio: Estimate,
        centre: &'static str = |_| "one Hodges-Lehmann estimate over the ratios of all blocks, \
            with its signed-rank interval",
        p_value: f64,
        verdict: Word,
        detectable_pct: Option<f64>,
        margin_pct: f64,
        pairs: usize,
    }

    /// What a host added to its runs.
    pub(crate) struct Host<'a> of HostEffect {
        name: &'a str,
        cpu_model: &'a str,
        runs: usize,
        factor: Option<f64>,
        factor_ci95: Option<[f64; 2]>,
    }
}

/// A phase of one run.
#[derive(Debug, Serialize)]
pub(crate) struct RunPhase<'a> {
    pub name: &'a str,
    pub total_s: f64,
}

/// How a run ended that did not reach its end, with what is known of why.
#[derive(Debug, Serialize)]
pub(crate) struct Failure<'a> {
    kind: &'static str,
    /// Whose it was: guest, vmm, host.
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    how: Option<&'a str>,
}

impl<'a> Of<'a, Outcome> for Failure<'a> {
    fn of(outcome: &'a Outcome) -> Self {
        let kind = outcome.word();
        let fault = outcome.fault().map(Fault::name);
        let plain =
            Failure { kind, fault, line: None, status: None, stderr: None, last: None, how: None };
        match outcome {
            Outcome::Done | Outcome::NotReady | Outcome::Interrupted => plain,
            Outcome::Panicked { line } => Failure { line: Some(line), ..plain },
            Outcome::VmmFailed { status, stderr } => {
                Failure { status: Some(status), stderr: Some(stderr), ..plain }
            }
            Outcome::TimedOut { last } => Failure { last: Some(last), ..plain },
            Outcome::UnexpectedEnd { how } => Failure { how: Some(how), ..plain },
        }
    }
}

/// The failure of a run, if it is one.
pub(crate) fn failure(outcome: &Outcome) -> Option<Failure<'_>> {
    (*outcome != Outcome::Done).then(|| Failure::of(outcome))
}

/// `--watch`.
pub(crate) fn watch(level: WatchLevel) -> &'static str {
    match level {
        WatchLevel::None => "none",
        WatchLevel::Light => "light",
        WatchLevel::Full => "full",
    }
}
