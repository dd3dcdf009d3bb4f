//! A thread that looks at a process again and again, and what it wrote of that.

use std::io;
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;
use vmeter_base::clock;
use vmeter_model::Ns;

/// The thread; dropped, it ends after the look that it is at.
pub(crate) struct Looking {
    stop: Sender<()>,
    thread: JoinHandle<String>,
}

impl Looking {
    /// Begins to look. `look` adds to a text that begins as `text`; it gets the time since the first
    /// look, ns, and gives the time until the next, or none after the last.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(crate) fn start(
        name: &str,
        mut text: String,
        mut look: impl FnMut(&mut String, Ns) -> Option<Ns> + Send + 'static,
    ) -> io::Result<Self> {
        let (stop, stopped) = channel();
        let looks = move || {
            let begun = clock::monotonic();
            while let Some(wait) = look(&mut text, clock::monotonic() - begun) {
                let wait = Duration::from_nanos(wait.unsigned_abs());
                if stopped.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
            text
        };
        let thread = std::thread::Builder::new().name(name.into()).spawn(looks)?;
        Ok(Looking { stop, thread })
    }

    /// Ends it: what it wrote, if it did not panic.
    pub(crate) fn end(self) -> Option<String> {
        drop(self.stop);
        self.thread.join().ok()
    }
}
