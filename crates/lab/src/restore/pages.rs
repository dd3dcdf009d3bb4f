//! Which pages of a snapshot its guests had mapped at their first answer, and whose they are.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use vmeter_model::time::seconds;
use vmeter_record::owners;
use vmeter_record::recorder::Saved;
use vmeter_record::sources::launcher::Launcher;
use vmeter_record::sources::page_faults::{PageFaults, Parameters, Waited};
use vmeter_record::sources::snapshot_pages::{self, SnapshotPages, Touched, UNKNOWN};
use vmeter_session::SavedRun;

/// Says whose the pages of a snapshot's RAM are, in its folder.
pub(super) const OWNERS: &str = "vmeter-owners.txt";

/// Pages of one owner.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OwnerPages {
    /// Whose.
    pub owner: String,
    /// Mean number of them in a run.
    pub pages: f64,
    /// Of these, those that the guest had written.
    pub written: f64,
    /// Those that every run had.
    pub always: u64,
    /// How long the VMM's threads waited for them to be read in a run, mean, s; none where that is not known.
    pub waited_s: Option<f64>,
}

/// Pages of a snapshot's file that follow one another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Range {
    /// The file's name.
    pub file: String,
    /// The first page.
    pub first: u64,
    /// How many.
    pub pages: u64,
}

/// The pages of one way to restore.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pages {
    /// Runs of which they are known.
    pub runs: usize,
    /// By owner: those that were waited for longest first; the most pages, where no waits are known.
    pub owners: Vec<OwnerPages>,
    /// Those that every run had.
    pub always: Vec<Range>,
    /// Why nobody knows how long they were waited for, if so.
    pub unknown_waits: Option<String>,
    /// True if nobody knows which of them the guest had written.
    pub unknown_writes: bool,
}

/// Notes whose the pages of a snapshot are; why not, if they are not known.
pub(super) fn note(
    files: &[std::path::PathBuf],
    kernel: Option<&Path>,
    cache: &Path,
    image: &Path,
) -> Option<String> {
    let bytes = |path: &Path| path.metadata().map_or(0, |found| found.len());
    let ram = files.iter().max_by_key(|path| bytes(path))?;
    let found = owners::owners(ram, kernel, cache).map_err(|error| error.to_string());
    let written = found.and_then(|owners| {
        let path = image.join(OWNERS);
        std::fs::write(&path, owners::to_text(&owners))
            .map_err(|e| format!("{}: {e}", path.display()))
    });
    written.err()
}

/// What is known of the pages of one run.
struct Seen {
    touched: Rc<Vec<Touched>>,
    /// Names of the snapshot's files, by their numbers.
    names: Vec<String>,
    /// How long the run waited for each page that was read for it, ns; or why that is not known.
    waits: Result<BTreeMap<(usize, u64), i64>, String>,
    /// vmeter served them.
    served: bool,
}

impl Seen {
    fn of((dir, run): &SavedRun) -> Option<Self> {
        let saved = Saved::new(dir, run);
        if let Some(served) = Self::served(&saved) {
            return Some(served);
        }
        let touched = saved.raw(&SnapshotPages).ok()??;
        let source = run.sources.iter().find(|source| source.name == snapshot_pages::NAME)?;
        let names = source.parameters.get("files").cloned().unwrap_or_default();
        let names = serde_json::from_value::<Vec<String>>(names).unwrap_or_default();
        let waits = waits(&saved).map(|faults| {
            let mut waits = BTreeMap::new();
            for fault in faults.0.iter() {
                let Some(waited) = fault.waited else { continue };
                *waits.entry((fault.file, fault.page)).or_default() += waited;
            }
            waits
        });
        Some(Seen { touched, names, waits, served: false })
    }

    /// The pages that vmeter served itself, if it did.
    fn served(saved: &Saved<'_>) -> Option<Self> {
        let work = saved.raw(&Launcher).ok()??;
        let end = saved.run.exec_ns.saturating_add(saved.run.total_ns);
        let (mut waits, mut touched) = (BTreeMap::new(), Vec::new());
        for one in work.served.iter().filter(|one| one.at <= end) {
            let at = (one.page.file, one.page.first);
            let is_new = !waits.contains_key(&at);
            *waits.entry(at).or_default() += one.took;
            // Two threads may miss a page at once. Under KVM any fault may be said to be a write.
            touched.extend(is_new.then(|| Touched { written: false, ..one.page.clone() }));
        }
        let names = vec!["ram".to_owned()];
        (!touched.is_empty()).then(|| Seen {
            touched: Rc::new(touched),
            names,
            waits: Ok(waits),
            served: true,
        })
    }
}

/// The page faults of a run.
///
/// # Errors
/// In words why they are not known.
pub(super) fn waits(saved: &Saved<'_>) -> Result<Rc<(Vec<Waited>, Parameters)>, String> {
    let found = saved.raw(&PageFaults).map_err(|error| error.to_string())?;
    let found = found.ok_or("page faults were not timed on this host")?;
    match found.1.missing() {
        Some(why) => Err(why),
        None => Ok(found),
    }
}

/// Of a page: its owner, runs that had it, and that had written to it.
type Count<'r> = BTreeMap<(usize, u64), (&'r str, usize, usize)>;

/// The pages of the measured runs of one machine.
pub(super) fn of_runs(runs: &[&SavedRun]) -> Pages {
    let all: Vec<Seen> = runs.iter().filter_map(|run| Seen::of(run)).collect();
    let mut count: Count<'_> = BTreeMap::new();
    for seen in &all {
        for one in seen.touched.iter() {
            for page in pages_of(one) {
                let known = count.entry((one.file, page)).or_insert((&one.owner, 0, 0));
                known.1 += 1;
                known.2 += usize::from(one.written);
            }
        }
    }
    let waits: Result<Vec<_>, String> = all
        .iter()
        .map(|seen| seen.waits.as_ref())
        .collect::<Result<Vec<_>, _>>()
        .map_err(Clone::clone);
    let unknown_waits = waits.as_ref().err().cloned();
    let names = all.first().map_or(&[][..], |seen| &seen.names);
    let always = ranges(
        count.iter().filter(|(_, (_, seen, _))| *seen == all.len()).map(|(at, _)| *at),
        names,
    );
    Pages {
        runs: all.len(),
        owners: owners(&count, all.len(), waits.ok().as_deref()),
        always,
        unknown_waits,
        unknown_writes: all.iter().any(|seen| seen.served),
    }
}

/// The pages by owner, those that were waited for longest first, else the most.
fn owners(
    count: &Count<'_>,
    runs: usize,
    waits: Option<&[&BTreeMap<(usize, u64), i64>]>,
) -> Vec<OwnerPages> {
    let mut owners: BTreeMap<&str, OwnerPages> = BTreeMap::new();
    let each = 1.0 / runs.max(1) as f64;
    for (owner, seen, written) in count.values() {
        let of = owners.entry(owner).or_default();
        of.pages += *seen as f64 * each;
        of.written += *written as f64 * each;
        of.always += u64::from(*seen == runs);
    }
    for waits in waits.into_iter().flatten() {
        for (at, took) in *waits {
            // A page can be gone again that was waited for.
            let owner = count.get(at).map_or(UNKNOWN, |(owner, ..)| owner);
            *owners.entry(owner).or_default().waited_s.get_or_insert(0.0) += seconds(*took) * each;
        }
    }
    let named = owners.into_iter().map(|(owner, pages)| OwnerPages {
        owner: owner.to_owned(),
        waited_s: waits.map(|_| pages.waited_s.unwrap_or(0.0)),
        ..pages
    });
    let mut owners: Vec<OwnerPages> = named.collect();
    let key = |of: &OwnerPages| (of.waited_s.unwrap_or(0.0), of.pages);
    owners.sort_by(|a, b| {
        let (x, y) = (key(a), key(b));
        y.0.total_cmp(&x.0).then(y.1.total_cmp(&x.1)).then_with(|| a.owner.cmp(&b.owner))
    });
    owners
}

/// Pages in order, those that follow one another together.
fn ranges(pages: impl Iterator<Item = (usize, u64)>, names: &[String]) -> Vec<Range> {
    let mut all: Vec<Range> = Vec::new();
    let mut last = None;
    for (file, page) in pages {
        match all.last_mut() {
            Some(range) if last == Some((file, page)) => range.pages += 1,
            _ => {
                let file = names.get(file).cloned().unwrap_or_default();
                all.push(Range { file, first: page, pages: 1 });
            }
        }
        last = Some((file, page + 1));
    }
    all
}

/// Its pages, of which a file that was tampered with may name many.
fn pages_of(touched: &Touched) -> std::ops::Range<u64> {
    const MOST: u64 = 1 << 24;
    touched.first..touched.first.saturating_add(touched.pages.min(MOST))
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmeter_model::run::SourceRecord;
    use vmeter_model::RunRecord;

    /// A run with pages, and with faults if they are given.
    fn run(folder: &Path, name: &str, pages: &str, faults: Option<&str>) -> SavedRun {
        let dir = folder.join(name);
        std::fs::create_dir(&dir).expect("a folder");
        let source = |name: &str, text: &str| {
            let file = format!("{name}.txt");
            std::fs::write(dir.join(&file), text).expect("written");
            let parameters = [("files".to_owned(), serde_json::json!(["ram"]))].into();
            SourceRecord {
                name: name.into(),
                files: vec![file],
                clock: String::new(),
                error_ns: 0,
                parameters,
            }
        };
        let mut sources = vec![source("snapshot-pages", pages)];
        sources.extend(faults.map(|text| source("page-faults", text)));
        (dir.clone(), RunRecord { sources, ..RunRecord::default() })
    }

    #[test]
    fn pages_that_every_run_had_are_listed() {
        let folder = tempfile::tempdir().expect("a folder");
        let runs = [
            run(
                folder.path(),
                "a",
                "0 4 3 read kernel code\n0 9 1 written anonymous of sh\n",
                None,
            ),
            run(folder.path(), "b", "0 5 3 read kernel code\n0 9 1 read anonymous of sh\n", None),
        ];
        let pages = of_runs(&runs.iter().collect::<Vec<_>>());
        assert_eq!(pages.runs, 2);
        let code = &pages.owners[0];
        assert_eq!((code.owner.as_str(), code.pages, code.always), ("kernel code", 3.0, 2));
        assert_eq!((pages.owners[1].written, pages.owners[1].always), (0.5, 1));
        let range = |first, pages| Range { file: "ram".into(), first, pages };
        assert_eq!(pages.always, [range(5, 2), range(9, 1)]);
        assert!(code.waited_s.is_none() && pages.unknown_waits.is_some(), "nobody timed them");
    }

    #[test]
    fn each_owner_has_the_waits_for_its_pages() {
        let folder = tempfile::tempdir().expect("a folder");
        let owned = "0 4 3 read kernel code\n0 9 1 written anonymous of sh\n";
        let runs = [
            run(folder.path(), "a", owned, Some("5 1000000 0 9 major 1\n7 500000 0 4 major 1\n")),
            run(
                folder.path(),
                "b",
                owned,
                Some("5 3000000 0 9 major 1\n6 200 0 77 major 1\n9 70 0 5 minor 1\n"),
            ),
        ];
        let pages = of_runs(&runs.iter().collect::<Vec<_>>());
        let found: Vec<_> =
            pages.owners.iter().map(|of| (of.owner.as_str(), of.waited_s)).collect();
        let expected = [
            ("anonymous of sh", Some(0.002)),
            ("kernel code", Some(0.000_25)),
            ("unknown", Some(1e-7)),
        ];
        assert_eq!(found, expected);
        // One run of which they are not known, and nothing is said of all.
        let other = run(folder.path(), "c", owned, None);
        let pages = of_runs(&runs.iter().chain([&other]).collect::<Vec<_>>());
        assert!(pages.owners.iter().all(|of| of.waited_s.is_none()));
    }
}
