//! The kernel's sources: Debian's package, unpacked once.

use super::Step;
use crate::cache;
use crate::command::Tool;
use crate::error::{At, Error, Result};
use crate::packages;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// The package whose dependency is the newest source that Debian has.
const PACKAGE: &str = "linux-source";
const TAR: Tool = Tool { program: "tar", purpose: "unpacking the sources", package: "tar" };
const XZ: Tool = Tool { program: "xz", purpose: "unpacking the sources", package: "xz-utils" };
const DPKG_DEB: Tool =
    Tool { program: "dpkg-deb", purpose: "unpacking the sources", package: "dpkg" };

/// Unpacked sources.
pub(super) struct Source {
    /// The folder with the top `Makefile`.
    pub folder: PathBuf,
    /// What they are: package and version, or the path that was given.
    pub name: String,
}

/// The sources that are given, or Debian's: downloaded and unpacked unless they are there.
pub(super) fn of(
    given: Option<&Path>,
    cache: &Path,
    progress: &mut dyn FnMut(Step),
) -> Result<Source> {
    let sources = cache.join("kernel-sources");
    if let Some(given) = given.filter(|path| path.is_dir()) {
        let folder = fs::canonicalize(given).at(given)?;
        check(&folder)?;
        return Ok(Source { name: folder.display().to_string(), folder });
    }
    fs::create_dir_all(&sources).at(&sources)?;
    let work =
        tempfile::Builder::new().prefix(&cache::own(".new-")).tempdir_in(&sources).at(&sources)?;
    let file = match given {
        Some(file) => fs::canonicalize(file).at(file)?,
        None => {
            let package = packages::versioned(PACKAGE, "linux-source-")?;
            let name = candidate(&package)?;
            let folder = sources.join(&name);
            if folder.join("Makefile").is_file() {
                return Ok(Source { folder, name });
            }
            progress(Step::Begin(format!("downloading {package}")));
            packages::download(&package, work.path())?
        }
    };
    let name = file.file_stem().unwrap_or(OsStr::new("source")).to_string_lossy().into_owned();
    let name = name.trim_end_matches("_all").trim_end_matches(".tar").to_owned();
    let folder = sources.join(&name);
    if folder.join("Makefile").is_file() {
        return Ok(Source { folder, name });
    }
    progress(Step::Begin(format!("unpacking {name}")));
    let fresh =
        tempfile::Builder::new().prefix(&cache::own(".new-")).tempdir_in(&sources).at(&sources)?;
    unpack(&file, work.path(), fresh.path())?;
    check(fresh.path())?;
    cache::publish(fresh, &folder)?;
    Ok(Source { folder, name })
}

/// `PACKAGE_VERSION` of what apt would download, as in its file's name.
fn candidate(package: &str) -> Result<String> {
    let text = packages::apt_show(package)?;
    let version = text.lines().find_map(|line| line.strip_prefix("Version: "));
    let version = version.ok_or_else(|| Error::UnknownPackage { package: package.into() })?;
    Ok(format!("{package}_{}", version.trim()))
}

/// Unpacks a package with `usr/src/linux-source-*.tar.xz` in it, or such an archive.
fn unpack(file: &Path, work: &Path, to: &Path) -> Result<()> {
    let mut archive = file.to_owned();
    if file.extension() == Some(OsStr::new("deb")) {
        let content = work.join("content");
        DPKG_DEB.run([OsStr::new("--extract"), file.as_os_str(), content.as_os_str()])?;
        let folder = content.join("usr/src");
        let inside = fs::read_dir(&folder).into_iter().flatten().flatten();
        let is_archive = |path: &PathBuf| path.to_string_lossy().contains(".tar.");
        archive = inside.map(|entry| entry.path()).find(is_archive).ok_or_else(|| {
            let expected = "usr/src/linux-source-VERSION.tar.xz";
            Error::NoKernel { package: file.into(), expected: expected.into() }
        })?;
    }
    if archive.extension() == Some(OsStr::new("xz")) {
        XZ.run(["--version"])?;
    }
    let mut command = TAR.command();
    command.args(["--strip-components=1", "-C"]).arg(to).arg("-xf").arg(&archive);
    TAR.finish(command).map(drop)
}

fn check(folder: &Path) -> Result<()> {
    if folder.join("Makefile").is_file() && folder.join("Kconfig").is_file() {
        return Ok(());
    }
    Err(Error::Malformed {
        path: folder.into(),
        problem: "expected a kernel's sources, with Makefile and Kconfig at their top".into(),
    })
}
