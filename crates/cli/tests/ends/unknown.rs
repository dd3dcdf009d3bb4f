//! Guests of whose end nothing tells.

use crate::common::text;
use crate::ends::guests::{headline, outb, power_off, triple_fault, Guests, HANG};
use crate::repository::repository;
use std::path::Path;

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
    let unknown = "does not know how the guest ended";
    let ran = boot(&healthy, &good, &[]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    assert!(headline(&ran).contains(unknown), "{}", ran.stdout);
    let gate = ["--baseline", text(&good), "--fail-if-slower", "3", "--warmup", "0", "--runs", "6"];
    let ran = boot(&crash, &bad, &gate);
    assert_eq!(ran.status, 1, "{}", ran.stderr);
    let both = format!("{}{}", ran.stdout, ran.stderr);
    assert!(headline(&ran).contains(unknown) && both.contains("not compared with"), "{both}");
    assert!(!both.contains("faster"), "{both}");
    for (gate, status) in [(&[][..], 0), (&["--fail-if-slower", "3"][..], 1)] {
        let ran = guests.lab.run(&[&["diff", text(&good), text(&bad)], gate].concat());
        assert_eq!(ran.status, status, "{}", ran.stderr);
        assert!(headline(&ran).contains("does not know how the guest"), "{}", ran.stdout);
        assert!(!ran.stdout.contains("faster"), "{}", ran.stdout);
    }
    let ran = guests.lab.run(&["runs", "trend", text(&good), text(&bad)]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    assert!(
        ran.stdout.contains("vmeter left out 2 sessions, because it does not know how"),
        "{}",
        ran.stdout
    );
    let line = format!(
        "qemu-system-x86_64 -nodefaults -display none -no-reboot -kernel {}; exit 0",
        text(&crash)
    );
    let bench = |more: &[&str]| {
        let words = ["bench", "--warmup", "0", "--runs", "2"];
        guests.lab.run(&[&words[..], more, &["--", "sh", "-c", &line]].concat())
    };
    assert_eq!(bench(&[]).status, 1, "what is added to a wrapper's VMM tells of the crash");
    let ran = bench(&["--no-inject"]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let said = headline(&ran);
    assert!(said.contains("whether a guest ran in it") && !said.contains("boots in"), "{said}");

    let (fault, reset) = (guests.lab.path("fault"), guests.lab.path("reset"));
    let resets = guests.image("reset.elf", &[outb(0xcf9, 6), HANG.to_vec()].concat());
    assert_eq!(guests.boot(&crash, &["--save", text(&fault)]).status, 1);
    assert_eq!(guests.boot(&resets, &["--save", text(&reset)]).status, 1);
    let ran = guests.lab.run(&["diff", text(&fault), text(&reset)]);
    assert_eq!(ran.status, 2, "{}", ran.stdout);
    assert!(ran.stderr.contains("did not end in the same way"), "{}", ran.stderr);
    let failing = ["bench", "--warmup", "0", "--runs", "1", "--", "qemu-system-x86_64"];
    let quiet = ["-nodefaults", "-display", "none", "-no-reboot", "-kernel", text(&crash)];
    let ran = guests.lab.run(&[&failing[..], &quiet].concat());
    assert_eq!(ran.status, 1, "{}", ran.stderr);
    assert!(!ran.stdout.contains("mean ± sd"), "no table of zeros: {}", ran.stdout);
}

/// Nor are commits and points told apart by such times.
#[test]
fn ranges_and_sweeps_compare_no_unknown_ends() {
    let Some(guests) = Guests::new() else { return };
    guests.image("off", &power_off());
    guests.image("crash", &triple_fault());
    let of = |i| vec![("which", if i == 1 { "crash" } else { "off" }.to_owned())];
    let (repo, range) = repository(&guests.lab, 2, of);
    let build = format!("cp {}/$(cat which) product", text(guests.lab.folder.path()));
    let blind = ["--watch", "none", "--no-inject", "--warmup", "0", "--runs", "2"];
    let qemu = ["qemu-system-x86_64", "-nodefaults", "-display", "none", "-no-reboot", "-kernel"];
    let mut all = vec!["range", "--repo", text(&repo), &range, "--build", &build];
    all.extend(blind.iter().chain(&["--fail-if-slower", "3", "--"]));
    all.extend(qemu.iter().chain(&["{worktree}/product"]));
    let ran = guests.lab.run(&all);
    assert_eq!(ran.status, 1, "{}", ran.stderr);
    let said = headline(&ran);
    assert!(
        said.contains("nothing to compare")
            && said.contains("does not know how this commit's guest ended"),
        "{said}"
    );
    assert!(!said.contains("slower") && !said.contains("faster"), "{said}");

    let crash = guests.image("crash.elf", &triple_fault());
    let mut all = vec!["sweep", "-P", "memory=64..128:64"];
    all.extend(blind.iter().chain(&["--"]).chain(&qemu));
    all.extend([text(&crash), "-m", "{memory}"]);
    let ran = guests.lab.run(&all);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let said = headline(&ran);
    assert!(said.contains("At 2 of 2 points, vmeter does not know how the guests ended"), "{said}");
    assert!(!said.contains("costs"), "{said}");
}
