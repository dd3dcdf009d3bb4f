//! The proc connector (drivers/connector/cn_proc.c): the kernel tells of each exec of the host, whatever the file
//! and whichever mount namespace it is in, with the time on `CLOCK_MONOTONIC` at which the execve was through.
//! It needs `CAP_NET_ADMIN` in the initial namespaces, and a kernel with `CONFIG_PROC_EVENTS`.

use super::{Heard, Reading, Source};
use rustix::net::netlink::{SocketAddrNetlink, CONNECTOR};
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use vmeter_model::Ns;

/// `CN_IDX_PROC`, `CN_VAL_PROC`, and the multicast group of that name.
const PROC: u32 = 1;
/// `PROC_CN_MCAST_LISTEN` and `PROC_CN_MCAST_IGNORE`.
const LISTEN: u32 = 1;
const IGNORE: u32 = 2;
/// `PROC_EVENT_EXEC`.
const EXEC: u32 = 2;
/// `NLMSG_DONE`.
const DONE: u16 = 3;
/// `struct nlmsghdr` and `struct cn_msg`, bytes.
const HEADERS: usize = 16 + 20;

/// The execs of the host.
#[derive(Debug)]
pub(super) struct Execs(OwnedFd);

impl Execs {
    /// Has the kernel tell.
    ///
    /// # Errors
    /// Without the right, or where the kernel has no connector.
    pub fn listen() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd =
            net::socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(CONNECTOR))?;
        net::bind(&fd, &SocketAddrNetlink::new(0, PROC))?;
        let execs = Execs(fd);
        execs.send(&[LISTEN])?;
        // `struct proc_input`, since Linux 6.6: nothing but execs. An older kernel takes no notice.
        execs.send(&[LISTEN, EXEC])?;
        Ok(execs)
    }

    fn send(&self, words: &[u32]) -> io::Result<()> {
        net::send(&self.0, &message(words), SendFlags::empty())?;
        Ok(())
    }
}

impl Drop for Execs {
    fn drop(&mut self) {
        // A kernel before 6.6 counts its listeners by what they say.
        let _ = self.send(&[IGNORE]);
    }
}

impl Source for Execs {
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn read(&mut self, _: Reading) -> io::Result<Vec<Heard>> {
        let mut heard = Vec::new();
        let mut bytes = [0u8; 256];
        loop {
            match net::recv(&self.0, &mut bytes[..], RecvFlags::empty()) {
                Ok((length, _)) => {
                    let exec = bytes.get(..length).and_then(exec);
                    let how = "the kernel reported the end of the VMM's execve (proc connector)";
                    heard.extend(exec.map(|(pid, exec_ns)| Heard {
                        pid,
                        exec_ns,
                        error_ns: 0,
                        how,
                        is_through: true,
                    }));
                }
                Err(rustix::io::Errno::AGAIN) => return Ok(heard),
                // News were lost, for there were too many: those that are left count.
                Err(rustix::io::Errno::NOBUFS | rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// What is sent: `struct nlmsghdr`, `struct cn_msg`, words.
fn message(words: &[u32]) -> Vec<u8> {
    let data = (words.len() * 4) as u16;
    let mut bytes = Vec::new();
    bytes.extend((HEADERS as u32 + u32::from(data)).to_ne_bytes());
    bytes.extend(DONE.to_ne_bytes());
    bytes.extend([0; 2 + 4 + 4]);
    for word in [PROC, PROC, 0, 0] {
        bytes.extend(word.to_ne_bytes());
    }
    bytes.extend(data.to_ne_bytes());
    bytes.extend([0; 2]);
    bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
    bytes
}

/// The process of an exec, and when that was through, ns (`struct proc_event`); none of another event.
fn exec(bytes: &[u8]) -> Option<(i32, Ns)> {
    let event = bytes.get(HEADERS..)?;
    let word = |at: usize| Some(u32::from_ne_bytes(event.get(at..at + 4)?.try_into().ok()?));
    let stamp = u64::from_ne_bytes(event.get(8..16)?.try_into().ok()?);
    let tgid = word(20)?;
    (word(0)? == EXEC).then_some((i32::try_from(tgid).ok()?, Ns::try_from(stamp).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exec_is_told_from_other_events_and_a_torn_one_is_none() {
        let event = |what: u32| {
            let mut bytes = message(&[what, 1]);
            bytes.extend(5_000_000_000u64.to_ne_bytes());
            bytes.extend(70u32.to_ne_bytes());
            bytes.extend(71u32.to_ne_bytes());
            bytes
        };
        assert_eq!(exec(&event(EXEC)), Some((71, 5_000_000_000)));
        assert_eq!(exec(&event(1)), None);
        for length in 0..event(EXEC).len() {
            assert_eq!(exec(&event(EXEC)[..length]), None);
        }
    }
}
