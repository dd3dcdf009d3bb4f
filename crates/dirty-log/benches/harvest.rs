// SPDX-License-Identifier: Apache-2.0 OR MIT

//! One harvest of 917 248 pages, visiting each dirty word, waiting for writers included.

#![allow(missing_docs)]

#[allow(dead_code)]
mod common;

use common::{loads, Contender, SkipZero, PAGES};
use criterion::{criterion_group, criterion_main, Criterion};
use dirty_log::{DirtyBitmap, GetOpt, GetOrg, SwitchOpt};
use std::time::{Duration, Instant};
use vm_memory::bitmap::AtomicBitmap;

fn contender<C: Contender>(criterion: &mut Criterion) {
    let bitmap = C::with_pages(PAGES);
    for (load, dirty) in loads() {
        let mut group = criterion.benchmark_group(format!("harvest/{load}"));
        group.bench_function(C::NAME, |bencher| {
            if dirty.is_empty() {
                bitmap.take();
                return bencher.iter(|| bitmap.take());
            }
            bencher.iter_custom(|rounds| {
                let mut total = Duration::ZERO;
                for _ in 0..rounds {
                    dirty.iter().for_each(|&page| bitmap.set(page));
                    let start = Instant::now();
                    criterion::black_box(bitmap.take());
                    total += start.elapsed();
                }
                total
            });
        });
    }
}

fn all(criterion: &mut Criterion) {
    contender::<AtomicBitmap>(criterion);
    contender::<SkipZero>(criterion);
    contender::<DirtyBitmap<GetOrg>>(criterion);
    contender::<DirtyBitmap<GetOpt>>(criterion);
    contender::<DirtyBitmap<SwitchOpt>>(criterion);
}

criterion_group! {
    name = harvest;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1));
    targets = all
}
criterion_main!(harvest);
