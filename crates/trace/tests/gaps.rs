//! Durations around lost and overwritten events: counted, said to be cut, not timed.

use crate::common;

use std::fmt::Write as _;
use vmeter_trace::stat::{Report, Row};

/// ftrace text being written.
struct Text(String);

impl Text {
    fn new(heading: &str) -> Text {
        Text(format!("# tracer: nop\n#\n{heading}"))
    }

    fn event(&mut self, us: u64, cpu: u32, event: &str) {
        let (s, us) = (us / 1_000_000, us % 1_000_000);
        writeln!(self.0, " vcpu-7 [{cpu:03}] d..1. {s}.{us:06}: {event}").expect("a string");
    }

    /// A write of the serial port: VMEXIT at one moment, VMENTRY at another.
    fn write(&mut self, (from, cpu): (u64, u32), (to, other): (u64, u32)) {
        self.event(from, cpu, "kvm_exit: vcpu 0 reason io rip 0x1 info1 0x3f80010 info2 0x2");
        self.event(from + 1, cpu, "kvm_pio: pio_write at 0x3f8 size 1 count 1 val 0x20");
        self.event(from + 2, cpu, "kvm_userspace_exit: reason KVM_EXIT_IO (2)");
        self.event(to, other, "kvm_entry: vcpu 0, rip 0x3");
    }

    fn report(self) -> Report {
        common::report_of_bytes(self.0.into_bytes())
    }
}

const OVERWRITTEN: &str = "# entries-in-buffer/entries-written: 400/900   #P:2\n#\n";

fn figures(row: &Row) -> (u64, u64, u64) {
    (row.count, row.timed, row.cut)
}

fn all(report: &Report) -> [(u64, u64, u64); 3] {
    [&report.exits[0], &report.ports[0], &report.userspace_exits[0]].map(figures)
}

#[test]
fn a_loss_cuts_what_is_open_on_its_cpu() {
    let mut text = Text::new("");
    (0..20).for_each(|n| text.write((n * 100, 0), (n * 100 + 20, 0)));
    text.event(2_000, 0, "kvm_exit: vcpu 0 reason io rip 0x1 info1 0x3f80010 info2 0x2");
    text.event(2_001, 0, "kvm_pio: pio_write at 0x3f8 size 1 count 1 val 0x20");
    text.event(2_002, 0, "kvm_userspace_exit: reason KVM_EXIT_IO (2)");
    text.0.push_str("CPU:0 [LOST 5 EVENTS]\n");
    text.event(9_000_000, 0, "kvm_entry: vcpu 0, rip 0x3");
    text.write((9_000_100, 0), (9_000_120, 0));
    let report = text.report();
    assert_eq!(all(&report), [(22, 21, 1); 3]);
    assert_eq!(report.ports[0].max_s, Some(20e-6));
    // What the thread did meanwhile is not known either.
    let thread = &report.threads[0];
    assert!(thread.unknown_s.is_some_and(|s| s > 8.9), "{thread:?}");
    assert!(thread.user_s.is_some_and(|s| s < 0.1), "{thread:?}");
}

#[test]
fn a_loss_on_another_cpu_cuts_nothing() {
    let mut text = Text::new("");
    text.event(0, 1, "kvm_entry: vcpu 0, rip 0x3");
    text.write((100, 0), (130, 0));
    text.0.push_str("CPU:1 [LOST 5 EVENTS]\n");
    text.write((200, 0), (230, 0));
    assert_eq!(all(&text.report()), [(2, 2, 0); 3]);
}

#[test]
fn an_open_interrupt_is_cut_too() {
    let mut text = Text::new("");
    text.event(1, 0, "irq_handler_entry: irq=4 name=ttyS0");
    text.event(3, 0, "irq_handler_exit: irq=4 ret=handled");
    text.event(5, 0, "irq_handler_entry: irq=4 name=ttyS0");
    text.0.push_str("CPU:0 [LOST 5 EVENTS]\n");
    text.event(900, 0, "irq_handler_exit: irq=4 ret=handled");
    assert_eq!(figures(&text.report().irqs[0]), (2, 1, 1));
}

#[test]
fn coming_to_a_cpu_whose_events_are_overwritten_cuts() {
    let moved = |heading: &str| {
        let mut text = Text::new(heading);
        (0..20).for_each(|n| text.write((n * 100, 0), (n * 100 + 20, 0)));
        text.write((2_000, 0), (10_000_000, 1));
        text.write((10_000_100, 1), (10_000_120, 1));
        text.report()
    };
    let cut = moved(OVERWRITTEN);
    assert_eq!(all(&cut), [(22, 21, 1); 3]);
    assert!(cut.threads[0].unknown_s.is_some_and(|s| s > 9.9), "{:?}", cut.threads);
    // Of a whole trace it is just one that took long.
    let whole = moved("");
    assert_eq!(all(&whole), [(22, 22, 0); 3]);
    assert!(whole.ports[0].max_s.is_some_and(|s| s > 9.9));
}

#[test]
fn having_been_on_such_a_cpu_cuts_if_it_took_implausibly_long() {
    let mut text = Text::new(OVERWRITTEN);
    (0..20).for_each(|n| text.write((n * 100, 0), (n * 100 + 20, 0)));
    // Gone to CPU 1, whose events begin at 10 s, and back; a slow one; and one when all
    // CPUs are recorded, whose length is therefore true.
    text.write((2_000, 0), (5_000_000, 0));
    text.write((5_000_100, 0), (5_000_900, 0));
    text.write((10_000_000, 1), (10_000_020, 1));
    text.write((11_000_000, 0), (14_000_000, 0));
    let report = text.report();
    assert_eq!(all(&report), [(24, 23, 1); 3]);
    assert_eq!(report.ports[0].max_s, Some(3.0));
    // Those 5 s, and the 5 s until the guest's exit on CPU 1: who knows whether it ran.
    let thread = &report.threads[0];
    assert!(thread.unknown_s.is_some_and(|s| (9.9..10.1).contains(&s)), "{thread:?}");
}
