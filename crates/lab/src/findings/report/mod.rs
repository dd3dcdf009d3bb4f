//! `vmeter findings`: which known causes of a slow boot are here, and what each costs.

mod json;

use super::catalogue::SOURCE;
use super::plan::BASELINE;
use vmeter_model::findings::{Contrast, FindingRow, FindingsResult};
use vmeter_model::result::Envelope;
use vmeter_model::{Estimate, FindingVerdict, ResolvedOption};
use vmeter_render::document::{closing_notices, Block, Detail, Document, Fact};
use vmeter_render::exported::Of;
use vmeter_render::quantity::{brief_percent, compact_seconds, p_value, plural, Quantity, Unit};
use vmeter_render::table::{Cell, Column, Table};
use vmeter_render::tone::Tone;
use vmeter_render::{Field, Records, Report};

/// Said of a finding that is measured on a machine made for it.
const ELSEWHERE: &str = ", measured on another machine because this one lacks the cause.";

/// A [`FindingsResult`] to be written.
#[derive(Debug)]
pub struct FindingsReport<'a> {
    /// The result.
    pub result: &'a FindingsResult,
    /// Each finding in words.
    pub long: bool,
}

impl<'a> FindingsReport<'a> {
    /// The result at a glance.
    pub fn new(result: &'a FindingsResult) -> Self {
        FindingsReport { result, long: false }
    }

    fn count(&self, verdict: FindingVerdict) -> usize {
        self.result.rows.iter().filter(|row| row.verdict == verdict).count()
    }

    /// What was found, in two sentences.
    fn answer(&self) -> String {
        let unfinished = match self.count(FindingVerdict::Unfinished) {
            0 => String::new(),
            n => format!(", {n} not measured yet"),
        };
        let simulated = match self.result.machine.spec.is_played() {
            true => " (all boots are simulated: --vmm mock)",
            false => "",
        };
        let mut text = format!(
            "Of {}{simulated}, {} confirmed, {} without a difference, {} skipped{unfinished}.",
            plural(self.result.rows.len() as u64, "finding"),
            self.count(FindingVerdict::Confirmed),
            self.count(FindingVerdict::NotReproduced),
            self.count(FindingVerdict::Inapplicable)
        );
        let saved = |row: &&FindingRow| row.verdict == FindingVerdict::Confirmed;
        let all = || {
            let saved = self.result.rows.iter().filter(saved);
            saved.filter_map(|row| Some((row, row.contrasts.iter().find(|c| c.saves)?)))
        };
        let saves = |c: &Contrast| Quantity::of(&c.found, Unit::Seconds).inline();
        // What the machine itself has comes before what it was given to be measured.
        let has = |contrast: &Contrast| !is_added(contrast);
        let best = all().max_by(|a, b| {
            let key = |c: &Contrast| (has(c), c.found.mean);
            let (a, b) = (key(a.1), key(b.1));
            a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
        });
        if let Some((row, contrast)) = best {
            let on = if has(contrast) { " on this machine" } else { "" };
            text += &format!(" The largest{on} is {}: {}", row.id, saves(contrast));
            let whole = contrast.baseline.mean;
            if whole > 0.0 {
                text += &format!(" of a boot of {}", compact_seconds(whole));
            }
            text += if has(contrast) { "." } else { ELSEWHERE };
        }
        let above = best.map_or(f64::INFINITY, |(_, contrast)| contrast.found.mean);
        let larger = all().filter(|(_, c)| !has(c) && c.found.mean > above);
        let larger = larger.max_by(|a, b| a.1.found.mean.total_cmp(&b.1.found.mean));
        if let Some((row, contrast)) = larger {
            text += &format!(" {} costs {}{ELSEWHERE}", row.id, saves(contrast));
        }
        text
    }

    fn table(&self) -> Table {
        let mut table = Table::new(vec![
            Column::name("finding"),
            Column::number("saves", 0),
            Column { shrinks_to: Some(16), ..Column::text("where", 0) }.meaning(
                "a part of the boot, the whole boot, or the VMM's CPU time: what vmeter compared to \
                    decide",
            ),
            Column::number("p", 0),
            Column::text("verdict", 0).meaning(
                "+ means that your machine lacks the cause, and vmeter measured this \
                    finding on a machine with the cause",
            ),
            Column::text("published", 3),
            Column::number("whole boot", 2),
            Column::number("would have seen", 4),
            Column::text("by", 5),
        ]);
        for row in &self.result.rows {
            table.toned_row(tone(row.verdict), cells(row));
        }
        table
    }

    /// Findings that have several comparisons, or a price for each of something.
    fn parts(&self) -> Option<Table> {
        let contrasts = self.result.rows.iter().flat_map(|row| &row.contrasts);
        let counted = contrasts.filter(|c| c.exits_per_unit.is_some()).count() > 0;
        let mut columns = vec![
            Column::name("comparison"),
            Column::number("saves", 0),
            Column::text("where", 2),
            Column::number("per unit", 0),
            Column { shrinks_to: Some(12), ..Column::text("unit", 0) },
        ];
        columns.extend(counted.then(|| Column::number("exits", 1)));
        columns.push(Column::number("p", 1));
        let mut table = Table::new(columns);
        for row in &self.result.rows {
            let several = row.contrasts.len() > 1;
            for contrast in measured(row).filter(|c| several || c.unit.is_some()) {
                let name = [row.id.as_str(), contrast.name.as_str()];
                let name: Vec<&str> = name.into_iter().filter(|text| !text.is_empty()).collect();
                let (each, what) = match &contrast.unit {
                    Some((what, each)) => {
                        (Cell::Inline(Quantity::of(each, Unit::Seconds)), what.clone())
                    }
                    None => (Cell::Empty, String::new()),
                };
                let mut cells = vec![
                    Cell::Name(name.join(": ")),
                    saving(&contrast.found),
                    place(contrast),
                    each,
                    Cell::Text(what),
                ];
                cells.extend(counted.then(|| exits(contrast.exits_per_unit.as_ref())));
                cells.push(Cell::Text(p_value(contrast.p_value)));
                table.row(cells);
            }
        }
        (!table.rows.is_empty()).then_some(table)
    }

    fn exact(&self) -> Option<Table> {
        let mut table = Table::new(vec![
            Column::name("finding"),
            Column::number("saves", 0),
            Column::number("of", 0),
            Column::text("most of it in", 0),
            Column::number("there", 1),
        ]);
        for row in &self.result.rows {
            for contrast in &row.contrasts {
                let Some(exact) = &contrast.exact else { continue };
                let time = |s| Cell::Inline(Quantity::exact(s, Unit::Seconds));
                let name = match contrast.name.as_str() {
                    "" => row.id.clone(),
                    name => format!("{}: {name}", row.id),
                };
                table.row(vec![
                    Cell::Name(name),
                    time(exact.saving_s),
                    time(exact.baseline_s),
                    Cell::Text(exact.phase.clone()),
                    time(exact.phase_saving_s),
                ]);
            }
        }
        (!table.rows.is_empty()).then_some(table)
    }

    fn consoles(&self) -> Option<Table> {
        let costs = &self.result.consoles;
        let counted = costs.iter().any(|cost| cost.exits_per_char.is_some());
        let of_exits = counted.then(|| Column::number("exits", 0));
        let mut columns = vec![Column::name("console"), Column::number("a character", 0)];
        columns.extend(of_exits);
        columns.push(Column::number("boots", 1));
        let mut table = Table::new(columns);
        for cost in costs {
            let mut cells = vec![
                Cell::Name(cost.console.clone()),
                Cell::Inline(Quantity::of(&cost.per_char, Unit::Seconds)),
            ];
            cells.extend(counted.then(|| exits(cost.exits_per_char.as_ref())));
            cells.push(Cell::Text(cost.samples_s.len().to_string()));
            table.row(cells);
        }
        (!table.rows.is_empty()).then_some(table)
    }

    /// What was skipped and why, a sentence for each reason.
    fn reasons(&self) -> Vec<String> {
        let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
        for row in self.result.rows.iter().filter(|row| !is_measured(row.verdict)) {
            match groups.iter_mut().find(|(reason, _)| *reason == row.reason) {
                Some((_, ids)) => ids.push(&row.id),
                None => groups.push((&row.reason, vec![&row.id])),
            }
        }
        groups.into_iter().map(|(reason, ids)| format!("{}: {reason}.", ids.join(", "))).collect()
    }

    /// Each finding in words.
    fn in_words(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        for row in &self.result.rows {
            let mut facts = vec![
                Fact::new(&row.id, &row.title, &row.what),
                Fact::new("published", &row.published, ""),
                Fact::new("verdict", shown(row.verdict), &row.reason),
                Fact::new("rid of it by", &row.remedy, row.price.word()),
            ];
            if !row.stand_in.is_empty() {
                facts.insert(2, Fact::new("stand-in", &row.stand_in, ""));
            }
            for moved in row.contrasts.iter().flat_map(|contrast| &contrast.moved).take(4) {
                let saves = Quantity::of(&moved.saving, Unit::Seconds).inline();
                facts.push(Fact::new("less in", &moved.name, saves));
            }
            blocks.push(Block::Facts(facts));
        }
        blocks
    }

    fn sections(&self, document: &mut Document) {
        document.heading(
            "Findings",
            "known causes of a slow boot. saves: how much less time the part in the column \
                `where` takes without the cause (mean ± 95 % CI, not adjusted). p and verdict: \
                adjusted for multiple comparisons. no difference: these runs show none",
        );
        document.push(Block::Table(self.table()));
        let known = || self.result.rows.iter().filter(|row| is_measured(row.verdict));
        let titles: Vec<Fact> = known()
            .map(|row| Fact::new(&row.id, &row.title, format!("remedy: {}", row.remedy)))
            .collect();
        if !titles.is_empty() {
            let of_spans = |row: &&FindingRow| row.contrasts.iter().any(|c| c.without.is_none());
            let spans: Vec<&str> = known().filter(of_spans).map(|row| row.id.as_str()).collect();
            let note = match spans.is_empty() {
                true => "of the findings that were measured".to_owned(),
                false => {
                    let ids = spans.join(", ");
                    format!(
                        "of the findings that were measured; for {ids}, the column \"saves\" shows \
                            only an upper bound: the time of the cause's spans in your machine's \
                            boot"
                    )
                }
            };
            document.heading("Causes", note);
            document.push(Block::Facts(titles));
        }
        if let Some(table) = self.parts() {
            let contrasts = || self.result.rows.iter().flat_map(|row| &row.contrasts);
            let turned = contrasts().any(|c| c.name.contains(" instead of "));
            let order = if turned {
                "; in a name such as \"1 instead of 4\", the machine with 4 has the cause"
            } else {
                ""
            };
            document.heading(
                "Variants",
                format!(
                    "saves: as above, for each pair of machines; negative: the boot without the \
                        cause takes longer{order}"
                ),
            );
            document.push(Block::Table(table));
        }
        if let Some(table) = self.consoles() {
            let note = match &self.result.console_share {
                Some(share) => format!(
                    "a verbose boot prints {:.0} characters, which take {} of its time",
                    share.bytes.mean,
                    brief_percent(share.share.mean)
                ),
                None => "known amounts, printed by the guest's init".into(),
            };
            document.heading("Consoles", note);
            document.push(Block::Table(table));
        }
        if let Some(table) = self.exact() {
            document.heading(
                "In virtual time",
                "one boot of each machine; one instruction counts as one nanosecond; only pairs of \
                    machines with one vCPU; the column \"most of it in\" names the phase with the largest \
                    saving, and the column \"there\" has the saving in that phase",
            );
            document.push(Block::Table(table));
        }
        let reasons = self.reasons();
        if !reasons.is_empty() {
            document.heading("Skipped", "");
            reasons.into_iter().for_each(|reason| document.push(Block::Paragraph(reason)));
        }
    }

    fn machine_facts(&self) -> Vec<Fact> {
        let result = self.result;
        let mut facts = vec![
            Fact::new("command", vmeter_base::shell::join(&result.envelope.argv), ""),
            Fact::new("started at", &result.envelope.started_at, ""),
            Fact::new("host", crate::phrases::host_line(&result.envelope.host), ""),
            Fact::new(
                "boots",
                result.boots.to_string(),
                format!("in {}", compact_seconds(result.took_s)),
            ),
            Fact::new("published", SOURCE, ""),
        ];
        for ResolvedOption { what, value, note } in &result.machine.chosen {
            facts.push(Fact::new(what, value, note));
        }
        let versions = result.machine.provenance.iter();
        facts.extend(versions.map(|(what, version)| Fact::new(what, version, "")));
        facts
    }
}

/// Its comparisons of which there are blocks.
fn measured(row: &FindingRow) -> impl Iterator<Item = &Contrast> {
    row.contrasts.iter().filter(|contrast| !contrast.samples_s.is_empty())
}

fn place(contrast: &Contrast) -> Cell {
    match contrast.found_in.as_deref() {
        // None: nothing changed, and no phase came near it.
        None | Some("the whole boot") => Cell::Text("the whole boot".into()),
        // As short as its column.
        Some("the VMM's CPU time") => Cell::Text("VMM CPU time".into()),
        Some(span) => Cell::Name(span.into()),
    }
}

/// What was found, in the words of the table: the exports keep theirs.
fn shown(verdict: FindingVerdict) -> &'static str {
    match verdict {
        FindingVerdict::NotReproduced => "no difference",
        FindingVerdict::Inapplicable => "skipped",
        verdict => verdict.word(),
    }
}

fn saving(estimate: &Estimate) -> Cell {
    Cell::Inline(Quantity::of(estimate, Unit::Seconds))
}

fn tone(verdict: FindingVerdict) -> Tone {
    match verdict {
        FindingVerdict::Confirmed => Tone::Normal,
        FindingVerdict::NotReproduced
        | FindingVerdict::Inapplicable
        | FindingVerdict::Unfinished => Tone::Muted,
    }
}

/// vmeter gave the machine the cause: the user's lacks it.
fn is_added(contrast: &Contrast) -> bool {
    contrast.with != BASELINE
}

fn cells(row: &FindingRow) -> Vec<Cell> {
    let verdict_tone =
        if row.verdict == FindingVerdict::Confirmed { Tone::Good } else { Tone::Muted };
    let name = Cell::Name(row.id.clone());
    let chosen = row.contrasts.iter().find(|c| c.saves).or(row.contrasts.first());
    let added = chosen.is_some_and(is_added) && is_measured(row.verdict);
    let verdict = format!("{}{}", shown(row.verdict), if added { " +" } else { "" });
    let verdict = Cell::Toned(verdict, verdict_tone);
    let dash = || Cell::Text("-".into());
    let published = Cell::Text(row.published.clone());
    let Some(contrast) = chosen.filter(|_| is_measured(row.verdict)) else {
        return vec![name, dash(), dash(), dash(), verdict, published, dash(), dash(), dash()];
    };
    let seen = contrast.detectable_s.map_or_else(dash, |s| Cell::Text(compact_seconds(s)));
    vec![
        name,
        saving(&contrast.found),
        place(contrast),
        Cell::Text(p_value(contrast.p_value)),
        verdict,
        published,
        saving(&contrast.saving),
        seen,
        Cell::Text(row.remedy.clone()),
    ]
}

impl Report for FindingsReport<'_> {
    fn envelope(&self) -> &Envelope {
        &self.result.envelope
    }

    fn body(&self) -> Box<dyn erased_serde::Serialize + '_> {
        Box::new(json::Body::of(self.result))
    }

    fn document(&self, detail: Detail) -> Document {
        let title = "vmeter findings".into();
        let mut document = Document { title, answer: self.answer(), blocks: Vec::new() };
        self.sections(&mut document);
        if self.long || detail != Detail::Glance {
            document.heading("Each in words", SOURCE);
            self.in_words().into_iter().for_each(|block| document.push(block));
        }
        if detail == Detail::Full {
            document.push(Block::Folded {
                summary: "Provenance".into(),
                blocks: vec![Block::Facts(self.machine_facts())],
            });
        }
        let FindingsResult { warnings, hints, saved_in, .. } = self.result;
        document.push(Block::Notices(closing_notices(warnings, hints, saved_in)));
        document
    }

    fn records(&self) -> Records {
        let header = vec![
            "finding",
            "comparison",
            "block",
            "with",
            "without",
            "with_s",
            "without_s",
            "verdict",
        ];
        let mut records = Records { header, rows: Vec::new() };
        for row in &self.result.rows {
            let verdict = || Field::text(row.verdict.word());
            if row.contrasts.is_empty() {
                let mut fields = vec![Field::text(&row.id)];
                fields.extend((0..6).map(|_| Field::Empty));
                fields.push(verdict());
                records.rows.push(fields);
            }
            for contrast in &row.contrasts {
                let without = contrast.without.as_deref().unwrap_or_default();
                for (block, (a, b)) in contrast.samples_s.iter().enumerate() {
                    records.rows.push(vec![
                        Field::text(&row.id),
                        Field::text(&contrast.name),
                        Field::number(Some(block)),
                        Field::text(&contrast.with),
                        Field::text(without),
                        Field::number(Some(a)),
                        Field::number(Some(b)),
                        verdict(),
                    ]);
                }
            }
        }
        records
    }
}

/// VMEXITs of one unit; nothing where none were counted.
fn exits(each: Option<&Estimate>) -> Cell {
    each.map_or(Cell::Empty, |each| Cell::Inline(Quantity::of(each, Unit::Count)))
}

/// True for a verdict that has figures.
fn is_measured(verdict: FindingVerdict) -> bool {
    !matches!(verdict, FindingVerdict::Inapplicable | FindingVerdict::Unfinished)
}
