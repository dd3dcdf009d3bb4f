//! Who of a launch asks a process outside of it for something, as a client of a daemon does.
//!
//! `virsh start` and its like start no VMM: they ask a daemon for one, and print lines of their own
//! meanwhile. Nothing else tells such a client from a VMM of somebody's own that needs no KVM: both
//! print and end. A client shows by a socket whose other end is held by nobody of the launch. A
//! process that has children, starts one or executes another program asked on the way to that
//! (`sudo` asks who a user is), and is none.

use super::family::number;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::process::{pidfd_getfd, pidfd_open, Pid, PidfdFlags, PidfdGetfdFlags};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;
use vmeter_base::process;
use vmeter_model::Ns;

/// Time between two looks: this part of the time since the launch, within these bounds.
const PART: u32 = 64;
const SHORTEST: Duration = Duration::from_millis(2);
const LONGEST: Duration = Duration::from_millis(50);
/// A guest's RAM is no less in one piece, bytes.
const GUEST_RAM: u64 = 16 << 20;
/// A translator's code is no less; what libraries write for themselves (libffi, PCRE) is 64 KiB, bytes.
const CODE: u64 = 1 << 20;
/// Descriptors of a process that are looked at.
const MOST: usize = 4096;

/// A process that asked one outside of the launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaemonClient {
    /// What it is called.
    pub who: String,
    /// Whom it asked, in words.
    pub whom: String,
}

/// What was seen of a launch until a VMM is.
#[derive(Debug, Default)]
pub struct Asks {
    /// The clients, by their process ids.
    found: Vec<(Pid, DaemonClient)>,
    /// Sockets by their inodes that a process held when it started or executed another: it asked for that.
    excused: BTreeSet<String>,
    begun: Option<Ns>,
    due: Ns,
}

/// What a process holds.
#[derive(Debug, PartialEq, Eq)]
pub enum Holds {
    /// A VM of KVM's, KVM itself, or memory as only a VMM's is.
    Machine,
    /// A socket to a process outside.
    Outside(String),
    /// Neither.
    Nothing,
}

impl Asks {
    /// When the next look is due, from now on.
    pub fn next(&mut self, now: Ns) -> Duration {
        self.begun.get_or_insert(now);
        Duration::from_nanos(u64::try_from(self.due - now).unwrap_or(0))
    }

    /// True if a look is due; the next one is some time after it.
    pub fn is_due(&mut self, now: Ns) -> bool {
        let begun = *self.begun.get_or_insert(now);
        let due = now >= self.due;
        if due {
            let since = Duration::from_nanos(u64::try_from(now - begun).unwrap_or(0));
            let wait = (since / PART).clamp(SHORTEST, LONGEST);
            self.due = now + i64::try_from(wait.as_nanos()).unwrap_or(0);
        }
        due
    }

    /// Looks at processes of the launch: true if one of them holds a machine. `all` are those of the
    /// launch, vmeter among them.
    pub fn look(&mut self, looked: &[Pid], all: &[Pid]) -> bool {
        let numbers: BTreeSet<i32> = all.iter().copied().map(number).collect();
        for &pid in looked {
            let busy = has_children(pid);
            match holds(pid, &numbers, &self.excused) {
                Holds::Machine => return true,
                Holds::Outside(whom) if !busy && !self.found.iter().any(|(of, _)| *of == pid) => {
                    let who = super::own::name(pid);
                    self.found.push((pid, DaemonClient { who, whom }));
                }
                Holds::Outside(_) | Holds::Nothing => {}
            }
        }
        false
    }

    /// A process starts another or becomes another program: what it asked before was for that.
    pub fn forget(&mut self, pid: Pid) {
        self.found.retain(|(of, _)| *of != pid);
        if self.excused.len() < MOST {
            self.excused.extend(sockets(pid).into_iter().map(|(_, inode)| inode));
        }
    }

    /// Who asked.
    pub fn take(&mut self) -> Option<DaemonClient> {
        std::mem::take(&mut self.found).into_iter().next().map(|(_, asked)| asked)
    }
}

fn has_children(pid: Pid) -> bool {
    let file = format!("/proc/{0}/task/{0}/children", number(pid));
    std::fs::read_to_string(file).is_ok_and(|children| !children.trim().is_empty())
}

/// What a process holds by its descriptors and, should it have a socket to the outside, by its memory.
fn holds(pid: Pid, launch: &BTreeSet<i32>, excused: &BTreeSet<String>) -> Holds {
    if descriptors(pid).any(|(_, target)| is_of_kvm(&target)) {
        return Holds::Machine;
    }
    let sockets = sockets(pid).into_iter().filter(|(_, inode)| !excused.contains(inode));
    let sockets: Vec<i32> = sockets.map(|(fd, _)| fd).collect();
    if sockets.is_empty() {
        return Holds::Nothing;
    }
    // Before Linux 5.6 nobody can be asked where a socket leads.
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return Holds::Nothing };
    let copy = |fd: i32| pidfd_getfd(&process, fd, PidfdGetfdFlags::empty()).ok();
    let outside = sockets.into_iter().filter_map(copy).find_map(|socket| peer(&socket, launch));
    match outside {
        Some(_) if has_guest_memory(pid) => Holds::Machine,
        Some(whom) => Holds::Outside(whom),
        None => Holds::Nothing,
    }
}

/// A process's first descriptors, with what each leads to.
fn descriptors(pid: Pid) -> impl Iterator<Item = (i32, PathBuf)> {
    process::descriptors(number(pid)).take(MOST)
}

/// Those that are sockets, with their inodes: `socket:[12]`.
fn sockets(pid: Pid) -> Vec<(i32, String)> {
    let inode = |target: PathBuf| target.into_os_string().into_string().ok();
    let all = descriptors(pid).filter_map(|(fd, target)| Some((fd, inode(target)?)));
    all.filter(|(_, target)| target.starts_with("socket:[")).collect()
}

fn is_of_kvm(target: &Path) -> bool {
    target.to_str().is_some_and(|name| name == "/dev/kvm" || name.starts_with("anon_inode:kvm-v"))
}

/// Who holds the other end of a connected socket, if that is nobody of the launch.
fn peer(socket: &OwnedFd, launch: &BTreeSet<i32>) -> Option<String> {
    let (fd, mut address) = (socket.as_raw_fd(), [0u8; size_of::<libc::sockaddr_storage>()]);
    let mut length = address.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `address`, whose length that is.
    let r = unsafe { libc::getpeername(fd, address.as_mut_ptr().cast(), &raw mut length) };
    // One that is not connected, or whose other end is closed, leads nowhere.
    if r == -1 {
        return None;
    }
    match i32::from(u16::from_ne_bytes([address[0], address[1]])) {
        libc::AF_UNIX => {
            let pid = credentials(fd)?;
            (!launch.contains(&pid)).then(|| match Pid::from_raw(pid) {
                Some(of) => format!("{} (pid {pid})", super::own::name(of)),
                None => "a process outside of this PID namespace".into(),
            })
        }
        libc::AF_INET | libc::AF_INET6 if is_stream(fd) => Some("a server over TCP".into()),
        _ => None,
    }
}

/// Who listened at the other end of a UNIX socket, or made the pair.
fn credentials(fd: i32) -> Option<i32> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    option(fd, libc::SO_PEERCRED, &mut found).then_some(found.pid)
}

fn is_stream(fd: i32) -> bool {
    let mut kind: libc::c_int = 0;
    option(fd, libc::SO_TYPE, &mut kind) && kind == libc::SOCK_STREAM
}

/// Reads an option of a socket: plain data that the kernel may fill with anything.
fn option<T: Copy>(fd: i32, name: libc::c_int, value: &mut T) -> bool {
    let mut length = size_of::<T>() as libc::socklen_t;
    let to = std::ptr::from_mut(value).cast();
    // SAFETY: the kernel writes at most `length` bytes to `value`, whose size that is; `T` is one of
    // the two structures of numbers above.
    let r = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, name, to, &raw mut length) };
    r == 0 && length as usize == size_of::<T>()
}

/// True for a process with memory as a VMM has it without KVM: code that it writes itself, or a large
/// piece that can be a guest's RAM.
fn has_guest_memory(pid: Pid) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", number(pid)));
    maps.unwrap_or_default().lines().any(is_guest_memory)
}

/// Of a line of `/proc/PID/maps`.
fn is_guest_memory(line: &str) -> bool {
    let mut words = line.split_ascii_whitespace();
    let (Some(range), Some(mode)) = (words.next(), words.next()) else { return false };
    let name = words.nth(3).unwrap_or_default();
    let number = |text: &str| u64::from_str_radix(text, 16).unwrap_or(0);
    let length =
        range.split_once('-').map_or(0, |(from, to)| number(to).saturating_sub(number(from)));
    let own = !["[heap]", "[stack]"].contains(&name);
    let code = mode.starts_with("rwx") && length >= CODE;
    code || mode.starts_with("rw") && own && length >= GUEST_RAM
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::process::{Command, Stdio};

    fn of(pid: u32, launch: &[u32]) -> Holds {
        let launch = launch.iter().map(|pid| *pid as i32).collect();
        holds(Pid::from_raw(pid as i32).expect("a process"), &launch, &BTreeSet::new())
    }

    /// A client of this process, which is outside of a launch that is the client alone.
    #[test]
    fn a_client_shows_by_its_socket_and_a_vmm_by_its_memory() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).expect("bound");
        for (memory, is_vmm) in [("", false), ("b = mmap.mmap(-1, 64 << 20);", true)] {
            let code = format!(
                "import socket, mmap\n{memory}\ns = socket.socket(socket.AF_UNIX)\n\
                 s.connect('{}')\ns.recv(1)",
                path.display()
            );
            let child = Command::new("python3").args(["-c", &code]).spawn();
            let Ok(mut child) = child else {
                println!("skipped: no python3");
                return;
            };
            let (stream, _) = listener.accept().expect("a client");
            let own = std::process::id();
            let outside = of(child.id(), &[child.id()]);
            assert_eq!(matches!(outside, Holds::Outside(_)), !is_vmm, "{outside:?}");
            assert_eq!(outside == Holds::Machine, is_vmm, "{outside:?}");
            // Of the same launch it asks nobody outside.
            assert_eq!(of(child.id(), &[child.id(), own]), Holds::Nothing);
            drop(stream);
            child.wait().expect("its end");
        }
    }

    /// Only the test's own sockets are looked at: other tests open and close theirs meanwhile.
    #[test]
    fn a_socket_that_was_held_when_another_was_started_is_excused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let _listener = UnixListener::bind(&path).expect("bound");
        let stream = UnixStream::connect(&path).expect("connected");
        let own = Pid::from_raw(std::process::id() as i32).expect("a process");
        let mut held = sockets(own).into_iter();
        let (_, inode) = held.find(|(fd, _)| *fd == stream.as_raw_fd()).expect("the socket");
        let mut asks = Asks::default();
        asks.forget(own);
        assert!(asks.excused.contains(&inode) || asks.excused.len() >= MOST);
    }

    #[test]
    fn a_pair_of_ones_own_leads_nowhere() {
        let code = "import socket, sys\npair = socket.socketpair()\nprint(flush=True)\n\
                    sys.stdin.read()";
        let mut python = Command::new("python3");
        python.args(["-c", code]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let Ok(mut child) = python.spawn() else {
            println!("skipped: no python3");
            return;
        };
        let mut answer = [0];
        child.stdout.take().expect("piped").read_exact(&mut answer).expect("the pair is made");
        assert_eq!(of(child.id(), &[child.id()]), Holds::Nothing);
        drop(child.stdin.take());
        child.wait().expect("its end");
    }

    #[test]
    fn looks_come_less_often_as_time_passes() {
        let mut asks = Asks::default();
        assert!(asks.is_due(1_000) && !asks.is_due(2_000));
        assert_eq!(asks.next(1_000), SHORTEST);
        let late = 1_000 + 6_400_000_000;
        assert!(asks.is_due(late));
        assert_eq!(asks.next(late), LONGEST);
    }

    #[test]
    fn memory_of_guests() {
        let is = |line: &str| is_guest_memory(line);
        assert!(is("7f0000000000-7f0010000000 rw-p 00000000 00:00 0"));
        assert!(is("7f0000000000-7f0010000000 rw-s 00000000 00:01 7 /memfd:ram (deleted)"));
        assert!(is("7f0000000000-7f0000200000 rwxp 00000000 00:00 0"));
        assert!(!is("7f0000000000-7f0000010000 rwxp 00000000 00:00 0"));
        assert!(!is("7f0000000000-7f0010000000 ---p 00000000 00:00 0"));
        assert!(!is("7f0000000000-7f0010000000 r--p 00000000 fe:00 9 /usr/lib/locale/archive"));
        assert!(!is("550000000000-550010000000 rw-p 00000000 00:00 0 [heap]"));
        assert!(!is("7f0000000000-7f0000800000 rw-p 00000000 00:00 0"));
        assert!(!is("") && !is("x y z"));
    }
}
