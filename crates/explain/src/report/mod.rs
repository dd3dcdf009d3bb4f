//! `vmeter explain`: what stands out, and the chain of causes with its evidence.

mod blame_tree;
mod json;

use crate::confirm::shows;
use crate::result::{
    Alignment, EventRef, Evidence, ExplainResult, ExplainedFile, Finding, Link, Severity, Step,
    VcpuSplit,
};
use vmeter_base::Envelope;
use vmeter_render::document::{closing_notices, Block, Detail, Document, Fact, Node, Outline};
use vmeter_render::exported::Of;
use vmeter_render::quantity::{brief_percent, brief_seconds, compact_seconds, grouped, percent};
use vmeter_render::{Field, Records, Report};

/// An [`ExplainResult`] to be written.
#[derive(Debug)]
pub struct ExplainReport<'a> {
    /// The result.
    pub result: &'a ExplainResult,
}

impl<'a> ExplainReport<'a> {
    /// The result.
    pub fn new(result: &'a ExplainResult) -> Self {
        ExplainReport { result }
    }

    fn answer(&self) -> String {
        let findings = &self.result.findings;
        match findings.as_slice() {
            [] => format!("Nothing stands out{}.", self.span()),
            [one] => format!("{}.", capital(&one.summary)),
            [first, others @ ..] => {
                let more = match others.iter().filter(|finding| is_worth(finding)).count() {
                    0 => String::new(),
                    1 => " One more thing stands out.".to_owned(),
                    n => format!(" {n} more things stand out."),
                };
                format!("{}.{more}", capital(&first.summary))
            }
        }
    }

    fn span(&self) -> String {
        let events: u64 = self.result.files.iter().map(|file| file.events).sum();
        let events = grouped(&events.to_string());
        match self.result.duration_s {
            Some(seconds) => format!(" in {events} events over {}", compact_seconds(seconds)),
            None => format!(" in {events} events"),
        }
    }

    fn finding(&self, document: &mut Document, number: usize, finding: &Finding, detail: Detail) {
        let note = words(finding);
        match number {
            // Its headline is the answer.
            1 => document.heading(format!("1. {}", capital(&finding.subject)), note),
            _ => document.heading(format!("{number}. {}", capital(&finding.summary)), note),
        }
        if !finding.way.is_empty() {
            document.push(Block::Outline(ways(finding)));
        }
        let mut facts = Vec::new();
        // The way says at a glance what the chain says in full.
        match detail == Detail::Glance && !finding.way.is_empty() {
            true => facts.extend(labelled(finding, detail)),
            false => facts.extend(chain(finding, detail)),
        }
        facts.push(Fact::new("change", finding.suggestion.clone(), ""));
        facts.push(Fact::new("confirm", finding.confirm.clone(), shows(&finding.confirm)));
        facts.extend(see(finding));
        facts.push(saves(finding));
        document.push(Block::Facts(facts));
    }

    /// A line for each further finding that is worth one.
    fn others(&self, document: &mut Document) {
        let others = self.result.findings.get(1..).unwrap_or_default();
        let worth = others.iter().filter(|finding| is_worth(finding));
        let shown: Vec<&Finding> = worth.take(MOST_OTHERS).collect();
        if others.is_empty() {
            return;
        }
        let line = |finding: &&Finding| {
            let share = brief_percent(finding.saving_share);
            Fact::new(share, capital(&finding.summary), words(finding))
        };
        let mut facts: Vec<Fact> = shown.iter().map(line).collect();
        let more = others.len() - shown.len();
        let what = format!(
            "{} more ({}): --export-html",
            grouped(&more.to_string()),
            match shown.len() < MOST_OTHERS {
                true => "small, or about other programs",
                false => "in the report",
            }
        );
        if facts.is_empty() {
            document.push(Block::Paragraph(what));
            return;
        }
        if more > 0 {
            facts.push(Fact::new("…", what, ""));
        }
        document.heading("Also", "share of the traced time");
        document.push(Block::Facts(facts));
    }

    fn vcpus(&self, document: &mut Document, detail: Detail) {
        let all = &self.result.vcpus;
        if all.is_empty() {
            return;
        }
        let shown = if detail == Detail::Full { all.len() } else { all.len().min(MOST_VCPUS) };
        document
            .heading("Time of each vCPU", "100 % is the time for which the trace covers the vCPU");
        let mut facts: Vec<Fact> = all.iter().take(shown).map(vcpu).collect();
        if shown < all.len() {
            let more = grouped(&(all.len() - shown).to_string());
            facts.push(Fact::new("…", format!("{more} more: --export-html or --export-json"), ""));
        }
        document.push(Block::Facts(facts));
    }

    fn followed(&self, document: &mut Document) {
        if self.result.followed.is_empty() {
            return;
        }
        document.heading("Followed", "the threads whose time vmeter explains, and why these");
        let all = self.result.followed.iter();
        let facts = all.map(|one| Fact::new(one.subject.clone(), one.because.clone(), ""));
        document.push(Block::Facts(facts.collect()));
    }

    fn files(&self, document: &mut Document) {
        document.heading("Traces", "all clocks converted to the time base of the first trace");
        let files = self.result.files.iter().map(|file| {
            let lost = match file.lost_events {
                0 => String::new(),
                lost => format!(", {} lost", grouped(&lost.to_string())),
            };
            let events = grouped(&file.events.to_string());
            Fact::new(
                base(&file.file).to_owned(),
                format!("{events} events ({}, {}){lost}", file.format, file.clock),
                aligned(file),
            )
        });
        document.push(Block::Facts(files.collect()));
    }
}

/// Share of the traced time from which a further finding has a line at a glance, and how many have.
const LEAST: f64 = 0.05;
const MOST_OTHERS: usize = 4;

/// A further finding that has a line at a glance: much time, of a program that is much of the load.
fn is_worth(finding: &Finding) -> bool {
    finding.saving_share >= LEAST && finding.after < 3
}

/// How to read a way.
const LEGEND: &str = "each row waits for the next one; columns: the row's wait, and this wait as \
    a share of the first row's total time";

/// Kind, modifier and severity.
fn words(finding: &Finding) -> String {
    let modifier = finding.modifier.map(|modifier| format!(", {}", modifier.name()));
    let modifier = modifier.unwrap_or_default();
    let saves = match finding.severity {
        // What the trace shows may be as it is meant.
        Severity::Low if finding.saving_share >= Severity::Medium.least_share() => {
            " (perhaps intended)".into()
        }
        Severity::Low => String::new(),
        severity => format!(" (could save {:.0} % or more)", 100.0 * severity.least_share()),
    };
    format!("{}{modifier}, {} severity{saves}", finding.kind.name(), finding.severity.name())
}

fn saves(finding: &Finding) -> Fact {
    let share = format!("{} of the traced time", brief_percent(finding.saving_share));
    match (finding.saving_s, finding.saving_ci95_s) {
        // An interval from 0 on bounds nothing.
        (Some(saving), Some([low, high])) if low > 0.0 => {
            let (saving, low) = (brief_seconds(saving), brief_seconds(low));
            let value = format!(
                "at most {saving} (95 % CI of this limit: {low} to {})",
                brief_seconds(high)
            );
            Fact::new("saves", value, share)
        }
        (Some(saving), _) => {
            Fact::new("saves", format!("at most {}", brief_seconds(saving)), share)
        }
        (None, _) => Fact::new("saves", format!("at most {share}"), ""),
    }
}

/// Who waits for whom, each below the one that waits for it; of what else takes time, its two ends.
fn ways(finding: &Finding) -> Outline {
    let mut ways: Vec<Vec<&Step>> = vec![finding.way.iter().collect()];
    for way in &finding.besides {
        ways.push(way.first().into_iter().chain(way.iter().skip(1).last()).collect());
    }
    let ways = ways.into_iter();
    Outline { legend: LEGEND.to_string(), roots: ways.filter_map(way).collect() }
}

fn way(steps: Vec<&Step>) -> Option<Node> {
    let node = |below: Option<Node>, step: &Step| {
        let time = step.time_s.map(|s| format!("{}  ", brief_seconds(s))).unwrap_or_default();
        Some(Node {
            name: format!("{}  {}", step.who, step.doing),
            figures: format!("{time}{}", brief_percent(step.share.min(1.0))),
            children: below.into_iter().collect(),
            ..Node::default()
        })
    };
    steps.into_iter().rev().fold(None, node)
}

/// vCPUs at a glance.
const MOST_VCPUS: usize = 8;

/// Links of what is known at a glance.
const MOST_LINKS: usize = 3;
/// Longest claim at a glance, characters: two lines.
const LONGEST: usize = 160;

/// The links in order; what is inferred and what is not known last.
fn chain(finding: &Finding, detail: Detail) -> Vec<Fact> {
    let full = detail == Detail::Full;
    let told = |link: &&Link| label(&link.claim).is_none();
    let known: Vec<&Link> = finding.chain.iter().filter(told).collect();
    let shown = if full { known.len() } else { known.len().min(MOST_LINKS) };
    let mut facts: Vec<Fact> = Vec::new();
    for (at, link) in known.iter().take(shown).enumerate() {
        let name = if at == 0 { "seen" } else { "because" };
        let note = if full { events(&link.evidence) } else { lost(&link.evidence) };
        facts.push(Fact::new(name, brief(&link.claim, full), note));
    }
    if shown < known.len() {
        let more = known.len() - shown;
        facts.push(Fact::new("…", format!("{more} more: --export-html or --export-json"), ""));
    }
    facts.extend(labelled(finding, detail));
    facts
}

/// What is not known.
fn labelled(finding: &Finding, detail: Detail) -> Vec<Fact> {
    let full = detail == Detail::Full;
    let all = finding.chain.iter().filter_map(|link| label(&link.claim));
    all.map(|(name, claim)| Fact::new(name, brief(claim, full), "")).collect()
}

/// What is not known.
fn label(claim: &str) -> Option<(&'static str, &str)> {
    claim.strip_prefix("not known: ").map(|rest| ("unknown", rest))
}

/// A claim cut at the end of a clause, if it is long.
fn brief(claim: &str, full: bool) -> String {
    if full || claim.chars().count() <= LONGEST {
        return claim.to_owned();
    }
    let end = claim.char_indices().nth(LONGEST).map_or(claim.len(), |(at, _)| at);
    let head = &claim[..end];
    let cut = [", ", "; ", ": "].into_iter().filter_map(|end| head.rfind(end)).max();
    let cut = cut.filter(|cut| *cut * 2 > end).or(head.rfind(' ')).unwrap_or(end);
    format!("{} …", &head[..cut])
}

fn lost(evidence: &Evidence) -> String {
    let lost = evidence.lost_events.map(|lost| grouped(&lost.to_string()));
    lost.map_or(String::new(), |lost| {
        format!("figures are lower bounds, because {lost} events are lost")
    })
}

/// Where to look.
fn see(finding: &Finding) -> Option<Fact> {
    let events = finding.chain.iter().flat_map(|link| &link.evidence.events);
    let event = events.max_by(|a, b| a.age_s.unwrap_or(0.0).total_cmp(&b.age_s.unwrap_or(0.0)))?;
    Some(Fact::new("see", place(event), ""))
}

/// An event's place: `14.800 s after the trace's first event: sched_waking on CPU 1, …`.
fn place(event: &EventRef) -> String {
    let when = match event.age_s {
        Some(age) => format!("{} s after the trace's first event", four_digits(age)),
        None => format!("@{}", event.timestamp),
    };
    let cpu = event.cpu.map(|cpu| format!(" on CPU {cpu}")).unwrap_or_default();
    let thread = event.tid.map(|tid| format!(", thread {tid}")).unwrap_or_default();
    format!("{when}: {}{cpu}{thread}, in {}", event.event, base(&event.file))
}

/// Seconds to be found again in a trace: to the millisecond.
fn four_digits(seconds: f64) -> String {
    format!("{seconds:.3}")
}

fn events(evidence: &Evidence) -> String {
    let mut notes: Vec<String> = evidence.events.iter().map(place).collect();
    notes.extend(Some(lost(evidence)).filter(|lost| !lost.is_empty()));
    notes.join("; ")
}

/// A file's name without its folders.
fn base(file: &str) -> &str {
    file.rsplit('/').next().unwrap_or(file)
}

fn vcpu(vcpu: &VcpuSplit) -> Fact {
    let parts = vcpu.parts.iter().filter(|part| part.share >= 0.001);
    let parts: Vec<String> =
        parts.map(|part| format!("{} {}", part.name, percent(part.share))).collect();
    let total = vcpu.total_s.map(compact_seconds).unwrap_or_default();
    Fact::new(vcpu.vcpu.clone(), parts.join(", "), total)
}

fn aligned(file: &ExplainedFile) -> String {
    let Alignment { method, offset_s, drift_ppm, error_s, pairs } = &file.alignment;
    if method == "reference" || method == "none" {
        return method.clone();
    }
    let error = match error_s {
        Some(0.0) => "exact".to_owned(),
        Some(error) => format!("±{}", compact_seconds(*error)),
        None => "error unknown".to_owned(),
    };
    let pairs = match pairs {
        0 => String::new(),
        pairs => format!(", {pairs} pairs"),
    };
    format!("{method}: offset {offset_s} s, drift {drift_ppm:.3} ppm, {error}{pairs}")
}

/// Words that sentences begin with here; all others are names, spelled as they are.
const WORDS: [&str; 12] = [
    "a",
    "all",
    "an",
    "cycles",
    "each",
    "interrupts",
    "nothing",
    "one",
    "others",
    "port",
    "the",
    "threads",
];

fn capital(text: &str) -> String {
    if !text.split([' ', ',']).next().is_some_and(|first| WORDS.contains(&first)) {
        return text.to_string();
    }
    let mut rest = text.chars();
    rest.next().map(|first| first.to_uppercase().chain(rest).collect()).unwrap_or_default()
}

impl Report for ExplainReport<'_> {
    fn envelope(&self) -> &Envelope {
        &self.result.envelope
    }

    fn body(&self) -> Box<dyn erased_serde::Serialize + '_> {
        Box::new(json::Body::of(self.result))
    }

    fn document(&self, detail: Detail) -> Document {
        let files: Vec<&str> = self.result.files.iter().map(|file| file.file.as_str()).collect();
        let mut document = Document {
            title: format!("vmeter explain {}", files.join(" ")),
            answer: self.answer(),
            ..Document::default()
        };
        let (glance, found) = (detail == Detail::Glance, !self.result.findings.is_empty());
        let whole = if glance { 1 } else { usize::MAX };
        for (number, finding) in self.result.findings.iter().enumerate().take(whole) {
            self.finding(&mut document, number + 1, finding, detail);
        }
        if glance {
            self.others(&mut document);
        }
        if detail == Detail::Full {
            blame_tree::pictures(&mut document, self.result);
        }
        if !(glance && found) {
            self.followed(&mut document);
        }
        self.vcpus(&mut document, detail);
        if !(glance && found && self.result.files.len() < 2) {
            self.files(&mut document);
        }
        document.push(Block::Notices(closing_notices(&self.result.warnings, &[], "")));
        document
    }

    fn records(&self) -> Records {
        let links = (1_u64..).zip(&self.result.findings).flat_map(|(number, finding)| {
            (1_u64..).zip(&finding.chain).map(move |(at, link)| (number, finding, at, link))
        });
        Records::of(
            links,
            [
                ("finding", |(number, _, _, _)| Field::number(Some(number))),
                ("kind", |(_, finding, _, _)| Field::text(finding.kind.name())),
                ("severity", |(_, finding, _, _)| Field::text(finding.severity.name())),
                ("subject", |(_, finding, _, _)| Field::text(&finding.subject)),
                ("saving_s", |(_, finding, _, _)| Field::number(finding.saving_s)),
                ("saving_share", |(_, finding, _, _)| Field::number(Some(finding.saving_share))),
                ("link", |(_, _, at, _)| Field::number(Some(at))),
                ("claim", |(_, _, _, link)| Field::text(&link.claim)),
                ("count", |(_, _, _, link)| Field::number(link.evidence.count)),
                ("total_s", |(_, _, _, link)| Field::number(link.evidence.total_s)),
                ("suggestion", |(_, finding, _, _)| Field::text(&finding.suggestion)),
                ("confirm", |(_, finding, _, _)| Field::text(&finding.confirm)),
            ],
        )
    }
}
