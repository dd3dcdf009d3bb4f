//! Tables in columns: numbers aligned on their decimal points, and whatever is
//! least needed left out when the terminal is narrow.

use super::screen::{Ink, Line, Screen};
use crate::chart::clean_share;
use crate::quantity::{percent, Digits};
use crate::table::{Align, Cell, Row, Table};
use crate::text::Safe;
use crate::tone::Tone;
use std::collections::BTreeSet;
use std::io::{self, Write};

/// Spaces between columns.
const GAP: usize = 2;
/// Spaces before the first.
const INDENT: usize = 2;
/// Widest bar.
const BAR_MAX: usize = 28;
/// Narrowest bar worth drawing.
const BAR_MIN: usize = 12;

/// The columns of a table with their widths on this screen.
pub(super) fn laid(screen: Screen, table: &Table) -> Vec<Laid> {
    let mut columns: Vec<Laid> = (0..table.columns.len()).map(|c| lay(screen, table, c)).collect();
    fit(&mut columns, table, screen);
    for column in columns.iter_mut().filter(|column| column.shown) {
        column.end = end_to_keep(screen, table, column);
    }
    columns
}

/// How much of the ends of a column's names stays when they are cut: as much as keeps the most of
/// them apart.
fn end_to_keep(screen: Screen, table: &Table, column: &Laid) -> usize {
    let named = |row| match table.cell(row, column.index) {
        Cell::Name(name) => Some(screen.safe(name)),
        _ => None,
    };
    let names: BTreeSet<Safe> = table.rows.iter().filter_map(named).collect();
    let apart = |end: &usize| {
        let cut = |name: &Safe| {
            name.shorten(column.width, *end, screen.glyphs().ellipsis).as_str().to_owned()
        };
        names.iter().map(cut).collect::<BTreeSet<_>>().len()
    };
    let ends = [column.width / 2, 2 * column.width / 3, column.width / 3];
    // Of several that are as good, `max_by_key` gives the last.
    ends.into_iter().max_by_key(apart).unwrap_or(0)
}

/// The numbers of the columns that fit.
pub(super) fn shown(columns: &[Laid]) -> impl Iterator<Item = usize> + '_ {
    columns.iter().filter(|column| column.shown).map(|column| column.index)
}

/// Draws a table.
pub(super) fn table(
    screen: Screen,
    table: &Table,
    columns: &[Laid],
    out: &mut dyn Write,
) -> io::Result<()> {
    let total: usize = INDENT + taken(columns);
    if columns.iter().any(|column| column.shown && !column.title.is_empty()) {
        titles(screen, table, columns, out)?;
    }
    for row in &table.rows {
        if row.ruled {
            let mut rule = Line::new(screen);
            rule.pad_to(INDENT);
            while rule.used() < total {
                rule.sign(Ink::Tone(Tone::Muted), screen.glyphs().rule);
            }
            rule.end(out)?;
        }
        draw_row(screen, table, columns, row, out)?;
    }
    Ok(())
}

fn titles(screen: Screen, table: &Table, columns: &[Laid], out: &mut dyn Write) -> io::Result<()> {
    let mut line = Line::new(screen);
    let mut at = INDENT;
    for column in columns.iter().filter(|c| c.shown) {
        line.pad_to(at);
        let title = column.title.truncate(column.width, screen.glyphs().ellipsis);
        if table.columns[column.index].align == Align::Right {
            line.pad_to(at + column.width - title.width());
        }
        line.put(Ink::Tone(Tone::Muted), &title);
        at += column.width + GAP;
    }
    line.end(out)
}

/// A column with its width decided.
pub(super) struct Laid {
    index: usize,
    title: Safe<'static>,
    width: usize,
    /// Columns of a name's end that stay when it is cut.
    end: usize,
    /// Parts of its quantities: whole and fraction of the value and of the half width.
    parts: [usize; 4],
    bar: bool,
    shown: bool,
}

/// Splits digits at the point: whole part, and the fraction with its point.
fn split(digits: &str) -> (&str, &str) {
    digits.find('.').map_or((digits, ""), |at| digits.split_at(at))
}

fn lay(screen: Screen, table: &Table, index: usize) -> Laid {
    let title = screen.safe(&table.column_title(index)).into_owned();
    let scale = table.column_scale(index);
    let mut parts = [0; 4];
    let mut content = 0;
    let mut bar = false;
    for cell in table.rows.iter().map(|row| table.cell(row, index)) {
        match (cell, scale) {
            (Cell::Quantity(quantity), Some(scale)) => {
                let Digits { value, half_width } = quantity.digits(scale);
                let (whole, fraction) = split(&value);
                parts[0] = parts[0].max(whole.len());
                parts[1] = parts[1].max(fraction.len());
                if let Some(half) = &half_width {
                    let (whole, fraction) = split(half);
                    parts[2] = parts[2].max(whole.len());
                    parts[3] = parts[3].max(fraction.len());
                }
            }
            (Cell::Bar { .. } | Cell::Range { .. }, _) => bar = true,
            (Cell::Spark(samples), _) => content = content.max(samples.len().min(BAR_MAX)),
            (cell, _) => content = content.max(words(screen, cell).width()),
        }
    }
    let quantity = parts[0]
        + parts[1]
        + if parts[2] > 0 { plus_minus(screen).len() + parts[2] + parts[3] } else { 0 };
    let content = content.max(quantity);
    let natural = if bar { BAR_MIN } else { content.max(title.width()) };
    Laid { index, title, width: natural, end: 0, parts, bar, shown: true }
}

fn plus_minus(screen: Screen) -> &'static str {
    if screen.ascii {
        " +- "
    } else {
        " ± "
    }
}

/// Columns used by what is shown, without the indent.
fn taken(columns: &[Laid]) -> usize {
    let shown = columns.iter().filter(|c| c.shown);
    shown.map(|c| c.width + GAP).sum::<usize>().saturating_sub(GAP)
}

/// The width that a column can be cut to.
fn least_width(table: &Table, column: &Laid) -> usize {
    let least = table.columns[column.index].shrinks_to;
    least.map_or(column.width, |least| column.width.min(usize::from(least)))
}

/// Leaves out columns, shortens names, or widens bars until the table fits.
fn fit(columns: &mut [Laid], table: &Table, screen: Screen) {
    let room = screen.width - INDENT;
    loop {
        let slack: usize =
            columns.iter().filter(|c| c.shown).map(|c| c.width - least_width(table, c)).sum();
        if taken(columns) <= room + slack {
            break;
        }
        let least = columns
            .iter_mut()
            .filter(|c| c.shown && table.columns[c.index].priority > 0)
            .max_by_key(|c| (table.columns[c.index].priority, c.index));
        match least {
            Some(column) => column.shown = false,
            None => break,
        }
    }
    while taken(columns) > room {
        let shrinking = |c: &&mut Laid| c.shown && table.columns[c.index].shrinks_to.is_some();
        let widest = columns.iter_mut().filter(shrinking).filter(|c| c.width > 4).max_by_key(|c| {
            let above = c.width > least_width(table, c);
            (above, table.columns[c.index].priority, c.width)
        });
        match widest {
            Some(column) => column.width -= 1,
            None => break,
        }
    }
    let free = room.saturating_sub(taken(columns));
    if let Some(bar) = columns.iter_mut().find(|c| c.shown && c.bar) {
        bar.width = (bar.width + free).min(BAR_MAX);
    }
}

fn draw_row(
    screen: Screen,
    table: &Table,
    columns: &[Laid],
    row: &Row,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut line = Line::new(screen);
    let mut at = INDENT;
    for column in columns.iter().filter(|c| c.shown) {
        line.pad_to(at);
        let cell = table.cell(row, column.index);
        let right = table.columns[column.index].align == Align::Right;
        draw_cell(screen, &mut line, table, column, cell, row.tone, right);
        at += column.width + GAP;
    }
    line.end(out)
}

fn draw_cell(
    screen: Screen,
    line: &mut Line,
    table: &Table,
    column: &Laid,
    cell: &Cell,
    tone: Tone,
    right: bool,
) {
    let start = line.used();
    let ink = Ink::Tone(match cell {
        Cell::Toned(_, own) => *own,
        _ => tone,
    });
    match cell {
        Cell::Quantity(quantity) => {
            if let Some(scale) = table.column_scale(column.index) {
                let digits = aligned(screen, column, &quantity.digits(scale));
                line.put(ink, &screen.safe(&digits));
            }
        }
        Cell::Bar { from, to, colour } => {
            for cell in bar(screen, column.width, *from, *to) {
                line.sign(Ink::Phase(*colour), cell);
            }
        }
        Cell::Range { expected, found, centre } => {
            for sign in range(screen, column.width, *expected, *found, *centre) {
                line.sign(ink, sign);
            }
        }
        Cell::Spark(samples) => {
            for level in spark(screen, samples, column.width) {
                line.sign(ink, level);
            }
        }
        cell => {
            let words = words(screen, cell);
            let ellipsis = screen.glyphs().ellipsis;
            let words = match cell {
                Cell::Name(_) => words.shorten(column.width, column.end, ellipsis),
                _ => words.truncate(column.width, ellipsis),
            };
            if right {
                line.pad_to(start + column.width - words.width());
            }
            line.put(ink, &words);
        }
    }
}

/// A quantity's digits with its decimal points under those of its column.
fn aligned(screen: Screen, column: &Laid, digits: &Digits) -> String {
    let [whole, fraction, half_whole, half_fraction] = column.parts;
    let quantity = whole
        + fraction
        + if half_whole > 0 {
            plus_minus(screen).chars().count() + half_whole + half_fraction
        } else {
            0
        };
    let mut text = " ".repeat(column.width.saturating_sub(quantity));
    let (left, point) = split(&digits.value);
    text.push_str(&format!("{left:>whole$}{point:<fraction$}"));
    if let Some(half) = &digits.half_width {
        let (left, point) = split(half);
        text.push_str(plus_minus(screen));
        text.push_str(&format!("{left:>half_whole$}{point:<half_fraction$}"));
    }
    text
}

/// The text of a cell that is drawn as text.
fn words(screen: Screen, cell: &Cell) -> Safe<'_> {
    match cell {
        Cell::Text(text) | Cell::Toned(text, _) | Cell::Name(text) => screen.safe(text),
        Cell::Inline(quantity) => screen.safe(&quantity.inline()).into_owned(),
        Cell::Share(share) => screen.safe(&percent(*share)).into_owned(),
        Cell::Empty
        | Cell::Quantity(_)
        | Cell::Bar { .. }
        | Cell::Range { .. }
        | Cell::Spark(_) => Safe::default(),
    }
}

/// What was expected, with the interval and the centre of what was found drawn over it.
fn range(
    screen: Screen,
    columns: usize,
    expected: [f64; 2],
    found: [f64; 2],
    centre: f64,
) -> impl Iterator<Item = &'static str> {
    let glyphs = screen.glyphs();
    let at = |share: f64| (clean_share(share) * columns.saturating_sub(1) as f64).round() as usize;
    let (expected, found, centre) = (expected.map(at), found.map(at), at(centre));
    (0..columns).map(move |column| {
        let within = |[from, to]: [usize; 2]| (from..=to).contains(&column);
        match column {
            _ if column == centre => glyphs.mean,
            _ if within(found) => glyphs.axis,
            _ if within(expected) => glyphs.expected,
            _ => " ",
        }
    })
}

/// A bar from a share of the width to another, cell by cell.
fn bar(screen: Screen, columns: usize, from: f64, to: f64) -> impl Iterator<Item = &'static str> {
    let fill = screen.glyphs().fill;
    let (from, to) = (clean_share(from) * columns as f64, clean_share(to) * columns as f64);
    (0..columns.min(to.ceil() as usize)).map(move |cell| {
        let covered = (to.min(cell as f64 + 1.0) - from.max(cell as f64)).max(0.0);
        match covered {
            c if c <= 0.0 => " ",
            c if c < 0.25 => fill[0],
            c if c < 0.75 => fill[1],
            _ => fill[2],
        }
    })
}

/// Samples as a curve between their smallest and largest, the last ones if there is no room.
fn spark(
    screen: Screen,
    samples: &[f64],
    columns: usize,
) -> impl Iterator<Item = &'static str> + '_ {
    let finite = || samples.iter().copied().filter(|s| s.is_finite());
    let low = finite().fold(f64::INFINITY, f64::min);
    let high = finite().fold(f64::NEG_INFINITY, f64::max);
    let levels = screen.glyphs().spark;
    let shown = &samples[samples.len().saturating_sub(columns)..];
    shown.iter().map(move |sample| {
        let share = if high > low { (sample - low) / (high - low) } else { 0.5 };
        let share = clean_share(share);
        levels[(share * (levels.len() - 1) as f64).round() as usize]
    })
}
