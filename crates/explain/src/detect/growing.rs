//! A request that costs more each time: its work grows with the number of items.

use super::gap::is_idle;
use super::growth::{calls_grow, clipped_times, line, time_grows, Growth};
use super::view::{LEAST_COUNT, LEAST_SHARE};
use super::{Candidate, Detector, View};
use crate::evidence::subject::{Amount, Key, Subject, What};
use crate::evidence::tree::Frame;
use crate::kind::Why;
use crate::result::Link;
use vmeter_render::quantity::three_digits;

/// Linear growth an item, so quadratic in all.
pub struct Growing;

impl Detector for Growing {
    fn detect(&self, view: &View<'_>) -> Vec<Candidate> {
        // Whatever a guest asks for, of a device or of the hypervisor itself.
        let all = view.subjects(|what| {
            what.is_request() || matches!(what, What::Exit(_) | What::Hypercall(_))
        });
        let asked = all.into_iter().filter(|(key, _)| !is_idle(view, *key));
        asked.filter_map(|(key, subject)| self.of(view, key, subject)).collect()
    }

    fn of(&self, view: &View<'_>, key: Key, subject: &Subject) -> Option<Candidate> {
        if subject.timed < LEAST_COUNT {
            return None;
        }
        let calls = calls_grow(subject);
        let time = time_grows(subject);
        if calls.is_none() && time.is_none() {
            return None;
        }
        let points = clipped_times(subject);
        let fit = time.or_else(|| line(&points))?;
        let floor = view.peers(key).map_or(0.0, |peers| peers.typical);
        let at_first = (fit.intercept + fit.slope * points.first()?.0).max(floor);
        let saving = subject.net_total as f64 - at_first * subject.timed as f64;
        let saving = saving.max(0.0) as u64;
        if view.share(saving) < LEAST_SHARE {
            return None;
        }
        let mut chain = vec![time_link(view, key, subject, &fit)];
        let call = crate::diagnose::grown_call(view, Frame::Request(key));
        let mut what = call.map_or("its time".into(), |c| format!("its time in {}", view.name(c)));
        if let (Some(fit), Some((call, amount))) = (calls, subject.loop_of_calls()) {
            what = format!("the number of {} calls", view.name(call));
            chain.push(calls_link(view, key, &what, &fit, &amount));
        }
        Some(Candidate {
            why: Why::Grows,
            key: Some(key),
            subject: view.subject(key),
            saving,
            summary: format!(
                "{} costs more each time: {what} grows linearly with the items before it, \
                 quadratic in all",
                view.subject(key)
            ),
            chain,
            suggestion: "do the work for the new item only: keep what was built for the items \
                         before it, or build it once after the last"
                .into(),
            confirm: "vmeter trace stat TRACE --vs TRACE_WITH_TWICE_THE_ITEMS --per trace (the \
                      total grows fourfold if it is quadratic)"
                .into(),
            ..Candidate::default()
        })
    }
}

fn time_link(view: &View<'_>, key: Key, subject: &Subject, fit: &Growth) -> Link {
    let claim = format!(
        "its cost grows with its number: {} + {} × n, {} at the end (R² {}), so the total of n \
         {} is quadratic",
        view.time(fit.intercept.max(0.0)),
        view.time(fit.slope),
        view.time(fit.last),
        three_digits(fit.r2),
        view.instances(key)
    );
    let figures = [("slope_ticks", fit.slope), ("intercept_ticks", fit.intercept), ("r2", fit.r2)];
    let places = [subject.first.map(|place| (0, place)), subject.worst];
    view.link(key.file, claim, (subject.timed, subject.net_total), &figures, &places)
}

fn calls_link(view: &View<'_>, key: Key, what: &str, fit: &Growth, amount: &Amount) -> Link {
    let claim = format!(
        "{what} in an access grows with it: {} × n, {} at the end (R² {}); {} calls take {}",
        three_digits(fit.slope),
        three_digits(fit.last),
        three_digits(fit.r2),
        amount.count,
        view.time(amount.ticks as f64)
    );
    let figures = [("calls_per_item", fit.slope), ("r2", fit.r2)];
    view.link(key.file, claim, (amount.count, amount.ticks), &figures, &[amount.worst])
}
