//! What a session of `vmeter irq` comes to.

use crate::strategy::IrqStrategy;
use vmeter_model::result::Envelope;
use vmeter_model::Estimate;

pub use vmeter_stats::Order;

/// What was set up.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct IrqSetup {
    /// Virtual functions (devices).
    pub vfs: usize,
    /// MSI-X vectors of each.
    pub vectors: usize,
    /// vCPUs of the VM.
    pub vcpus: usize,
    /// Threads that kept CPUs busy meanwhile.
    pub busy_cpus: usize,
    /// vCPUs that ran guest code meanwhile.
    pub running_vcpus: usize,
    /// Measured runs of each strategy.
    pub runs: usize,
    /// Runs before them.
    pub warmup: usize,
    /// Seed of the order in which strategies took turns.
    pub seed: u64,
    /// `KVM_CAP_IRQ_ROUTING`: routes that a VM may have on this host; 0 where KVM was not used.
    pub gsi_limit: usize,
    /// CPUs that the committing thread was allowed.
    pub cpus: Vec<usize>,
    /// Real devices, by PCI address; empty for a VM without devices.
    pub devices: Vec<String>,
}

/// One run of one strategy.
#[derive(Debug, Clone, PartialEq)]
pub struct IrqRun {
    /// Strategy.
    pub strategy: IrqStrategy,
    /// Which round, from 0 on, warm-up rounds included.
    pub round: usize,
    /// True if no figure includes it.
    pub warmup: bool,
    /// What was done before time mattered, s.
    pub prepared_s: f64,
    /// Each VF in turn, s.
    pub vfs_s: Vec<f64>,
    /// The one commit that all VFs share, s; 0 where each has its own.
    pub shared_s: f64,
    /// From the first VF's begin to the last one's end, s.
    pub total_s: f64,
    /// CPU time of the committing thread in that time, s.
    pub cpu_s: f64,
    /// `KVM_SET_GSI_ROUTING` calls.
    pub commits: usize,
    /// `VFIO_DEVICE_SET_IRQS` calls, where there are real devices.
    pub set_irqs: Option<usize>,
}

/// One VF of one strategy, over the measured runs.
#[derive(Debug, Clone, PartialEq)]
pub struct IrqRow {
    /// VF, from 1 on.
    pub vf: usize,
    /// irqfds assigned once it is enabled.
    pub irqfds_assigned: usize,
    /// Strategy.
    pub strategy: IrqStrategy,
    /// Median, ms. The commit that all VFs share is part of the last one's.
    pub milliseconds: f64,
    /// The same, s.
    pub estimate: Estimate,
}

/// Interrupts raised once everything was enabled, and seen to arrive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IrqDelivery {
    /// Vectors raised, each once.
    pub raised: usize,
    /// Of these, arrived where its route leads.
    pub arrived: usize,
    /// Arrived where nothing was sent.
    pub stray: usize,
    /// Interrupts of the host that the devices held meanwhile, by /proc/interrupts.
    pub held: Option<usize>,
}

/// A strategy over the measured runs.
#[derive(Debug, Clone, PartialEq)]
pub struct IrqTotal {
    /// Strategy.
    pub strategy: IrqStrategy,
    /// Median of all VFs together, ms.
    pub milliseconds: f64,
    /// The same, s.
    pub estimate: Estimate,
    /// CPU time of the committing thread, s: without what it waited for.
    pub cpu: Estimate,
    /// What it does before time matters (routes and irqfds made ahead), s.
    pub prepared: Estimate,
    /// `KVM_SET_GSI_ROUTING` calls of a run.
    pub commits: usize,
    /// How many times as fast as the baseline, over the rounds' pairs; absent for the baseline.
    pub ratio: Option<Estimate>,
    /// The baseline of `ratio`.
    pub ratio_to: Option<IrqStrategy>,
    /// `VFIO_DEVICE_SET_IRQS` calls of a run, where there are real devices.
    pub set_irqs: Option<usize>,
    /// Whether its vectors deliver.
    pub delivery: Option<IrqDelivery>,
}

/// One number of vectors of a strategy's fit.
#[derive(Debug, Clone, PartialEq)]
pub struct IrqFitPoint {
    /// Vectors enabled in all.
    pub vectors: usize,
    /// Every sample, s.
    pub samples_s: Vec<f64>,
    /// The shortest, which is what is fitted, s.
    pub min_s: f64,
    /// CPU time of every sample, s.
    pub cpu_samples_s: Vec<f64>,
    /// The least of these, s.
    pub min_cpu_s: f64,
}

/// The cost at the host's limit of routes: what the fit says, and what was measured.
#[derive(Debug, Clone, PartialEq)]
pub struct IrqAtLimit {
    /// VFs that fit.
    pub vfs: usize,
    /// Their vectors.
    pub vectors: usize,
    /// By the fit, s.
    pub predicted_s: f64,
    /// Measured, s; absent if that was not asked for.
    pub measured: Option<Estimate>,
    /// Its samples, s.
    pub samples_s: Vec<f64>,
}

/// A curve, and why it and not another.
#[derive(Debug, Clone, PartialEq)]
pub struct IrqCurve {
    /// A line, or a parabola.
    pub order: Order,
    /// F test of the quadratic term.
    pub p_value: f64,
    /// Small-sample Akaike criterion of the line; lower is better.
    pub aicc_linear: Option<f64>,
    /// The same of the parabola.
    pub aicc_quadratic: Option<f64>,
    /// Share of the growth over the range that the square makes up, 0 to 1.
    pub quadratic_share: f64,
    /// Cost = c0 + c1 n (+ c2 n²) of the order chosen, s.
    pub coefficients: Vec<f64>,
    /// Exponent of a power law through the same points, for comparison with others' figures.
    pub exponent: Option<f64>,
    /// Its 95 % interval.
    pub exponent_ci95: Option<[f64; 2]>,
}

/// How a strategy's cost grows with the number of vectors.
#[derive(Debug, Clone, PartialEq)]
pub struct IrqFit {
    /// Strategy.
    pub strategy: IrqStrategy,
    /// Of the time that it takes.
    pub time: IrqCurve,
    /// Of the committing thread's CPU time, which other programs hardly change.
    pub cpu: IrqCurve,
    /// What it was fitted to.
    pub points: Vec<IrqFitPoint>,
    /// At the host's limit.
    pub at_limit: Option<IrqAtLimit>,
}

/// A share of the time inside `KVM_SET_GSI_ROUTING`.
#[derive(Debug, Clone, PartialEq)]
pub struct IrqCommitPart {
    /// What was waited for or done.
    pub name: String,
    /// All commits of the run together, s.
    pub total_s: f64,
    /// Median of a commit, s.
    pub median_s: f64,
    /// Share of the commits' time, 0 to 1.
    pub share: f64,
}

/// A step of one commit, as traced.
#[derive(Debug, Clone, PartialEq)]
pub struct IrqStep {
    /// Since the ioctl began, s.
    pub at_s: f64,
    /// What happened.
    pub what: String,
}

/// Where the time of a strategy's commits goes, from one traced run.
#[derive(Debug, Clone, PartialEq)]
pub struct IrqAnatomy {
    /// Strategy.
    pub strategy: IrqStrategy,
    /// Commits traced.
    pub commits: usize,
    /// Time inside `KVM_SET_GSI_ROUTING`, s.
    pub commit_s: f64,
    /// Time inside `KVM_IRQFD`, s.
    pub irqfd_s: f64,
    /// The whole run, tracing included, s.
    pub total_s: f64,
    /// Parts of `commit_s`, the largest first.
    pub parts: Vec<IrqCommitPart>,
    /// The cause, in one sentence.
    pub cause: String,
    /// The commit of median length, step by step.
    pub chain: Vec<IrqStep>,
    /// Events that the recorder lost.
    pub lost_events: u64,
}

/// A strategy on several VMs at once.
#[derive(Debug, Clone, PartialEq)]
pub struct IrqTogether {
    /// VMs.
    pub vms: usize,
    /// Strategy.
    pub strategy: IrqStrategy,
    /// Median of the VMs' times, from the common start to a VM's own end, s.
    pub p50_s: f64,
    /// What one VM in a hundred takes longer than, s: the longest of fewer than a hundred.
    pub p99_s: f64,
    /// Until all VMs were done, median of the rounds, s.
    pub all_s: f64,
    /// Measured rounds.
    pub rounds: usize,
    /// Every VM of every round, s.
    pub samples_s: Vec<f64>,
}

/// Result of `vmeter irq`.
#[derive(Debug, Clone, PartialEq)]
pub struct IrqResult {
    /// Head.
    pub envelope: Envelope,
    /// What was set up.
    pub setup: IrqSetup,
    /// VF by VF.
    pub rows: Vec<IrqRow>,
    /// Strategy by strategy.
    pub totals: Vec<IrqTotal>,
    /// Growth with the number of vectors.
    pub fit: Vec<IrqFit>,
    /// Several VMs at once.
    pub together: Vec<IrqTogether>,
    /// Inside the commits.
    pub anatomy: Vec<IrqAnatomy>,
    /// Every run, warm-ups too.
    pub runs: Vec<IrqRun>,
    /// Warnings in words.
    pub warnings: Vec<String>,
    /// What to try next.
    pub hints: Vec<String>,
}
