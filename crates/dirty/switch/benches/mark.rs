// SPDX-License-Identifier: Apache-2.0 OR MIT

//! One mark, by two threads at once: the time of the slower one, for each page marked.

#![allow(missing_docs)]

#[allow(dead_code)]
mod common;

use common::bench_mark;
use criterion::{criterion_group, criterion_main, Criterion};
use std::time::Duration;
use vm_memory::bitmap::AtomicBitmap;
use vmeter_dirty_switch::{DirtyBitmap, SwitchOpt};

fn all(criterion: &mut Criterion) {
    bench_mark::<AtomicBitmap>(criterion);
    bench_mark::<DirtyBitmap<SwitchOpt>>(criterion);
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
