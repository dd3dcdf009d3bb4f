//! User space of a Debian guest, on systemd's and the guest's own word of the same boot.
//!
//! In `fixtures/guests/debian-kernel-oracle` a unit printed `systemd-analyze blame` and
//! `critical-chain` on the console when the boot was over (`planted.analyze`), then powered
//! off; `debian-kernel-units` is the same guest until its prompt. What was planted in it printed
//! its own clock before and after.

use crate::common;

use common::{text, Lab};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// What a duration may be off by: this share of it, or this long, s.
const SHARE: f64 = 0.05;
const SECONDS: f64 = 0.05;
/// `/proc/uptime` counts in these, s.
const TICK: f64 = 0.01;

fn close(found: f64, said: f64) -> bool {
    (found - said).abs() <= SECONDS.max(SHARE * said)
}

/// A session's only run as JSON, and its console's text.
fn shown(lab: &Lab, folder: &Path) -> (Value, String) {
    let run = lab.json(&["show", text(folder)])["runs"][0].clone();
    let exec_ns = run["exec_monotonic_ns"].as_i64().expect("the exec");
    let lines = common::stages::console(&folder.join("runs/0000"), exec_ns);
    let lines: Vec<String> = lines.into_iter().map(|line| line.text).collect();
    (run, lines.join("\n"))
}

/// The same of a recording.
fn recording(lab: &Lab, name: &str) -> (Value, String) {
    shown(lab, &lab.recording(name))
}

/// Spans of a list: name, start, length and CPU time, s.
fn spans(run: &Value, list: &str) -> Vec<(String, f64, f64, Option<f64>)> {
    let spans = run[list].as_array().expect("spans").iter();
    let number = |span: &Value, key: &str| span[key].as_f64();
    spans
        .map(|span| {
            let (start, end) = (number(span, "start_s"), number(span, "end_s"));
            let (start, end) = (start.expect("a start"), end.expect("an end"));
            let name = span["name"].as_str().expect("a name").to_owned();
            (name, start, end - start, number(span, "cpu_s"))
        })
        .collect()
}

/// A disk of `/etc/fstab` that is gone, with a time-out of 30 s, under Debian's own `quiet`: systemd
/// says no word on the console of itself.
#[test]
fn a_disk_that_is_gone_is_what_emergency_mode_waited_for() {
    let lab = Lab::new();
    let (run, console) = recording(&lab, "debian-quiet-gone");
    assert!(console.contains("emergency mode") && !console.contains("systemd[1]: Queued"));
    let tree = spans(&run, "spans");
    let of = |name: &str| tree.iter().find(|span| span.0 == name).map(|span| span.2);
    let waited = of("unit dev-vdz1.device, timed out").expect("the device");
    assert!(close(waited, 30.0), "{waited}");
    assert!(of("systemd:units").is_some_and(|units| units > waited));
    let longest = tree.iter().filter(|span| span.0 == "systemd:start-jobs").map(|span| span.2);
    assert!(longest.fold(0.0, f64::max) < 3.0);
    let nameless = tree.iter().filter(|span| span.0 == "unattributed").map(|span| span.2);
    assert!(nameless.sum::<f64>() < 0.5);
    let shown = lab.json(&["show", text(&lab.path("debian-quiet-gone"))]);
    let causes = shown["causes"].as_array().expect("causes");
    let ids: Vec<&str> = causes.iter().filter_map(|cause| cause["id"].as_str()).collect();
    assert_eq!(ids.first(), Some(&"missing-device"), "{ids:?}");
}

/// What the oracle printed under a title.
fn oracle<'a>(console: &'a str, title: &str) -> Vec<&'a str> {
    let after = console.split(&format!("planted oracle {title} begin")).nth(1).expect(title);
    after.split("planted oracle end").next().unwrap_or_default().lines().collect()
}

/// `1min 2.345s`, `12.3s`, `830ms`; none for anything else.
fn duration(text: &str) -> Option<f64> {
    let part = |part: &str| {
        let units = [("min", 60.0), ("ms", 0.001), ("us", 0.000_001), ("s", 1.0)];
        units.iter().find_map(|(unit, s)| Some(part.strip_suffix(unit)?.parse::<f64>().ok()? * s))
    };
    let parts: Option<Vec<f64>> = text.split_whitespace().map(part).collect();
    parts.filter(|parts| !parts.is_empty()).map(|parts| parts.iter().sum())
}

#[test]
fn units_take_as_long_as_systemd_says() {
    let lab = Lab::new();
    let (run, console) = recording(&lab, "debian-kernel-oracle");
    check_units(&run, &console);
}

/// A boot of now of the Debian guest, in a folder of this name: its disk alone, or its kernel with
/// these words.
fn booted(lab: &Lab, name: &str, until: &str, words: Option<&str>, more: &[&str]) -> PathBuf {
    let guests = common::people::made().expect("the guests");
    let session = lab.path(name);
    let file = |name: &str| guests.join(name).display().to_string();
    let (kernel, initrd) = (file("vmlinuz"), file("initrd.img"));
    let disk = format!("if=virtio,format=raw,snapshot=on,file={}", file("debian.img"));
    let words =
        words.map(|words| format!("root=/dev/vda2 ro console=ttyS0 no_timer_check {words}"));
    let qemu = "-- qemu-system-x86_64 -nographic -no-reboot -net none -M q35 -m 1024 -drive";
    let mut arguments: Vec<&str> = "boot --runs 1 --warmup 0 --timeout 900".split(' ').collect();
    arguments.extend(["--until", until, "--save", text(&session)]);
    arguments.extend(qemu.split(' ').chain([disk.as_str()]).chain(more.iter().copied()));
    if let Some(words) = &words {
        arguments.extend(["-kernel", &kernel, "-initrd", &initrd, "-append", words]);
    }
    let ran = lab.run(&arguments);
    assert_eq!(ran.status, 0, "{name}\n{}\n{}", ran.stderr, ran.stdout);
    session
}

/// A boot of now, in the long form.
#[test]
fn units_of_a_boot_take_as_long_as_systemd_says() {
    if common::people::made().is_none() {
        return;
    }
    let lab = Lab::new();
    let words = Some("planted.analyze planted.poweroff systemd.mask=e2scrub_reap.service");
    let session = booted(&lab, "oracle", "poweroff", words, &[]);
    let (run, console) = shown(&lab, &session);
    check_units(&run, &console);
    let (said, found) = (said_chain(&console, "default-chain"), found_default_chain(&run));
    println!("chain {said:?}");
    assert_eq!(found, said);
}

fn check_units(run: &Value, console: &str) {
    let all: Vec<_> = spans(run, "spans").into_iter().chain(spans(run, "overlapping")).collect();
    // How far off a unit's begin or end can be by its own word: on a busy host systemd is kept
    // from saying that one starts.
    let off = |name: &str| {
        let lists = ["spans", "overlapping"].into_iter().filter_map(|list| run[list].as_array());
        let own = lists.flatten().filter(|span| span["name"] == name);
        own.filter_map(|span| span["error_s"].as_f64()).fold(0.0, f64::max)
    };
    let (mut compared, mut kept, mut wrong) = (0, 0, Vec::new());
    for line in oracle(console, "blame") {
        let Some((time, unit)) = line.trim().rsplit_once(' ') else { continue };
        // Nothing says when somebody began to wait for a device.
        let Some(said) = duration(time).filter(|_| !unit.ends_with(".device")) else { continue };
        let name = format!("unit {unit}");
        match all.iter().find(|span| span.0 == name) {
            Some((.., found, _)) if close(*found, said) => compared += 1,
            Some((.., found, _)) if (found - said).abs() <= off(&name) => kept += 1,
            Some((.., found, _)) => wrong.push(format!("{unit}: {found:.3} s, {said:.3} s said")),
            None => wrong.push(format!("{unit}: {said:.3} s, and no span")),
        }
    }
    println!(
        "{compared} of {} units, {kept} more within their errors",
        compared + kept + wrong.len()
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(compared >= 30 && kept * 20 <= compared, "{compared}, {kept} within their errors");
}

/// What `systemd-analyze critical-chain` named under a title, from the last to the first;
/// what took no time is a matter of moments.
fn said_chain(console: &str, title: &str) -> Vec<String> {
    oracle(console, title)
        .iter()
        .filter(|line| line.contains(" +"))
        .filter_map(|line| line.split_whitespace().find(|w| w.contains(".service")))
        .map(|unit| unit.trim_start_matches(|c: char| !c.is_ascii_alphanumeric()).to_owned())
        .collect()
}

/// The units of a timeline's tree from the last to the first.
fn found_chain(run: &Value) -> Vec<String> {
    let mut chain: Vec<_> = spans(run, "spans");
    chain.retain(|(name, ..)| name.starts_with("unit "));
    chain.sort_by(|a, b| b.1.total_cmp(&a.1));
    let mut found: Vec<String> =
        chain.iter().filter_map(|span| span.0.strip_prefix("unit ").map(str::to_owned)).collect();
    // A gap of a unit is more of the unit.
    found.dedup();
    found
}

/// Without what begins once the default target is there; the start-up is finished with it.
fn found_default_chain(run: &Value) -> Vec<String> {
    let mut found = found_chain(run);
    found.retain(|unit| unit != "systemd-update-utmp-runlevel.service");
    found
}

/// Of one boot: what the default target waited for. (`e2scrub_reap.service` was masked there:
/// `systemd-analyze` leaves out a unit that ends without staying active, whoever waited for it.)
#[test]
fn the_chain_of_units_is_the_one_that_systemd_names() {
    let (run, console) = recording(&Lab::new(), "debian-kernel-oracle");
    let said = said_chain(&console, "default-chain");
    assert_eq!(found_default_chain(&run), said);
    assert!(said.len() >= 6, "{said:?}");
}

/// Of a guest that ends at its prompt, by what another boot of it said.
#[test]
fn the_chain_of_a_prompt_is_the_one_that_systemd_names() {
    let lab = Lab::new();
    let (_, console) = recording(&lab, "debian-kernel-oracle");
    let (run, _) = recording(&lab, "debian-kernel-units");
    let (said, found) = (said_chain(&console, "critical-chain"), found_chain(&run));
    assert_eq!(found.first().map(String::as_str), Some("serial-getty@ttyS0.service"));
    assert_eq!(found[1..], said[..]);
    assert!(said.len() >= 6, "{said:?}");
}

/// What was planted, how vmeter names it and the script that it was in, and the recordings
/// that have it.
const PLANTED: &[(&str, &str, &str, &[&str])] = &[
    ("initrd", "exec /bin/sleep 0.7", "exec /scripts/local-premount/planted", &["oracle", "units"]),
    ("sleep", "exec /usr/bin/sleep 1.5", "unit planted-sleep.service", &["oracle", "units"]),
    ("burn", "exec /usr/local/bin/burn", "unit planted-burn.service", &["oracle", "units"]),
    ("after", "exec /usr/bin/sleep 2", "unit planted-after.service", &["oracle", "units"]),
    ("stop", "exec /usr/bin/sleep 1.2", "stop planted-stop.service", &["oracle"]),
];

#[test]
fn what_was_planted_is_found_under_its_own_name() {
    let lab = Lab::new();
    for recorded in ["oracle", "units"] {
        let (run, console) = recording(&lab, &format!("debian-kernel-{recorded}"));
        let names = PLANTED.iter().filter(|p| p.3.contains(&recorded)).map(|p| p.0);
        check_planted(&run, &console, &names.collect::<Vec<_>>());
    }
}

fn check_planted(run: &Value, console: &str, names: &[&str]) {
    let all: Vec<_> = spans(run, "spans").into_iter().chain(spans(run, "overlapping")).collect();
    let clock = |name: &str, what: &str| {
        let text = console.split(&format!("planted {name} {what} ")).nth(1).expect(name);
        let text: String = text.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
        text.parse::<f64>().expect("seconds")
    };
    for (name, program, script, _) in PLANTED.iter().filter(|p| names.contains(&p.0)) {
        let said = clock(name, "end") - clock(name, "begin");
        let whole = all.iter().find(|span| span.0 == *script).expect(script);
        let inside = |span: &&(String, f64, f64, _)| {
            span.0.starts_with(program) && span.1 >= whole.1 && span.1 < whole.1 + whole.2
        };
        let part = all.iter().find(inside).expect(program);
        println!("{name}: {said:.2} s said, {:.3} s found", part.2);
        // The planter's clock is read before its program is begun and after its end.
        assert!(part.2 <= said + TICK, "{name}: {} s of {said} s", part.2);
        assert!(said <= whole.2 + TICK, "{name}: {said} s of {} s", whole.2);
        assert!(close(part.2, said), "{name}: {} s, {said} s said", part.2);
        // What sleeps is waited for, what computes works.
        let cpu = part.3.expect("its CPU time");
        assert_eq!(cpu > 1.0, *name == "burn", "{name}: {cpu} s");
    }
}

/// Where one thing alone was planted, it is the first of what was waited for.
#[test]
fn what_is_planted_alone_is_first_in_blame() {
    let lab = Lab::new();
    for (recorded, first) in [
        ("debian-kernel-only-sleep", "unit planted-sleep.service"),
        ("busy/debian-kernel-only-stop", "stop planted-stop.service"),
    ] {
        let name = first.split(['-', '.']).nth(1).expect("a name");
        let (_, console) = recording(&lab, recorded);
        is_first(&lab, &lab.path(recorded), &console, name, first);
    }
}

/// What is first in blame, by the time that was waited for, and how long that was.
fn is_first(lab: &Lab, session: &Path, console: &str, name: &str, first: &str) {
    let clock = |what: &str| {
        let text = console.split(&format!("planted {name} {what} ")).nth(1).expect(name);
        text.lines().next().and_then(|text| text.trim().parse::<f64>().ok()).expect("seconds")
    };
    let said = clock("end") - clock("begin");
    let shown = lab.json(&["show", text(session)]);
    let activity = &shown["activities"][0];
    let waited = activity["estimate"]["mean"].as_f64().expect("s");
    println!("{name}: {said:.2} s said, {waited:.3} s found");
    assert_eq!(activity["name"].as_str(), Some(first), "{name}");
    assert!(said > 10.0 && close(waited, said), "{name}: {waited} s, {said} s said");
}

/// Where each alone was planted in a boot of now, in the long form.
#[test]
fn what_is_planted_alone_is_first_in_blame_of_a_boot() {
    if common::people::made().is_none() {
        return;
    }
    let lab = Lab::new();
    for (name, first) in [
        ("initrd", "exec /scripts/local-premount/planted"),
        ("sleep", "unit planted-sleep.service"),
        ("after", "unit planted-after.service"),
        ("stop", "stop planted-stop.service"),
    ] {
        let until = if name == "stop" { "poweroff" } else { "line:login:" };
        let ends = if name == "stop" { "planted.poweroff" } else { "" };
        let words = format!("planted.only={name} planted.seconds=60 {ends}");
        let session = booted(&lab, name, until, Some(&words), &[]);
        let (_, console) = shown(&lab, &session);
        is_first(&lab, &session, &console, name, first);
    }
}

/// What is first by CPU time.
fn busiest(lab: &Lab, session: &Path) -> (String, f64) {
    let shown = lab.json(&["show", text(session)]);
    let rows = shown["activities"].as_array().expect("activities").iter();
    let cpu = rows.filter_map(|row| Some((row["name"].as_str()?, row["cpu"]["mean"].as_f64()?)));
    let (name, cpu) = cpu.max_by(|a, b| a.1.total_cmp(&b.1)).expect("CPU times");
    println!("{name}: {cpu:.3} s CPU");
    (name.to_owned(), cpu)
}

/// What computes is first by CPU time, whatever was waited for beside it.
#[test]
fn what_computes_is_first_by_its_cpu_time() {
    let lab = Lab::new();
    for recorded in ["oracle", "units"] {
        recording(&lab, &format!("debian-kernel-{recorded}"));
        let (name, cpu) = busiest(&lab, &lab.path(&format!("debian-kernel-{recorded}")));
        assert!(name == "unit planted-burn.service" && cpu > 1.0, "{recorded}: {name} {cpu} s");
    }
    if common::people::made().is_some() {
        let session = booted(&lab, "burn", "line:login:", Some("planted.only=burn"), &[]);
        let (run, console) = shown(&lab, &session);
        assert_eq!(busiest(&lab, &session).0, "unit planted-burn.service");
        check_planted(&run, &console, &["burn"]);
    }
}

/// GRUB's time-out of 40 s in a boot of now, in the long form. GRUB counts down on the console:
/// each second is one of its own clock, and a loop that prints it.
#[test]
fn grubs_time_out_is_first_in_blame() {
    if common::people::made().is_none() {
        return;
    }
    let lab = Lab::new();
    let planted = ["-smbios", "type=1,version=40"];
    let session = booted(&lab, "grub", "line:Run /init", None, &planted);
    let shown = lab.json(&["show", text(&session)]);
    let exec_ns = shown["runs"][0]["exec_monotonic_ns"].as_i64().expect("the exec");
    let lines = common::stages::console(&session.join("runs/0000"), exec_ns);
    let at = |what: &str| lines.iter().find(|l| l.text.contains(what)).expect(what).at;
    let said = at("Loading Linux") - at("executed automatically in");
    let activity = &shown["activities"][0];
    let waited = activity["estimate"]["mean"].as_f64().expect("s");
    println!("grub:timeout: 40 s planted, {said:.3} s on the console, {waited:.3} s found");
    assert_eq!(activity["name"], "grub:timeout");
    assert!(close(waited, said) && waited >= 40.0 - SECONDS, "{waited} s, {said} s said");
}

/// Of a kernel that a boot loader starts nobody knows where its probes would be.
#[test]
fn a_disk_boot_has_parents_and_units() {
    let lab = Lab::new();
    let (run, _) = recording(&lab, "debian-seabios-units");
    let spans = spans(&run, "spans");
    let units = spans.iter().filter(|span| span.0.starts_with("unit ") && span.2 > 0.5);
    assert!(units.count() >= 7);
    let processes = run["processes"].as_array().expect("processes");
    let known = processes.iter().filter(|p| p["parent"].is_number()).count();
    assert!(known > 100 && known * 10 > processes.len() * 9, "{known} of {}", processes.len());
    assert!(processes.iter().any(|p| p["waited_s"].is_number()));
    assert!(processes.iter().all(|p| p["cpu_s"].is_null()));
}

#[test]
fn the_tree_follows_who_waited_for_whom() {
    let lab = Lab::new();
    let (run, _) = recording(&lab, "debian-kernel-units");
    let spans = run["spans"].as_array().expect("spans");
    let path = |name: &str| {
        let is = |span: &&Value| span["name"].as_str().is_some_and(|n| n.starts_with(name));
        let mut at = spans.iter().find(is);
        let mut names = Vec::new();
        while let Some(span) = at {
            names.push(span["name"].as_str().unwrap_or_default());
            at = spans.iter().find(|s| s["id"] == span["parent"]);
        }
        names.reverse();
        names
    };
    assert_eq!(
        path("exec /usr/sbin/fsck.ext4 -a"),
        [
            "systemd",
            "systemd:units",
            "unit systemd-fsck-root.service",
            "exec /lib/systemd/systemd-fsck",
            "exec /usr/sbin/fsck -a -T -l -C5 /dev/vda2",
            "exec /usr/sbin/fsck.ext4 -a -C5 /dev/vda2"
        ]
    );
    assert_eq!(
        path("exec /bin/udevadm settle"),
        ["initrd", "initrd:udev", "exec /scripts/init-top/udev", "exec /bin/udevadm settle"]
    );
    // A daemon's life is no work that anybody waited for.
    let names: Vec<&str> = spans.iter().filter_map(|s| s["name"].as_str()).collect();
    assert!(!names.iter().any(|name| name.contains("/usr/sbin/cron")));
    let beside = run["overlapping"].as_array().expect("spans").iter();
    let mut beside = beside.filter_map(|s| s["name"].as_str());
    assert!(beside.any(|name| name.contains("/usr/sbin/cron")));
}

#[test]
fn a_shutdown_begins_with_its_first_line() {
    let lab = Lab::new();
    let (run, _) = recording(&lab, "debian-kernel-oracle");
    let (spans, beside) = (spans(&run, "spans"), spans(&run, "overlapping"));
    let length = |name: &str| {
        let of = spans.iter().chain(&beside).filter(|span| span.0 == name);
        of.map(|span| span.2).fold(0.0, f64::max)
    };
    let down = length("shutdown");
    let stop = length("stop planted-stop.service");
    assert!(stop > 1.2 && down > stop, "{stop} s of {down} s");
    assert!(length("systemd:stop-jobs") > 0.0 && length("shutdown:unmount") > 0.0);
    let begins = spans.iter().find(|span| span.0 == "shutdown").expect("it").1;
    let inside = |span: &&(String, f64, f64, _)| span.1 >= begins && span.0 == "unattributed";
    let unknown: f64 = spans.iter().filter(inside).map(|span| span.2).sum();
    assert!(unknown <= 0.05 * down, "{unknown} s of {down} s");
}

/// systemd says by its own words that the machine is up, of a disk as of a kernel that is told to
/// be quiet, unwatched as well; in the long form.
#[test]
fn systemd_ready_ends_the_boot_of_an_unmodified_guest() {
    let Some(guests) = common::people::made() else { return };
    let lab = Lab::new();
    let file = |name: &str| guests.join(name).display().to_string();
    let (kernel, initrd) = (file("vmlinuz"), file("initrd.img"));
    let disk = format!("if=virtio,format=raw,snapshot=on,file={}", file("debian.img"));
    let words = "root=/dev/vda2 ro quiet console=ttyS0 no_timer_check";
    let qemu = "-- qemu-system-x86_64 -nographic -no-reboot -net none -M q35 -m 1024 -drive";
    let of_kernel = ["-kernel", &kernel, "-initrd", &initrd, "-append", words];
    for (watch, more) in [("light", &of_kernel[..]), ("none", &of_kernel), ("none", &[])] {
        let given = "boot --runs 1 --warmup 0 --until systemd-ready --timeout 500 --watch";
        let mut arguments: Vec<&str> = given.split(' ').chain([watch]).collect();
        arguments.extend(qemu.split(' ').chain([disk.as_str()]).chain(more.iter().copied()));
        let result = lab.json(&arguments);
        let end = &result["runs"][0]["end"];
        assert_eq!(end["cause"], "ready", "{watch} {more:?}: {end}");
    }
}
