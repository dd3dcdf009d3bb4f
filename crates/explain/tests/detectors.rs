//! Each detector on streams that have its cause, and on streams that almost have.

use crate::common;

use common::{kinds, word, Trace, VCPU};
use vmeter_explain::result::{ExplainResult, Finding, Severity};

const READ: u32 = 0;
const WRITE: u32 = 1;
const PREAD: u32 = 17;
const FUTEX: u32 = 202;
const NANOSLEEP: u32 = 230;

/// Every claim has numbers; the finding ends in a suggestion and a command.
fn complete(result: &ExplainResult) {
    for finding in &result.findings {
        assert!(!finding.suggestion.is_empty() && !finding.confirm.is_empty(), "{finding:?}");
        assert!(!finding.chain.is_empty(), "{finding:?}");
        let figures = |text: &str| text.chars().any(|c| c.is_ascii_digit());
        let guess = |text: &str| text.starts_with("not known: ");
        let known = finding.chain.iter().filter(|link| !guess(&link.claim));
        assert!(known.clone().all(|link| figures(&link.claim)), "{finding:?}");
        let events = finding.chain.iter().map(|link| link.evidence.events.len()).sum::<usize>();
        assert!(events > 0, "{finding:?}");
    }
}

fn only(trace: Trace, kind: &str) -> ExplainResult {
    let result = trace.explain();
    assert_eq!(kinds(&result), [kind], "{:#?}", result.findings);
    assert!(result.findings[0].subject.contains("0x1f7"), "{:?}", result.findings[0]);
    complete(&result);
    result
}

fn says(result: &ExplainResult, what: &str) {
    let claims: Vec<&str> =
        result.findings[0].chain.iter().map(|link| link.claim.as_str()).collect();
    assert!(claims.iter().any(|claim| claim.contains(what)), "{what}: {claims:#?}");
}

#[test]
fn peers_alike_are_healthy() {
    let result = Trace::rounds(300, |trace, n| trace.now += 12 + n % 5).explain();
    assert_eq!(kinds(&result), [""; 0], "{:#?}", result.findings);
    assert_eq!(result.vcpus.len(), 1);
}

#[test]
fn a_few_slow_accesses_among_many_are_no_pattern() {
    let result = Trace::rounds(300, |trace, n| {
        trace.now += if n % 100 == 7 { 300 } else { 12 };
    })
    .explain();
    assert_eq!(kinds(&result), [""; 0], "{:#?}", result.findings);
}

#[test]
fn sleeping_is_told_with_its_period() {
    let result = only(
        Trace::rounds(100, |trace, _| {
            trace.event(1, VCPU, "sys_enter: NR 230 (1, 0, 0, 0, 0, 0)");
            trace.switch(2, VCPU, "S", "swapper/0-0");
            trace.wake(1_055, "<idle>-0", VCPU);
            trace.switch(3, "swapper/0-0", "R", VCPU);
            trace.event(2, VCPU, &format!("sys_exit: NR {NANOSLEEP} = 0"));
        }),
        "timer-wait",
    );
    assert_eq!(result.findings[0].severity, Severity::High);
    says(&result, "asleep until a timer fires");
}

#[test]
fn polling_by_a_timer_is_told_without_a_sleeping_call() {
    let result = only(
        Trace::rounds(100, |trace, _| {
            trace.event(1, VCPU, "sys_enter: NR 7 (1, 0, 0, 0, 0, 0)");
            trace.switch(2, VCPU, "S", "swapper/0-0");
            trace.event(3_999, "<idle>-0", "local_timer_entry: vector=236");
            trace.wake(1, "<idle>-0", VCPU);
            trace.event(1, "<idle>-0", "local_timer_exit: vector=236");
            trace.switch(3, "swapper/0-0", "R", VCPU);
            trace.event(2, VCPU, "sys_exit: NR 7 = 0");
        }),
        "timer-wait",
    );
    says(&result, "asleep until a timer fires");
}

#[test]
fn burning_user_space_is_not_system_calls() {
    let result = only(Trace::rounds(100, |trace, _| trace.now += 300), "user-cpu");
    says(&result, "outside calls 100 %: on a CPU 100 %");
}

#[test]
fn a_loop_of_small_calls_wants_a_batch() {
    let result = only(
        Trace::rounds(100, |trace, _| (0..64).for_each(|_| trace.call(VCPU, WRITE, 2, 1))),
        "unbatched",
    );
    let summary = &result.findings[0].summary;
    assert!(summary.contains("calls write 64.0 times each"), "{summary}");
}

#[test]
fn three_calls_are_no_burst() {
    let result = Trace::rounds(300, |trace, _| {
        trace.now += 6;
        (0..3).for_each(|_| trace.call(VCPU, WRITE, 1, 512));
    })
    .explain();
    assert_eq!(kinds(&result), [""; 0], "{:#?}", result.findings);
}

#[test]
fn a_loop_over_all_items_grows() {
    let result = only(
        Trace::rounds(150, |trace, n| (0..=n).for_each(|_| trace.call(VCPU, PREAD, 1, 16))),
        "superlinear",
    );
    says(&result, "quadratic");
    says(&result, "(R² 1.00)");
    says(&result, "1.00 × n calls");
}

#[test]
fn computing_over_all_items_grows_without_a_call() {
    let result = only(Trace::rounds(200, |trace, n| trace.now += 5 + 2 * n), "superlinear");
    says(&result, "R² 1.00");
}

/// `read` of a file that has every CPU run a work item.
fn refresh(trace: &mut Trace, cpus: u32) {
    trace.event(1, VCPU, &format!("sys_enter: NR {READ} (6, 0, 1, 0, 0, 0)"));
    for cpu in 0..cpus {
        let text = format!(
            "workqueue_queue_work: work struct=0x{cpu}1 function=refresh_vm_stats workqueue=events \
             req_cpu={cpu} cpu={cpu}"
        );
        trace.event(1, VCPU, &text);
        trace.wake(1, VCPU, &format!("kworker/{cpu}:1-{}", 20 + cpu));
    }
    trace.switch(2, VCPU, "D", "kworker/0:1-20");
    for cpu in 0..cpus {
        trace.cpu = cpu;
        let worker = format!("kworker/{cpu}:1-{}", 20 + cpu);
        if cpu > 0 {
            trace.switch(30, "swapper/1-0", "R", &worker);
        }
        let item = format!("work struct 0x{cpu}1: function refresh_vm_stats");
        trace.event(1, &worker, &format!("workqueue_execute_start: {item}"));
        trace.event(40, &worker, &format!("workqueue_execute_end: {item}"));
        if cpu + 1 == cpus {
            trace.wake(1, &worker, VCPU);
        }
        let next = if cpu == 0 { VCPU } else { "swapper/1-0" };
        if cpu > 0 {
            trace.switch(1, &worker, "I", next);
            trace.cpu = 0;
            trace.switch(2, "kworker/0:1-20", "I", VCPU);
        } else if cpus == 1 {
            trace.switch(1, &worker, "I", VCPU);
        }
    }
    trace.event(1, VCPU, &format!("sys_exit: NR {READ} = 0"));
}

#[test]
fn work_on_every_cpu_is_told_with_the_call_and_the_function() {
    let result = only(Trace::rounds(100, |trace, _| refresh(trace, 2)), "kernel-work");
    let summary = &result.findings[0].summary;
    assert!(summary.contains("waits in read"), "{summary}");
    says(&result, "running refresh_vm_stats on each of 2 CPUs");
}

#[test]
fn work_on_one_cpu_is_not_work_on_every_cpu() {
    let result = Trace::rounds(100, |trace, _| refresh(trace, 1)).explain();
    let every = |f: &Finding| f.chain.iter().any(|link| link.claim.contains("on each of"));
    assert!(!result.findings.iter().any(every), "{:#?}", result.findings);
}

/// A worker thread does what the vCPU's thread waits for, in `work`.
fn hand_over(trace: &mut Trace, delay: u64, work: impl FnOnce(&mut Trace)) {
    trace.event(1, VCPU, &format!("sys_enter: NR {READ} (6, 0, 8, 0, 0, 0)"));
    trace.wake(1, VCPU, "worker-200");
    trace.switch(1, VCPU, "S", "swapper/0-0");
    trace.cpu = 1;
    trace.switch(delay, "swapper/1-0", "R", "worker-200");
    work(trace);
    trace.wake(1, "worker-200", VCPU);
    trace.switch(1, "worker-200", "S", "swapper/1-0");
    trace.cpu = 0;
    trace.switch(delay, "swapper/0-0", "R", VCPU);
    trace.event(1, VCPU, &format!("sys_exit: NR {READ} = 8"));
}

#[test]
fn the_cause_is_found_in_the_thread_that_was_waited_for() {
    let burst = |trace: &mut Trace| (0..40).for_each(|_| trace.call("worker-200", WRITE, 2, 1));
    let result = only(Trace::rounds(100, |trace, _| hand_over(trace, 5, burst)), "unbatched");
    says(&result, "worker (200), waited for");
}

#[test]
fn a_lock_that_is_held_is_waited_for() {
    let result = only(
        Trace::rounds(100, |trace, _| {
            trace.event(1, VCPU, &format!("sys_enter: NR {FUTEX} (7f00, 80, 2, 0, 0, 0)"));
            trace.switch(1, VCPU, "S", "swapper/0-0");
            trace.event(400, "<idle>-0", "reschedule_entry: vector=253");
            trace.wake(1, "<idle>-0", VCPU);
            trace.event(1, "<idle>-0", "reschedule_exit: vector=253");
            trace.switch(2, "swapper/0-0", "R", VCPU);
            trace.event(1, VCPU, &format!("sys_exit: NR {FUTEX} = 0"));
        }),
        "lock",
    );
    says(&result, "futex");
}

#[test]
fn one_competitor_starves_and_many_are_a_busy_host() {
    let preempted = |who: fn(u64) -> String| {
        let mut trace = Trace::new();
        trace.event(1, VCPU, "sys_enter: NR 16 (5, ae80, 0, 0, 0, 0)");
        trace.event(1, VCPU, "kvm_entry: vcpu 0, rip 0x12");
        for n in 0..200 {
            let other = who(n);
            trace.switch(1_000, VCPU, "R", &other);
            trace.switch(1_500, &other, "R", VCPU);
        }
        trace.explain()
    };
    let one = preempted(|_| "stress-900".into());
    assert_eq!(kinds(&one), ["cpu-contention"]);
    assert!(one.findings[0].summary.contains("stress"), "{:?}", one.findings[0]);
    let many = preempted(|n| format!("rustc-{}", 900 + n));
    assert_eq!(kinds(&many), [""; 0], "{:#?}", many.findings);
    assert!(many.warnings.iter().any(|warning| warning.contains("busy")), "{:?}", many.warnings);
}

#[test]
fn pci_configuration_by_ports_is_told_if_it_takes_long() {
    let scan = |idle: u64, data: u32| {
        let mut trace = Trace::new();
        for _ in 0..300 {
            trace.write(0xcf8, |trace| trace.now += 10);
            trace.write(data, |trace| trace.now += 10);
            trace.now += idle;
        }
        trace.explain()
    };
    assert_eq!(kinds(&scan(100, 0xcfc)), ["unbatched"]);
    assert_eq!(kinds(&scan(10_000, 0xcfc)), [""; 0]);
    // A device of one's own at that port is no PCI.
    let other = scan(100, 0x70);
    assert!(!other.findings.iter().any(|f| f.summary.contains("PCI")), "{:#?}", other.findings);
}

#[test]
fn lost_events_are_told_and_their_requests_not_timed() {
    let mut trace = Trace::rounds(60, |trace, _| trace.now += 300);
    trace.event(1, VCPU, "kvm_exit: vcpu 0 reason IO_INSTRUCTION rip 0x10 info1 0 info2 0");
    trace.lost(7);
    trace.event(3_000_000, VCPU, "kvm_entry: vcpu 0, rip 0x12");
    let result = trace.explain();
    assert_eq!(result.files[0].lost_events, 7);
    assert!(result.warnings.iter().any(|warning| warning.contains('7')), "{:?}", result.warnings);
    for link in result.findings.iter().flat_map(|finding| &finding.chain) {
        assert_eq!(link.evidence.lost_events, Some(7));
    }
}

/// A guest that reads a blob byte by byte: no access is slow, there are very many.
fn bytes(count: u64, trace: &mut Trace) {
    for n in 0..count {
        trace.event(4, VCPU, "kvm_userspace_exit: reason KVM_EXIT_IO (2)");
        trace.event(6, VCPU, &format!("kvm_pio: pio_read at 0x511 size 1 count 1 val {n:#x} "));
        trace.event(2, VCPU, "kvm_entry: vcpu 0, rip 0x12");
    }
}

#[test]
fn data_that_goes_through_a_port_byte_by_byte_is_told_by_its_count() {
    let mut trace = Trace::new();
    bytes(6_000, &mut trace);
    let result = trace.explain();
    assert_eq!(kinds(&result), ["unbatched"], "{:#?}", result.findings);
    let finding = &result.findings[0];
    for what in ["port 0x511 (fw_cfg)", "6,000 reads", "costs an exit"] {
        assert!(finding.summary.contains(what), "{what}: {}", finding.summary);
    }
    assert_ne!(finding.severity, Severity::High);
    assert!(finding.suggestion.contains("DMA"), "{}", finding.suggestion);
    complete(&result);

    let mut few = Trace::new();
    bytes(600, &mut few);
    assert_eq!(kinds(&few.explain()), [""; 0], "a blob of 600 bytes");
}

/// QEMU's log of an IDE disk that is read by PIO; where memory regions are logged as well, each
/// access is there twice and counted once.
#[test]
fn an_ide_disk_that_is_read_word_by_word_is_told_of_qemus_log() {
    let log = |regions: bool| {
        let mut text = String::new();
        for n in 0..6_000_u64 {
            let us = 3 * n;
            let mut line = |us: u64, event: &str| {
                let (s, us) = (1_795_436_293 + us / 1_000_000, us % 1_000_000);
                text.push_str(&format!("17113@{s}.{us:06}:{event}\n"));
            };
            line(us, "ide_data_readw IDE PIO rd @ 0x1f0 (Data: Word); val 0x6788; bus 0x55 IDEState 0x56");
            if regions {
                line(us + 1, "memory_region_ops_read cpu 0 mr 0x55 addr 0x1f0 value 0x6788 size 2 name 'ide'");
            }
        }
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("qemu.log");
        std::fs::write(&path, text).expect("a file");
        vmeter_explain::explain(&[path], &vmeter_explain::Options::default()).expect("a log")
    };
    for regions in [false, true] {
        let result = log(regions);
        assert_eq!(kinds(&result), ["unbatched"], "{regions}: {:#?}", result.findings);
        let summary = &result.findings[0].summary;
        // Before the first one is no line of which its time could be known.
        let counted = ["5,999 reads", "6,000 reads"].iter().any(|count| summary.contains(count));
        assert!(summary.contains("0x1f0") && counted, "{regions}: {summary}");
        assert!(result.findings[0].suggestion.contains("virtio-blk"), "{regions}");
    }
}

/// The memory cgroup of a program that reads a file again and again is smaller than the file.
#[test]
fn a_full_memory_cgroup_is_why_a_read_waits_for_the_disk() {
    let (reader, idle) = ("reader-700", "swapper/0-0");
    let reads = |reclaims: bool| {
        let mut trace = Trace::new();
        for _ in 0..60 {
            trace.event(1, reader, &format!("sys_enter: NR {PREAD} (3, 0, 0, 0, 0, 0)"));
            if reclaims {
                trace.event(2, reader, "mm_vmscan_memcg_reclaim_begin: order=0 gfp_flags=GFP_NOFS");
                trace.event(20, reader, "mm_vmscan_memcg_reclaim_end: nr_reclaimed=32");
            }
            trace.switch(2, reader, "D", idle);
            trace.wake(900, "<idle>-0", reader);
            trace.switch(3, idle, "R", reader);
            trace.event(2, reader, &format!("sys_exit: NR {PREAD} = 4096"));
        }
        trace.explain()
    };
    let result = reads(true);
    let finding = &result.findings[0];
    // The disk has the time; that pages are taken back is why.
    assert_eq!(word(finding), "block-io", "{:#?}", result.findings);
    for what in ["reader", "pread64", "disk", "pages are reclaimed"] {
        assert!(finding.summary.contains(what), "{what}: {}", finding.summary);
    }
    let full = |claim: &str| claim.contains("memory cgroup is full") && claim.contains("60 times");
    assert!(finding.chain.iter().any(|link| full(&link.claim)), "{finding:#?}");
    assert!(!reads(false).findings.iter().any(|finding| finding.summary.contains("reclaimed")));
}

/// A listener whose queue is full: TCP asks again after a second, in whoever's interrupt.
#[test]
fn a_connection_that_nobody_answers_is_told_by_its_port() {
    let (client, idle) = ("client-700", "swapper/0-0");
    let connects = |state: &str| {
        let mut trace = Trace::new();
        for _ in 0..8 {
            trace.event(1, client, "sys_enter: NR 42 (3, 0, 0, 0, 0, 0)");
            trace.switch(2, client, "S", idle);
            trace.event(1_000_000, "<idle>-0", "softirq_entry: vec=1 [action=TIMER]");
            let again =
                format!("tcp_retransmit_skb: family=AF_INET sport=5 dport=8124 state={state}");
            trace.event(1, "<idle>-0", &again);
            trace.event(1, "<idle>-0", "softirq_exit: vec=1 [action=TIMER]");
            trace.wake(30, "<idle>-0", client);
            trace.switch(3, idle, "R", client);
            trace.event(2, client, "sys_exit: NR 42 = 0");
        }
        trace.explain()
    };
    let result = connects("TCP_SYN_SENT");
    let summary = &result.findings[0].summary;
    for what in ["client", "connect", "port 8124", "8 SYNs"] {
        assert!(summary.contains(what), "{what}: {summary}");
    }
    assert!(!kinds(&connects("TCP_ESTABLISHED")).contains(&"network"), "8 are an accident");
}

/// Of QEMU's log events that mean nothing by themselves: between two of them the time goes by.
#[test]
fn a_log_that_stands_still_between_two_events_is_told_by_them() {
    let log = |answer_us: u64| {
        let (mut us, mut text) = (0, String::new());
        for n in 0..60_u64 {
            for (after, event) in [
                (300, "ide_exec_cmd IDE exec cmd: bus 0x55; state 0x56; cmd 0x20"),
                (5, "blk_co_preadv blk 0x55 bs 0x56 offset 512 bytes 512 flags 0x0"),
                (3, "nbd_send_request Sending request to server: { .from = 512, .len = 512 }"),
                (answer_us + n, "nbd_receive_simple_reply Got simple reply: { .error = 0 }"),
            ] {
                us += after;
                let (s, us) = (1_795_442_408 + us / 1_000_000, us % 1_000_000);
                text.push_str(&format!("1493@{s}.{us:06}:{event}\n"));
            }
        }
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("qemu.log");
        std::fs::write(&path, text).expect("a file");
        vmeter_explain::explain(&[path], &vmeter_explain::Options::default()).expect("a log")
    };
    let result = log(10_000);
    assert_eq!(kinds(&result), ["stall"], "{:#?}", result.findings);
    for what in ["nbd_send_request", "nbd_receive_simple_reply", "60 gaps"] {
        assert!(result.findings[0].summary.contains(what), "{:?}", result.findings[0]);
    }
    assert!(result.findings[0].suggestion.contains("NBD server"));
    complete(&result);
    assert_eq!(kinds(&log(100)), [""; 0], "a server that answers in time");
}
