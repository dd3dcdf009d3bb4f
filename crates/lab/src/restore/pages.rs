//! Which pages of a snapshot its guests had mapped at their first answer, and whose they are.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use vmeter_record::owners::{self, PAGE};
use vmeter_record::recorder::Saved;
use vmeter_record::sources::snapshot_pages::{SnapshotPages, Touched};
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
}

/// Pages of a snapshot's file that follow one another.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// By owner, the most pages first.
    pub owners: Vec<OwnerPages>,
    /// Those that every run had.
    pub always: Vec<Range>,
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

/// The pages of the measured runs of one machine.
pub(super) fn of_runs(runs: &[&SavedRun]) -> Pages {
    /// Of a page: its owner, runs that had it, and that had written to it.
    type Count<'r> = BTreeMap<(usize, u64), (&'r str, usize, usize)>;
    let read = |(dir, run): &&SavedRun| {
        let raw = Saved::new(dir, run).raw(&SnapshotPages).ok()??;
        let parameters =
            run.sources.iter().find(|s| s.name == vmeter_record::sources::snapshot_pages::NAME)?;
        let names = parameters.parameters.get("files").cloned().unwrap_or_default();
        Some((raw, serde_json::from_value::<Vec<String>>(names).unwrap_or_default()))
    };
    let all: Vec<_> = runs.iter().filter_map(read).collect();
    let mut count: Count<'_> = BTreeMap::new();
    for (touched, _) in &all {
        for one in touched.iter() {
            for page in pages_of(one) {
                let known = count.entry((one.file, page)).or_insert((&one.owner, 0, 0));
                known.1 += 1;
                known.2 += usize::from(one.written);
            }
        }
    }
    let mut owners: BTreeMap<&str, OwnerPages> = BTreeMap::new();
    let each = 1.0 / all.len().max(1) as f64;
    for (owner, seen, written) in count.values() {
        let of = owners.entry(owner).or_default();
        of.pages += *seen as f64 * each;
        of.written += *written as f64 * each;
        of.always += u64::from(*seen == all.len());
    }
    let named =
        owners.into_iter().map(|(owner, pages)| OwnerPages { owner: owner.to_owned(), ..pages });
    let mut owners: Vec<OwnerPages> = named.collect();
    owners.sort_by(|a, b| b.pages.total_cmp(&a.pages).then_with(|| a.owner.cmp(&b.owner)));
    let names = all.first().map_or(&[][..], |(_, names)| names);
    let mut always: Vec<Range> = Vec::new();
    let mut last = None;
    for ((file, page), _) in count.iter().filter(|(_, (_, seen, _))| *seen == all.len()) {
        match always.last_mut() {
            Some(range) if last == Some((*file, *page)) => range.pages += 1,
            _ => {
                let file = names.get(*file).cloned().unwrap_or_default();
                always.push(Range { file, first: *page, pages: 1 });
            }
        }
        last = Some((*file, page + 1));
    }
    Pages { runs: all.len(), owners, always }
}

/// Its pages, of which a file that was tampered with may name many.
fn pages_of(touched: &Touched) -> std::ops::Range<u64> {
    const MOST: u64 = 1 << 24;
    touched.first..touched.first.saturating_add(touched.pages.min(MOST))
}

/// The pages that every run had, as a list that a program can read ahead: `FILE OFFSET LENGTH`, bytes.
pub fn prefetch_list(pages: &Pages) -> String {
    let mut text = format!(
        "# file offset length: what each of {} restores had mapped at its guest's first answer\n",
        pages.runs
    );
    for Range { file, first, pages } in &pages.always {
        let _ = writeln!(text, "{file} {} {}", first * PAGE, pages * PAGE);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmeter_model::run::SourceRecord;
    use vmeter_model::RunRecord;

    #[test]
    fn pages_that_every_run_had_are_listed() {
        let folder = tempfile::tempdir().expect("a folder");
        let run = |name: &str, text: &str| -> SavedRun {
            let dir = folder.path().join(name);
            std::fs::create_dir(&dir).expect("a folder");
            std::fs::write(dir.join("snapshot-pages.txt"), text).expect("written");
            let source = SourceRecord {
                name: "snapshot-pages".into(),
                files: vec!["snapshot-pages.txt".into()],
                clock: String::new(),
                error_ns: 0,
                parameters: [("files".to_owned(), serde_json::json!(["ram"]))].into(),
            };
            (dir, RunRecord { sources: vec![source], ..RunRecord::default() })
        };
        let runs = [
            run("a", "0 4 3 read kernel code\n0 9 1 written anonymous of sh\n"),
            run("b", "0 5 3 read kernel code\n0 9 1 read anonymous of sh\n"),
        ];
        let pages = of_runs(&runs.iter().collect::<Vec<_>>());
        assert_eq!(pages.runs, 2);
        let code = &pages.owners[0];
        assert_eq!((code.owner.as_str(), code.pages, code.always), ("kernel code", 3.0, 2));
        assert_eq!((pages.owners[1].written, pages.owners[1].always), (0.5, 1));
        let list = prefetch_list(&pages);
        let lines: Vec<&str> = list.lines().skip(1).collect();
        assert_eq!(lines, ["ram 20480 8192", "ram 36864 4096"]);
    }
}
