//! What can go wrong while a guest is made, and the next step for each.

use crate::cache_root;
use std::path::{Path, PathBuf};

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read, written, made or moved.
    #[error("{}: {source}{}", path.display(), cure(path, source))]
    File {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Another vmeter builds there.
    #[error(
        "{}: another vmeter is building this kernel; wait until it ends, or stop it and repeat \
            the command",
        path.display()
    )]
    Busy {
        /// The build's folder.
        path: PathBuf,
    },
    /// No place for the cache.
    #[error("no cache folder: neither XDG_CACHE_HOME nor HOME is set; set one of them")]
    NoCache,
    /// A program is not installed.
    #[error("{program} is not installed, and {purpose} needs it: sudo apt-get install {package}")]
    Missing {
        /// Program.
        program: String,
        /// What it was wanted for.
        purpose: &'static str,
        /// Debian package that has it.
        package: &'static str,
    },
    /// A program failed.
    #[error("{command} ended with {status}: {stderr}")]
    Program {
        /// Its argument vector, for the eye.
        command: String,
        /// Exit status.
        status: String,
        /// End of what it printed as an error.
        stderr: String,
    },
    /// The package manager knows no such kernel.
    #[error(
        "apt knows no package {package}: apt's lists may be missing or old; \
         type `sudo apt-get update` and try again, or name a .deb file"
    )]
    UnknownPackage {
        /// The package asked for.
        package: String,
    },
    /// A package is not a kernel.
    #[error("{} holds no kernel: expected {expected}", package.display())]
    NoKernel {
        /// The package file.
        package: PathBuf,
        /// What was looked for.
        expected: String,
    },
    /// A module that was asked for is in no list of the kernel's.
    #[error(
        "kernel {version} has no module {module}: modules.dep and modules.builtin do not list it; \
            leave the module out, or choose a kernel that has it"
    )]
    UnknownModule {
        /// Module.
        module: String,
        /// Kernel release.
        version: String,
    },
    /// A module that was asked for needs a blacklisted one.
    #[error(
        "module {module} needs {blacklisted}, which is blacklisted: take {blacklisted} off the \
            blacklist, or leave {module} out"
    )]
    Blacklisted {
        /// Module asked for.
        module: String,
        /// The blacklisted module it needs.
        blacklisted: String,
    },
    /// Modules were asked for without saying of which kernel.
    #[error(
        "the cache has no kernel to take modules or a configuration from: fetch a kernel with \
        `vmeter kernel fetch`"
    )]
    NoModules,
    /// A shared library cannot be found.
    #[error("{} needs the library {library}, which is in none of these folders: {searched}", needed_by.display())]
    MissingLibrary {
        /// Library name as in `DT_NEEDED`.
        library: String,
        /// File that needs it.
        needed_by: PathBuf,
        /// Folders searched.
        searched: String,
    },
    /// A file is not what it should be.
    #[error("{}: {problem}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what was expected.
        problem: String,
    },
    /// Two things of different kind claim one guest path.
    #[error("/{path} in the guest would be both {first} and {second}: rename one of them")]
    Conflict {
        /// Path in the guest.
        path: String,
        /// Kind there already.
        first: &'static str,
        /// Kind to be added.
        second: &'static str,
    },
    /// A guest path that cannot be in an initramfs.
    #[error(
        "guest path {path:?} must be absolute, and must not contain a component `.` or `..`, \
        or a NUL"
    )]
    GuestPath {
        /// Path as given.
        path: String,
    },
    /// A file too large for the newc format.
    #[error("/{path} is {bytes} bytes: an initramfs holds files below 4 GiB")]
    TooLarge {
        /// Path in the guest.
        path: String,
        /// Size.
        bytes: u64,
    },
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Names the file in an I/O error.
/// What helps where the cache cannot be written.
fn cure(path: &Path, error: &std::io::Error) -> &'static str {
    use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    let refused = matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem);
    let cache = cache_root::of_variables().is_some_and(|cache| path.starts_with(cache));
    match refused && cache {
        true => "; set XDG_CACHE_HOME to a folder that can be written",
        false => "",
    }
}

pub(crate) trait At<T> {
    fn at(self, path: &Path) -> Result<T>;
}

impl<T> At<T> for std::io::Result<T> {
    fn at(self, path: &Path) -> Result<T> {
        self.map_err(|source| Error::File { path: path.to_owned(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_that_cannot_be_written_is_said_with_what_helps() {
        let Some(cache) = cache_root::of_variables() else { return println!("skipped: no cache") };
        let refused = |path: PathBuf| {
            let source = std::io::Error::from(std::io::ErrorKind::ReadOnlyFilesystem);
            Error::File { path, source }.to_string()
        };
        assert!(refused(cache.join("appliances")).contains("set XDG_CACHE_HOME to"));
        assert!(!refused("/elsewhere".into()).contains("XDG_CACHE_HOME"));
    }
}
