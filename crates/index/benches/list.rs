//! `vmeter runs list` over 10,000 sessions: opening the index, comparing it with the folders,
//! and the answer. Then with a million runs in the same sessions.
#![allow(missing_docs, reason = "criterion's macros make undocumented items")]

#[path = "../tests/common/mod.rs"]
mod common;

use common::State;
use criterion::{criterion_group, criterion_main, Criterion};
use std::hint::black_box;
use vmeter_index::{Filter, Index, IndexError};

const SESSIONS: usize = 10_000;
const RUNS: u32 = 3;

fn generated() -> State {
    let state = State::new();
    let kinds = ["q35", "pc", "microvm", "pvh"];
    for n in 0..SESSIONS {
        let smp = (1 + n % 50).to_string();
        let day = format!("2026-{:02}-{:02}T12:00:00Z", 1 + n % 12, 1 + n / 12 % 28);
        state.session(&format!("s{n:05}"), "boot", &day, &[(kinds[n % 4], &smp)], RUNS);
    }
    state.age();
    state
}

fn since_may() -> Filter {
    Filter {
        machine: vec!["q35".into(), "smp=5".into()],
        since_s: Some(1_777_593_600),
        ..Filter::default()
    }
}

fn count_runs(index: &mut Index, filter: &Filter) -> usize {
    let mut n = 0;
    let each = |run| {
        black_box(run);
        n += 1;
        Ok::<(), IndexError>(())
    };
    index.runs(filter, each).expect("runs");
    n
}

fn list(c: &mut Criterion) {
    let state = generated();
    let mut group = c.benchmark_group("10000 sessions");
    group.sample_size(10);
    group.bench_function("read for the first time", |b| {
        b.iter(|| Index::rebuild(&state.dir()).expect("an index"));
    });
    // Where only some benchmarks are asked for, nothing has been read yet.
    drop(Index::open(&state.dir()).expect("an index"));
    group.sample_size(20);
    let mut measure = |name: &str, filter: Filter, limit: usize| {
        group.bench_function(name, |b| {
            b.iter(|| {
                let mut index = Index::open(&state.dir()).expect("an index");
                assert_eq!(index.scanned().read, 0);
                black_box(index.sessions(&filter, limit).expect("a list"))
            });
        });
    };
    measure("the latest 20", Filter::default(), 20);
    measure("a machine since May", since_may(), 20);
    measure("all", Filter::default(), SESSIONS);
    group.finish();
    multiply(&state);
    let mut group = c.benchmark_group("1000000 runs");
    group.sample_size(10);
    group.bench_function("a machine since May, every run", |b| {
        b.iter(|| {
            let mut index = Index::open(&state.dir()).expect("an index");
            count_runs(&mut index, &since_may())
        });
    });
    group.bench_function("the latest 20", |b| {
        b.iter(|| {
            let mut index = Index::open(&state.dir()).expect("an index");
            black_box(index.sessions(&Filter::default(), 20).expect("a list"))
        });
    });
    group.bench_function("every run", |b| {
        b.iter(|| {
            let mut index = Index::open(&state.dir()).expect("an index");
            assert!(count_runs(&mut index, &Filter::default()) >= 1_000_000);
        });
    });
}

/// Adds runs to the index that the folders do not have.
fn multiply(state: &State) {
    let path = Index::open(&state.dir()).expect("an index").path();
    let db = rusqlite::Connection::open(path).expect("the file");
    let added = db.execute(
        "WITH RECURSIVE k(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM k WHERE n < 33)
         INSERT INTO run SELECT session, number + 10 * n, position, warmup, outcome, started_ns,
             total_ns, user_s, system_s, max_rss_bytes, steal_s, bytes FROM run, k",
        [],
    );
    assert_eq!(added.expect("runs"), SESSIONS * RUNS as usize * 33);
}

criterion_group!(benches, list);
criterion_main!(benches);
