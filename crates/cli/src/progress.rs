//! What a user sees while runs are made: on standard error, and only on a terminal.

use indicatif::{ProgressBar, ProgressStyle};
use std::path::Path;
use std::time::Duration;
use vmeter_session::{state_dir, Progress};

/// A progress bar, or nothing.
pub struct Bar {
    bar: ProgressBar,
    quiet: bool,
}

impl Bar {
    /// A bar on standard error if it is a terminal and `quiet` is not set.
    pub fn new(quiet: bool) -> Self {
        Bar { quiet, bar: bar(quiet, "{prefix} {wide_bar} {pos}/{len}, {eta} left  {msg}") }
    }
}

/// A bar of this style (indicatif's templates), on standard error if it is a terminal and
/// `quiet` is not set.
pub fn bar(quiet: bool, style: &str) -> ProgressBar {
    let bar = if quiet { ProgressBar::hidden() } else { ProgressBar::new(0) };
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar
}

impl Progress for Bar {
    /// Lets `vmeter runs list` find what is saved elsewhere than in the state folder.
    fn saved_in(&mut self, dir: &Path) {
        let Ok(state) = state_dir() else { return };
        if let Err(error) = vmeter_index::remember(&state, dir) {
            tracing::info!("`vmeter runs list` will not show this session: {error}");
        }
    }

    fn begin(&mut self, label: &str, runs: usize, finished: usize) {
        self.bar.set_length(runs as u64);
        self.bar.set_position(finished as u64);
        self.bar.set_prefix(label.to_owned());
        self.bar.enable_steady_tick(Duration::from_millis(200));
    }

    fn run(&mut self, label: &str, said: &str) {
        self.bar.inc(1);
        self.note(&format!("last {said} ({label})"));
    }

    fn note(&mut self, message: &str) {
        self.bar.set_message(vmeter_render::text::neutralise(message).to_string());
    }

    fn say(&mut self, message: &str) {
        if !self.quiet {
            self.bar.suspend(|| eprintln!("{}", vmeter_render::text::neutralise(message)));
        }
    }

    fn warn(&mut self, message: &str) {
        self.bar.suspend(|| eprintln!("warning: {}", vmeter_render::text::neutralise(message)));
    }

    fn confirm(&mut self, text: &str) -> Option<bool> {
        use std::io::{stderr, stdin, IsTerminal};
        if !stdin().is_terminal() || !stderr().is_terminal() {
            return None;
        }
        self.bar.suspend(|| {
            for line in text.lines() {
                eprintln!("{}", vmeter_render::text::neutralise(line));
            }
            eprint!("Go on? [y/N] ");
            let mut answer = String::new();
            stdin().read_line(&mut answer).ok()?;
            Some(matches!(answer.trim(), "y" | "Y" | "yes"))
        })
    }

    fn end(&mut self) {
        self.bar.finish_and_clear();
    }
}
