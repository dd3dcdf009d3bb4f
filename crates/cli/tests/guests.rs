//! The guests that people have, on their own consoles' word: no named span may hold a line
//! that was written in another stage of the boot (`common/stages.rs`).
//!
//! Recordings of such boots are in `fixtures/guests`, and are analysed anew in every run of
//! the tests. With `VMETER_LONG=1` the guests themselves are made (`scripts/guests.sh`) and
//! booted, each with and without `--no-inject`; that takes a quarter of an hour.

use crate::common;

use common::{amount, kernel, stages, text, Lab};
use serde_json::Value;
use std::path::{Path, PathBuf};
use vmeter_kernel_image::KernelImage;

/// Checks a session of one run: what its console contradicts. Says what is unattributed.
fn check(lab: &Lab, name: &str, session: &Path) -> Vec<String> {
    let exported = lab.path(&format!("{name}.json"));
    let ran = lab.run(&["show", text(session), "--export-json", text(&exported)]);
    assert_eq!(ran.status, 0, "{name}: {}", ran.stderr);
    let lines = ran.stdout.lines().count();
    let widest = ran.stdout.lines().map(|line| line.chars().count()).max();
    assert!(lines <= 24 && widest <= Some(80), "{name}: {lines} lines\n{}", ran.stdout);
    let shown: Value = serde_json::from_slice(&std::fs::read(&exported).expect("an export"))
        .expect("one JSON object");
    let run = &shown["runs"][0];
    let exec_ns = run["exec_monotonic_ns"].as_i64().expect("the exec");
    let console = stages::console(&session.join("runs/0000"), exec_ns);
    let quiet = is_quiet(session);
    let proofs = stages::stages(&console, quiet).len();
    assert!(proofs > 5, "{name}: the console proves nothing: {proofs} lines of {}", console.len());
    let unattributed = 1.0 - run["coverage"].as_f64().expect("a share") - shared(run);
    println!("{name}: {:.1} % unattributed", unattributed * 100.0);
    let most = if name.ends_with("no-inject") { 0.15 } else { 0.05 };
    let mut found = stages::contradictions(run, &console, quiet);
    found.extend(without_a_handle(&shown));
    if unattributed > most {
        found.push(format!("{unattributed} unattributed, and at most {most} should be"));
    }
    found.into_iter().map(|what| format!("{name}: {what}")).collect()
}

/// As the kernels of microVMs are built, without `CONFIG_FTRACE`: Debian's with the event of initcalls under
/// another name.
#[test]
fn a_kernel_that_cannot_trace_logs_its_initcalls_where_it_is_quiet() {
    if common::is_left_to_test_long() {
        return;
    }
    let Some((_, kernel)) = kernel() else { return };
    let lab = Lab::new();
    let mut elf = KernelImage::open(&kernel).expect("a kernel").vmlinux().to_vec();
    let name = b"initcall_finish\0";
    let is_name = |at: &usize| elf[*at..].starts_with(name);
    let places: Vec<usize> = (0..elf.len()).filter(is_name).collect();
    for at in places {
        elf[at + name.len() - 2] = b'_';
    }
    let vmlinux = lab.path("vmlinux");
    std::fs::write(&vmlinux, elf).expect("scratch space");
    let boot = |words: &str| {
        let line = format!("console=ttyS0 panic=-1 no_timer_check cryptomgr.notests {words}");
        let once = ["boot", "--warmup", "0", "--runs", "1", "--until", "line:Kernel panic", "--"];
        let vmm =
            "qemu-system-x86_64 -accel tcg -m 256 -nodefaults -nographic -serial stdio -no-reboot";
        let given = ["-kernel", text(&vmlinux), "-append", &line];
        let vmm: Vec<&str> = vmm.split(' ').chain(given).collect();
        lab.json(&[&once[..], &vmm].concat())["runs"][0].clone()
    };
    let quiet = boot("quiet");
    let added = quiet["injected"].to_string();
    assert!(added.contains("initcall_debug log_buf_len=") && !added.contains("trace_event"));
    let spans = quiet["spans"].as_array().expect("spans");
    let named = |span: &&Value| span["name"].as_str().is_some_and(|n| n.starts_with("initcall "));
    assert!(spans.iter().filter(named).count() > 300, "{added}");
    // What it adds a loud one prints in part.
    assert!(!boot("loglevel=7")["injected"].to_string().contains("initcall_debug"));
}

/// The share of a run that lies between two stages of which nobody saw the border: what no
/// source of that guest can tell.
fn shared(run: &Value) -> f64 {
    let spans = run["spans"].as_array().expect("spans");
    let total = run["total_s"].as_f64().expect("s");
    let names = |id: &Value| spans.iter().find(|span| span["id"] == *id)?["name"].as_str();
    let own = spans.iter().filter(|span| span["name"] == "unattributed");
    let own = own.filter(|span| names(&span["parent"]).is_some_and(|name| name.contains('+')));
    let length = |span: &Value| Some(span["end_s"].as_f64()? - span["start_s"].as_f64()?);
    own.filter_map(length).sum::<f64>() / total
}

/// What nobody can act upon, and docs/VIEWS.md says why: phases that were not told apart and what
/// nothing names, and the initcalls of a kernel that nobody traced and that says nothing.
fn is_explained(name: &str) -> bool {
    name == "unattributed" || name == "kernel:initcalls" || name.contains('+')
}

/// Leaves of more than a twentieth of the total that are in none of the things which the screen
/// says can be acted upon.
fn without_a_handle(shown: &Value) -> Vec<String> {
    let things = shown["largest"].as_array().expect("things").iter();
    let things: Vec<&str> = things.filter_map(|thing| thing["name"].as_str()).collect();
    let run = &shown["runs"][0];
    let spans = run["spans"].as_array().expect("spans");
    let total = run["total_s"].as_f64().expect("s");
    let long = |span: &&Value| {
        let length = span["end_s"].as_f64().expect("s") - span["start_s"].as_f64().expect("s");
        length > total / 20.0 && !spans.iter().any(|s| s["parent"] == span["id"])
    };
    let by_id = |id: &Value| spans.iter().find(|span| span["id"] == *id);
    let mut found = Vec::new();
    for leaf in spans.iter().filter(long) {
        let mut line = std::iter::successors(Some(leaf), |span| by_id(&span["parent"]));
        let name = leaf["name"].as_str().expect("a name");
        let handled = line.any(|span| span["name"].as_str().is_some_and(|n| things.contains(&n)));
        match (handled, is_explained(name)) {
            (true, _) => {}
            (false, true) => println!("  {name}: over 5 %, nobody can act upon it"),
            (false, false) => found.push(format!("{name} is over 5 %, and has no handle")),
        }
    }
    found
}

fn is_quiet(session: &Path) -> bool {
    let record = std::fs::read(session.join("runs/0000/run.json")).expect("a record");
    let record: Value = serde_json::from_slice(&record).expect("JSON");
    let argv = record["argv"].as_array().expect("argv").iter();
    argv.filter_map(Value::as_str).any(|word| word.split(' ').any(|w| w == "quiet"))
}

#[test]
fn recordings_of_real_guests_are_not_contradicted_by_their_consoles() {
    let lab = Lab::new();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/guests");
    let (mut seen, mut found) = (0, Vec::new());
    let entries = std::fs::read_dir(fixtures).expect("fixtures").flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    let each = names.len().div_ceil(amount(names.len().div_ceil(3), names.len()));
    for name in names.iter().step_by(each) {
        let Some(name) = name.strip_suffix(".tar.gz") else { continue };
        found.extend(check(&lab, name, &lab.recording(name)));
        seen += 1;
    }
    assert!(seen > 0, "no recordings in fixtures/guests");
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Its kernel's first program waits until the initrd is unpacked: that is a row with a remedy of its
/// own, and the self-test that wanted the program has its own time alone.
#[test]
fn who_waits_for_the_initrd_is_no_cause_of_it() {
    let shown = shown(&Lab::new(), "busy/debian-initrd");
    let spans = spans_of(&shown);
    let (start, end) = bounds(&spans, "kernel:unpack-initrd");
    let (test, done) = bounds(&spans, "initcall crypto_kdf108_init");
    assert!(test <= start && end <= done && end - start > 0.5 * (done - test), "{start}..{end}");
    let causes = shown["causes"].as_array().expect("causes").iter();
    let cause =
        |id: &str| causes.clone().find(|c| c["id"] == id).and_then(|c| c["at_most_s"].as_f64());
    let (unpacking, tests) = (cause("unpack-initrd"), cause("crypto-tests"));
    assert!(unpacking.is_some_and(|s| (s - (end - start)).abs() < 1e-6), "{unpacking:?}");
    assert!(tests.is_some_and(|s| s < done - test + 1.0 && s < end - start), "{tests:?}");
}

/// OpenRC polls for its services, and nobody is seen to wait for them: they are what ran, and the
/// last line before them is not.
#[test]
fn a_program_that_ran_alone_is_not_replaced_by_a_line() {
    let shown = shown(&Lab::new(), "busy/debian-openrc");
    let spans = spans_of(&shown);
    let leaf = |span: &&Value| !spans.iter().any(|other| other["parent"] == span["id"]);
    let of = |begins: &str| -> f64 {
        let own = spans.iter().filter(leaf);
        let own = own.filter(|s| s["name"].as_str().is_some_and(|name| name.starts_with(begins)));
        own.map(|s| s["end_s"].as_f64().expect("s") - s["start_s"].as_f64().expect("s")).sum()
    };
    let (by_lines, by_programs) = (of("after: "), of("exec "));
    assert!(by_lines < 0.1 * by_programs, "{by_lines} s by lines, {by_programs} s by programs");
    let empty =
        spans.iter().filter_map(|s| s["name"].as_str()).find(|name| name.trim() == "after:");
    assert_eq!(empty, None);
}

/// GRUB's menu lasts as long as it counts, whatever else is redrawn on the same serial line.
#[test]
fn a_menu_lasts_as_long_as_it_counts() {
    let spans = spans(&Lab::new(), "busy/grub-counts");
    let (start, end) = bounds(&spans, "grub:timeout");
    assert!(start < 3.0 && end > 8.5, "it counted from 30 to 23 in this run: {start}..{end}");
}

/// OVMF that loads a kernel which QEMU was given says nothing; what it asks for tells its stages.
#[test]
fn a_firmware_that_says_nothing_is_told_apart() {
    let spans = spans(&Lab::new(), "busy/own-ovmf");
    let names = ["bios:edk2-sec", "bios:edk2-pei", "bios:edk2-dxe", "bios:edk2-bds"];
    let all: Vec<(f64, f64)> = names.iter().map(|name| bounds(&spans, name)).collect();
    assert!(all.windows(2).all(|w| w[0].1 <= w[1].0 && w[0].0 < w[0].1), "{all:?}");
}

/// A recording of `fixtures/guests`, analysed anew.
fn shown(lab: &Lab, name: &str) -> Value {
    lab.json(&["show", text(&lab.recording(name))])
}

/// Its spans.
fn spans(lab: &Lab, name: &str) -> Vec<Value> {
    spans_of(&shown(lab, name))
}

fn spans_of(shown: &Value) -> Vec<Value> {
    shown["runs"][0]["spans"].as_array().expect("spans").clone()
}

/// Begin and end of the first span of a name, s.
fn bounds(spans: &[Value], name: &str) -> (f64, f64) {
    let span = spans.iter().find(|s| s["name"] == name).unwrap_or_else(|| panic!("no {name}"));
    (span["start_s"].as_f64().expect("s"), span["end_s"].as_f64().expect("s"))
}

/// A boot loader starts a kernel that nobody was given a file of, and its own command line has
/// vmeter's words: its symbols were found in the guest's RAM, behind KASLR.
#[test]
fn a_disk_boot_gives_its_initcalls() {
    let shown = shown(&Lab::new(), "debian-seabios-traced");
    let spans = spans_of(&shown);
    let names = spans.iter().filter_map(|s| s["name"].as_str());
    let initcalls = names.filter(|name| name.starts_with("initcall ")).count();
    assert!(initcalls >= 500, "{initcalls}");
    for name in ["boot-loader", "grub:load-initrd", "kernel:decompress", "initrd"] {
        let (start, end) = bounds(&spans, name);
        assert!(start < end, "{name}");
    }
    let causes = shown["causes"].as_array().expect("causes").iter();
    let ids: Vec<&str> = causes.filter_map(|cause| cause["id"].as_str()).collect();
    for id in ["grub-menu", "grub-load", "crypto-tests", "udev-settle"] {
        assert!(ids.contains(&id), "{id} is none of the known causes {ids:?}");
    }
}

/// What a kernel prints is in no span of its own, and is told as a whole; one that is `quiet` prints
/// little.
#[test]
fn a_kernel_that_prints_waits_for_its_console() {
    let lab = Lab::new();
    let told = |name: &str| {
        let shown = shown(&lab, name);
        let causes = shown["causes"].as_array().expect("causes").iter();
        let log = causes.filter(|cause| cause["id"] == "console-log");
        log.filter_map(|cause| cause["at_most_s"].as_f64()).next()
    };
    for name in ["kernel-minimal", "kernel-minimal-no-inject", "microvm", "kernel-6.1.0"] {
        let most = told(name);
        assert!(most.is_some_and(|s| 0.1 < s && s < 1.0), "{name}: {most:?}");
    }
    assert_eq!(told("debian-seabios-quiet"), None);
}

/// GRUB's entries say nothing, and the kernel is `quiet`: what is read tells the loader's parts,
/// and the kernel's clocks in RAM its phases.
#[test]
fn a_boot_that_says_nothing_is_told_apart() {
    let spans = spans(&Lab::new(), "debian-seabios-quiet");
    let names = ["grub:timeout", "grub:load-kernel", "grub:load-initrd", "kernel:decompress"];
    let more = ["kernel:entry", "kernel:initcalls-before-userspace", "userspace"];
    let all: Vec<(f64, f64)> = names.iter().chain(&more).map(|name| bounds(&spans, name)).collect();
    assert!(all.windows(2).all(|w| w[0].1 <= w[1].0 && w[0].0 < w[0].1), "{all:?}");
}

/// Of guests in scripts, with nothing added: a quiet kernel of now by the clocks in its RAM, read long
/// after it had stopped; one whose console comes late by the stamps of its lines; and one of which
/// nothing is known by its programs' lines.
#[test]
fn quiet_guests_in_scripts_are_told_as_far_as_they_can_be() {
    let lab = Lab::new();
    let of_kernel = |spans: &[Value]| {
        let names = spans.iter().filter_map(|s| s["name"].as_str());
        names.filter(|name| name.contains("kernel")).count()
    };
    let quiet = spans(&lab, "quiet/kernel-7.3-no-inject");
    let (init, line) = (bounds(&quiet, "userspace").0, bounds(&quiet, "after: app: starting").0);
    assert!(
        (0.2..2.5).contains(&(line - init)),
        "its init ran from {init}, its line came at {line}"
    );
    assert_eq!(bounds(&quiet, "kernel:initcalls-before-userspace").1, init);
    let late = spans(&lab, "quiet/libkrun-loud-no-inject");
    let kernel = bounds(&late, "kernel:entry+kernel:initcalls-before-userspace");
    // Its clock began some 50 ms after the VMM's main, which was at 22 ms.
    assert!((0.05..0.10).contains(&kernel.0) && kernel.1 == bounds(&late, "userspace").0);
    let unknown = spans(&lab, "quiet/libkrun-no-inject");
    assert_eq!(of_kernel(&unknown), 0, "{unknown:?}");
    let (from, line) = (bounds(&unknown, "guest"), bounds(&unknown, "after: app: starting"));
    assert!(from.0 == line.0 && (line.1 - line.0) > 0.5, "its init sleeps for 0.5 s: {line:?}");
}

/// An initrd's systemd reaps daemons that lived all the while: what it prints in their time began
/// no part of it with them, and its units have their own.
#[test]
fn a_daemon_of_the_initrd_names_nothing_of_it() {
    let spans = spans(&Lab::new(), "busy/debian-dracut-lvm");
    let initrd = bounds(&spans, "initrd");
    let hook = bounds(&spans, "unit dracut-pre-mount.service");
    assert!(initrd.0 <= hook.0 && hook.1 <= initrd.1, "{hook:?} of {initrd:?}");
    assert!((3.0..3.6).contains(&(hook.1 - hook.0)), "its hook sleeps for 3 s: {hook:?}");
    let end = spans.iter().filter(|s| s["name"] == "initrd:end");
    let end: f64 = end.map(|s| s["end_s"].as_f64().unwrap() - s["start_s"].as_f64().unwrap()).sum();
    assert!(end < 1.0, "the rest of it, after its last unit: {end}");
}

/// The unit that printed the line which the boot ends at had not finished; one that had finished
/// 15 s before it is not what the end waited for.
#[test]
fn the_unit_that_the_end_waited_for_is_the_one_that_had_not_finished() {
    let shown = shown(&Lab::new(), "busy/debian-dracut-lvm");
    let spans = spans_of(&shown);
    let unit = "unit appliance.service, unfinished";
    let (start, end) = bounds(&spans, unit);
    let total = shown["runs"][0]["total_s"].as_f64().expect("s");
    // By its own clock it took 17.8 s from its first line to its last.
    assert!(end == total && (17.8..19.0).contains(&(end - start)), "{start}..{end} of {total}");
    assert_eq!(shown["activities"][0]["name"], unit);
    assert!(!spans.iter().any(|s| s["name"] == "unit e2scrub_reap.service"));
    let causes = shown["causes"].as_array().expect("causes").iter();
    let ids: Vec<&str> = causes.filter_map(|cause| cause["id"].as_str()).collect();
    assert!(!ids.contains(&"e2scrub") && ids.contains(&"syslinux-prompt"), "{ids:?}");
    // EXTLINUX says when it has read a file.
    let (from, to) = bounds(&spans, "syslinux:load");
    assert!((0.7..1.0).contains(&(to - from)), "{from}..{to}");
}

/// The address of a module's initcall is another's when it is freed: no load lasts until then.
#[test]
fn a_module_has_its_own_initcall() {
    let shown = shown(&Lab::new(), "busy/debian-dracut-lvm");
    let lists = ["spans", "overlapping"].into_iter();
    let all = lists.flat_map(|list| shown["runs"][0][list].as_array().expect("spans"));
    let loads = all.filter(|s| s["name"] == "insmod dm_log");
    let lengths: Vec<f64> =
        loads.map(|s| s["end_s"].as_f64().unwrap() - s["start_s"].as_f64().unwrap()).collect();
    assert!(lengths.len() == 1 && lengths[0] < 0.01, "{lengths:?}");
}

/// An init that is a script and prints what others would: nothing is placed by its words, and what
/// it waited for is in the tree, across the begin of the shutdown as well.
#[test]
fn words_of_others_in_a_script_make_nothing_of_them() {
    let lab = Lab::new();
    for name in ["odd", "odd-no-inject", "odd-down"] {
        let shown = shown(&lab, &format!("busy/busybox-{name}"));
        let spans = spans_of(&shown);
        let phase = |s: &&Value| s["parent"].is_null();
        let phases: Vec<&str> =
            spans.iter().filter(phase).filter_map(|s| s["name"].as_str()).collect();
        assert!(!phases.contains(&"systemd") && phases.contains(&"userspace"), "{phases:?}");
        let named = shown["runs"][0]["coverage"].as_f64().expect("a share");
        assert!(named + shared(&shown["runs"][0]) > 0.98, "{name}: {named}");
        if name.ends_with("inject") {
            continue;
        }
        let beside = shown["runs"][0]["overlapping"].as_array().expect("spans").iter();
        let beside: Vec<&str> = beside.filter_map(|s| s["name"].as_str()).collect();
        assert_eq!(beside.len(), 3, "{beside:?}");
        for waited_for in ["exec /bin/halt-slow", "exec poweroff -f", "exec sleep 1"] {
            let (start, end) = bounds(&spans, waited_for);
            assert!(start < end && !beside.contains(&waited_for), "{name}: {waited_for}");
        }
        // It polled some 60 times: one row tells it.
        let tree = lab.run(&["show", "--tree", text(&lab.path(&format!("busy/busybox-{name}")))]);
        let polls = tree.stdout.lines().filter(|line| line.contains("exec sleep 0.1 ")).count();
        assert!(polls <= 4, "{polls} rows\n{}", tree.stdout);
    }
}

/// dracut's initrd has a systemd of its own; the root's is the second.
#[test]
fn a_systemd_in_the_initrd_is_the_initrds() {
    let lab = Lab::new();
    for name in ["debian-dracut-6.12", "debian-dracut-6.12-no-inject"] {
        let spans = spans(&lab, name);
        let names = ["initrd", "switch-root", "systemd"];
        let all: Vec<(f64, f64)> = names.iter().map(|name| bounds(&spans, name)).collect();
        assert!(all.windows(2).all(|w| w[0].1 <= w[1].0 && w[0].0 < w[0].1), "{all:?}");
        assert!(all[0].1 - all[0].0 > 20.0, "{name}: {all:?}");
        // Its units are spans, and the device that they wait for is one since udev was told.
        let names = ["initrd:units", "unit dev-vda2.device"];
        let parts: Vec<(f64, f64)> = names.iter().map(|name| bounds(&spans, name)).collect();
        let inside = |part: &(f64, f64)| all[0].0 <= part.0 && part.1 <= all[0].1;
        assert!(parts.iter().all(inside), "{name}: {parts:?} of {:?}", all[0]);
        let told = spans.iter().find(|s| s["name"] == "unit systemd-udev-trigger.service");
        let told = told.and_then(|s| s["end_s"].as_f64()).expect("udev's trigger");
        assert!(parts[1].0 >= told - 0.001, "{name}: {parts:?}, told at {told}");
    }
}

/// OpenRC's and runit's stages and services are processes that somebody waited for, and nothing
/// goes down when runit's second stage begins. The service that was planted sleeps for 3 s.
#[test]
fn inits_that_are_not_systemd_are_told_apart() {
    let lab = Lab::new();
    for (name, stage, service) in [
        ("busy/debian-openrc", "exec /sbin/openrc sysinit", "exec /etc/init.d/"),
        ("debian-runit", "exec /etc/runit/1", "exec /etc/rcS.d/"),
    ] {
        let spans = spans(&lab, name);
        let count = |begin: &str| {
            let names = spans.iter().filter_map(|s| s["name"].as_str());
            names.filter(|name| name.starts_with(begin)).count()
        };
        assert!(count(stage) > 0 && count(service) >= 5, "{name}");
        assert_eq!(count("shutdown"), 0, "{name}");
        if name.ends_with("runit") {
            // Its second stage becomes the supervisor of services, of which one asks for a login.
            let line = ["exec /etc/runit/2", "exec /bin/runsvdir", "exec /bin/runsv getty-ttyS0"];
            let line = line.into_iter().chain(["exec getty-ttyS0/run", "exec /sbin/agetty -L"]);
            let (_, end) = bounds(&spans, "userspace");
            for name in line {
                let leads = |s: &Value| {
                    s["name"].as_str().is_some_and(|n| n.starts_with(name))
                        && s["end_s"].as_f64() == Some(end)
                };
                assert!(spans.iter().any(leads), "{name}");
            }
        }
        if name.ends_with("openrc") {
            let (start, end) = bounds(&spans, "exec /etc/init.d/planted-sleep start");
            assert!(end - start >= 3.0, "{start}..{end}");
        }
    }
}

/// OVMF's release build says nothing but its boot manager's lines; what it asks of the machine
/// tells its stages. GRUB's time-out is 1 s.
#[test]
fn ovmf_and_grub_are_told_apart() {
    let lab = Lab::new();
    let of_ovmf = spans(&lab, "debian-ovmf-until-init");
    let stages = ["bios:edk2-sec", "bios:edk2-pei", "bios:edk2-dxe", "bios:edk2-bds"];
    let loaders = ["boot-loader", "kernel:decompress", "kernel:entry"];
    let all: Vec<(f64, f64)> =
        stages.iter().chain(&loaders).map(|name| bounds(&of_ovmf, name)).collect();
    assert!(all.windows(2).all(|w| w[0].1 <= w[1].0 && w[0].0 < w[0].1), "{all:?}");
    for spans in [of_ovmf, spans(&lab, "debian-seabios-traced")] {
        let (start, end) = bounds(&spans, "grub:timeout");
        assert!((end - start - 1.0).abs() < 0.05, "{start}..{end}");
    }
}

/// Loaders that wait for 3 s, and then read their files; whether reads were traced or not, nothing
/// is called a wait that was none.
#[test]
fn other_loaders_are_told_apart() {
    let lab = Lab::new();
    let prompt = ["syslinux:start", "syslinux:prompt", "syslinux:load"];
    let ipxe = ["ipxe:start", "ipxe:prompt", "ipxe:network", "ipxe:download"];
    let pxelinux = ["syslinux:start", "syslinux:load vmlinuz", "syslinux:load initrd.gz"];
    for (name, parts) in [
        ("syslinux", [&prompt[..], &["kernel:decompress"]].concat()),
        ("syslinux-no-inject", [&prompt[..], &["kernel:decompress+kernel:entry"]].concat()),
        ("pxelinux", [&ipxe[..], &pxelinux, &["kernel:decompress"]].concat()),
        ("systemd-boot", vec!["systemd-boot:menu", "boot-loader+kernel:decompress"]),
        ("systemd-boot-no-inject", vec!["boot-loader+kernel:decompress+kernel:entry"]),
    ] {
        let spans = spans(&lab, name);
        let all: Vec<(f64, f64)> = parts.iter().map(|part| bounds(&spans, part)).collect();
        assert!(all.windows(2).all(|w| w[0].1 <= w[1].0 && w[0].0 < w[0].1), "{name} {all:?}");
        let is_wait = |part: &str| part.contains(":prompt") || part.contains(":menu");
        for (_, (start, end)) in parts.iter().zip(&all).filter(|(part, _)| is_wait(part)) {
            // iPXE waits for two seconds.
            let least = if name == "pxelinux" { 2.0 } else { 2.95 };
            assert!((least..4.0).contains(&(end - start)), "{name} {start}..{end}");
        }
    }
}

/// Each guest's name and command line.
fn guests(folder: &Path) -> Vec<(&'static str, Vec<String>)> {
    let file = |name: &str| folder.join(name).display().to_string();
    let disk = format!("if=virtio,format=raw,snapshot=on,file={}", file("debian.img"));
    let (kernel, initrd, busybox) = (file("vmlinuz"), file("initrd.img"), file("busybox.cpio.gz"));
    let debian = "root=/dev/vda2 ro console=ttyS0 no_timer_check";
    let qemu = |words: &str, rest: &[&str]| -> Vec<String> {
        let first = format!("qemu-system-x86_64 -nographic -no-reboot -net none {words}");
        first.split_whitespace().chain(rest.iter().copied()).map(str::to_owned).collect()
    };
    let direct = ["-kernel", &kernel, "-initrd", &initrd, "-append", debian, "-drive", &disk];
    let mut big: Vec<String> = qemu("-M q35 -m 2048 -smp 4", &direct);
    big.retain(|word| word != "-net" && word != "none");
    for n in 1..=4 {
        big.extend(["-netdev".into(), format!("user,id=n{n}")]);
        big.extend(["-device".into(), format!("virtio-net-pci,netdev=n{n}")]);
    }
    for _ in 1..=3 {
        big.extend([
            "-drive".into(),
            format!("if=virtio,format=raw,snapshot=on,file={}", file("initrd.img")),
        ]);
    }
    let quiet = "console=ttyS0 quiet no_timer_check planted.klogd";
    let loud = "console=ttyS0 no_timer_check";
    let bare = |words: &str| {
        ["-kernel", &kernel, "-initrd", &busybox, "-append", words].map(str::to_owned)
    };
    let of = |words: &str, rest: &[String]| {
        qemu(words, &rest.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let flash =
        |file: &str| format!("if=pflash,format=raw,snapshot=on,file=/usr/share/OVMF/{file}");
    let (code, vars) = (flash("OVMF_CODE_4M.fd"), flash("OVMF_VARS_4M.fd"));
    let mut guests = vec![
        ("debian-seabios", qemu("-M q35 -m 1024", &["-drive", &disk])),
        ("debian-kernel", qemu("-M q35 -m 1024", &direct)),
        ("busybox-klogd", of("-M q35 -m 512", &bare(quiet))),
        ("busybox", of("-M pc -m 512", &bare(loud))),
        (
            "microvm",
            of("-M microvm,isa-serial=on,acpi=off,pit=on,pic=on,rtc=on -m 512", &bare(loud)),
        ),
        ("debian-4-cpus", big),
    ];
    if Path::new("/usr/share/OVMF/OVMF_CODE_4M.fd").exists() {
        let firmware = ["-drive", &code, "-drive", &vars, "-drive", &disk];
        guests.push(("debian-ovmf", qemu("-M q35 -m 1024", &firmware)));
    } else {
        println!("skipped: OVMF is not installed (package ovmf)");
    }
    guests
}

#[test]
fn guests_that_people_have_are_not_contradicted_by_their_consoles() {
    let Some(folder) = common::people::made() else { return };
    let lab = Lab::new();
    let mut found = Vec::new();
    for (name, command) in guests(&folder) {
        for inject in [true, false] {
            let kept = std::env::var_os("VMETER_GUESTS_KEEP").map(PathBuf::from);
            let name = format!("{name}{}", if inject { "" } else { "-no-inject" });
            let session = kept.map_or_else(|| lab.path(&name), |kept| kept.join(&name));
            let given = "boot --runs 1 --warmup 0 --until line:login: --timeout 900 --save";
            let mut arguments: Vec<&str> = given.split(' ').collect();
            arguments.push(text(&session));
            arguments.extend((!inject).then_some("--no-inject"));
            arguments.push("--");
            arguments.extend(command.iter().map(String::as_str));
            let ran = lab.run(&arguments);
            if ran.status == 0 {
                found.extend(check(&lab, &name, &session));
            } else {
                found.push(format!("{name}\n{}\n{}", ran.stderr, ran.stdout));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}
