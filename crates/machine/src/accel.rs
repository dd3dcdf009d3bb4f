//! Choosing the accelerator: KVM only where it runs a kernel.
//!
//! A `/dev/kvm` that exists proves little: a software KVM interprets kernel mode at
//! a millionth of the speed, and a boot in it looks like a hang. So the node is
//! tried with a few thousand guest instructions, once per boot of the host.

use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Duration;
use vmeter_base::files;
use vmeter_kvm_probe::{Probe, Quality};
use vmeter_model::{Accel, AskedAccel};

/// The accelerator, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// What will be used.
    pub accel: Accel,
    /// Why, or how to change it.
    pub why: String,
}

/// Why there is no accelerator to use.
#[derive(Debug, thiserror::Error)]
pub enum AccelError {
    /// The VMM was built without it.
    #[error(
        "--accel {wanted}: this VMM was built without this accelerator, but with {}",
        .has.join(", ")
    )]
    NotBuilt {
        /// What was asked for.
        wanted: Accel,
        /// What there is.
        has: Vec<String>,
    },
    /// KVM was asked for by name and is not usable at all.
    #[error("--accel kvm: {0}; use --accel tcg")]
    NoKvm(String),
}

/// How long the probe of the node may take.
const BUDGET: Duration = Duration::from_millis(1500);

/// Decides. `built` lists the accelerators the VMM has, as its `-accel` has them.
///
/// # Errors
/// One that the VMM or the host lacks.
pub fn choose(
    asked: Option<AskedAccel>,
    built: &[String],
    cache: &Path,
) -> Result<Choice, AccelError> {
    let has = |accel: Accel| {
        // Virtual time is the translator's.
        let name = if accel == Accel::Icount { Accel::Tcg.word() } else { accel.word() };
        built.iter().any(|b| b == name)
    };
    let need = |wanted: Accel| {
        if has(wanted) {
            Ok(())
        } else {
            Err(AccelError::NotBuilt { wanted, has: built.to_vec() })
        }
    };
    match asked.unwrap_or(AskedAccel::Auto) {
        AskedAccel::Only(Accel::Tcg) => {
            need(Accel::Tcg).map(|()| choice(Accel::Tcg, "--accel tcg"))
        }
        AskedAccel::Only(Accel::Icount) => need(Accel::Icount).map(|()| {
            choice(
                Accel::Icount,
                "--accel icount: guest time is an instruction count, so it is equal in every run",
            )
        }),
        AskedAccel::Only(Accel::Kvm) => {
            need(Accel::Kvm)?;
            let probe = probe(cache).map_err(AccelError::NoKvm)?;
            let why = match probe.ring0 {
                Quality::Native { .. } => "--accel kvm".to_owned(),
                _ => {
                    format!("--accel kvm does not work here: {}; use --accel tcg", probe.summary())
                }
            };
            Ok(choice(Accel::Kvm, why))
        }
        AskedAccel::Auto if !has(Accel::Kvm) => {
            need(Accel::Tcg)?;
            Ok(choice(Accel::Tcg, "this VMM was built without KVM"))
        }
        AskedAccel::Auto => match probe(cache) {
            Ok(probe) if probe.boots_kernels() => Ok(choice(
                Accel::Kvm,
                format!("{}; --accel tcg for the translator", probe.summary()),
            )),
            other => {
                need(Accel::Tcg)?;
                let why = other.map_or_else(|e| e, |probe| slow(&probe));
                Ok(choice(Accel::Tcg, format!("{why}: using TCG")))
            }
        },
    }
}

fn choice(accel: Accel, why: impl Into<String>) -> Choice {
    Choice { accel, why: why.into() }
}

fn slow(probe: &Probe) -> String {
    match &probe.ring0 {
        Quality::Interpreted { insns_per_s } => format!(
            "this host's KVM emulates ring 0 at only {:.1} M instructions/s, so a kernel would \
                boot for minutes",
            insns_per_s / 1e6
        ),
        other => format!("this host's KVM cannot run guest code in kernel mode: {other}"),
    }
}

/// What the probe found, and in which boot of the host.
#[derive(Debug, Serialize, Deserialize)]
struct Remembered {
    boot_id: String,
    probe: Probe,
}

/// What `/dev/kvm` is worth, probed once per boot of the host and remembered in the
/// cache folder.
///
/// # Errors
/// In words: there is no node, or it may not be opened.
pub fn probe(cache: &Path) -> Result<Probe, String> {
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|id| id.trim().to_owned())
        .unwrap_or_default();
    let file = cache.join("kvm-probe.json");
    // A permission that was taken away since must show, so the node is opened anyway.
    std::fs::File::options().read(true).write(true).open("/dev/kvm").map_err(no_node)?;
    if let Some(probe) = remembered(&file, &boot_id) {
        return Ok(probe);
    }
    let probe = vmeter_kvm_probe::probe(BUDGET).map_err(|e| e.to_string())?;
    let sure = !matches!(probe.ring0, Quality::Absent { .. });
    if sure && !boot_id.is_empty() {
        let content = Remembered { boot_id, probe: probe.clone() };
        if let Ok(json) = serde_json::to_vec_pretty(&content) {
            // Only a saving: the next launch probes again.
            let _ = files::write_in_new_folder(&file, &json);
        }
    }
    Ok(probe)
}

fn remembered(file: &Path, boot_id: &str) -> Option<Probe> {
    let bytes = files::read_limited(file, 1 << 20).ok()?;
    let remembered: Remembered = serde_json::from_slice(&bytes).ok()?;
    (!boot_id.is_empty() && remembered.boot_id == boot_id).then_some(remembered.probe)
}

fn no_node(error: std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => {
            "there is no /dev/kvm (modprobe kvm_intel or kvm_amd, or enable nested \
             virtualisation)"
                .into()
        }
        std::io::ErrorKind::PermissionDenied => {
            "this user has no permission to open /dev/kvm (sudo usermod -aG kvm $USER, then log \
                in again)"
                .into()
        }
        _ => format!("/dev/kvm cannot be opened: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(names: &[&str]) -> Vec<String> {
        names.iter().map(|n| (*n).to_owned()).collect()
    }

    fn remember(cache: &Path, ring0: Quality) {
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("Linux");
        let absent = Quality::Absent { reason: "not asked".into() };
        let probe =
            Probe { api_version: 12, ring0, ring3: absent, capabilities: vec![], module: None };
        let content = Remembered { boot_id: boot_id.trim().into(), probe };
        let json = serde_json::to_vec(&content).expect("serialised");
        std::fs::write(cache.join("kvm-probe.json"), json).expect("written");
    }

    #[test]
    fn by_name() {
        let cache = tempfile::tempdir().expect("a folder");
        let both = built(&["tcg", "kvm"]);
        let choice =
            choose(Some(Accel::Icount.into()), &both, cache.path()).expect("TCG is built in");
        assert_eq!(choice.accel, Accel::Icount);
        let error =
            choose(Some(Accel::Kvm.into()), &built(&["tcg"]), cache.path()).expect_err("not built");
        assert!(error.to_string().contains("but with tcg"));
        let choice = choose(None, &built(&["tcg"]), cache.path()).expect("TCG");
        assert_eq!(choice.accel, Accel::Tcg);
    }

    #[test]
    fn kvm_is_taken_only_where_it_runs_a_kernel() {
        let cache = tempfile::tempdir().expect("a folder");
        let both = built(&["tcg", "kvm"]);
        if std::fs::File::options().read(true).write(true).open("/dev/kvm").is_err() {
            println!("skipped: no /dev/kvm to open");
            let choice = choose(None, &both, cache.path()).expect("TCG is left");
            assert_eq!(choice.accel, Accel::Tcg);
            return;
        }
        remember(cache.path(), Quality::Interpreted { insns_per_s: 1.1e6 });
        let choice = choose(None, &both, cache.path()).expect("TCG");
        assert_eq!(choice.accel, Accel::Tcg);
        assert!(
            choice.why.contains("emulates ring 0 at only 1.1 M instructions/s"),
            "{}",
            choice.why
        );
        remember(cache.path(), Quality::Native { insns_per_s: 2e9 });
        assert_eq!(choose(None, &both, cache.path()).expect("KVM").accel, Accel::Kvm);
        std::fs::write(cache.path().join("kvm-probe.json"), "{ corrupt").expect("written");
        let probe = probe(cache.path()).expect("asked again");
        let choice = choose(None, &both, cache.path()).expect("one of them");
        assert_eq!(choice.accel == Accel::Kvm, probe.boots_kernels());
    }
}
