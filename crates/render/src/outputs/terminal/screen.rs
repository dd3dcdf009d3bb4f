//! What a terminal can show, and lines that are safe to send to it.

use crate::palette::{Colour, Group};
use crate::text::{neutralise, Safe};
use crate::tone::Tone;
use std::io::{self, IsTerminal, Write};

/// `--color`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ColorChoice {
    /// On a terminal, unless `NO_COLOR` is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl std::str::FromStr for ColorChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(ColorChoice::Auto),
            "always" => Ok(ColorChoice::Always),
            "never" => Ok(ColorChoice::Never),
            other => Err(format!("expected auto, always or never, found `{other}`")),
        }
    }
}

/// What the terminal shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Screen {
    /// Columns.
    pub width: usize,
    /// Colours are understood and wanted.
    pub colour: bool,
    /// Characters outside ASCII would not be shown.
    pub ascii: bool,
}

/// Narrowest layout; a smaller terminal wraps.
const MIN_WIDTH: usize = 60;
/// Widest layout; more would only move the columns apart.
const MAX_WIDTH: usize = 160;

impl Screen {
    /// 80 columns without colour.
    pub const PLAIN: Screen = Screen { width: 80, colour: false, ascii: false };

    /// What standard output is connected to.
    ///
    /// The width is `COLUMNS`, else the terminal's, else 80. Colour by `choice`,
    /// with `NO_COLOR` (<https://no-color.org>: set and not empty) and
    /// `TERM=dumb` heeded under `auto`. A locale that is set and not UTF-8 means ASCII.
    pub fn detect(choice: ColorChoice) -> Screen {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let stdout = io::stdout();
        let terminal = stdout.is_terminal();
        let window = || rustix::termios::tcgetwinsize(&stdout).ok().map(|w| usize::from(w.ws_col));
        let width = variable("COLUMNS")
            .and_then(|columns| columns.parse().ok())
            .or_else(|| if terminal { window() } else { None })
            .filter(|columns| *columns > 0)
            .unwrap_or(80);
        let wanted = match choice {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => {
                let dumb = variable("TERM").is_some_and(|term| term == "dumb");
                terminal && !dumb && variable("NO_COLOR").is_none()
            }
        };
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(variable);
        let ascii = locale.is_some_and(|locale| {
            let locale = locale.to_ascii_lowercase();
            !locale.contains("utf-8") && !locale.contains("utf8")
        });
        Screen { width: width.clamp(MIN_WIDTH, MAX_WIDTH), colour: wanted, ascii }
    }

    /// Signs that are drawn with.
    pub(super) fn glyphs(self) -> &'static Glyphs {
        if self.ascii {
            &ASCII
        } else {
            &UNICODE
        }
    }

    /// Text as it will be sent: nothing in it acts on the terminal.
    pub(super) fn safe(self, text: &str) -> Safe<'_> {
        let safe = neutralise(text);
        if self.ascii {
            safe.to_ascii()
        } else {
            safe
        }
    }
}

/// Signs that charts and trees are drawn with, in one column each.
pub(super) struct Glyphs {
    /// A cell filled from the left: to less than a quarter, to three quarters, and full.
    pub fill: [&'static str; 3],
    /// The same from the right.
    pub fill_right: [&'static str; 3],
    pub rule: &'static str,
    pub branch: &'static str,
    pub last: &'static str,
    pub pass: &'static str,
    pub blank: &'static str,
    pub axis: &'static str,
    pub tick: &'static str,
    pub ellipsis: &'static str,
    pub spark: &'static [&'static str],
    /// One sample, two, and more in one column.
    pub dots: [&'static str; 3],
    pub mean: &'static str,
    pub expected: &'static str,
}

const UNICODE: Glyphs = Glyphs {
    fill: ["▏", "▌", "█"],
    fill_right: ["▕", "▐", "█"],
    rule: "─",
    branch: "├─",
    last: "└─",
    pass: "│ ",
    blank: "  ",
    axis: "─",
    tick: "┴",
    ellipsis: "…",
    spark: &["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"],
    dots: ["·", "•", "●"],
    mean: "┃",
    expected: "░",
};

const ASCII: Glyphs = Glyphs {
    fill: [".", "=", "#"],
    fill_right: [".", "=", "#"],
    rule: "-",
    branch: "|-",
    last: "`-",
    pass: "| ",
    blank: "  ",
    axis: "-",
    tick: "+",
    ellipsis: "...",
    spark: &["_", ".", "-", "=", "*", "#"],
    dots: [".", "o", "O"],
    mean: "|",
    expected: ":",
};

/// How a piece of a line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ink {
    Tone(Tone),
    Heading,
    Hint,
    Warning,
    Phase(Colour),
}

impl Ink {
    /// The SGR parameters (ECMA-48, 8.3.117); the terminal's own 16 colours, so
    /// that the user's theme decides what they look like.
    fn sgr(self) -> &'static str {
        match self {
            Ink::Tone(Tone::Normal) => "",
            Ink::Tone(Tone::Muted) => "2",
            Ink::Tone(Tone::Strong) => "1",
            Ink::Tone(Tone::Good) => "32",
            Ink::Tone(Tone::Bad) => "1;31",
            Ink::Heading => "1",
            Ink::Hint => "36",
            Ink::Warning => "33",
            Ink::Phase(Colour { group, bright }) => match (group, bright) {
                (Group::Vmm, false) => "34",
                (Group::Vmm, true) => "94",
                (Group::Firmware, false) => "33",
                (Group::Firmware, true) => "93",
                (Group::Kernel, false) => "32",
                (Group::Kernel, true) => "92",
                (Group::Initcalls, false) => "36",
                (Group::Initcalls, true) => "96",
                (Group::Userspace, false) => "35",
                (Group::Userspace, true) => "95",
                (Group::Shutdown, _) => "31",
                (Group::Other, _) => "37",
                (Group::Unattributed, _) => "90",
            },
        }
    }
}

/// A line in the making, which takes nothing but what is safe to send.
#[derive(Debug)]
pub(super) struct Line {
    screen: Screen,
    text: String,
    used: usize,
    ink: &'static str,
}

impl Line {
    pub fn new(screen: Screen) -> Self {
        Line { screen, text: String::new(), used: 0, ink: "" }
    }

    /// Appends a sign or word of the program's own.
    pub fn sign(&mut self, ink: Ink, sign: &'static str) {
        self.put(ink, &Safe::own(sign));
    }

    /// Appends text that [`Screen::safe`] made.
    pub fn put(&mut self, ink: Ink, safe: &Safe<'_>) {
        if safe.is_empty() {
            return;
        }
        if self.screen.colour && self.ink != ink.sgr() {
            if !self.ink.is_empty() {
                self.text.push_str("\x1b[0m");
            }
            self.ink = ink.sgr();
            if !self.ink.is_empty() {
                self.text.push_str("\x1b[");
                self.text.push_str(self.ink);
                self.text.push('m');
            }
        }
        self.text.push_str(safe.as_str());
        self.used += safe.width();
    }

    /// Spaces up to a column.
    pub fn pad_to(&mut self, column: usize) {
        while self.used < column {
            self.sign(Ink::Tone(Tone::Normal), " ");
        }
    }

    /// Columns used.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Sends the line, without spaces at its end.
    pub fn end(mut self, out: &mut dyn Write) -> io::Result<()> {
        if !self.ink.is_empty() {
            self.text.push_str("\x1b[0m");
        }
        writeln!(out, "{}", self.text.trim_end_matches(' '))
    }
}
