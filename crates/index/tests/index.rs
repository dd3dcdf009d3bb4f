//! The index beside real folders: what is found, what is read again, what survives damage.

mod common;

use common::State;
use std::path::Path;
use vmeter_index::{Filter, Index, IndexError};

fn ids(index: &Index, filter: &Filter) -> Vec<String> {
    let listing = index.sessions(filter, 1000);
    listing.sessions.into_iter().map(|session| session.id).collect()
}

fn machine(words: &[&str]) -> Filter {
    let machine = words.iter().map(|word| (*word).to_owned()).collect();
    Filter { machine, ..Filter::default() }
}

#[test]
fn runs_of_a_machine_since_a_date() {
    let state = State::new();
    state.session("a", "boot", "2026-04-30T23:59:59Z", &[("q35", "1")], 3);
    state.session("b", "boot", "2026-05-01T00:00:00Z", &[("q35", "1")], 3);
    state.session("c", "bench", "2026-05-02T00:00:00Z", &[("q35", "1"), ("pc", "12")], 4);
    let index = Index::open(&state.dir()).expect("an index");
    assert_eq!(ids(&index, &Filter::default()), ["a", "b", "c"]);
    assert_eq!(ids(&index, &machine(&["machine=pc"])), ["c"]);
    assert_eq!(ids(&index, &machine(&["q35", "smp=1"])), ["a", "b", "c"]);
    assert_eq!(ids(&index, &machine(&["machine=q"])), [""; 0], "a value is whole");
    assert_eq!(ids(&index, &machine(&["%"])), [""; 0], "a word is literal");
    let may = Filter { since_s: Some(1_777_593_600), ..machine(&["q35"]) };
    let listing = index.sessions(&may, 1000);
    assert_eq!((listing.found, listing.runs), (2, 5), "of c, only the runs of q35");
    let of_c = &listing.sessions[1];
    assert_eq!((of_c.id.as_str(), of_c.runs, of_c.machines), ("c", 2, 1));
    assert_eq!(of_c.machine_id, listing.sessions[0].machine_id, "the same machine");
    assert!(of_c.mean_s.is_some_and(|mean| (mean - 1.0).abs() < 0.1));
    let boots = Filter { command: Some("boot".into()), before_s: may.since_s, ..Filter::default() };
    assert_eq!(ids(&index, &boots), ["a"]);
    let latest = index.sessions(&Filter::default(), 2);
    assert_eq!((latest.sessions.len(), latest.found, latest.runs), (2, 3, 10));
    assert_eq!(latest.sessions[0].id, "b");

    let mut runs = Vec::new();
    let each = |run| {
        runs.push(run);
        Ok::<(), IndexError>(())
    };
    index.runs(&may, each).expect("runs");
    let found: Vec<(&str, u32)> = runs.iter().map(|r| (r.session.as_str(), r.run)).collect();
    assert_eq!(found, [("b", 0), ("b", 1), ("b", 2), ("c", 0), ("c", 2)]);
    assert!(runs.iter().all(|r| r.outcome == "done" && r.bytes > 0 && r.started_s.is_some()));
}

#[test]
fn only_what_has_changed_is_read_again() {
    let state = State::new();
    for name in ["a", "b", "c"] {
        state.session(name, "boot", "2026-05-01T00:00:00Z", &[("q35", "1")], 2);
    }
    state.age();
    let scanned = |state: &State| *Index::open(&state.dir()).expect("an index").scanned();
    assert_eq!((scanned(&state).read, scanned(&state).read), (3, 0));
    state.run("b", 2, "q35");
    std::fs::remove_dir_all(state.path("c")).expect("removed");
    let index = Index::open(&state.dir()).expect("an index");
    let scan = index.scanned();
    assert_eq!((scan.sessions, scan.read, scan.gone), (2, 1, 1));
    let listing = index.sessions(&Filter::default(), 10);
    assert_eq!((listing.found, listing.runs), (2, 5));
    // What has changed within the clock's last ticks is not trusted.
    assert_eq!((scanned(&state).read, scanned(&state).read), (1, 1));
}

#[test]
fn a_damaged_cache_is_read_as_far_as_it_goes_and_a_lost_one_is_no_loss() {
    let state = State::new();
    for n in 0..40 {
        state.session(&format!("s{n:02}"), "boot", "2026-05-01T00:00:00Z", &[("q35", "1")], 3);
    }
    state.age();
    let file = Index::open(&state.dir()).expect("an index").path();
    let whole = std::fs::read_to_string(&file).expect("the file");
    let (first, rest) = whole.split_once('\n').expect("lines");
    let machine = rest.lines().find(|line| line.contains("machine\":{")).expect("a machine");
    for (damaged, read) in [
        (whole.clone(), 0),
        (whole[..whole.len() - 3].to_owned(), 1),
        (whole.replacen("\"session\"", "\"sess\u{1b}", 2), 2),
        (whole.replacen("{\"version\":2}", "{\"version\":1}", 1), 40),
        (rest.to_owned(), 40),
        (whole.replacen(machine, "", 1), 40),
        (format!("{first}\n{}", "[".repeat(1 << 20)), 40),
        (String::new(), 40),
    ] {
        std::fs::write(&file, damaged).expect("written");
        let index = Index::open(&state.dir()).expect("an index");
        assert_eq!(index.scanned().read, read);
        let listing = index.sessions(&Filter::default(), 100);
        assert_eq!((listing.found, listing.runs), (40, 120));
        assert!(listing.sessions.iter().all(|session| session.machine == "q35 tcg"));
        assert!(index.notes().is_empty());
    }
    std::fs::remove_file(&file).expect("removed");
    let index = Index::open(&state.dir()).expect("an index");
    assert_eq!(index.sessions(&Filter::default(), 100).found, 40);
}

#[test]
fn a_cache_that_cannot_be_written_is_done_without() {
    let state = State::new();
    state.session("a", "boot", "2026-05-01T00:00:00Z", &[("q35", "1")], 3);
    // A folder in its place: no user, root neither, can write that file.
    std::fs::create_dir(state.dir().join("index.jsonl")).expect("a folder");
    let index = Index::open(&state.dir()).expect("an index");
    assert_eq!(index.sessions(&Filter::default(), 10).runs, 3);
    assert!(index.notes()[0].contains("each time"), "{:?}", index.notes());
}

#[test]
fn many_at_once() {
    let state = State::new();
    for n in 0..30 {
        state.session(&format!("s{n:02}"), "boot", "2026-05-01T00:00:00Z", &[("q35", "1")], 2);
    }
    std::thread::scope(|scope| {
        for worker in 0..6 {
            let state = &state;
            scope.spawn(move || {
                for round in 0..5 {
                    if worker == 0 {
                        std::fs::write(state.dir().join("index.jsonl"), b"damaged, as by a disk")
                            .expect("written");
                    }
                    if worker == 1 {
                        let name = format!("n{round}");
                        state.session(&name, "boot", "2026-05-02T00:00:00Z", &[("pc", "1")], 1);
                    }
                    let index = Index::open(&state.dir()).expect("an index");
                    let found = index.sessions(&Filter::default(), 100).found;
                    assert!((30..=35).contains(&found), "{found}");
                }
            });
        }
    });
    let index = Index::open(&state.dir()).expect("an index");
    let listing = index.sessions(&Filter::default(), 100);
    assert_eq!((listing.found, listing.runs), (35, 65));
}

#[test]
fn damaged_and_foreign_folders() {
    let state = State::new();
    state.session("good", "boot", "2026-05-01T00:00:00Z", &[("q35", "1")], 3);
    state.session("torn", "boot", "2026-05-01T00:00:00Z", &[("q35", "1")], 3);
    std::fs::write(state.path("torn/runs/0001/run.json"), b"{ torn").expect("written");
    state.session("old", "boot", "2026-05-01T00:00:00Z", &[("q35", "1")], 1);
    std::fs::write(state.path("old/session.json"), b"{\"schema\": \"vmeter/0\"}").expect("written");
    std::fs::create_dir_all(state.path("foreign/runs")).expect("a folder");
    std::fs::create_dir_all(state.path("unfinished/runs/0000.partial")).expect("a folder");
    let index = Index::open(&state.dir()).expect("an index");
    let listing = index.sessions(&Filter::default(), 10);
    let problem = |id: &str| {
        let session = listing.sessions.iter().find(|s| s.id == id).expect(id);
        session.problem.clone().unwrap_or_default()
    };
    assert_eq!(listing.sessions.len(), 3);
    assert_eq!(problem("good"), "");
    assert!(problem("torn").contains("runs/0001"), "{}", problem("torn"));
    assert!(problem("old").contains("session.json"), "{}", problem("old"));
    assert_eq!(listing.runs, 5);
}

#[test]
fn sessions_saved_elsewhere_are_remembered() {
    let state = State::new();
    let other = tempfile::tempdir().expect("a folder");
    let place = other.path().join("my runs");
    state.session_at(&place, "boot", "2026-05-01T00:00:00Z", &[("q35", "1")], 2);
    for _ in 0..2 {
        vmeter_index::remember(&state.dir(), &place).expect("remembered");
    }
    vmeter_index::remember(&state.dir(), &state.path("a")).expect("in its place already");
    let remembered = std::fs::read_to_string(state.dir().join("saved-elsewhere")).expect("a list");
    assert_eq!(remembered, format!("{}\n", place.display()));
    std::fs::remove_file(state.dir().join("index.jsonl")).ok();
    let mut index = Index::open(&state.dir()).expect("an index");
    assert_eq!(ids(&index, &Filter::default()), ["my runs"]);

    // Removed without what others have put there.
    std::fs::write(place.join("notes.txt"), b"mine").expect("written");
    let found = index.find("my").expect("by the beginning of its name");
    assert_eq!(found, place);
    assert_eq!(index.remove(&found, false).expect("removed").left, ["notes.txt"]);
    assert_eq!(std::fs::read_dir(&place).expect("it stays").count(), 1);
    assert_eq!(ids(&index, &Filter::default()), [""; 0]);
}

#[test]
fn removing() {
    let state = State::new();
    for name in ["boot-1", "boot-2", "sweep-1"] {
        state.session(name, "boot", "2026-05-01T00:00:00Z", &[("q35", "1")], 2);
    }
    let mut index = Index::open(&state.dir()).expect("an index");
    assert!(matches!(index.find("nothing"), Err(IndexError::Unknown(_))));
    assert!(matches!(index.find(""), Err(IndexError::Unknown(_))));
    assert!(matches!(index.find("boot"), Err(IndexError::Ambiguous { count: 2, .. })));
    assert!(matches!(index.remove(Path::new("/usr/lib"), false), Err(IndexError::NoSession(_))));

    let busy = std::fs::File::create(state.path("boot-2/lock")).expect("a lock");
    rustix::fs::flock(&busy, rustix::fs::FlockOperation::LockExclusive).expect("locked");
    let path = index.find("boot-2").expect("a path");
    assert!(matches!(index.remove(&path, false), Err(IndexError::Busy(_))));
    drop(busy);

    // One that a killed vmeter was removing goes as well.
    std::fs::rename(state.path("boot-1"), state.path(".removing-boot-1")).expect("renamed");
    assert!(index.remove(&path, false).expect("removed").left.is_empty());
    let kept: Vec<_> = std::fs::read_dir(state.path("")).expect("runs").flatten().collect();
    assert_eq!(kept.len(), 1, "{kept:?}");
    index.refresh().expect("refreshed");
    assert_eq!(ids(&index, &Filter::default()), ["sweep-1"]);
}
