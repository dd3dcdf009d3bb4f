//! Whose time is explained, and why theirs.

use super::view::LEAST_COUNT;
use super::View;
use crate::diagnose::partner as closed;
use crate::evidence::tree::Frame;
use crate::result::Followed;
use vmeter_render::quantity::{brief_percent, grouped};

/// Most that are named.
const MOST: usize = 3;
/// A thread's part of the traced time from which it is looked at.
const LEAST_LIFE: f64 = 0.05;

/// Whose time is explained, and why.
pub fn followed(view: &View<'_>) -> Vec<Followed> {
    let mut all = of_guest(view);
    if view.comm().is_some() || all.is_empty() {
        all.extend(threads(view));
    }
    all
}

fn of_guest(view: &View<'_>) -> Vec<Followed> {
    if view.comm().is_some() {
        return Vec::new();
    }
    let requests = view.requests();
    let count: u64 = requests.iter().map(|(_, subject)| subject.count).sum();
    if count < LEAST_COUNT {
        return Vec::new();
    }
    let count = grouped(&count.to_string());
    let mut all = vec![Followed {
        subject: "the guest's vCPUs".into(),
        because: format!(
            "the trace has {count} of their accesses to devices; a vCPU waits until \
            each access is served"
        ),
    }];
    all.extend(view.evidence.xen.model().map(|model| Followed {
        subject: view.thread(model),
        because:
            "taken as the device model, because it is woken most often while a vCPU waits".into(),
    }));
    all
}

fn threads(view: &View<'_>) -> Vec<Followed> {
    let evidence = view.evidence;
    let mut all: Vec<(f64, Followed)> = Vec::new();
    for (_, node) in view.tree().roots() {
        let Frame::Life(group) = node.frame else { continue };
        let named = view.comm().map(|_| view.is_named(group));
        let share = view.share(node.ticks);
        let because = match named {
            Some(true) if view.is_called(group) => "its name was given (--comm)".to_string(),
            Some(true) => {
                "--comm names another thread of its process or of its parent process (if one thread \
                wakes another by futex, vmeter takes both for one process)"
                    .to_string()
            }
            Some(false) => continue,
            None if evidence.groups.is_kernel(group) || share < LEAST_LIFE => continue,
            None if view.is_foreign(group) => continue,
            None if view.own().is_some() => {
                "a process that was recorded, or one that a recorded process waits for".to_string()
            }
            None => match closed(view, group) {
                Some((other, part, times)) if part >= 0.1 => format!(
                    "it and {} wait for each other in turn. Each side spends some part of its \
                        time in these waits; the sum of both parts is {}. The followed thread \
                        waited {} times",
                    view.threads(other),
                    brief_percent(part),
                    grouped(&times.to_string())
                ),
                _ => continue,
            },
        };
        let order = closed(view, group).map_or(share, |(_, part, _)| part);
        all.push((order, Followed { subject: view.threads(group), because }));
    }
    all.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.subject.cmp(&b.1.subject)));
    all.truncate(MOST);
    let mut all: Vec<Followed> = all.into_iter().map(|(_, followed)| followed).collect();
    if all.is_empty() && evidence.runs_seen() {
        all.push(Followed {
            subject: "threads by their time".into(),
            because: "no guest is in the trace, and hardly any threads wait for each other: \
                choose the threads to follow with --comm NAME"
                .into(),
        });
    }
    all
}
