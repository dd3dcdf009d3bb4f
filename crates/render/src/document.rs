//! What a result says, before it is put in any format.
//!
//! Results and outputs multiply: boot, bench, sweep, … in a terminal, Markdown,
//! HTML, …. They meet here. A result describes itself as blocks in reading
//! order; an output knows how to draw each kind of block and nothing of results.
//! Strings are kept raw: each output escapes for its own format.

use crate::chart::{Chart, Curves, Strips};
use crate::table::Table;
use crate::tone::Tone;

/// How much a document should say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// A screenful: the terminal.
    Glance,
    /// All that is read from top to bottom: Markdown.
    Page,
    /// Everything that a reader could open: HTML.
    Full,
}

/// A result in reading order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Document {
    /// One line that names it.
    pub title: String,
    /// The answer to the command's question, in one or two sentences.
    pub answer: String,
    /// What follows.
    pub blocks: Vec<Block>,
}

/// A part of a [`Document`].
#[derive(Debug, Clone, PartialEq)]
pub enum Block {
    /// Begins a section.
    Heading(Heading),
    /// Names and values, one a line.
    Facts(Vec<Fact>),
    /// Sentences.
    Paragraph(String),
    /// Spans on a time axis.
    Chart(Chart),
    /// Samples on a common axis.
    Strips(Strips),
    /// Quantities over time.
    Curves(Curves),
    /// Rows and columns.
    Table(Table),
    /// A tree of names.
    Outline(Outline),
    /// Warnings and hints.
    Notices(Vec<Notice>),
    /// Parts that a reader opens if interested; shown in full where nothing can be folded.
    Folded {
        /// What is inside.
        summary: String,
        /// The parts.
        blocks: Vec<Block>,
    },
}

/// Title of a section and what its figures are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heading {
    /// Title.
    pub text: String,
    /// How to read what follows: units, means, which run.
    pub note: String,
}

/// A name with its value, and why it is so or how to change it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    /// Name.
    pub name: String,
    /// Value.
    pub value: String,
    /// Reason or the option that changes it; may be empty.
    pub note: String,
}

/// What kind of remark a [`Notice`] is; also its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoticeKind {
    /// The guest or the VMM failed.
    Failure,
    /// The figures need care.
    Warning,
    /// A command to try next.
    Hint,
    /// Where things are.
    Note,
}

impl NoticeKind {
    /// The word before the text.
    pub fn label(self) -> &'static str {
        match self {
            NoticeKind::Failure => "failed",
            NoticeKind::Warning => "warning",
            NoticeKind::Hint => "try",
            NoticeKind::Note => "note",
        }
    }
}

/// A remark on the result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// Kind.
    pub kind: NoticeKind,
    /// Text; for a hint the command.
    pub text: String,
}

/// A tree of names with a legend.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Outline {
    /// How to read it.
    pub legend: String,
    /// The topmost nodes.
    pub roots: Vec<Node>,
}

/// Deepest level of an [`Outline`]: its builders go no further, since drawing one recurses.
pub const DEPTH_LIMIT: usize = 48;

/// A node of an [`Outline`], no deeper than [`DEPTH_LIMIT`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Node {
    /// Name.
    pub name: String,
    /// Figures that follow it, e.g. `@1.204s +312ms`.
    pub figures: String,
    /// Emphasis.
    pub tone: Tone,
    /// What is inside it.
    pub children: Vec<Node>,
}

impl Document {
    /// Begins a section.
    pub fn heading(&mut self, text: impl Into<String>, note: impl Into<String>) {
        self.blocks.push(Block::Heading(Heading { text: text.into(), note: note.into() }));
    }

    /// Appends a part.
    pub fn push(&mut self, block: Block) {
        self.blocks.push(block);
    }
}

impl Fact {
    /// A fact with a note.
    pub fn new(name: impl Into<String>, value: impl Into<String>, note: impl Into<String>) -> Self {
        Fact { name: name.into(), value: value.into(), note: note.into() }
    }
}

/// How every result ends: warnings, commands to try next, where the runs are.
pub fn closing_notices(warnings: &[String], hints: &[String], saved_in: &str) -> Vec<Notice> {
    let warnings = warnings.iter().map(|text| Notice::new(NoticeKind::Warning, text));
    let hints = hints.iter().map(|hint| Notice::new(NoticeKind::Hint, hint));
    let place = (!saved_in.is_empty())
        .then(|| Notice::new(NoticeKind::Note, format!("the runs are in {saved_in}")));
    warnings.chain(hints).chain(place).collect()
}

impl Notice {
    /// A remark.
    pub fn new(kind: NoticeKind, text: impl Into<String>) -> Self {
        Notice { kind, text: text.into() }
    }
}
