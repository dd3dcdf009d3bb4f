//! Waiting that ends when a timer fires, not when there is something to go on with.

use super::{Candidate, Detector, View};
use crate::evidence::subject::{Key, Part, Subject};
use vmeter_render::quantity::plural;

/// Sleeps and polling intervals.
pub struct TimerPaced;

impl Detector for TimerPaced {
    fn kind(&self) -> &'static str {
        "timer-paced"
    }

    fn of(&self, view: &View<'_>, key: Key, subject: &Subject) -> Option<Candidate> {
        let timer = |part: Part| matches!(part, Part::Timer(_));
        let ticks = subject.ticks(|_, part| timer(part));
        if !view.is_cause(key, subject, ticks) {
            return None;
        }
        let sleeping = subject.parts.iter().filter(|((_, part), _)| timer(*part));
        let (&(who, part), most) = sleeping.clone().max_by_key(|(_, amount)| amount.ticks)?;
        let waits: u64 = sleeping.map(|(_, amount)| amount.count).sum();
        let median = subject.sleeps.quantile(0.5).unwrap_or(0.0);
        let period = view.seconds(median as u64).and_then(period);
        let paced = period.map_or(String::new(), |ms| format!(", a timer of {ms} ms"));
        let (who, called) = (
            view.who(who),
            match part {
                Part::Timer(Some(call)) => view.name(call).to_string(),
                _ => "a wait".to_string(),
            },
        );
        let claim = format!(
            "in it, {who} sleeps in {called} until a timer fires: {} of median {}{paced}, {} in all",
            plural(waits, "wait"),
            view.time(median),
            view.time(ticks as f64)
        );
        let mut figures = vec![("median_ticks", median)];
        figures.extend(period.map(|ms| ("period_ms", ms)));
        Some(Candidate {
            kind: self.kind(),
            key: Some(key),
            subject: view.subject(key),
            saving: ticks,
            summary: format!("{} sleeps in {called}{paced}", view.subject(key)),
            chain: vec![view.link(key.file, claim, (waits, ticks), &figures, &[most.worst])],
            suggestion: format!(
                "wait for the event instead of the clock: have what {called} waits for signal an \
                 eventfd or a condition variable, or serve the request without waiting"
            ),
            confirm: "vmeter trace stat TRACE --vs TRACE_WITH_HALF_THE_SLEEP (the port's median \
                      follows the sleep's length)"
                .into(),
            ..Candidate::default()
        })
    }
}

/// The usual period that a sleep of this length comes from: it ends late, never early.
fn period(seconds: f64) -> Option<f64> {
    [1.0, 2.0, 4.0, 5.0, 10.0, 20.0, 40.0, 50.0, 100.0, 200.0]
        .into_iter()
        .rev()
        .find(|ms| (0.99..1.35).contains(&(seconds * 1e3 / ms)))
}
