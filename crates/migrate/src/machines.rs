//! The machines that are migrated: two alike, whose firmware is the guest.

use crate::error::MigrateError;
use crate::parameters::DEFAULT_MEMORY_MIB;
use std::path::Path;
use vmeter_machine::backend::{self, Machine, Request};
use vmeter_model::{Accel, MachineSpec};

/// The machine of a point.
///
/// # Errors
/// A machine that cannot be made, or cannot be migrated.
pub fn describe(spec: &MachineSpec, cache: &Path) -> Result<Machine, MigrateError> {
    let refuse = |what: &str, why: &str| Err(MigrateError::Usage(format!("{what}: {why}")));
    let own =
        "vmeter migrates its own guest, and the VMM loads this guest in place of the firmware";
    if spec.is_played() {
        return refuse(
            "--vmm mock",
            "this VMM runs no real guest that vmeter could migrate; use qemu or the path of a \
            QEMU",
        );
    }
    let dialect = backend::of(spec).and_then(|backend| backend.dialect());
    if dialect.is_some_and(|dialect| !dialect.abilities().monitor) {
        return refuse("this VMM", "vmeter can measure migrations of QEMU only; use --vmm qemu");
    }
    if spec.accel == Some(Accel::Icount.into()) {
        return refuse("--accel icount", "virtual time cannot measure a migration; use tcg or kvm");
    }
    if spec.no_inject {
        return refuse(
            "--no-inject",
            "vmeter migrates only its own guest, through a QMP monitor \
            that it adds to QEMU's command line",
        );
    }
    let given = [
        ("--kernel", spec.kernel.is_some()),
        ("--initrd", spec.initrd.is_some()),
        ("--firmware", spec.firmware.is_some()),
        ("--append", !spec.append.is_empty()),
        ("--init", spec.init.is_some()),
        ("--root", spec.root.is_some()),
        ("--until", spec.until.is_some()),
    ];
    if let Some((name, _)) = given.iter().find(|(_, given)| *given) {
        return refuse(name, own);
    }
    let memory_mib = Some(spec.memory_mib.unwrap_or(DEFAULT_MEMORY_MIB));
    let spec = MachineSpec { memory_mib, ..spec.clone() };
    // What --memory says of a command line of the user's own is checked below.
    let own_size = memory_mib.filter(|_| spec.command.is_empty());
    let asked = MachineSpec { memory_mib: own_size, ..spec.clone() };
    let request = Request { spec: &asked, cache, kernel: None, initrd: None, root_image: None };
    let mut machine = backend::describe(&request)?;
    if !machine.abilities().monitor {
        return refuse("this VMM", "vmeter can migrate only the guests of QEMU");
    }
    check_command(&spec)?;
    machine.chosen.retain(|c| !matches!(c.what.as_str(), "firmware" | "kernel" | "root"));
    machine.provenance.remove("firmware");
    Ok(machine)
}

/// Options of a command line of the user's own that would take the guest's place.
fn check_command(spec: &MachineSpec) -> Result<(), MigrateError> {
    const TAKEN: [&str; 7] =
        ["bios", "kernel", "serial", "incoming", "S", "daemonize", "nographic"];
    for word in &spec.command {
        let name = word.strip_prefix("--").or(word.strip_prefix('-'));
        if let Some(name) = name.filter(|name| TAKEN.contains(name)) {
            return Err(MigrateError::Usage(format!(
                "leave out -{name} after --: vmeter migrate itself adds a guest (-bios), its \
                 serial port and -incoming"
            )));
        }
    }
    let memory = spec.command.iter().position(|word| word == "-m");
    let given = memory.and_then(|at| spec.command.get(at + 1));
    let want = spec.memory_mib.unwrap_or(DEFAULT_MEMORY_MIB);
    let fits = |text: &String| {
        let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
        let scale = if text[digits.len()..].starts_with(['G', 'g']) { 1024 } else { 1 };
        digits.parse::<u64>().is_ok_and(|n| n.saturating_mul(scale) == u64::from(want))
    };
    if spec.command.is_empty() || given.is_some_and(fits) {
        return Ok(());
    }
    Err(MigrateError::Usage(format!(
        "the command line after `--` must give the guest as much memory as vmeter expects: -m \
         {want} (for another size, add --memory before the `--`)"
    )))
}
