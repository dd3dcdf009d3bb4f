//! The command line that will be executed, and what watching adds to it.

use crate::argv;
use crate::vmm::{ConfigFile, Dialect};
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// A VMM about to be launched: argv, descriptors it inherits, and a record of
/// everything that vmeter added, so that it can be printed.
#[derive(Debug, Default)]
pub struct LaunchPlan {
    /// Program and arguments, executed as given: no shell in between.
    pub argv: Vec<OsString>,
    /// The configuration file that argv names, where the machine is in one.
    pub config: Option<ConfigFile>,
    /// How this VMM is spoken to; none if it is unknown.
    pub dialect: Option<&'static dyn Dialect>,
    /// Descriptors to pass on: (number in the child, descriptor).
    pub fds: Vec<(i32, OwnedFd)>,
    /// Arguments and kernel parameters added for watching, for the report.
    pub injected: Vec<String>,
    /// The VMM's image, where that is known better than by the first argument.
    pub program: Option<PathBuf>,
    /// Set for a VMM that runs already and can be passed no descriptors: a folder of vmeter's own
    /// for sockets and pipes, if its files can be reached from there.
    pub by_path: Option<PathBuf>,
    /// True if only the kernel's words can be added: what needs a file of vmeter's cannot.
    pub only_words: bool,
    /// True when vmeter may add arguments (`--no-inject` was not given, and the VMM is known).
    pub may_inject: bool,
    /// Becomes the VMM's standard output (its serial console): the write end of a
    /// pipe or a file whose other end the caller keeps. `/dev/null` if absent.
    pub stdout: Option<OwnedFd>,
}

impl LaunchPlan {
    /// Adds VMM arguments for watching. Does nothing when injection is not allowed.
    pub fn inject(&mut self, arguments: &[&str]) -> bool {
        if !self.may_inject || self.only_words {
            return false;
        }
        self.argv.extend(arguments.iter().map(OsString::from));
        self.injected.push(arguments.join(" "));
        true
    }

    /// Adds words to the kernel command line, in the VMM's own way. Does nothing (and
    /// returns false) when injection is not allowed or the guest's kernel is not given
    /// directly.
    pub fn inject_kernel_parameters(&mut self, words: &[&str]) -> bool {
        let words = words.join(" ");
        let Some(dialect) = self.dialect.filter(|_| self.may_inject) else { return false };
        if dialect.restores(&self.argv).is_some() {
            return false;
        }
        let added = dialect.add_kernel_words(&mut self.argv, self.config.as_mut(), &words);
        // With no words it is asked whether any could be added.
        if added && !words.is_empty() {
            self.injected.push(format!("kernel: {words}"));
        }
        added
    }

    /// The kernel's command line as it stands.
    pub fn kernel_line(&self) -> Option<String> {
        self.dialect?.kernel_line(&self.argv, self.config.as_ref())
    }

    /// True if a guest's restart is its machine's end: it can't be powered off, or a user whose `own` command
    /// line this is said so.
    pub fn ends_by_reset(&self, own: bool) -> bool {
        let by = |dialect: &dyn Dialect| {
            dialect.ends_by_reset(&self.argv, self.config.as_ref())
                || own && dialect.ends_at_restart(&self.argv)
        };
        self.dialect.is_some_and(by)
    }

    /// Writes the configuration file into `folder`, if it is vmeter's or was added to.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn place_config(&mut self, folder: &Path) -> io::Result<()> {
        let Some(config) = self.config.as_ref().filter(|c| c.given.is_none() || c.changed) else {
            return Ok(());
        };
        let path = folder.join(config.name);
        let mut text = serde_json::to_string_pretty(&config.content)?;
        text.push('\n');
        std::fs::write(&path, text)?;
        if let Some(given) = &config.given {
            let shown = path.display();
            let given = given.display();
            self.injected.push(format!(
                "{shown} in place of {given} (the new file is a copy with these parameters)"
            ));
        }
        argv::set_long(&mut self.argv, config.argument, path.as_os_str());
        Ok(())
    }

    /// Passes a descriptor on to the VMM and returns the number it will have there.
    pub fn pass_fd(&mut self, fd: OwnedFd) -> i32 {
        let number = 100 + self.fds.len() as i32;
        self.fds.push((number, fd));
        number
    }
}
