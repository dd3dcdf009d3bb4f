//! Whatever the events are, the time adds up.

use crate::common;

use common::{event, record, Boot, MS};
use proptest::prelude::*;
use vmeter_model::{Event, EventKind, Moment, Ns, UnitFile};
use vmeter_timeline::{activity_times, build, hints, verify};

fn name() -> impl Strategy<Value = String> {
    prop_oneof!["[a-c]", Just("udev-x".to_owned()), Just("insmod a".to_owned())]
}

fn symbol() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "reset-vector",
        "bzimage-setup",
        "bzimage-startup_32",
        "startup_64",
        "start_kernel",
        "setup_arch",
        "smp_init",
        "free_initmem",
        "run_init_process",
        "kernel_power_off",
        "pvh_start_xen",
        "panic",
    ])
    .prop_map(str::to_owned)
}

fn line() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec![
            "SeaBIOS (version 1)",
            "=== PCI bus & bridge init ===",
            "Press ESC for boot menu.",
            "Booting from ROM...",
            "[    0.000000] Linux version 6",
            "Run /init as init process",
            "[    1.000000] Kernel panic - not syncing: x",
            "reboot: Power down",
            "[    0.500000] calling  a+0x0/0x1 @ 1",
            "initcall a+0x0/0x1 returned 0 after 9 usecs",
            "calling  b+0x0/0x1 @ 7",
            "initcall b+0x0/0x1 returned 0 after 99999999999 usecs",
            "smp: Bringing up secondary CPUs ...",
            "systemd[1]: systemd 252 running in system mode",
            "systemd[1]: Queued start job for default target b.target.",
            "systemd[1]: Starting a.service - A...",
            "[  OK  ] Finished a.service - A.",
            "systemd[1]: Started getty@b.service - B.",
            "systemd[1]: Reached target b.target - B.",
            "Stopping a.service - A...",
            "[  OK  ] Stopped a.service - A.",
            "systemd[1]: Stopped target basic.target - Basic System.",
            "Sent SIGTERM to all processes",
            "The system is going down NOW!",
            "Begin: Mounting root file system ... Begin: Running x",
        ])
        .prop_map(str::to_owned),
        ".{0,60}",
    ]
}

fn what() -> impl Strategy<Value = EventKind> {
    let pid = prop::option::of(-1..4i32);
    let parts = prop::collection::vec((any::<u32>(), any::<Ns>()), 0..3);
    let state = prop::sample::select(vec!["running", "shutdown", "guest-panicked", "x"]);
    prop_oneof![
        prop::sample::select(vec![
            EventKind::VmmExec,
            EventKind::VmmEntry,
            EventKind::VmmMain,
            EventKind::VmmExiting,
            EventKind::VmmExit,
            EventKind::VmmKilled,
            EventKind::Ready,
            EventKind::ShutdownStart,
            EventKind::PowerOff,
        ]),
        state.prop_map(|state| EventKind::RunState { state: state.into() }),
        line().prop_map(|text| EventKind::FirmwareLine { text }),
        (line(), any::<Ns>(), parts).prop_map(|(text, end, later)| EventKind::ConsoleLine {
            text,
            end,
            later
        }),
        (line(), any::<bool>())
            .prop_map(|(text, by_program)| EventKind::KernelLine { text, by_program }),
        symbol().prop_map(|symbol| EventKind::Reached { symbol }),
        (name(), prop::option::of(name()), pid.clone()).prop_map(|(function, module, pid)| {
            EventKind::InitcallStart { function, module, pid }
        }),
        (name(), pid.clone())
            .prop_map(|(function, pid)| { EventKind::InitcallEnd { function, pid, ret: None } }),
        prop::sample::select(vec!["early", "console", "core", "late"])
            .prop_map(|level| EventKind::InitcallLevel { level: level.into() }),
        (name(), pid).prop_map(|(module, pid)| EventKind::ModuleLoad { module, pid }),
        name().prop_map(|step| EventKind::StepStart { step }),
        name().prop_map(|step| EventKind::StepEnd { step }),
        (0..4i32, name()).prop_map(|(pid, file)| EventKind::ProcessExec { pid, file }),
        (0..4i32, name()).prop_map(|(pid, comm)| EventKind::ProcessExit { pid, comm }),
        (0..4i32, 0..4i32, any::<bool>())
            .prop_map(|(pid, parent, thread)| EventKind::ProcessFork { pid, parent, thread }),
        (0..4i32, prop::collection::vec(line(), 0..3))
            .prop_map(|(pid, arguments)| EventKind::ProcessArguments { pid, arguments }),
        (0..4i32, prop::option::of(0..4i32))
            .prop_map(|(pid, child)| EventKind::ProcessWait { pid, child }),
        (0..4i32, 0..4i32, any::<u64>(), unit()).prop_map(|(pid, by, cpu_ns, group)| {
            EventKind::ProcessReap { pid, by, status: None, cpu_ns, group }
        }),
        (0..4i32, unit()).prop_map(|(pid, path)| EventKind::ProcessGroup { pid, path }),
        prop::collection::vec(unit(), 4).prop_map(|mut names| EventKind::UnitFile {
            file: UnitFile {
                name: names.pop().unwrap_or_default(),
                after: names.clone(),
                before: names.clone(),
                pulls: names.clone(),
                pulled_by: names,
                default: true,
                ..UnitFile::default()
            }
        }),
        (0x05..0x1au32, any::<u64>()).prop_map(|(item, bytes)| EventKind::FwCfg { item, bytes }),
        (0..2u64, 0..99u64, any::<u64>()).prop_map(|(disk, offset, bytes)| EventKind::DiskRead {
            disk,
            offset,
            bytes
        }),
        Just(EventKind::VirtioReset),
        any::<bool>()
            .prop_map(|write| { EventKind::PciConfig { write, device: "d".into(), register: 0 } }),
        (name(), any::<u64>()).prop_map(|(name, value)| EventKind::Count { name, value }),
    ]
}

fn unit() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["", "/system.slice/a.service", "/init.scope", "b.mount"])
        .prop_map(str::to_owned)
}

fn any_event() -> impl Strategy<Value = Event> {
    let at = prop_oneof![8 => 0..1_000 * MS, 4 => 0..40i64, 1 => any::<Ns>()];
    let error = prop_oneof![4 => 0..5 * MS, 1 => any::<Ns>()];
    let source = prop::sample::select(vec!["ftrace", "tcg-plugin", "console", "process"]);
    (at, error, source, prop::option::of(any::<u64>()), what()).prop_map(
        |(at, error_ns, source, insns, what)| Event { insns, ..event(at, error_ns, source, what) },
    )
}

fn moments() -> impl Strategy<Value = Vec<(Ns, Moment)>> {
    let name = prop::sample::select(vec![Moment::VmeterHold, Moment::VmeterRelease]);
    prop::collection::vec((-5..1_000 * MS, name), 0..8)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn random_events_are_accounted_for(
        events in prop::collection::vec(any_event(), 0..120),
        total in prop_oneof![4 => 0..1_000 * MS, 1 => any::<Ns>(), 2 => 0..30i64],
        icount in prop::bool::weighted(0.2),
        moments in moments(),
    ) {
        let mut run = record(total);
        run.icount = icount;
        run.moments = moments;
        let timeline = build(&events, &run);
        prop_assert_eq!(verify(&timeline), Ok(()));
        prop_assert!((0.0..=1.0).contains(&timeline.coverage()));
        prop_assert_eq!(&timeline, &build(&events, &run), "not the same twice");
        activity_times(&timeline);
        hints(&events);
    }

    #[test]
    fn a_real_boot_with_random_losses_and_jitter_is_accounted_for(
        keep in prop::collection::vec(prop::bool::weighted(0.8), 1..300),
        jitter in prop::collection::vec(-300_000..300_000i64, 1..50),
    ) {
        let mut boot = Boot::standard();
        let mut keep = keep.iter().cycle();
        boot.events.retain(|_| *keep.next().unwrap_or(&true));
        for (event, jitter) in boot.events.iter_mut().zip(jitter.iter().cycle()) {
            event.at += jitter;
        }
        boot.timeline();
    }
}

#[test]
fn many_nested_steps_are_bounded() {
    let mut events = Vec::new();
    for n in 0..20_000 {
        events.push(event(n, 0, "ftrace", EventKind::StepStart { step: format!("s{n}") }));
        events.push(event(40_000 - n, 0, "ftrace", EventKind::StepEnd { step: format!("s{n}") }));
        let file = format!("f{n}");
        events.push(event(n, 0, "ftrace", EventKind::ProcessExec { pid: n as i32 + 2, file }));
        let comm = String::new();
        events.push(event(
            40_000 - n,
            0,
            "ftrace",
            EventKind::ProcessExit { pid: n as i32 + 2, comm },
        ));
    }
    let timeline = build(&events, &record(50_000));
    assert_eq!(verify(&timeline), Ok(()));
}
