//! Guests that die, rings that overflow, slots that go away; where /dev/kvm runs no guest
//! code natively, a line says so.

use crate::bitmaps::DirtyWords;
use crate::check::{expected, in_memory, whole};
use crate::layout::{Layout, PAGE};
use crate::memory::files;
use crate::result::DirtyResult;
use crate::source::TrackerKind;
use crate::station::{missing, Setting, TrackedGuest};
use crate::workload::{Kind, Page};
use crate::{measure, CliOptions, DirtyError, DirtyOptions};
use std::collections::BTreeMap;
use std::time::Duration;
use vmeter_dirty_switch::StrategyKind;
use vmeter_kvm_probe::{probe, Ring};
use vmeter_session::failure::class;
use vmeter_session::{Interrupt, RunOptions, Watch};

const TWO_SLOTS: &str = r#"[{"slot": 0, "bytes": "4M"}, {"slot": 5, "bytes": 409600}]"#;

fn with_kvm(body: impl FnOnce()) {
    match probe(Duration::from_secs(2)) {
        Ok(found) if found.ring3.is_native() => body(),
        Ok(found) => println!("skipped: ring 3 is {}", found.ring3),
        Err(error) => println!("skipped: {error}"),
    }
}

/// A station of each tracker that this host has, one after the other.
fn each_tracker(ring_entries: usize, test: impl Fn(&mut TrackedGuest, &Layout)) {
    with_kvm(|| {
        let layout = Layout::parse(TWO_SLOTS, "test").unwrap();
        let files = files(&layout, || Ok(())).unwrap();
        let warm = pages(0..1024, 0..100);
        let setting = Setting {
            layout: &layout,
            files: &files,
            strategies: &StrategyKind::ALL,
            ring: Ring::Three,
            ring_entries,
            cpus: None,
            most_pages: warm.len() + 1,
            interrupt: &Interrupt::default(),
        };
        for &kind in TrackerKind::ALL {
            if let Some(reason) = missing(kind, ring_entries).unwrap() {
                println!("skipped: {reason}");
                continue;
            }
            match TrackedGuest::new(setting, Some(kind), &warm, 1) {
                Ok(mut station) => test(&mut station, &layout),
                Err(error) => println!("skipped: {kind}: {error}"),
            }
        }
    });
}

fn pages(first: std::ops::Range<u64>, second: std::ops::Range<u64>) -> Vec<Page> {
    let of = |slot, range: std::ops::Range<u64>| range.map(move |page| Page { slot, page });
    of(0, first).chain(of(1, second)).collect()
}

fn addresses(layout: &Layout, pages: &[Page]) -> Vec<u64> {
    let places = layout.places();
    pages.iter().map(|page| places[page.slot] + page.page * PAGE).collect()
}

fn bitmaps(layout: &Layout, told: &DirtyWords) -> Vec<Vec<u64>> {
    let words = layout.slots.iter().map(|slot| slot.pages().div_ceil(64) as usize);
    told.iter().zip(words).map(|(told, words)| whole(words, told)).collect()
}

/// Half of its writes done, the guest writes where nothing is mapped: a triple fault. What
/// it wrote before is told, and nothing else; a ring is collected in the middle as well.
#[test]
fn a_guest_that_dies_has_its_last_writes_told() {
    each_tracker(256, |station, layout| {
        let written = pages(100..700, 3..50);
        let mut list = addresses(layout, &written);
        list.push(1 << 46);
        list.extend(addresses(layout, &pages(800..900, 60..70)));
        let died = station.write_to(&list, 77).unwrap_err();
        assert!(matches!(&died, DirtyError::Died { .. }), "{}: {died}", station.tracker);
        let (_, told) = station.collect().unwrap();
        assert_eq!(bitmaps(layout, &told), expected(layout, &written), "{}", station.tracker);
        assert_eq!(in_memory(station.slots(), 77).unwrap(), expected(layout, &written));
        let (_, told) = station.collect().unwrap();
        assert_eq!(bitmaps(layout, &told), expected(layout, &[]), "{}", station.tracker);
    });
}

#[test]
fn a_ring_that_overflows_loses_nothing() {
    each_tracker(256, |station, layout| {
        let written = pages(0..1000, 10..90);
        let wrote = station.write_to(&addresses(layout, &written), 78).unwrap();
        let full = if station.tracker == "kvm-ring" { 3 } else { 0 };
        assert!(wrote.interruptions >= full, "{}: {wrote:?}", station.tracker);
        let (collected, told) = station.collect().unwrap();
        assert_eq!(bitmaps(layout, &told), expected(layout, &written), "{}", station.tracker);
        assert!(collected.total_ns > 0.0);
    });
}

/// The slot is taken away from the VM between two harvests: the tracker says so and names
/// the call, or tells what there is; nothing else happens, and the other slot goes on.
#[test]
fn a_slot_that_is_removed_is_an_error_and_no_more() {
    each_tracker(4096, |station, layout| {
        let tracker = station.tracker;
        if !tracker.starts_with("kvm-") {
            return;
        }
        station.write_to(&addresses(layout, &pages(0..10, 0..10)), 79).unwrap();
        station.remove_slot(1).unwrap();
        match station.collect() {
            Ok((_, told)) => {
                assert_eq!(
                    tracker, "kvm-ring",
                    "KVM reports the dirty log of a slot that was \
                    removed"
                );
                let both = expected(layout, &pages(0..10, 0..10));
                assert_eq!(bitmaps(layout, &told), both, "{tracker}");
            }
            Err(error) => {
                assert!(error.to_string().contains("KVM_GET_DIRTY_LOG"), "{tracker}: {error}");
            }
        }
        let died = station.write_to(&addresses(layout, &pages(20..21, 5..6)), 80).unwrap_err();
        assert!(matches!(&died, DirtyError::Died { .. }), "{tracker}: {died}");
    });
}

/// A slot comes and goes while another thread harvests both of them.
#[test]
fn a_slot_is_removed_while_it_is_harvested() {
    each_tracker(4096, |station, layout| {
        if !station.tracker.starts_with("kvm-") {
            return;
        }
        let remover = station.remover(1);
        let (mut gone, mut told_first) = (0, 0);
        std::thread::scope(|scope| {
            let other = scope.spawn(move || (0..200).for_each(|_| remover.away_and_back()));
            while !other.is_finished() {
                match station.collect() {
                    Ok((_, told)) => told_first += told[0].len(),
                    Err(DirtyError::Track { .. }) => gone += 1,
                    Err(other) => panic!("{other}"),
                }
            }
            other.join().unwrap();
        });
        println!("{}: {gone} harvests met no slot", station.tracker);
        assert_eq!(told_first, 0, "{}: pages that nobody wrote", station.tracker);
        station.discard();
        let written = pages(5..25, 0..0);
        station.write_to(&addresses(layout, &written), 81).unwrap();
        let (_, told) = station.collect().unwrap();
        assert_eq!(bitmaps(layout, &told)[0], expected(layout, &written)[0], "{}", station.tracker);
    });
}

/// Measures into a folder that is gone afterwards.
fn measured(given: &CliOptions, passes: Option<u32>, stop: bool) -> anyhow::Result<DirtyResult> {
    let folder = tempfile::tempdir().unwrap();
    let interrupt = Interrupt::default();
    if stop {
        interrupt.raise();
    }
    let save = Some(folder.path().join("session"));
    let runs = RunOptions { runs: passes, save, ..RunOptions::default() };
    let options = DirtyOptions { given: given.clone(), runs };
    measure(&options, &mut Watch::new(&mut (), &interrupt))
}

#[test]
fn all_trackers_agree_bit_for_bit_on_the_same_random_workload() {
    with_kvm(|| {
        let given = CliOptions {
            workload: Some(Kind::Random),
            slots: Some(Layout::parse(TWO_SLOTS, "test").unwrap()),
            dirty: Some(30.0),
            ring_entries: Some(256),
            ..CliOptions::default()
        };
        let result = measured(&given, Some(3), false).unwrap();
        assert!(result.verified, "{:?}", result.mismatches);
        let mut dirty: BTreeMap<(u32, u32), Vec<u64>> = BTreeMap::new();
        for row in &result.rows {
            dirty.entry((row.pass, row.slot)).or_default().push(row.dirty_pages);
        }
        assert_eq!(dirty.len(), 6);
        assert!(dirty.values().all(|counts| counts.windows(2).all(|pair| pair[0] == pair[1])));
        let trackers = result.trackers.len() - 1;
        assert_eq!(result.rows.len(), trackers * 3 * 2 * 3);
        assert_eq!(trackers + result.skipped.len(), TrackerKind::ALL.len());
        let bits = (1024 + 100) * (3 * (1 + trackers * 5) + 12 * (1 + trackers * 2)) as u64;
        assert_eq!(result.checked_bits, bits, "a bit was not compared");
    });
}

#[test]
fn what_cannot_be_is_refused() {
    let refused = |given: CliOptions, passes: Option<u32>| {
        let error = measured(&given, passes, false).unwrap_err();
        (class(&error).status(), error.to_string())
    };
    for (given, passes, named) in [
        (CliOptions { tracker: Some(vec![]), ..CliOptions::default() }, None, "no tracker"),
        (CliOptions { dirty: Some(150.0), ..CliOptions::default() }, None, "percent"),
        (CliOptions { ring_entries: Some(1000), ..CliOptions::default() }, None, "power of two"),
        (CliOptions::default(), Some(0), "passes"),
    ] {
        let (status, text) = refused(given, passes);
        assert!(status == 2 && text.contains(named), "{status}: {text}");
    }
    with_kvm(|| {
        let (status, text) = refused(CliOptions { ring: Some(2), ..CliOptions::default() }, None);
        assert!(status == 2 && text.contains("ring 2"), "{status}: {text}");
        let stopped = measured(&CliOptions::default(), None, true).unwrap_err();
        assert_eq!(class(&stopped).status(), 130, "{stopped}");
        let (status, text) = refused(CliOptions { memory: Some(1), ..CliOptions::default() }, None);
        assert!(status == 3 && text.contains("--slots"), "{status}: {text}");
    });
}
