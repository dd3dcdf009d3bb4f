//! The VMM that is looked into: who it is, and why it can't be.

use super::LookError;
use crate::clock;
use rustix::time::{clock_gettime, ClockId};
use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use vmeter_base::process::{descriptors, Stat};
use vmeter_machine::backend;
use vmeter_machine::launch::kvm;
use vmeter_model::{Accel, Ns};

/// A process that may be a VMM.
#[derive(Debug, Clone)]
pub struct Vmm {
    /// Its number.
    pub pid: i32,
    /// Its argument vector.
    pub argv: Vec<String>,
    /// When it was started, ns of `CLOCK_MONOTONIC`, to a tick of 10 ms.
    pub started_ns: Ns,
    /// How it runs its guest, as far as that is known.
    pub accel: Option<Accel>,
    /// `starttime`, by which a process is told from a later one of the same number.
    started: u64,
}

impl Vmm {
    /// A process that may be looked into.
    ///
    /// # Errors
    /// When there is none of this number, this user may not read it, or its guest's time is virtual.
    pub fn of(pid: i32) -> Result<Self, LookError> {
        let gone = || {
            LookError::NoVm(format!(
                "no process has the number {pid}: `pgrep -a qemu` lists the VMMs of this host"
            ))
        };
        let stat = Stat::of(pid).filter(|stat| !stat.is_gone()).ok_or_else(gone)?;
        may_read(pid, &stat.name)?;
        let argv = fs::read(format!("/proc/{pid}/cmdline")).map_err(|_| gone())?;
        let words = argv.split(|byte| *byte == 0).filter(|word| !word.is_empty());
        let argv: Vec<String> = words.map(|w| String::from_utf8_lossy(w).into_owned()).collect();
        if argv.iter().any(|word| word == "-icount" || word == "--icount") {
            return Err(LookError::Refused(format!(
                "pid {pid}: its guest's time is virtual (-icount), and only the VMM can read it: \
                 use `vmeter boot` to record such a guest"
            )));
        }
        let known = vmm_name(pid, &argv).is_some();
        let accel = match kvm::machines(pid) {
            0 => known.then_some(Accel::Tcg),
            _ => Some(Accel::Kvm),
        };
        Ok(Vmm { pid, argv, started_ns: started_ns(stat.started), accel, started: stat.started })
    }

    /// True if it has ended.
    pub fn is_gone(&self) -> bool {
        Stat::of(self.pid).is_none_or(|stat| stat.is_gone() || stat.started != self.started)
    }

    /// The option by which it goes on with a VM that was booted before (`-incoming`), if any.
    pub fn restores(&self) -> Option<&'static str> {
        let argv: Vec<OsString> = self.argv.iter().map(OsString::from).collect();
        let image = fs::read_link(format!("/proc/{}/exe", self.pid)).ok()?;
        backend::restores(&image, &argv)
    }

    /// The name that its VM was given (`-name`), if any.
    pub fn name(&self) -> Option<&str> {
        name_in(&self.argv)
    }

    /// Why no kernel was found in it.
    pub(super) fn why_not(&self, error: &str) -> LookError {
        let error = error.trim_start_matches("guest RAM: ");
        let pid = self.pid;
        if self.is_gone() {
            return LookError::Gone(pid);
        }
        if self.is_encrypted() {
            return LookError::Refused(format!(
                "pid {pid}: its guest's RAM is encrypted (SEV or TDX), so only the guest can \
                 read it: use `dmesg` and `systemd-analyze` in the guest instead"
            ));
        }
        let is_vmm = kvm::machines(pid) > 0 || vmm_name(pid, &self.argv).is_some();
        if !is_vmm {
            let program = self.argv.first().map_or("", String::as_str);
            return LookError::NoVm(format!(
                "pid {pid} ({program}) is no VMM that vmeter knows, has no KVM VM open, and has no \
                 Linux kernel in its memory: give the pid of the VMM itself, not of its launcher"
            ));
        }
        LookError::NoKernel(format!(
            "pid {pid}: vmeter found no Linux kernel in the guest's RAM ({error}). A guest that \
             is still in its firmware or loader has no kernel yet: try again a little later, or \
             wait for the kernel with vmeter look {pid} --follow"
        ))
    }

    fn is_encrypted(&self) -> bool {
        const WORDS: [&str; 4] =
            ["sev-guest", "sev-snp-guest", "tdx-guest", "confidential-guest-support="];
        let asked = |word: &String| WORDS.iter().any(|name| word.contains(name));
        self.argv.iter().any(asked)
            || descriptors(self.pid).any(|(_, to)| to == Path::new("/dev/sev"))
    }
}

/// What the image of a VMM is called that vmeter knows.
fn vmm_name(pid: i32, argv: &[String]) -> Option<&'static str> {
    let image = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let words: Vec<_> = argv.iter().map(Into::into).collect();
    Some(backend::of_exec(&image, &words)?.vmm())
}

/// Refuses a process whose memory this user may not read.
fn may_read(pid: i32, name: &str) -> Result<(), LookError> {
    let kernel = || {
        LookError::NoVm(format!(
            "pid {pid} ({name}) is a thread of this host's kernel: give the pid of a VMM"
        ))
    };
    // Opening either asks for the same right as process_vm_readv(2): PTRACE_MODE_ATTACH.
    let mem = fs::File::open(format!("/proc/{pid}/mem"));
    let maps = fs::read(format!("/proc/{pid}/maps"));
    match mem.map(drop).and(maps) {
        Ok(maps) if maps.is_empty() => Err(kernel()),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            let mend = match rustix::process::geteuid().is_root() {
                true => "this user is root, so either a security module forbids the access or \
                    vmeter is in a container. If vmeter is in a container, run vmeter look on the \
                    host itself"
                    .to_owned(),
                false => format!(
                    "run vmeter look as the VMM's user and group, or as root: sudo vmeter look \
                        {pid}"
                ),
            };
            Err(LookError::Refused(format!(
                "pid {pid} ({name}): this user may not read the memory of this process: {mend}"
            )))
        }
        Err(_) if Stat::of(pid).is_some_and(|stat| stat.memory == 0) => Err(kernel()),
        Err(_) => Err(LookError::Gone(pid)),
    }
}

/// `CLOCK_MONOTONIC` when a process started, from clock ticks after the host's boot.
fn started_ns(ticks: u64) -> Ns {
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    let since_boot = i128::from(ticks) * 1_000_000_000 / i128::from(per_second);
    // Ticks count while the host sleeps.
    let boot = clock_gettime(ClockId::Boottime);
    let slept = boot.tv_sec * 1_000_000_000 + boot.tv_nsec - clock::monotonic();
    Ns::try_from(since_boot).unwrap_or(Ns::MAX).saturating_sub(slept)
}

/// The pid of a libvirt domain: by the file that libvirt keeps for it, or by its VMM's `-name`.
/// libvirtd is not asked.
///
/// # Errors
/// When no VMM of that name runs, or several do.
pub fn of_libvirt(name: &str) -> Result<i32, LookError> {
    let user = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let folders =
        [Some(PathBuf::from("/run/libvirt/qemu")), user.map(|u| u.join("libvirt/qemu/run"))];
    of_domain(name, &folders.into_iter().flatten().collect::<Vec<_>>(), Path::new("/proc"))
}

fn of_domain(name: &str, folders: &[PathBuf], proc: &Path) -> Result<i32, LookError> {
    let argv = |pid: i32| -> Vec<String> {
        let words = fs::read(proc.join(pid.to_string()).join("cmdline")).unwrap_or_default();
        words.split(|b| *b == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
    };
    let runs = |pid: &i32| name_in(&argv(*pid)) == Some(name);
    let kept = folders.iter().filter(|_| !name.contains('/')).find_map(|folder| {
        let text = fs::read_to_string(folder.join(format!("{name}.pid"))).ok()?;
        text.trim().parse().ok().filter(runs)
    });
    if let Some(pid) = kept {
        return Ok(pid);
    }
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    match pids.filter(runs).collect::<Vec<i32>>().as_slice() {
        [pid] => Ok(*pid),
        [] => Err(LookError::NoVm(format!(
            "no VMM of this host runs with -name {name}: `virsh list` shows the running domains, \
             and `vmeter look PID` works for any VMM"
        ))),
        several => Err(LookError::NoVm(format!(
            "several VMMs run with -name {name}: give one of the pids {several:?}"
        ))),
    }
}

/// The value of `-name`: `NAME`, or `guest=NAME` among other settings; QEMU writes a comma of a name twice.
pub fn name_in(argv: &[String]) -> Option<&str> {
    let at = argv.iter().position(|word| word == "-name" || word == "--name")?;
    let value = argv.get(at + 1)?;
    let mut settings = value.split(',');
    let guest = settings.clone().find_map(|setting| setting.strip_prefix("guest="));
    guest.or_else(|| settings.next().filter(|first| !first.contains('=')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_is_found_by_its_file_or_by_its_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let (run, proc) = (folder.path().join("run"), folder.path().join("proc"));
        let process = |pid: &str, words: &str| {
            fs::create_dir_all(proc.join(pid)).expect("a folder");
            fs::write(proc.join(pid).join("cmdline"), words.replace(' ', "\0")).expect("written");
        };
        fs::create_dir_all(&run).expect("a folder");
        process("7", "/usr/bin/qemu-system-x86_64 -name guest=web,debug-threads=on -m 1");
        process("8", "qemu -name db");
        process("9", "grep -name web2");
        let find = |name: &str| of_domain(name, std::slice::from_ref(&run), &proc);
        assert_eq!((find("web").ok(), find("db").ok()), (Some(7), Some(8)));
        // A file that a crash left behind names a process that is another by now.
        fs::write(run.join("web.pid"), "8\n").expect("written");
        assert_eq!(find("web").ok(), Some(7));
        assert!(find("mail").expect_err("none").to_string().contains("virsh list"));
        process("10", "qemu -name db");
        assert!(find("db").expect_err("two").to_string().contains("several"));
        assert!(find("../run/web").is_err());
    }

    #[test]
    fn this_process_started_before_now() {
        let own = Vmm::of(std::process::id() as i32).expect("this process");
        let age = clock::monotonic() - own.started_ns;
        assert!((-20_000_000..3_600_000_000_000).contains(&age), "{age}");
        assert!(!own.is_gone() && own.name().is_none());
        let error = Vmm::of(i32::MAX).expect_err("none").to_string();
        assert!(error.contains("no process has the number"), "{error}");
    }
}
