use super::*;
use proptest::prelude::*;
use vmeter_model::run::SourceRecord;

#[test]
fn pci_accesses_by_ports_and_two_exits_for_each() {
    let mut seen = Seen::default();
    for (port, write, value) in [
        (0xcfc, false, 0),
        (0xcf8, true, 0x8001_fa42),
        (0xcfe, false, 0x29),
        (0xcf8, true, 0x8000_0000),
        (0xcfc, true, 1),
    ] {
        seen.pio(5, port, write, value);
    }
    assert_eq!((seen.pci_exits, seen.pci_accesses), (5, 2));
    let whats: Vec<EventKind> = seen.pci.iter().map(Access::what).collect();
    let access = |write, device: &str, register| EventKind::PciConfig {
        write,
        device: device.into(),
        register,
    };
    assert_eq!(whats, [access(false, "01:1f.2", 0x42), access(true, "00:00.0", 0)]);
}

/// The moments of a trace, as (ns, error, what).
fn moments(seen: &Seen, run: &RunRecord) -> Vec<(Ns, Ns, EventKind)> {
    let clock = Clock { exec_ns: 0, total_ns: 10_000, tsc: None };
    let mut events = Vec::new();
    clock.moments(seen, run, &mut events);
    events.into_iter().map(|e| (e.at, e.error_ns - ERROR_NS, e.what)).collect()
}

fn state(state: &str) -> EventKind {
    EventKind::RunState { state: state.into() }
}

#[test]
fn where_no_exit_is_seen_the_first_answer_ends_the_vmms_start() {
    let seen = Seen { answered: Some((5_000, 3_000)), made: 3_000, last: 5_000, ..Seen::default() };
    let run = RunRecord::default();
    assert_eq!(moments(&seen, &run), [(5_000, 2_000, state("running"))]);
    // What shows more of the guest counts first.
    let first = Some(First { at: 4_000, by: By::Entry });
    let shown = moments(&Seen { first, ..seen }, &run);
    assert_eq!((shown[1].0, shown[1].1, &shown[1].2), (4_000, 0, &state("running")));
    assert_eq!(moments(&Seen { last: 5, ..Seen::default() }, &run), []);
}

#[test]
fn what_a_guest_tells_its_vmm_is_a_mark_of_that_vmm() {
    let mut said = GuestSignal::default();
    for (at, address, length, value) in
        [(5, 0xc000_0000, 4, 123), (6, 0xc000_0000, 1, 9), (7, 0xd000_0000, 1, 123)]
    {
        said.wrote(at, address, Some(length), Some(value));
    }
    assert_eq!(said, GuestSignal::default(), "a device that is elsewhere, or another value");
    said.put(20, 0x80, 0x41);
    said.put(30, 0x80, 0x60);
    said.put(31, 0x81, 0x61);
    let first = Some(First { at: 1, by: By::Entry });
    let seen = Seen { first, last: 100, said, ..Seen::default() };
    let marks = |run: &RunRecord| -> Vec<(Ns, String)> {
        let notes = moments(&seen, run).into_iter().filter_map(|(at, _, what)| match what {
            EventKind::Note { text } => Some((at, text)),
            _ => None,
        });
        notes.collect()
    };
    let by = |words: &[&str]| RunRecord {
        argv: words.iter().map(|word| (*word).to_owned()).collect(),
        ..RunRecord::default()
    };
    let codes = [
        (20, "cloud-hypervisor's debug port: kernel, code 0x41".to_owned()),
        (30, "cloud-hypervisor's debug port: user space, code 0x60".to_owned()),
    ];
    assert_eq!(marks(&by(&["taskset", "1", "/opt/cloud-hypervisor-v53", "--kernel"])), codes);
    assert_eq!(marks(&by(&["qemu-system-x86_64"])), [], "POST codes");
    assert_eq!(booted(&seen, &by(&[])), Some(30));
    let mut seen = Seen { first, said: GuestSignal::default(), ..Seen::default() };
    seen.said.wrote(7, 0xc000_0000, Some(1), Some(123));
    assert_eq!(booted(&seen, &by(&[])), Some(7));
    for n in 0..1_000 {
        seen.said.put(n, 0x80, 0);
    }
    assert!(seen.said.codes.len() < 100, "a guest that waits by this port");
}

#[test]
fn the_last_exit_is_the_guests_end_unless_vmeter_or_qemu_says_otherwise() {
    let first = Some(First { at: 100, by: By::Exit });
    // What comes after is a signal's.
    let seen = Seen { first, acted: 900, last: 940, ..Seen::default() };
    let over = |run: &RunRecord| {
        moments(&seen, run).into_iter().find(|(_, _, what)| *what == state("shutdown"))
    };
    let mut run = RunRecord::default();
    assert_eq!(over(&run), Some((900, 0, state("shutdown"))));
    run.moments.push((950, Moment::VmmKilled));
    assert_eq!(over(&run), None, "vmeter ended it");
    let mut run = RunRecord::default();
    run.sources.push(SourceRecord {
        name: qemu_trace::NAME.into(),
        files: Vec::new(),
        clock: String::new(),
        error_ns: 0,
        parameters: BTreeMap::new(),
    });
    assert_eq!(over(&run), None);
}

/// kvmtool pauses its halted vCPUs by signals when the first one has ended.
#[test]
fn a_signal_at_the_end_is_not_the_guests() {
    let reason = NameId(0);
    let by_signal = |seen: &Seen, op, errno: i32| seen.by_signal(op, Some(errno as u64));
    let mut seen = Seen::default();
    assert!(!by_signal(&seen, Op::UserspaceExit { reason }, -4), "a KVM without kvm_exit");
    seen.exits_by.insert(reason, 1);
    assert!(by_signal(&seen, Op::UserspaceExit { reason }, -4));
    assert!(!by_signal(&seen, Op::UserspaceExit { reason }, 0));
    assert!(!by_signal(&seen, Op::VmExit { reason }, -4));
}

#[test]
fn the_offset_is_what_most_exits_found() {
    let mut seen = Seen { tsc_offset: Some(-9), ..Seen::default() };
    assert_eq!(seen.tsc_offset(), Some((-9, 0)), "written, and nothing known of exits");
    seen.offsets_in_force = [vec![-100; 97], vec![-103, -90, i64::MIN]].concat();
    assert_eq!(seen.tsc_offset(), Some((-100, 10)));
}

#[test]
fn counters_say_what_events_do_not() {
    let mut seen = Seen { mmio: 2, ..Seen::default() };
    seen.userspace_reasons.insert("KVM_EXIT_IO".into(), 5);
    let stats = BTreeMap::from([("exits".to_owned(), 70), ("kvm_io_exits".to_owned(), 5)]);
    let found = counts(&seen, &stats);
    assert_eq!((found["exits"], found["exits:KVM_EXIT_IO"], found["mmio"]), (70, 5, 2));
    assert_eq!(counts(&seen, &BTreeMap::new())["exits"], 5);
    seen.reasons.insert("cpuid".into(), 60);
    assert_eq!(counts(&seen, &stats)["exits"], 60, "the trace's own count");
}

proptest! {
    #[test]
    fn nothing_panics(exits in proptest::collection::vec((any::<u64>(), any::<u64>(), 0i32..3), 0..50),
                      ports in proptest::collection::vec((0x500u32..0xd10, any::<bool>(), any::<u32>()), 0..50),
                      offsets in proptest::collection::vec(any::<i64>(), 0..50)) {
        let mut seen = Seen { clock: "mono".into(), ..Seen::default() };
        for (at, rip, thread) in exits {
            seen.place.exit(thread, at, rip);
            seen.first.get_or_insert(First { at, by: By::Exit });
            seen.last = at;
        }
        for (port, write, value) in ports {
            seen.pio(seen.last, port, write, value);
        }
        seen.offsets_in_force = offsets;
        let _ = seen.tsc_offset();
        let clock = Clock { exec_ns: 5, total_ns: 9, tsc: None };
        for access in &seen.pci {
            clock.event(access.at, i64::MAX, access.what());
        }
        let _ = counts(&seen, &BTreeMap::from([("exits".to_owned(), u64::MAX)]));
    }
}
