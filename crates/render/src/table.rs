//! Rows and columns that every output can draw.
//!
//! A command builds its table once. What a narrow terminal cannot show is
//! decided by the columns' priorities, and numbers stay numbers until an output
//! draws them, so that each can align or sort them its own way.

use crate::palette::Colour;
use crate::quantity::{Quantity, Scale};
use crate::tone::Tone;

/// A titled grid.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Table {
    /// Columns.
    pub columns: Vec<Column>,
    /// Rows; each has a cell a column (missing ones are empty).
    pub rows: Vec<Row>,
}

/// Where a column's text sits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Align {
    /// Names.
    #[default]
    Left,
    /// Numbers.
    Right,
}

/// A column's head.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Column {
    /// Title; a column of quantities gets its unit appended.
    pub title: String,
    /// Alignment.
    pub align: Align,
    /// 0 is always shown; of the others, the highest number is left out first.
    pub priority: u8,
    /// May be cut short to this many columns when the table is too wide.
    pub shrinks_to: Option<u16>,
    /// What its values are, where the title does not say it: outputs print it with the columns
    /// that they show.
    pub meaning: String,
}

impl Column {
    /// A left-aligned column that may be cut short, but not so far that phases lose their names.
    pub fn name(title: &str) -> Self {
        Column { title: title.into(), shrinks_to: Some(33), ..Column::default() }
    }

    /// A left-aligned column.
    pub fn text(title: &str, priority: u8) -> Self {
        Column { title: title.into(), priority, ..Column::default() }
    }

    /// A right-aligned column.
    pub fn number(title: &str, priority: u8) -> Self {
        Column { title: title.into(), align: Align::Right, priority, ..Column::default() }
    }

    /// The same column with what its values are.
    pub fn meaning(self, meaning: impl Into<String>) -> Self {
        Column { meaning: meaning.into(), ..self }
    }
}

/// A line of a table.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Row {
    /// Cells.
    pub cells: Vec<Cell>,
    /// Emphasis of the whole line.
    pub tone: Tone,
    /// A rule is drawn above it (totals).
    pub ruled: bool,
}

/// A value in a table.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// Nothing.
    Empty,
    /// Words.
    Text(String),
    /// Words with emphasis.
    Toned(String, Tone),
    /// An identifier: kept literal, in code style where there is one.
    Name(String),
    /// A number, aligned and scaled with the others of its column.
    Quantity(Quantity),
    /// A number in its own unit, as in [`Quantity::inline`].
    Inline(Quantity),
    /// A share of 1, as a percentage.
    Share(f64),
    /// A bar from and to a share of the column's width.
    Bar {
        /// Left end, 0 to 1.
        from: f64,
        /// Right end, 0 to 1.
        to: f64,
        /// Colour.
        colour: Colour,
    },
    /// What was expected and what was found, as shares of the column's width.
    Range {
        /// Ends of what was expected, 0 to 1.
        expected: [f64; 2],
        /// Ends of the interval of what was found, 0 to 1.
        found: [f64; 2],
        /// Its centre, 0 to 1.
        centre: f64,
    },
    /// A small curve, in order.
    Spark(Vec<f64>),
}

impl Table {
    /// A table without rows.
    pub fn new(columns: Vec<Column>) -> Self {
        Table { columns, rows: Vec::new() }
    }

    /// True if no column has a title.
    pub fn is_untitled(&self) -> bool {
        self.columns.iter().all(|column| column.title.is_empty())
    }

    /// What the values of these columns are; empty if their titles say it.
    pub fn legend(&self, columns: impl Iterator<Item = usize>) -> String {
        let columns = columns.filter_map(|column| self.columns.get(column));
        let with: Vec<&Column> = columns.filter(|column| !column.meaning.is_empty()).collect();
        let alike = with.chunk_by(|a, b| a.meaning == b.meaning);
        let line = |columns: &[&Column]| {
            let titles: Vec<&str> = columns.iter().map(|column| column.title.as_str()).collect();
            format!("{}: {}", titles.join(", "), columns[0].meaning)
        };
        alike.map(line).collect::<Vec<_>>().join("; ")
    }

    /// Appends a line.
    pub fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(Row { cells, ..Row::default() });
    }

    /// Appends a line with emphasis.
    pub fn toned_row(&mut self, tone: Tone, cells: Vec<Cell>) {
        self.rows.push(Row { cells, tone, ruled: false });
    }

    /// Appends a total below a rule.
    pub fn total_row(&mut self, cells: Vec<Cell>) {
        self.rows.push(Row { cells, tone: Tone::Strong, ruled: true });
    }

    /// The cell of a row, [`Cell::Empty`] beyond its end.
    pub fn cell<'a>(&self, row: &'a Row, column: usize) -> &'a Cell {
        row.cells.get(column).unwrap_or(&Cell::Empty)
    }

    /// The scale that a column's quantities share; none for a column without any.
    pub fn column_scale(&self, column: usize) -> Option<Scale> {
        let quantities = self.rows.iter().filter_map(|row| match self.cell(row, column) {
            Cell::Quantity(quantity) => Some(quantity),
            _ => None,
        });
        let largest = quantities
            .filter(|q| q.value.is_finite())
            .max_by(|a, b| a.value.abs().total_cmp(&b.value.abs()))?;
        Some(largest.unit.column_scale(largest.value))
    }

    /// A column's title with its unit.
    pub fn column_title(&self, column: usize) -> String {
        let title = &self.columns[column].title;
        match self.column_scale(column) {
            Some(scale) if !scale.suffix.is_empty() => format!("{title}, {}", scale.suffix),
            _ => title.clone(),
        }
    }
}
