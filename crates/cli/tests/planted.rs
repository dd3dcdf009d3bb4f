//! Planted delays are found, in the right place, within 5 % or 5 ms of what the
//! planter's own clock recorded in that very run.

use crate::common;

use common::{assert_found, kernel, phase, span, spans, text, Lab};
use serde_json::Value;
use std::path::Path;

fn boot(lab: &Lab, arguments: &[&str]) -> Value {
    let mut all = vec!["boot", "--warmup", "0", "--runs", "1"];
    all.extend(arguments);
    lab.json(&all)
}

/// The one run of a result.
fn run(result: &Value) -> &Value {
    &result["runs"][0]
}

/// Seconds between the two CLOCK_REALTIME readings that a shell wrote.
fn shell_clock(path: &Path) -> f64 {
    let text = std::fs::read_to_string(path).expect("the planter wrote its clock");
    let stamps: Vec<f64> = text.split_whitespace().map(|w| w.parse().expect("ns")).collect();
    (stamps[1] - stamps[0]) / 1e9
}

#[test]
fn a_wrapper_that_sleeps_before_the_vmm() {
    if kernel().is_none() {
        return;
    }
    let lab = Lab::alone();
    let clock = lab.path("clock");
    let wrapper = lab.script(
        "wrapper",
        &format!(
            "#!/bin/sh\ncase \"$*\" in *-kernel*) ;; *) exec qemu-system-x86_64 \"$@\" ;; esac\n\
             date +%s%N > {0}\nsleep 0.3\ndate +%s%N >> {0}\nexec qemu-system-x86_64 \"$@\"\n",
            clock.display()
        ),
    );
    let result = boot(&lab, &["--vmm", text(&wrapper)]);
    let found = phase(&result, "vmm:wrapper");
    let planted = shell_clock(&clock);
    // The shell's own start and its two `date` are in the wrapper's time as well.
    // What vmeter held the shell for at each of their starts is a phase of its own.
    let held = phase(&result, "vmeter:observe");
    assert!(found + held >= planted, "{found} {held} {planted}");
    assert!(found - planted < 0.5 * planted, "{found} {planted}");
    assert!(phase(&result, "vmm:link") < 0.5 * planted);
}

#[test]
fn a_wrapper_that_sleeps_on_both_sides_of_its_child() {
    if common::is_left_to_test_long() {
        return;
    }
    if kernel().is_none() {
        return;
    }
    let lab = Lab::alone();
    let clock = lab.path("clock");
    let wrapper = lab.script(
        "wrapper",
        &format!(
            "#!/bin/sh\ncase \"$*\" in *-kernel*) ;; *) exec qemu-system-x86_64 \"$@\" ;; esac\n\
             sleep 0.2\nqemu-system-x86_64 \"$@\"\n\
             date +%s%N > {0}\nsleep 0.3\ndate +%s%N >> {0}\n",
            clock.display()
        ),
    );
    let result = boot(&lab, &["--vmm", text(&wrapper)]);
    let planted = shell_clock(&clock);
    let found = phase(&result, "launcher:after");
    let held = phase(&result, "vmeter:observe");
    assert!(found + held >= planted, "{found} {held} {planted}");
    assert!(found - planted < 0.5 * planted, "{found} {planted}");
    let before = phase(&result, "vmm:wrapper");
    assert!(before >= 0.2 && before < planted, "{before} {planted}");
    assert!(phase(&result, "vmm:exit") < 0.5 * planted);
    let initcalls = result["counts"]["initcalls"]["mean"].as_f64();
    assert!(initcalls.is_some_and(|n| n >= 500.0), "QEMU was looked into: {initcalls:?}");
}

#[test]
fn a_boot_menu_that_waits() {
    let Some((_, kernel)) = kernel() else { return };
    let lab = Lab::alone();
    let command = |menu: &'static str| {
        let mut words = vec!["--", "qemu-system-x86_64", "-accel", "tcg", "-machine", "q35"];
        words.extend(["-m", "512", "-display", "none", "-no-reboot", "-serial", "stdio"]);
        words.extend(["-boot", menu, "-kernel", text(&kernel)]);
        words.extend(["-append", "console=ttyS0 quiet panic=-1"]);
        words
    };
    // Without a root the guest panics and ends: what comes before that is what counts here.
    let measure = |menu| {
        let mut all = vec!["boot", "--warmup", "0", "--runs", "1", "--export-json", "-"];
        all.extend(command(menu));
        let ran = lab.run(&all);
        assert_eq!(ran.status, 1, "{}", ran.stderr);
        serde_json::from_str::<Value>(&ran.stdout).expect("JSON")
    };
    let plain = measure("menu=off");
    let waiting = measure("menu=on,splash-time=700");
    let found: f64 = spans(run(&waiting), "bios:boot-menu-wait").iter().map(|(a, b)| b - a).sum();
    // SeaBIOS's own clock: it counts ticks of 54.9 ms, and waits for the tick after the last
    // (irqtimer_calc in src/hw/timer.c), so 700 ms are 13 to 14 ticks.
    let tick = 65536.0 / 1_193_182.0;
    let waited = found.clamp(13.0 * tick, 14.0 * tick);
    assert_found(found, waited, "SeaBIOS's splash-time");
    let (with, without) = (phase(&waiting, "bios:overhead"), phase(&plain, "bios:overhead"));
    assert!(with - without > 0.5, "bios:overhead {without} s, with the menu {with} s");
}

#[test]
fn fw_cfg_without_dma() {
    if common::is_left_to_test_long() {
        return;
    }
    let Some((_, kernel)) = kernel() else { return };
    let lab = Lab::alone();
    let initrd = lab.path("initrd");
    let built = lab.run(&["appliance", "build", "--out", text(&initrd)]);
    assert_eq!(built.status, 0, "{}", built.stderr);
    let measure = |dma: &str| {
        let dma = format!("fw_cfg.dma_enabled={dma}");
        let mut all = vec!["--", "qemu-system-x86_64", "-accel", "tcg", "-machine", "q35"];
        all.extend(["-m", "512", "-nodefaults", "-display", "none", "-no-reboot"]);
        all.extend(["-serial", "stdio", "-global", &dma, "-kernel", text(&kernel)]);
        all.extend(["-initrd", text(&initrd), "-append", "console=ttyS0 quiet panic=-1"]);
        boot(&lab, &all)
    };
    let (on, off) = (measure("on"), measure("off"));
    let (with, without) = (phase(&on, "kernel:load"), phase(&off, "kernel:load"));
    assert!(without >= 5.0 * with, "kernel:load {with} s by DMA, {without} s by port");
    let other = |result, name| phase(result, name);
    for name in ["kernel:decompress", "vmm:link"] {
        let (a, b) = (other(&on, name), other(&off, name));
        assert!(b < 5.0 * a.max(0.01), "{name} changed as well: {a} s, {b} s");
    }
}

#[test]
fn an_init_that_sleeps() {
    if kernel().is_none() {
        return;
    }
    let lab = Lab::new();
    let result = boot(&lab, &["--append", "vmeter.sleep=planted:400 vmeter.report"]);
    let planted = reported(&result, "planted");
    assert_found(span(run(&result), "/init:planted"), planted, "the init's sleep");
    assert!(planted >= 0.4);
}

#[test]
fn a_power_off_that_is_delayed() {
    if common::is_left_to_test_long() {
        return;
    }
    if kernel().is_none() {
        return;
    }
    let lab = Lab::alone();
    let arguments = "vmeter.poweroff_delay=300 vmeter.report";
    let result = boot(&lab, &["--append", arguments]);
    let plain = boot(&lab, &[]);
    let planted = reported(&result, "poweroff-delay");
    let (with, without) = (phase(&result, "shutdown"), phase(&plain, "shutdown"));
    assert!(planted >= 0.3);
    assert!(with >= planted && without < 0.5 * planted, "shutdown {without} s, delayed {with} s");
}

/// What the init's own clock says of a step, s: `vmeter: clock BEGIN END STEP` on the console.
fn reported(result: &Value, step: &str) -> f64 {
    let console = console(result);
    let clock = console.split("vmeter: clock ").skip(1).find_map(|rest| {
        let mut words = rest.split([' ', '\r']);
        let (begin, end) = (words.next()?.parse::<f64>().ok()?, words.next()?.parse::<f64>().ok()?);
        (words.next()? == step).then_some((end - begin) / 1e9)
    });
    clock.unwrap_or_else(|| panic!("no clock of {step:?} in {console:?}"))
}

/// What the first run's guest wrote, without the stamps that the recording has between.
fn console(result: &Value) -> String {
    let saved = result["saved_in"].as_str().expect("saved_in");
    let path = Path::new(saved).join("runs/0000/console.chunks");
    let recording = std::fs::read_to_string(path).expect("the console");
    let (_, mut rest) = recording.split_once('\n').expect("a header");
    let mut console = String::new();
    while let Some((head, body)) = rest.split_once('\n') {
        let length: usize = head.split(' ').nth(1).and_then(|n| n.parse().ok()).expect("a length");
        console.push_str(&body[..length]);
        rest = &body[length + 1..];
    }
    console
}

#[test]
fn a_machine_that_is_continued_late() {
    let Some((_, kernel)) = kernel() else { return };
    let lab = Lab::alone();
    let initrd = lab.path("initrd");
    assert_eq!(lab.run(&["appliance", "build", "--out", text(&initrd)]).status, 0);
    let socket = lab.path("qmp");
    let late = std::thread::spawn({
        let socket = socket.clone();
        move || continue_after(&socket, std::time::Duration::from_millis(1500))
    });
    let qmp = format!("unix:{},server=on,wait=off", socket.display());
    let mut all = vec!["--", "qemu-system-x86_64", "-accel", "tcg", "-machine", "q35", "-S"];
    all.extend(["-qmp", &qmp, "-m", "512", "-nodefaults", "-display", "none", "-no-reboot"]);
    all.extend(["-serial", "stdio", "-kernel", text(&kernel), "-initrd", text(&initrd)]);
    all.extend(["-append", "console=ttyS0 quiet panic=-1"]);
    let result = boot(&lab, &all);
    let planted = late.join().expect("the planter");
    let (init, waited) = (phase(&result, "vmm:init"), phase(&result, "vmm:wait-for-start"));
    let found = init + waited;
    assert!(found >= planted && found < 2.0 * planted, "{init} + {waited} s, held {planted} s");
    // It was being initialised for the first part of that.
    assert!(waited > 0.5 * planted, "{init} + {waited} s, held {planted} s");
}

/// Connects to QMP as soon as it is there, holds the machine for `wait`, continues it.
/// Gives the time between the connection and the command, s.
fn continue_after(socket: &Path, wait: std::time::Duration) -> f64 {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixStream;
    let stream = loop {
        match UnixStream::connect(socket) {
            Ok(stream) => break stream,
            Err(_) => std::thread::yield_now(),
        }
    };
    let begin = std::time::Instant::now();
    let mut reader = BufReader::new(stream.try_clone().expect("a socket"));
    let mut line = String::new();
    reader.read_line(&mut line).expect("QMP's greeting");
    let say = |text: &str| (&stream).write_all(text.as_bytes()).expect("QMP");
    say("{\"execute\":\"qmp_capabilities\"}\n");
    std::thread::sleep(wait);
    let held = begin.elapsed().as_secs_f64();
    say("{\"execute\":\"cont\"}\n");
    // QEMU forgets the commands of a client that hangs up: wait for both answers.
    for _ in 0..2 {
        line.clear();
        reader.read_line(&mut line).expect("QMP's answer");
    }
    held
}

/// A module whose init waits, and says on the console how long by the kernel's own clock.
const PLANTED_MODULE: &str = r#"
#include <linux/module.h>
#include <linux/delay.h>
#include <linux/ktime.h>
static int __init planted_init(void)
{
	u64 before = ktime_get_raw_ns(), after;
	msleep(200);
	after = ktime_get_raw_ns();
	pr_emerg("vmeter: clock %llu %llu planted\n", before, after);
	return 0;
}
static void __exit planted_exit(void) {}
module_init(planted_init);
module_exit(planted_exit);
MODULE_LICENSE("GPL");
"#;

#[test]
fn a_module_whose_init_waits() {
    if common::is_left_to_test_long() {
        return;
    }
    let Some((release, _)) = kernel() else { return };
    let lab = Lab::new();
    let built = common::module::build(&release, "planted", PLANTED_MODULE, lab.folder.path());
    let Some(module) = built else { return };
    let list = lab.path("modules");
    std::fs::write(&list, "/planted.ko\n").expect("scratch space");
    let initrd = lab.path("initrd");
    let files = [
        format!("/planted.ko={}", module.display()),
        format!("/etc/vmeter/modules={}", list.display()),
    ];
    let ran = lab.run(&[
        "appliance",
        "build",
        "--file",
        &files[0],
        "--file",
        &files[1],
        "--out",
        text(&initrd),
    ]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let result = boot(&lab, &["--initrd", text(&initrd)]);
    let planted = reported(&result, "planted");
    assert!(planted >= 0.2);
    assert_found(
        span(run(&result), "initcall init_module [planted]"),
        planted,
        "the module's init",
    );
    let insmod = phase(&result, "insmod planted");
    assert!(insmod >= planted && insmod < 2.0 * planted, "insmod {insmod} s, init {planted} s");
}

#[test]
fn a_udev_rule_that_sleeps() {
    let Some(_) = kernel() else { return };
    let busybox = Path::new("/bin/busybox");
    if !busybox.exists()
        || !Path::new("/bin/udevadm").exists() && !Path::new("/usr/bin/udevadm").exists()
    {
        eprintln!("skipped: needs busybox-static and udev");
        return;
    }
    let lab = Lab::new();
    let script = "#!/bin/busybox sh\nread before rest < /proc/uptime\n/bin/busybox sleep 3\n\
                  read after rest < /proc/uptime\necho \"planted from $before to $after.\" > /dev/ttyS0\n";
    let program = lab.script("planted", script);
    let rules = lab.path("99-planted.rules");
    std::fs::write(&rules, "SUBSYSTEM==\"mem\", KERNEL==\"null\", RUN+=\"/bin/planted\"\n")
        .expect("scratch space");
    let initrd = lab.path("initrd");
    let files = [
        "/bin/busybox=/bin/busybox".to_owned(),
        format!("/bin/planted={}", program.display()),
        format!("/usr/lib/udev/rules.d/99-planted.rules={}", rules.display()),
    ];
    let mut all = vec!["appliance", "build", "--init", "udev", "--out", text(&initrd)];
    files.iter().for_each(|file| all.extend(["--file", file]));
    let ran = lab.run(&all);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let result = boot(&lab, &["--initrd", text(&initrd), "--append", "vmeter.init=udev"]);
    let console = console(&result);
    let uptimes = console.split_once("planted from ").expect("the planter's clock").1;
    let (before, rest) = uptimes.split_once(" to ").expect("two stamps");
    let after = rest.split(['\r', '\n', ' ']).next().expect("a stamp").trim_end_matches('.');
    let stamp = |text: &str| text.parse::<f64>().expect("seconds");
    let planted = stamp(after) - stamp(before);
    let settle: f64 =
        spans(run(&result), "/init:udev-settle").iter().map(|(from, to)| to - from).sum();
    assert!(planted >= 2.99 && settle >= planted - 0.02, "settle {settle} s, planted {planted} s");
    // It ran beside udev's own work: what overlapped that is beside the tree.
    let in_list = |list: &str| run(&result)[list].as_array().cloned().expect("a list of spans");
    let all: Vec<Value> = in_list("spans").into_iter().chain(in_list("overlapping")).collect();
    let length = |name: &str| {
        let is = |span: &&Value| span["name"].as_str().is_some_and(|n| n.starts_with(name));
        let of = all.iter().find(is);
        let of = of.unwrap_or_else(|| panic!("no {name:?}\n{}", common::names(run(&result))));
        of["end_s"].as_f64().expect("end") - of["start_s"].as_f64().expect("start")
    };
    let (script, sleep) = (length("exec /bin/planted"), length("exec /bin/busybox"));
    // /proc/uptime counts in 10 ms, and the script's two readings enclose the sleep.
    let tick = 0.01;
    assert!(sleep <= planted + tick && planted <= script + tick, "{sleep} {planted} {script}");
    // The process can live longer than its sleep where the guest waits for the host's CPU, never
    // shorter.
    assert!(sleep >= 3.0, "{sleep}");
}
