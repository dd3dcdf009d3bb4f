//! Where what a finding needs is made: initramfs, launchers; and what the host has for it.

use crate::prepare::prepare;
use std::path::{Path, PathBuf};
use vmeter_appliance::kernel::KernelPaths;
use vmeter_appliance::ApplianceSpec;
use vmeter_base::files;
use vmeter_machine::backend;
use vmeter_model::MachineSpec;

/// What findings are made with.
pub(crate) struct MachineBuilder<'a> {
    /// vmeter's cache folder.
    pub cache: &'a Path,
    /// The machine that is asked about.
    pub base: &'a MachineSpec,
}

impl MachineBuilder<'_> {
    /// True if the machine is played from a script: nothing needs to be there.
    pub fn is_mock(&self) -> bool {
        self.base.is_played()
    }

    /// The back end's name.
    pub fn back_end(&self) -> &'static str {
        backend::of(self.base).map_or("", |backend| backend.name())
    }

    /// The newest cached kernel.
    pub fn kernel(&self) -> Result<KernelPaths, String> {
        let own = "vmeter has no modules for a kernel that --kernel names";
        if self.base.kernel.is_some() {
            return Err(own.into());
        }
        vmeter_appliance::kernel::list_in(self.cache)
            .pop()
            .ok_or_else(|| "no kernel is cached: run `vmeter kernel fetch`".into())
    }

    /// Gives the machine a kernel that `vmeter kernel build --config NAME` made.
    pub fn built(&self, spec: &mut MachineSpec, config: &str) -> Result<(), String> {
        if self.is_mock() {
            return Ok(());
        }
        let entries = std::fs::read_dir(self.cache.join("kernels-built"));
        let folders = entries.into_iter().flatten().flatten().map(|entry| entry.path());
        let is_it = |folder: &PathBuf| {
            let record = files::read_limited(&folder.join("build.json"), 1 << 20).ok()?;
            let record: serde_json::Value = serde_json::from_slice(&record).ok()?;
            (record["config"] == config).then_some(())
        };
        let found = folders.filter(|folder| is_it(folder).is_some()).max();
        let kernel = found.map(|folder| folder.join("vmlinuz")).filter(|file| file.is_file());
        let none = || {
            format!(
                "this kernel does not exist yet; build it with: vmeter kernel \
            build --config {config}"
            )
        };
        spec.kernel = Some(kernel.ok_or_else(none)?);
        Ok(())
    }

    /// Gives the machine an initramfs of this description.
    pub fn initramfs(&self, spec: &mut MachineSpec, wanted: &ApplianceSpec) -> Result<(), String> {
        if self.is_mock() {
            return Ok(());
        }
        if spec.initrd.is_some() {
            return Err("this cause needs vmeter's own initrd; leave out --initrd".into());
        }
        let built = vmeter_appliance::build_in(&self.cache.join("appliances"), wanted);
        spec.initrd = Some(built.map_err(|error| error.to_string())?.path);
        Ok(())
    }

    /// Starts the machine's VMM by a script: `text` with `{vmm}` for the program.
    pub fn launcher(&self, spec: &mut MachineSpec, name: &str, text: &str) -> Result<(), String> {
        if self.is_mock() {
            return Ok(());
        }
        if self.back_end() != "qemu" {
            return Err("the script that stands in for a launcher works only with QEMU".into());
        }
        let vmm = spec.vmm.clone().filter(|vmm| vmm != "qemu");
        let vmm = vmm.unwrap_or_else(|| "qemu-system-x86_64".into());
        let text = text.replace("{vmm}", &vmeter_base::shell::quote(&vmm));
        let key = vmeter_base::fnv::hash(text.as_bytes());
        let path = self.cache.join("launchers").join(format!("{name}-{key:016x}"));
        make_script(&path, &text).map_err(|error| format!("{}: {error}", path.display()))?;
        spec.vmm = Some(path.display().to_string());
        Ok(())
    }
}

/// What is there already is whole, and can be executed.
fn make_script(path: &Path, text: &str) -> std::io::Result<()> {
    if path.is_file() {
        return Ok(());
    }
    std::fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
    files::write_program(path, text.as_bytes())
}

/// True for an initramfs that vmeter built: its init is vmeter's own.
pub(crate) fn is_own(initrd: &Option<PathBuf>, cache: &Path) -> bool {
    initrd.as_ref().is_some_and(|initrd| initrd.starts_with(cache.join("appliances")))
}

/// Why this machine can't be had here, in words.
pub(crate) fn describable(spec: &MachineSpec, builder: &MachineBuilder<'_>) -> Result<(), String> {
    if builder.is_mock() {
        return Ok(());
    }
    let described = prepare("", spec, builder.cache);
    described.map(drop).map_err(|error| format!("{error:#}"))
}
