//! Faults whose truth is known, each with a twin that does not have it.

#![allow(dead_code)]

use regex::RegexBuilder;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use vmeter_explain::result::{ExplainResult, Finding, Severity};
use vmeter_explain::{explain, ExplainError, Options};
use vmeter_trace::ops::Op;

/// Names a folder of faults that is not in the repository.
pub const VARIABLE: &str = "VMETER_EXPLAIN_CORPUS";

/// A class of events that a recording may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// None: all are there.
    Nothing,
    /// System calls.
    Calls,
    /// Work items, queued and run.
    Works,
    /// Interrupts, soft ones, timers.
    Interrupts,
    /// Work items being queued.
    Queues,
    /// Wake-ups.
    Wakes,
}

impl Class {
    /// All of them, by the name that options have.
    pub const ALL: [(&'static str, Class); 6] = [
        ("nothing", Class::Nothing),
        ("calls", Class::Calls),
        ("works", Class::Works),
        ("interrupts", Class::Interrupts),
        ("queues", Class::Queues),
        ("wakes", Class::Wakes),
    ];

    /// True for an event of it.
    pub fn ignore(self) -> Option<fn(&Op) -> bool> {
        Some(match self {
            Class::Nothing => return None,
            Class::Calls => |op| {
                matches!(op, Op::SyscallEnter { .. } | Op::SyscallExit { .. } | Op::ThreadStart)
            },
            Class::Works => {
                |op| matches!(op, Op::WorkQueue { .. } | Op::WorkStart { .. } | Op::WorkEnd { .. })
            }
            Class::Interrupts => |op| {
                matches!(
                    op,
                    Op::IrqEntry { .. }
                        | Op::IrqExit
                        | Op::VectorEntry { .. }
                        | Op::VectorExit { .. }
                        | Op::SoftirqEntry { .. }
                        | Op::SoftirqExit
                        | Op::TimerEntry { .. }
                        | Op::BlockDone { .. }
                        | Op::TimerExit
                )
            },
            Class::Queues => |op| matches!(op, Op::WorkQueue { .. }),
            Class::Wakes => |op| matches!(op, Op::Wake { .. }),
        })
    }

    /// What a result says of its being missing.
    pub fn named(self) -> &'static str {
        match self {
            Class::Nothing => "",
            Class::Calls => "raw_syscalls",
            Class::Works => "workqueue:",
            Class::Interrupts => "irq:",
            Class::Queues => "workqueue:",
            Class::Wakes => "sched_waking",
        }
    }
}

/// What an answer is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The first finding has all the words and no kind that contradicts the truth.
    Right,
    /// The first has some of them, or a later one all.
    Half,
    /// Findings, all about something else.
    Wrong,
    /// None.
    Silent,
}

impl Verdict {
    /// Its word.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Right => "right",
            Verdict::Half => "half",
            Verdict::Wrong => "wrong",
            Verdict::Silent => "silent",
        }
    }
}

/// A fault.
pub struct Fault {
    /// Its name.
    pub name: String,
    /// The trace with it.
    pub slow: PathBuf,
    /// The trace without it.
    pub ok: PathBuf,
    /// Names of the program that its user sees to be slow, a pattern.
    pub about: Option<String>,
    words: Vec<String>,
    not: Vec<String>,
}

/// All of a folder, by name.
pub struct Corpus {
    /// They.
    pub faults: Vec<Fault>,
}

/// Marks of a fault and its twin: what a set's score counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Marks {
    /// The first finding's kind, subject or headline names the cause.
    pub strict: bool,
    /// So does that finding with its claims.
    pub mild: bool,
    /// So does a finding, whichever.
    pub any: bool,
    /// None does, and the first is of high severity.
    pub wrong_high: bool,
    /// The twin has a finding of medium severity or more.
    pub alarm: bool,
    /// The twin has one of high severity.
    pub alarm_high: bool,
}

impl Marks {
    /// Scores of a set in one line.
    pub fn line(all: &[Marks]) -> String {
        let count = |is: fn(&Marks) -> bool| all.iter().filter(|marks| is(marks)).count();
        format!(
            "strict {}, mild {}, any finding {} of {}; wrong and high {}; twins with an alarm {} (high {})",
            count(|m| m.strict),
            count(|m| m.mild),
            count(|m| m.any),
            all.len(),
            count(|m| m.wrong_high),
            count(|m| m.alarm),
            count(|m| m.alarm_high),
        )
    }
}

/// What was said of a fault.
pub struct Judged {
    /// What it is worth.
    pub verdict: Verdict,
    /// Its marks.
    pub marks: Marks,
    /// Its marks with the twin to compare with.
    pub marks_beside: Marks,
    /// What it is worth with the twin to compare with.
    pub versus: Verdict,
    /// The first or the second finding is right.
    pub second: bool,
    /// Of the trace with the fault.
    pub slow: ExplainResult,
    /// Of the same, with the twin to compare with.
    pub beside: ExplainResult,
    /// Of its twin.
    pub ok: ExplainResult,
}

impl Corpus {
    /// Reads a folder's `truth.json`.
    pub fn open(folder: &Path) -> std::io::Result<Corpus> {
        let truth = std::fs::read(folder.join("truth.json"))?;
        let truth: BTreeMap<String, serde_json::Value> = serde_json::from_slice(&truth)?;
        let files: Vec<PathBuf> = std::fs::read_dir(folder)?
            .map(|entry| Ok(entry?.path()))
            .collect::<std::io::Result<_>>()?;
        let named = |begin: String| {
            let fits = |path: &&PathBuf| {
                path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&begin))
            };
            files.iter().find(fits).cloned()
        };
        let list = |value: &serde_json::Value| -> Vec<String> {
            let words = value.as_array().into_iter().flatten();
            words.filter_map(|word| word.as_str().map(str::to_string)).collect()
        };
        let faults = truth.into_iter().filter_map(|(name, truth)| {
            Some(Fault {
                slow: named(format!("{name}.slow."))?,
                ok: named(format!("{name}.ok."))?,
                about: truth["about"].as_str().map(str::to_string),
                words: list(&truth["words"]),
                not: list(&truth["not"]),
                name,
            })
        });
        Ok(Corpus { faults: faults.collect() })
    }
}

impl Fault {
    /// Explains both traces and compares with the truth.
    pub fn judge(&self) -> Judged {
        self.judge_by(&Options::default())
    }

    /// As [`Fault::judge`], as one who knows which program is slow does.
    pub fn judge_about(&self) -> Judged {
        self.judge_by(&Options { comm: self.about.clone(), ..Options::default() })
    }

    /// As [`Fault::judge`], where a class of events is missing; the twin is left out then.
    pub fn judge_without(&self, class: Class) -> Judged {
        self.judge_by(&Options { ignore: class.ignore(), ..Options::default() })
    }

    fn judge_by(&self, options: &Options) -> Judged {
        let of = |path: &PathBuf, options: &Options| {
            let files = std::slice::from_ref(path);
            let of = |options: &Options| explain(files, options);
            match of(options) {
                // Nobody is called so.
                Err(ExplainError::NoThread { .. }) => {
                    of(&Options { comm: None, ..options.clone() }).expect("a trace")
                }
                all => all.expect("a trace"),
            }
        };
        let slow = of(&self.slow, options);
        let all = options.ignore.is_none();
        let ok = if all { of(&self.ok, &Options::default()) } else { ExplainResult::default() };
        let vs = Options { vs: Some(self.ok.clone()), ..options.clone() };
        let beside = if all { of(&self.slow, &vs) } else { slow.clone() };
        let versus = self.verdict(&beside.findings);
        let (verdict, second) = (self.verdict(&slow.findings), self.second(&slow));
        let (marks, marks_beside) = (self.marks(&slow, &ok), self.marks(&beside, &ok));
        Judged { verdict, marks, marks_beside, second, versus, slow, beside, ok }
    }

    /// The marks of what is said of the trace with the fault, and of its twin.
    pub fn marks(&self, slow: &ExplainResult, ok: &ExplainResult) -> Marks {
        let allowed = |f: &Finding| !self.contradicts(f);
        let full = |f: &Finding| allowed(f) && self.count(&whole(f)) == self.words.len();
        let first = slow.findings.first();
        let any = slow.findings.iter().any(full);
        let worst = ok.findings.iter().map(|finding| finding.severity).max();
        Marks {
            strict: first.is_some_and(|f| allowed(f) && self.count(&head(f)) == self.words.len()),
            mild: first.is_some_and(full),
            any,
            wrong_high: !any && first.is_some_and(|f| f.severity == Severity::High),
            alarm: worst >= Some(Severity::Medium),
            alarm_high: worst >= Some(Severity::High),
        }
    }

    /// Explains the trace with the fault beside another.
    pub fn beside(&self, twin: &Path) -> ExplainResult {
        let options = Options { vs: Some(twin.to_path_buf()), ..Options::default() };
        explain(std::slice::from_ref(&self.slow), &options).expect("a trace")
    }

    /// True if the first or the second finding is right.
    fn second(&self, result: &ExplainResult) -> bool {
        let right = |f: &Finding| self.has(f) == self.words.len() && !self.contradicts(f);
        result.findings.iter().take(2).any(right)
    }

    fn verdict(&self, findings: &[Finding]) -> Verdict {
        let Some(first) = findings.first() else { return Verdict::Silent };
        let all = self.words.len();
        if self.has(first) == all && !self.contradicts(first) {
            return Verdict::Right;
        }
        let later = findings.iter().any(|f| self.has(f) == all && !self.contradicts(f));
        match self.has(first) {
            0 if !later => Verdict::Wrong,
            _ => Verdict::Half,
        }
    }

    /// Its kind, or what is special about it, contradicts the truth.
    fn contradicts(&self, finding: &Finding) -> bool {
        let modifier = finding.modifier.map(|modifier| modifier.name());
        let words = [Some(finding.kind.name()), modifier];
        words.into_iter().flatten().any(|word| self.not.iter().any(|not| not == word))
    }

    /// Words that a finding has.
    fn has(&self, finding: &Finding) -> usize {
        self.count(&whole(finding))
    }

    /// Words that a text has.
    fn count(&self, text: &str) -> usize {
        let found = |word: &&String| {
            let pattern = RegexBuilder::new(word).case_insensitive(true).build();
            pattern.expect("a pattern").is_match(text)
        };
        self.words.iter().filter(found).count()
    }
}

impl Judged {
    /// The first finding in a line.
    pub fn first(&self) -> String {
        brief(self.slow.findings.first())
    }

    /// The first finding beside the twin in a line.
    pub fn beside(&self) -> String {
        brief(self.beside.findings.first())
    }

    /// The twin's first finding in a line.
    pub fn twin(&self) -> String {
        brief(self.ok.findings.first())
    }

    /// The severest finding about the twin.
    pub fn twin_severity(&self) -> Option<Severity> {
        self.ok.findings.iter().map(|finding| finding.severity).max()
    }
}

/// What a reader sees first of a finding.
fn head(finding: &Finding) -> String {
    format!("{} {} {}", finding.kind.name(), finding.subject, finding.summary)
}

/// A finding with its claims.
fn whole(finding: &Finding) -> String {
    let claims = finding.chain.iter().map(|link| link.claim.as_str());
    std::iter::once(head(finding).as_str()).chain(claims).collect::<Vec<_>>().join("\n")
}

fn brief(finding: Option<&Finding>) -> String {
    finding
        .map_or("-".into(), |f| format!("{} {}: {}", f.severity.name(), f.kind.name(), f.summary))
}
