//! Running make: what is needed for it, and how far it is.

use crate::command::Tool;
use crate::error::{At, Error, Result};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// The image, in the folder of the build.
pub(super) const IMAGE: &str = "arch/x86/boot/bzImage";

const PURPOSE: &str = "building a kernel";

pub(super) const MAKE: Tool = Tool { program: "make", purpose: PURPOSE, package: "make" };
const COMPILER: Tool = Tool { program: "gcc", purpose: PURPOSE, package: "gcc" };

/// Programs that the kernel's makefiles run (Linux `Documentation/process/changes.rst`).
const TOOLS: [Tool; 5] = [
    Tool { program: "flex", purpose: PURPOSE, package: "flex" },
    Tool { program: "bison", purpose: PURPOSE, package: "bison" },
    Tool { program: "bc", purpose: PURPOSE, package: "bc" },
    Tool { program: "ld", purpose: PURPOSE, package: "binutils" },
    Tool { program: "pahole", purpose: "making a kernel's BTF", package: "pahole" },
];
/// A header, and the package that has it: objtool and resolve_btfids are linked with it.
const HEADERS: [(&str, &str); 1] = [("gelf.h", "libelf-dev")];

/// Refuses a host on which make would fail after minutes; the compiler's first line.
pub(super) fn check_tools() -> Result<String> {
    MAKE.run(["--version"])?;
    let version = COMPILER.run(["--version"])?;
    for tool in &TOOLS {
        match tool.run(["--version"]) {
            Err(error @ Error::Missing { .. }) => return Err(error),
            _ => continue,
        }
    }
    for (header, package) in HEADERS {
        let read = ["-E", "-x", "c", "-o", "/dev/null", "-include", header, "/dev/null"];
        if let Err(Error::Program { .. }) = COMPILER.run(read) {
            let program = header.into();
            return Err(Error::Missing { program, purpose: PURPOSE, package });
        }
    }
    Ok(String::from_utf8_lossy(&version).lines().next().unwrap_or_default().to_owned())
}

/// Objects that a build has: `.cmd` files are written when an object is whole.
pub(super) fn objects(out: &Path) -> usize {
    let (mut found, mut folders) = (0, vec![out.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let Ok(kind) = entry.file_type() else { continue };
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if kind.is_dir() && !["tools", "scripts", "include"].contains(&&*name) {
                folders.push(entry.path());
            } else if name.starts_with('.') && name.ends_with(".o.cmd") {
                found += 1;
            }
        }
    }
    found
}

/// Runs make in `out`.
fn command(source: &Path, out: &Path, arguments: &[&str]) -> Command {
    let mut command = MAKE.command();
    command.arg("-C").arg(source).arg(format!("O={}", out.display())).args(arguments);
    command.envs(REPRODUCIBLE);
    command
}

/// How many objects a build still has to compile, by make's own word (`make -n`); none if it
/// does not say. What it needs first (`make prepare`) must be there.
pub(super) fn left(source: &Path, out: &Path) -> Option<usize> {
    let said = MAKE.finish(command(source, out, &["-n", "bzImage"])).ok()?;
    let compiles = |line: &&[u8]| {
        let words = [&b"echo '  CC "[..], b"echo '  AS "];
        words.iter().any(|word| line.windows(word.len()).any(|part| part == *word))
    };
    Some(said.split(|byte| *byte == b'\n').filter(compiles).count())
}

/// Runs make to its end; `each` is told how many objects it has compiled.
///
/// # Errors
/// Class program: the last lines of the log.
pub(super) fn run(
    source: &Path,
    out: &Path,
    (target, jobs): (&str, usize),
    each: &mut dyn FnMut(usize),
) -> Result<()> {
    let path = out.join("build.log");
    let mut log = File::options().create(true).append(true).open(&path).at(&path)?;
    let mut command = command(source, out, &[&format!("-j{}", jobs.max(1)), target]);
    command.stdout(Stdio::piped()).stderr(log.try_clone().at(&path)?);
    let words: Vec<_> = command.get_args().map(|a| a.to_string_lossy().into_owned()).collect();
    let mut child = command.spawn().at(Path::new(MAKE.program))?;
    let mut now = 0;
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).split(b'\n') {
            let line = line.at(&path)?;
            log.write_all(&line).and_then(|()| log.write_all(b"\n")).at(&path)?;
            if is_object(&line) {
                now += 1;
                each(now);
            }
        }
    }
    let status = child.wait().at(Path::new(MAKE.program))?;
    if status.success() {
        return Ok(());
    }
    Err(Error::Program {
        command: format!("make {}", words.join(" ")),
        status: status.to_string(),
        stderr: complaint(&path),
    })
}

/// The same sources make the same image.
const REPRODUCIBLE: [(&str, &str); 4] = [
    ("KBUILD_BUILD_TIMESTAMP", "2026-01-01"),
    ("KBUILD_BUILD_USER", "vmeter"),
    ("KBUILD_BUILD_HOST", "vmeter"),
    ("LOCALVERSION", ""),
];

/// True for kbuild's line of an object of the kernel.
fn is_object(line: &[u8]) -> bool {
    let line = line.trim_ascii_start();
    let compiles = [&b"CC "[..], b"AS "].iter().any(|word| line.starts_with(word));
    let host = line.windows(6).any(|part| part == b"tools/");
    compiles && !host && line.ends_with(b".o")
}

/// What a build's log says went wrong: its lines with an error, or its last ones.
fn complaint(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let plain = |line: &str| -> String {
        line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
    };
    let lines: Vec<&str> = text.lines().collect();
    let errors = lines.iter().filter(|line| line.contains("rror:") || line.contains("Error "));
    let mut said: Vec<String> = errors.rev().take(4).map(|line| plain(line)).collect();
    if said.is_empty() {
        said = lines.iter().rev().take(4).map(|line| plain(line)).collect();
    }
    said.reverse();
    format!("{} (all of it: {})", said.join("; "), log.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_told_from_tools() {
        assert!(is_object(b"  CC      kernel/fork.o"));
        assert!(is_object(b"  AS      arch/x86/entry/entry_64.o"));
        assert!(!is_object(b"  CC      /b/tools/objtool/check.o"));
        assert!(!is_object(b"  HOSTCC  scripts/mod/modpost.o"));
        assert!(!is_object(b"  LD      vmlinux"));
    }

    #[test]
    fn what_is_compiled_is_counted() {
        let folder = tempfile::tempdir().expect("a folder");
        let out = folder.path();
        fs::create_dir_all(out.join("kernel/sched")).expect("folders");
        fs::create_dir_all(out.join("tools/objtool")).expect("folders");
        for name in ["kernel/.fork.o.cmd", "kernel/sched/.core.o.cmd", "tools/objtool/.a.o.cmd"] {
            fs::write(out.join(name), "").expect("a file");
        }
        assert_eq!(objects(out), 2);
        fs::write(out.join("build.log"), "  CC a.o\na.c:1: error: no\nmake: *** Error 2\n")
            .expect("a log");
        assert!(complaint(&out.join("build.log")).starts_with("a.c:1: error: no; make:"));
    }
}
