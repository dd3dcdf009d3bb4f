//! Kernels to boot: Debian's packages, unpacked and never installed.
//!
//! Installing a kernel package runs a boot loader's hooks, which a container host
//! does not have and a measurement does not want; downloading and unpacking needs
//! neither root nor a change to the host.

use crate::cache;
use crate::error::{At, Error, Result};
use crate::modules::{self, ModulesFrom};
use crate::packages::{self, Companions};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::fs;
use std::path::{Path, PathBuf};

/// The package fetched when none is named: small, with virtio and without firmware.
pub const DEFAULT_PACKAGE: &str = "linux-image-cloud-amd64";

/// Debian's stub instead of a symbol table is one line; a real one has 100,000.
const SMALLEST_SYSTEM_MAP: u64 = 100_000;

/// What to fetch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FetchOptions {
    /// Package name, a meta-package or a versioned one; [`DEFAULT_PACKAGE`] if absent.
    pub package: Option<String>,
    /// A package file instead of a download.
    pub deb: Option<PathBuf>,
    /// vmeter's cache; [`cache::root`] if absent.
    pub cache: Option<PathBuf>,
}

/// Where a kernel came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    /// Package.
    pub package: String,
    /// Its version.
    pub package_version: String,
    /// SHA-256 of the package file, hexadecimal.
    pub sha256: String,
}

/// A kernel in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelPaths {
    /// Kernel release, e.g. `6.1.0-56-cloud-amd64`.
    pub version: String,
    /// bzImage.
    pub vmlinuz: PathBuf,
    /// Uncompressed kernel, if someone put one beside it.
    pub vmlinux: Option<PathBuf>,
    /// Its configuration.
    pub config: Option<PathBuf>,
    /// Its symbol table, if the package had a real one.
    pub system_map: Option<PathBuf>,
    /// Its modules.
    pub modules_dir: PathBuf,
    /// Where it came from.
    pub provenance: Option<Provenance>,
}

impl KernelPaths {
    /// Its modules, for [`crate::ApplianceSpec`].
    pub fn modules(&self) -> ModulesFrom {
        ModulesFrom { folder: self.modules_dir.clone(), version: self.version.clone() }
    }

    /// The kernel of a cache whose image is `image`, by what lies beside that.
    pub fn of_image(image: &Path) -> Option<Self> {
        let image = fs::canonicalize(image).ok()?;
        let found = KernelPaths::read(image.parent()?)?;
        let is_its = found.vmlinuz == image || found.vmlinux.as_ref() == Some(&image);
        (is_its && found.modules_dir.is_dir()).then_some(found)
    }

    pub(crate) fn read(folder: &Path) -> Option<Self> {
        let existing = |name: &str| Some(folder.join(name)).filter(|path| path.is_file());
        let provenance = fs::read(folder.join("provenance.json")).ok();
        Some(KernelPaths {
            version: folder.file_name()?.to_str()?.to_owned(),
            vmlinuz: existing("vmlinuz")?,
            vmlinux: existing("vmlinux"),
            config: existing("config"),
            system_map: existing("System.map"),
            modules_dir: folder.join("modules"),
            provenance: provenance.and_then(|bytes| serde_json::from_slice(&bytes).ok()),
        })
    }
}

/// Kernels in a cache folder, oldest version first.
pub fn list_in(cache: &Path) -> Vec<KernelPaths> {
    let entries = fs::read_dir(cache.join("kernels")).into_iter().flatten().flatten();
    let mut kernels: Vec<_> = entries
        .filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'))
        .filter_map(|entry| KernelPaths::read(&entry.path()))
        .collect();
    kernels.sort_by(|a, b| compare_versions(&a.version, &b.version));
    kernels
}

/// Kernels in the cache, oldest version first; none if there is no cache.
pub fn list() -> Vec<KernelPaths> {
    cache::root().map(|cache| list_in(&cache)).unwrap_or_default()
}

/// The newest kernel in the cache.
pub fn default_kernel() -> Option<KernelPaths> {
    list().pop()
}

/// Fetches a kernel into the cache, telling `progress` what it does; one that is there
/// already from the same package file is left as it is.
pub fn fetch(options: &FetchOptions, progress: &mut dyn FnMut(&str)) -> Result<KernelPaths> {
    let cache = options.cache.clone().map_or_else(cache::root, Ok)?;
    let kernels = cache.join("kernels");
    fs::create_dir_all(&kernels).at(&kernels)?;
    let work = tempfile::Builder::new()
        .prefix(&crate::cache::own(".new-"))
        .tempdir_in(&kernels)
        .at(&kernels)?;
    let (deb, companions) = match &options.deb {
        Some(deb) => (fs::canonicalize(deb).at(deb)?, Companions::Beside),
        None => {
            let package = options.package.as_deref().unwrap_or(DEFAULT_PACKAGE);
            let package = packages::versioned(package, "linux-image-")?;
            progress(&format!("downloading {package}"));
            (packages::download(&package, work.path())?, Companions::Downloaded)
        }
    };
    let sha256 = cache::sha256_file(&deb)?;
    let known = list_in(&cache);
    let same =
        |kernel: &KernelPaths| kernel.provenance.as_ref().is_some_and(|p| p.sha256 == sha256);
    if let Some(kernel) = known.into_iter().find(same) {
        progress(&format!("{} is there already", kernel.version));
        return Ok(kernel);
    }
    unpack(&deb, sha256, companions, (&kernels, work.path()), progress)
}

fn unpack(
    deb: &Path,
    sha256: String,
    from: Companions,
    (kernels, work): (&Path, &Path),
    progress: &mut dyn FnMut(&str),
) -> Result<KernelPaths> {
    progress("unpacking");
    let found = packages::extract_kernel(deb, from, work, progress)?;
    let fresh =
        tempfile::Builder::new().prefix(&cache::own(".new-")).tempdir_in(kernels).at(kernels)?;
    let take = |from: &Path, to: &str| {
        let to = fresh.path().join(to);
        fs::rename(from, &to).at(from)
    };
    take(&found.image, "vmlinuz")?;
    if let Some(config) = &found.config {
        take(config, "config")?;
    }
    let is_real = |map: &&PathBuf| fs::metadata(map).is_ok_and(|m| m.len() >= SMALLEST_SYSTEM_MAP);
    if let Some(map) = found.system_map.as_ref().filter(is_real) {
        take(map, "System.map")?;
    }
    let modules = fresh.path().join("modules");
    take_modules(work, &found.version, &found.modules, progress, &modules)?;
    let field = |name: &str| packages::field(deb, name);
    let provenance =
        Provenance { package: field("Package")?, package_version: field("Version")?, sha256 };
    let file = fresh.path().join("provenance.json");
    let text = serde_json::to_vec_pretty(&provenance).unwrap_or_default();
    fs::write(&file, text).at(&file)?;
    let folder = kernels.join(&found.version);
    cache::publish(fresh, &folder)?;
    let unreadable =
        || Error::NoKernel { package: deb.into(), expected: "a readable vmlinuz".into() };
    KernelPaths::read(&folder).ok_or_else(unreadable)
}

/// Indexes the modules where `depmod` is installed and moves them to their place.
fn take_modules(
    content: &Path,
    version: &str,
    from: &Path,
    progress: &mut dyn FnMut(&str),
    to: &Path,
) -> Result<()> {
    progress("indexing modules");
    let base = tempfile::tempdir_in(content).at(content)?;
    let folder = modules::depmod_folder(base.path(), version)?;
    fs::rename(from, &folder).at(from)?;
    match modules::run_depmod(base.path(), version) {
        Err(Error::Missing { .. }) => progress("depmod is not installed: modules stay unindexed"),
        other => other?,
    }
    fs::rename(&folder, to).at(&folder)
}

/// Numbers in versions compare as numbers: 6.1.0-9 is before 6.1.0-56.
fn compare_versions(a: &str, b: &str) -> Ordering {
    let parts = |text: &str| -> Vec<(u64, String)> {
        text.split(['.', '-', '+', '~', '_'])
            .map(|part| (part.parse().unwrap_or(0), part.to_owned()))
            .collect()
    };
    parts(a).cmp(&parts(b)).then_with(|| a.cmp(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_as_people_read_them() {
        let mut versions = ["6.1.0-56-cloud-amd64", "6.12.1-1-amd64", "6.1.0-9-amd64"];
        versions.sort_by(|a, b| compare_versions(a, b));
        assert_eq!(versions, ["6.1.0-9-amd64", "6.1.0-56-cloud-amd64", "6.12.1-1-amd64"]);
    }

    #[test]
    fn an_unknown_package_says_what_to_type() {
        let cache = tempfile::tempdir().unwrap();
        let options = FetchOptions {
            package: Some("linux-image-vmeter-none".into()),
            cache: Some(cache.path().into()),
            ..FetchOptions::default()
        };
        match fetch(&options, &mut |_| ()) {
            Err(Error::Missing { program, .. }) => println!("skipped: no {program} here"),
            other => {
                let error = other.unwrap_err().to_string();
                assert!(error.contains("sudo apt-get update"), "{error}");
            }
        }
        assert!(list_in(cache.path()).is_empty());
        assert_eq!(fs::read_dir(cache.path().join("kernels")).unwrap().count(), 0);
    }
}
