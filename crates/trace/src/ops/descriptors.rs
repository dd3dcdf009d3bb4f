//! What file descriptors stand for, as strace's arguments say: files of the kernel's own, which
//! nobody else has to answer for, and name servers, which somebody has to.

use super::names::{NameId, Resolver};
use crate::hash::FastMap;

/// Most descriptors that are remembered.
const MOST: usize = 1 << 14;
/// A socket of datagrams that has asked nobody.
const DATAGRAMS: &str = "datagrams";

/// Descriptors by thread; threads share their process's, so the last of a number stands for those
/// that nobody has opened themselves.
#[derive(Debug, Default)]
pub(crate) struct Descriptors {
    by_thread: FastMap<(i32, u64), Box<str>>,
    last: FastMap<u64, Box<str>>,
}

impl Descriptors {
    /// The name of a call with what it is about, where that says more; learns from calls that open,
    /// connect and close.
    pub(crate) fn about(
        &mut self,
        (tid, name): (i32, NameId),
        (arguments, returned): (&str, Option<i64>),
        names: &mut Resolver,
    ) -> Option<NameId> {
        let call = names.names.name(name);
        match call {
            "openat" | "open" => self.opened(tid, arguments, returned),
            "connect" => self.connected(tid, arguments),
            "socket" if arguments.contains("SOCK_DGRAM") => {
                let fd = returned.and_then(|fd| u64::try_from(fd).ok())?;
                self.learn(tid, fd, DATAGRAMS);
            }
            "close" | "socket" | "accept" | "accept4" | "dup2" | "dup3" => {
                let fd = match call {
                    "close" => crate::text::number(first(arguments)),
                    "dup2" | "dup3" => crate::text::number(second(arguments)),
                    _ => returned.and_then(|fd| u64::try_from(fd).ok()),
                };
                fd.into_iter().for_each(|fd| self.forget(tid, fd));
            }
            "read" | "pread64" | "readv" | "getdents64" => {
                let what = self.of(tid, crate::text::number(first(arguments))?)?;
                let file = what.starts_with('/').then(|| format!("{call} of {what}"));
                return file.map(|name| names.names.id(&name));
            }
            "poll" | "ppoll" | "recvfrom" | "recvmsg" => {
                let fd = match call {
                    "poll" | "ppoll" => only_one(arguments)?,
                    _ => first(arguments),
                };
                let what = self.of(tid, crate::text::number(fd)?)?;
                let server = what.contains(' ').then(|| format!("{call} ({what})"));
                return server.map(|name| names.names.id(&name));
            }
            _ => {}
        }
        None
    }

    fn of(&self, tid: i32, fd: u64) -> Option<&str> {
        self.by_thread.get(&(tid, fd)).or_else(|| self.last.get(&fd)).map(|what| &**what)
    }

    fn learn(&mut self, tid: i32, fd: u64, what: &str) {
        if self.by_thread.len() < MOST {
            self.by_thread.insert((tid, fd), what.into());
        }
        if self.last.len() < MOST {
            self.last.insert(fd, what.into());
        }
    }

    fn forget(&mut self, tid: i32, fd: u64) {
        self.by_thread.remove(&(tid, fd));
        self.last.remove(&fd);
    }

    /// `AT_FDCWD, "/proc/self/maps", O_RDONLY`, or by a descriptor of /proc: `3, "self/maps"`.
    fn opened(&mut self, tid: i32, arguments: &str, returned: Option<i64>) {
        let Some(fd) = returned.and_then(|fd| u64::try_from(fd).ok()) else { return };
        self.forget(tid, fd);
        let Some(path) = arguments.split('"').nth(1) else { return };
        let path = match path.strip_prefix("self/") {
            Some(rest) => format!("/proc/self/{rest}"),
            None => path.to_string(),
        };
        if ["/proc/", "/sys/"].iter().any(|begin| path.starts_with(begin)) {
            self.learn(tid, fd, &without_numbers(&path));
        }
    }

    /// `7, {sa_family=AF_INET, sin_port=htons(53), sin_addr=inet_addr("127.0.0.9")}, 16`.
    fn connected(&mut self, tid: i32, arguments: &str) {
        let Some(fd) = crate::text::number(first(arguments)) else { return };
        let asks = self.of(tid, fd).is_some_and(|what| what == DATAGRAMS);
        self.forget(tid, fd);
        let address = arguments.split('"').nth(1).unwrap_or("?");
        let port = arguments.split("htons(").nth(1).and_then(|rest| rest.split(')').next());
        match port {
            Some("53") => self.learn(tid, fd, &format!("DNS server {address}")),
            Some(port) if asks => self.learn(tid, fd, &format!("UDP server {address}:{port}")),
            _ => {}
        }
    }
}

fn first(arguments: &str) -> &str {
    arguments.trim_start_matches('(').split([',', ')', '<']).next().unwrap_or("").trim()
}

fn second(arguments: &str) -> &str {
    arguments.split([',', ')']).nth(1).unwrap_or("").trim()
}

/// The descriptor that `poll` waits for, if it is one.
fn only_one(arguments: &str) -> Option<&str> {
    let mut all = arguments.split("{fd=").skip(1);
    let fd = all.next()?;
    let list = arguments.split("], ").next().unwrap_or(arguments);
    (list.matches("{fd=").count() == 1).then(|| first(fd))
}

/// Numbers in it left out: of processes, CPUs and the like.
fn without_numbers(path: &str) -> String {
    let part = |part: &str| match part.bytes().all(|b| b.is_ascii_digit()) && !part.is_empty() {
        true => "*".to_string(),
        false => part.to_string(),
    };
    path.split('/').map(part).collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_descriptor_stands_for_is_said() {
        let (mut fds, mut names) = (Descriptors::default(), Resolver::default());
        let mut about = |call: &str, arguments: &str, returned: i64| {
            let call = names.names.id(call);
            let name = fds.about((7, call), (arguments, Some(returned)), &mut names);
            name.map(|name| names.names.name(name).to_string())
        };
        assert_eq!(about("openat", "3, \"self/mountinfo\", O_RDONLY", 6), None);
        let read = about("read", "6, \"22 28\"..., 1024", 1024);
        assert_eq!(read.as_deref(), Some("read of /proc/self/mountinfo"));
        about("openat", "AT_FDCWD, \"/proc/4711/maps\", O_RDONLY", 6);
        assert_eq!(about("read", "6, \"\", 1024", 0).as_deref(), Some("read of /proc/*/maps"));
        about("close", "6", 0);
        assert_eq!(about("read", "6, \"\", 1024", 0), None);
        let server =
            "7, {sa_family=AF_INET, sin_port=htons(53), sin_addr=inet_addr(\"127.0.0.9\")}, 16";
        about("connect", server, 0);
        let poll = about("poll", "[{fd=7, events=POLLIN}], 1, 1000", 0);
        assert_eq!(poll.as_deref(), Some("poll (DNS server 127.0.0.9)"));
        assert_eq!(about("poll", "[{fd=7, events=POLLIN}, {fd=3, events=0}], 2, 5", 0), None);
        about("socket", "AF_INET, SOCK_DGRAM|SOCK_CLOEXEC, IPPROTO_IP", 8);
        about("connect", &format!("8{}", &server[1..]).replace("(53)", "(5391)"), 0);
        let poll = about("poll", "[{fd=8<socket:[4711]>, events=POLLIN}], 1, 1000", 0);
        assert_eq!(poll.as_deref(), Some("poll (UDP server 127.0.0.9:5391)"));
        about("openat", "AT_FDCWD, \"/etc/hosts\", O_RDONLY", 7);
        assert_eq!(about("read", "7, \"\", 1024", 0), None, "a file of its own");
    }
}
