//! Charts in block characters.

use super::screen::{Ink, Line, Screen};
use crate::chart::{ticks, Chart, Lane, Segment, Strip, Strips};
use crate::palette::Colour;
use crate::quantity::{compact_seconds, Unit};
use crate::tone::Tone;
use std::io::{self, Write};
use vmeter_base::seconds;

const MUTED: Ink = Ink::Tone(Tone::Muted);
/// Spaces before a lane's name.
const INDENT: usize = 2;
/// Widest name.
const NAME_MAX: usize = 34;

pub(super) fn name_column(screen: Screen, names: impl Iterator<Item = usize>) -> usize {
    let widest = names.max().unwrap_or(0);
    widest.min(NAME_MAX.min(screen.width * 2 / 5)) + INDENT + 2
}

/// Draws lanes below an axis.
pub(super) fn chart(screen: Screen, chart: &Chart, out: &mut dyn Write) -> io::Result<()> {
    let indented = |lane: &Lane| screen.safe(&lane.name).width() + 2 * lane.depth;
    let column = name_column(screen, chart.lanes.iter().map(indented));
    let columns = screen.width - column;
    axis(screen, column, seconds(chart.total), out)?;
    for lane in &chart.lanes {
        let mut line = Line::new(screen);
        line.pad_to(INDENT + 2 * lane.depth);
        let name = screen.safe(&lane.name);
        let room = column - 1 - line.used();
        let ink = if lane.depth > 0 { MUTED } else { Ink::Tone(Tone::Normal) };
        line.put(ink, &name.truncate(room, screen.glyphs().ellipsis));
        line.pad_to(column);
        for cell in cells(&lane.segments, chart.total.max(1) as f64, columns) {
            match cell {
                Some(cell) => {
                    let glyphs = screen.glyphs();
                    let fill = if cell.right { glyphs.fill_right } else { glyphs.fill };
                    line.sign(Ink::Phase(cell.colour), fill[cell.level]);
                }
                None => line.sign(Ink::Tone(Tone::Normal), " "),
            }
        }
        line.end(out)?;
    }
    Ok(())
}

/// A column of a lane.
struct Filled {
    /// Index into the fill glyphs.
    level: usize,
    /// Filled from the right.
    right: bool,
    colour: Colour,
}

/// What fills one column so far.
#[derive(Clone, Default)]
struct Covered {
    sum: f64,
    most: f64,
    first: f64,
    colour: Option<Colour>,
}

/// What fills each column: the stretch that covers most of it gives the colour.
fn cells(segments: &[Segment], total: f64, columns: usize) -> Vec<Option<Filled>> {
    let mut covered = vec![Covered::default(); columns];
    for segment in segments {
        let at = |ns: i64| (ns as f64 / total).clamp(0.0, 1.0) * columns as f64;
        let (from, to) = (at(segment.start), at(segment.end));
        if columns == 0 || to <= from {
            continue;
        }
        let first = (from as usize).min(columns - 1);
        let last = (to.ceil() as usize).clamp(first + 1, columns);
        for (at, cell) in covered.iter_mut().enumerate().take(last).skip(first) {
            let begin = from.max(at as f64);
            let here = (to.min(at as f64 + 1.0) - begin).max(0.0);
            if cell.colour.is_none() {
                cell.first = begin - at as f64;
            }
            if cell.colour.is_none() || here > cell.most {
                cell.most = here;
                cell.colour = Some(segment.colour);
            }
            cell.sum += here;
        }
    }
    covered.into_iter().map(|cell| filled(&cell)).collect()
}

fn filled(cell: &Covered) -> Option<Filled> {
    let level = match cell.sum {
        s if s < 0.25 => 0,
        s if s < 0.75 => 1,
        _ => 2,
    };
    let right = cell.first > 0.5 * (1.0 - cell.sum) + 1e-9;
    cell.colour.map(|colour| Filled { level, right, colour })
}

/// The axis: round numbers of its unit above ticks, from 0 to `end` seconds.
pub(super) fn axis(screen: Screen, column: usize, end: f64, out: &mut dyn Write) -> io::Result<()> {
    let columns = screen.width - column;
    let scale = Unit::Seconds.scale_for(end);
    let marks = ticks(end / scale.factor, columns / 9);
    let mut labels = Line::new(screen);
    let mut rule = Line::new(screen);
    labels.pad_to(column);
    rule.pad_to(column);
    for tick in &marks {
        let at = (tick * scale.factor / end * (columns - 1) as f64).round() as usize;
        while rule.used() < column + at {
            rule.sign(MUTED, screen.glyphs().axis);
        }
        rule.sign(MUTED, screen.glyphs().tick);
        let label = axis_label(*tick);
        let label = if *tick == 0.0 { format!("0 {}", scale.suffix) } else { label };
        let label = screen.safe(&label);
        if column + at >= labels.used() && column + at + label.width() <= screen.width {
            labels.pad_to(column + at);
            labels.put(MUTED, &label);
        }
    }
    while rule.used() < screen.width {
        rule.sign(MUTED, screen.glyphs().axis);
    }
    labels.end(out)?;
    rule.end(out)
}

/// A tick's number without the noise of its floating point.
fn axis_label(tick: f64) -> String {
    let text = format!("{tick:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Draws samples as dots on a common axis, each series with its mean.
pub(super) fn strips(screen: Screen, strips: &Strips, out: &mut dyn Write) -> io::Result<()> {
    let all = || strips.strips.iter().flat_map(|s| s.samples.iter().copied());
    let low = all().filter(|s| s.is_finite()).fold(f64::INFINITY, f64::min);
    let high = all().filter(|s| s.is_finite()).fold(f64::NEG_INFINITY, f64::max);
    if low > high {
        return Ok(());
    }
    let names = strips.strips.iter().map(|s| screen.safe(&s.label).width());
    let column = name_column(screen, names);
    let columns = screen.width - column;
    for strip in &strips.strips {
        let mut line = Line::new(screen);
        line.pad_to(INDENT);
        let room = column - 1 - INDENT;
        let label = screen.safe(&strip.label);
        let label = label.truncate(room, screen.glyphs().ellipsis);
        line.put(Ink::Tone(Tone::Normal), &label);
        line.pad_to(column);
        dots(screen, &mut line, strip, (low, high), columns);
        line.end(out)?;
    }
    let mut ends = Line::new(screen);
    ends.pad_to(column);
    ends.put(MUTED, &screen.safe(&compact_seconds(low)));
    let right = compact_seconds(high);
    let right = screen.safe(&right);
    ends.pad_to(screen.width - right.width());
    ends.put(MUTED, &right);
    ends.end(out)
}

fn dots(screen: Screen, line: &mut Line, strip: &Strip, range: (f64, f64), columns: usize) {
    let (low, high) = range;
    let span = if high > low { high - low } else { 1.0 };
    let at = |value: f64| {
        let share = ((value - low) / span).clamp(0.0, 1.0);
        (share * (columns - 1) as f64).round() as usize
    };
    let mut counts = vec![0usize; columns];
    for sample in strip.samples.iter().filter(|s| s.is_finite()) {
        counts[at(*sample)] += 1;
    }
    let mean = if strip.estimate.mean.is_finite() { Some(at(strip.estimate.mean)) } else { None };
    for (column, count) in counts.iter().enumerate() {
        let glyphs = screen.glyphs();
        if Some(column) == mean {
            line.sign(Ink::Tone(Tone::Strong), glyphs.mean);
        } else if *count > 0 {
            line.sign(Ink::Hint, glyphs.dots[(count - 1).min(2)]);
        } else {
            line.sign(Ink::Tone(Tone::Normal), " ");
        }
    }
}
