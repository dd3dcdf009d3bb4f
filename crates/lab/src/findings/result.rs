//! From saved boots to what is said of each finding. Live and old sessions both come through
//! here.

use super::blocks::{self, Booted};
use super::catalogue::{self, Finding};
use super::config::Config;
use super::consoles;
use super::gate::{decide, Boot, Decision, Question, PART_MATTERS_S};
use super::plan::BASELINE;
use crate::ends::Ends;
use anyhow::Result;
use std::collections::BTreeMap;
use vmeter_model::findings::{
    ConsoleCost, ConsoleShare, Contrast, ExactContrast, FindingRow, FindingsResult, Moved,
    PlannedContrast, PlannedFinding, Price,
};
use vmeter_model::time::seconds;
use vmeter_model::FindingVerdict;
use vmeter_render::quantity::{compact_seconds, p_value};
use vmeter_session::{envelope, Session};
use vmeter_stats::{estimate, estimate_signed};
use vmeter_timeline::registry;

/// Blocks without which nothing has a deviation.
const FEWEST: usize = 2;
/// Count of a run: all VMEXITs of its vCPUs.
const EXITS: &str = "exits";

/// The result of a saved session.
///
/// # Errors
/// When the session's folder cannot be read or holds no finished run.
pub fn result(session: &Session) -> Result<FindingsResult> {
    let config: Config = session.asked()?;
    let (booted, mut warnings) = blocks::of(session, config.timed)?;
    if booted.is_empty() {
        return Err(session.no_runs(&warnings));
    }
    let (all, _) = session.finished()?;
    warnings.extend(crate::missing::warning(session, &all));
    let all = Runs { booted: &booted };
    let rows = all.rows(&config);
    let consoles = all.consoles(&config);
    warnings.extend(all.silent(&config));
    let own = !config.spec.command.is_empty();
    let baseline: Vec<f64> = all.of(BASELINE).values().map(|boot| boot.total).collect();
    let begin = booted.iter().map(|one| one.span_ns.0).min().unwrap_or(0);
    let end = booted.iter().map(|one| one.span_ns.1).max().unwrap_or(0);
    let machine = session.record.machines.iter().find(|m| m.label == BASELINE);
    let mut result = FindingsResult {
        envelope: envelope::envelope(&session.record),
        machine: machine.cloned().unwrap_or_default(),
        own,
        baseline: (!baseline.is_empty()).then(|| estimate(&baseline)),
        console_share: all.console_share(&config, &consoles),
        consoles,
        boots: booted.len(),
        took_s: seconds(end - begin),
        hints: Vec::new(),
        saved_in: session.dir.display().to_string(),
        warnings,
        rows,
    };
    if own {
        cheapest_first(&mut result.rows);
    }
    result.hints = hints(&result);
    Ok(result)
}

/// What applies comes first; of that the cheapest, of these what saves most.
fn cheapest_first(rows: &mut [FindingRow]) {
    let saved = |row: &FindingRow| row.contrasts.first().map_or(0.0, |c| c.saving.mean);
    rows.sort_by(|a, b| {
        let key = |row: &FindingRow| (row.verdict == FindingVerdict::Inapplicable, row.price);
        key(a).cmp(&key(b)).then(saved(b).total_cmp(&saved(a)))
    });
}

fn hints(result: &FindingsResult) -> Vec<String> {
    let dir = vmeter_base::shell::path(std::path::Path::new(&result.saved_in));
    let contrast = result.rows.iter().flat_map(|row| &row.contrasts).find(|c| c.saves);
    let pair = contrast.and_then(|c| Some((c.with.clone(), c.without.clone()?)));
    let side = |label: &str| vmeter_base::shell::quote(&format!("{}#{label}", result.saved_in));
    let diff = pair.map(|(a, b)| {
        format!("vmeter diff {} {}  # the spans and times that differ", side(&a), side(&b))
    });
    let long = format!("vmeter show {dir} --long  # what each finding changes, and its figures");
    diff.into_iter().chain([long]).collect()
}

/// The boots of a session, to compare.
struct Runs<'a> {
    booted: &'a [Booted],
}

/// What is asked of a contrast, by blocks that both machines have.
struct Paired<'a> {
    with: Vec<&'a Boot>,
    without: Option<Vec<&'a Boot>>,
}

impl<'a> Runs<'a> {
    /// A machine's boots that reached their end, by block.
    fn of(&self, label: &str) -> BTreeMap<u32, &'a Boot> {
        let own = self.booted.iter().filter(|one| one.label == label && one.is_done());
        own.filter_map(|one| Some((one.block?, &one.boot))).collect()
    }

    /// What was counted in these boots.
    fn counts(&self, label: &str) -> BTreeMap<u32, &'a BTreeMap<String, f64>> {
        let own = self.booted.iter().filter(|one| one.label == label && one.is_done());
        own.filter_map(|one| Some((one.block?, &one.figures.run.counts))).collect()
    }

    /// VMEXITs that a unit takes, block by block, where KVM counted them.
    fn exits_per_unit(&self, planned: &PlannedContrast) -> Option<vmeter_model::Estimate> {
        let (units, _) = planned.units.as_ref()?;
        let (with, without) = (self.counts(&planned.with), self.counts(planned.without.as_ref()?));
        let exits = |counts: &BTreeMap<String, f64>| counts.get(EXITS).copied();
        let more = |(block, counts): (&u32, &&BTreeMap<String, f64>)| {
            Some((exits(counts)? - exits(without.get(block)?)?) / units)
        };
        let each: Vec<f64> = with.iter().filter_map(more).collect();
        (!each.is_empty()).then(|| estimate_signed(&each))
    }

    fn rows(&self, config: &Config) -> Vec<FindingRow> {
        let contrasts: Vec<&PlannedContrast> =
            config.findings.iter().flat_map(|finding| &finding.contrasts).collect();
        let paired: Vec<Paired<'a>> = contrasts.iter().map(|c| self.paired(c)).collect();
        let questions: Vec<Question<'_>> = paired
            .iter()
            .zip(&contrasts)
            .map(|(pair, contrast)| Question {
                with: &pair.with,
                without: pair.without.as_deref(),
                expected: &contrast.expected,
            })
            .collect();
        let mut decided = contrasts
            .iter()
            .zip(decide(&questions))
            .zip(&paired)
            .map(|((contrast, decision), pair)| self.contrast(contrast, decision, pair));
        let mut rows = Vec::new();
        for planned in &config.findings {
            let own = decided.by_ref().take(planned.contrasts.len()).collect();
            rows.push(self.row(planned, own));
        }
        rows
    }

    fn paired(&self, contrast: &PlannedContrast) -> Paired<'a> {
        let with = self.of(&contrast.with);
        let Some(without) = &contrast.without else {
            return Paired { with: with.into_values().collect(), without: None };
        };
        let without = self.of(without);
        let both: Vec<(&Boot, &Boot)> =
            with.iter().filter_map(|(block, a)| Some((*a, *without.get(block)?))).collect();
        let (with, without) = both.into_iter().unzip();
        Paired { with, without: Some(without) }
    }

    fn contrast(
        &self,
        planned: &PlannedContrast,
        decision: Decision,
        pair: &Paired<'_>,
    ) -> Contrast {
        let with: Vec<f64> = pair.with.iter().map(|boot| boot.total).collect();
        let part = |boot: &&Boot| -> f64 {
            planned.expected.iter().filter_map(|name| boot.parts.get(name)).sum()
        };
        let without: Vec<f64> = match &pair.without {
            Some(without) => without.iter().map(|boot| boot.total).collect(),
            None => pair.with.iter().map(|boot| boot.total - part(boot)).collect(),
        };
        let saving: Vec<f64> = with.iter().zip(&without).map(|(a, b)| a - b).collect();
        let (found, found_in) = found(&decision);
        let exact = planned.exact.as_ref().and_then(|(a, b)| match planned.without {
            Some(_) => self.exact(a, b),
            None => self.exact_part(a, &planned.expected),
        });
        // Counted and not timed: there is nothing to test.
        let samples_s: Vec<(f64, f64)> =
            with.iter().copied().zip(without.iter().copied()).collect();
        let unseen = is_unseen(planned.without.as_deref(), &samples_s);
        let matters = exact.as_ref().is_some_and(|exact| exact.saving_s >= PART_MATTERS_S);
        let p_value = if unseen && matters { f64::NAN } else { decision.p_value };
        let unit = planned.units.as_ref().map(|(units, name)| (name.clone(), per(found, *units)));
        Contrast {
            name: planned.name.clone(),
            with: planned.with.clone(),
            without: planned.without.clone(),
            baseline: estimate(&with),
            changed: estimate(&without),
            saving: estimate_signed(&saving),
            cpu_saving: decision.cpu_saving,
            found,
            found_in,
            moved: decision.moved,
            p_value,
            detectable_s: decision.detectable.as_ref().map(|d| d.0).or(decision.detectable_whole_s),
            detectable_in: decision.detectable.map(|d| d.1),
            detectable_whole_s: decision.detectable_whole_s,
            unit,
            exits_per_unit: self.exits_per_unit(planned),
            exact,
            samples_s,
            saves: decision.saves,
            costs: decision.costs,
        }
    }

    /// The boot of a machine in virtual time.
    fn in_virtual_time(&self, label: &str) -> Option<&'a Boot> {
        let own = |one: &&Booted| one.label == label && one.block.is_none() && one.is_done();
        self.booted.iter().find(own).map(|one| &one.boot)
    }

    /// The same two machines in virtual time.
    fn exact(&self, with: &str, without: &str) -> Option<ExactContrast> {
        let (a, b) = (self.in_virtual_time(with)?, self.in_virtual_time(without)?);
        let of = |boot: &Boot, name: &str| boot.parts.get(name).copied().unwrap_or(0.0);
        let phases = a.phases.union(&b.phases).map(|name| (name, of(a, name) - of(b, name)));
        let (phase, phase_saving_s) = phases.max_by(|x, y| x.1.abs().total_cmp(&y.1.abs()))?;
        Some(ExactContrast {
            saving_s: a.total - b.total,
            baseline_s: a.total,
            phase: phase.clone(),
            phase_saving_s,
        })
    }

    /// The parts of a machine's boot in virtual time that are expected.
    fn exact_part(&self, label: &str, expected: &[String]) -> Option<ExactContrast> {
        let boot = self.in_virtual_time(label)?;
        let parts = expected.iter().filter_map(|name| Some((name, *boot.parts.get(name)?)));
        let (phase, _) = parts.clone().max_by(|x, y| x.1.total_cmp(&y.1))?;
        let saving_s = parts.map(|(_, s)| s).sum();
        let (baseline_s, phase) = (boot.total, phase.clone());
        Some(ExactContrast { saving_s, baseline_s, phase, phase_saving_s: saving_s })
    }

    fn row(&self, planned: &PlannedFinding, contrasts: Vec<Contrast>) -> FindingRow {
        let known = catalogue::named(&planned.id);
        let (verdict, reason) = self.verdict(planned, &contrasts);
        let words = |of: fn(&Finding) -> &'static str| known.map_or("", of).to_owned();
        FindingRow {
            id: planned.id.clone(),
            title: known
                .map_or_else(|| planned.id.clone(), |finding| finding.cause.title.to_owned()),
            what: words(|finding| finding.what),
            published: words(|finding| finding.published),
            stand_in: words(|finding| finding.stand_in),
            expected: planned.contrasts.first().map(|c| c.expected.clone()).unwrap_or_else(|| {
                known.map_or(&[][..], |f| f.expected).iter().map(|s| (*s).to_owned()).collect()
            }),
            price: known.map_or(Price::OtherMachine, |finding| finding.price),
            remedy: words(|finding| finding.remedy),
            contrasts,
            verdict,
            reason,
        }
    }

    /// By the headline, or another of its comparisons if only that one is decided.
    fn verdict(&self, planned: &PlannedFinding, all: &[Contrast]) -> (FindingVerdict, String) {
        if let Some(why) = &planned.inapplicable {
            return (FindingVerdict::Inapplicable, why.clone());
        }
        let Some(first) = all.first() else {
            let why = "this session has no machines to compare for this finding";
            return (FindingVerdict::Inapplicable, why.into());
        };
        if first.samples_s.is_empty() {
            let labels = [Some(&first.with), first.without.as_ref()];
            let why = labels.into_iter().flatten().find_map(|label| self.failure(label));
            return match why {
                Some(why) => (FindingVerdict::Inapplicable, why),
                None => (
                    FindingVerdict::Unfinished,
                    "not measured yet: no block (one boot of each machine) is finished".into(),
                ),
            };
        }
        if first.samples_s.len() < FEWEST {
            let why = "one block of runs cannot show a difference: use --runs 5 or more, or \
                finish this session with --resume"
                .into();
            return (FindingVerdict::Unfinished, why);
        }
        if let Some(why) = all.iter().find_map(|contrast| self.differ(contrast)) {
            return (FindingVerdict::Inapplicable, why);
        }
        if is_unseen(first.without.as_deref(), &first.samples_s) && !first.p_value.is_nan() {
            let why = format!(
                "no boot of this machine shows time in {}",
                planned.contrasts.first().map_or(String::new(), |c| c.expected.join(", "))
            );
            return (FindingVerdict::Inapplicable, why);
        }
        match all.iter().find(|contrast| contrast.saves) {
            Some(found) => (FindingVerdict::Confirmed, confirmed(found)),
            None if first.p_value.is_nan() => (FindingVerdict::Confirmed, by_virtual_time(first)),
            None => (FindingVerdict::NotReproduced, not_reproduced(first)),
        }
    }

    /// Why the times of a contrast's machines are no times of the same, if so: a failed boot is
    /// left out here, as its blocks are.
    fn differ(&self, contrast: &Contrast) -> Option<String> {
        let ends = |label: &str| {
            let own = self.booted.iter().filter(|one| one.label == label && one.is_done());
            Ends::of_swept(own.map(|one| &one.figures.run))
        };
        let with = (contrast.with.as_str(), &ends(&contrast.with));
        let without = contrast.without.as_deref().unwrap_or(&contrast.with);
        Ends::differ(with, (without, &ends(without)))
    }

    /// How the first boot of this machine ended that was none.
    fn failure(&self, label: &str) -> Option<String> {
        let own = self.booted.iter().find(|one| one.label == label && !one.is_done())?;
        let run = &own.figures.run;
        let text = crate::phrases::ended_text(&run.outcome, run.end.as_ref()).unwrap_or_default();
        Some(format!("on this host, {label} does not boot to its end: {text}"))
    }

    fn consoles(&self, config: &Config) -> Vec<ConsoleCost> {
        let silent = self.counts(BASELINE);
        let mut printed = Vec::new();
        for label in &config.printing {
            let (boots, counts) = (self.of(label), self.counts(label));
            printed.extend(boots.iter().filter_map(|(block, boot)| {
                let counts = counts.get(block)?;
                let silent = silent.get(block).copied();
                Some(consoles::Printed { parts: &boot.parts, counts, silent })
            }));
        }
        consoles::costs(&printed)
    }

    /// Machines that print and never got to their end: what was not measured, and why.
    fn silent(&self, config: &Config) -> Vec<String> {
        let ended = |label: &&String| self.of(label).is_empty();
        config.printing.iter().filter(ended).filter_map(|label| self.failure(label)).collect()
    }

    /// Of the boot that prints its whole log.
    fn console_share(&self, config: &Config, costs: &[ConsoleCost]) -> Option<ConsoleShare> {
        let cost = consoles::of_log(costs)?;
        let verbose =
            config.findings.iter().find(|finding| finding.id == registry::CONSOLE_LOG.id)?;
        let label = &verbose.contrasts.first()?.with;
        let own = self.booted.iter().filter(|one| one.label == *label && one.is_done());
        let known: Vec<(f64, f64)> = own
            .filter_map(|one| {
                let run = &one.figures.run;
                Some((*run.counts.get("console_bytes")?, run.total_s))
            })
            .collect();
        let bytes: Vec<f64> = known.iter().map(|(bytes, _)| *bytes).collect();
        let shares: Vec<f64> = known.iter().map(|(bytes, total)| bytes * cost / total).collect();
        (!known.is_empty())
            .then(|| ConsoleShare { bytes: estimate(&bytes), share: estimate(&shares) })
    }
}

/// True for a part of a boot that took no time in any boot.
fn is_unseen(without: Option<&str>, samples_s: &[(f64, f64)]) -> bool {
    without.is_none() && samples_s.iter().all(|(with, without)| with == without)
}

fn per(of: vmeter_model::Estimate, units: f64) -> vmeter_model::Estimate {
    let [low, high] = of.ci95;
    vmeter_model::Estimate {
        mean: of.mean / units,
        median: of.median / units,
        sd: of.sd / units,
        ci95: [low / units, high / units],
        min: of.min / units,
        max: of.max / units,
        n: of.n,
    }
}

/// What is saved where it is resolved best, and where that is. Of what is not decided, that which
/// came nearest, so that the p-value beside it is its own.
fn found(decision: &Decision) -> (vmeter_model::Estimate, Option<String>) {
    // A part that got faster is not what a slower boot costs.
    let agrees = |moved: &&Moved| (moved.saving.mean < 0.0) == decision.costs;
    if let Some(moved) = decision.moved.iter().find(agrees) {
        return (moved.saving, Some(moved.name.clone()));
    }
    if decision.whole_changed {
        return (decision.saving, Some("the whole boot".into()));
    }
    if decision.cpu_changed {
        return (decision.cpu_saving, Some("the VMM's CPU time".into()));
    }
    match decision.nearest.clone() {
        Some((saving, name)) => (saving, Some(name)),
        None => (decision.saving, None),
    }
}

fn confirmed(found: &Contrast) -> String {
    let place = found.found_in.as_deref().unwrap_or("all");
    let name = if found.name.is_empty() { String::new() } else { format!("{}: ", found.name) };
    let less = compact_seconds(found.found.mean);
    format!("{name}{less} less in {place} (p {})", signed_p(found.p_value))
}

fn by_virtual_time(first: &Contrast) -> String {
    let exact = first.exact.as_ref();
    let (saved, phase) = exact.map_or((0.0, ""), |exact| (exact.saving_s, exact.phase.as_str()));
    format!(
        "one boot ran in virtual time, and spent {} in {phase}; the other boots ran in real time \
            (--watch light), and do not show this phase",
        compact_seconds(saved)
    )
}

fn signed_p(p: f64) -> String {
    match p_value(p) {
        text if text.starts_with('<') => text,
        text => format!("= {text}"),
    }
}

fn not_reproduced(first: &Contrast) -> String {
    let whole =
        first.detectable_whole_s.map(|s| format!("{} in the whole boot", compact_seconds(s)));
    let part = first.detectable_in.as_ref().zip(first.detectable_s);
    let part = part.map(|(name, s)| format!("{} in {name}", compact_seconds(s)));
    let least: Vec<String> = part.into_iter().chain(whole).collect();
    let seen = match least.is_empty() {
        false => format!("vmeter would have seen a saving of at least {}", least.join(", or ")),
        true => "these runs are too few to show a difference".into(),
    };
    if first.costs {
        return format!(
            "the machine without the cause takes {} more in {} (p {})",
            compact_seconds(-first.found.mean),
            first.found_in.as_deref().unwrap_or("the whole boot"),
            signed_p(first.p_value)
        );
    }
    format!("no saving was found; {seen}")
}
