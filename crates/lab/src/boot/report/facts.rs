//! What was booted, where, and how each of it is changed.

use super::{BootReport, Facts};
use crate::gate::runs_wanted;
use crate::phrases::host_line;
use crate::phrases::plain;
use crate::verdict::slow_runs;
use vmeter_base::shell;
use vmeter_model::result::Overhead;
use vmeter_model::run::WatchLevel;
use vmeter_model::time::seconds;
use vmeter_model::OverheadVerdict;
use vmeter_render::document::Fact;
use vmeter_render::quantity::{added_percent, compact_seconds, Quantity, Unit};
use vmeter_stats::MeanRatio;

impl BootReport<'_> {
    /// The header: host, everything chosen for the machine, watch level.
    pub(super) fn facts(&self) -> Facts {
        let machine = &self.result.machine;
        let mut facts = Vec::new();
        let host = host_line(&self.result.envelope.host);
        if !host.is_empty() {
            facts.push(Fact::new("host", host, ""));
        }
        facts.extend(machine.chosen.iter().map(|c| Fact::new(&c.what, &c.value, &c.note)));
        for name in ["vmm", "firmware", "kernel"] {
            let known = machine.chosen.iter().any(|chosen| chosen.what == name);
            if let Some(version) = machine.provenance.get(name).filter(|_| !known) {
                facts.push(Fact::new(name, version, format!("--{name}")));
            }
        }
        if let Some(run) = self.result.runs.first() {
            if !run.record.injected.is_empty() {
                let added = run.record.injected.join(", ");
                facts.push(Fact::new("added to it", added, "--no-inject adds nothing"));
            }
            facts.push(watch_fact(run.record.watch, self.result.overhead.as_ref()));
            facts.extend(self.looked());
            let count = run.record.probes;
            let asked =
                || Fact::new("asked first", format!("{count} VMMs, which ran no guest"), "");
            facts.extend((count > 0).then(asked));
            facts.extend(self.result.counted_in.map(|run| {
                let counting =
                    self.result.overhead.as_ref().and_then(|o| o.counting_ratio.as_ref());
                let cost = counting.map_or_else(String::new, |ratio| {
                    format!("; counting adds {} to its wall time", added_percent(ratio))
                });
                let value = format!(
                    "instructions, counted in run {run}, which is a separate \
                    boot{cost}"
                );
                Fact::new(
                    "counted",
                    value,
                    "because of --watch full; none of the times below come from \
                    this boot",
                )
            }));
        }
        facts.extend(self.resources());
        facts
    }

    /// CPU time, memory and steal: means over the runs.
    fn resources(&self) -> Option<Fact> {
        let runs = self.shown_runs();
        let n = runs.len() as f64;
        if runs.is_empty() {
            return None;
        }
        let mean = |get: fn(&vmeter_model::RunRecord) -> f64| {
            runs.iter().map(|run| get(&run.record)).sum::<f64>() / n
        };
        if !runs.iter().any(|run| run.record.origin.is_ours()) {
            return None;
        }
        let rss = runs.iter().map(|run| run.record.usage.max_rss_bytes).max().unwrap_or(0);
        let value = format!(
            "{} user + {} system CPU time, peak RSS {}, {} stolen by the host",
            compact_seconds(mean(|r| r.usage.user_s)),
            compact_seconds(mean(|r| r.usage.system_s)),
            Quantity::exact(rss as f64, Unit::Bytes).inline(),
            compact_seconds(mean(|r| r.steal_s)),
        );
        let waited = mean(|r| r.cpu_pressure_s.unwrap_or(f64::NAN));
        let value = if waited.is_finite() {
            format!(
                "{value}; for {} of the run, a task of the host waited for a CPU",
                compact_seconds(waited)
            )
        } else {
            value
        };
        Some(Fact::new("used", value, ""))
    }

    /// Versions, digests, arguments: everything needed to do it again.
    pub(super) fn provenance_facts(&self) -> Facts {
        let result = self.result;
        let mut facts = vec![
            Fact::new("command", shell::join(&result.envelope.argv), ""),
            Fact::new("started at", &result.envelope.started_at, ""),
            Fact::new("saved in", &result.saved_in, ""),
            Fact::new("machine", shell::join(&result.machine.argv), "as without watching"),
        ];
        if let Some(run) = result.runs.first() {
            facts.push(Fact::new("as executed", shell::join(&run.record.argv), ""));
            let sources = run.record.sources.iter().map(|source| {
                // A source without an error of its own has one for each event.
                let error = match source.error_ns {
                    0 => String::new(),
                    ns => format!("error at most {}", compact_seconds(ns as f64 / 1e9)),
                };
                Fact::new(format!("source {}", source.name), &source.clock, error)
            });
            facts.extend(sources);
        }
        let versions = result.envelope.provenance.iter().chain(&result.machine.provenance);
        facts.extend(versions.map(|(name, version)| Fact::new(name, version, "")));
        let host = result.envelope.host.iter();
        facts.extend(host.map(|(name, value)| Fact::new(format!("host {name}"), plain(value), "")));
        facts
    }
}

impl BootReport<'_> {
    /// How long vmeter looked into VMMs whose guests were done, where a user notices it.
    fn looked(&self) -> Option<Fact> {
        let runs = self.result.runs.iter().map(|run| &run.record);
        let longest = runs.max_by_key(|record| record.looked_ns)?;
        (longest.looked_ns > longest.total_ns / 100).then(|| {
            let took = compact_seconds(seconds(longest.looked_ns));
            Fact::new("looked into", format!("for {took} after its end"), "no part of a total")
        })
    }
}

/// The level's name, as the option spells it.
pub(crate) fn watch_name(watch: WatchLevel) -> &'static str {
    match watch {
        WatchLevel::None => "none",
        WatchLevel::Light => "light",
        WatchLevel::Full => "full",
    }
}

/// Whether that is the cost of this level. The boots that `full` times are watched lightly: its
/// cost is theirs.
pub(super) fn is_of(overhead: &Overhead, watch: WatchLevel) -> bool {
    overhead.watch == watch || (watch == WatchLevel::Light && overhead.counting_ratio.is_some())
}

/// That pairs did not tell on which side of the bound it is, and how many would.
fn undecided(overhead: &Overhead) -> String {
    let (bound, ratio) = (overhead.bound_pct, &overhead.ratio);
    let limit = 1.0 + bound / 100.0;
    let more = runs_wanted(limit, ratio.mean, ratio.ci95, overhead.pairs);
    let more = match more {
        Some(n) => format!(
            "if the observed ratio is the true one, about {n} pairs of runs would give a verdict"
        ),
        None => "the ratio is so close to the bound that no number of pairs can decide".into(),
    };
    let tail = slow_boots(overhead).map(|tail| format!("; {tail}")).unwrap_or_default();
    format!(
        "; the pairs do not show whether watching adds more than {bound:.0} % of \
         wall time; {more}{tail}"
    )
}

/// Boots that are slow beyond the others, which the typical boot does not show.
fn slow_boots(overhead: &Overhead) -> Option<String> {
    let pairs: Vec<(f64, f64)> = overhead.samples_s.iter().map(|(w, bare)| (*bare, *w)).collect();
    let found = MeanRatio::of_pairs(&pairs).filter(MeanRatio::has_slow)?;
    slow_runs(["the unwatched guest", "the watched guest"], found.slow, found.slow_p_value())
}

pub(crate) fn watch_fact(watch: WatchLevel, overhead: Option<&Overhead>) -> Fact {
    let name = watch_name(watch);
    let (value, how) = match overhead.filter(|measured| is_of(measured, watch)) {
        Some(overhead) => {
            let day = overhead.measured_at.split('T').next().unwrap_or_default();
            let bound = overhead.bound_pct;
            let (verdict, open) = match overhead.verdict {
                Some(OverheadVerdict::Within) => {
                    (format!(" (at most {bound:.0} %)"), String::new())
                }
                Some(OverheadVerdict::Exceeds) => {
                    (format!(" (more than {bound:.0} %)"), String::new())
                }
                Some(OverheadVerdict::Undecided) => (String::new(), undecided(overhead)),
                None => (String::new(), String::new()),
            };
            let cost = format!(
                "{name}; watching adds {} of wall time{verdict} and {} of CPU time ({} pairs, \
                 {day}){open}",
                added_percent(&overhead.ratio),
                added_percent(&overhead.cpu_ratio),
                overhead.pairs,
            );
            (cost, "--overhead measures it again")
        }
        None if watch == WatchLevel::None => (name.to_owned(), "nothing is attached"),
        None => (format!("{name}; its cost was not measured yet"), "--overhead measures it"),
    };
    Fact::new("watch", value, format!("--watch light|full|none; {how}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmeter_model::Estimate;
    use vmeter_stats::estimate;

    #[test]
    fn what_pairs_did_not_tell_has_the_number_that_would() {
        let ratio = |mean: f64, ci95: [f64; 2]| Estimate { mean, ci95, ..estimate(&[mean]) };
        let overhead = |ratio: Estimate| Overhead {
            watch: WatchLevel::Light,
            cpu_ratio: ratio,
            ratio,
            verdict: Some(OverheadVerdict::Undecided),
            bound_pct: 3.0,
            pairs: 40,
            measured_at: String::new(),
            samples_s: Vec::new(),
            counting_ratio: None,
        };
        let said = undecided(&overhead(ratio(1.01, [0.98, 1.04])));
        assert!(
            said.contains(
                "if the observed ratio is the true one, about 188 pairs of runs would give a verdict"
            ),
            "{said}"
        );
        let said = undecided(&overhead(ratio(1.03, [0.9, 1.2])));
        assert!(said.contains("so close to the bound that no number"), "{said}");
    }
}
