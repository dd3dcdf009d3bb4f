//! Curves as filled areas in block characters, one below the other.

use super::chart::{axis, name_column};
use super::screen::{Ink, Line, Screen};
use crate::chart::{Curve, Curves};
use crate::tone::Tone;
use std::io::{self, Write};

/// Lines of each curve.
const ROWS: usize = 3;
const MUTED: Ink = Ink::Tone(Tone::Muted);

/// Draws all curves on one axis of time and with one height.
pub(super) fn curves(screen: Screen, curves: &Curves, out: &mut dyn Write) -> io::Result<()> {
    let (end, most) = curves.range();
    if !(end > 0.0 && most > 0.0) {
        return Ok(());
    }
    let names = curves.curves.iter().map(|curve| screen.safe(&curve.label).width());
    let column = name_column(screen, names);
    let columns = screen.width - column;
    axis(screen, column, end, out)?;
    for curve in &curves.curves {
        let heights = heights(curve, end, columns);
        let highest = curve.points.iter().map(|point| point.1).fold(0.0, f64::max);
        for row in (0..ROWS).rev() {
            let mut line = Line::new(screen);
            line.pad_to(2);
            let (ink, text) = match ROWS - 1 - row {
                0 => (Ink::Tone(Tone::Normal), curve.label.clone()),
                1 => (MUTED, format!("{highest:.0} {}", curves.unit)),
                _ => (MUTED, String::new()),
            };
            let room = column - 3;
            line.put(ink, &screen.safe(&text).truncate(room, screen.glyphs().ellipsis));
            line.pad_to(column);
            for height in &heights {
                let filled = height.map(|height| height / most * ROWS as f64 - row as f64);
                line.sign(Ink::Hint, glyph(screen, filled, row));
            }
            line.end(out)?;
        }
    }
    Ok(())
}

/// How a cell is drawn that is filled to this share; what is not 0 is always seen.
fn glyph(screen: Screen, filled: Option<f64>, row: usize) -> &'static str {
    let spark = screen.glyphs().spark;
    let levels = spark.len();
    match filled {
        Some(share) if share > 0.0 => {
            let level = (share * levels as f64).ceil() as usize;
            spark[level.clamp(1, levels) - 1]
        }
        Some(_) | None if row > 0 => " ",
        Some(_) => screen.glyphs().axis,
        None => " ",
    }
}

/// The curve's height in each column: the largest there, or what it was before.
fn heights(curve: &Curve, end: f64, columns: usize) -> Vec<Option<f64>> {
    let mut heights = vec![None; columns];
    for (at, value) in curve.points.iter().filter(|(at, value)| at.is_finite() && value.is_finite())
    {
        let column = (at / end * columns as f64) as usize;
        let cell = &mut heights[column.min(columns.saturating_sub(1))];
        *cell = Some(cell.map_or(*value, |known: f64| known.max(*value)));
    }
    let last = heights.iter().rposition(Option::is_some);
    let mut known = None;
    for height in heights.iter_mut().take(last.unwrap_or(0)) {
        known = height.or(known);
        *height = known;
    }
    heights
}
