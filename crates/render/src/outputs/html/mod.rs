//! HTML: one page that needs nothing else, to be mailed or attached to a CI run.
//!
//! No script and no external resource; the page's own content security policy
//! forbids both, so that a name a guest made up could not load anything even if
//! it got past the escaping.

mod curves;
mod svg;

use crate::document::{Block, Detail, Fact, Node, Notice, NoticeKind, Outline, Tone};
use crate::quantity::{percent, Digits};
use crate::table::{Align, Cell, Row, Table};
use crate::text::neutralise;
use crate::{Output, Report, ReportError};
use std::fmt::Write as _;
use std::io::Write;

/// The HTML output.
#[derive(Debug)]
pub struct Html;

const STYLE: &str = include_str!("style.css");
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

impl Output for Html {
    fn name(&self) -> &'static str {
        "html"
    }

    fn about(&self) -> &'static str {
        "one self-contained page with the timeline, every run and its provenance"
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["html", "htm"]
    }

    fn write(&self, report: &dyn Report, out: &mut dyn Write) -> Result<(), ReportError> {
        let document = report.document(Detail::Full);
        let mut page = Page::default();
        page.blocks(&document.blocks);
        let envelope = report.envelope();
        let title = escape(&document.title);
        let answer = escape(&document.answer);
        let footer = format!("{}, {}", escape(&envelope.schema), escape(&envelope.started_at));
        write!(
            out,
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
             <h1>{title}</h1>\n<p class=\"answer\">{answer}</p>\n{}\
             <footer>{footer}</footer>\n</main>\n</body>\n</html>\n",
            page.html,
        )
        .map_err(ReportError::stream("html"))
    }
}

/// Text safe in content and in quoted attributes.
pub fn escape(text: &str) -> String {
    let text = neutralise(text);
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// Appends formatted HTML; what is put in must be escaped already.
macro_rules! put {
    ($page:expr, $($format:tt)+) => {
        // Writing to a String cannot fail.
        let _ = writeln!($page.html, $($format)+);
    };
}

/// The body in the making.
#[derive(Debug, Default)]
struct Page {
    html: String,
}

fn tone_class(tone: Tone) -> &'static str {
    match tone {
        Tone::Normal => "",
        Tone::Muted => "muted",
        Tone::Strong => "strong",
        Tone::Good => "good",
        Tone::Bad => "bad",
    }
}

impl Page {
    fn blocks(&mut self, blocks: &[Block]) {
        for block in blocks {
            match block {
                Block::Heading(heading) => {
                    put!(self, "<h2>{}</h2>", escape(&heading.text));
                    if !heading.note.is_empty() {
                        put!(self, "<p class=\"note\">{}</p>", escape(&heading.note));
                    }
                }
                Block::Facts(facts) => self.facts(facts),
                Block::Paragraph(words) => {
                    put!(self, "<p>{}</p>", escape(words));
                }
                Block::Chart(chart) => self.html.push_str(&svg::chart(chart)),
                Block::Strips(strips) => self.html.push_str(&svg::strips(strips)),
                Block::Curves(curves) => self.html.push_str(&curves::curves(curves)),
                Block::Table(table) => self.table(table),
                Block::Outline(outline) => self.outline(outline),
                Block::Notices(notices) => self.notices(notices),
                Block::Folded { summary, blocks } => {
                    put!(self, "<details><summary>{}</summary>", escape(summary));
                    self.blocks(blocks);
                    put!(self, "</details>");
                }
            }
        }
    }

    fn facts(&mut self, facts: &[Fact]) {
        put!(self, "<dl>");
        for Fact { name, value, note } in facts {
            let note = if note.is_empty() {
                String::new()
            } else {
                format!("<small>{}</small>", escape(note))
            };
            put!(self, "<dt>{}</dt><dd>{}{note}</dd>", escape(name), escape(value));
        }
        put!(self, "</dl>");
    }

    fn notices(&mut self, notices: &[Notice]) {
        put!(self, "<div class=\"notices\">");
        for notice in notices {
            let label = notice.kind.label();
            let text = escape(&notice.text);
            let text = match notice.kind {
                NoticeKind::Hint => format!("<code>{text}</code>"),
                _ => text,
            };
            put!(self, "<p class=\"{label}\"><b>{label}</b>: {text}</p>");
        }
        put!(self, "</div>");
    }

    fn outline(&mut self, outline: &Outline) {
        put!(self, "<p class=\"note\">{}</p>", escape(&outline.legend));
        self.nodes(&outline.roots);
    }

    fn nodes(&mut self, nodes: &[Node]) {
        if nodes.is_empty() {
            return;
        }
        put!(self, "<ul class=\"tree\">");
        for node in nodes {
            let (name, figures) = (escape(&node.name), escape(&node.figures));
            let tone = tone_class(node.tone);
            put!(self, "<li><code class=\"{tone}\">{name}</code> <small>{figures}</small>");
            self.nodes(&node.children);
            put!(self, "</li>");
        }
        put!(self, "</ul>");
    }

    fn table(&mut self, table: &Table) {
        put!(self, "<div class=\"scroll\"><table><thead><tr>");
        let widths: Vec<Fractions> =
            (0..table.columns.len()).map(|column| fractions(table, column)).collect();
        for (at, column) in table.columns.iter().enumerate() {
            let class = if column.align == Align::Right { "number" } else { "" };
            let span = if widths[at].has_half { 2 } else { 1 };
            let title = escape(&table.column_title(at));
            put!(self, "<th class=\"{class}\" colspan=\"{span}\">{title}</th>");
        }
        put!(self, "</tr></thead><tbody>");
        for row in &table.rows {
            let ruled = if row.ruled { " ruled" } else { "" };
            put!(self, "<tr class=\"{}{ruled}\">", tone_class(row.tone));
            for (at, widths) in widths.iter().enumerate() {
                self.cell(table, row, at, *widths);
            }
            put!(self, "</tr>");
        }
        put!(self, "</tbody></table></div>");
    }

    fn cell(&mut self, table: &Table, row: &Row, column: usize, widths: Fractions) {
        let class = match table.columns[column].align {
            Align::Right => "number",
            Align::Left if table.columns[column].shrinks_to.is_some() => "name",
            Align::Left => "",
        };
        let cell = table.cell(row, column);
        if let Some(scale) = table.column_scale(column) {
            let digits = match cell {
                Cell::Quantity(quantity) => quantity.digits(scale),
                _ => Digits { value: String::new(), half_width: None },
            };
            let value = pad_fraction(&digits.value, widths.value);
            let half = digits
                .half_width
                .map_or(String::new(), |half| format!("± {}", pad_fraction(&half, widths.half)));
            put!(self, "<td class=\"number\">{value}</td>");
            if widths.has_half {
                put!(self, "<td class=\"half\">{half}</td>");
            }
            return;
        }
        let content = match cell {
            Cell::Empty | Cell::Quantity(_) => String::new(),
            Cell::Text(text) => escape(text),
            Cell::Toned(text, tone) => {
                format!("<span class=\"{}\">{}</span>", tone_class(*tone), escape(text))
            }
            Cell::Name(name) => format!("<code>{}</code>", escape(name)),
            Cell::Inline(quantity) => escape(&quantity.inline()),
            Cell::Share(share) => percent(*share),
            Cell::Bar { from, to, colour } => svg::bar(*from, *to, *colour),
            Cell::Spark(samples) => svg::spark(samples),
        };
        put!(self, "<td class=\"{class}\">{content}</td>");
    }
}

/// Most decimals in a column, points included.
#[derive(Clone, Copy, Default)]
struct Fractions {
    value: usize,
    half: usize,
    /// Half widths are shown, in a column of their own.
    has_half: bool,
}

fn fractions(table: &Table, column: usize) -> Fractions {
    let fraction = |digits: &str| digits.find('.').map_or(0, |at| digits.len() - at);
    let mut widest = Fractions::default();
    let Some(scale) = table.column_scale(column) else { return widest };
    for row in &table.rows {
        if let Cell::Quantity(quantity) = table.cell(row, column) {
            let digits = quantity.digits(scale);
            widest.value = widest.value.max(fraction(&digits.value));
            if let Some(half) = digits.half_width {
                widest.half = widest.half.max(fraction(&half));
                widest.has_half = true;
            }
        }
    }
    widest
}

/// Digits followed by blanks as wide as the decimals that are missing, so that
/// the points of a right-aligned column stand below each other.
fn pad_fraction(digits: &str, fraction: usize) -> String {
    let own = digits.find('.').map_or(0, |at| digits.len() - at);
    let mut padded = digits.to_owned();
    for missing in own..fraction {
        // Punctuation space (U+2008) for the point, figure space (U+2007) for a digit.
        padded.push_str(if missing == 0 { "&#8200;" } else { "&#8199;" });
    }
    padded
}
