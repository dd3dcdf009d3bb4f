//! Debian's packages of kernels: found and downloaded by apt, unpacked by dpkg-deb.
//!
//! A kernel is in one package, or in several: Debian after 13 has the image, the modules and the
//! configuration in three, and Ubuntu the modules in one of their own. `linux-image-VERSION` depends
//! on all of them, and each has the same VERSION in its name.

use crate::command::Tool;
use crate::error::{At, Error, Result};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

const APT_CACHE: Tool =
    Tool { program: "apt-cache", purpose: "finding the kernel package", package: "apt" };
const APT_GET: Tool =
    Tool { program: "apt-get", purpose: "downloading the kernel package", package: "apt" };
const DPKG_DEB: Tool =
    Tool { program: "dpkg-deb", purpose: "unpacking the kernel package", package: "dpkg" };

/// Where the packages are that a kernel's package depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Companions {
    /// In the folder of that package.
    Beside,
    /// At apt's sources: they are downloaded.
    Downloaded,
}

/// The files of an unpacked kernel.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unpacked {
    pub version: String,
    pub image: PathBuf,
    pub config: Option<PathBuf>,
    pub system_map: Option<PathBuf>,
    pub modules: PathBuf,
}

impl Unpacked {
    /// Finds the kernel of the lowest version that has an image and modules below `content`.
    fn find(content: &Path) -> Option<Self> {
        let folders = ["lib/modules", "usr/lib/modules"].map(|place| content.join(place));
        let versions = folders.iter().flat_map(|folder| {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            entries.filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
        });
        let whole = versions.filter_map(|(version, modules)| {
            let file = |name: &str| {
                let places =
                    [content.join("boot").join(format!("{name}-{version}")), modules.join(name)];
                places.into_iter().find(|path| path.is_file())
            };
            // Lists of modules without the modules are in the package of the configuration.
            let has_modules = modules.join("kernel").is_dir();
            let (image, config, system_map) =
                (file("vmlinuz")?, file("config"), file("System.map"));
            has_modules.then_some(Unpacked { version, image, config, system_map, modules })
        });
        whole.min_by(|a, b| a.version.cmp(&b.version))
    }
}

/// Unpacks a kernel's package below `work`, and the packages that it is divided into.
///
/// # Errors
/// [`Error::NoKernel`] if all of them have no image or no modules.
pub(crate) fn extract_kernel(
    deb: &Path,
    from: Companions,
    work: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<Unpacked> {
    let content = &work.join("content");
    extract(deb, content)?;
    if let Some(found) = Unpacked::find(content) {
        return Ok(found);
    }
    let mut missing = Vec::new();
    for name in companions(&field(deb, "Package")?, &field(deb, "Depends")?) {
        let file = match from {
            Companions::Beside => beside(deb, &name),
            Companions::Downloaded => {
                progress(&format!("downloading {name}"));
                let own = work.join(&name);
                fs::create_dir(&own).at(&own)?;
                Some(download(&name, &own)?)
            }
        };
        match file {
            Some(file) => extract(&file, content)?,
            None => missing.push(name),
        }
    }
    Unpacked::find(content).ok_or_else(|| {
        let expected = match missing.is_empty() {
            true => {
                "boot/vmlinuz-VERSION and lib/modules/VERSION (name the versioned package)".into()
            }
            false => {
                format!(
                    "beside it, in the same folder, the packages on which it depends: {}",
                    missing.join(", ")
                )
            }
        };
        Error::NoKernel { package: deb.into(), expected }
    })
}

/// Names of the packages in `depends`, a package's field, that are of the same kernel as `package`.
fn companions(package: &str, depends: &str) -> Vec<String> {
    let Some(version) = package.strip_prefix("linux-image-") else { return Vec::new() };
    let version = version.strip_prefix("unsigned-").unwrap_or(version);
    let names = depends.split([',', '|']).filter_map(|each| each.split_whitespace().next());
    let of_it = |name: &&str| {
        let family = name.strip_suffix(version).and_then(|name| name.strip_prefix("linux-"));
        *name != package && family.is_some_and(|family| family.ends_with('-'))
    };
    names.filter(of_it).map(str::to_owned).collect()
}

/// The file of a package in the folder of another.
fn beside(deb: &Path, name: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(deb.parent()?).ok()?.flatten();
    let of_it = |path: &PathBuf| {
        let file = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        file.strip_prefix(name).is_some_and(|rest| rest.starts_with('_') && rest.ends_with(".deb"))
    };
    entries.map(|entry| entry.path()).filter(of_it).max()
}

/// A field of a package file.
pub(crate) fn field(deb: &Path, name: &str) -> Result<String> {
    let text = DPKG_DEB.run([OsStr::new("--field"), deb.as_os_str(), OsStr::new(name)])?;
    Ok(String::from_utf8_lossy(&text).trim().to_owned())
}

fn extract(deb: &Path, content: &Path) -> Result<()> {
    DPKG_DEB.run([OsStr::new("--extract"), deb.as_os_str(), content.as_os_str()]).map(drop)
}

/// The package that a meta-package stands for: `linux-image-amd64` depends on the versioned
/// one, which has the kernel and whose name begins with `family`.
pub(crate) fn versioned(package: &str, family: &str) -> Result<String> {
    let unknown = |_| Error::UnknownPackage { package: package.into() };
    let mut package = package.to_owned();
    for _ in 0..4 {
        let depends = APT_CACHE.run(["depends", "--important", "--", &package]);
        let depends = depends.map_err(|error| match error {
            Error::Program { .. } => unknown(()),
            other => other,
        })?;
        match versioned_dependency(&String::from_utf8_lossy(&depends), family) {
            Some(next) if next != package => package = next,
            _ => break,
        }
    }
    Ok(package)
}

/// What apt says of the version of a package that it would download.
pub(crate) fn apt_show(package: &str) -> Result<String> {
    let text = APT_CACHE.run(["show", "--no-all-versions", "--", package])?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Downloads a package; returns the file.
pub(crate) fn download(package: &str, folder: &Path) -> Result<PathBuf> {
    let unknown = |()| Error::UnknownPackage { package: package.into() };
    let mut command = APT_GET.command();
    command.args(["download", "--", package]).current_dir(folder);
    APT_GET.finish(command).map_err(|error| match error {
        Error::Program { stderr, .. } if stderr.contains("Unable to locate") => unknown(()),
        other => other,
    })?;
    let entries = fs::read_dir(folder).at(folder)?;
    let mut files = entries.flatten().map(|entry| entry.path());
    files.find(|path| path.extension() == Some(OsStr::new("deb"))).ok_or_else(|| unknown(()))
}

/// The package of a family that `apt-cache depends` lists.
fn versioned_dependency(text: &str, family: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let name = line.trim_start().strip_prefix("Depends: ")?.trim();
        name.starts_with(family).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_meta_package_names_the_kernel() {
        let text = "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-56-cloud-amd64\n";
        assert_eq!(
            versioned_dependency(text, "linux-image-").unwrap(),
            "linux-image-6.1.0-56-cloud-amd64"
        );
        assert_eq!(versioned_dependency("x\n  Depends: kmod\n |Depends: y\n", "linux-"), None);
    }

    #[test]
    fn the_packages_of_a_divided_kernel_have_its_version() {
        let depends =
            "dracut | initramfs-tools (>= 0.120), linux-base-7.3.4-cloud-amd64 (= 7.3.4-1), \
                       linux-binary-7.3.4-cloud-amd64 (= 7.3.4-1), linux-base (>= 4.17), kmod";
        let found = companions("linux-image-7.3.4-cloud-amd64", depends);
        assert_eq!(found, ["linux-base-7.3.4-cloud-amd64", "linux-binary-7.3.4-cloud-amd64"]);
        let ubuntu =
            companions("linux-image-unsigned-6.8.0-31-generic", "linux-modules-6.8.0-31-generic");
        assert_eq!(ubuntu, ["linux-modules-6.8.0-31-generic"]);
        assert!(companions("linux-image-6.1.0", "kmod, linux-image-6.1.0, x6.1.0").is_empty());
    }

    #[test]
    fn a_kernel_is_whole_with_its_image_and_its_modules() {
        let content = tempfile::tempdir().expect("a folder");
        let modules = content.path().join("usr/lib/modules/7.3.4");
        fs::create_dir_all(&modules).expect("made");
        fs::write(modules.join("vmlinuz"), "").expect("written");
        assert_eq!(Unpacked::find(content.path()), None);
        fs::create_dir(modules.join("kernel")).expect("made");
        let found = Unpacked::find(content.path()).expect("whole");
        assert_eq!((found.version.as_str(), found.image), ("7.3.4", modules.join("vmlinuz")));
    }
}
