//! Programs of the host, run as argument vectors and never through a shell.

use crate::error::{Error, Result};
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::process::{Command, Stdio};

/// How much of a program's complaint is kept, bytes.
const STDERR_KEPT: usize = 2000;

/// A program of the host, and what to say where it is missing.
pub(crate) struct Tool {
    pub program: &'static str,
    pub purpose: &'static str,
    pub package: &'static str,
}

impl Tool {
    /// The command to run it. `/usr/sbin` is searched too: a user's PATH often lacks it.
    pub fn command(&self) -> Command {
        let mut command = Command::new(self.program);
        vmeter_base::marked::mark(&mut command, &vmeter_base::owner::Owner::this());
        let mut path = std::env::var_os("PATH").unwrap_or_default();
        path.push(":/usr/sbin:/sbin");
        command.env("PATH", path).env("LC_ALL", "C");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs it to its end and returns what it printed; a status other than 0 is an error.
    pub fn run<I, S>(&self, args: I) -> Result<Vec<u8>>
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        let mut command = self.command();
        command.args(args);
        self.finish(command)
    }

    /// As [`Tool::run`], for a prepared command.
    pub fn finish(&self, mut command: Command) -> Result<Vec<u8>> {
        let output = command.output().map_err(|error| match error.kind() {
            ErrorKind::NotFound => Error::Missing {
                program: self.program.into(),
                purpose: self.purpose,
                package: self.package,
            },
            _ => Error::File { path: self.program.into(), source: error },
        })?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let words: Vec<_> = words.map(OsStr::to_string_lossy).collect();
        Err(Error::Program {
            command: words.join(" "),
            status: output.status.to_string(),
            stderr: tail(&output.stderr),
        })
    }
}

/// The end of a program's output as plain text: control characters become spaces.
fn tail(bytes: &[u8]) -> String {
    let bytes = &bytes[bytes.len().saturating_sub(STDERR_KEPT)..];
    let text = String::from_utf8_lossy(bytes);
    text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_names_its_package() {
        let tool = Tool { program: "vmeter-no-such", purpose: "a test", package: "nothing" };
        let error = tool.run(["x"]).unwrap_err().to_string();
        assert!(error.contains("apt-get install nothing"), "{error}");
    }

    #[test]
    fn a_failing_program_is_quoted_without_escapes() {
        let tool = Tool { program: "ls", purpose: "a test", package: "coreutils" };
        let error = tool.run(["/no\u{1b}[31m such"]).unwrap_err().to_string();
        assert!(error.contains("such"), "{error}");
        assert!(!error[error.find("exit status").unwrap()..].contains('\u{1b}'), "{error:?}");
    }
}
