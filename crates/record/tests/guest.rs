//! A boot's trace and log, read out of the guest's RAM at the VMM's exit, against
//! the TCG plugin, which stamps the same initcalls on the host's clock.
//!
//! The plugin enters an initcall after the guest's trace says that it starts, and
//! leaves it before the trace says that it ended: were the guest's clock aligned
//! early or late, one of the two would come out the wrong way round.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use vmeter_machine::backends::qemu::Qemu;
use vmeter_machine::launch::Stopper;
use vmeter_machine::plan::LaunchPlan;
use vmeter_machine::vmm::Dialect;
use vmeter_model::run::WatchLevel;
use vmeter_model::{Accel, Event, EventKind, MachineSpec, Ns, RunRecord};
use vmeter_record::decode::of_source;
use vmeter_record::ready::Until;
use vmeter_record::recorder::Context;
use vmeter_record::run::{run, Request};

/// A host that takes QEMU's CPU away just as the machine starts adds to the error.
const PREEMPTED_NS: Ns = 10_000_000;

fn kernel() -> Option<PathBuf> {
    if Command::new("qemu-system-x86_64").arg("--version").output().is_err() {
        println!("skipped: qemu-system-x86_64 is not installed");
        return None;
    }
    let named = std::env::var_os("VMETER_TEST_KERNEL").map(PathBuf::from);
    let kernel = named.or_else(|| Some(vmeter_appliance::kernel::default_kernel()?.vmlinuz));
    if kernel.is_none() {
        println!("skipped: no kernel; set VMETER_TEST_KERNEL or run `vmeter kernel fetch`");
    }
    kernel
}

fn boot(kernel: &Path, dir: &Path) -> RunRecord {
    let spec = MachineSpec::default();
    let context = Context {
        snapshot: None,
        spec: &spec,
        watch: WatchLevel::Full,
        dir,
        cache: dir,
        kernel: Some(kernel),
        accel: Some(Accel::Tcg),
        running: false,
        own_init: false,
        memory: false,
        vmm: Qemu.abilities(),
        ready: None,
        watches: Vec::new(),
    };
    let machine = "qemu-system-x86_64 -accel tcg -machine q35 -m 512 -nodefaults -display none \
        -no-reboot -serial stdio -kernel";
    let mut plan = LaunchPlan { may_inject: true, dialect: Some(&Qemu), ..LaunchPlan::default() };
    plan.argv = machine.split_ascii_whitespace().map(Into::into).collect();
    let parameters = "console=ttyS0 quiet panic=-1 no_timer_check cryptomgr.notests";
    plan.argv.extend([kernel.into(), "-append".into(), parameters.into()]);
    let request = Request {
        context,
        plan,
        index: 0,
        label: "test".into(),
        warmup: false,
        until: Until::PowerOff,
        timeout: Some(Duration::from_secs(120)),
        pin: Vec::new(),
        traced: true,
    };
    run(request, &Stopper::new().unwrap()).unwrap()
}

/// Times of initcalls that begin (or end) once.
fn once(events: &[Event], end: bool) -> HashMap<&str, Ns> {
    let mut times: HashMap<&str, Vec<Ns>> = HashMap::new();
    for event in events {
        match &event.what {
            EventKind::InitcallStart { function, .. } if !end => {
                times.entry(function).or_default().push(event.at)
            }
            EventKind::InitcallEnd { function, .. } if end => {
                times.entry(function).or_default().push(event.at)
            }
            _ => {}
        }
    }
    times.into_iter().filter(|(_, t)| t.len() == 1).map(|(name, t)| (name, t[0])).collect()
}

#[test]
fn the_guests_clock_is_aligned_from_both_sides() {
    let Some(kernel) = kernel() else { return };
    let dir = tempfile::tempdir().unwrap();
    let run = boot(&kernel, dir.path());
    let decoded = |name: &str| {
        let (events, warnings) = of_source(dir.path(), &run, name);
        assert!(warnings.is_empty(), "{warnings:?}");
        events
    };
    let trace = decoded("guest-ftrace");
    let log = decoded("guest-printk");
    let is_panic = |e: &Event| matches!(&e.what, EventKind::KernelLine { text, .. } if text.contains("Kernel panic - not syncing"));
    let panic = log.iter().find(|e| is_panic(e)).unwrap();
    assert!(panic.at < run.total_ns, "{panic:?}");

    let plugin = decoded("tcg-plugin");
    if !plugin.iter().any(|e| matches!(e.what, EventKind::InitcallStart { .. })) {
        println!("skipped: this QEMU loads no plugins, so that nothing stamps initcalls twice");
        return;
    }
    for (end, sign) in [(false, 1), (true, -1)] {
        let (of_trace, of_plugin) = (once(&trace, end), once(&plugin, end));
        let slack: Vec<Ns> = of_trace
            .iter()
            .filter_map(|(name, at)| Some(sign * (of_plugin.get(name)? - at)))
            .collect();
        let least = slack.iter().min().unwrap();
        println!("{} initcalls in both, least slack {least} ns", slack.len());
        assert!(slack.len() > 300, "{}", slack.len());
        assert!(*least > -PREEMPTED_NS, "end: {end}, {least} ns");
    }
}
