//! `vmeter dirty`: what harvesting dirty pages costs, as the tables of the measurement of 2010
//! that docs/DIRTY.md cites.

mod json;

use crate::result::{CrossoverOf, DirtyResult, DirtyRow, DirtySpeedup};
use crate::source::{label, TrackerKind};
use std::fmt::Write as _;
use vmeter_base::Envelope;
use vmeter_dirty_switch::StrategyKind;
use vmeter_render::document::{closing_notices, Block, Detail, Document, Fact};
use vmeter_render::exported::Of;
use vmeter_render::quantity::{compact_seconds, grouped, percent, Quantity, Unit};
use vmeter_render::table::{Cell, Column, Table};
use vmeter_render::tone::Tone;
use vmeter_render::{Field, Records, Report};

/// The strategies, as the publication has them.
const WAYS: &str = "get_org: original harvest loop, get_opt: optimised harvest loop, switch_opt: \
    swap of bitmaps without a copy";
const SUMMARY: &str = "ns, medians";
/// Said of several that are recommended.
const NO_WINNER: &str = " (no significant difference)";
/// Wrong bits that are listed.
const LISTED: usize = 12;

/// A [`DirtyResult`] to be written.
#[derive(Debug)]
pub struct DirtyReport<'a> {
    /// The result.
    pub result: &'a DirtyResult,
}

impl<'a> DirtyReport<'a> {
    /// The result.
    pub fn new(result: &'a DirtyResult) -> Self {
        DirtyReport { result }
    }

    /// In the order of the rows' first appearance, slowest strategy first.
    fn strategies(&self) -> Vec<StrategyKind> {
        let mut found = Vec::new();
        for row in &self.result.rows {
            if !found.contains(&row.strategy) {
                found.push(row.strategy);
            }
        }
        found
    }

    /// Whose rows are shown at a glance: how a bitmap is harvested does not depend on who
    /// told which pages to mark in it.
    fn shown(&self) -> Option<TrackerKind> {
        let advice = self.result.advice.as_ref();
        let advised = advice.and_then(|advice| advice.trackers.first().copied());
        advised.or_else(|| self.result.rows.first().map(|row| row.tracker))
    }

    fn answer(&self) -> String {
        let result = self.result;
        let checked = match (result.verified, result.checked_bits) {
            (true, bits) => format!(
                "All {} compared bits match the pages that the guest wrote.",
                grouped(&bits.to_string())
            ),
            (false, 0) => "No bit was checked.".into(),
            (false, _) => "Bits are WRONG: see below.".into(),
        };
        let Some(speedup) = &result.speedup else { return checked };
        let DirtySpeedup { strategy, over, smallest: low, largest: high, .. } = speedup;
        let from = Quantity::exact(speedup.slots_from_bytes as f64, Unit::Bytes).inline();
        if high - low < 1.0 {
            format!(
                "In clean slots of {from} or more, {} reads the bitmap {low:.0} times as \
                fast as {}. {checked}",
                explained(*strategy),
                explained(*over)
            )
        } else {
            format!(
                "In clean slots of {from} or more, {} reads the bitmap {low:.0} to {high:.0} \
                 times as fast as {}. {checked}",
                explained(*strategy),
                explained(*over)
            )
        }
    }

    fn facts(&self) -> Vec<Fact> {
        let (load, layout) = (&self.result.workload, &self.result.layout);
        let memory = Quantity::exact(layout.memory_bytes as f64, Unit::Bytes).inline();
        let pace = match load.hz {
            Some(hz) => format!("{} passes, {hz} a second", load.passes),
            None => format!("{} passes", load.passes),
        };
        let advice = self.result.advice.as_ref();
        let advice = advice.map(|advice| {
            let measured = self.result.trackers.iter().filter(|t| t.tracker.is_some()).count();
            let trackers = match advice.trackers.len() {
                n if n > 1 && n == measured => format!("any of the {n} trackers{NO_WINNER}"),
                _ => any_of(&advice.trackers),
            };
            let what = format!("{trackers}; to read the bitmap: {}", any_of(&advice.strategies));
            Fact::new("least time", what, &advice.reason)
        });
        let mut facts = vec![
            Fact::new("workload", format!("{}: {}", load.name, load.description), pace),
            Fact::new("memory", format!("{memory}, {}", layout.source), &layout.scaling),
            Fact::new(
                "guest",
                format!("ring {}, native", load.ring),
                "busy-waits while the host collects dirty pages",
            ),
        ];
        facts.extend(advice);
        facts
    }

    /// A row a pass and slot, a column a strategy.
    fn table(&self, tracker: Option<TrackerKind>, value: impl Fn(&DirtyRow) -> f64) -> Table {
        let strategies = self.strategies();
        let mut columns = vec![
            Column::number("pass", 0),
            Column::number("slot", 0),
            Column::number("slot_bytes", 1),
            Column::number("dirty_pages", 0),
        ];
        columns.extend(strategies.iter().map(|strategy| Column::number(strategy.name(), 0)));
        let mut table = Table::new(columns);
        let rows: Vec<&DirtyRow> =
            self.result.rows.iter().filter(|row| Some(row.tracker) == tracker).collect();
        let mut places: Vec<(u32, u32)> = rows.iter().map(|row| (row.pass, row.slot)).collect();
        places.sort_unstable();
        places.dedup();
        for (pass, slot) in places {
            let own: Vec<&&DirtyRow> =
                rows.iter().filter(|row| (row.pass, row.slot) == (pass, slot)).collect();
            let Some(first) = own.first() else { continue };
            let text = |number: u64| Cell::Text(grouped(&number.to_string()));
            let mut cells = vec![
                text(pass.into()),
                text(slot.into()),
                Cell::Text(first.slot_bytes.to_string()),
                text(first.dirty_pages),
            ];
            cells.extend(strategies.iter().map(|strategy| {
                let found = own.iter().find(|row| row.strategy == *strategy);
                found.map_or(Cell::Empty, |row| Cell::Text(spelled(value(row))))
            }));
            let tone = if first.dirty_pages == 0 { Tone::Muted } else { Tone::Normal };
            table.toned_row(tone, cells);
        }
        table
    }

    fn summary_table(&self) -> Table {
        let strategies = self.strategies();
        let mut columns = vec![
            Column::number("slot", 0),
            Column::number("slot_bytes", 1),
            Column::text("pages", 0),
            Column::number("n", 2).meaning(
                "reads (passes × trackers); before each read, vmeter fills the bitmap with the \
                pages that one tracker found",
            ),
        ];
        columns.extend(strategies.iter().map(|strategy| Column::number(strategy.name(), 0)));
        let ends = strategies.first().zip(strategies.last());
        let of = ends.map(|(first, last)| format!("{} ÷ {}", first.name(), last.name()));
        columns.push(Column::number("ratio", 1).meaning(of.unwrap_or_default()));
        let mut table = Table::new(columns);
        for summary in &self.result.summaries {
            let mut cells = vec![
                Cell::Text(summary.slot.to_string()),
                Cell::Text(summary.slot_bytes.to_string()),
                Cell::Text(if summary.clean { "clean" } else { "dirty" }.into()),
                Cell::Text(summary.harvests.to_string()),
            ];
            cells.extend(strategies.iter().map(|strategy| {
                let found = summary.medians.iter().find(|(own, _)| own == strategy);
                found.map_or(Cell::Empty, |(_, ns)| Cell::Text(spelled(*ns)))
            }));
            cells.push(summary.ratio.map_or(Cell::Empty, |r| Cell::Text(format!("{r:.1}"))));
            table.row(cells);
        }
        table
    }

    fn tracker_table(&self) -> Table {
        let mut table = Table::new(vec![
            Column::text("tracker", 0),
            Column::number("enable", 2),
            Column::number("collect", 0).meaning("host time per pass"),
            Column::number("guest pages/s", 0).meaning("written by the guest"),
            Column::number("slowdown", 0).meaning(
                "pages/s without a tracker ÷ pages/s with the \
                tracker",
            ),
            Column::number("faults", 1).meaning("page faults that KVM handled, mean per pass"),
            Column::number("exits", 2).meaning("VMEXITs, mean per pass"),
            Column::number("stops", 3),
        ]);
        for tracker in &self.result.trackers {
            let count = |name: &str| {
                let found = tracker.counts.get(name);
                found.map_or(Cell::Text("-".into()), |n| Cell::Text(grouped(&format!("{n:.0}"))))
            };
            let tracked = tracker.tracker.is_some();
            let collect = tracker.collect_nanoseconds.as_ref().map(|e| seconds(e.median));
            let rate = tracker.pages_per_s.as_ref().map(|e| Quantity::exact(e.median, Unit::Count));
            let spelled_rate = rate.map(|rate| grouped(&format!("{:.0}", rate.value)));
            table.row(vec![
                Cell::Text(label(tracker.tracker).into()),
                if tracked { seconds(tracker.start_nanoseconds) } else { Cell::Empty },
                collect.unwrap_or(Cell::Empty),
                Cell::Text(spelled_rate.unwrap_or_else(|| "-".into())),
                tracker.slowdown.map_or(Cell::Empty, |s| Cell::Text(format!("{s:.1}x"))),
                count("pf_taken"),
                count("exits"),
                Cell::Text(format!("{:.0}", tracker.interruptions)),
            ]);
        }
        table
    }

    fn model_table(&self) -> Option<Table> {
        let mut table = Table::new(vec![
            Column::text("tracker", 0),
            Column::number("fixed cost", 0).meaning("of the host, per pass"),
            Column::number("per dirty page", 0).meaning("of the host"),
            Column::number("first write fault", 1).meaning("time that the guest loses per page"),
        ]);
        for tracker in &self.result.trackers {
            let Some(model) = &tracker.model else { continue };
            table.row(vec![
                Cell::Text(label(tracker.tracker).into()),
                seconds(model.collect_clean_ns),
                seconds(model.collect_page_ns),
                seconds(model.write_page_ns),
            ]);
        }
        (!table.rows.is_empty()).then_some(table)
    }

    fn crossovers(&self) -> String {
        let mut text = String::new();
        let mut of = None;
        for crossover in &self.result.crossovers {
            let pages = grouped(&format!("{:.0}", crossover.dirty_pages));
            if of != Some(crossover.of) {
                let what = match crossover.of {
                    CrossoverOf::Collect => "host time alone, from the fitted costs",
                    CrossoverOf::Total => "host time plus the time of the guest's write faults",
                };
                let end = if of.is_some() { "; " } else { "" };
                let below = crossover.below;
                let _ = write!(
                    text,
                    "{end}{what}: {below} is cheapest below {pages} dirty pages per pass"
                );
            } else {
                let _ = write!(text, " to {pages}");
            }
            of = Some(crossover.of);
            let saved = percent(crossover.saved_per_page);
            let above = crossover.above;
            let _ = write!(text, ", above that {} ({saved} cheaper per dirty page)", above);
        }
        text + "; vmeter measured passes with up to 10 % of the buffer dirty. A saving of \
            less than 25 % per page may be noise."
    }

    fn trackers(&self, document: &mut Document) {
        document.heading("Trackers", "medians of passes");
        document.push(Block::Table(self.tracker_table()));
        if let Some(models) = self.model_table() {
            document.heading(
                "By dirty pages",
                "fitted to passes with 0 to 10 % of the buffer dirty, at random places; a page \
                 costs less if the guest writes pages in order",
            );
            document.push(Block::Table(models));
        }
        if !self.result.crossovers.is_empty() {
            document.push(Block::Paragraph(self.crossovers()));
        }
        for skipped in &self.result.skipped {
            let text = format!("{} was skipped: {}.", skipped.tracker, skipped.reason);
            document.push(Block::Paragraph(text));
        }
    }

    /// A row a tracker or strategy and number of VMs.
    fn together(&self) -> Table {
        let mut table = Table::new(vec![
            Column::number("VMs", 0),
            Column::text("", 0),
            Column::text("by", 0),
            Column::number("p50", 0),
            Column::number("p99", 0),
            Column::number("all done", 1),
            Column::number("samples", 2),
        ]);
        for row in &self.result.together {
            table.row(vec![
                Cell::Text(row.vms.to_string()),
                Cell::Text(if row.tells { "collect" } else { "read" }.into()),
                Cell::Name(row.what.clone()),
                Cell::Text(compact_seconds(row.p50_s)),
                Cell::Text(compact_seconds(row.p99_s)),
                Cell::Text(compact_seconds(row.all_s)),
                Cell::Text(row.samples_s.len().to_string()),
            ]);
        }
        table
    }

    fn wrong(&self) -> Table {
        let mut table = Table::new(vec![
            Column::number("pass", 0),
            Column::text("tracker", 0),
            Column::text("source", 0),
            Column::number("slot", 0),
            Column::number("page", 0),
            Column::text("bit", 0),
        ]);
        for wrong in self.result.mismatches.iter().take(LISTED) {
            table.toned_row(
                Tone::Bad,
                vec![
                    Cell::Text(wrong.pass.to_string()),
                    Cell::Text(label(wrong.tracker).into()),
                    Cell::Text(wrong.source.clone()),
                    Cell::Text(wrong.slot.to_string()),
                    Cell::Text(wrong.page.to_string()),
                    Cell::Text(if wrong.written { "missing" } else { "extra" }.into()),
                ],
            );
        }
        table
    }
}

/// Short calls with a decimal, long ones without.
fn spelled(value: f64) -> String {
    if value < 100.0 {
        format!("{value:.1}")
    } else {
        grouped(&format!("{value:.0}"))
    }
}

fn seconds(ns: f64) -> Cell {
    Cell::Text(compact_seconds(ns * 1e-9))
}

/// The one of an advice, if it is alone.
fn alone<T: Copy>(advised: &[T]) -> Option<T> {
    match advised {
        [one] => Some(*one),
        _ => None,
    }
}

/// A strategy with what it does.
fn explained(strategy: StrategyKind) -> String {
    let ways = WAYS.split(", ").find(|way| way.starts_with(strategy.name()));
    let way = ways.and_then(|way| way.split_once(": "));
    way.map_or_else(|| strategy.to_string(), |(name, way)| format!("{name} ({way})"))
}

/// An advice in words.
fn any_of<T: std::fmt::Display>(advised: &[T]) -> String {
    let names: Vec<String> = advised.iter().map(ToString::to_string).collect();
    match &names[..] {
        [one] => one.clone(),
        [first @ .., last] => {
            format!("{} or {last}{NO_WINNER}", first.join(", "))
        }
        [] => "any".into(),
    }
}

impl Report for DirtyReport<'_> {
    fn envelope(&self) -> &Envelope {
        &self.result.envelope
    }

    fn body(&self) -> Box<dyn erased_serde::Serialize + '_> {
        Box::new(json::Body::of(self.result))
    }

    fn document(&self, detail: Detail) -> Document {
        let mut document = Document {
            title: "vmeter dirty".into(),
            answer: self.answer(),
            blocks: vec![Block::Facts(self.facts())],
        };
        if !self.result.mismatches.is_empty() {
            document.heading("Wrong bits", "bits that do not match the pages that the guest wrote");
            document.push(Block::Table(self.wrong()));
        }
        let trackers = match detail {
            Detail::Glance | Detail::Page => vec![self.shown()],
            Detail::Full => {
                let all = self.result.trackers.iter().map(|t| t.tracker);
                all.filter(Option::is_some).collect()
            }
        };
        for tracker in trackers {
            let told = tracker.map_or("", TrackerKind::word);
            // So a small clean slot costs get_org as much as a large one.
            let note = format!(
                "in ns, from the passes with the tracker {told}; vmeter times its own loops, which \
                    do the same work as KVM's loops; {WAYS}; at each read, get_org allocates a \
                    bitmap and waits for all CPUs"
            );
            document.heading("Time to read the bitmap, by pass and slot", note);
            document.push(Block::Table(self.table(tracker, |row| row.nanoseconds)));
            let note = format!("of the same reads; {:.3} GHz", self.result.tsc_hz / 1e9);
            document.heading("TSC cycles", note);
            document.push(Block::Table(self.table(tracker, |row| row.tsc_cycles)));
        }
        document.heading("Time to read the bitmap, by slot", SUMMARY);
        document.push(Block::Table(self.summary_table()));
        self.trackers(&mut document);
        if !self.result.together.is_empty() {
            let note =
                "time for all slots of one VM; collect: the tracker collects the dirty pages; \
                    read: the strategy reads the bitmaps";
            document.heading("VMs at once", note);
            document.push(Block::Table(self.together()));
        }
        let notices = closing_notices(&self.result.warnings, &self.result.hints, "");
        document.push(Block::Notices(notices));
        document
    }

    fn records(&self) -> Records {
        Records::of(
            &self.result.rows,
            [
                ("pass", |row| Field::number(Some(row.pass))),
                ("slot", |row| Field::number(Some(row.slot))),
                ("slot_bytes", |row| Field::number(Some(row.slot_bytes))),
                ("dirty_pages", |row| Field::number(Some(row.dirty_pages))),
                ("strategy", |row| Field::text(row.strategy.name())),
                ("tracker", |row| Field::text(row.tracker.word())),
                ("nanoseconds", |row| Field::number(Some(row.nanoseconds))),
                ("tsc_cycles", |row| Field::number(Some(row.tsc_cycles))),
                ("first_nanoseconds", |row| Field::number(Some(row.first_nanoseconds))),
                ("collect_nanoseconds", |row| Field::number(row.collect_nanoseconds)),
            ],
        )
    }
}
