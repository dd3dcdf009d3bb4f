//! What this host can measure, what is missing, and what mends it.

pub mod aa;
mod freed;
mod json;
mod leftovers;
mod report;

pub use report::DoctorReport;

use anyhow::Result;
use std::fs;
use std::path::Path;
use std::time::Duration;
use vmeter_kvm_probe::Quality;
use vmeter_machine::capabilities;
use vmeter_model::result::{
    Check, CheckName as Name, CheckStatus as Status, DoctorResult, Envelope,
};
use vmeter_session::{cache_dir, state_dir};

fn check(name: Name, status: Status, found: impl Into<String>, mend: &str) -> Check {
    Check { name, status, found: found.into(), mend: mend.into(), detail: String::new() }
}

/// Looks at the host, the VMM and the caches; with `clean` removes what vmeters that were
/// killed have left.
///
/// # Errors
/// Nobody's home: there is no folder for a cache.
pub fn examine(argv: Vec<String>, clean: bool) -> Result<DoctorResult> {
    let cache = cache_dir()?;
    let state = state_dir()?;
    let places = [cache.clone(), state.join("runs"), state];
    let mut checks = vec![kvm(), qemu(&cache), firmware(&cache), kernels(&cache)];
    checks.extend([ptrace(), tracefs(), uprobes(), clock(), frequency(), steal()]);
    checks.extend([freed::freed(), noise()]);
    checks.push(leftovers::leftovers(&places, clean));
    let envelope = Envelope {
        schema: vmeter_model::SCHEMA.into(),
        command: "doctor".into(),
        argv,
        started_at: vmeter_session::host::now(),
        host: vmeter_session::host::describe(),
        provenance: [("vmeter".to_owned(), vmeter_session::envelope::version())].into(),
    };
    Ok(DoctorResult { envelope, checks })
}

fn qemu(cache: &Path) -> Check {
    let name = Name::Qemu;
    let program = Path::new(vmeter_machine::backends::qemu::PROGRAM);
    let answer = match capabilities::of(program, cache) {
        Ok(answer) => answer,
        Err(error) => {
            return check(
                name,
                Status::Missing,
                error.to_string(),
                "sudo apt-get install qemu-system-x86",
            );
        }
    };
    let found = answer.capabilities.version_line.clone();
    Check { detail: saving(&answer), ..check(name, Status::Good, found, "") }
}

/// What remembering the VMM's features saves a launch.
fn saving(answer: &capabilities::Answer) -> String {
    let ms = |d: Duration| d.as_secs_f64() * 1e3;
    let asking = ms(answer.asking_took);
    match answer.origin {
        capabilities::Origin::Asked => {
            format!(
                "vmeter queried the VMM's features in {asking:.0} ms; later launches read \
                them from the cache"
            )
        }
        _ => format!(
            "vmeter read the VMM's features from the cache in {:.2} ms; asking the VMM itself \
                takes {asking:.0} ms",
            ms(answer.took)
        ),
    }
}

fn firmware(cache: &Path) -> Check {
    let name = Name::Firmware;
    let answer = capabilities::of(Path::new(vmeter_machine::backends::qemu::PROGRAM), cache);
    let file = |name| answer.as_ref().ok().and_then(|a| a.capabilities.firmware_file(name));
    match (file("bios-256k.bin"), file("qboot.rom")) {
        (Some(bios), Some(qboot)) => {
            check(name, Status::Good, format!("{}, {}", bios.display(), qboot.display()), "")
        }
        (Some(bios), None) => check(
            name,
            Status::Poor,
            format!("{}; no qboot.rom", bios.display()),
            "--firmware qboot needs qboot.rom: sudo apt-get install qemu-system-data",
        ),
        _ => check(
            name,
            Status::Missing,
            "no SeaBIOS",
            "sudo apt-get install seabios qemu-system-data",
        ),
    }
}

fn kernels(cache: &Path) -> Check {
    let kernels = vmeter_appliance::kernel::list_in(cache);
    let versions: Vec<&str> = kernels.iter().map(|k| k.version.as_str()).collect();
    if versions.is_empty() {
        check(Name::Kernels, Status::Missing, "none cached", "vmeter kernel fetch")
    } else {
        check(Name::Kernels, Status::Good, versions.join(", "), "")
    }
}

fn kvm() -> Check {
    let probe = match vmeter_kvm_probe::probe(Duration::from_secs(2)) {
        Ok(probe) => probe,
        Err(error) => {
            return check(Name::Kvm, Status::Missing, error.to_string(), "TCG is used instead");
        }
    };
    let found = probe.summary();
    match probe.ring0 {
        Quality::Native { .. } => check(Name::Kvm, Status::Good, found, ""),
        _ => check(
            Name::Kvm,
            Status::Poor,
            found,
            "kernels boot under TCG here; a host that exposes VMX or SVM runs them natively",
        ),
    }
}

fn ptrace() -> Check {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let name = Name::Ptrace;
    match scope.trim() {
        "3" => check(
            name,
            Status::Missing,
            "kernel.yama.ptrace_scope is 3",
            "vmeter cannot see when the VMM reaches its entry point, enters main and exits, and \
                cannot read the guest's RAM. The kernel does not let anyone lower \
                kernel.yama.ptrace_scope from 3: remove the setting from the host's \
                configuration, and reboot",
        ),
        "2" if !rustix::process::geteuid().is_root() => check(
            name,
            Status::Missing,
            "kernel.yama.ptrace_scope is 2",
            "sudo sysctl kernel.yama.ptrace_scope=1",
        ),
        _ => check(name, Status::Good, "allowed", ""),
    }
}

fn tracefs() -> Check {
    let mounted = Path::new("/sys/kernel/tracing/events").exists();
    let root = rustix::process::geteuid().is_root();
    let name = Name::Tracefs;
    if mounted && fs::read_dir("/sys/kernel/tracing/instances").is_ok() {
        check(name, Status::Good, "mounted and readable", "")
    } else if !mounted && Path::new("/sys/kernel/tracing").exists() {
        check(name, Status::Poor, "not mounted", "sudo mount -t tracefs nodev /sys/kernel/tracing")
    } else if mounted && !root {
        check(name, Status::Poor, "not readable by this user", "run vmeter by sudo")
    } else {
        check(
            name,
            Status::Missing,
            "not in this kernel",
            "KVM's tracepoints cannot be recorded; a boot under TCG needs no tracepoint",
        )
    }
}

fn uprobes() -> Check {
    if Path::new("/sys/kernel/tracing/uprobe_events").exists() {
        check(Name::Uprobes, Status::Good, "available", "")
    } else {
        check(
            Name::Uprobes,
            Status::Poor,
            "not available",
            "vmeter boots without uprobes: it uses ptrace to see when the VMM reaches its entry \
                point and `main`",
        )
    }
}

fn clock() -> Check {
    let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let source = fs::read_to_string(path).unwrap_or_default();
    let source = source.trim();
    match source {
        "tsc" | "kvm-clock" => check(Name::Clock, Status::Good, source, ""),
        _ => check(
            Name::Clock,
            Status::Poor,
            source,
            "with this clock source, reading the time can need a system call, and vmeter aligns \
                the guest's stamps with the host's clock less exactly",
        ),
    }
}

fn frequency() -> Check {
    let path = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor";
    match fs::read_to_string(path) {
        Err(_) => check(
            Name::Frequency,
            Status::Good,
            "not visible here (no cpufreq, as in most VMs)",
            "",
        ),
        Ok(governor) if governor.trim() == "performance" => {
            check(Name::Frequency, Status::Good, "governor performance", "")
        }
        Ok(governor) => check(
            Name::Frequency,
            Status::Poor,
            format!("governor {}", governor.trim()),
            "sudo cpupower frequency-set -g performance",
        ),
    }
}

fn steal() -> Check {
    let uptime = fs::read_to_string("/proc/uptime").unwrap_or_default();
    let uptime: f64 =
        uptime.split(' ').next().and_then(|s| s.parse().ok()).unwrap_or(f64::INFINITY);
    let cpus = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    let share = 100.0 * vmeter_session::host::steal_s() / (uptime * cpus);
    let found = format!("{share:.1} % of CPU time since the host started");
    if share < 1.0 {
        return check(Name::Steal, Status::Good, found, "");
    }
    check(
        Name::Steal,
        Status::Poor,
        found,
        "other guests take CPU time from this host: use more --runs, or compare the VMM's CPU time \
            (vmeter bench shows it)",
    )
}

/// The same work timed many times: how much this host's wall clock can be believed now.
fn noise() -> Check {
    let mut samples: Vec<f64> = (0..200).map(|_| spin()).collect();
    samples.sort_by(f64::total_cmp);
    let (median, high) = (samples[100], samples[180]);
    let spread = 100.0 * (high / median - 1.0);
    let found = format!(
        "of 200 runs of a fixed loop, the slowest tenth take at least {spread:.0} % longer than \
            the median"
    );
    if spread < 10.0 {
        return check(Name::Noise, Status::Good, found, "");
    }
    check(
        Name::Noise,
        Status::Poor,
        found,
        "stop other programs, use --pin CPUS, or use more \
        --runs",
    )
}

fn spin() -> f64 {
    let begin = std::time::Instant::now();
    let mut x = 1_u64;
    for i in 0..200_000_u64 {
        x = std::hint::black_box(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(i));
    }
    std::hint::black_box(x);
    begin.elapsed().as_secs_f64()
}
