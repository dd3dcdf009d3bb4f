//! A boot as QEMU, SeaBIOS, Debian's kernel and vmeter's init make it, as events
//! of the sources that see it. The figures are those of a real boot by TCG.
#![allow(dead_code)]

pub mod user_space;

use vmeter_model::run::WatchLevel;
use vmeter_model::{Event, EventKind, Moment, Ns, RunRecord};

pub const US: Ns = 1_000;
pub const MS: Ns = 1_000_000;

/// SeaBIOS's log of `-machine q35 -kernel bzImage`, ns after reset, and the line.
pub const SEABIOS: &[(Ns, &str)] = &[
    (19_000 * US, "SeaBIOS (version 1.16.2-debian-1.16.2-1)"),
    (19_500 * US, "BUILD: gcc: (Debian 12.2.0-14) 12.2.0 binutils: (GNU Binutils for Debian) 2.40"),
    (21_400 * US, "No Xen hypervisor found."),
    (26_400 * US, "Running on QEMU (q35)"),
    (26_700 * US, "Found QEMU fw_cfg"),
    (35_200 * US, "Relocating init from 0x000d48c0 to 0x1efeb320 (size 85056)"),
    (40_100 * US, "=== PCI bus & bridge init ==="),
    (41_300 * US, "=== PCI device probing ==="),
    (41_300 * US, "Found 4 PCI devices (max PCI bus is 00)"),
    (41_500 * US, "=== PCI new allocation pass #1 ==="),
    (42_700 * US, "=== PCI new allocation pass #2 ==="),
    (45_100 * US, "PCI: init bdf=00:00.0 id=8086:29c0"),
    (46_500 * US, "PCI: No VGA devices found"),
    (48_300 * US, "Found 1 cpu(s) max supported 1 cpu(s)"),
    (48_700 * US, "Copying PIR from 0x1efffc00 to 0x000f5c80"),
    (63_200 * US, "table(50434146)=0x1ffe2068 (via rsdt)"),
    (63_900 * US, "Scan for VGA option rom"),
    (70_400 * US, "Turning on vga text mode console"),
    (75_000 * US, "SeaBIOS (version 1.16.2-debian-1.16.2-1)"),
    (75_100 * US, "AHCI controller at 00:1f.2, iobase 0xfebff000, irq 10"),
    (83_400 * US, "All threads complete."),
    (83_500 * US, "Scan for option roms"),
    (83_900 * US, "Running option rom at c000:0003"),
    (84_300 * US, "Searching bootorder for: /rom@genroms/linuxboot_dma.bin"),
    (86_200 * US, "Space available for UMB: c3000-e8000, f5500-f59c0"),
    (90_000 * US, "enter handle_19:"),
    (90_000 * US, "  NULL"),
    (90_000 * US, "Booting from ROM..."),
    (90_100 * US, "Booting from c000:0054"),
];

/// Symbols reached in `kernel:entry`, and how long until the next, ns.
const ENTRY: &[(&str, Ns)] = &[
    ("startup_64", 200 * US),
    ("x86_64_start_kernel", 800 * US),
    ("start_kernel", 300 * US),
    ("setup_arch", 60 * MS),
    ("setup_per_cpu_areas", 12 * MS),
    ("mm_init", 30 * MS),
    ("ftrace_init", 40 * MS),
    ("sched_init", 8 * MS),
    ("rcu_init", 10 * MS),
    ("console_init", 20 * MS),
    ("arch_cpu_finalize_init", 300 * MS),
    ("rest_init", 2 * MS),
    ("kernel_init", MS),
    ("kernel_init_freeable", 40 * MS),
];

const LEVELS: &[(&str, usize)] = &[
    ("early", 40),
    ("pure", 5),
    ("core", 60),
    ("postcore", 50),
    ("arch", 40),
    ("subsys", 120),
    ("fs", 80),
    ("rootfs", 5),
    ("device", 120),
    ("late", 50),
];

/// Initcalls of the standard boot.
pub const INITCALLS: usize = 570;

/// Phases into which a delay can be planted, and where it must then show.
pub const DELAYS: &[&str] = &[
    "vmm:exec",
    "vmm:link",
    "vmm:init",
    "bios:overhead",
    "kernel:load",
    "kernel:setup",
    "kernel:decompress",
    "kernel:entry",
    "kernel:initcalls-before-userspace",
    "insmod virtio_net",
    "/init:mount",
    "/init:udev-overhead",
    "shutdown",
    "vmm:exit",
    "vmeter:observe",
    "unattributed",
];

/// The boot that the tests are made of.
pub struct Boot {
    pub events: Vec<Event>,
    pub run: RunRecord,
    now: Ns,
    insns: u64,
    delay: (&'static str, Ns),
}

impl Boot {
    /// A full boot that powers off, seen by every source.
    pub fn standard() -> Boot {
        Boot::delayed("", 0)
    }

    /// The same with `ns` more spent in one of [`DELAYS`].
    pub fn delayed(phase: &'static str, ns: Ns) -> Boot {
        let mut boot =
            Boot { events: Vec::new(), run: record(0), now: 0, insns: 0, delay: (phase, ns) };
        boot.vmm();
        boot.firmware();
        boot.image();
        boot.entry();
        boot.initcalls();
        boot.userspace();
        boot.end();
        boot.run.total_ns = boot.now;
        boot.events.sort_by_key(|e| e.at);
        boot
    }

    /// The same without what one source saw.
    pub fn without(mut self, source: &str) -> Boot {
        self.events.retain(|e| e.source != source);
        if source == "process" {
            self.run.moments.clear();
        }
        self
    }

    /// Only what these sources saw.
    pub fn only(mut self, sources: &[&str]) -> Boot {
        self.events.retain(|e| sources.contains(&e.source.as_str()));
        self
    }

    pub fn timeline(&self) -> vmeter_model::Timeline {
        let timeline = vmeter_timeline::build(&self.events, &self.run);
        if let Err(error) = vmeter_timeline::verify(&timeline) {
            panic!("{error}");
        }
        timeline
    }

    fn pass(&mut self, ns: Ns) {
        self.now += ns;
        self.insns += u64::try_from(ns / 10).unwrap_or(0);
    }

    fn plant(&mut self, phase: &str) {
        if self.delay.0 == phase {
            self.pass(self.delay.1);
        }
    }

    fn event(&mut self, source: &str, error_ns: Ns, what: EventKind) {
        let insns = (source == "tcg-plugin").then_some(self.insns);
        self.events.push(Event { at: self.now, error_ns, source: source.into(), insns, what });
    }

    fn process(&mut self, what: EventKind) {
        self.event("process", 0, what);
    }

    fn hold(&mut self, ns: Ns) {
        self.run.moments.push((self.now, Moment::VmeterHold));
        self.pass(ns);
        self.plant("vmeter:observe");
        self.run.moments.push((self.now, Moment::VmeterRelease));
    }

    fn trace(&mut self, what: EventKind) {
        self.event("qemu-trace", 2 * US, what);
    }

    fn reached(&mut self, symbol: &str) {
        self.event("tcg-plugin", 100, EventKind::Reached { symbol: symbol.into() });
    }

    fn ftrace(&mut self, what: EventKind) {
        self.event("guest-ftrace", 5 * US, what);
    }

    fn kernel_line(&mut self, text: &str) {
        self.event(
            "guest-log",
            5 * US,
            EventKind::KernelLine { text: text.into(), by_program: false },
        );
    }

    fn vmm(&mut self) {
        self.pass(MS);
        self.plant("vmm:exec");
        self.process(EventKind::VmmExec);
        self.hold(200 * US);
        self.pass(20 * MS);
        self.plant("vmm:link");
        self.process(EventKind::VmmEntry);
        self.pass(300 * US);
        self.process(EventKind::VmmMain);
        self.pass(100 * MS);
        self.plant("vmm:init");
        let state = "running".to_owned();
        self.trace(EventKind::RunState { state });
        self.pass(50 * US);
    }

    fn firmware(&mut self) {
        self.insns = 0;
        self.reached("reset-vector");
        let reset = self.now;
        for (after, line) in SEABIOS {
            self.pass((reset + after - self.now).max(0));
            if line.starts_with("=== PCI device probing") {
                self.trace(EventKind::FwCfg { item: 0x19, bytes: 0 });
                for register in 0..20 {
                    let device = "mch 00:00.0".to_owned();
                    self.trace(EventKind::PciConfig { write: register > 15, device, register });
                }
            }
            self.event("firmware", 200 * US, EventKind::FirmwareLine { text: (*line).into() });
        }
        self.pass(MS);
        self.plant("bios:overhead");
        for item in [0x16, 0x17, 0x18, 0x0a, 0x0b, 0x12, 0x07, 0x08, 0x11] {
            self.trace(EventKind::FwCfg { item, bytes: 0 });
            self.pass(20 * US);
        }
        self.pass(50 * MS);
        self.plant("kernel:load");
        for item in [0x13, 0x14, 0x15] {
            self.trace(EventKind::FwCfg { item, bytes: 0 });
            self.pass(20 * US);
        }
    }

    fn image(&mut self) {
        self.reached("bzimage-setup");
        self.pass(3 * MS);
        self.plant("kernel:setup");
        self.reached("bzimage-startup_32");
        self.pass(100 * US);
        self.reached("bzimage-startup_64");
        self.pass(600 * MS);
        self.plant("kernel:decompress");
    }

    fn entry(&mut self) {
        for (symbol, ns) in ENTRY {
            self.reached(symbol);
            if *symbol == "setup_arch" {
                self.kernel_line("Linux version 6.1.0-56-cloud-amd64");
            }
            if *symbol == "console_init" {
                self.pass(*ns / 2);
                self.ftrace(EventKind::InitcallLevel { level: "console".into() });
                self.call("con_init", None, 0, MS);
            }
            self.pass(*ns);
        }
        self.plant("kernel:entry");
    }

    fn call(&mut self, function: &str, module: Option<&str>, pid: i32, ns: Ns) {
        let module = module.map(str::to_owned);
        let start = EventKind::InitcallStart { function: function.into(), module, pid: Some(pid) };
        self.ftrace(start);
        self.pass(ns);
        let (function, pid, ret) = (function.into(), Some(pid), Some(0));
        self.ftrace(EventKind::InitcallEnd { function, pid, ret });
    }

    fn initcalls(&mut self) {
        let mut number = 0;
        for (level, calls) in LEVELS {
            self.ftrace(EventKind::InitcallLevel { level: (*level).into() });
            for _ in 0..*calls {
                self.pass(5 * US);
                let long = number == 300;
                self.call(&format!("fn_{number}_init"), None, 1, if long { 90 * MS } else { MS });
                if long {
                    self.plant("kernel:initcalls-before-userspace");
                }
                number += 1;
            }
            if *level == "early" {
                self.pass(MS);
                self.reached("smp_init");
                self.kernel_line("smp: Bringing up secondary CPUs ...");
                self.pass(5 * MS);
                self.reached("do_basic_setup");
                self.pass(2 * MS);
            }
        }
        self.pass(MS);
        self.reached("free_initmem");
        self.kernel_line("Freeing unused kernel image (initmem) memory: 2612K");
        self.pass(20 * MS);
        self.reached("mark_readonly");
        self.pass(15 * MS);
        self.kernel_line("Run /init as init process");
        self.reached("run_init_process");
    }

    fn step(&mut self, step: &str, ns: Ns) {
        self.ftrace(EventKind::StepStart { step: step.into() });
        self.pass(ns);
        self.ftrace(EventKind::StepEnd { step: step.into() });
        self.pass(2 * US);
    }

    fn userspace(&mut self) {
        self.pass(4 * MS);
        self.ftrace(EventKind::ProcessExec { pid: 1, file: "/init".into() });
        self.pass(3 * MS);
        let mount = if self.delay.0 == "/init:mount" { self.delay.1 } else { 0 };
        self.step("mount", 2 * MS + mount);
        for module in ["failover", "net_failover", "virtio_net"] {
            self.ftrace(EventKind::StepStart { step: format!("insmod {module}") });
            self.pass(10 * MS);
            self.ftrace(EventKind::ModuleLoad { module: module.into(), pid: Some(1) });
            self.pass(50 * US);
            self.call(&format!("{module}_mod_init"), Some(module), 1, 5 * MS);
            self.plant(&format!("insmod {module}"));
            self.pass(MS);
            self.ftrace(EventKind::StepEnd { step: format!("insmod {module}") });
            self.pass(2 * US);
        }
        self.udev();
        self.plant("unattributed");
        self.ftrace(EventKind::Ready);
        self.pass(US);
    }

    fn udev(&mut self) {
        self.step("udev-start", 30 * MS);
        self.ftrace(EventKind::StepStart { step: "udev-trigger".into() });
        self.pass(MS);
        self.ftrace(EventKind::ProcessExec { pid: 80, file: "/usr/bin/udevadm".into() });
        self.pass(50 * MS);
        self.ftrace(EventKind::ModuleLoad { module: "virtio_blk".into(), pid: Some(81) });
        self.call("virtio_blk_init", Some("virtio_blk"), 81, 8 * MS);
        self.ftrace(EventKind::ProcessExit { pid: 80, comm: "udevadm".into() });
        self.pass(MS);
        self.ftrace(EventKind::StepEnd { step: "udev-trigger".into() });
        let udev = if self.delay.0 == "/init:udev-overhead" { self.delay.1 } else { 0 };
        self.step("udev-settle", 70 * MS + udev);
    }

    fn end(&mut self) {
        self.ftrace(EventKind::ShutdownStart);
        self.pass(6 * MS);
        self.plant("shutdown");
        self.reached("kernel_power_off");
        self.kernel_line("reboot: Power down");
        self.pass(2 * MS);
        self.trace(EventKind::RunState { state: "shutdown".into() });
        self.pass(12 * MS);
        self.process(EventKind::VmmExiting);
        self.hold(4 * MS);
        self.pass(10 * MS);
        self.plant("vmm:exit");
        self.process(EventKind::VmmExit);
    }
}

/// The record of a run of `total_ns`.
pub fn record(total_ns: Ns) -> RunRecord {
    RunRecord { label: "test".into(), watch: WatchLevel::Full, total_ns, ..RunRecord::default() }
}

/// One event.
pub fn event(at: Ns, error_ns: Ns, source: &str, what: EventKind) -> Event {
    Event { at, error_ns, source: source.into(), insns: None, what }
}

/// Fails at the first span that differs.
pub fn assert_same(one: &[vmeter_model::Span], other: &[vmeter_model::Span]) {
    for (a, b) in one.iter().zip(other) {
        assert_eq!(a, b);
    }
    assert_eq!(one.len(), other.len());
}
