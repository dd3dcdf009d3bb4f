//! Markdown as GitHub and GitLab read it, for issues and pull requests.
//!
//! Names from guests go into code spans, where neither markup nor `@mentions`
//! nor `#references` are seen; other text is escaped character by character.
//! Charts become fenced blocks of what the terminal shows.

use crate::document::{Block, Detail, Fact, Node, Notice, Outline};
use crate::outputs::terminal::{Screen, Terminal};
use crate::quantity::percent;
use crate::table::{Align, Cell, Row, Table};
use crate::text::neutralise;
use crate::tone::Tone;
use crate::{Document, Output, Report, ReportError};
use std::io::{self, Write};

/// The Markdown output.
#[derive(Debug)]
pub struct Markdown;

impl Output for Markdown {
    fn name(&self) -> &'static str {
        "markdown"
    }

    fn about(&self) -> &'static str {
        "Markdown: tables for an issue or a pull request"
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["md", "markdown"]
    }

    fn write(&self, report: &dyn Report, out: &mut dyn Write) -> Result<(), ReportError> {
        let document = report.document(Detail::Page);
        self.document(&document, out).map_err(ReportError::stream("markdown"))
    }
}

/// Text with everything that Markdown or its HTML would act on escaped.
pub fn escape(text: &str) -> String {
    let text = neutralise(text);
    let mut out = String::with_capacity(text.as_str().len());
    let mut before = ' ';
    let mut characters = text.as_str().chars().peekable();
    while let Some(c) = characters.next() {
        let after = characters.peek().copied().unwrap_or(' ');
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '@' => out.push_str("&#64;"),
            '#' => out.push_str("&#35;"),
            '_' if before.is_alphanumeric() && after.is_alphanumeric() => out.push('_'),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '~' | '!' => {
                out.push('\\');
                out.push(c);
            }
            c => out.push(c),
        }
        before = c;
    }
    out
}

/// [`escape`] for text that begins a line, where it could be a list or a rule.
fn escape_line(text: &str) -> String {
    let escaped = escape(text);
    let digits = escaped.find(|c: char| !c.is_ascii_digit()).unwrap_or(escaped.len());
    let rest = &escaped[digits..];
    let listed = digits > 0 && (rest.starts_with(". ") || rest.starts_with(") "));
    if escaped.starts_with(['-', '+', '=', ' ', '\t']) || listed {
        format!("{}\\{}", &escaped[..digits], rest.trim_start())
    } else {
        escaped
    }
}

/// A literal name as a code span; pipes are escaped for the table around it.
pub fn code(text: &str) -> String {
    let text = neutralise(text);
    let text = text.as_str();
    if text.trim().is_empty() {
        return String::new();
    }
    let fence = "`".repeat(longest_run(text, '`') + 1);
    let pad = if text.contains('`') { " " } else { "" };
    format!("{fence}{pad}{}{pad}{fence}", text.replace('|', "\\|"))
}

fn longest_run(text: &str, wanted: char) -> usize {
    let mut longest = 0;
    let mut run = 0;
    for c in text.chars() {
        run = if c == wanted { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    longest
}

impl Markdown {
    fn document(&self, document: &Document, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "## {}", escape(&document.title))?;
        if !document.answer.is_empty() {
            writeln!(out, "\n{}", escape_line(&document.answer))?;
        }
        self.blocks(&document.blocks, out)
    }

    fn blocks(&self, blocks: &[Block], out: &mut dyn Write) -> io::Result<()> {
        for block in blocks {
            match block {
                Block::Heading(heading) => {
                    writeln!(out, "\n### {}", escape(&heading.text))?;
                    if !heading.note.is_empty() {
                        writeln!(out, "\n{}", escape_line(&heading.note))?;
                    }
                }
                Block::Facts(facts) => self.facts(facts, out)?,
                Block::Paragraph(words) => writeln!(out, "\n{}", escape_line(words))?,
                Block::Chart(_) | Block::Strips(_) | Block::Curves(_) => self.fenced(block, out)?,
                Block::Table(table) => self.table(table, out)?,
                Block::Outline(outline) => self.outline(outline, out)?,
                Block::Notices(notices) => self.notices(notices, out)?,
                Block::Folded { summary, blocks } => {
                    writeln!(out, "\n<details><summary>{}</summary>", escape(summary))?;
                    self.blocks(blocks, out)?;
                    writeln!(out, "\n</details>")?;
                }
            }
        }
        Ok(())
    }

    /// What the terminal draws, inside a fence longer than any in it.
    fn fenced(&self, block: &Block, out: &mut dyn Write) -> io::Result<()> {
        let terminal = Terminal { screen: Screen::PLAIN };
        let picture = Document { blocks: vec![block.clone()], ..Document::default() };
        let mut text = Vec::new();
        terminal.document(&picture, &mut text)?;
        let text = String::from_utf8_lossy(&text);
        let fence = "`".repeat((longest_run(&text, '`') + 1).max(3));
        writeln!(out, "\n{fence}text\n{}\n{fence}", text.trim_matches('\n'))
    }

    fn facts(&self, facts: &[Fact], out: &mut dyn Write) -> io::Result<()> {
        writeln!(out)?;
        for Fact { name, value, note } in facts {
            write!(out, "- **{}**: {}", escape(name), escape(value))?;
            if !note.is_empty() {
                write!(out, " ({})", escape(note))?;
            }
            writeln!(out)?;
        }
        Ok(())
    }

    fn notices(&self, notices: &[Notice], out: &mut dyn Write) -> io::Result<()> {
        if !notices.is_empty() {
            writeln!(out)?;
        }
        for notice in notices {
            writeln!(out, "- **{}**: {}", notice.kind.label(), escape(&notice.text))?;
        }
        Ok(())
    }

    fn outline(&self, outline: &Outline, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "\n{}\n", escape_line(&outline.legend))?;
        outline.roots.iter().try_for_each(|root| node(root, 0, out))
    }

    fn table(&self, table: &Table, out: &mut dyn Write) -> io::Result<()> {
        let drawn = |column: &usize| {
            let cells = table.rows.iter().map(|row| table.cell(row, *column));
            let mut cells = cells.filter(|cell| !matches!(cell, Cell::Empty)).peekable();
            cells.peek().is_some()
                && !cells.all(|cell| {
                    matches!(cell, Cell::Bar { .. } | Cell::Range { .. } | Cell::Spark(_))
                })
        };
        let columns: Vec<usize> = (0..table.columns.len()).filter(drawn).collect();
        let legend = table.legend(columns.iter().copied());
        if !legend.is_empty() {
            writeln!(out, "\n{}", escape_line(&legend))?;
        }
        writeln!(out)?;
        for column in &columns {
            write!(out, "| {} ", escape(&table.column_title(*column)))?;
        }
        writeln!(out, "|")?;
        for column in &columns {
            let right = table.columns[*column].align == Align::Right;
            write!(out, "|{}", if right { "---:" } else { ":---" })?;
        }
        writeln!(out, "|")?;
        for row in &table.rows {
            for column in &columns {
                write!(out, "| {} ", cell(table, row, *column))?;
            }
            writeln!(out, "|")?;
        }
        Ok(())
    }
}

fn node(node: &Node, depth: usize, out: &mut dyn Write) -> io::Result<()> {
    let indent = "  ".repeat(depth);
    writeln!(out, "{indent}- {} {}", code(&node.name), escape(&node.figures))?;
    node.children.iter().try_for_each(|child| self::node(child, depth + 1, out))
}

fn cell(table: &Table, row: &Row, column: usize) -> String {
    let cell = table.cell(row, column);
    let text = match cell {
        Cell::Empty | Cell::Bar { .. } | Cell::Range { .. } | Cell::Spark(_) => String::new(),
        Cell::Text(text) | Cell::Toned(text, _) => escape(text),
        Cell::Name(name) => code(name),
        Cell::Inline(quantity) => escape(&quantity.inline()),
        Cell::Share(share) => percent(*share),
        Cell::Quantity(quantity) => {
            let digits = table.column_scale(column).map(|scale| quantity.digits(scale));
            digits.map_or(String::new(), |digits| match digits.half_width {
                Some(half) => format!("{} ± {half}", digits.value),
                None => digits.value,
            })
        }
    };
    let emphasis =
        row.tone == Tone::Strong || matches!(cell, Cell::Toned(_, Tone::Good | Tone::Bad));
    if emphasis && !text.is_empty() {
        format!("**{text}**")
    } else {
        text
    }
}
