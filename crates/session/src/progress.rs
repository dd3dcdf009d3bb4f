//! The receiver of an experiment's progress, and the request to end it.

use crate::failure::{failure, Class};
use crate::interrupt::Interrupt;
use anyhow::Result;
use std::path::Path;

/// Who is told how far it is.
pub trait Progress {
    /// A session's folder has been made: its runs will be there.
    fn saved_in(&mut self, dir: &Path) {
        let _ = dir;
    }
    /// Work begins: `runs` in all, of which `finished` are there already.
    fn begin(&mut self, label: &str, runs: usize, finished: usize);
    /// A run has been saved: `label` is its machine's, `said` what came of it.
    fn run(&mut self, label: &str, said: &str);
    /// What is being done now, where that is no run.
    fn note(&mut self, message: &str) {
        let _ = message;
    }
    /// Something that is worth a line, and no reason to worry.
    fn say(&mut self, message: &str) {
        let _ = message;
    }
    /// Something the user should know now.
    fn warn(&mut self, message: &str);
    /// Shows a text and asks whether to go on; none where nobody can be asked.
    fn confirm(&mut self, text: &str) -> Option<bool> {
        let _ = text;
        None
    }
    /// All is done.
    fn end(&mut self);
}

/// Tells nobody.
impl Progress for () {
    fn begin(&mut self, _: &str, _: usize, _: usize) {}
    fn run(&mut self, _: &str, _: &str) {}
    fn warn(&mut self, _: &str) {}
    fn end(&mut self) {}
}

/// What an experiment says while it is carried out, and what it listens to.
pub struct Watch<'a> {
    /// Is told how far it is.
    pub progress: &'a mut dyn Progress,
    /// Ends it early.
    pub interrupt: &'a Interrupt,
}

impl<'a> Watch<'a> {
    /// A watch of these two.
    pub fn new(progress: &'a mut dyn Progress, interrupt: &'a Interrupt) -> Self {
        Watch { progress, interrupt }
    }

    /// Nothing, unless the user wants it to end.
    ///
    /// # Errors
    /// Class interrupted.
    pub fn go_on(&self) -> Result<()> {
        if self.interrupt.is_raised() {
            return Err(failure(Class::Interrupted, "interrupted"));
        }
        Ok(())
    }
}
