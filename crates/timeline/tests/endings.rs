//! Boots that end early, overlap, come from elsewhere or contradict themselves.

use crate::common;

use common::{event, record, Boot, MS, US};
use vmeter_model::{Event, EventKind, Moment, Ns, Outcome, RunRecord, Timeline};
use vmeter_timeline::{build, hints, verify};

fn checked(events: &[Event], run: &RunRecord) -> Timeline {
    let timeline = build(events, run);
    assert_eq!(verify(&timeline), Ok(()));
    timeline
}

fn length(timeline: &Timeline, name: &str) -> Ns {
    timeline.spans.iter().filter(|s| s.name == name).map(|s| s.len()).sum()
}

fn at_of(boot: &Boot, what: &EventKind) -> Ns {
    boot.events.iter().find(|e| e.what == *what).map_or(0, |e| e.at)
}

#[test]
fn a_run_that_ends_at_its_ready_point_ends_there() {
    let mut boot = Boot::standard();
    boot.run.total_ns = at_of(&boot, &EventKind::Ready);
    let timeline = boot.timeline();
    assert_eq!(length(&timeline, "shutdown") + length(&timeline, "vmm:exit"), 0);
    assert!(timeline.coverage() > 0.999 && timeline.warnings.is_empty(), "{:?}", timeline.warnings);
}

/// KVM's trace has a guest's last exit, whoever its VMM is: what follows is tear-down.
#[test]
fn what_follows_a_guests_last_exit_is_the_vmms() {
    let standard = Boot::standard();
    let vmms = length(&standard.timeline(), "shutdown:vmm");
    assert!(vmms > 0);
    let state = |w: &EventKind| matches!(w, EventKind::RunState { state } if state == "shutdown");
    let off = standard.events.iter().rev().find(|e| state(&e.what)).map_or(0, |e| e.at);
    let mut boot = Boot::standard();
    boot.events
        .retain(|e| e.source != "qemu-trace" && !state(&e.what) && e.what != EventKind::PowerOff);
    assert_eq!(length(&boot.timeline(), "shutdown:vmm"), 0, "nobody says when it was off");
    let over = EventKind::RunState { state: "shutdown".into() };
    boot.events.push(event(off, US, "kvm-trace", over));
    boot.events.sort_by_key(|e| e.at);
    let timeline = boot.timeline();
    assert_eq!(length(&timeline, "shutdown:vmm"), vmms, "with what the guest said before");
    // Where it said nothing, that is all that is known of the shutdown.
    let says = |w: &EventKind| matches!(w, EventKind::KernelLine { text, .. } if text.contains("reboot: ") || text.contains("Power"));
    boot.events.retain(|e| e.what != EventKind::ShutdownStart && !says(&e.what));
    boot.events.retain(|e| {
        !matches!(&e.what, EventKind::Reached { symbol } if symbol.starts_with("kernel_")
        && symbol != "kernel_init" && symbol != "kernel_init_freeable")
    });
    let timeline = boot.timeline();
    assert_eq!((length(&timeline, "shutdown"), length(&timeline, "shutdown:vmm")), (vmms, vmms));
}

/// QEMU's -S, or an API: the VMM was ready long before, and more devices would change nothing.
#[test]
fn a_vmm_that_waits_to_be_started_does_not_initialise() {
    let mut boot = Boot::standard();
    let from = at_of(&boot, &EventKind::VmmMain) + 30 * MS;
    let whole = length(&boot.timeline(), "vmm:init");
    boot.events.push(event(from, MS, "vmm-threads", EventKind::VmmWaits));
    boot.events.sort_by_key(|e| e.at);
    let timeline = boot.timeline();
    assert_eq!(length(&timeline, "vmm:init"), 30 * MS);
    assert_eq!(length(&timeline, "vmm:wait-for-start"), whole - 30 * MS);
    assert!(timeline.coverage() > 0.999 && timeline.warnings.is_empty(), "{:?}", timeline.warnings);
}

/// What a VMM says that vmeter let go of is later than the run, by no wrong clock.
#[test]
fn a_vmm_that_runs_on_goes_on_speaking() {
    let misaligned = |boot: &Boot| {
        let timeline = boot.timeline();
        timeline.warnings.iter().any(|warning| warning.contains("misaligned"))
    };
    let mut boot = Boot::standard();
    boot.events.retain(|e| !matches!(e.what, EventKind::Ready | EventKind::VmmKilled));
    let state = EventKind::RunState { state: "paused".into() };
    boot.events.push(event(boot.run.total_ns + 500 * MS, US, "qemu-trace", state));
    let seen = |boot: &mut Boot, moments: &[Moment]| {
        boot.run.moments = moments.iter().map(|moment| (MS, moment.clone())).collect();
    };
    seen(&mut boot, &[Moment::VmmExec, Moment::VmmExiting]);
    assert!(misaligned(&boot));
    seen(&mut boot, &[Moment::VmmExec]);
    assert!(!misaligned(&boot));
}

#[test]
fn a_panic_is_a_mark_and_a_phase() {
    let mut boot = Boot::standard();
    let from = at_of(&boot, &EventKind::ProcessExec { pid: 1, file: "/init".into() }) - 20 * MS;
    boot.events.retain(|e| e.at < from);
    let text = "Kernel panic - not syncing: VFS: Unable to mount root fs".to_owned();
    boot.events.push(event(
        from,
        5 * US,
        "guest-log",
        EventKind::KernelLine { text: text.clone(), by_program: false },
    ));
    boot.events.push(event(from + 30 * MS, 0, "process", EventKind::VmmExiting));
    boot.run.total_ns = from + 35 * MS;
    boot.run.outcome = Outcome::Panicked { line: text.clone() };
    boot.run.moments.clear();
    let timeline = boot.timeline();
    assert_eq!(length(&timeline, "kernel:panic"), 30 * MS);
    assert_eq!(length(&timeline, "vmm:exit"), 5 * MS);
    assert!(timeline.marks.contains(&(from, text.clone())));
    assert_eq!(hints(&boot.events).panic, Some((from, text)));
    assert!(timeline.coverage() > 0.999, "{}", timeline.coverage());
}

#[test]
fn an_initcall_that_hangs_lasts_until_the_timeout() {
    let mut boot = Boot::standard();
    let hung = |e: &&Event| matches!(&e.what, EventKind::InitcallStart { function, .. } if function == "fn_300_init");
    let from = boot.events.iter().find(hung).map_or(0, |e| e.at);
    boot.events.retain(|e| e.at <= from);
    boot.run.moments.retain(|(at, _)| *at <= from);
    boot.run.total_ns = from + 60_000 * MS;
    boot.run.outcome = Outcome::TimedOut { last: "fn_300_init".into() };
    let timeline = boot.timeline();
    let hung = "initcall fn_300_init, unfinished";
    assert_eq!(length(&timeline, hung), 60_000 * MS);
    let call = timeline.spans.iter().find(|s| s.name == hung).unwrap();
    assert!(call.parent.is_some(), "it hung in its phase");
    assert!(timeline.coverage() > 0.999);
}

#[test]
fn a_recording_that_breaks_off_gives_its_last_initcall_no_time() {
    let mut boot = Boot::standard();
    let last = |e: &&Event| matches!(&e.what, EventKind::InitcallStart { function, .. } if function == "fn_300_init");
    let from = boot.events.iter().find(last).map_or(0, |e| e.at);
    boot.events.retain(|e| e.source != "guest-ftrace" || e.at <= from);
    let timeline = boot.timeline();
    assert_eq!(length(&timeline, "initcall fn_300_init"), 0);
    let to = at_of(&boot, &EventKind::Reached { symbol: "run_init_process".into() });
    let open = timeline.spans.iter().find(|s| s.name == "unattributed").unwrap();
    assert!(open.start == from && open.end >= to, "nothing says what ran there: {open:?}");
    assert!(timeline.warnings.iter().any(|w| w.contains("fn_300_init")), "{:?}", timeline.warnings);
}

#[test]
fn what_comes_before_init_ends_where_the_kernel_says_that_it_runs_it() {
    let mut boot = Boot::standard();
    let said = at_of(&boot, &EventKind::Reached { symbol: "run_init_process".into() });
    // Without addresses user space begins at the exec, which is 4 ms after the line.
    boot.events.retain(|e| !matches!(e.what, EventKind::Reached { .. }) || e.at < said - 200 * MS);
    let timeline = boot.timeline();
    let before = timeline.spans.iter().find(|s| s.name == "kernel:free_initmem").unwrap();
    assert!((before.end - said).abs() <= MS, "{said}: {before:?}");
    assert!(length(&timeline, "kernel:run_init_process") >= 3 * MS);
}

#[test]
fn a_step_that_hangs_lasts_until_the_timeout_and_a_lost_end_does_not() {
    let hung = |outcome: Outcome, name: &str, ready: bool| {
        let mut boot = Boot::standard();
        let from = at_of(&boot, &EventKind::StepStart { step: "udev-settle".into() });
        boot.events.retain(|e| e.at <= from);
        boot.run.moments.retain(|(at, _)| *at <= from);
        boot.run.total_ns = from + 9_000 * MS;
        boot.run.outcome = outcome;
        boot.run.moments.extend(ready.then_some((boot.run.total_ns, Moment::Ready)));
        length(&boot.timeline(), name)
    };
    let timed_out = Outcome::TimedOut { last: "udev-settle".into() };
    let (whole, unfinished) = ("/init:udev-settle", "/init:udev-settle, unfinished");
    assert_eq!(hung(timed_out, unfinished, false), 9_000 * MS);
    assert_eq!(hung(Outcome::Done, whole, false), 0);
    // Nothing was lost of one in whose midst the run ended, at its ready point.
    assert_eq!(hung(Outcome::Done, unfinished, true), 9_000 * MS);
}

#[test]
fn asynchronous_initcalls_are_beside_the_tree() {
    let mut boot = Boot::standard();
    let function = "3_async_probe".to_owned();
    let start = at_of(&boot, &EventKind::InitcallLevel { level: "subsys".into() }) + 500 * US;
    let (module, pid) = (None, Some(57));
    let what = EventKind::InitcallStart { function: function.clone(), module, pid };
    boot.events.push(event(start, 5 * US, "guest-ftrace", what));
    let what = EventKind::InitcallEnd { function, pid, ret: Some(0) };
    boot.events.push(event(start + 30 * MS, 5 * US, "guest-ftrace", what));
    let (with, without) = (boot.timeline(), Boot::standard().timeline());
    common::assert_same(&with.spans, &without.spans);
    let beside: Vec<(&str, Ns)> =
        with.overlapping.iter().map(|s| (s.name.as_str(), s.len())).collect();
    assert_eq!(beside, [("initcall 3_async_probe", 30 * MS)]);
}

/// A VMM of somebody's own, whose kernel got no words: what to do is said, and not only what lacks.
#[test]
fn a_kernel_whose_work_nobody_saw_comes_with_what_would_show_it() {
    let mut boot = Boot::standard();
    let entry =
        |what: &EventKind| matches!(what, EventKind::Reached { symbol } if symbol == "startup_64");
    let from = boot.events.iter().find(|e| entry(&e.what)).map_or(0, |e| e.at);
    let ends = |what: &EventKind| {
        matches!(what, EventKind::VmmExiting | EventKind::VmmExec | EventKind::VmmMain)
    };
    boot.events.retain(|e| e.at <= from || ends(&e.what));
    let timeline = boot.timeline();
    let said = timeline.warnings.iter().find(|w| w.contains("vmeter saw the kernel")).unwrap();
    assert!(said.contains("trace_event=initcall:*") && said.contains("--kernel FILE"), "{said}");
}

#[test]
fn an_unpatched_guest_is_covered_as_far_as_it_speaks() {
    let mut boot = Boot::standard();
    let (from, to) = (
        at_of(&boot, &EventKind::ProcessExec { pid: 1, file: "/init".into() }),
        at_of(&boot, &EventKind::ShutdownStart),
    );
    boot.events.retain(|e| e.at <= from || e.at >= to);
    let mut process = |pid, file: &str, start: Ns, end: Option<Ns>| {
        let exec = EventKind::ProcessExec { pid, file: file.into() };
        boot.events.push(event(from + start * MS, 5 * US, "guest-ftrace", exec));
        if let Some(end) = end {
            let exit = EventKind::ProcessExit { pid, comm: "x".into() };
            boot.events.push(event(from + end * MS, 5 * US, "guest-ftrace", exit));
        }
    };
    process(100, "/bin/sh", 10, Some(60));
    process(101, "/bin/mount", 20, Some(30));
    process(102, "/usr/sbin/daemon", 35, None);
    process(103, "/bin/sleep", 80, Some(120));
    let timeline = boot.timeline();
    assert_eq!(length(&timeline, "/init:start"), 10 * MS);
    assert_eq!(length(&timeline, "userspace"), 110 * MS);
    assert_eq!(length(&timeline, "exec /bin/sleep"), 40 * MS);
    assert_eq!(length(&timeline, "exec /bin/mount"), 10 * MS);
    // The shell's own time, the time between, and what came after the sleep.
    let open = timeline.phases.iter().find(|(name, _)| name == "unattributed").map(|(_, ns)| *ns);
    assert_eq!(open, Some(40 * MS + 20 * MS + (to - from - 120 * MS)));
    assert_eq!(timeline.overlapping.len(), 1, "the daemon");
}

#[test]
fn modules_that_only_ftrace_saw_are_insmods_all_the_same() {
    let mut boot = Boot::standard();
    boot.events
        .retain(|e| !matches!(e.what, EventKind::StepStart { .. } | EventKind::StepEnd { .. }));
    for e in &mut boot.events {
        // The trace point gives an address: whose it is, the load before it says.
        if let EventKind::InitcallStart { module, .. } = &mut e.what {
            *module = None;
        }
    }
    let timeline = boot.timeline();
    let insmods = timeline.spans.iter().filter(|s| s.name.starts_with("insmod "));
    let names: Vec<&str> = insmods.map(|s| s.name.as_str()).collect();
    assert_eq!(
        names,
        ["insmod failover", "insmod net_failover", "insmod virtio_net", "insmod virtio_blk"]
    );
    let call = timeline.spans.iter().find(|s| s.name == "initcall virtio_net_mod_init").unwrap();
    let parent = timeline.spans.iter().find(|s| Some(s.id) == call.parent).unwrap();
    assert_eq!(parent.name, "insmod virtio_net");
}

/// As KVM's exits have it of Firecracker, and of others without a firmware.
#[test]
fn a_kernel_that_its_vmm_enters_has_no_firmware_before_it() {
    let mut boot = Boot::standard();
    boot.events.retain(|e| match &e.what {
        EventKind::Reached { symbol } => !symbol.starts_with("bzimage") && symbol != "startup_64",
        EventKind::FwCfg { .. } | EventKind::FirmwareLine { .. } | EventKind::PciConfig { .. } => {
            false
        }
        _ => true,
    });
    let reset = at_of(&boot, &EventKind::Reached { symbol: "reset-vector".into() });
    let symbol = "startup_64".to_owned();
    boot.events.push(event(reset, 100, "kvm-trace", EventKind::Reached { symbol }));
    let timeline = boot.timeline();
    let of_firmware = timeline.spans.iter().filter(|s| s.name.starts_with("bios:"));
    assert_eq!(of_firmware.map(|s| s.name.as_str()).collect::<Vec<_>>(), [""; 0]);
    let entry = timeline.spans.iter().find(|s| s.name == "kernel:entry").expect("entered");
    assert_eq!(entry.start, reset);
}

#[test]
fn pvh_has_neither_setup_nor_decompressor() {
    let mut boot = Boot::standard();
    boot.events.retain(|e| match &e.what {
        EventKind::Reached { symbol } => !symbol.starts_with("bzimage") && symbol != "startup_64",
        EventKind::FwCfg { item, .. } => *item != 0x11,
        _ => true,
    });
    let symbol = "pvh_start_xen".to_owned();
    let entry = at_of(&boot, &EventKind::Reached { symbol: "x86_64_start_kernel".into() });
    boot.events.push(event(entry - MS, 100, "tcg-plugin", EventKind::Reached { symbol }));
    let timeline = boot.timeline();
    assert_eq!(length(&timeline, "kernel:decompress") + length(&timeline, "kernel:setup"), 0);
    assert!(timeline.coverage() > 0.999, "{}", timeline.coverage());
    assert!(length(&timeline, "kernel:entry") > 500 * MS);
}

#[test]
fn virtual_time_holds_no_trace_of_the_host() {
    let virtual_run = |host_delay: Ns| {
        let mut boot = Boot::delayed("vmm:init", host_delay);
        let reset = at_of(&boot, &EventKind::Reached { symbol: "reset-vector".into() });
        let guests = ["tcg-plugin", "guest-ftrace", "guest-log"];
        for e in boot.events.iter_mut().filter(|e| guests.contains(&e.source.as_str())) {
            e.at -= reset;
        }
        boot.run.icount = true;
        boot.timeline()
    };
    let (one, other) = (virtual_run(0), virtual_run(123 * MS));
    common::assert_same(&one.spans, &other.spans);
    assert!(one == other, "marks, counts and phases");
    assert_eq!(one.spans.iter().map(|s| s.start).min(), Some(0));
    for name in ["vmm:init", "vmm:exit", "vmeter:observe"] {
        assert_eq!(length(&one, name), 0, "{name}");
    }
    assert!(one.coverage() > 0.99, "{}", one.coverage());
}

#[test]
fn a_source_with_a_wrong_clock_is_named_in_a_warning() {
    let mut boot = Boot::standard();
    for e in boot.events.iter_mut().filter(|e| e.source == "guest-ftrace") {
        e.at -= 1_500 * MS;
    }
    let timeline = boot.timeline();
    assert!(
        timeline.warnings.iter().any(|w| w.contains("out of order") || w.contains("misaligned")),
        "{:?}",
        timeline.warnings
    );
}

#[test]
fn hints_need_no_outcome() {
    let boot = Boot::standard();
    let found = hints(&boot.events);
    assert!(found.panic.is_none());
    assert!(found.power_down.is_some() && found.ready.is_some());
    assert_eq!(hints(&[]), vmeter_timeline::Hints::default());
    let nothing = checked(&[], &record(0));
    assert!(nothing.spans.is_empty());
}

#[test]
fn a_wrapper_has_its_own_phase() {
    let mut boot = Boot::standard();
    boot.events.push(event(300 * US, 0, "process", EventKind::WrapperExec));
    let timeline = boot.timeline();
    assert_eq!(length(&timeline, "vmm:exec"), 300 * US);
    assert_eq!(length(&timeline, "vmm:wrapper"), 700 * US);
}

#[test]
fn a_trace_whose_first_records_were_lost_has_no_first_of_anything() {
    let mut boot = Boot::standard();
    let from = at_of(&boot, &EventKind::StepStart { step: "udev-trigger".into() });
    boot.events.retain(|e| e.source != "guest-ftrace" || e.at >= from);
    boot.events
        .retain(|e| !matches!(e.what, EventKind::StepStart { .. } | EventKind::StepEnd { .. }));
    let whole = boot.timeline();
    assert!(length(&whole, "/init:start") > 0);
    let what = EventKind::Count { name: "guest_trace_lost".into(), value: 7 };
    boot.events.push(event(boot.run.total_ns, 0, "guest-ftrace", what));
    let timeline = boot.timeline();
    assert_eq!(length(&timeline, "/init:start"), 0, "what it did until then was lost");
    assert!(
        timeline.warnings.iter().any(|w| w.contains("7 earlier records")),
        "{:?}",
        timeline.warnings
    );
    // Of initcalls the first that is left is no begin of all.
    let mut boot = Boot::standard();
    let from = at_of(&boot, &EventKind::InitcallLevel { level: "device".into() });
    boot.events.retain(|e| e.source == "guest-ftrace" && e.at >= from || e.source == "process");
    let what = EventKind::Count { name: "guest_trace_lost".into(), value: 7 };
    boot.events.push(event(boot.run.total_ns, 0, "guest-ftrace", what));
    assert_eq!(length(&boot.timeline(), "kernel:initcalls-before-userspace"), 0);
}
