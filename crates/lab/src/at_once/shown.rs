//! Several VMs at once, in reports and exports.

use super::is_spread;
use super::levels::{levels, Knee, Level, Levels, Slowest};
use super::tail::WaitsFor;
use anyhow::Result;
use serde_json::Value;
use std::collections::BTreeMap;
use vmeter_explain::kind::Kind;
use vmeter_model::result::Envelope;
use vmeter_render::document::{Block, Detail, Document};
use vmeter_render::exported;
use vmeter_render::exported::{exported, Estimate};
use vmeter_render::quantity::{compact_seconds, p_value, percent, plural, Quantity, Unit};
use vmeter_render::table::{Cell, Column, Table};
use vmeter_render::{Records, Report, RunTimeline};
use vmeter_session::{Answer, Session, Views};
use vmeter_stats::tails::Tail;

/// All numbers of VMs at once of one machine, in JSON.
#[derive(Debug, serde::Serialize)]
struct LevelsRow<'a> {
    machine: &'a str,
    levels: Vec<LevelRow<'a>>,
    slope_s: Option<f64>,
    knees: Vec<KneeRow>,
}

exported! {
    /// One number of VMs at once.
    struct LevelRow<'a> of Level {
        label: &'a str,
        at_once: u32,
        waves: usize,
        samples_s: &'a [f64],
        quantiles: Vec<QuantileRow> = |level| level.tails.iter().map(QuantileRow::of).collect(),
        tear_down: Estimate,
        to_last_exit: Estimate,
        slowest: Option<SlowestRow>,
        waits_for: Option<WaitsForRow<'a>> = |level| {
            level.waits_for.as_ref().ok().and_then(Option::as_ref).map(WaitsForRow::of)
        },
        unknown: Option<&'a str> = |level| level.waits_for.as_ref().err().map(String::as_str),
    }

    struct WaitsForRow<'a> of WaitsFor {
        kind: &'static str = |waits| waits.kind.name(),
        who: &'a str,
        lock: Option<&'a str> = |waits| Some(waits.lock.as_str()).filter(|lock| !lock.is_empty()),
        share: f64,
        summary: &'a str,
        beyond: bool,
    }

    struct QuantileRow of Tail {
        quantile: f64,
        value_s: Option<f64> = |tail| tail.found.map(|(value, _)| value),
        ci95: Option<[f64; 2]> = |tail| tail.found.map(|(_, ci)| ci),
        needs: usize,
    }

    struct SlowestRow of Slowest {
        runs: usize,
        longer_s: f64,
        cpu_s: f64,
        cpu_wait_s: Option<f64>,
        unattributed_s: f64 = |slowest| slowest.rest_s,
    }

    struct KneeRow of Knee {
        between: [f64; 2],
        jump_s: f64,
        p_value: f64,
    }
}

/// For exports.
fn json(levels: &BTreeMap<String, Levels>) -> Vec<LevelsRow<'_>> {
    let mut rows = Vec::new();
    for (machine, of) in levels {
        let (levels, knees) = (exported(&of.all), exported(&of.knees));
        rows.push(LevelsRow { machine, levels, slope_s: of.slope_s, knees });
    }
    rows
}

/// What several VMs at once come to, by machine; of a session without such it is empty.
pub struct Spread(BTreeMap<String, Levels>);

impl Spread {
    /// Of a session. An experiment gives it in the session's place: while a session is open, vmeter
    /// works in its folder.
    ///
    /// # Errors
    /// When the session cannot be read.
    pub fn of(session: &Session) -> Result<Spread> {
        if !session.record.machines.iter().any(is_spread) {
            return Ok(Spread(BTreeMap::new()));
        }
        let (finished, _) = session.finished()?;
        Ok(Spread(levels(&session.record.machines, &finished, session.record.seed)))
    }

    /// The session's answer, with this.
    pub fn shown<A: Answer + 'static>(self, answer: A) -> Box<dyn Answer> {
        match self.0.is_empty() {
            true => Box::new(answer),
            false => Box::new(AtOnce { answer, levels: self.0 }),
        }
    }
}

/// An answer with several VMs at once.
struct AtOnce<A> {
    answer: A,
    levels: BTreeMap<String, Levels>,
}

impl<A: Answer> Answer for AtOnce<A> {
    fn report(&self, views: &Views) -> Box<dyn Report + '_> {
        Box::new(WithLevels { inner: self.answer.report(views), levels: &self.levels })
    }

    fn failure(&self) -> Option<String> {
        self.answer.failure()
    }
}

/// A report with a section of several VMs at once.
struct WithLevels<'a> {
    inner: Box<dyn Report + 'a>,
    levels: &'a BTreeMap<String, Levels>,
}

impl Report for WithLevels<'_> {
    fn envelope(&self) -> &Envelope {
        self.inner.envelope()
    }

    fn body(&self) -> Box<dyn erased_serde::Serialize + '_> {
        #[derive(serde::Serialize)]
        struct Body<'a> {
            concurrency: Vec<LevelsRow<'a>>,
            #[serde(flatten)]
            inner: Value,
        }
        // What cannot be a value could not be exported either.
        let inner = serde_json::to_value(self.inner.body()).unwrap_or(Value::Null);
        Box::new(Body { concurrency: json(self.levels), inner })
    }

    fn document(&self, detail: Detail) -> Document {
        let mut document = self.inner.document(detail);
        let has_notices = matches!(document.blocks.last(), Some(Block::Notices(_)));
        let notices = document.blocks.split_off(document.blocks.len() - usize::from(has_notices));
        blocks(self.levels, &mut document);
        document.blocks.extend(notices);
        document
    }

    fn records(&self) -> Records {
        self.inner.records()
    }

    fn timelines(&self) -> Vec<RunTimeline<'_>> {
        self.inner.timelines()
    }
}

/// The section of a report.
fn blocks(levels: &BTreeMap<String, Levels>, document: &mut Document) {
    for (machine, levels) in levels {
        let note = "each VM's time counts from its VMM's exec; [ ]: 95 % CI of the quantile";
        document.heading(format!("At once: {machine}"), note);
        document.push(Block::Table(table(levels)));
        for level in &levels.all {
            if let Some(slowest) = &level.slowest {
                document.push(Block::Paragraph(waited(level, slowest)));
            }
            document.blocks.extend(cause(level).map(Block::Paragraph));
        }
        if levels.all.len() > 1 {
            document.push(Block::Paragraph(knee(levels)));
        }
    }
}

fn table(levels: &Levels) -> Table {
    let mut table = Table::new(vec![
        Column::number("at once", 0),
        Column::number("VMs", 2),
        Column::text("p50", 0),
        Column::text("p90", 0),
        Column::text("p99", 0),
        Column::number("tear-down", 1),
        Column::number("to last exit", 1),
    ]);
    for level in &levels.all {
        let mut cells = vec![
            Cell::Text(level.at_once.to_string()),
            Cell::Text(level.samples_s.len().to_string()),
        ];
        cells.extend(level.tails.iter().map(|tail| Cell::Text(quantile(tail))));
        let time = |s: f64| Cell::Quantity(Quantity::exact(s, Unit::Seconds));
        cells.extend([time(level.tear_down.mean), time(level.to_last_exit.mean)]);
        table.row(cells);
    }
    table
}

fn quantile(tail: &Tail) -> String {
    match tail.found {
        Some((value, [low, high])) => {
            let [value, low, high] = [value, low, high].map(compact_seconds);
            format!("{value} [{low}, {high}]")
        }
        None => format!("needs {} VMs", tail.needs),
    }
}

/// What the slowest of a level waited for.
fn waited(level: &Level, slowest: &Slowest) -> String {
    let time = compact_seconds;
    let cpu_wait = match slowest.cpu_wait_s {
        Some(wait) => format!("{} of waiting for a CPU, ", time(wait)),
        None => String::new(),
    };
    format!(
        "With {} at once, the slowest {} of {} measured VMs take on average {} longer than the \
         typical VM. This extra time consists of {cpu_wait}{} of CPU time and {} that vmeter \
         cannot explain.",
        plural(u64::from(level.at_once), "VM"),
        slowest.runs,
        level.samples_s.len(),
        time(slowest.longer_s),
        time(slowest.cpu_s),
        time(slowest.rest_s),
    )
}

/// What the VMs of a traced wave waited for.
fn cause(level: &Level) -> Option<String> {
    let at_once = level.at_once;
    let found = match &level.waits_for {
        Ok(found) => found.as_ref()?,
        Err(why) => {
            return Some(format!(
                "{at_once} VMs at once: vmeter does not know what they wait for, \
                because {why}."
            ))
        }
    };
    let kind = match found.kind {
        Kind::Lock => format!("a lock ({})", found.lock),
        kind => kind.name().replace('-', " "),
    };
    let vms = plural(u64::from(at_once), "VM");
    let (who, share) = (&found.who, percent(found.share));
    let than = match found.beyond {
        true => " With the fewest VMs at once, this does not occur.",
        false => "",
    };
    Some(format!(
        "vmeter traced a warm-up in which {vms} ran at once. In it, {kind} takes {share} of \
            {who}'s time.{than} {}",
        found.summary
    ))
}

/// Where it gets worse, in words.
fn knee(levels: &Levels) -> String {
    let slope = levels.slope_s.map_or_else(String::new, |slope| {
        let (more, by) = (if slope < 0.0 { "less" } else { "more" }, compact_seconds(slope.abs()));
        format!("For each additional VM that runs at the same time, every VM takes {by} {more}")
    });
    match levels.knees.first() {
        Some(knee) => format!(
            "{slope}. There is a knee between {} and {} VMs (p {}): between these two numbers, \
                each VM's time rises by {} more than the trend predicts.",
            knee.between[0],
            knee.between[1],
            p_value(knee.p_value),
            compact_seconds(knee.jump_s)
        ),
        None if levels.all.len() < 4 => format!(
            "{slope}; to find a knee, vmeter must measure at least four different numbers of \
                VMs."
        ),
        None => format!("{slope}; no knee is found."),
    }
}
