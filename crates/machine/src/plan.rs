//! The command line that will be executed, and what watching adds to it.

use std::ffi::OsString;
use std::os::fd::OwnedFd;

/// A VMM about to be launched: argv, descriptors it inherits, and a record of
/// everything that vmeter added, so that it can be printed.
#[derive(Debug, Default)]
pub struct LaunchPlan {
    /// Program and arguments, executed as given: no shell in between.
    pub argv: Vec<OsString>,
    /// Descriptors to pass on: (number in the child, descriptor).
    pub fds: Vec<(i32, OwnedFd)>,
    /// Arguments and kernel parameters added for watching, for the report.
    pub injected: Vec<String>,
    /// True when vmeter may add arguments (`--no-inject` was not given, and the VMM is QEMU).
    pub may_inject: bool,
    /// Becomes the VMM's standard output (its serial console): the write end of a
    /// pipe or a file whose other end the caller keeps. `/dev/null` if absent.
    pub stdout: Option<OwnedFd>,
}

impl LaunchPlan {
    /// Adds VMM arguments for watching. Does nothing when injection is not allowed.
    pub fn inject(&mut self, arguments: &[&str]) -> bool {
        if !self.may_inject {
            return false;
        }
        self.argv.extend(arguments.iter().map(OsString::from));
        self.injected.push(arguments.join(" "));
        true
    }

    /// Adds words to the kernel command line: to the value of `-append`, which is
    /// created if there is a `-kernel`. Does nothing (and returns false) when
    /// injection is not allowed or the guest's kernel is not given directly.
    pub fn inject_kernel_parameters(&mut self, words: &[&str]) -> bool {
        if !self.may_inject {
            return false;
        }
        let position = |name: &str| {
            let double = format!("-{name}");
            self.argv.iter().position(|a| a == name || *a == *double)
        };
        if let Some(at) = position("-append").filter(|at| at + 1 < self.argv.len()) {
            let value = &mut self.argv[at + 1];
            value.push(" ");
            value.push(words.join(" "));
        } else if position("-kernel").is_some() {
            self.argv.push("-append".into());
            self.argv.push(words.join(" ").into());
        } else {
            return false;
        }
        self.injected.push(format!("kernel: {}", words.join(" ")));
        true
    }

    /// Passes a descriptor on to the VMM and returns the number it will have there.
    pub fn pass_fd(&mut self, fd: OwnedFd) -> i32 {
        let number = 100 + self.fds.len() as i32;
        self.fds.push((number, fd));
        number
    }
}
