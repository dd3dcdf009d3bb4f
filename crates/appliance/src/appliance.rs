//! Builds the initramfs of the guest that is measured.
//!
//! The same specification over the same files gives the same bytes. What was built
//! stays in the cache with the stamps of all it was made of, so a boot pays a few
//! hundred `stat` calls and not a build.

use crate::cache;
use crate::error::{At, Error, Result};
use crate::inputs::Inputs;
use crate::libraries::Linker;
use crate::modules::{self, Modules, ModulesFrom, Selection};
use crate::tree::{SizeReport, Tree};
use crate::udev;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Changes whenever the layout of what is built does, so that old caches are left alone.
const FORMAT: u32 = 1;

/// What brings the guest's devices up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Flavour {
    /// vmeter's own init and nothing else; modules load in a fixed order.
    #[default]
    Minimal,
    /// The host's udev cold-plugs, as in a distribution's initramfs.
    Udev,
}

/// How the archive is packed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Not: unpacking is guest time.
    #[default]
    None,
    /// gzip, level 9.
    Gzip,
    /// Zstandard, level 19.
    Zstd,
}

/// Content of an extra file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Content {
    /// A file of the host.
    Host(PathBuf),
    /// These bytes.
    Bytes(Vec<u8>),
}

/// A file to be planted in the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtraFile {
    /// Absolute path in the guest.
    pub path: String,
    /// What is in it.
    pub content: Content,
    /// Permission bits.
    pub mode: u32,
}

/// What is to be built.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplianceSpec {
    /// Flavour.
    pub flavour: Flavour,
    /// The kernel's modules; needed when modules are wanted.
    pub modules_from: Option<ModulesFrom>,
    /// Modules that init loads itself, in order, with what they need (names; `*` is
    /// allowed). What the kernel has built in costs nothing.
    pub load: Vec<String>,
    /// Modules that are only there for udev to find. Names that the kernel does not
    /// have are passed over.
    pub offer: Vec<String>,
    /// Modules kept out (names; `*` is allowed), and with them what needs them.
    pub blacklist: Vec<String>,
    /// Words for `/etc/vmeter/options`, as on the kernel command line.
    pub options: Vec<String>,
    /// Files to be planted.
    pub extra_files: Vec<ExtraFile>,
    /// Programs of the host that come along under their own paths, with their libraries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub programs: Vec<PathBuf>,
    /// Packing.
    pub compression: Compression,
}

/// Modules offered to udev by default: buses, disks and network cards that a VMM emulates.
pub const UDEV_MODULES: &[&str] = &[
    "virtio*",
    "nd_*",
    "libnvdimm",
    "nfit",
    "dax*",
    "sd_mod",
    "sr_mod",
    "sg",
    "ahci",
    "ata_piix",
    "ata_generic",
    "libata",
    "nvme",
    "e1000",
    "e1000e",
    "vmxnet3",
    "xhci_pci",
    "usbhid",
    "psmouse",
    "evdev",
    "button",
    "i2c_i801",
    "lpc_ich",
    "iTCO_wdt",
    "pcspkr",
    "serio_raw",
    "qemu_fw_cfg",
    "crc*",
    "ext4",
    "efi_pstore",
    "floppy",
    "parport_pc",
    "rtc_cmos",
    "fuse",
];

/// Modules kept out by default: displays and sound, which a measured guest has none of.
pub const BLACKLIST: &[&str] = &["drm*", "virtio_gpu", "snd*", "soundcore", "bochs"];

/// Modules to load for a root mode: `virtio-blk` or `dax`; none for any other.
pub fn modules_for_root(root: &str) -> &'static [&'static str] {
    match root {
        "virtio-blk" => &["virtio_pci", "virtio_blk", "ext4"],
        "nvdimm" => &["nfit", "nd_pmem", "ext4"],
        "dax" | "virtio-pmem" => &["virtio_pci", "virtio_pmem", "nd_pmem", "ext4"],
        _ => &[],
    }
}

impl ApplianceSpec {
    /// The guest of `--init minimal`: no modules.
    pub fn minimal() -> Self {
        Self::default()
    }

    /// The guest of `--init udev` for a kernel.
    pub fn udev(modules_from: ModulesFrom) -> Self {
        let own = |list: &[&str]| list.iter().map(|&name| name.to_owned()).collect();
        ApplianceSpec {
            flavour: Flavour::Udev,
            modules_from: Some(modules_from),
            offer: own(UDEV_MODULES),
            blacklist: own(BLACKLIST),
            options: vec!["vmeter.init=udev".into()],
            ..Self::default()
        }
    }
}

/// A built appliance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Appliance {
    /// The initramfs; in the cache, or where [`build_to`] put it.
    pub path: PathBuf,
    /// SHA-256 of the file, hexadecimal.
    pub sha256: String,
    /// Sizes part by part.
    pub sizes: SizeReport,
    /// What was left out and why, in words.
    pub notes: Vec<String>,
    /// True when it came from the cache.
    pub cached: bool,
}

/// What lies beside a cached appliance.
#[derive(Debug, Serialize, Deserialize)]
struct Manifest {
    sha256: String,
    sizes: SizeReport,
    notes: Vec<String>,
    inputs: Inputs,
}

/// Builds an appliance, or takes it from the cache if nothing it is made of has changed.
pub fn build(spec: &ApplianceSpec) -> Result<Appliance> {
    build_in(&cache::root()?.join("appliances"), spec)
}

/// As [`build`], with a cache folder of one's own.
pub fn build_in(cache: &Path, spec: &ApplianceSpec) -> Result<Appliance> {
    let folder = cache.join(key(spec));
    if let Some(appliance) = cached(&folder) {
        return Ok(appliance);
    }
    let (bytes, manifest) = make(spec)?;
    fs::create_dir_all(cache).at(cache)?;
    let fresh =
        tempfile::Builder::new().prefix(&crate::cache::own(".new-")).tempdir_in(cache).at(cache)?;
    let (image, list) = (fresh.path().join("initrd"), fresh.path().join("manifest.json"));
    fs::write(&image, &bytes).at(&image)?;
    fs::write(&list, serde_json::to_vec(&manifest).unwrap_or_default()).at(&list)?;
    cache::publish(fresh, &folder)?;
    let Manifest { sha256, sizes, notes, .. } = manifest;
    Ok(Appliance { path: folder.join("initrd"), sha256, sizes, notes, cached: false })
}

/// Builds an appliance and copies it to a file.
pub fn build_to(spec: &ApplianceSpec, output: &Path) -> Result<Appliance> {
    let (bytes, manifest) = make(spec)?;
    let folder = output.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file =
        tempfile::NamedTempFile::with_prefix_in(crate::cache::own(".new-"), folder).at(folder)?;
    file.write_all(&bytes).at(output)?;
    cache::readable(file.path())?;
    file.persist(output).map_err(|e| e.error).at(output)?;
    let Manifest { sha256, sizes, notes, .. } = manifest;
    Ok(Appliance { path: output.into(), sha256, sizes, notes, cached: false })
}

fn key(spec: &ApplianceSpec) -> String {
    let everything = (FORMAT, cache::sha256(crate::INIT), spec);
    cache::sha256(&serde_json::to_vec(&everything).unwrap_or_default())
}

fn cached(folder: &Path) -> Option<Appliance> {
    let manifest = fs::read(folder.join("manifest.json")).ok()?;
    let Manifest { sha256, sizes, notes, inputs } = serde_json::from_slice(&manifest).ok()?;
    let path = folder.join("initrd");
    let whole = fs::metadata(&path).ok()?.len() == sizes.file;
    (whole && inputs.unchanged()).then_some(Appliance { path, sha256, sizes, notes, cached: true })
}

fn make(spec: &ApplianceSpec) -> Result<(Vec<u8>, Manifest)> {
    let (mut tree, mut inputs, mut notes) = (Tree::default(), Inputs::default(), Vec::new());
    tree.file("/init", 0o755, crate::INIT.to_vec(), "init")?;
    for folder in ["/dev", "/proc", "/sys", "/trace", "/sysroot"] {
        tree.folder(folder)?;
    }
    tree.device("/dev/console", 0o600, 5, 1)?;
    if spec.flavour == Flavour::Udev {
        udev::add(&mut tree, &mut inputs, &mut notes)?;
    }
    add_modules(spec, &mut tree, &mut inputs, &mut notes)?;
    if !spec.options.is_empty() {
        let text = spec.options.join("\n") + "\n";
        tree.file("/etc/vmeter/options", 0o644, text.into_bytes(), "options")?;
    }
    for extra in &spec.extra_files {
        let bytes = match &extra.content {
            Content::Host(path) => inputs.read(path)?.1,
            Content::Bytes(bytes) => bytes.clone(),
        };
        tree.file(&extra.path, extra.mode, bytes, "extra files")?;
    }
    add_programs(&spec.programs, &mut tree, &mut inputs)?;
    let (bytes, mut sizes) = tree.archive()?;
    let bytes = compress(spec.compression, bytes)?;
    sizes.file = bytes.len() as u64;
    let sha256 = cache::sha256(&bytes);
    Ok((bytes, Manifest { sha256, sizes, notes, inputs }))
}

fn add_programs(programs: &[PathBuf], tree: &mut Tree, inputs: &mut Inputs) -> Result<()> {
    if programs.is_empty() {
        return Ok(());
    }
    let mut linker = Linker::new(inputs)?;
    programs.iter().try_for_each(|program| linker.add(tree, inputs, program, "programs"))
}

fn add_modules(
    spec: &ApplianceSpec,
    tree: &mut Tree,
    inputs: &mut Inputs,
    notes: &mut Vec<String>,
) -> Result<()> {
    if spec.load.is_empty() && spec.offer.is_empty() {
        return Ok(());
    }
    let from = spec.modules_from.as_ref().ok_or(Error::NoModules)?;
    let known = Modules::open(inputs, &from.folder, &from.version)?;
    let load = known.select(&spec.load, &spec.blacklist)?;
    let offered: Vec<String> =
        spec.offer.iter().filter(|n| n.contains('*') || known.has(n)).cloned().collect();
    let offer = known.select(&offered, &spec.blacklist)?;
    let folder = format!("/lib/modules/{}", from.version);
    let mut list = String::new();
    for module in &load.modules {
        let optional = if module.optional { "-" } else { "" };
        list += &format!("{optional}{folder}/{}\n", Modules::plain_path(module));
    }
    tree.file("/etc/vmeter/modules", 0o644, list.into_bytes(), "options")?;
    let mut contents = Vec::new();
    for module in load.modules.iter().chain(&offer.modules) {
        let path = format!("{folder}/{}", Modules::plain_path(module));
        if !tree.contains(&path) {
            let bytes = known.content(inputs, module)?;
            contents.push((Modules::plain_path(module).to_owned(), bytes.clone()));
            tree.file(&path, 0o644, bytes, "modules")?;
        }
    }
    note_dropped(notes, [&load, &offer]);
    if spec.flavour == Flavour::Udev {
        for (name, bytes) in modules::guest_indexes(inputs, from, &contents)? {
            tree.file(&format!("{folder}/{name}"), 0o644, bytes, "module indexes")?;
        }
    }
    Ok(())
}

fn note_dropped(notes: &mut Vec<String>, selections: [&Selection; 2]) {
    let mut dropped: Vec<_> = selections.iter().flat_map(|s| s.dropped.iter().cloned()).collect();
    dropped.sort();
    dropped.dedup();
    if !dropped.is_empty() {
        notes.push(format!(
            "left out, because they are blacklisted or need a blacklisted module: {}",
            dropped.join(", ")
        ));
    }
}

fn compress(compression: Compression, bytes: Vec<u8>) -> Result<Vec<u8>> {
    let memory = Path::new("(memory)");
    match compression {
        Compression::None => Ok(bytes),
        Compression::Gzip => {
            // No name and no time in the header: the same bytes every time.
            let mut encoder =
                flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
            encoder.write_all(&bytes).at(memory)?;
            encoder.finish().at(memory)
        }
        Compression::Zstd => zstd::encode_all(&bytes[..], 19).at(memory),
    }
}
