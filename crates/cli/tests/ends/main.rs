//! Ways for a guest to end badly: each is named in the headline, is exit status 1, and is
//! never "faster" than a guest that boots.
//!
//! Most guests here are a few instructions that SeaBIOS is told to start (a multiboot image),
//! so that each is over in half a second; those that need a kernel boot the cached one.
//! `VMETER_LONG=1` has the ones that wait for a timeout or take several boots.

use crate::common;
mod guests;
mod linux;
use crate::repository;
mod unknown;

use common::{is_long, text};
use guests::{assert_bad, headline, outb, power_off, say, triple_fault, Guests, HANG, ONCE};
use repository::repository;
use serde_json::Value;

#[test]
fn a_guest_that_ends_badly_is_named() {
    let Some(guests) = Guests::new() else { return };
    let healthy = guests.image("off.elf", &power_off());
    let ran = guests.boot(&healthy, &[]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    assert!(headline(&ran).contains("exit after power-off"), "{}", ran.stdout);

    let panic = "Kernel panic - not syncing: VFS: Unable to mount root fs\n";
    let end = "---[ end Kernel panic - not syncing: VFS ]---\n";
    let crash = "a triple fault reset its machine";
    let reset = "reset, and its kernel logged no reason";
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
    let restart =
        [say("[ 1.0] reboot: Restarting system\n"), outb(0xcf9, 6), HANG.to_vec()].concat();
    let restarts = guests.image("restart.elf", &restart);
    let ends = guests.own(&[], &["-serial", "stdio", "-kernel", text(&restarts)]);
    assert_eq!(ends.status, 0, "its user wants it to end there: {}", ends.stderr);
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
    assert_bad("the VMM is told to end", &ended, "from outside its guest (QMP: host-signal)");
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
    let six = ["--warmup", "0", "--runs", "6"];
    let boot = |kernel: &str, more: &[&str]| {
        let machine = ["boot", "--accel", "tcg", "--kernel", kernel, "--initrd", kernel];
        guests.lab.run(&[&machine[..], &six, more].concat())
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
    assert!(ran.stderr.contains("no run of this saved session reached its end"), "{}", ran.stderr);
    let ran = guests.lab.run(&["diff", text(&base), text(&bad), "--fail-if-slower", "3"]);
    assert_eq!(ran.status, 2, "{}", ran.stdout);
    assert!(ran.stderr.contains("did not end in the same way"), "{}", ran.stderr);
    let ran = guests.lab.run(&["diff", text(&bad), text(&bad), "--fail-if-slower", "3"]);
    assert_eq!(ran.status, 1, "{}", ran.stdout);

    let list = format!("kernel={off},{tf}");
    let sweep = ["sweep", "-L", &list, "--accel", "tcg", "--initrd", off, "--watch", "none"];
    let ran = guests.lab.run(&[&sweep[..], &six].concat());
    assert_eq!(ran.status, 1, "{}", ran.stderr);
    assert!(!ran.stdout.contains("faster"), "{}", ran.stdout);
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
