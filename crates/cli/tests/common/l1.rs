//! A Debian kernel in QEMU's interpreter, running the built `vmeter` as its only program: a
//! host with hardware that this one lacks.

use super::{text, Lab};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use vmeter_appliance::{build_to, kernel, ApplianceSpec, Content, ExtraFile};

/// Programs of its script, with their libraries.
const PROGRAMS: [&str; 4] = ["/bin/sh", "/bin/mount", "/bin/stty", "/bin/cat"];

/// Kernel command line of every one.
const APPEND: &str = "console=ttyS0 quiet panic=-1 cryptomgr.notests no_timer_check \
                      random.trust_cpu=on tsc=reliable vmeter.run=/run-vmeter";

/// What is to run, and on what.
pub struct L1<'a> {
    /// Modules that it loads.
    pub modules: &'a [&'a str],
    /// Further programs, with their libraries: of this host, and where.
    pub programs: &'a [(&'a Path, &'a str)],
    /// What it runs: a script for /bin/sh.
    pub script: &'a str,
    /// Further words for QEMU.
    pub qemu: &'a [&'a str],
    /// Further words for its kernel.
    pub append: &'a str,
    /// Seconds after which it is given up on.
    pub patience: u32,
}

/// A file of this host, elsewhere in the guest.
pub fn host_file(path: &Path, guest: &str, mode: u32) -> ExtraFile {
    ExtraFile { path: guest.into(), content: Content::Host(path.to_owned()), mode }
}

/// The libraries of a program, by the dynamic linker's own word.
pub fn libraries(program: &Path) -> BTreeSet<PathBuf> {
    let output = Command::new("ldd").arg(program).output().expect("ldd is part of the C library");
    String::from_utf8_lossy(&output.stdout)
        .split_whitespace()
        .filter(|word| word.starts_with('/'))
        .map(PathBuf::from)
        .collect()
}

impl L1<'_> {
    fn initramfs(&self, lab: &Lab, kernel: &kernel::KernelPaths) -> PathBuf {
        let vmeter = (Path::new(env!("CARGO_BIN_EXE_vmeter")), "/usr/bin/vmeter");
        let usual = PROGRAMS.map(|path| (Path::new(path), path));
        let mut files = Vec::new();
        let mut needed: BTreeSet<PathBuf> = BTreeSet::new();
        for (program, guest) in [vmeter].iter().chain(&usual).chain(self.programs) {
            files.push(host_file(program, guest, 0o755));
            needed.extend(libraries(program));
        }
        files.extend(needed.iter().map(|path| host_file(path, text(path), 0o755)));
        for (path, content) in [
            ("/run-vmeter", self.script.to_owned()),
            ("/tmp/.here", String::new()),
            ("/root/.here", String::new()),
        ] {
            let content = Content::Bytes(content.into_bytes());
            files.push(ExtraFile { path: path.into(), content, mode: 0o755 });
        }
        let spec = ApplianceSpec {
            modules_from: Some(kernel.modules()),
            load: self.modules.iter().map(|&name| name.to_owned()).collect(),
            extra_files: files,
            ..ApplianceSpec::minimal()
        };
        let path = lab.path("l1.cpio");
        build_to(&spec, &path).expect("an initramfs");
        path
    }

    /// Runs it to its end. Gives what it wrote to each of its serial lines, the console
    /// first, of which the others are files of these names.
    pub fn run(&self, lab: &Lab, kernel: &kernel::KernelPaths, lines: &[&str]) -> Vec<String> {
        let initrd = self.initramfs(lab, kernel);
        let mut command = Command::new("timeout");
        command.arg(self.patience.to_string()).arg("qemu-system-x86_64");
        command.args(["-accel", "tcg", "-nodefaults", "-display", "none", "-no-reboot"]);
        command.args(self.qemu);
        let outputs: Vec<PathBuf> =
            ["console"].iter().chain(lines).map(|name| lab.path(name)).collect();
        for output in &outputs {
            command.arg("-serial").arg(format!("file:{}", text(output)));
        }
        command.arg("-kernel").arg(&kernel.vmlinuz).arg("-initrd").arg(initrd);
        command.arg("-append").arg(format!("{APPEND} {}", self.append));
        let status = command.stdin(Stdio::null()).status().expect("QEMU");
        let read = |path: &PathBuf| {
            let bytes = std::fs::read(path).unwrap_or_default();
            String::from_utf8_lossy(&bytes).replace('\r', "")
        };
        let read: Vec<String> = outputs.iter().map(read).collect();
        println!("{}", read[0]);
        assert!(status.success(), "L1: {status}");
        read
    }
}
