//! The terminal: the answer first, in 80 columns or more.
//!
//! Everything passes through `Line`, which neutralises it: no escape that a
//! guest printed reaches the terminal, whoever adds a block later.

mod chart;
mod curves;
mod screen;
mod table;

pub use screen::{ColorChoice, Screen};

use crate::document::{Block, Detail, Fact, Heading, Node, Notice, NoticeKind, Outline};
use crate::table::Table;
use crate::text::Safe;
use crate::tone::Tone;
use crate::{Document, Output, Report, ReportError};
use screen::{Ink, Line};
use std::io::{self, Write};

/// The terminal output on a given screen.
#[derive(Debug)]
pub struct Terminal {
    /// What is drawn on.
    pub screen: Screen,
}

/// Plain text of 80 columns, for a file.
pub static PLAIN: Terminal = Terminal { screen: Screen::PLAIN };

impl Output for Terminal {
    fn name(&self) -> &'static str {
        "text"
    }

    fn about(&self) -> &'static str {
        "what the terminal shows, in 80 columns without colour"
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["txt"]
    }

    fn write(&self, report: &dyn Report, out: &mut dyn Write) -> Result<(), ReportError> {
        let document = report.document(Detail::Glance);
        self.document(&document, out).map_err(ReportError::stream("terminal"))
    }
}

const PLAIN_INK: Ink = Ink::Tone(Tone::Normal);
const MUTED: Ink = Ink::Tone(Tone::Muted);

impl Terminal {
    /// Draws a document.
    ///
    /// # Errors
    /// Those of the stream.
    pub fn document(&self, document: &Document, out: &mut dyn Write) -> io::Result<()> {
        if !document.title.is_empty() {
            self.wrapped(Ink::Heading, 0, &document.title, out)?;
        }
        if !document.answer.is_empty() {
            self.wrapped(PLAIN_INK, 0, &document.answer, out)?;
        }
        if matches!(document.blocks.first(), Some(Block::Table(table)) if table.is_untitled()) {
            writeln!(out)?;
        }
        self.blocks(&document.blocks, out)
    }

    fn blocks(&self, blocks: &[Block], out: &mut dyn Write) -> io::Result<()> {
        for block in blocks {
            match block {
                Block::Heading(heading) => self.heading(heading, out)?,
                Block::Facts(facts) => self.facts(facts, out)?,
                Block::Paragraph(words) => self.wrapped(PLAIN_INK, 2, words, out)?,
                Block::Chart(chart) => chart::chart(self.screen, chart, out)?,
                Block::Strips(strips) => chart::strips(self.screen, strips, out)?,
                Block::Curves(curves) => curves::curves(self.screen, curves, out)?,
                Block::Table(table) => self.table(table, out)?,
                Block::Outline(outline) => self.outline(outline, out)?,
                Block::Notices(notices) => self.notices(notices, out)?,
                Block::Folded { summary, blocks } => {
                    self.heading(&Heading { text: summary.clone(), note: String::new() }, out)?;
                    self.blocks(blocks, out)?;
                }
            }
        }
        Ok(())
    }

    fn table(&self, table: &Table, out: &mut dyn Write) -> io::Result<()> {
        let columns = table::laid(self.screen, table);
        let legend = table.legend(table::shown(&columns));
        if !legend.is_empty() {
            self.wrapped(MUTED, 2, &legend, out)?;
        }
        table::table(self.screen, table, &columns, out)
    }

    fn line(&self) -> Line {
        Line::new(self.screen)
    }

    /// Words in lines with an indent.
    fn wrapped(&self, ink: Ink, indent: usize, words: &str, out: &mut dyn Write) -> io::Result<()> {
        let safe = self.screen.safe(words);
        for part in safe.wrap(self.screen.width.saturating_sub(indent)) {
            let mut line = self.line();
            line.pad_to(indent);
            line.put(ink, &part);
            line.end(out)?;
        }
        Ok(())
    }

    fn heading(&self, heading: &Heading, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out)?;
        let safe = self.screen.safe(&heading.text);
        let mut parts = safe.wrap(self.screen.width);
        let last = parts.pop().unwrap_or_default();
        for part in parts {
            let mut line = self.line();
            line.put(Ink::Heading, &part);
            line.end(out)?;
        }
        let mut line = self.line();
        line.put(Ink::Heading, &last);
        let note = self.screen.safe(&heading.note);
        if note.is_empty() {
            return line.end(out);
        }
        if line.used() + 2 + note.width() <= self.screen.width {
            line.sign(MUTED, "  ");
            line.put(MUTED, &note);
            return line.end(out);
        }
        line.end(out)?;
        self.wrapped(MUTED, 2, &heading.note, out)
    }

    fn facts(&self, facts: &[Fact], out: &mut dyn Write) -> io::Result<()> {
        let names = facts.iter().map(|fact| self.screen.safe(&fact.name).width());
        let column = names.max().unwrap_or(0).min(20) + 4;
        let room = self.screen.width - column;
        writeln!(out)?;
        for fact in facts {
            let mut line = self.line();
            line.pad_to(2);
            line.put(MUTED, &self.screen.safe(&fact.name));
            // A name that leaves no gap has a line of its own.
            if line.used() + 1 >= column {
                std::mem::replace(&mut line, self.line()).end(out)?;
            }
            let mut value = self.screen.safe(&fact.value).wrap(room);
            let last = value.pop().unwrap_or_default();
            for part in value {
                line.pad_to(column);
                line.put(PLAIN_INK, &part);
                std::mem::replace(&mut line, self.line()).end(out)?;
            }
            line.pad_to(column);
            line.put(PLAIN_INK, &last);
            self.fact_note(line, &self.screen.safe(&fact.note), column, out)?;
        }
        Ok(())
    }

    /// A fact's note: on the line of its value as far as it fits, the rest below.
    fn fact_note(
        &self,
        mut line: Line,
        note: &Safe<'_>,
        column: usize,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        const GAP: &str = "   ";
        let left = self.screen.width.saturating_sub(line.used() + GAP.len());
        let (first, rest) = note.split_line(left);
        if !first.is_empty() {
            line.sign(MUTED, GAP);
            line.put(MUTED, &first);
        }
        line.end(out)?;
        if rest.is_empty() {
            return Ok(());
        }
        for part in rest.wrap(self.screen.width - column) {
            let mut line = self.line();
            line.pad_to(column);
            line.put(MUTED, &part);
            line.end(out)?;
        }
        Ok(())
    }

    fn notices(&self, notices: &[Notice], out: &mut dyn Write) -> io::Result<()> {
        if !notices.is_empty() {
            writeln!(out)?;
        }
        for notice in notices {
            let ink = match notice.kind {
                NoticeKind::Failure => Ink::Tone(Tone::Bad),
                NoticeKind::Warning => Ink::Warning,
                NoticeKind::Hint => Ink::Hint,
                NoticeKind::Note => MUTED,
            };
            let label = notice.kind.label();
            let indent = label.len() + 2;
            let mut line = self.line();
            line.sign(ink, label);
            line.sign(ink, ": ");
            let safe = self.screen.safe(&notice.text);
            // A command is left in one piece, to be copied.
            let parts = match notice.kind {
                NoticeKind::Hint => vec![safe],
                _ => safe.wrap(self.screen.width - indent),
            };
            for part in parts {
                line.pad_to(indent);
                line.put(PLAIN_INK, &part);
                std::mem::replace(&mut line, self.line()).end(out)?;
            }
        }
        Ok(())
    }

    fn outline(&self, outline: &Outline, out: &mut dyn Write) -> io::Result<()> {
        if !outline.legend.is_empty() {
            self.wrapped(MUTED, 0, &outline.legend, out)?;
            writeln!(out)?;
        }
        for root in &outline.roots {
            self.node(root, &[], None, out)?;
        }
        Ok(())
    }

    /// A node and what is below it; `last` is `None` for a root, which has no guide.
    fn node(
        &self,
        node: &Node,
        guides: &[&'static str],
        last: Option<bool>,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let glyphs = self.screen.glyphs();
        let (own, below) = match last {
            None => ("", ""),
            Some(true) => (glyphs.last, glyphs.blank),
            Some(false) => (glyphs.branch, glyphs.pass),
        };
        let mut line = self.line();
        for guide in guides {
            line.sign(MUTED, guide);
        }
        line.sign(MUTED, own);
        let figures = self.screen.safe(&node.figures);
        let taken = line.used() + 1 + figures.width();
        let room = self.screen.width.saturating_sub(taken).max(8);
        let name = self.screen.safe(&node.name);
        line.put(Ink::Tone(node.tone), &name.truncate(room, glyphs.ellipsis));
        line.sign(MUTED, " ");
        line.put(MUTED, &figures);
        line.end(out)?;
        let guides = [guides, &[below]].concat();
        for (i, child) in node.children.iter().enumerate() {
            self.node(child, &guides, Some(i + 1 == node.children.len()), out)?;
        }
        Ok(())
    }
}
