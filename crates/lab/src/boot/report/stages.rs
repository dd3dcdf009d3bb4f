//! The six stages of a boot: what a person asks of it first.

use crate::colours::group;
use serde::Serialize;
use vmeter_model::span::UNATTRIBUTED;
use vmeter_model::time::seconds;
use vmeter_model::{Estimate, Identity, Kind, Ns, Span, Timeline};
use vmeter_render::exported;
use vmeter_render::palette::Group;
use vmeter_stats::estimate;

vmeter_base::words! {
    /// Who had the machine.
    pub(super) enum Stage {
        /// The VMM before the guest runs and after it, SeaBIOS, EDK2, qboot.
        Vmm = "VMM and firmware",
        /// GRUB and its like; what reads the kernel.
        Loader = "boot loader",
        /// From the kernel image's first instruction to its first process.
        Kernel = "kernel",
        /// The initial RAM disk's programs, up to the root file system's init.
        Initrd = "initrd",
        /// Init and all that it begins.
        Userspace = "user space",
        /// From the first sign of going down.
        Shutdown = "shutdown",
        /// A guest that is seen by its lines alone, whose kernel was not.
        Guest = "guest's lines",
        /// Xen, up to the kernel that it starts.
        Hypervisor = "hypervisor",
        /// A machine that is reset and goes on: up to the kernel that comes then.
        Reboot = "reboot",
        /// A guest that is dead, until its end.
        Dead = "after the panic",
        /// What was launched, once its VMM had ended.
        Launcher = "launcher, after",
        /// The host, while it let the VMM stand still.
        Host = "host",
        /// vmeter, while it held the VMM.
        Own = "vmeter itself",
    }
}

/// The stage of a phase; none for one that no stage has.
fn of(phase: Identity<'_>) -> Option<Stage> {
    Some(match (phase.kind, phase.name) {
        (Kind::Vmm | Kind::Firmware, _) => Stage::Vmm,
        (Kind::Hypervisor, _) => Stage::Hypervisor,
        (Kind::Kernel, "load") => Stage::Loader,
        (Kind::Kernel, "panic") | (Kind::Kexec | Kind::Reboot, "kernel-panic") => Stage::Dead,
        (Kind::Reboot, "") => Stage::Reboot,
        (Kind::Guest, "") => Stage::Guest,
        (Kind::Launcher, _) => Stage::Launcher,
        (Kind::Host, _) => Stage::Host,
        (Kind::Vmeter, _) => Stage::Own,
        (Kind::Initrd | Kind::SwitchRoot, _) => Stage::Initrd,
        _ => match group(phase) {
            Group::Firmware => Stage::Loader,
            Group::Kernel | Group::Initcalls => Stage::Kernel,
            Group::Userspace => Stage::Userspace,
            Group::Shutdown => Stage::Shutdown,
            Group::Vmm | Group::Other | Group::Unattributed => return None,
        },
    })
}

/// True for the phase of a guest that panicked.
pub(super) fn is_dead(phase: &str) -> bool {
    Identity::of(phase).phases().next().and_then(of) == Some(Stage::Dead)
}

/// What one bar is of.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Bar {
    /// A stage's name; of several that were not told apart, all of them.
    pub name: String,
    /// A phase of it, for its colour; none if the run has none.
    pub phase: Option<String>,
    /// Time, s, without what is unattributed in it.
    pub estimate: Estimate,
    /// Share of the mean total.
    pub share: f64,
    /// How far off its begin or its end can be, ns.
    pub error: Ns,
}

/// How a bar is exported.
#[derive(Debug, Serialize)]
pub(super) struct BarRow {
    name: String,
    estimate: exported::Estimate,
    share: f64,
    error_s: f64,
}

impl From<Bar> for BarRow {
    fn from(bar: Bar) -> Self {
        let estimate = exported::exported(&bar.estimate);
        BarRow { name: bar.name, estimate, share: bar.share, error_s: seconds(bar.error) }
    }
}

/// The name of the bar that a phase belongs to. A phase is `a+b` where nobody saw the moment
/// between two; if these are of different stages, that is a bar of its own.
fn bar_of(phase: &str) -> String {
    let stages = Identity::of(phase).phases().map(|phase| of(phase).map_or("other", Stage::word));
    let mut stages: Vec<&str> = stages.collect();
    stages.dedup();
    match stages.as_slice() {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first, .., last] => format!("{} to {last}", first.split(" and ").next().unwrap_or(first)),
    }
}

fn is_stage(name: &str) -> bool {
    Stage::ALL.iter().any(|stage| stage.word() == name)
}

/// The six stages in order, then what belongs to several or to none, a dead guest's time, and what
/// vmeter held the VMM for, over some runs.
pub(super) fn bars(timelines: &[&Timeline]) -> Vec<Bar> {
    let always = Stage::ALL.iter().filter(|stage| **stage < Stage::Guest);
    let mut names: Vec<String> = always.map(|stage| stage.word().to_owned()).collect();
    let phases = || timelines.iter().flat_map(|t| &t.phases).filter(|(n, _)| n != UNATTRIBUTED);
    for (phase, _) in phases() {
        let name = bar_of(phase);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let whole: f64 = timelines.iter().map(|t| seconds(t.total)).sum();
    let bar = |name: String| {
        let samples: Vec<f64> = timelines.iter().map(|t| seconds(time_of(t, &name))).collect();
        let share = if whole > 0.0 { samples.iter().sum::<f64>() / whole } else { 0.0 };
        let phase = phases().find(|(phase, _)| bar_of(phase) == name).map(|(n, _)| n.clone());
        let error = timelines.iter().map(|t| error_of(t, &name)).max().unwrap_or(0);
        Bar { name, phase, estimate: estimate(&samples), share, error }
    };
    let mut bars: Vec<Bar> = names.into_iter().map(bar).collect();
    // Phases of two stages, whose border nobody saw, have no time with a name.
    bars.retain(|bar| bar.phase.is_none() || bar.share > 0.0 || is_stage(&bar.name));
    bars
}

fn time_of(timeline: &Timeline, bar: &str) -> Ns {
    let own = timeline.phases.iter().filter(|(n, _)| n != UNATTRIBUTED && bar_of(n) == bar);
    own.map(|(_, ns)| *ns).sum()
}

/// How far off a bar's begins and ends can be. Where two of its own phases meet moves nothing, and
/// where two bars meet is as exact as the better known of both.
fn error_of(timeline: &Timeline, bar: &str) -> Ns {
    let tops = timeline.spans.iter().filter(|s| s.parent.is_none() && s.name != UNATTRIBUTED);
    let mut tops: Vec<&Span> = tops.collect();
    tops.sort_by_key(|span| span.start);
    let own = |span: &Span| bar_of(&span.name) == bar;
    let mut error = 0;
    for (index, span) in tops.iter().enumerate().filter(|(_, span)| own(span)) {
        let before = index.checked_sub(1).map(|at| tops[at]).filter(|b| b.end == span.start);
        let after = tops.get(index + 1).copied().filter(|a| a.start == span.end);
        for other in [before, after] {
            let end = match other {
                Some(other) if own(other) => 0,
                Some(other) => span.error_ns.min(other.error_ns),
                None => span.error_ns,
            };
            error = error.max(end);
        }
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmeter_model::span::AFTER;

    #[test]
    fn every_phase_has_a_bar_and_the_bars_add_up() {
        for (phase, bar) in [
            ("vmm:exec", "VMM and firmware"),
            ("bios:overhead", "VMM and firmware"),
            ("kernel:load", "boot loader"),
            ("boot-loader", "boot loader"),
            ("hypervisor", "hypervisor"),
            ("kernel:decompress", "kernel"),
            ("switch-root", "initrd"),
            ("/init:mount", "user space"),
            ("systemd", "user space"),
            ("shutdown", "shutdown"),
            ("kernel:decompress+kernel:entry", "kernel"),
            ("vmm:init+bios:overhead+kernel:decompress", "VMM to kernel"),
            ("never-heard-of", "other"),
            ("vmeter:observe", "vmeter itself"),
            ("host:no-cpu", "host"),
            (AFTER, "launcher, after"),
            ("kernel:panic", "after the panic"),
            ("kexec:kernel", "kernel"),
            ("reboot", "reboot"),
            ("reboot:userspace", "user space"),
            ("guest", "guest's lines"),
            ("kernel:entry+kernel:initcalls-before-userspace", "kernel"),
        ] {
            assert_eq!(bar_of(phase), bar, "{phase}");
        }
        let phases = [("vmm:init", 5), ("vmm:init+kernel:entry", 0), ("unattributed", 10)];
        let phases = phases.map(|(name, ns)| (name.to_owned(), ns)).into();
        let timeline = Timeline { total: 15, phases, ..Timeline::default() };
        let bars = bars(&[&timeline]);
        assert_eq!(bars.len(), 6, "what nobody held is no bar, nor what two stages share");
        let sum: f64 = bars.iter().map(|bar| bar.share).sum();
        assert!((sum - 5.0 / 15.0).abs() < 1e-9, "{sum}");
    }

    #[test]
    fn where_two_phases_of_a_bar_meet_is_no_error_of_it() {
        let span = |id, name: &str, start, end, error_ns| Span {
            id,
            name: name.into(),
            start,
            end,
            error_ns,
            ..Span::default()
        };
        let mut timeline = Timeline {
            total: 100,
            spans: vec![
                span(0, "userspace", 0, 40, 1),
                span(1, "kexec", 40, 60, 20),
                span(2, "kexec:kernel", 60, 80, 20),
                span(3, "kexec:userspace", 80, 100, 2),
            ],
            ..Timeline::default()
        };
        assert_eq!(error_of(&timeline, "kernel"), 2);
        assert_eq!(error_of(&timeline, "user space"), 2);
        // What is between is nobody's: its end is as far off as it says.
        timeline.spans[1].start = 45;
        assert_eq!(error_of(&timeline, "kernel"), 20);
    }
}
