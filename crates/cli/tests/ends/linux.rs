//! Linux, whole and broken, and what its programs do to it.

use crate::common::{self, is_long, text, Ran};
use crate::ends::guests::{assert_bad, Guests, ONCE};
use std::path::Path;
use std::process::Command;

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
    assert_bad("half a bzImage, unseen", &ran, "kernel file is truncated");
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
