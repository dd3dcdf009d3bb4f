//! The process that clears up after a vmeter that was killed.
//!
//! It is vmeter's own program, started again in a process group of its own, so that what is
//! sent to vmeter's does not reach it, and under a name of its own, so that what is sent to
//! every vmeter does not either. It waits for one byte, sleeping: an end without it is a death.

use crate::leftovers::{clear, Leavings};
use crate::processes::VARIABLE;
use crate::Whose;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;
use vmeter_base::owner::{self, Owner};

/// Its name, as argument 0 and for ps(1).
const NAME: &str = "vmm-guard";
/// The program that runs, even if its file was replaced meanwhile.
const PROGRAM: &str = "/proc/self/exe";
/// How long it may take to start. A run that is measured must not begin beside it.
const SOON: Duration = Duration::from_secs(2);
/// How often it looks whether what closed the socket is gone as well.
const PAUSE: Duration = Duration::from_millis(50);

static GUARD: Mutex<Option<(UnixStream, Child)>> = Mutex::new(None);

/// To be called first of all in `main`: true in the process that is to be the guard, once it
/// has done its work. In any other, a guard will be started before something is made that a
/// kill could leave behind. `places` are folders of vmeter's own that have temporary files.
pub fn has_served(places: impl FnOnce() -> Vec<PathBuf>) -> bool {
    if std::env::args_os().next().is_some_and(|name| name == NAME) {
        let guarded = std::env::var(VARIABLE).ok().and_then(|name| Owner::parse(&name));
        if let Some(guarded) = guarded {
            serve(guarded, &places());
        }
        return true;
    }
    owner::before_each(ensure);
    false
}

/// To be called when all that was made has been removed in order: what still runs, a service
/// that a user's own command has started, say, is left alone.
pub fn dismiss() {
    let guard = GUARD.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some((mut socket, mut child)) = guard {
        // One that is gone already hears nothing, and need not.
        let _ = socket.write_all(&[0]);
        let _ = child.wait();
    }
}

/// Starts it, once. Where that fails, what a kill leaves is for `vmeter doctor` to find.
fn ensure() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if let Ok(guard) = start() {
            *GUARD.lock().unwrap_or_else(PoisonError::into_inner) = Some(guard);
        }
    });
}

fn start() -> std::io::Result<(UnixStream, Child)> {
    let (mut socket, its) = UnixStream::pair()?;
    let mut command = Command::new(PROGRAM);
    command.arg0(NAME).env_clear().env(VARIABLE, Owner::process().to_string());
    // Files are where they are for vmeter.
    let places = ["TMPDIR", "HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"];
    command.envs(std::env::vars_os().filter(|(name, _)| places.iter().any(|place| name == place)));
    command.current_dir("/").process_group(0);
    command.stdin(OwnedFd::from(its)).stdout(Stdio::null()).stderr(Stdio::null());
    let child = command.spawn()?;
    // The command keeps its end of the socket until it is dropped.
    drop(command);
    socket.set_read_timeout(Some(SOON))?;
    socket.read_exact(&mut [0])?;
    Ok((socket, child))
}

fn serve(guarded: Owner, places: &[PathBuf]) {
    // Only for ps(1).
    let _ = rustix::thread::set_name(c"vmm-guard");
    let Ok(socket) = rustix::io::dup(std::io::stdin()) else { return };
    let mut socket = UnixStream::from(socket);
    if socket.write_all(&[0]).is_err() {
        return;
    }
    let dismissed = socket.read(&mut [0]).is_ok_and(|n| n > 0);
    if dismissed {
        return;
    }
    while guarded.is_alive() {
        std::thread::sleep(PAUSE);
    }
    let whose = Whose::Of(guarded);
    clear(whose, places, Leavings::find(whose, places));
}
