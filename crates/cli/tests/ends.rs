//! Ways for a guest to end badly: each is named in the headline, is exit status 1, and is
//! never "faster" than a guest that boots.
//!
//! Most guests here are a few instructions that SeaBIOS is told to start (a multiboot image),
//! so that each is over in half a second; those that need a kernel boot the cached one.
//! `VMETER_LONG=1` has the ones that wait for a timeout or take several boots.

mod common;
#[path = "common/repository.rs"]
mod repository;

use common::{is_long, text, Lab, Ran};
use repository::repository;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where an image is loaded, and where its code begins: after the multiboot header.
const BASE: u32 = 0x10_0000;
const CODE: u32 = BASE + 12;

/// A 32-bit ELF file that QEMU's multiboot loader starts in protected mode.
fn image(code: &[u8]) -> Vec<u8> {
    const OFFSET: u32 = 0x1000;
    const MAGIC: u32 = 0x1bad_b002;
    let mut body: Vec<u8> = [MAGIC, 0, MAGIC.wrapping_neg()].map(u32::to_le_bytes).concat();
    body.extend(code);
    let size = body.len() as u32;
    let mut file = b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x03\0".to_vec();
    // Version, entry, program headers, section headers, flags.
    file.extend([1, CODE, 52, 0, 0].map(u32::to_le_bytes).concat());
    file.extend([52u16, 32, 1, 40, 0, 0].map(u16::to_le_bytes).concat());
    file.extend([1, OFFSET, BASE, BASE, size, size, 5, 0x1000].map(u32::to_le_bytes).concat());
    file.resize(OFFSET as usize, 0);
    file.extend(body);
    file
}

/// `out` of a byte.
fn outb(port: u16, value: u8) -> Vec<u8> {
    let [low, high] = port.to_le_bytes();
    vec![0x66, 0xba, low, high, 0xb0, value, 0xee]
}

/// `out` of two bytes.
fn outw(port: u16, value: u16) -> Vec<u8> {
    let ([a, b], [c, d]) = (port.to_le_bytes(), value.to_le_bytes());
    vec![0x66, 0xba, a, b, 0x66, 0xb8, c, d, 0x66, 0xef]
}

/// Waits for ever.
const HANG: [u8; 4] = [0xfa, 0xf4, 0xeb, 0xfd];

/// ACPI's S5 on the boards that SeaBIOS sets up (PM1a control at 0x604).
fn power_off() -> Vec<u8> {
    [outw(0x604, 0x2000), HANG.to_vec()].concat()
}

/// An empty table of interrupts, and one that needs it.
fn triple_fault() -> Vec<u8> {
    let table = (CODE + 8).to_le_bytes();
    [&[0x0f, 0x01, 0x1d], &table[..], &[0xcc], &[0; 8]].concat()
}

/// Text on the first serial port.
fn say(text: &str) -> Vec<u8> {
    text.bytes().flat_map(|byte| outb(0x3f8, byte)).collect()
}

/// A lab with one image a guest, or none where QEMU is missing.
struct Guests {
    lab: Lab,
}

impl Guests {
    fn new() -> Option<Self> {
        if Command::new("qemu-system-x86_64").arg("-version").output().is_err() {
            eprintln!("skipped: needs QEMU");
            return None;
        }
        Some(Guests { lab: Lab::new() })
    }

    fn image(&self, name: &str, code: &[u8]) -> PathBuf {
        let path = self.lab.path(name);
        std::fs::write(&path, image(code)).expect("scratch space");
        path
    }

    /// One boot of an image by vmeter's own command line. The module is none that it needs: it
    /// keeps vmeter from making an initial RAM disk.
    fn boot(&self, kernel: &Path, more: &[&str]) -> Ran {
        let kernel = text(kernel);
        let mut all = vec!["boot", "--accel", "tcg", "--kernel", kernel, "--initrd", kernel];
        all.extend(ONCE);
        all.extend(more);
        self.lab.run(&all)
    }

    /// One boot of QEMU's own command line.
    fn own(&self, options: &[&str], qemu: &[&str]) -> Ran {
        let mut all = vec!["boot"];
        all.extend(ONCE);
        all.extend(options);
        all.extend(["--", "qemu-system-x86_64", "-nodefaults", "-display", "none", "-no-reboot"]);
        all.extend(qemu);
        self.lab.run(&all)
    }
}

const ONCE: [&str; 4] = ["--warmup", "0", "--runs", "1"];

/// The answer of a report: its first lines, below its title if it has one.
fn headline(ran: &Ran) -> String {
    let lines = ran.stdout.lines().skip_while(|line| line.starts_with("vmeter "));
    lines.take_while(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

/// A run that ended badly: exit status 1, no time of a boot, and its cause in the headline.
fn assert_bad(name: &str, ran: &Ran, said: &str) {
    let headline = headline(ran);
    println!("{name:<40} rc {} {headline}", ran.status);
    assert_eq!(ran.status, 1, "{name}: {}\n{}", ran.stderr, ran.stdout);
    assert!(headline.starts_with("No run reached its end"), "{name}: {headline}");
    assert!(headline.contains(said), "{name}: {headline}\n{}", ran.stderr);
    assert!(!ran.stdout.contains("from the VMM's exec to power-off"), "{name}: {}", ran.stdout);
}

#[test]
fn a_guest_that_ends_badly_is_named() {
    let Some(guests) = Guests::new() else { return };
    let healthy = guests.image("off.elf", &power_off());
    let ran = guests.boot(&healthy, &[]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    assert!(headline(&ran).contains("to power-off"), "{}", ran.stdout);

    let panic = "Kernel panic - not syncing: VFS: Unable to mount root fs\n";
    let end = "---[ end Kernel panic - not syncing: VFS ]---\n";
    let crash = "a triple fault reset its machine";
    let reset = "reset without a word of its kernel";
    let killed = "Out of memory: Killed process 73 (rc) total-vm:9kB, anon-rss:8kB\n";
    let table: [(&str, Vec<u8>, &str); 8] = [
        ("triple fault", triple_fault(), crash),
        (
            "reset by the keyboard controller",
            [&[0xb0, 0xfe, 0xe6, 0x64][..], &HANG].concat(),
            reset,
        ),
        ("reset by port 0xcf9", [outb(0xcf9, 6), HANG.to_vec()].concat(), reset),
        ("reset by port 0x92", [outb(0x92, 1), HANG.to_vec()].concat(), reset),
        (
            "panic on the console, and a hang",
            [say(panic), say(end), HANG.to_vec()].concat(),
            panic.trim(),
        ),
        (
            "panic on the console, and a reset",
            [say(panic), outb(0xcf9, 6), HANG.to_vec()].concat(),
            panic.trim(),
        ),
        (
            "restart in order, as reboot -f does",
            [say("[ 1.0] reboot: Restarting system\n"), outb(0xcf9, 6), HANG.to_vec()].concat(),
            "restarted its machine instead of powering it off",
        ),
        (
            "a program killed for lack of memory, and a power-off",
            [say(killed), power_off()].concat(),
            "ran out of memory, and its kernel killed a program (the console: Out of memory: \
             Killed process 73 (rc))",
        ),
    ];
    for (name, code, said) in &table {
        let kernel = guests.image("guest.elf", code);
        assert_bad(name, &guests.boot(&kernel, &[]), said);
    }
    let bad = guests.image("crash.elf", &triple_fault());
    let unwatched = guests.boot(&bad, &["--watch", "none"]);
    assert_bad("triple fault, nobody watching", &unwatched, crash);
    let never_ready = guests.boot(&healthy, &["--until", "line:login"]);
    assert_bad("power-off before the ready point", &never_ready, "powered its machine off");
}

#[test]
fn what_its_vmm_says_of_a_guest_is_named() {
    let Some(guests) = Guests::new() else { return };
    let dies = guests.image("debug.elf", &[outb(0xf4, 0x10), HANG.to_vec()].concat());
    let exit = ["-device", "isa-debug-exit,iobase=0xf4,iosize=4", "-kernel", text(&dies)];
    assert_bad("isa-debug-exit", &guests.own(&[], &exit), "0x10 to isa-debug-exit");
    let tells = guests.image("pvpanic.elf", &[outb(0x505, 1), HANG.to_vec()].concat());
    let pvpanic = ["-device", "pvpanic", "-kernel", text(&tells)];
    assert_bad("pvpanic", &guests.own(&[], &pvpanic), "the guest panicked");
    let crash = guests.image("crash.elf", &triple_fault());
    let own = guests.own(&[], &["-kernel", text(&crash)]);
    assert_bad("triple fault, own command line", &own, "triple fault");
    let device = guests.own(&[], &["-device", "no-such-device"]);
    assert_bad("a device that the VMM lacks", &device, "exit status 1");
    let script = guests.lab.script("vmm", "#!/bin/sh\nexit 3\n");
    let vmm = |command: &[&str]| {
        let mut all = vec!["boot"];
        all.extend(ONCE);
        all.push("--");
        all.extend(command);
        guests.lab.run(&all)
    };
    assert_bad("the VMM exits with 3", &vmm(&[text(&script)]), "exit status 3");
    let killed = vmm(&["sh", "-c", "kill -9 $$"]);
    assert_bad("the VMM is killed", &killed, "killed by signal 9 (SIGKILL)");
    let hangs = guests.image("hang.elf", &HANG);
    let told = guests
        .lab
        .script("told", "#!/bin/sh\n(sleep 1; kill -TERM $$) &\nexec qemu-system-x86_64 \"$@\"\n");
    let ended = vmm(&[text(&told), "-nodefaults", "-display", "none", "-kernel", text(&hangs)]);
    assert_bad("the VMM is told to end", &ended, "not by its guest (QMP: host-signal)");
}

#[test]
fn a_guest_that_hangs_is_named() {
    let Some(guests) = Guests::new() else { return };
    let hangs = guests.image("hang.elf", &HANG);
    let ran = guests.boot(&hangs, &["--timeout", "3"]);
    assert_bad("a hang", &ran, "timed out; the last thing seen");
    if !is_long() {
        return;
    }
    let crash = guests.image("crash.elf", &triple_fault());
    let again = ["boot", "--warmup", "0", "--runs", "1", "--timeout", "4", "--"];
    let qemu = ["qemu-system-x86_64", "-nodefaults", "-display", "none", "-kernel", text(&crash)];
    let ran = guests.lab.run(&[&again[..], &qemu].concat());
    assert_bad("triple faults without -no-reboot", &ran, "times, by triple faults");
    let stops = ["sh", "-c", "kill -STOP $$"];
    let ran = guests.lab.run(&[&again[..], &stops].concat());
    assert_bad("the VMM is stopped", &ran, "the VMM itself was stopped");
}

#[test]
fn a_crash_is_never_faster() {
    let Some(guests) = Guests::new() else { return };
    let healthy = guests.image("off.elf", &power_off());
    let crash = guests.image("crash.elf", &triple_fault());
    let (off, tf) = (text(&healthy), text(&crash));
    let machine = ["--accel", "tcg", "--kernel", off, "--initrd", off];
    let vs = format!("--kernel {tf}");
    let ready = "--until userspace --timeout 5";
    let few = ["bench", "--warmup", "0", "--runs", "4", "--vs", &vs, "--vs", ready];
    let ran = guests.lab.run(&[&few[..], &machine].concat());
    let said = headline(&ran);
    println!("bench: rc {} {said}", ran.status);
    assert_eq!(ran.status, 1, "{}", ran.stderr);
    assert!(!ran.stdout.contains("faster"), "{}", ran.stdout);
    assert!(
        said.contains("is not compared with baseline") && said.contains("triple fault"),
        "{said}"
    );

    let (base, bad) = (guests.lab.path("base"), guests.lab.path("bad"));
    let four = ["--warmup", "0", "--runs", "4"];
    let boot = |kernel: &str, more: &[&str]| {
        let machine = ["boot", "--accel", "tcg", "--kernel", kernel, "--initrd", kernel];
        guests.lab.run(&[&machine[..], &four, more].concat())
    };
    assert_eq!(boot(off, &["--save", text(&base)]).status, 0);
    let gate = ["--baseline", text(&base), "--fail-if-slower", "3", "--save", text(&bad)];
    let ran = boot(tf, &gate);
    assert_eq!(ran.status, 1, "{}\n{}", ran.stdout, ran.stderr);
    assert!(!ran.stdout.contains("faster"), "{}", ran.stdout);
    let both = format!("{}{}", ran.stdout, ran.stderr);
    assert!(both.contains("not compared with"), "{both}");
    // The other way round: a gate whose baseline is a crash proves nothing.
    let ran = boot(off, &["--baseline", text(&bad), "--fail-if-slower", "3"]);
    assert_eq!(ran.status, 2, "{}\n{}", ran.stdout, ran.stderr);
    assert!(ran.stderr.contains("none of its runs reached its end"), "{}", ran.stderr);
    let ran = guests.lab.run(&["diff", text(&base), text(&bad), "--fail-if-slower", "3"]);
    assert_eq!(ran.status, 2, "{}", ran.stdout);
    assert!(ran.stderr.contains("did not end alike"), "{}", ran.stderr);
    let ran = guests.lab.run(&["diff", text(&bad), text(&bad), "--fail-if-slower", "3"]);
    assert_eq!(ran.status, 1, "{}", ran.stdout);

    let list = format!("kernel={off},{tf}");
    let sweep = ["sweep", "-L", &list, "--accel", "tcg", "--initrd", off, "--watch", "none"];
    let ran = guests.lab.run(&[&sweep[..], &four].concat());
    assert_eq!(ran.status, 1, "{}", ran.stderr);
    assert!(!ran.stdout.contains("faster"), "{}", ran.stdout);
}

/// With --no-inject, nobody watching, and a guest that says nothing, a crash and a power-off
/// are alike: that is said, and neither is called faster.
#[test]
fn an_end_that_nothing_tells_is_called_unknown() {
    let Some(guests) = Guests::new() else { return };
    let healthy = guests.image("off.elf", &power_off());
    let crash = guests.image("crash.elf", &triple_fault());
    let (good, bad) = (guests.lab.path("good"), guests.lab.path("bad"));
    let boot = |kernel: &Path, save: &Path, more: &[&str]| {
        let blind = ["--watch", "none", "--no-inject", "--save", text(save)];
        guests.own(&[&blind[..], more].concat(), &["-kernel", text(kernel)])
    };
    let unknown = "how the guest ended is not known";
    let ran = boot(&healthy, &good, &[]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    assert!(headline(&ran).contains(unknown), "{}", ran.stdout);
    let ran = boot(&crash, &bad, &["--baseline", text(&good), "--fail-if-slower", "3"]);
    assert_eq!(ran.status, 1, "{}", ran.stderr);
    let both = format!("{}{}", ran.stdout, ran.stderr);
    assert!(headline(&ran).contains(unknown) && both.contains("not compared with"), "{both}");
    assert!(!both.contains("faster"), "{both}");
    for (gate, status) in [(&[][..], 0), (&["--fail-if-slower", "3"][..], 1)] {
        let ran = guests.lab.run(&[&["diff", text(&good), text(&bad)], gate].concat());
        assert_eq!(ran.status, status, "{}", ran.stderr);
        assert!(headline(&ran).contains("ended is not known"), "{}", ran.stdout);
        assert!(!ran.stdout.contains("faster"), "{}", ran.stdout);
    }
    let line = format!(
        "qemu-system-x86_64 -nodefaults -display none -no-reboot -kernel {}; exit 0",
        text(&crash)
    );
    let ran = guests.lab.run(&["bench", "--warmup", "0", "--runs", "2", "--", "sh", "-c", &line]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let said = headline(&ran);
    assert!(said.contains("guest ended is not known") && !said.contains("boots in"), "{said}");

    let (fault, reset) = (guests.lab.path("fault"), guests.lab.path("reset"));
    let resets = guests.image("reset.elf", &[outb(0xcf9, 6), HANG.to_vec()].concat());
    assert_eq!(guests.boot(&crash, &["--save", text(&fault)]).status, 1);
    assert_eq!(guests.boot(&resets, &["--save", text(&reset)]).status, 1);
    let ran = guests.lab.run(&["diff", text(&fault), text(&reset)]);
    assert_eq!(ran.status, 2, "{}", ran.stdout);
    assert!(ran.stderr.contains("did not end alike"), "{}", ran.stderr);
    let failing = ["bench", "--warmup", "0", "--runs", "1", "--", "qemu-system-x86_64"];
    let quiet = ["-nodefaults", "-display", "none", "-no-reboot", "-kernel", text(&crash)];
    let ran = guests.lab.run(&[&failing[..], &quiet].concat());
    assert_eq!(ran.status, 1, "{}", ran.stderr);
    assert!(!ran.stdout.contains("mean ± sd"), "no table of zeros: {}", ran.stdout);
}

/// A kernel file that ends too soon is no fast boot, whatever its VMM does not say.
#[test]
fn a_kernel_cut_short_is_named_where_nothing_else_is_known() {
    let Some((_, kernel)) = common::kernel() else { return };
    let Some(guests) = Guests::new() else { return };
    let half = guests.lab.path("half");
    let bytes = std::fs::read(&kernel).expect("the cached kernel");
    std::fs::write(&half, &bytes[..bytes.len() / 2]).expect("written");
    let blind = ["--watch", "none", "--no-inject"];
    let ran = guests.own(&blind, &["-m", "256", "-kernel", text(&half)]);
    assert_bad("half a bzImage, unseen", &ran, "kernel file is cut short");
}

/// A commit whose guest crashes, in a range of such that boot, and at the end of one.
#[test]
fn a_commit_that_crashes_is_never_faster() {
    let Some(guests) = Guests::new() else { return };
    guests.image("off", &power_off());
    guests.image("crash", &triple_fault());
    let of = |i| vec![("which", if i == 2 { "crash" } else { "off" }.to_owned())];
    let (repo, range) = repository(&guests.lab, 4, of);
    let first = range.split("..").next().expect("a commit");
    let build = format!("cp {}/$(cat which) product", text(guests.lab.folder.path()));
    let until = format!("{first}..HEAD~1");
    for (commits, bisect) in [(&range, false), (&until, false), (&until, true)] {
        if bisect && !is_long() {
            continue;
        }
        let mut all = vec!["range", "--repo", text(&repo), commits, "--build", &build];
        all.extend(["--accel", "tcg", "--kernel", "{worktree}/product"]);
        all.extend(["--initrd", "{worktree}/product", "--watch", "none"]);
        all.extend(["--warmup", "0", "--runs", "3", "--fail-if-slower", "3"]);
        all.extend(bisect.then_some("--bisect"));
        let ran = guests.lab.run(&all);
        println!("{commits} {bisect}: rc {} {}", ran.status, headline(&ran));
        let both = format!("{}{}", ran.stdout, ran.stderr);
        assert_eq!(ran.status, 1, "{both}");
        assert!(headline(&ran).contains("a triple fault"), "{both}");
        assert!(!both.contains("faster"), "{both}");
        assert!(!headline(&ran).contains("(change 2): "), "of what was measured: {both}");
    }
}

#[test]
fn ends_are_saved_and_exported() {
    let Some(guests) = Guests::new() else { return };
    let crash = guests.image("crash.elf", &triple_fault());
    let save = guests.lab.path("saved");
    let ran = guests.boot(&crash, &["--save", text(&save), "--export-json", "-"]);
    let result: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let run = &result["runs"][0];
    assert_eq!(run["outcome"], "unexpected-end");
    assert_eq!(run["end"]["cause"], "triple-fault");
    assert!(result["total"].is_null(), "{}", result["total"]);
    let file = std::fs::read(save.join("runs/0000/run.json")).expect("saved");
    let saved: Value = serde_json::from_slice(&file).expect("JSON");
    assert_eq!(saved["end"]["cause"], "triple-fault");
    // An end of a later vmeter is none that is known, and the run is read all the same.
    let later =
        String::from_utf8(file).expect("text").replace("\"triple-fault\"", "\"spontaneous\"");
    std::fs::write(save.join("runs/0000/run.json"), later).expect("written");
    let shown = guests.lab.run(&["show", text(&save)]);
    assert!(headline(&shown).contains("triple fault"), "{}", shown.stdout);
}

/// What a kill leaves of a run has no record that names its files.
#[test]
fn recordings_of_a_run_that_was_cut_are_known_by_name() {
    let Some(guests) = Guests::new() else { return };
    let crash = guests.image("crash.elf", &triple_fault());
    let save = guests.lab.path("saved");
    let ran = guests.boot(&crash, &["--watch", "full", "--save", text(&save)]);
    assert_eq!(ran.status, 1, "{}", ran.stderr);
    for run in std::fs::read_dir(save.join("runs")).expect("runs").flatten() {
        std::fs::remove_file(run.path().join("run.json")).expect("its record");
        std::fs::write(run.path().join("vmm-stderr.txt"), "long").expect("written");
        std::fs::rename(run.path(), run.path().with_extension("partial")).expect("renamed");
    }
    let removed = guests.lab.run(&["runs", "rm", text(&save)]);
    assert!(!save.exists(), "{}{}", removed.stdout, removed.stderr);
}

#[test]
fn a_program_that_prints_a_panic_is_not_believed() {
    let Some(guests) = Guests::new() else { return };
    let code = [say("Kernel panic - not syncing: spoofed\n"), power_off()].concat();
    let ran = guests.boot(&guests.image("spoof.elf", &code), &[]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let both = format!("{}{}", ran.stdout, ran.stderr);
    assert!(both.contains("reads like a panic of the kernel"), "{both}");
    assert!(!ran.stdout.contains("kernel:panic"), "{}", ran.stdout);
}

/// Kernels that are none any more, and guests of Linux that end badly.
#[test]
fn a_linux_that_ends_badly_is_named() {
    let Some((_, kernel)) = common::kernel() else { return };
    let Some(guests) = Guests::new() else { return };
    let bytes = std::fs::read(&kernel).expect("the cached kernel");
    let half = guests.lab.path("half");
    std::fs::write(&half, &bytes[..bytes.len() / 2]).expect("written");
    let crash = "the guest crashed: a triple fault";
    let ran = guests.boot(&half, &[]);
    assert_bad("half a bzImage", &ran, crash);
    if !is_long() {
        return;
    }
    // The protected-mode part begins after the setup sectors (Documentation/arch/x86/boot.rst).
    let setup = 512 * (usize::from(bytes[0x1f1]) + 1);
    let mut zeroed = bytes.clone();
    zeroed[setup..].fill(0);
    let broken = guests.lab.path("broken");
    std::fs::write(&broken, &zeroed).expect("written");
    assert_bad("a bzImage with a zero payload", &guests.boot(&broken, &["--timeout", "20"]), "");
    let mut shifted = bytes.clone();
    shifted[0x1f1] = 255;
    std::fs::write(&broken, &shifted).expect("written");
    assert_bad("setup_sects=255", &guests.boot(&broken, &["--timeout", "20"]), "");
    let kernel = text(&kernel);
    let junk = guests.lab.path("junk");
    std::fs::write(&junk, [7; 4096]).expect("written");
    let linux = |more: &[&str]| {
        let machine = ["boot", "--accel", "tcg", "--kernel", kernel];
        guests.lab.run(&[&machine[..], &ONCE, more].concat())
    };
    let panic = "the guest panicked";
    assert_bad("a wrong initrd", &linux(&["--initrd", text(&junk)]), panic);
    assert_bad("init that is not there", &linux(&["--append", "rdinit=/none"]), panic);
    assert_bad("init that exits", &linux(&["--append", "rdinit=/vmeter-none init=/none"]), panic);
    let quiet = ["-m", "512", "-M", "q35", "-kernel", kernel, "-append", "panic=-1"];
    assert_bad("no initrd, no console, panic=-1", &guests.own(&[], &quiet), panic);
    let little = linux(&["--memory", "64"]);
    assert_bad("too little memory", &little, "");
    let ran = linux(&["--append", "vmeter.exit=poweroff reboot=k"]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    programs(&guests, &linux);
}

/// What programs of a guest do to it.
fn programs(guests: &Guests, linux: &dyn Fn(&[&str]) -> Ran) {
    let busybox = Path::new("/bin/busybox");
    let is_static = Command::new("ldd").arg(busybox).output().is_ok_and(|o| !o.status.success());
    if !busybox.exists() || !is_static {
        return eprintln!("skipped: needs busybox-static");
    }
    let eats = "x=0123456789abcdef; while :; do x=$x$x; done";
    let of = |name: &str, line: &str| {
        let file = guests.lab.script(name, &format!("#!/bin/sh\n{line}\n"));
        format!("/{name}={}", text(&file))
    };
    let files = [
        ["/bin/sh", "/bin/reboot", "/bin/mount"].map(|p| format!("{p}=/bin/busybox")).to_vec(),
        vec![of("eat", eats), of("restart", "/bin/reboot -f")],
        vec![of("sysrq", "/bin/mount -t proc p /proc; echo b >/proc/sysrq-trigger")],
        vec![of("die", "/bin/mount -t proc p /proc; echo c >/proc/sysrq-trigger")],
    ];
    let initrd = guests.lab.path("programs.cpio");
    let mut all = vec!["appliance", "build", "-o", text(&initrd)];
    all.extend(files.iter().flatten().flat_map(|file| ["--file", file]));
    assert_eq!(guests.lab.run(&all).status, 0);
    for (name, words, said) in [
        (
            "a program eats the memory",
            "vmeter.run=/eat",
            "kernel killed a program (the kernel's log",
        ),
        ("init eats the memory", "rdinit=/eat", "the guest panicked, out of memory"),
        (
            "panic_on_oom",
            "vmeter.run=/eat sysctl.vm.panic_on_oom=1",
            "the guest panicked, out of memory",
        ),
        ("reboot -f", "vmeter.run=/restart", "reboot: Restarting system"),
        ("reboot -f of init", "rdinit=/restart quiet", "reboot: Restarting system"),
        ("sysrq b", "vmeter.run=/sysrq", "sysrq: Resetting"),
        ("sysrq c", "vmeter.run=/die", "sysrq triggered crash"),
    ] {
        let words = ["--memory", "160", "--initrd", text(&initrd), "--append", words];
        assert_bad(name, &linux(&words), said);
    }
}
