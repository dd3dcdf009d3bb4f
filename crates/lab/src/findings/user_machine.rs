//! A command line of the user's own: which causes it has, and how it is rid of them.

use super::catalogue::UserChange;
use std::ffi::OsString;
use std::path::Path;
use vmeter_machine::argv;
use vmeter_machine::backend::Machine;
use vmeter_model::MachineSpec;

/// What a command line says of its machine.
pub(crate) struct OwnMachine {
    argv: Vec<OsString>,
    line: Option<String>,
    is_qemu: bool,
    may_inject: bool,
    is_played: bool,
}

impl OwnMachine {
    /// Of a machine that was described.
    pub fn of(machine: &Machine) -> Self {
        OwnMachine {
            line: machine.plan().kernel_line(),
            argv: machine.argv.clone(),
            is_qemu: machine.abilities().monitor,
            may_inject: machine.may_inject,
            is_played: false,
        }
    }

    /// Of a machine that is played from a script: as QEMU would be called for it.
    pub fn played(spec: &MachineSpec) -> Self {
        let board = spec.machine.as_deref().filter(|name| !name.contains(['/', '.']));
        let line = spec.append.join(" ");
        let smp = spec.smp.unwrap_or(1).to_string();
        let words = ["qemu-system-x86_64", "-machine", board.unwrap_or("q35"), "-smp", &smp];
        let words = words.into_iter().chain(["-serial", "stdio", "-display", "none"]);
        let words = words.chain(["-kernel", "played", "-append", &line]).map(str::to_owned);
        let argv = words.chain(spec.vmm_arg.iter().cloned()).map(OsString::from).collect();
        OwnMachine { argv, line: Some(line), is_qemu: true, may_inject: true, is_played: true }
    }

    /// Words of its kernel's command line.
    pub fn kernel_words(&self) -> impl Iterator<Item = &str> {
        self.line.iter().flat_map(|line| line.split_whitespace())
    }

    /// The value that a word of its kernel's command line gives a parameter; the last of several.
    pub fn kernel_value(&self, name: &str) -> Option<&str> {
        self.kernel_words()
            .filter_map(|w| w.split_once('='))
            .filter(|(n, _)| *n == name)
            .last()
            .map(|w| w.1)
    }

    /// True if it has this option, with one dash or two.
    pub fn has_option(&self, name: &str) -> bool {
        argv::has(&self.argv, name)
    }

    /// Values of an option.
    pub fn values(&self, name: &str) -> Vec<&str> {
        argv::values(&self.argv, name)
    }

    /// The accelerator, as QEMU names it.
    pub fn accelerator(&self) -> String {
        argv::accelerator(&self.argv)
    }

    /// Memory that it asks for, MiB; what QEMU gives if it asks for none.
    pub fn memory_mib(&self) -> u64 {
        argv::memory_mib(&self.argv).unwrap_or(128)
    }

    /// The name of its board, `q35` say, if it names one.
    pub fn board(&self) -> Option<&str> {
        let named = self.values("machine").into_iter().chain(self.values("M"));
        let names = named.filter_map(|value| value.split(',').next());
        names.map(|name| name.trim_start_matches("type=")).find(|name| !name.contains('='))
    }

    /// The first bytes of a file that an option names; none of a machine that is played.
    fn begin(&self, option: &str) -> Option<Vec<u8>> {
        use std::io::Read;
        let path = self.values(option).pop().filter(|_| !self.is_played)?;
        let mut first = Vec::new();
        std::fs::File::open(path).ok()?.take(6).read_to_end(&mut first).ok()?;
        Some(first)
    }

    /// Why there is no packed kernel to be unpacked before it is loaded, if so.
    pub fn has_no_packed_kernel(&self) -> Option<String> {
        if !argv::loads_kernel(&self.argv) {
            return Some("its kernel is not given by -kernel".into());
        }
        let is_elf = self.begin("kernel").is_some_and(|first| first.starts_with(b"\x7fELF"));
        is_elf.then(|| "its kernel is not compressed".into())
    }

    /// Why there is no packed initrd to be unpacked before it is loaded, if so.
    pub fn has_no_packed_initrd(&self) -> Option<String> {
        let Some(_) = self.values("initrd").pop() else {
            return Some("it has no initrd".into());
        };
        let path = self.values("initrd").pop().map(Path::new);
        let is_packed = path.is_some_and(super::catalogue::files::is_packed);
        (!is_packed).then(|| "its initrd is not compressed".into())
    }

    /// Why nothing can be changed in it, if so.
    pub fn closed(&self) -> Option<String> {
        if !self.is_qemu {
            return Some(
                "vmeter does not recognise this VMM as QEMU, and knows only QEMU's \
                options"
                    .into(),
            );
        }
        (!self.may_inject)
            .then(|| "--no-inject forbids vmeter to add options to the command line".into())
    }

    /// True if an argument holds this.
    pub fn has_value(&self, text: &str) -> bool {
        self.argv.iter().any(|word| word.to_string_lossy().contains(text))
    }

    /// True if this is one of the arguments.
    pub fn has_word(&self, word: &str) -> bool {
        self.argv.iter().any(|w| w == word)
    }

    /// True if its machine type is one of before QEMU 2.5, which have no DMA of fw_cfg (hw/core/machine.c,
    /// `hw_compat_2_4`).
    pub fn is_without_fw_cfg_dma(&self) -> bool {
        let old = |word: &str| {
            let version =
                ["pc-i440fx-", "pc-q35-", "pc-"].iter().find_map(|p| word.strip_prefix(p))?;
            let (major, minor) = version.split_once('.')?;
            Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?) < (2, 5))
        };
        let words = self.argv.iter().map(|word| word.to_string_lossy());
        words
            .flat_map(|w| w.split(',').map(str::to_owned).collect::<Vec<_>>())
            .any(|word| old(word.strip_prefix("type=").unwrap_or(&word)).unwrap_or(false))
    }

    /// Why its kernel's log is short as it is, if so: `quiet`, or a level no higher than that of
    /// `quiet` (the kernel's CONSOLE_LOGLEVEL_QUIET).
    pub fn is_quiet(&self) -> Option<String> {
        if self.is_verbose() {
            return None;
        }
        let words = self.line.iter().flat_map(|line| line.split_whitespace());
        let mut levels = words.filter_map(|w| w.strip_prefix("loglevel=")?.parse::<i32>().ok());
        let level = levels.next_back();
        let low = level.filter(|level| *level <= 4);
        let low =
            low.map(|level| format!("its kernel's command line says loglevel={level} already"));
        self.says("quiet").or(low)
    }

    /// True if its kernel prints its log although it may be told to be quiet.
    pub fn is_verbose(&self) -> bool {
        let words = ["ignore_loglevel", "initcall_debug"];
        self.line.iter().flat_map(|line| line.split_whitespace()).any(|w| words.contains(&w))
    }

    /// Why its firmware initialises no disk for nothing, if so.
    pub fn has_no_spare_disks(&self) -> Option<String> {
        if !argv::loads_kernel(&self.argv) {
            return Some("it boots from a disk".into());
        }
        if self.has_value("strict=on") {
            return Some("its command line says strict=on already".into());
        }
        let disks = ["drive", "hda", "blockdev", "virtfs"];
        let any = disks.iter().any(|option| argv::has(&self.argv, option));
        (!any).then(|| "it has no disks".into())
    }

    /// Why a kernel parameter is nothing to add: it is there, or there is nowhere to add it.
    pub fn says(&self, word: &str) -> Option<String> {
        let Some(line) = &self.line else {
            return Some(
                "the VMM does not get the kernel by -kernel, so vmeter cannot change the kernel's \
                    command line"
                    .into(),
            );
        };
        let name = |w: &str| w.split('=').next().unwrap_or_default().to_owned();
        let found = line.split_whitespace().find(|w| name(w) == name(word));
        found.map(|found| format!("its kernel's command line says {found} already"))
    }

    /// Why the firmware can't be one that only loads a kernel, if so.
    pub fn needs_more_than_a_kernel(&self) -> Option<String> {
        if !argv::loads_kernel(&self.argv) {
            return Some(
                "its firmware boots from a disk, and qboot cannot boot from a disk".into(),
            );
        }
        let now = argv::firmware(&self.argv);
        let now = now.rsplit('/').next().unwrap_or_default();
        now.contains("qboot").then(|| format!("its firmware is {now}"))
    }

    /// vCPUs, as `-smp` says.
    pub fn smp(&self) -> u32 {
        let values = argv::values(&self.argv, "smp");
        let Some(value) = values.last() else { return 1 };
        let parts = || value.split(',').map(|part| part.split_once('=').unwrap_or(("cpus", part)));
        let number = |key: &str| parts().find(|(k, _)| *k == key)?.1.parse::<u32>().ok();
        let shape = ["sockets", "dies", "clusters", "cores", "threads"];
        number("cpus").unwrap_or_else(|| shape.into_iter().filter_map(number).product())
    }
}

/// The user's machine with these changes; `cache` is vmeter's folder, for what has to be made.
///
/// # Errors
/// Why one of them can't be made here, in words.
pub(crate) fn changed(
    base: &MachineSpec,
    machine: &Machine,
    changes: &[UserChange],
    cache: &Path,
) -> Result<MachineSpec, String> {
    let mut plan = machine.plan();
    plan.argv.clone_from(&machine.argv);
    for change in changes {
        match change {
            UserChange::Kernel(words) => {
                plan.inject_kernel_parameters(&[words]);
            }
            UserChange::Arguments(words) => plan.argv.extend(words.iter().map(OsString::from)),
            UserChange::KernelLess(word) => less(&mut plan.argv, |w| w == *word),
            UserChange::KernelWithout(name) => less(&mut plan.argv, |w| names(w, name)),
            UserChange::Make(_, make) => make(cache, &mut plan.argv)?,
        }
    }
    let command = plan.argv.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    Ok(MachineSpec { command, vmm: None, ..base.clone() })
}

/// A played machine with these changes: a script sees the kernel's words and the VMM's arguments.
pub(crate) fn changed_played(base: &MachineSpec, changes: &[UserChange]) -> MachineSpec {
    let mut spec = base.clone();
    let keep = |spec: &mut MachineSpec, is_kept: &dyn Fn(&str) -> bool| {
        let words = spec.append.iter().flat_map(|line| line.split_whitespace());
        spec.append = words.filter(|w| is_kept(w)).map(str::to_owned).collect();
    };
    for change in changes {
        match change {
            UserChange::Kernel(words) => spec.append.push((*words).to_owned()),
            UserChange::Arguments(words) => {
                spec.vmm_arg.extend(words.iter().map(|w| (*w).to_owned()));
            }
            UserChange::KernelLess(word) => keep(&mut spec, &|w| w != *word),
            UserChange::KernelWithout(name) => keep(&mut spec, &|w| !names(w, name)),
            UserChange::Make(what, _) => spec.vmm_arg.push((*what).to_owned()),
        }
    }
    spec
}

/// True for a word that sets this parameter.
fn names(word: &str, name: &str) -> bool {
    word.split('=').next() == Some(name)
}

/// Takes words out of the kernel's command line.
fn less(argv: &mut [OsString], is_taken: impl Fn(&str) -> bool) {
    let is_append = |w: &OsString| w == "-append" || w == "--append";
    let Some(at) = argv.iter().position(is_append).map(|at| at + 1) else { return };
    let Some(line) = argv.get_mut(at) else { return };
    let text = line.to_string_lossy().into_owned();
    let kept: Vec<&str> = text.split_whitespace().filter(|w| !is_taken(w)).collect();
    *line = kept.join(" ").into();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::findings::catalogue::CATALOGUE;
    use crate::findings::plan::{of_own, Menu};
    use vmeter_machine::backends::qemu::Qemu;

    fn asked(line: &[&str], may_inject: bool) -> Menu {
        let machine = Machine {
            argv: line.iter().map(OsString::from).collect(),
            dialect: Some(&Qemu),
            may_inject,
            ..Machine::default()
        };
        let command = line.iter().map(|word| (*word).to_owned()).collect();
        let spec = MachineSpec { command, ..MachineSpec::default() };
        of_own(CATALOGUE, &spec, &machine, Path::new("/nonexistent"))
    }

    fn applicable(menu: &Menu) -> Vec<&str> {
        let with = menu.findings.iter().filter(|finding| finding.inapplicable.is_none());
        with.map(|finding| finding.id.as_str()).collect()
    }

    #[test]
    fn a_command_line_is_rid_of_the_causes_that_it_has() {
        let line = ["qemu-system-x86_64", "-nographic", "-smp", "4", "-kernel", "k", "-append"];
        let menu = asked(&[&line[..], &["console=ttyS0 initcall_debug"]].concat(), true);
        let expected = [
            "sgabios",
            "small-firmware",
            "console-log",
            "tsc-reliable",
            "parallel-pci-probe",
            "serial8250-init",
            "crypto-tests",
        ];
        assert_eq!(applicable(&menu), expected);
        let command = |id: &str| {
            let of = |(label, _): &&(String, MachineSpec)| *label == format!("without {id}");
            menu.timed.iter().find(of).map(|(_, spec)| spec.command.join(" ")).expect("a machine")
        };
        assert!(command("console-log").ends_with("-append console=ttyS0 quiet loglevel=4"));
        assert!(command("small-firmware").ends_with("initcall_debug -bios qboot.rom"));
        assert!(
            command("sgabios").contains("-smp 4") && command("sgabios").ends_with("graphics=on")
        );
        // Machine for machine what it is: nothing else is changed.
        assert_eq!(menu.timed.len(), expected.len() + 1);
        let one = asked(&[&line[..2], &line[4..], &["console=ttyS0"]].concat(), true);
        let found = applicable(&one);
        assert!(found.contains(&"lock-prefixes") && !found.contains(&"tsc-reliable"), "{found:?}");
    }

    #[test]
    fn what_a_command_line_does_not_have_is_said() {
        let line = ["qemu-system-x86_64", "-kernel", "k", "-bios", "qboot.rom", "-append"];
        let words = "quiet tsc=reliable cryptomgr.notests 8250.nr_uarts=1 noreplace-smp";
        for quiet in [words.to_owned(), words.replace("quiet", "loglevel=0")] {
            let menu = asked(&[&line[..], &[&quiet]].concat(), true);
            assert_eq!(applicable(&menu), Vec::<&str>::new());
        }
        let menu = asked(&[&line[..], &[words]].concat(), true);
        let disk = asked(&["qemu-system-x86_64", "-drive", "file=disk.img"], true);
        assert_eq!(applicable(&disk), Vec::<&str>::new());
        assert!(menu.findings.iter().all(|f| f.inapplicable.as_ref().is_some_and(|w| w.len() > 9)));
        for (machine, has) in
            [("pc-i440fx-2.4", 1), ("type=pc-q35-2.4,accel=tcg", 1), ("pc-q35-7.2", 0)]
        {
            let old = asked(&[&line[..5], &["-M", machine, "-append", words]].concat(), true);
            let dma = applicable(&old).into_iter().filter(|id| *id == "fw-cfg-dma").count();
            assert_eq!(dma, has, "{machine}");
        }
        let closed = asked(&["qemu-system-x86_64", "-kernel", "k"], false);
        assert_eq!(applicable(&closed), Vec::<&str>::new());
    }
}
