// SPDX-License-Identifier: Apache-2.0 OR MIT

//! One harvest of 917 248 pages, visiting each dirty word, waiting for writers included.

#![allow(missing_docs)]

#[allow(dead_code)]
mod common;

use common::{bench_harvest, SkipZero};
use criterion::{criterion_group, criterion_main, Criterion};
use std::time::Duration;
use vm_memory::bitmap::AtomicBitmap;
use vmeter_dirty_switch::{DirtyBitmap, GetOpt, GetOrg, SwitchOpt};

fn all(criterion: &mut Criterion) {
    bench_harvest::<AtomicBitmap>(criterion);
    bench_harvest::<SkipZero>(criterion);
    bench_harvest::<DirtyBitmap<GetOrg>>(criterion);
    bench_harvest::<DirtyBitmap<GetOpt>>(criterion);
    bench_harvest::<DirtyBitmap<SwitchOpt>>(criterion);
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
