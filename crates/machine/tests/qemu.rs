//! Real QEMU processes: described, launched, looked into, asked.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::Duration;
use vmeter_machine::backend::{self, Machine, MachineError, Request};
use vmeter_machine::launch::{
    self, End, Exit, Hooks, Mode, NoHooks, Options, Ptrace, Reason, Status, Stopper, Tracee,
};
use vmeter_machine::plan::LaunchPlan;
use vmeter_machine::qmp::{self, Qmp};
use vmeter_model::{Accel, MachineSpec};

fn qemu() -> bool {
    let found = launch::find_program("qemu-system-x86_64".as_ref()).is_ok();
    if !found {
        println!("skipped: qemu-system-x86_64 is not installed");
    }
    found
}

fn options(mode: Mode) -> Options {
    Options { mode, timeout: Some(Duration::from_secs(120)), ..Options::default() }
}

/// Launches, and returns what came on standard output. The run is ended at the
/// first line that holds `until`.
fn boot(
    mut plan: LaunchPlan,
    mode: Mode,
    hooks: &mut dyn Hooks,
    until: Option<&'static str>,
) -> (Exit, String) {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("a pipe");
    plan.stdout = Some(write);
    let stopper = Stopper::new().expect("an eventfd");
    let other = stopper.clone();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        for line in BufReader::new(std::fs::File::from(read)).lines() {
            let line = line.unwrap_or_default();
            if until.is_some_and(|u| line.contains(u)) {
                other.stop(Reason::ReadyPoint);
            }
            text += &(line + "\n");
        }
        text
    });
    let exit = launch::run(plan, &options(mode), &stopper, hooks).expect("launched");
    (exit, reader.join().expect("read"))
}

fn request<'a>(spec: &'a MachineSpec, cache: &'a Path) -> Request<'a> {
    Request { spec, cache, kernel: None, initrd: None, root_image: None }
}

const PATTERN: &[u8; 24] = b"left behind by the guest";

/// A firmware of 64 KiB: copies PATTERN to address 0x20000, says "ready", and then
/// exits by isa-debug-exit from its vCPU thread, or waits for ever.
fn firmware(folder: &Path, exits: bool) -> PathBuf {
    let mut rom = vec![0xf4u8; 0x10000];
    let mut code: Vec<u8> = vec![
        0xb8,
        0x00,
        0xf0,
        0x8e,
        0xd8, // mov ds, 0xf000
        0xb8,
        0x00,
        0x20,
        0x8e,
        0xc0, // mov es, 0x2000
        0xbe,
        0x00,
        0x01,
        0x31,
        0xff, // mov si, 0x100; xor di, di
        0xb9,
        PATTERN.len() as u8,
        0x00,
        0xfc,
        0xf3,
        0xa4, // mov cx, n; cld; rep movsb
        0xba,
        0xf8,
        0x03, // mov dx, 0x3f8
    ];
    for c in b"ready\n" {
        code.extend([0xb0, *c, 0xee]); // mov al, c; out dx, al
    }
    if exits {
        code.extend([0xba, 0xf4, 0x00, 0xb0, 0x10, 0xee]); // mov dx, 0xf4; mov al, 0x10; out
    }
    code.extend([0xfa, 0xf4, 0xeb, 0xfd]); // cli; hlt; jmp -3
    rom[..code.len()].copy_from_slice(&code);
    rom[0x100..][..PATTERN.len()].copy_from_slice(PATTERN);
    rom[0xfff0..0xfff5].copy_from_slice(&[0xea, 0x00, 0x00, 0x00, 0xf0]); // jmp f000:0
    let path = folder.join("firmware.bin");
    std::fs::write(&path, rom).expect("written");
    path
}

/// Reads guest address 0x20000 out of the VMM's memory.
#[derive(Default)]
struct GuestMemory {
    found: Vec<u8>,
    looks: u32,
}

const GUEST_BYTES: u64 = 32 << 20;

impl Hooks for GuestMemory {
    fn on_exiting(&mut self, tracee: &Tracee) {
        self.looks += 1;
        for map in tracee.mappings().expect("maps") {
            // QEMU aligns guest RAM; neighbours may be merged into the mapping.
            let mut memory = vec![0; PATTERN.len()];
            let fits = map.permissions.starts_with("rw") && map.end - map.start >= GUEST_BYTES;
            let read = fits && tracee.read(map.start + 0x20000, &mut memory).is_ok();
            if read && memory == PATTERN {
                self.found = memory;
            }
        }
    }
}

fn guest(folder: &Path, exits: bool) -> Machine {
    let spec = MachineSpec {
        accel: Some(Accel::Tcg.into()),
        machine: Some("pc".into()),
        memory_mib: Some(32),
        firmware: Some(firmware(folder, exits).to_str().expect("UTF-8").into()),
        ..MachineSpec::default()
    };
    backend::describe(&request(&spec, folder)).expect("described")
}

#[test]
fn guest_memory_is_there_when_a_vcpu_thread_ends_qemu() {
    if !qemu() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut plan = guest(folder.path(), true).plan();
    assert!(plan.inject(&["-device", "isa-debug-exit,iobase=0xf4,iosize=4"]));
    let mut memory = GuestMemory::default();
    let (exit, console) = boot(plan, Mode::Traced, &mut memory, None);
    assert_eq!(exit.status, Status::Exited(33), "{}", exit.stderr_tail);
    assert!(console.contains("ready"));
    if exit.ptrace != Ptrace::Used {
        println!("skipped: {:?}", exit.ptrace);
        return;
    }
    assert_eq!((memory.looks, &*memory.found), (1, &PATTERN[..]));
    let names: Vec<&str> = exit.moments.iter().map(|(_, n)| n.name()).collect();
    assert_eq!(names, ["vmm-exec", "vmm-entry", "vmm-main", "vmm-exiting", "vmm-exit"]);
    assert_eq!(exit.stops, 4, "QEMU's threads and signals cost no stop");
}

#[test]
fn guest_memory_is_there_at_the_ready_point() {
    if !qemu() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let plan = guest(folder.path(), false).plan();
    let mut memory = GuestMemory::default();
    let (exit, _) = boot(plan, Mode::Traced, &mut memory, Some("ready"));
    assert!(matches!(exit.end, End::Stopped { reason: Reason::ReadyPoint, .. }));
    assert_eq!(exit.status, Status::Exited(0), "QEMU ends in order on SIGTERM");
    if exit.ptrace == Ptrace::Used {
        assert_eq!((memory.looks, &*memory.found), (1, &PATTERN[..]));
        assert_eq!(exit.stops, 6, "exec, entry, main; the ready point; SIGTERM; exit");
    }
}

#[test]
fn version_and_a_wrong_option() {
    if !qemu() {
        return;
    }
    let plan = |words: &[&str]| LaunchPlan {
        argv: words.iter().map(OsString::from).collect(),
        ..LaunchPlan::default()
    };
    let (exit, text) =
        boot(plan(&["qemu-system-x86_64", "-version"]), Mode::Traced, &mut NoHooks, None);
    assert!(exit.status.success() && text.starts_with("QEMU emulator version"));
    let (exit, _) =
        boot(plan(&["qemu-system-x86_64", "-colour", "red"]), Mode::Plain, &mut NoHooks, None);
    assert_eq!(exit.status, Status::Exited(1));
    assert!(exit.stderr_tail.contains("-colour"), "{}", exit.stderr_tail);
}

#[test]
fn the_monitor_is_there_from_the_start() {
    if !qemu() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut plan = guest(folder.path(), false).plan();
    assert!(plan.inject(&["-S"]));
    let socket = qmp::add(&mut plan).expect("a socket").expect("injection is allowed");
    let talk = std::thread::spawn(move || {
        let mut qmp = Qmp::greet(socket, Duration::from_secs(60)).expect("greeted");
        let before = qmp.status().expect("a state");
        qmp.cont().expect("continued");
        qmp.wait_for("RESUME").expect("announced");
        let after = qmp.status().expect("a state");
        qmp.quit().expect("quits");
        (before, after)
    });
    let (exit, _) = boot(plan, Mode::Plain, &mut NoHooks, None);
    let states = talk.join().expect("answers");
    assert_eq!(states, ("prelaunch".to_owned(), "running".to_owned()));
    assert!(exit.status.success());
}

#[test]
fn a_monitor_at_a_path_is_waited_for() {
    if !qemu() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("qmp");
    let mut plan = guest(folder.path(), false).plan();
    assert!(plan.inject(&["-qmp", &format!("unix:{},server=on,wait=off", path.display())]));
    let talk = std::thread::spawn(move || {
        Qmp::connect(&path, Duration::from_secs(60)).expect("connected").quit().expect("quits");
    });
    let (exit, _) = boot(plan, Mode::Plain, &mut NoHooks, None);
    talk.join().expect("answers");
    assert!(exit.status.success());
}

/// Starts QEMU with this machine, its CPUs stopped: the command line is accepted.
fn accepted(machine: &Machine) {
    let mut plan = machine.plan();
    assert!(plan.inject(&["-S"]));
    let socket = qmp::add(&mut plan).expect("a socket").expect("injection is allowed");
    let talk = std::thread::spawn(move || {
        let mut qmp = Qmp::greet(socket, Duration::from_secs(60)).ok()?;
        qmp.quit().ok()
    });
    let (exit, _) = boot(plan, Mode::Plain, &mut NoHooks, None);
    let answered = talk.join().expect("joined").is_some();
    assert!(answered, "{:?}: {}", machine.argv_text(), exit.stderr_tail);
}

#[test]
fn every_option_is_a_command_line_that_qemu_accepts() {
    if !qemu() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("root, with a comma.img");
    std::fs::write(&image, vec![0; 4 << 20]).expect("written");
    let base = MachineSpec { accel: Some(Accel::Tcg.into()), ..MachineSpec::default() };
    let some = |s: &str| Some(s.to_owned());
    let specs = [
        base.clone(),
        MachineSpec { machine: some("pc"), firmware: some("qboot"), ..base.clone() },
        MachineSpec { machine: some("microvm"), root: some("virtio-blk"), ..base.clone() },
        MachineSpec { machine: some("microvm"), firmware: some("seabios"), ..base.clone() },
        MachineSpec { pcie_root_ports: Some(30), smp: Some(4), ..base.clone() },
        MachineSpec { root: some("dax"), memory_mib: Some(256), ..base.clone() },
        MachineSpec { root: some("virtio-blk"), pcie_root_ports: Some(4), ..base.clone() },
        MachineSpec { accel: Some(Accel::Icount.into()), ..base.clone() },
        MachineSpec { machine: some("pvh"), init: some("udev"), ..base.clone() },
    ];
    for spec in specs {
        let request = Request { root_image: Some(&image), ..request(&spec, folder.path()) };
        let machine = backend::describe(&request).expect("described");
        assert!(machine.chosen.iter().all(|c| !c.what.is_empty() && !c.note.is_empty()));
        assert!(machine.provenance.contains_key("firmware"));
        accepted(&machine);
    }
}

#[test]
fn mistakes_are_answered_with_what_is_valid() {
    if !qemu() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let base = MachineSpec { accel: Some(Accel::Tcg.into()), ..MachineSpec::default() };
    let some = |s: &str| Some(s.to_owned());
    let error = |spec: MachineSpec| -> MachineError {
        backend::describe(&request(&spec, folder.path())).expect_err("a mistake")
    };
    let says = |spec: MachineSpec, words: &str| {
        let message = error(spec).to_string();
        assert!(message.contains(words), "{message}");
    };
    says(MachineSpec { machine: some("q36"), ..base.clone() }, "q35, pc, microvm or pvh");
    says(MachineSpec { firmware: some("ovmf"), ..base.clone() }, "seabios, qboot or");
    let program = launch::find_program("qemu-system-x86_64".as_ref()).expect("QEMU");
    let known = vmeter_machine::capabilities::of(&program, folder.path()).expect("asked");
    if known.capabilities.version < (8, 1, 0) {
        says(
            MachineSpec { accel: Some(Accel::Icount.into()), smp: Some(2), ..base.clone() },
            "use --smp 1",
        );
    }
    says(MachineSpec { root: some("nfs"), ..base.clone() }, "initramfs, dax, nvdimm or virtio-blk");
    says(MachineSpec { root: some("dax"), ..base.clone() }, "need an image");
    says(MachineSpec { init: some("systemd"), ..base.clone() }, "minimal or udev");
    says(MachineSpec { smp: Some(0), ..base.clone() }, "1 and more");
    says(MachineSpec { memory_mib: Some(1), ..base.clone() }, "16 and more");
    says(MachineSpec { pcie_root_ports: Some(31), ..base.clone() }, "0 to 30");
    let pc = MachineSpec { machine: some("pc"), pcie_root_ports: Some(1), ..base.clone() };
    says(pc, "no PCIe root bus");
    let none = MachineSpec { kernel: Some("/nonexistent/vmlinuz".into()), ..base.clone() };
    says(none, "/nonexistent/vmlinuz");
    says(MachineSpec { vmm: some("xen"), ..base.clone() }, "mock or the path of one");
    says(MachineSpec { vmm: some("/bin/true"), ..base.clone() }, "command line after --");
}

#[test]
fn a_kernel_boots_until_it_misses_its_root() {
    let Some(kernel) = std::env::var_os("VMETER_TEST_KERNEL").map(PathBuf::from) else {
        println!("skipped: VMETER_TEST_KERNEL names no kernel");
        return;
    };
    if !qemu() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    for machine in ["q35", "microvm"] {
        let spec = MachineSpec {
            accel: Some(Accel::Tcg.into()),
            machine: Some(machine.into()),
            firmware: Some("qboot".into()),
            append: vec!["cryptomgr.notests".into()],
            kernel: Some(kernel.clone()),
            ..MachineSpec::default()
        };
        let described = backend::describe(&request(&spec, folder.path())).expect("described");
        let (exit, console) = boot(described.plan(), Mode::Traced, &mut NoHooks, None);
        assert!(console.contains("Kernel panic"), "{machine}: {console} {}", exit.stderr_tail);
        assert!(exit.status.success(), "{machine}: a panic resets, and -no-reboot exits");
    }
}

#[test]
fn output_is_bounded_in_time() {
    let argv = ["sleep", "1000"].map(OsString::from).to_vec();
    let (exit, _) = vmeter_machine::output::output(argv, Duration::from_millis(50)).expect("ran");
    assert!(matches!(exit.end, End::Stopped { reason: Reason::TimedOut, .. }));
}
