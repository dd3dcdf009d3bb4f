//! `--fail-if-slower`, the same wherever it is asked.

use crate::Status;
use clap::Args;
use std::path::{Path, PathBuf};
use vmeter_lab::gate::{Gate, Inconclusive, Limit, Ruling};
use vmeter_model::run::AskedGate;
use vmeter_session::AnySession;

/// What is too slow, and what comes of it.
#[derive(Debug, Clone, Copy, Args)]
pub struct FailIfSlower {
    /// Exit with status 1 if its typical run or its mean is slower by more than PCT percent (the lower end of the
    /// interval is above PCT), 0 if neither is (both upper ends are at most PCT), else 4.
    #[arg(long, value_name = "PCT", value_parser = super::percent)]
    pub fail_if_slower: Option<f64>,
    /// What a gate that cannot decide comes to, instead of exit status 4.
    #[arg(long, value_name = "WHAT", requires = "fail_if_slower",
          value_parser = super::word::<Inconclusive>())]
    pub inconclusive: Option<Inconclusive>,
}

impl FailIfSlower {
    /// The limit, if one was given.
    pub fn limit(self) -> Option<Limit> {
        let inconclusive = self.inconclusive;
        self.fail_if_slower.map(|percent| Limit { percent, inconclusive })
    }

    /// As a session keeps it, with what it is held against.
    pub fn kept(self, baseline: Option<&Path>) -> AskedGate {
        AskedGate {
            fail_if_slower: self.fail_if_slower,
            inconclusive: self.inconclusive.map(|word| word.word().to_owned()),
            baseline: baseline
                .map(|path| std::path::absolute(path).unwrap_or_else(|_| path.into())),
        }
    }
}

/// The gate that a session that is gone on with was told when it began: it holds for all of its
/// runs. Older sessions have it in their argument vector alone.
pub struct Begun {
    kept: Option<AskedGate>,
    argv: Vec<String>,
    working_dir: Option<PathBuf>,
}

impl Begun {
    /// Of the session in that folder; of none, nothing.
    pub fn of(resume: Option<&Path>) -> Begun {
        let record = resume.and_then(|dir| AnySession::open(dir).ok()).map(|s| s.record);
        record.map_or(Begun { kept: None, argv: Vec::new(), working_dir: None }, |record| Begun {
            kept: record.gate,
            argv: record.argv,
            working_dir: record.working_dir,
        })
    }

    /// The value of an option of vmeter's own.
    fn value(&self, option: &str) -> Option<&str> {
        let own: Vec<&String> = self.argv.iter().take_while(|word| *word != "--").collect();
        let joined = own.iter().find_map(|word| word.strip_prefix(option)?.strip_prefix('='));
        let apart = || own.windows(2).find(|pair| pair[0] == option).map(|pair| pair[1].as_str());
        joined.or_else(apart)
    }

    /// The gate: what is asked now, or what was asked then.
    pub fn limit(&self, asked: FailIfSlower) -> Option<Limit> {
        let then = || {
            if let Some(kept) = &self.kept {
                let inconclusive = kept.inconclusive.as_deref().and_then(|word| word.parse().ok());
                return kept.fail_if_slower.map(|percent| Limit { percent, inconclusive });
            }
            let percent = super::percent(self.value("--fail-if-slower")?).ok()?;
            let inconclusive = self.value("--inconclusive").and_then(|word| word.parse().ok());
            Some(Limit { percent, inconclusive })
        };
        asked.limit().or_else(then)
    }

    /// What it was held against.
    pub fn baseline(&self) -> Option<PathBuf> {
        if let Some(kept) = &self.kept {
            return kept.baseline.clone();
        }
        let path = Path::new(self.value("--baseline")?);
        Some(self.working_dir.as_ref().map_or_else(|| path.into(), |dir| dir.join(path)))
    }
}

/// The status of a command that ended with `status`, and whose gates ruled so: the worst
/// counts. Says each on standard error.
pub fn ruled(status: Status, gates: &[Gate]) -> Status {
    for gate in gates {
        eprintln!("vmeter: gate: {}", vmeter_render::text::neutralise(&gate.text));
    }
    let worst = gates.iter().map(|gate| gate.ruling).max();
    match (status, worst) {
        (Status::Bad, _) | (_, Some(Ruling::Failed)) => Status::Bad,
        (_, Some(Ruling::Inconclusive)) => Status::Inconclusive,
        (status, _) => status,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(words: &[&str]) -> Begun {
        let argv = words.iter().map(|word| (*word).to_owned()).collect();
        Begun { kept: None, argv, working_dir: Some("/home/u".into()) }
    }

    #[test]
    fn a_gate_is_kept() {
        let nothing = FailIfSlower { fail_if_slower: None, inconclusive: None };
        let limit = |words| begun(words).limit(nothing).map(|l| (l.percent, l.inconclusive));
        let words: &[&str] = &["vmeter", "bench", "--fail-if-slower", "1.5"];
        assert_eq!(limit(words), Some((1.5, None)));
        let words: &[&str] = &["vmeter", "bench", "--fail-if-slower=2", "--inconclusive", "pass"];
        assert_eq!(limit(words), Some((2.0, Some(Inconclusive::Pass))));
        assert_eq!(limit(&["vmeter", "boot", "--", "vmm", "--fail-if-slower", "3"]), None);
        let asked = FailIfSlower { fail_if_slower: Some(4.0), inconclusive: None };
        assert_eq!(begun(words).limit(asked).map(|l| l.percent), Some(4.0));
        let words: &[&str] = &["vmeter", "boot", "--baseline", "before"];
        assert_eq!(begun(words).baseline(), Some("/home/u/before".into()));
        let asked = FailIfSlower { fail_if_slower: Some(4.0), inconclusive: None };
        let kept = Begun { kept: Some(asked.kept(Some(Path::new("/b")))), ..begun(words) };
        assert_eq!(kept.limit(nothing).map(|l| l.percent), Some(4.0));
        assert_eq!(kept.baseline(), Some("/b".into()), "what is kept comes before words");
    }
}
