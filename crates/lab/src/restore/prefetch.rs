//! Pages of a snapshot that are loaded before its VMM starts: the list of them, and what that gains.
//!
//! The gain is predicted by restores without it: how long their VMM's threads waited for pages of the list to
//! be read. Restores with it, in turn with those without, then find the gain. Loading the list takes time as
//! well, which is told apart: it is before the VMM's exec.

use super::config::{Config, Prefetch, PREFETCH};
use super::pages::{waits, Pages, Range};
use crate::blocks::{blocks, pairs, ByBlock};
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;
use vmeter_machine::page_cache;
use vmeter_model::run::{Outcome, SessionMachine};
use vmeter_model::time::seconds;
use vmeter_model::{Estimate, Ns};
use vmeter_record::owners::PAGE;
use vmeter_record::recorder::{Loaded, Saved};
use vmeter_record::sources::page_faults::Waited;
use vmeter_record::sources::snapshot_files;
use vmeter_session::failure::{host, usage};
use vmeter_session::{SavedRun, Session};
use vmeter_stats::{estimate, estimate_signed};

/// The list of a session's own restores, in the snapshot's folder.
pub(super) const OWN: &str = "vmeter-prefetch.txt";
/// What a list's line begins with that says of which guest it is.
const NONCE: &str = "# nonce ";

/// Pages of a snapshot, as a list that a program can read ahead: `FILE OFFSET LENGTH`, bytes.
pub fn prefetch_list(pages: &Pages, nonce: Option<&str>) -> String {
    let mut text = format!(
        "# FILE OFFSET LENGTH (bytes) of pages that were mapped when the guest first answered, \
            in each of {} restores\n",
        pages.runs
    );
    if let Some(nonce) = nonce {
        let _ = writeln!(text, "{NONCE}{nonce}");
    }
    for Range { file, first, pages } in &pages.always {
        let _ = writeln!(text, "{file} {} {}", first * PAGE, pages * PAGE);
    }
    text
}

/// The text of a list, as [`prefetch_list`] writes it.
///
/// # Errors
/// A file that cannot be read, or above 256 MiB.
pub fn read_list(file: &Path) -> std::io::Result<String> {
    let text = vmeter_base::files::read_limited(file, 256 << 20)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// A list that was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct List {
    /// The number of the guest whose snapshot it is of.
    pub nonce: Option<String>,
    /// Pages, by the files' names.
    pub ranges: Vec<Range>,
}

impl List {
    /// Reads a list.
    ///
    /// # Errors
    /// Class usage: a line that is none.
    pub fn parse(text: &str) -> Result<Self> {
        let mut list = List::default();
        for (number, line) in (1..).zip(text.lines()) {
            if let Some(nonce) = line.strip_prefix(NONCE) {
                list.nonce = Some(nonce.to_owned());
            }
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let range = range(line).ok_or_else(|| {
                usage(format!(
                    "--prefetch: expected FILE OFFSET LENGTH (bytes) in line {number}, found {line:?}; \
                     --prefetch-list FILE writes such a list"
                ))
            })?;
            list.ranges.push(range);
        }
        Ok(list)
    }

    /// Bytes of it.
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().fold(0, |sum, range| sum.saturating_add(range.pages * PAGE))
    }

    /// Reads its pages of a snapshot's files into the page cache.
    ///
    /// # Errors
    /// Class usage: a list of another snapshot. Class host: a file that cannot be read.
    pub fn load(&self, files: &[PathBuf]) -> Result<Loaded> {
        let mut of_files: BTreeMap<&Path, Vec<(u64, u64)>> = BTreeMap::new();
        for range in &self.ranges {
            let path = files.iter().find(|path| name(path) == range.file).ok_or_else(|| {
                let there: Vec<String> = files.iter().map(|path| name(path)).collect();
                usage(format!(
                    "--prefetch: the list names the file {:?}, but the snapshot has {}: was the \
                        list made from another snapshot?",
                    range.file,
                    there.join(", ")
                ))
            })?;
            let (offset, length) = (range.first * PAGE, range.pages * PAGE);
            let whole = path.metadata().map_or(0, |found| found.len());
            if offset.saturating_add(length) > whole {
                return Err(usage(format!(
                    "--prefetch: the list names bytes {offset} to {} of {:?}, but that file has \
                        {whole} bytes: is the list from another snapshot?",
                    offset.saturating_add(length),
                    range.file
                )));
            }
            of_files.entry(path).or_default().push((offset, length));
        }
        let begun = Instant::now();
        for (path, ranges) in of_files {
            page_cache::load(path, &ranges)
                .map_err(host)
                .with_context(|| format!("{}: a file of the snapshot", path.display()))?;
        }
        let took_ns = Ns::try_from(begun.elapsed().as_nanos()).unwrap_or(Ns::MAX);
        Ok(Loaded { bytes: self.bytes(), took_ns })
    }
}

fn range(line: &str) -> Option<Range> {
    let mut words = line.rsplitn(3, ' ');
    let (length, offset): (u64, u64) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let file = words.next().filter(|file| !file.is_empty())?.to_owned();
    let first = offset / PAGE;
    let end = offset.checked_add(length)?.div_ceil(PAGE);
    Some(Range { file, first, pages: end - first })
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The list of a snapshot's own restores with one more: the pages that all of them had.
pub(super) fn narrow(image: &Path, run: &SavedRun) -> Result<()> {
    let path = image.join(OWN);
    let mut pages = super::pages::of_runs(&[run]);
    if pages.runs == 0 {
        return Ok(());
    }
    if let Some(before) = own(image)? {
        let before: BTreeSet<(String, u64)> = each(&before.ranges).collect();
        let both = each(&pages.always).filter(|page| before.contains(page));
        pages.always = both.map(|(file, first)| Range { file, first, pages: 1 }).collect();
        pages.runs += 1;
    }
    vmeter_base::files::write_atomic(&path, prefetch_list(&pages, None).as_bytes())
        .with_context(|| format!("cannot write {}", path.display()))
}

/// The list of a snapshot's own restores, if there were any.
pub(super) fn own(image: &Path) -> Result<Option<List>> {
    let text = read_list(&image.join(OWN)).ok();
    text.map(|text| List::parse(&text)).transpose()
}

/// The pages of ranges, one by one.
fn each(ranges: &[Range]) -> impl Iterator<Item = (String, u64)> + '_ {
    let pages = |range: &Range| range.first..range.first + range.pages;
    ranges.iter().flat_map(move |range| pages(range).map(|page| (range.file.clone(), page)))
}

/// What loading pages first gains.
#[derive(Debug, Clone, PartialEq)]
pub struct Gain {
    /// Label of the machine whose pages are loaded first.
    pub label: String,
    /// … and of the same one without that.
    pub against: String,
    /// Pages of the list.
    pub pages: u64,
    /// How long loading them took, before the VMM's exec, s.
    pub load: Estimate,
    /// What it should gain, s; or why nobody knows.
    pub predicted: Result<Estimate, String>,
    /// What it gained, s.
    pub found: Estimate,
    /// How much more it gained than it should have, s, where that is known.
    pub beyond: Option<Estimate>,
}

impl Gain {
    /// True if what was found differs from what was predicted by no more than chance; none if there are too few
    /// runs to say.
    pub fn within(&self) -> Option<bool> {
        let beyond = self.beyond.as_ref().filter(|beyond| beyond.n > 1)?;
        Some((beyond.ci95[0]..=beyond.ci95[1]).contains(&0.0))
    }
}

/// What loading pages first gains of one machine (`label`) against the same without it.
fn gain(
    (label, with): (&str, &[&SavedRun]),
    (against, without): (&str, &[&SavedRun]),
    blocks: &BTreeMap<u32, usize>,
    list: &List,
) -> Gain {
    let total = |(_, run): &&SavedRun| Some((*blocks.get(&run.index)?, seconds(run.total_ns)));
    let (bare, loaded): (ByBlock, ByBlock) =
        (without.iter().filter_map(total).collect(), with.iter().filter_map(total).collect());
    let gains: ByBlock =
        bare.iter().filter_map(|(block, bare)| Some((*block, bare - loaded.get(block)?))).collect();
    let predicted: Result<ByBlock, String> = without
        .iter()
        .filter_map(|run| Some((*blocks.get(&run.1.index)?, predicted(run, list))))
        .map(|(block, predicted)| Ok((block, predicted?)))
        .collect();
    let beyond = predicted.as_ref().ok().map(|predicted| {
        let (both, _) = pairs(predicted, &gains);
        estimate_signed(&both.iter().map(|(predicted, gain)| gain - predicted).collect::<Vec<_>>())
    });
    let values = |by: &ByBlock| by.values().copied().collect::<Vec<f64>>();
    let took = with.iter().filter_map(|(_, run)| snapshot_files::known(run).loaded);
    Gain {
        label: label.to_owned(),
        against: against.to_owned(),
        pages: list.bytes() / PAGE,
        load: estimate(&took.map(|loaded| seconds(loaded.took_ns)).collect::<Vec<_>>()),
        predicted: predicted.map(|by| estimate(&values(&by))),
        found: estimate_signed(&values(&gains)),
        beyond,
    }
}

/// What a run should have gained had the pages of the list been there, s.
fn predicted((dir, run): &SavedRun, list: &List) -> Result<f64, String> {
    let saved = Saved::new(dir, run);
    let found = waits(&saved)?;
    let (faults, files) = (&found.0, &found.1.files);
    let names: Vec<String> = files.iter().map(|file| name(file)).collect();
    let mut spans: BTreeMap<&str, Vec<(u64, u64)>> = BTreeMap::new();
    for Range { file, first, pages } in &list.ranges {
        spans.entry(file).or_default().push((*first, first + pages));
    }
    spans.values_mut().for_each(|spans| spans.sort_unstable());
    let listed = |fault: &&Waited| {
        let spans = names.get(fault.file).and_then(|name| spans.get(name.as_str()));
        spans.is_some_and(|spans| {
            let after = spans.partition_point(|(first, _)| *first <= fault.page);
            after.checked_sub(1).is_some_and(|at| fault.page < spans[at].1)
        })
    };
    let read = faults.iter().filter(listed).filter_map(|fault| Some((fault.at, fault.waited?)));
    Ok(seconds(waited(read)))
}

/// How long at least one thread waited, ns: each wait from when on, and how long, in order of their begin. What
/// two threads wait for at once is time only once.
fn waited(waits: impl Iterator<Item = (Ns, Ns)>) -> Ns {
    let (mut waited, mut until) = (0, Ns::MIN);
    for (at, took) in waits {
        let end = at.saturating_add(took);
        waited += (end - at.max(until)).max(0);
        until = until.max(end);
    }
    waited
}

/// What loading pages first gained in a session, machine by machine.
pub(super) fn gains(session: &Session, config: &Config, finished: &[SavedRun]) -> Vec<Gain> {
    let blocks = blocks(&session.record.plan);
    let runs = |label: &str, warmup: bool| -> Vec<&SavedRun> {
        let own = |(_, run): &&SavedRun| {
            run.label == label && run.warmup == warmup && run.outcome == Outcome::Done
        };
        finished.iter().filter(own).collect()
    };
    let of = |machine: &SessionMachine| {
        let (_, against) = machine.parameters.iter().find(|(name, _)| name == PREFETCH)?;
        let list = match config.prefetch.as_ref()? {
            Prefetch::List(text) => List::parse(text).ok()?,
            // Their list went with the snapshot.
            Prefetch::First => {
                let ranges = super::pages::of_runs(&runs(against, true)).always;
                List { nonce: None, ranges }
            }
        };
        let (with, without) = (runs(&machine.label, false), runs(against, false));
        (!with.is_empty())
            .then(|| gain((&machine.label, &with), (against, &without), &blocks, &list))
    };
    session.record.machines.iter().filter_map(of).collect()
}

/// What is to be said of a list that is of another guest than the snapshots that were made.
pub(super) fn of_another(config: &Config) -> Option<String> {
    let Some(Prefetch::List(text)) = &config.prefetch else { return None };
    let of = List::parse(text).ok()?.nonce?;
    let made: Vec<&str> = config.made.iter().filter_map(|made| made.nonce.as_deref()).collect();
    (!made.is_empty() && !made.contains(&of.as_str())).then(|| {
        format!(
            "--prefetch: the list is from another snapshot: the list names the nonce {of}, but \
                this session's guest has the nonce {}. The listed pages may therefore hold other \
                data; use `--prefetch first` to take the pages of this session's warm-ups",
            made.join(", ")
        )
    })
}

/// The list of a machine's pages in a session.
pub(super) fn list_of(config: &Config, image: &Path) -> Result<Option<List>> {
    match &config.prefetch {
        Some(Prefetch::List(text)) => List::parse(text).map(Some),
        Some(Prefetch::First) => own(image),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_as_it_was_written() {
        let range = |first, pages| Range { file: "my ram".into(), first, pages };
        let always = vec![range(5, 2), range(9, 1)];
        let pages = Pages { runs: 2, always: always.clone(), ..Pages::default() };
        let text = prefetch_list(&pages, Some("ff"));
        assert_eq!(
            text.lines().skip(2).collect::<Vec<_>>(),
            ["my ram 20480 8192", "my ram 36864 4096"]
        );
        let list = List::parse(&text).expect("a list");
        assert_eq!(list, List { nonce: Some("ff".into()), ranges: always });
        assert_eq!(list.bytes(), 12288);
        for bad in ["ram 1", "ram x 4096", " 0 4096", "ram 18446744073709551615 2"] {
            assert!(List::parse(bad).is_err(), "{bad}");
        }
        // Whole pages.
        assert_eq!(List::parse("my ram 20481 4096").expect("a list").ranges, [range(5, 2)]);
    }

    #[test]
    fn a_list_of_another_snapshot_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let ram = folder.path().join("ram");
        std::fs::write(&ram, vec![1u8; 8 * PAGE as usize]).expect("written");
        let load = |text: &str| List::parse(text).expect("a list").load(std::slice::from_ref(&ram));
        assert_eq!(load("ram 4096 8192").expect("loaded").bytes, 8192);
        let why = load("memory 0 4096").expect_err("no such file").to_string();
        assert!(why.contains("memory") && why.contains("ram"), "{why}");
        assert!(load("ram 28672 8192").expect_err("too long").to_string().contains("36864"));
    }

    #[test]
    fn waits_of_two_threads_at_once_are_one() {
        let waits = [(0, 100), (50, 100), (60, 10), (500, 7)];
        // 0 to 150, 500 to 507.
        assert_eq!(waited(waits.into_iter()), 150 + 7);
        assert_eq!(waited(waits[..1].iter().copied()), 100);
        assert_eq!(waited(std::iter::empty()), 0);
    }
}
