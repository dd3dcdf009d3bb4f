use super::dissect::{dissect, Part, Step, PARTS};
use super::marks::{Ioctl, Mark, MarkKind};
use proptest::prelude::*;

const US: i32 = 100;
const KWORKER: i32 = 7;
const BUSY: i32 = 200;
const GP: (u64, u32) = (0x10, 0xf0);
const CALLBACKS: (u64, u32) = (0x20, 0xf8);

fn mark(at: u64, tid: i32, what: MarkKind) -> Mark {
    Mark { at, tid, what }
}

fn switch(at: u64, from: i32, runnable: bool, to: i32) -> Mark {
    mark(at, from, MarkKind::Switch { from, runnable, to })
}

/// A commit on a busy host: copied in 40, queued for 400, at work for 5, queued again for
/// 200, woken, and on a CPU 30 later.
fn busy() -> Vec<Mark> {
    vec![
        mark(1000, US, MarkKind::Enter(Ioctl::Commit)),
        mark(1038, US, MarkKind::Queue(GP.0, GP.1)),
        switch(1040, US, false, BUSY),
        switch(1440, BUSY, true, KWORKER),
        mark(1440, KWORKER, MarkKind::Start(GP.0, GP.1)),
        mark(1444, KWORKER, MarkKind::Queue(CALLBACKS.0, CALLBACKS.1)),
        mark(1445, KWORKER, MarkKind::End(GP.0)),
        switch(1445, KWORKER, true, BUSY),
        switch(1645, BUSY, true, KWORKER),
        mark(1645, KWORKER, MarkKind::Start(CALLBACKS.0, CALLBACKS.1)),
        mark(1647, KWORKER, MarkKind::Waking(US)),
        mark(1648, KWORKER, MarkKind::End(CALLBACKS.0)),
        switch(1677, BUSY, true, US),
        mark(1680, US, MarkKind::Exit),
    ]
}

#[test]
fn a_busy_hosts_commit_waits_for_a_kworker() {
    let calls = dissect(&busy(), US, 0..10_000);
    assert_eq!(calls.len(), 1);
    let call = &calls[0];
    assert!(call.is_commit() && call.length() == 680);
    assert_eq!(call.part(Part::Work), 40 + 3);
    assert_eq!(call.part(Part::KworkerQueued), 400 + 200);
    assert_eq!(call.part(Part::KworkerRuns), 5 + 2);
    assert_eq!(call.part(Part::Woken), 30);
    assert_eq!((call.kworker_followed, call.caller_followed), (Some(BUSY), Some(BUSY)));
    assert!(call.steps.contains(&(1440, Step::Start(KWORKER, GP.1, Some(BUSY)))));
}

#[test]
fn a_kworker_that_is_preempted_or_sleeps_is_told_apart() {
    let calls = dissect(
        &[
            mark(0, US, MarkKind::Enter(Ioctl::Commit)),
            mark(5, US, MarkKind::Queue(GP.0, GP.1)),
            mark(5, KWORKER, MarkKind::Start(GP.0, GP.1)),
            switch(10, US, false, 0),
            switch(20, KWORKER, true, BUSY),
            switch(50, BUSY, true, KWORKER),
            switch(60, KWORKER, false, BUSY),
            mark(100, BUSY, MarkKind::Waking(KWORKER)),
            switch(104, BUSY, true, KWORKER),
            mark(105, KWORKER, MarkKind::End(GP.0)),
            mark(140, KWORKER, MarkKind::Waking(US)),
            switch(141, 0, true, US),
            switch(150, US, true, BUSY),
            switch(170, BUSY, true, US),
            mark(171, US, MarkKind::Exit),
            mark(180, US, MarkKind::Enter(Ioctl::Irqfd)),
            mark(181, US, MarkKind::Exit),
        ],
        US,
        0..1000,
    );
    let call = &calls[0];
    assert_eq!(call.part(Part::KworkerRuns), 10 + 10 + 1);
    assert_eq!(call.part(Part::KworkerRunnable), 30 + 4);
    assert_eq!(call.part(Part::GracePeriod), 40 + 35);
    assert_eq!((call.part(Part::Woken), call.part(Part::Preempted)), (1, 20));
    assert!(calls[1].is_irqfd() && calls[1].length() == 1);
}

#[test]
fn a_switch_from_the_idle_thread_may_be_missing() {
    let mut marks = busy();
    marks.retain(|mark| mark.at != 1677);
    let calls = dissect(&marks, US, 0..10_000);
    assert_eq!((calls[0].part(Part::Woken), calls[0].part(Part::Resumed)), (0, 33));
    assert_eq!((calls[0].part(Part::Work), calls[0].length()), (40, 680));
}

#[test]
fn other_threads_ioctls_and_what_is_outside_the_window_count_nowhere() {
    assert!(dissect(&busy(), KWORKER, 0..10_000).is_empty());
    assert!(dissect(&busy(), US, 1500..10_000).is_empty());
    assert!(dissect(&busy(), US, 0..1500).is_empty());
}

fn any_mark() -> impl Strategy<Value = Mark> {
    let tid = || 0i32..4;
    let work = || 0u64..4;
    let function = || 0u32..4;
    let what = prop_oneof![
        Just(MarkKind::Enter(Ioctl::Commit)),
        Just(MarkKind::Exit),
        (tid(), any::<bool>(), tid()).prop_map(|(from, runnable, to)| MarkKind::Switch {
            from,
            runnable,
            to
        }),
        tid().prop_map(MarkKind::Waking),
        (work(), function()).prop_map(|(w, f)| MarkKind::Queue(w, f)),
        (work(), function()).prop_map(|(w, f)| MarkKind::Start(w, f)),
        work().prop_map(MarkKind::End),
    ];
    (any::<u16>(), tid(), what).prop_map(|(at, tid, what)| Mark { at: at.into(), tid, what })
}

proptest! {
    #[test]
    fn parts_add_up_to_the_call(mut marks in proptest::collection::vec(any_mark(), 0..200)) {
        marks.sort_by_key(|mark| mark.at);
        for call in dissect(&marks, 1, 0..u64::MAX) {
            let parts: u64 = PARTS.into_iter().map(|part| call.part(part)).sum();
            prop_assert_eq!(parts, call.length());
        }
    }

    #[test]
    fn any_order_is_survived(marks in proptest::collection::vec(any_mark(), 0..200)) {
        let in_order = |marks: &[Mark]| marks.windows(2).all(|w| w[0].at <= w[1].at);
        prop_assume!(in_order(&marks) || !marks.is_empty());
        let _ = dissect(&marks, 1, 0..u64::MAX).iter().map(|c| c.from).max();
    }
}
