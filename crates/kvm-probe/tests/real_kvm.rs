//! Against the host's own `/dev/kvm`. Where it is absent each test says so and passes.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};
use vmeter_kvm_probe::kvm_bindings::{kvm_regs, KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2};
use vmeter_kvm_probe::{
    code, probe, probe_node, Irqchip, ProbeError, Quality, Ring, SlotSpec, Stop, Vcpu, VcpuExit,
    Vm, VmError,
};

const DONE: u8 = 0xf4;
const PAGE: u64 = 4096;

/// Runs `body` if this host's KVM runs ring-3 code, else says that it is skipped.
fn with_kvm(body: impl FnOnce()) {
    match probe(Duration::from_secs(2)) {
        Ok(found) if found.ring3.is_native() => body(),
        Ok(found) => println!("skipped: ring 3 is {}", found.ring3),
        Err(e) => println!("skipped: {e}"),
    }
}

fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(20))
}

fn run(vcpu: &mut Vcpu, ring: Ring, regs: kvm_regs) {
    vcpu.enter(ring, regs).unwrap();
    assert_eq!(vcpu.run_to_out(u16::from(DONE), soon()).unwrap(), Stop::Done(()));
}

fn set_bits(log: &[u64]) -> Vec<u64> {
    (0..log.len() as u64 * 64).filter(|&i| log[(i / 64) as usize] >> (i % 64) & 1 == 1).collect()
}

#[test]
fn the_probe_tells_user_mode_from_kernel_mode() {
    with_kvm(|| {
        let found = probe(Duration::from_secs(2)).unwrap();
        assert_eq!(found.api_version, 12);
        assert!(found.capability("nr_memslots") > 0, "{found:?}");
        // On PVM kernel mode is interpreted, on VMX and SVM both are native.
        let software = found.module.as_deref() == Some("kvm_pvm");
        assert_eq!(found.boots_kernels(), !software, "{found:?}");
        if let (true, Quality::Interpreted { insns_per_s }) = (software, &found.ring0) {
            assert!(*insns_per_s > 1e3, "{found:?}");
            assert!(found.summary().contains("kernel mode"));
        }
        println!("{}", found.summary());
    });
}

#[test]
fn no_budget_is_no_hang() {
    with_kvm(|| {
        let start = Instant::now();
        let found = probe(Duration::ZERO).unwrap();
        println!("{found:?}");
        assert!(start.elapsed() < Duration::from_secs(20));
    });
}

#[test]
fn a_missing_node_says_what_to_do() {
    let error = probe_node("/nonexistent/kvm".as_ref(), Duration::from_secs(1)).unwrap_err();
    assert!(matches!(error, ProbeError::NoNode { .. }));
    assert!(error.to_string().contains("does not exist"), "{error}");
}

#[test]
fn the_loop_counts_to_zero_in_both_rings() {
    with_kvm(|| {
        let vm = Vm::builder().code(code::count_down(DONE)).build().unwrap();
        let mut vcpu = vm.vcpu(0).unwrap();
        for ring in [Ring::Three, Ring::Zero, Ring::Three] {
            run(&mut vcpu, ring, kvm_regs { rcx: 777, ..Default::default() });
            assert_eq!(vcpu.fd().get_regs().unwrap().rcx, 0);
        }
    });
}

#[test]
fn dirty_bits_are_the_pages_written() {
    with_kvm(|| {
        let (low, high) = (Vm::FIRST_FREE_GPA, 5u64 << 30);
        let vm = Vm::builder()
            .code(code::touch_strided(DONE))
            .slot(SlotSpec::new(low, 512 * PAGE).log_dirty())
            .slot(SlotSpec::new(high, 256 * PAGE).log_dirty().populate())
            .build()
            .unwrap();
        let mut vcpu = vm.vcpu(0).unwrap();
        for (slot, step, count) in [(0, 3, 100), (1, 1, 256), (0, 512, 1)] {
            let slot = &vm.slots()[slot];
            let regs =
                kvm_regs { rdi: slot.gpa(), rsi: step * PAGE, rcx: count, ..Default::default() };
            run(&mut vcpu, Ring::Three, regs);
            let expected: Vec<u64> = (0..count).map(|i| i * step).collect();
            assert_eq!(set_bits(&vm.dirty_log(slot).unwrap()), expected);
            assert_eq!(set_bits(&vm.dirty_log(slot).unwrap()), [0u64; 0]);
            let mut first = [0; 8];
            slot.read(0, &mut first).unwrap();
            assert_eq!(u64::from_le_bytes(first), count);
        }
        vm.set_flags(&vm.slots()[0], 0).unwrap();
        assert!(vm.dirty_log(&vm.slots()[0]).is_err(), "logging is off");
    });
}

#[test]
fn listed_pages_and_caps_before_vcpus() {
    with_kvm(|| {
        let pages = [9u64, 3, 200, 64];
        let base = 16 << 20;
        let vm = Vm::builder()
            .enable_cap(KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2, [1, 0, 0, 0])
            .code(code::touch_listed(DONE))
            .slot(SlotSpec::new(base, 256 * PAGE).log_dirty())
            .slot(SlotSpec::new(Vm::FIRST_FREE_GPA, PAGE))
            .build()
            .unwrap();
        let table: Vec<u8> = pages.iter().flat_map(|p| (base + p * PAGE).to_le_bytes()).collect();
        vm.slots()[1].write(0, &table).unwrap();
        let mut vcpu = vm.vcpu(0).unwrap();
        let regs = kvm_regs { rsi: Vm::FIRST_FREE_GPA, rcx: 4, ..Default::default() };
        run(&mut vcpu, Ring::Three, regs);
        // Manual protection: reading does not clear.
        for _ in 0..2 {
            let log = vm.dirty_log(&vm.slots()[0]).unwrap();
            assert_eq!(set_bits(&log), [3, 9, 64, 200]);
        }
    });
}

#[test]
fn every_exit_reaches_the_callback() {
    with_kvm(|| {
        let vm = Vm::builder().code(code::port_writes(0x80, DONE)).build().unwrap();
        let mut vcpu = vm.vcpu(0).unwrap();
        vcpu.enter(Ring::Three, kvm_regs { rcx: 50, rax: 0x5a, ..Default::default() }).unwrap();
        let mut seen = 0;
        let stop = vcpu.run(soon(), |exit| match exit {
            VcpuExit::IoOut(0x80, data) => {
                assert_eq!(data, [0x5a]);
                seen += 1;
                ControlFlow::Continue(())
            }
            VcpuExit::IoOut(port, _) if port == u16::from(DONE) => ControlFlow::Break(()),
            other => panic!("{other:?}"),
        });
        assert_eq!((stop.unwrap(), seen), (Stop::Done(()), 50));
    });
}

#[test]
fn addresses_without_a_slot_are_mmio() {
    with_kvm(|| {
        let vm = Vm::builder().code(code::mmio_reads(DONE)).build().unwrap();
        let mut vcpu = vm.vcpu(0).unwrap();
        let device = 0xd000_0000;
        vcpu.enter(Ring::Three, kvm_regs { rdi: device, rcx: 5, ..Default::default() }).unwrap();
        let mut reads = 0u8;
        let stop = vcpu.run(soon(), |exit| match exit {
            VcpuExit::MmioRead(at, data) => {
                assert_eq!((at, data.len()), (device, 8));
                reads += 1;
                data.fill(reads);
                ControlFlow::Continue(())
            }
            _ => ControlFlow::Break(()),
        });
        assert_eq!((stop.unwrap(), reads), (Stop::Done(()), 5));
        let rax = vcpu.fd().get_regs().unwrap().rax;
        assert_eq!(rax, u64::from_le_bytes([5; 8]));
    });
}

/// `jmp $`: a guest that never exits.
const FOREVER: [u8; 2] = [0xeb, 0xfe];

#[test]
fn a_deadline_ends_a_guest_that_never_exits() {
    with_kvm(|| {
        let vm = Vm::builder().code(FOREVER).build().unwrap();
        let mut vcpu = vm.vcpu(0).unwrap();
        for ring in [Ring::Three, Ring::Zero] {
            vcpu.enter(ring, kvm_regs::default()).unwrap();
            for ms in [0, 1, 30] {
                let at = Instant::now() + Duration::from_millis(ms);
                assert_eq!(vcpu.run_to_out(1, Some(at)).unwrap(), Stop::Deadline);
                assert!(Instant::now() >= at);
            }
        }
    });
}

#[test]
fn a_kick_ends_a_run_and_is_never_lost() {
    with_kvm(|| {
        let vm = Vm::builder().code(FOREVER).build().unwrap();
        let mut vcpu = vm.vcpu(0).unwrap();
        vcpu.enter(Ring::Three, kvm_regs::default()).unwrap();
        let kicker = vcpu.kicker();
        kicker.kick();
        assert_eq!(vcpu.run_to_out(1, soon()).unwrap(), Stop::Kicked, "kicked before the run");
        // Whether a kick comes before, inside or between two runs of the guest is chance:
        // each is answered, none kills the process, none is left over.
        for _ in 0..200 {
            let other = kicker.clone();
            let thread = std::thread::spawn(move || other.kick());
            assert_eq!(vcpu.run_to_out(1, soon()).unwrap(), Stop::Kicked);
            thread.join().unwrap();
        }
        let at = Some(Instant::now() + Duration::from_millis(2));
        assert_eq!(vcpu.run_to_out(1, at).unwrap(), Stop::Deadline, "a kick was left over");
    });
}

#[test]
fn vcpus_on_threads_share_the_memory() {
    with_kvm(|| {
        let vm = Vm::builder()
            .code(code::touch_strided(DONE))
            .slot(SlotSpec::new(Vm::FIRST_FREE_GPA, 400 * PAGE).log_dirty())
            .build()
            .unwrap();
        std::thread::scope(|scope| {
            for id in 0..4 {
                let mut vcpu = vm.vcpu(id).unwrap();
                let rdi = Vm::FIRST_FREE_GPA + id * 100 * PAGE;
                scope.spawn(move || {
                    let regs = kvm_regs { rdi, rsi: PAGE, rcx: 100, ..Default::default() };
                    run(&mut vcpu, Ring::Three, regs);
                });
            }
        });
        let log = vm.dirty_log(&vm.slots()[0]).unwrap();
        assert_eq!(set_bits(&log), (0..400).collect::<Vec<u64>>());
    });
}

#[test]
fn a_faulting_guest_is_an_error_that_says_where() {
    with_kvm(|| {
        // ud2 without an IDT: a triple fault.
        let vm = Vm::builder().code([0x0f, 0x0b]).irqchip(Irqchip::None).build().unwrap();
        let mut vcpu = vm.vcpu(0).unwrap();
        vcpu.enter(Ring::Three, kvm_regs::default()).unwrap();
        let error = vcpu.run_to_out(u16::from(DONE), soon()).unwrap_err();
        assert!(matches!(error, VmError::UnexpectedExit { .. }), "{error}");
        assert!(error.to_string().contains("0xf4"), "{error}");
    });
}

#[test]
fn layouts_that_cannot_be_are_refused() {
    let refused = |slot| {
        let error = Vm::builder().slot(slot).build().unwrap_err();
        assert!(matches!(error, VmError::Layout(_)), "{error}");
    };
    refused(SlotSpec::new(0, PAGE));
    refused(SlotSpec::new(Vm::FIRST_FREE_GPA + 1, PAGE));
    refused(SlotSpec::new(Vm::FIRST_FREE_GPA, 0));
    refused(SlotSpec::new(0xfee0_0000, PAGE));
    refused(SlotSpec::new(!0xfff, 0x2000));
    refused(SlotSpec::new(1 << 50, PAGE));
    let twice = Vm::builder()
        .slot(SlotSpec::new(8 << 20, 2 * PAGE))
        .slot(SlotSpec::new((8 << 20) + PAGE, PAGE))
        .build();
    assert!(matches!(twice, Err(VmError::Layout(_))));
}
