// SPDX-License-Identifier: Apache-2.0 OR MIT

//! One mark, by two threads at once: the time of the slower one, for each page marked.

#![allow(missing_docs)]

#[allow(dead_code)]
mod common;

use common::{marks, patterns, Contender, PAGES};
use criterion::{criterion_group, criterion_main, Criterion};
use dirty_log::{DirtyBitmap, SwitchOpt};
use std::time::Duration;
use vm_memory::bitmap::AtomicBitmap;

fn contender<C: Contender>(criterion: &mut Criterion) {
    let bitmap = C::with_pages(PAGES);
    for pattern in patterns() {
        let mut group = criterion.benchmark_group(format!("mark/{}", pattern.name));
        group.bench_function(C::NAME, |bencher| {
            bencher.iter_custom(|rounds| {
                let ns: f64 = (0..rounds)
                    .map(|_| {
                        if pattern.fresh {
                            bitmap.take();
                        }
                        marks(&bitmap, &pattern.orders)
                    })
                    .sum();
                Duration::from_nanos(ns as u64)
            });
        });
    }
}

fn all(criterion: &mut Criterion) {
    contender::<AtomicBitmap>(criterion);
    contender::<DirtyBitmap<SwitchOpt>>(criterion);
}

criterion_group! {
    name = mark;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_secs(1));
    targets = all
}
criterion_main!(mark);
