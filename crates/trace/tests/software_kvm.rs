//! Port accesses on a host whose KVM has no `kvm_exit` and no `kvm_entry` (PVM).

use vmeter_trace::stat::read_with;
use vmeter_trace::{open, Input};

/// Where KVM reports an access: a write when the guest makes it, a read when user space
/// has served it.
fn access(text: &mut String, now: &mut u64, port: u16, write: bool, served_us: u64) {
    let mut line = |event: &str| {
        let (s, us) = (*now / 1_000_000, *now % 1_000_000);
        *text += &format!("  CPU 0/KVM-12 [000] ..... {s}.{us:06}: {event}\n");
        *now += 1;
    };
    if write {
        line(&format!("kvm_pio: pio_write at 0x{port:x} size 1 count 1 val 0x35 "));
    }
    line("kvm_userspace_exit: reason KVM_EXIT_IO (2)");
    line("sys_exit: NR 16 = 0");
    *now += served_us - 2;
    let mut line = |event: &str| {
        let (s, us) = (*now / 1_000_000, *now % 1_000_000);
        *text += &format!("  CPU 0/KVM-12 [000] ..... {s}.{us:06}: {event}\n");
        *now += 1;
    };
    line("sys_enter: NR 16 (5, ae80, 0, 0, 0, 0)");
    if !write {
        line(&format!("kvm_pio: pio_read at 0x{port:x} size 1 count 1 val 0x35 "));
    }
    *now += 10;
}

#[test]
fn each_access_has_the_time_of_its_own_exit() {
    let (mut text, mut now) = (String::from("# tracer: nop\n"), 1_000_000);
    let round = [
        (0x1f2, true, 10),
        (0x1f6, true, 20),
        (0x1f7, true, 500),
        (0x1f0, false, 30),
        (0x71, false, 40),
    ];
    for _ in 0..50 {
        for (port, write, us) in round {
            access(&mut text, &mut now, port, write, us);
        }
    }
    let input = Input::from_bytes("software", text.into_bytes()).expect("text");
    let report = read_with(open(input).expect("ftrace text"), None, 1).expect("one thread");
    for (port, write, us) in round {
        let row = report.ports.iter().find(|row| row.port == Some(u32::from(port)));
        let row = row.unwrap_or_else(|| panic!("no row for {port:#x}, {write}"));
        assert_eq!(row.count, 50, "{port:#x}");
        let mean = row.mean_s.expect("timed") * 1e6;
        assert!((mean - us as f64).abs() < 1.5, "{port:#x}: {mean} us, not {us}");
    }
}

#[test]
fn a_write_that_kvm_completes_itself_does_not_claim_the_next_read() {
    // A legacy virtio driver: notify (an ioeventfd, no exit to user space), then read the ISR.
    let (mut text, mut now) = (String::from("# tracer: nop\n"), 1_000_000_u64);
    for _ in 0..50 {
        let (s, us) = (now / 1_000_000, now % 1_000_000);
        text += &format!(
            "  CPU 0/KVM-12 [000] ..... {s}.{us:06}: kvm_pio: pio_write at 0xc010 size 2 count 1 val 0x0 \n"
        );
        now += 15;
        access(&mut text, &mut now, 0xc013, false, 300);
        // This one is user space's, and a read that KVM completes itself comes later.
        access(&mut text, &mut now, 0x70, true, 40);
        now += 25;
        let (s, us) = (now / 1_000_000, now % 1_000_000);
        text += &format!(
            "  CPU 0/KVM-12 [000] ..... {s}.{us:06}: kvm_pio: pio_read at 0x61 size 1 count 1 val 0x20 \n"
        );
        now += 30;
    }
    let input = Input::from_bytes("software", text.into_bytes()).expect("text");
    let report = read_with(open(input).expect("ftrace text"), None, 1).expect("one thread");
    let row = |port| report.ports.iter().find(|row| row.port == Some(port)).expect("a row");
    assert!((row(0xc013).mean_s.expect("timed") * 1e6 - 300.0).abs() < 1.5);
    assert!((row(0x70).mean_s.expect("timed") * 1e6 - 40.0).abs() < 1.5);
    assert_eq!((row(0xc010).count, row(0xc010).mean_s), (50, None));
    assert_eq!((row(0x61).count, row(0x61).mean_s), (50, None));
}
