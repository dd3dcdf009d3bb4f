//! Ctrl-C ends the boot that is running, and lets everything else finish tidily; within a
//! second, whatever is being done.

use crate::failure::{failure, Class};
use anyhow::{Context, Result};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

type Action = Box<dyn Fn() + Send>;
type Says = Box<dyn Fn() -> String + Send>;

/// How long what hears of a signal only now and then may take to end. Longer than that are
/// pieces of work that can't look up: a kernel is hashed, gigabytes of memory are given back.
const PATIENCE: Duration = Duration::from_millis(500);

/// How long the terminal's signal may take to reach vmeter after it has reached a command.
pub(crate) const SOON: Duration = Duration::from_millis(200);

/// Set by SIGINT, SIGTERM, SIGHUP or SIGQUIT.
#[derive(Clone, Default)]
pub struct Interrupt {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    raised: AtomicBool,
    /// True once somebody was told at once, who now ends what is done.
    heard: AtomicBool,
    action: Mutex<Option<Action>>,
    saved: Mutex<Option<Says>>,
}

impl Interrupt {
    /// Catches the signals from now on. A second one ends vmeter at once (the
    /// VMM dies with it), and so does the first where nobody hears of it for too long.
    ///
    /// # Errors
    /// When the signal handlers cannot be installed.
    pub fn install() -> Result<Self> {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
        let interrupt = Interrupt::default();
        let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT])
            .context("cannot catch signals")?;
        // Both threads are there before the signal: a new one needs a stack, and a mapping waits
        // for another that fills gigabytes.
        let (say, told) = sync_channel::<()>(1);
        let waits = interrupt.clone();
        std::thread::Builder::new().name("patience".into()).spawn(move || {
            own_heap();
            if told.recv().is_ok() {
                std::thread::sleep(PATIENCE);
                if !waits.inner.heard.load(Ordering::SeqCst) {
                    waits.say();
                    std::process::exit(130);
                }
            }
        })?;
        let seen = interrupt.clone();
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            own_heap();
            for _ in signals.forever() {
                if seen.is_raised() {
                    std::process::exit(130);
                }
                // Whoever hears of it may have to map memory as well.
                let _ = say.try_send(());
                seen.raise();
            }
        })?;
        Ok(interrupt)
    }

    /// True once a signal has come.
    pub fn is_raised(&self) -> bool {
        self.inner.raised.load(Ordering::SeqCst)
    }

    /// What came of work whose own programs are told by the same Ctrl-C: their failure is no news
    /// then. `kept` says what is there for the next time.
    ///
    /// # Errors
    /// Class interrupted once a signal has come; else the work's own.
    pub fn instead<T>(&self, result: Result<T>, kept: &str) -> Result<T> {
        match result {
            Err(_) if self.is_raised_soon() => {
                Err(failure(Class::Interrupted, format!("interrupted; {kept}")))
            }
            result => result,
        }
    }

    /// True once a signal has come, or comes soon: the Ctrl-C that ended the work's programs may
    /// not have reached vmeter yet.
    fn is_raised_soon(&self) -> bool {
        let (say, told) = sync_channel(1);
        let _during = self.during(move || {
            let _ = say.try_send(());
        });
        told.recv_timeout(SOON).is_ok()
    }

    /// As if a signal had come.
    pub fn raise(&self) {
        self.inner.raised.store(true, Ordering::SeqCst);
        let action = self.inner.action.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(action) = action.as_ref() {
            self.inner.heard.store(true, Ordering::SeqCst);
            action();
        }
    }

    /// What to do when a signal comes, for as long as the returned guard lives;
    /// done at once if one has come already. Whoever gives an action has to come to an end
    /// within a second of it.
    pub fn during(&self, action: impl Fn() + Send + 'static) -> During<'_> {
        let mut current = self.inner.action.lock().unwrap_or_else(PoisonError::into_inner);
        // Set before looking, so that a signal in between acts once or twice, never not at all.
        let action = current.insert(Box::new(action));
        if self.is_raised() {
            self.inner.heard.store(true, Ordering::SeqCst);
            action();
        }
        drop(current);
        During(self)
    }

    /// What is saved of a session whatever happens: said where nobody else can.
    pub(crate) fn says_at_the_end(&self, saved: impl Fn() -> String + Send + 'static) {
        let mut says = self.inner.saved.lock().unwrap_or_else(PoisonError::into_inner);
        *says = Some(Box::new(saved));
    }

    fn say(&self) {
        let says = self.inner.saved.lock().unwrap_or_else(PoisonError::into_inner);
        let saved = says.as_ref().map(|says| format!("; {}", says()));
        let text = format!("interrupted{}", saved.unwrap_or_default());
        // There is nobody left to tell that nobody can be told.
        let _ = writeln!(std::io::stderr(), "vmeter: {}", vmeter_render::text::neutralise(&text));
    }
}

/// Has the C library map this thread's heap now.
fn own_heap() {
    drop(std::hint::black_box(vec![0u8; 4096]));
}

/// Ends the action of [`Interrupt::during`].
pub struct During<'a>(&'a Interrupt);

impl Drop for During<'_> {
    fn drop(&mut self) {
        *self.0.inner.action.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
