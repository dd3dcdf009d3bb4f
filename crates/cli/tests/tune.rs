//! `vmeter tune` on machines that are played from scripts: what helps is found, what does not is not
//! recommended, what breaks the guest is rejected with its last line, and what was not allowed is never
//! started.

use crate::common;

use common::{amount, finished, has_qemu, is_long, kernel, signal, text, Lab};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// A machine with a part for each candidate of `parts`, which nothing makes shorter but `lines`.
fn script(lab: &Lab, noise: &str, lines: &str) -> PathBuf {
    let path = lab.path("guest.mock");
    let machine = "vmeter-mock 1\n1ms vmm-exec\n4ms vmm-entry\n2ms vmm-main\n28ms state running\n\
        0.1ms reach reset-vector\n60ms firmware SeaBIOS (version mock)\n16ms reach startup_32\n\
        95ms reach start_kernel\n0 kernel Linux version 6.1.0-mock\n\
        0 kernel Memory: 480000K/524288K available\n0 kernel smp: Brought up 1 node, 1 CPU\n\
        30ms reach kernel_init_freeable\n0 level early\n60ms initcall acpi_init\n\
        15ms initcall pci_subsys_init\n15ms initcall pcie_portdrv_init\n15ms initcall hpet_late_init\n\
        15ms initcall inet6_init\n15ms initcall usb_init\n15ms initcall deferred_probe_initcall\n\
        15ms initcall psi_proc_init\n15ms initcall pci_iommu_init\n0 level late\n20ms initcall inet_init\n";
    let end = "19ms reach run_init_process\n0.5ms exec 1 /init\n20ms step mount\n0 ready\n\
        1ms shutdown\n12ms poweroff\n4ms vmm-exiting\n3ms exit 0\n";
    std::fs::write(&path, format!("{machine}{lines}{noise}\n{end}")).expect("scratch space");
    path
}

/// Three that can help: two save what a part takes, and the third only beside the first.
const HELPFUL: &str = "unless append~cryptomgr.notests: 60ms initcall crypto_algapi_init\n\
    if append~cryptomgr.notests: 5ms initcall crypto_algapi_init\n\
    unless append~i8042.nokbd: 40ms initcall i8042_init\n\
    if append~i8042.nokbd: 4ms initcall i8042_init\n\
    unless append~8250.nr_uarts=1: 20ms initcall serial8250_init\n\
    if append~8250.nr_uarts=1 and append!~cryptomgr.notests: 20ms initcall serial8250_init\n\
    if append~8250.nr_uarts=1 and append~cryptomgr.notests: 2ms initcall serial8250_init\n";
/// The same with nothing that helps.
const USELESS: &str = "60ms initcall crypto_algapi_init\n40ms initcall i8042_init\n\
    20ms initcall serial8250_init\n";
const NOISES: [&str; 5] = [
    "noise normal 3%",
    "noise skewed 2%",
    "noise ar1 3% 0.5",
    "noise steal 20%",
    "noise rare 2% 1/20 x3",
];

fn asked(lab: &Lab, script: &Path, arguments: &[&str]) -> Value {
    let mut all = vec!["tune", "--vmm", "mock", "--export-json", "-"];
    all.extend(arguments);
    let mut command = lab.command(&all);
    let output = command.env("VMETER_MOCK_SCRIPT", script).output().expect("vmeter runs");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn step<'v>(result: &'v Value, id: &str) -> &'v Value {
    let all = result["steps"].as_array().expect("steps");
    all.iter().find(|s| s["id"] == id).unwrap_or_else(|| panic!("no {id}"))
}

fn kept(result: &Value) -> Vec<&str> {
    let all = result["steps"].as_array().expect("steps");
    let kept = all.iter().filter(|s| s["kept"] == true);
    kept.map(|s| s["id"].as_str().expect("an id")).collect()
}

/// Every command line of a session's boots: words for the kernel, and arguments.
fn started(dir: &str) -> Vec<String> {
    let session = std::fs::read(Path::new(dir).join("session.json")).expect("session.json");
    let session: Value = serde_json::from_slice(&session).expect("JSON");
    let machines = session["machines"].as_array().expect("machines");
    machines.iter().map(|m| format!("{} {}", m["spec"], m["argv"])).collect()
}

const UNSAFE: [&str; 8] = [
    "mitigations=off",
    "nokaslr",
    "cache=unsafe",
    "random.trust",
    "init_on_alloc=0",
    "audit=0",
    "apparmor=0",
    "vmlinux",
];

#[test]
fn nothing_to_gain_recommends_nothing() {
    let lab = Lab::new();
    let tunings = amount(5, 40);
    let mut wrong = 0;
    for seed in 0..tunings {
        let script = script(&lab, NOISES[seed % NOISES.len()], USELESS);
        let result = asked(&lab, &script, &["--seed", &seed.to_string()]);
        wrong += usize::from(!kept(&result).is_empty());
        if kept(&result).is_empty() {
            assert_eq!(result["recommended"], false);
            assert_eq!(result["tuned_command"], serde_json::json!(["mock"]));
        }
    }
    assert!(wrong * 20 <= tunings, "{wrong} of {tunings}");
}

#[test]
fn what_helps_is_found_and_the_interval_holds() {
    let lab = Lab::new();
    let tunings = amount(5, 40);
    let (mut found, mut held, mut more) = (0, 0, 0);
    for seed in 0..tunings {
        let script = script(&lab, NOISES[seed % NOISES.len()], HELPFUL);
        let result = asked(&lab, &script, &["--budget", "60m", "--seed", &seed.to_string()]);
        let kept = kept(&result);
        let all = ["crypto-tests", "i8042-probe", "serial8250-init"];
        found += usize::from(all.iter().all(|id| kept.contains(id)));
        more += kept.iter().filter(|id| !all.contains(id)).count();
        // What nothing makes shorter adds up to 521 ms; the three parts take 120 ms, and 11 without.
        let truth = truth(&kept);
        let end = |at: usize| result["ratio"]["ci95"][at].as_f64().unwrap_or(f64::NAN);
        let (low, high) = (end(0), end(1));
        // A script without noise in its ratio has an interval without width.
        held += usize::from(low - 1e-4 <= truth && truth <= high + 1e-4);
        println!("seed {seed}: {kept:?} {low:.3} {truth:.3} {high:.3}");
    }
    println!("{found} found, {held} held of {tunings}; {more} others kept");
    assert!(found * 10 >= tunings * 9 - 5, "{found} of {tunings}");
    assert!(held * 10 >= tunings * 9 - 5, "{held} of {tunings}");
    assert!(more * 5 <= tunings, "{more}");
}

/// How many times as fast the machine with these steps is, by its script.
fn truth(kept: &[&str]) -> f64 {
    let rest = 1.0 + 4.0 + 2.0 + 28.0 + 0.1 + 60.0 + 16.0 + 95.0 + 30.0 + 60.0 + 8.0 * 15.0 + 20.0;
    let rest = rest + 19.0 + 0.5 + 20.0 + 1.0 + 12.0 + 4.0 + 3.0;
    let has = |id: &str| kept.contains(&id);
    let crypto = if has("crypto-tests") { 5.0 } else { 60.0 };
    let keyboard = if has("i8042-probe") { 4.0 } else { 40.0 };
    let both = has("serial8250-init") && has("crypto-tests");
    let serial = if both { 2.0 } else { 20.0 };
    (rest + 120.0) / (rest + crypto + keyboard + serial)
}

#[test]
fn what_breaks_the_guest_is_rejected_with_its_last_line() {
    let lab = Lab::new();
    let broken = "if append~ipv6.disable=1: 0 console network: no such protocol\n\
        if append~ipv6.disable=1: 1ms panic Kernel panic - not syncing: planted\n\
        if append~usbcore.nousb: 0 console waiting for a keyboard\n\
        if append~usbcore.nousb: 1ms hang\n\
        if vmm~hpet=off: 0 kernel smp: Brought up 1 node, 2 CPUs\n";
    let script = script(&lab, NOISES[0], &format!("{HELPFUL}{broken}"));
    let result = asked(&lab, &script, &["--seed", "3"]);
    let reason = |id: &str| step(&result, id)["reason"].as_str().expect("words").to_owned();
    assert!(reason("ipv6").contains("Kernel panic - not syncing: planted"), "{}", reason("ipv6"));
    assert!(reason("usb-core").contains("waiting for a keyboard"), "{}", reason("usb-core"));
    assert!(
        reason("hpet-device").contains("vCPUs changed from 1 to 2"),
        "{}",
        reason("hpet-device")
    );
    assert!(kept(&result).contains(&"crypto-tests"), "{:?}", kept(&result));
    let checked = result["inventory"].as_array().expect("items");
    let of = |what: &str| {
        checked.iter().find(|item| item["what"] == what).expect(what)["sameness"].clone()
    };
    assert_eq!(
        (of("vCPUs"), of("memory"), of("end")),
        ("same".into(), "same".into(), "same".into())
    );
    assert_eq!(of("console"), "could not be checked");
}

#[test]
fn what_is_not_allowed_or_must_be_kept_is_never_started() {
    let lab = Lab::new();
    let lines = format!("{HELPFUL}unless append~mitigations=off: 40ms initcall audit_init\n");
    let script = script(&lab, NOISES[0], &lines);
    let plain = asked(&lab, &script, &["--seed", "5", "--keep", "input,acpi"]);
    let lines = started(plain["saved_in"].as_str().expect("a folder"));
    assert!(lines.len() > 3, "{lines:?}");
    for word in UNSAFE.iter().chain(&["i8042", "acpi=off", "-smp", "-m "]) {
        assert!(lines.iter().all(|line| !line.contains(word)), "{word}: {lines:?}");
    }
    let why = step(&plain, "i8042-probe")["reason"].as_str().expect("words");
    assert!(why.starts_with("excluded by --keep input"), "{why}");
    let why = step(&plain, "audit")["reason"].as_str().expect("words");
    assert!(why.starts_with("needs --allow insecure"), "{why}");
    let allowed = asked(&lab, &script, &["--seed", "5", "--allow", "insecure"]);
    let lines = started(allowed["saved_in"].as_str().expect("a folder"));
    assert!(lines.iter().any(|line| line.contains("audit=0")), "{lines:?}");
    let mut command = lab.command(&["tune", "--vmm", "mock", "--allow", "kernel-build"]);
    let command = command.env("XDG_CACHE_HOME", lab.path("no-cache"));
    let refused = common::Ran::from(command.output().expect("vmeter runs"));
    assert_eq!(refused.status, 2, "{}", refused.stdout);
    assert!(refused.stderr.contains("vmeter kernel build"), "{}", refused.stderr);
}

#[test]
fn killed_and_resumed_it_gives_the_same_answer() {
    let lab = Lab::new();
    let script = script(&lab, NOISES[0], HELPFUL);
    let whole = asked(&lab, &script, &["--seed", "7"]);
    let dir = lab.path("killed");
    let begin = ["tune", "--vmm", "mock", "--seed", "7", "--prepare", "true", "--save", text(&dir)];
    for runs in [1, 14, 60] {
        let resume = ["tune", "--resume", text(&dir)];
        let arguments: &[&str] = if runs == 1 { &begin } else { &resume };
        let mut command = lab.command(arguments);
        command.env("VMETER_MOCK_SCRIPT", &script).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().expect("vmeter runs");
        let begun = Instant::now();
        let count = || finished(&dir).keys().filter(|path| path.ends_with("run.json")).count();
        while count() < runs && begun.elapsed() < Duration::from_secs(120) {
            assert!(child.try_wait().expect("a child").is_none(), "it ended by itself");
            std::thread::sleep(Duration::from_millis(5));
        }
        signal(&child, "KILL");
        child.wait().expect("a child");
    }
    let mut command = lab.command(&["tune", "--resume", text(&dir), "--export-json", "-"]);
    let output = command.env("VMETER_MOCK_SCRIPT", &script).output().expect("vmeter runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let resumed: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    for field in
        ["steps", "ratio", "samples_s", "tuned_command", "inventory", "phases", "boots", "ended"]
    {
        assert_eq!(resumed[field], whole[field], "{field}");
    }
}

#[test]
fn what_cannot_be_worth_it_costs_no_boot_and_the_script_runs_the_answer() {
    let lab = Lab::new();
    let script = script(&lab, NOISES[0], HELPFUL);
    let file = lab.path("tuned.sh");
    let result = asked(&lab, &script, &["--worth", "5%", "--seed", "9", "-o", text(&file)]);
    let reason = step(&result, "usb-core")["reason"].as_str().expect("words");
    assert!(reason.contains("below --worth 5.0 %"), "{reason}");
    let lines = started(result["saved_in"].as_str().expect("a folder"));
    assert!(lines.iter().all(|line| !line.contains("nousb")), "{lines:?}");
    let text = std::fs::read_to_string(&file).expect("the script");
    assert!(text.contains("exec mock") && text.contains("cryptomgr.notests"), "{text}");
}

/// Debian's cloud kernel and the minimal appliance, by TCG.
#[test]
fn a_real_guest_gets_faster_and_stays_the_same() {
    if !is_long() || !has_qemu() {
        eprintln!("skipped: takes ten minutes (make test-long)");
        return;
    }
    let Some((_, kernel)) = kernel() else { return };
    let lab = Lab::new();
    let initrd = lab.path("initrd");
    assert_eq!(lab.run(&["appliance", "build", "--out", text(&initrd)]).status, 0);
    let mut all =
        vec!["tune", "--budget", "10m", "--allow", "insecure", "--export-json", "-", "--"];
    all.extend(["qemu-system-x86_64", "-machine", "q35", "-m", "512", "-kernel", text(&kernel)]);
    all.extend(["-initrd", text(&initrd), "-serial", "stdio", "-display", "none"]);
    let ran = lab.run(&all);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let result: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!(result["recommended"], true, "{result:#}");
    assert!(
        result["ratio"]["ci95"][0].as_f64().is_some_and(|low| low > 1.15),
        "{:#}",
        result["ratio"]
    );
    let differs = |item: &&Value| item["sameness"] == "differs";
    assert_eq!(result["inventory"].as_array().expect("items").iter().filter(differs).count(), 0);
}
