//! From a saved boot's runs to its result. Live and old sessions both come through here.

use super::beside::beside;
use super::config::Config;
use super::overhead;
use crate::analysis::{activities, analyse_run, counts, phases};
use crate::boots::watched;
use crate::counting;
use crate::missing;
use anyhow::Result;
use std::path::PathBuf;
use vmeter_model::result::{AnalysedRun, BootResult, Envelope};
use vmeter_model::run::{Outcome, PlannedRun, RunRecord, SessionMachine, WatchLevel};
use vmeter_model::time::seconds;
use vmeter_model::Timeline;
use vmeter_session::envelope::envelope;
use vmeter_session::failure::usage;
use vmeter_session::Session;
use vmeter_stats::estimate;
use vmeter_timeline::NamedMark;

/// The result of a saved `vmeter boot` (of its first machine, runs that were watched).
///
/// # Errors
/// When the session's folder cannot be read or holds no finished run.
pub fn result(session: &Session) -> Result<BootResult> {
    marked(session, &[])
}

/// As [`result`], with more moments to be marked, each `NAME=REGEX`; one of a name that was
/// asked for before takes its place.
///
/// # Errors
/// As [`result`]; class usage: a mark that is none.
pub fn marked(session: &Session, marks: &[String]) -> Result<BootResult> {
    NamedMark::parse_all(marks).map_err(usage)?;
    let (mut finished, unread) = session.finished()?;
    let name = |mark: &String| mark.split('=').next().unwrap_or_default().trim().to_owned();
    for (_, record) in finished.iter_mut().filter(|_| !marks.is_empty()) {
        record.marks.retain(|old| marks.iter().all(|new| name(new) != name(old)));
        record.marks.extend(marks.iter().cloned());
    }
    let missing = missing::warning(session, &finished);
    let asked = session.asked::<Config>().ok().and_then(|config| config.repeats.runs);
    let cost = overhead::of(session, &finished, asked);
    let beside = beside(session, &finished);
    let machine = session.record.machines.first().cloned().unwrap_or_default();
    let watched = finished.iter().any(|(_, r)| r.watch != WatchLevel::None);
    let mut own: Vec<(PathBuf, RunRecord)> = finished
        .into_iter()
        .filter(|(_, r)| r.label == machine.label)
        .filter(|(_, r)| !watched || r.watch != WatchLevel::None)
        .collect();
    let counted = own
        .iter()
        .find(|(_, r)| r.warmup && r.watch == WatchLevel::Full)
        .map(|(dir, record)| analyse_run(dir, record.clone()));
    // Where nothing was measured, what there is.
    if own.iter().any(|(_, r)| r.is_told()) {
        own.retain(|(_, r)| r.is_told());
    }
    let mut runs: Vec<AnalysedRun> =
        own.into_iter().map(|(dir, record)| analyse_run(&dir, record)).collect();
    let counted = counted.filter(|counted| counting::is_separate(counted, &runs));
    if let Some(counted) = &counted {
        runs.iter_mut().for_each(|run| counting::join(&counted.timeline, &mut run.timeline));
    }
    if runs.is_empty() {
        return Err(session.no_runs(&unread));
    }
    let warnings = unread.into_iter().chain(missing).collect();
    let mut result = summarise(envelope(&session.record), machine, runs, warnings);
    result.overhead = cost;
    match beside {
        Some(Ok(comparison)) => {
            result.warnings.push(format!(
                "{} (vmeter booted this machine and the baseline's machine in turn)",
                crate::verdict::sentence(&comparison)
            ));
            result.comparison = Some(comparison);
        }
        Some(Err(why)) => {
            result.warnings.push(format!("not compared with the baseline: {why}"));
            result.not_compared = Some(why);
        }
        None => {}
    }
    result.counted_in = counted.map(|run| run.record.index);
    result.saved_in = session.dir.display().to_string();
    result.hints = hints(&result, &session.record.plan);
    Ok(result)
}

/// The result of one of a session's machines, if it has runs.
pub(crate) fn of_machine(
    session: &Session,
    machine: &SessionMachine,
    finished: &[(PathBuf, RunRecord)],
) -> Option<BootResult> {
    let own = finished.iter().filter(|(_, run)| run.label == machine.label && run.is_told());
    let runs: Vec<AnalysedRun> = own.map(|(dir, run)| analyse_run(dir, run.clone())).collect();
    (!runs.is_empty())
        .then(|| summarise(envelope(&session.record), machine.clone(), runs, Vec::new()))
}

/// Summarises analysed runs of one machine.
fn summarise(
    envelope: Envelope,
    machine: SessionMachine,
    runs: Vec<AnalysedRun>,
    mut warnings: Vec<String>,
) -> BootResult {
    let done: Vec<&AnalysedRun> =
        runs.iter().filter(|r| r.record.outcome == Outcome::Done).collect();
    let any_done = !done.is_empty();
    let all_done = any_done && done.len() == runs.len();
    let summarised = if done.is_empty() { runs.iter().collect() } else { done };
    let timelines: Vec<&Timeline> = summarised.iter().map(|r| &r.timeline).collect();
    let totals: Vec<f64> = timelines.iter().map(|t| seconds(t.total)).collect();
    if all_done {
        warnings.extend(crate::autocorrelation::remarks(&machine.label, &totals, 1));
        let records: Vec<&RunRecord> = runs.iter().map(|run| &run.record).collect();
        if !records.iter().any(|run| run.icount) {
            warnings.extend(crate::autocorrelation::host_remarks(&machine.label, &records, 1));
        }
    }
    let outliers = vmeter_stats::outliers(&totals)
        .into_iter()
        .filter_map(|i| {
            let index = summarised[i].record.index;
            runs.iter().position(|run| run.record.index == index)
        })
        .collect();
    let phases = phases(&timelines);
    let activities = activities(&timelines);
    let counts = counts(&timelines);
    BootResult {
        envelope,
        machine,
        // The time of a run that failed is no boot time.
        total: any_done.then(|| estimate(&totals)),
        phases,
        activities,
        counts,
        overhead: None,
        outliers,
        counted_in: None,
        comparison: None,
        not_compared: None,
        said: Vec::new(),
        warnings,
        hints: Vec::new(),
        saved_in: String::new(),
        runs,
    }
}

/// Ends at the prompt, for a guest that came to one and had time to do no more.
fn login_hint(result: &BootResult) -> Option<String> {
    let asked = result.runs.iter().any(|run| {
        let timed_out = matches!(run.record.outcome, Outcome::TimedOut { .. });
        timed_out && run.timeline.marks.iter().any(|(_, text)| vmeter_timeline::is_login(text))
    });
    asked.then(|| {
        format!("{}  # the guest waits for a login", again(result, &["--until", "line:login:"]))
    })
}

/// What was asked, asked again with these options: a line that can be pasted.
fn again(result: &BootResult, options: &[&str]) -> String {
    vmeter_base::shell::join(with(&result.envelope.argv, options))
}

/// A command line with an option and its value in place of its own. It writes nothing where this
/// one wrote.
fn with(argv: &[String], options: &[&str]) -> Vec<String> {
    const WRITES: &[&str] = &["--save", "--resume", "--export-json", "--export-csv", "-o"];
    let mut words = vec!["vmeter".to_owned()];
    let mut rest = argv.iter().skip(1).peekable();
    while let Some(word) = rest.next_if(|word| *word != "--") {
        let (name, value) = word.split_once('=').map_or((word.as_str(), false), |(n, _)| (n, true));
        if WRITES.contains(&name) || (options.len() > 1 && options[0] == name) {
            if !value {
                rest.next();
            }
        } else {
            words.push(word.to_owned());
        }
    }
    words.extend(options.iter().map(|option| (*option).to_owned()));
    words.extend(rest.cloned());
    words
}

/// `--watch full` would count instructions: no plugin sees those of a guest under KVM.
fn counts_more(watch: WatchLevel, counted: impl Fn(&str) -> bool) -> bool {
    watch == WatchLevel::Light && !counted("exits") && !counted("guest_insns")
}

/// Commands worth trying next.
fn hints(result: &BootResult, plan: &[PlannedRun]) -> Vec<String> {
    let mut hints = Vec::new();
    hints.extend(login_hint(result));
    let watch = watched(plan).unwrap_or_default();
    if result.overhead.is_none() && watch != WatchLevel::None {
        let command = again(result, &["--overhead"]);
        hints.push(format!("{command}  # what watching costs on this host"));
    }
    if counts_more(watch, |name| result.counts.contains_key(name)) {
        let command = again(result, &["--watch", "full"]);
        hints.push(format!("{command}  # with guest instruction counts"));
    }
    hints.push(format!("vmeter show --tree {}", vmeter_base::shell::quote(&result.saved_in)));
    hints
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instruction_counts_are_not_offered_to_a_guest_under_kvm() {
        let offered = |watch, counted: &str| counts_more(watch, |name| name == counted);
        assert!(offered(WatchLevel::Light, "console_bytes"));
        assert!(!offered(WatchLevel::Light, "exits") && !offered(WatchLevel::Light, "guest_insns"));
        assert!(!offered(WatchLevel::Full, "console_bytes"));
    }

    #[test]
    fn the_ready_point_is_put_before_the_command_line() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let argv =
            words("/usr/bin/vmeter boot --until poweroff --save x --runs 2 -- qemu --until y");
        let expected = "vmeter boot --runs 2 --until line:login: -- qemu --until y";
        assert_eq!(with(&argv, &["--until", "line:login:"]), words(expected));
        let argv = words("/usr/bin/vmeter boot --save=x --runs 2 -- qemu -nographic");
        let expected = "vmeter boot --runs 2 --overhead -- qemu -nographic";
        assert_eq!(with(&argv, &["--overhead"]), words(expected));
    }
}
