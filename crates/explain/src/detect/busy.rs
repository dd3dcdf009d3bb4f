//! A host that is busy: what that does to the figures.

use super::View;
use crate::evidence::thread::{State, Thread};
use crate::moment::Tid;
use vmeter_render::quantity::brief_percent;

/// A vCPU that waits for a CPU for this share of the time that it could run says that the host is busy.
const BUSY: f64 = 0.1;

fn vcpus<'a>(view: &View<'a>) -> Vec<(Tid, &'a Thread)> {
    let threads = view.evidence.threads.iter().filter(|(_, thread)| thread.is_vcpu);
    let mut all: Vec<(Tid, &Thread)> = threads.map(|(tid, thread)| (*tid, thread)).collect();
    all.sort_by_key(|(tid, _)| *tid);
    all
}

/// What a busy host does to the figures.
pub fn warnings(view: &View<'_>) -> Vec<String> {
    let busy = vcpus(view).into_iter().filter_map(|(tid, thread)| {
        let waited = thread.times[State::Runnable as usize];
        let share = waited as f64 / thread.ran().saturating_add(waited).max(1) as f64;
        (share >= BUSY && view.share(waited) >= BUSY).then(|| {
            format!(
                "{} waited for a CPU during {} of the time when it had work to do: the host was \
                    busy, so times are longer than on an idle host",
                view.thread(tid),
                brief_percent(share)
            )
        })
    });
    busy.collect()
}
