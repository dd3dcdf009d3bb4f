//! Ctrl-C ends the boot that is running, and lets everything else finish tidily.

use anyhow::{Context, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

type Action = Box<dyn Fn() + Send>;

/// Set by SIGINT, SIGTERM, SIGHUP or SIGQUIT.
#[derive(Clone, Default)]
pub struct Interrupt {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    raised: AtomicBool,
    action: Mutex<Option<Action>>,
}

impl Interrupt {
    /// Catches the signals from now on. A second one ends vmeter at once (the
    /// VMM dies with it).
    ///
    /// # Errors
    /// When the signal handlers cannot be installed.
    pub fn install() -> Result<Self> {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
        let interrupt = Interrupt::default();
        let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT])
            .context("cannot catch signals")?;
        let seen = interrupt.clone();
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            for _ in signals.forever() {
                if seen.is_raised() {
                    std::process::exit(130);
                }
                seen.raise();
            }
        })?;
        Ok(interrupt)
    }

    /// True once a signal has come.
    pub fn is_raised(&self) -> bool {
        self.inner.raised.load(Ordering::SeqCst)
    }

    /// As if a signal had come.
    pub fn raise(&self) {
        self.inner.raised.store(true, Ordering::SeqCst);
        let action = self.inner.action.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(action) = action.as_ref() {
            action();
        }
    }

    /// What to do when a signal comes, for as long as the returned guard lives;
    /// done at once if one has come already.
    pub fn during(&self, action: impl Fn() + Send + 'static) -> During<'_> {
        let mut current = self.inner.action.lock().unwrap_or_else(PoisonError::into_inner);
        // Set before looking, so that a signal in between acts once or twice, never not at all.
        let action = current.insert(Box::new(action));
        if self.is_raised() {
            action();
        }
        drop(current);
        During(self)
    }
}

/// Ends the action of [`Interrupt::during`].
pub struct During<'a>(&'a Interrupt);

impl Drop for During<'_> {
    fn drop(&mut self) {
        *self.0.inner.action.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
