//! `vmeter runs list` over 10,000 sessions: reading the cache, comparing it with the folders, and
//! the answer; and every run of them, which are read from their folders.
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

fn count_runs(index: &Index, filter: &Filter) -> usize {
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
                let index = Index::open(&state.dir()).expect("an index");
                assert_eq!(index.scanned().read, 0);
                black_box(index.sessions(&filter, limit))
            });
        });
    };
    measure("the latest 20", Filter::default(), 20);
    measure("a machine since May", since_may(), 20);
    measure("all", Filter::default(), SESSIONS);
    group.sample_size(10);
    for (name, filter) in
        [("a machine since May, every run", since_may()), ("every run", Filter::default())]
    {
        group.bench_function(name, |b| {
            b.iter(|| count_runs(&Index::open(&state.dir()).expect("an index"), &filter));
        });
    }
    group.finish();
}

criterion_group!(benches, list);
criterion_main!(benches);
