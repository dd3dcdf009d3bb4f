//! From what a user asks for to a machine that can be booted.

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::time::Duration;
use vmeter_appliance::kernel::KernelPaths;
use vmeter_appliance::root_image::{self, RootImageSpec};
use vmeter_appliance::{ApplianceSpec, ExtraFile, SizeReport};
use vmeter_base::files;
use vmeter_kernel_image::{BuildSymbols, KernelImage};
use vmeter_machine::backend::{self, Machine, Needs, Request};
use vmeter_model::run::SessionMachine;
use vmeter_model::{Accel, MachineSpec, ResolvedOption};
use vmeter_record::ready::Until;
use vmeter_record::recorder::Snapshot;
use vmeter_session::failure::{host, usage};
use vmeter_timeline::NamedMark;

/// A guest that has not finished by then never will.
const DEFAULT_TIMEOUT_S: u32 = 120;
/// Virtual time runs some three times slower.
const ICOUNT_TIMEOUT_S: u32 = 600;

/// A machine, ready to be booted as often as wanted.
#[derive(Debug, Clone)]
pub struct Prepared {
    /// What is saved of it.
    pub session: SessionMachine,
    /// What is booted.
    pub machine: Machine,
    /// Where its measurement ends.
    pub until: Until,
    /// When to give up.
    pub timeout: Duration,
    /// True if the VMM's memory is looked at when a run ends.
    pub memory: bool,
    /// What it restores; none if it boots.
    pub snapshot: Option<Snapshot>,
}

impl Prepared {
    /// True if counting its instructions costs time, so that boots which are timed do not:
    /// the plugin counts, and time is not virtual.
    pub fn is_slowed_by_counting(&self) -> bool {
        self.machine.accel == Some(Accel::Tcg) && self.machine.script.is_none()
    }
}

/// Works a machine out: kernel, initramfs and root image are made or found.
///
/// # Errors
/// Class usage for a value that is not valid, class host for what is missing here.
pub fn prepare(label: &str, spec: &MachineSpec, cache: &Path) -> Result<Prepared> {
    prepare_with(label, spec, cache, &Wishes::default())
}

/// What an experiment wants of a machine besides what its specification says.
#[derive(Debug, Default)]
pub(crate) struct Wishes {
    /// Look at the VMM's memory when a run ends.
    pub memory: bool,
    /// Files in vmeter's own initramfs.
    pub files: Vec<ExtraFile>,
    /// Words for the init in it.
    pub options: Vec<String>,
}

/// As [`prepare`], with an experiment's wishes.
///
/// # Errors
/// As there.
pub(crate) fn prepare_with(
    label: &str,
    spec: &MachineSpec,
    cache: &Path,
    wishes: &Wishes,
) -> Result<Prepared> {
    let until = until(spec)?;
    NamedMark::parse_all(&spec.mark).map_err(usage)?;
    if let Some(symbols) = &spec.symbols {
        let opened = BuildSymbols::open(symbols);
        opened.map_err(|error| usage(format!("--symbols {}: {error}", symbols.display())))?;
    }
    let inputs = Inputs::find(spec, cache, wishes)?;
    let mut effective = spec.clone();
    if let (Some(kernel), Some(_)) = (&inputs.kernel, &spec.kernel) {
        effective.kernel = Some(kernel.clone());
    }
    let request = Request {
        spec: &effective,
        cache,
        kernel: inputs.kernel.as_deref(),
        initrd: inputs.initrd.as_deref(),
        root_image: inputs.root_image.as_deref(),
    };
    let machine = backend::describe(&request).map_err(usage)?;
    let default = match machine.accel {
        Some(Accel::Icount) => ICOUNT_TIMEOUT_S,
        _ => DEFAULT_TIMEOUT_S,
    };
    let timeout = Duration::from_secs(spec.timeout_s.unwrap_or(default).into());
    let mut chosen = machine.chosen.clone();
    if let Some(sizes) = inputs.sizes {
        let total = sizes.unpacked as f64 / 1024.0;
        chosen.push(ResolvedOption::new(
            "initramfs",
            format!("{}, {total:.0} KiB", spec.init.as_deref().unwrap_or("minimal")),
            "--init minimal|udev or --initrd FILE",
        ));
    }
    let session = SessionMachine {
        label: label.to_owned(),
        spec: MachineSpec {
            until: Some(spec.until.clone().unwrap_or_else(|| "poweroff".into())),
            ..spec.clone()
        },
        chosen,
        provenance: machine.provenance.clone(),
        argv: machine.argv_text(),
        ..SessionMachine::default()
    };
    Ok(Prepared { session, machine, until, timeout, memory: wishes.memory, snapshot: None })
}

/// Where the measurement of a machine ends.
///
/// # Errors
/// Class usage: a `--until` that is none.
pub(crate) fn until(spec: &MachineSpec) -> Result<Until> {
    Until::parse(spec.until.as_deref().unwrap_or("poweroff")).map_err(usage)
}

/// Files that a machine of vmeter's own needs.
#[derive(Default)]
struct Inputs {
    kernel: Option<PathBuf>,
    initrd: Option<PathBuf>,
    root_image: Option<PathBuf>,
    sizes: Option<SizeReport>,
}

impl Inputs {
    fn find(spec: &MachineSpec, cache: &Path, wishes: &Wishes) -> Result<Self> {
        // What is no VMM is refused when it is described.
        let needs = backend::of(spec).map_or(Needs::Nothing, |backend| backend.needs(spec));
        if needs == Needs::Nothing {
            return Ok(Inputs::default());
        }
        let cached = vmeter_appliance::kernel::list_in(cache).pop();
        let kernel = match (&spec.kernel, &cached) {
            (Some(kernel), _) => kernel.clone(),
            (None, Some(cached)) => cached.vmlinuz.clone(),
            (None, None) => {
                return Err(host("no kernel to boot: fetch Debian's with `vmeter kernel fetch`, or name one with --kernel FILE"));
            }
        };
        check_kernel(&kernel)?;
        let kernel = match needs {
            Needs::Vmlinux { pvh } => uncompressed(&kernel, pvh, cache)?,
            Needs::Kernel | Needs::Nothing => kernel,
        };
        let root = spec.root.as_deref().unwrap_or("initramfs");
        let root_image = match root {
            "dax" | "virtio-blk" | "nvdimm" => Some(root_image(root, cache)?),
            _ => None,
        };
        // A kernel of vmeter's cache has its modules beside it; one of the user's own brings
        // its own initrd.
        let beside = spec.kernel.as_deref().and_then(KernelPaths::of_image);
        let modules = if spec.kernel.is_none() { cached } else { beside };
        let built = match &spec.initrd {
            Some(_) => None,
            None => Some(appliance((spec, root), modules.as_ref(), cache, wishes)?),
        };
        Ok(Inputs {
            kernel: Some(kernel),
            initrd: built.as_ref().map(|b| b.path.clone()),
            sizes: built.map(|b| b.sizes),
            root_image,
        })
    }
}

/// Refuses what is no kernel before anything is booted.
fn check_kernel(kernel: &Path) -> Result<()> {
    let kind = vmeter_machine::files::kernel_kind(kernel)
        .map_err(|error| usage(format!("kernel {}: {error}", kernel.display())))?;
    if kind == vmeter_machine::files::KernelKind::Other {
        return Err(usage(format!(
            "{}: not a kernel: expected a bzImage (HdrS at 0x202; example: \
                /boot/vmlinuz-*) or an ELF vmlinux",
            kernel.display()
        )));
    }
    Ok(())
}

fn appliance(
    (spec, root): (&MachineSpec, &str),
    modules: Option<&KernelPaths>,
    cache: &Path,
    wishes: &Wishes,
) -> Result<vmeter_appliance::Appliance> {
    let load = vmeter_appliance::modules_for_root(root);
    let mut wanted = match spec.init.as_deref().unwrap_or("minimal") {
        "minimal" => ApplianceSpec::minimal(),
        "udev" => ApplianceSpec::udev(need_modules(modules, "--init udev")?.modules()),
        other => return Err(usage(format!("--init {other}: expected minimal or udev"))),
    };
    if !load.is_empty() {
        wanted.modules_from = Some(need_modules(modules, &format!("--root {root}"))?.modules());
        wanted.load = load.iter().map(|&m| m.to_owned()).collect();
    }
    wanted.extra_files.extend(wishes.files.iter().cloned());
    wanted.options.extend(wishes.options.iter().cloned());
    vmeter_appliance::build_in(&cache.join("appliances"), &wanted).map_err(host)
}

fn need_modules<'a>(modules: Option<&'a KernelPaths>, why: &str) -> Result<&'a KernelPaths> {
    modules.ok_or_else(|| {
        usage(format!(
            "{why} needs the kernel's modules, and vmeter has modules only for the kernels in \
                its cache: use --kernel with a kernel that `vmeter kernel list` shows, or use \
                your own --initrd"
        ))
    })
}

/// The ELF image inside `kernel`, in the cache; `pvh` if it is to be entered by PVH.
pub(crate) fn uncompressed(kernel: &Path, pvh: bool, cache: &Path) -> Result<PathBuf> {
    // One without symbols has no more than its file.
    let named = match vmeter_kernel_image::KernelInfo::open(cache, kernel) {
        Ok(info) => info.build_id.unwrap_or(info.version),
        Err(_) => {
            let image = KernelImage::open(kernel).map_err(usage)?;
            image.build_id().unwrap_or_else(|| image.version()).to_owned()
        }
    };
    let name = named.replace('/', "_");
    let folder = cache.join("vmlinux");
    let (path, other) = (folder.join(&name), folder.join(format!("{name}.without-pvh")));
    if let Some(known) = [&path, &other].into_iter().find(|p| p.exists() && (!pvh || *p == &path)) {
        return Ok(known.clone());
    }
    let image = KernelImage::open(kernel).map_err(usage)?;
    let has_pvh = image.pvh_entry().is_some();
    if pvh && !has_pvh {
        return Err(usage(format!(
            "{}: no PVH entry point (CONFIG_PVH), so it cannot be entered directly: use --machine q35",
            kernel.display()
        )));
    }
    let path = if has_pvh { path } else { other };
    files::write_in_new_folder(&path, image.vmlinux())
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// The image that roots of `dax` and `virtio-blk` mount, made once.
fn root_image(root: &str, cache: &Path) -> Result<PathBuf> {
    let (spec, folder) = (RootImageSpec::default(), cache.join("roots"));
    match root {
        "nvdimm" => root_image::nvdimm_in(&folder, &spec).map_err(host),
        _ => Ok(root_image::build_in(&folder, &spec).map_err(host)?.path),
    }
}
