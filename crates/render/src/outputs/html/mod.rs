//! HTML: one page that needs nothing else, to be mailed or attached to a CI run.
//!
//! No script and no external resource; the page's own content security policy
//! forbids both, so that a name a guest made up could not load anything even if
//! it got past the escaping.

mod curves;
mod markup;
mod svg;

pub use markup::{escape, harmless, Harmless, Markup};

use crate::document::{Block, Detail, Fact, Node, Notice, NoticeKind, Outline};
use crate::quantity::{percent, Digits};
use crate::table::{Align, Cell, Row, Table};
use crate::tone::Tone;
use crate::{markup, Output, Report, ReportError, EXPORT};
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
        "HTML: one self-contained page with all tables and runs"
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
        let head = markup!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"{}\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>{}</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>\n\
             <h1>{}</h1>\n<p class=\"answer\">{}</p>\n",
            POLICY,
            title,
            STYLE,
            title,
            escape(&document.answer),
        );
        let foot = markup!(
            "<footer>{}, {}</footer>\n</main>\n</body>\n</html>\n",
            EXPORT,
            escape(&envelope.started_at),
        );
        [head, page.html, foot]
            .iter()
            .try_for_each(|part| out.write_all(part.as_str().as_bytes()))
            .map_err(ReportError::stream("html"))
    }
}

/// Appends a line of markup.
macro_rules! put {
    ($page:expr, $($markup:tt)+) => {
        $page.html.push(markup!($($markup)+));
        $page.html.push(markup!("\n"));
    };
}

/// The body in the making.
#[derive(Debug, Default)]
struct Page {
    html: Markup,
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
                Block::Chart(chart) => self.html.push(svg::chart(chart)),
                Block::Strips(strips) => self.html.push(svg::strips(strips)),
                Block::Curves(curves) => self.html.push(curves::curves(curves)),
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
                Markup::default()
            } else {
                markup!("<small>{}</small>", escape(note))
            };
            put!(self, "<dt>{}</dt><dd>{}{}</dd>", escape(name), escape(value), note);
        }
        put!(self, "</dl>");
    }

    fn notices(&mut self, notices: &[Notice]) {
        put!(self, "<div class=\"notices\">");
        for notice in notices {
            let label = notice.kind.label();
            let text = escape(&notice.text);
            let text = match notice.kind {
                NoticeKind::Hint => markup!("<code>{}</code>", text),
                _ => text,
            };
            put!(self, "<p class=\"{0}\"><b>{0}</b>: {1}</p>", label, text);
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
            put!(self, "<li><code class=\"{}\">{}</code> <small>{}</small>", tone, name, figures);
            self.nodes(&node.children);
            put!(self, "</li>");
        }
        put!(self, "</ul>");
    }

    fn table(&mut self, table: &Table) {
        let legend = table.legend(0..table.columns.len());
        if !legend.is_empty() {
            put!(self, "<p class=\"note\">{}</p>", escape(&legend));
        }
        put!(self, "<div class=\"scroll\"><table><thead><tr>");
        let widths: Vec<Fractions> =
            (0..table.columns.len()).map(|column| fractions(table, column)).collect();
        for (at, column) in table.columns.iter().enumerate() {
            let class = if column.align == Align::Right { "number" } else { "" };
            let span = if widths[at].has_half { "2" } else { "1" };
            let title = escape(&table.column_title(at));
            put!(self, "<th class=\"{}\" colspan=\"{}\">{}</th>", class, span, title);
        }
        put!(self, "</tr></thead><tbody>");
        for row in &table.rows {
            let ruled = if row.ruled { " ruled" } else { "" };
            put!(self, "<tr class=\"{}{}\">", tone_class(row.tone), ruled);
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
                .map(|half| markup!("± {}", pad_fraction(&half, widths.half)))
                .unwrap_or_default();
            put!(self, "<td class=\"number\">{}</td>", value);
            if widths.has_half {
                put!(self, "<td class=\"half\">{}</td>", half);
            }
            return;
        }
        let content = match cell {
            Cell::Empty | Cell::Quantity(_) => Markup::default(),
            Cell::Text(text) => escape(text),
            Cell::Toned(text, tone) => {
                markup!("<span class=\"{}\">{}</span>", tone_class(*tone), escape(text))
            }
            Cell::Name(name) => markup!("<code>{}</code>", escape(name)),
            Cell::Inline(quantity) => escape(&quantity.inline()),
            Cell::Share(share) => escape(&percent(*share)),
            Cell::Bar { from, to, colour } => svg::bar(*from, *to, *colour),
            Cell::Range { expected, found, centre } => svg::range(*expected, *found, *centre),
            Cell::Spark(samples) => svg::spark(samples),
        };
        put!(self, "<td class=\"{}\">{}</td>", class, content);
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
fn pad_fraction(digits: &str, fraction: usize) -> Markup {
    let own = digits.find('.').map_or(0, |at| digits.len() - at);
    let mut padded = escape(digits);
    for missing in own..fraction {
        // Punctuation space (U+2008) for the point, figure space (U+2007) for a digit.
        padded.push(if missing == 0 { markup!("&#8200;") } else { markup!("&#8199;") });
    }
    padded
}
