//! Faults whose truth is known, each with a twin that does not have it.

#![allow(dead_code)]

use regex::RegexBuilder;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use vmeter_explain::result::{ExplainResult, Finding, Severity};
use vmeter_explain::{explain, Options};
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
                        | Op::TimerEntry
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
    words: Vec<String>,
    not: Vec<String>,
}

/// All of a folder, by name.
pub struct Corpus {
    /// They.
    pub faults: Vec<Fault>,
}

/// What was said of a fault.
pub struct Judged {
    /// What it is worth.
    pub verdict: Verdict,
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
        self.judge_without(Class::Nothing)
    }

    /// As [`Fault::judge`], where a class of events is missing; the twin is left out then.
    pub fn judge_without(&self, class: Class) -> Judged {
        let options = Options { ignore: class.ignore(), ..Options::default() };
        let of = |path: &PathBuf| explain(std::slice::from_ref(path), &options).expect("a trace");
        let slow = of(&self.slow);
        let ok = if class == Class::Nothing { of(&self.ok) } else { ExplainResult::default() };
        let beside = match class {
            Class::Nothing => self.beside(&self.ok),
            _ => slow.clone(),
        };
        let versus = self.verdict(&beside.findings);
        let (verdict, second) = (self.verdict(&slow.findings), self.second(&slow));
        Judged { verdict, second, versus, slow, beside, ok }
    }

    /// Explains the trace with the fault beside another.
    pub fn beside(&self, twin: &Path) -> ExplainResult {
        let options = Options { vs: Some(twin.to_path_buf()), ..Options::default() };
        explain(std::slice::from_ref(&self.slow), &options).expect("a trace")
    }

    /// True if the first or the second finding is right.
    fn second(&self, result: &ExplainResult) -> bool {
        let right = |f: &Finding| self.has(f) == self.words.len() && !self.not.contains(&f.kind);
        result.findings.iter().take(2).any(right)
    }

    fn verdict(&self, findings: &[Finding]) -> Verdict {
        let Some(first) = findings.first() else { return Verdict::Silent };
        let all = self.words.len();
        if self.has(first) == all && !self.not.contains(&first.kind) {
            return Verdict::Right;
        }
        let later = findings.iter().any(|f| self.has(f) == all && !self.not.contains(&f.kind));
        match self.has(first) {
            0 if !later => Verdict::Wrong,
            _ => Verdict::Half,
        }
    }

    /// Words that a finding has.
    fn has(&self, finding: &Finding) -> usize {
        let claims = finding.chain.iter().map(|link| link.claim.as_str());
        let text: Vec<&str> = std::iter::once(finding.summary.as_str()).chain(claims).collect();
        let text = text.join("\n");
        let found = |word: &&String| {
            let pattern = RegexBuilder::new(word).case_insensitive(true).build();
            pattern.expect("a pattern").is_match(&text)
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

fn brief(finding: Option<&Finding>) -> String {
    finding.map_or("-".into(), |f| format!("{} {}: {}", f.severity.name(), f.kind, f.summary))
}
