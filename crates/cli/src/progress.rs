//! What a user sees while boots run: on standard error, and only on a terminal.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;
use vmeter_lab::experiment::{Progress, RunNews};

/// A progress bar, or nothing.
pub struct Bar {
    bar: ProgressBar,
}

impl Bar {
    /// A bar on standard error if it is a terminal and `quiet` is not set.
    pub fn new(quiet: bool) -> Self {
        Bar { bar: bar(quiet, "{prefix} {wide_bar} {pos}/{len} boots, {eta} left  {msg}") }
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
    fn begin(&mut self, label: &str, runs: usize, finished: usize) {
        self.bar.set_length(runs as u64);
        self.bar.set_position(finished as u64);
        self.bar.set_prefix(label.to_owned());
        self.bar.enable_steady_tick(Duration::from_millis(200));
    }

    fn run(&mut self, news: &RunNews<'_>) {
        self.bar.inc(1);
        self.bar.set_message(format!("last {:.3} s ({})", news.total_s, news.label));
    }

    fn note(&mut self, message: &str) {
        self.bar.set_message(vmeter_render::text::neutralise(message).to_string());
    }

    fn warn(&mut self, message: &str) {
        self.bar.suspend(|| eprintln!("warning: {}", vmeter_render::text::neutralise(message)));
    }

    fn end(&mut self) {
        self.bar.finish_and_clear();
    }
}
