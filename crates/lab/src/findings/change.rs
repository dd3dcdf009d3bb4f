//! What a finding changes in a machine: options, arguments, files of the guest.

use super::machine_builder::MachineBuilder;
use vmeter_model::MachineSpec;

/// One change of a machine. A list of them makes one machine of another.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change {
    /// Words on the kernel's command line.
    Kernel(&'static str),
    /// Arguments of the VMM.
    Vmm(&'static [&'static str]),
    /// The machine's type.
    Machine(&'static str),
    /// The firmware.
    Firmware(&'static str),
    /// The appliance.
    Init(&'static str),
    /// The root.
    Root(&'static str),
    /// vCPUs.
    Smp(u32),
    /// Empty PCIe root ports.
    RootPorts(u32),
    /// Files that have to be made first: an initramfs, a launcher, a kernel.
    Make(Maker),
}

/// Makes something and puts it into the machine.
///
/// # Errors
/// Why it can't be had here, in words: the finding does not apply then.
pub(crate) type Maker = fn(&MachineBuilder<'_>, &mut MachineSpec) -> Result<(), String>;

/// `base` with these changes.
///
/// # Errors
/// Why one of them can't be made here, in words.
pub(crate) fn changed(
    base: &MachineSpec,
    changes: &[Change],
    builder: &MachineBuilder<'_>,
) -> Result<MachineSpec, String> {
    let mut spec = base.clone();
    for change in changes {
        match *change {
            Change::Kernel(words) => spec.append.push(words.to_owned()),
            Change::Vmm(words) => spec.vmm_arg.extend(words.iter().map(|w| (*w).to_owned())),
            Change::Machine(name) => set(&mut spec.machine, "q35".into(), name.into()),
            Change::Firmware(name) => spec.firmware = Some(name.to_owned()),
            Change::Init(name) => set(&mut spec.init, "minimal".into(), name.into()),
            Change::Root(name) => set(&mut spec.root, "initramfs".into(), name.into()),
            Change::Smp(n) => set(&mut spec.smp, 1, n),
            Change::RootPorts(n) => set(&mut spec.pcie_root_ports, 0, n),
            Change::Make(make) => make(builder, &mut spec)?,
        }
    }
    Ok(spec)
}

/// Sets an option, unless its default says the same: a machine that is written otherwise is no other machine.
fn set<T: PartialEq>(option: &mut Option<T>, default: T, value: T) {
    if *option.as_ref().unwrap_or(&default) != value {
        *option = Some(value);
    }
}

#[cfg(test)]
mod tests {
    use super::set;

    #[test]
    fn what_a_machine_has_by_default_is_not_set() {
        let mut vcpus = None;
        set(&mut vcpus, 1, 1);
        assert_eq!(vcpus, None);
        set(&mut vcpus, 1, 2);
        assert_eq!(vcpus, Some(2));
        set(&mut vcpus, 1, 1);
        assert_eq!(vcpus, Some(1));
    }
}
