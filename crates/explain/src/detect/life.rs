//! Causes that are seen in what threads do with their whole lives, not in one request.

use super::view::View;
use super::{habits, story, throttled, Candidate, Detector};
use crate::result::Severity;
use std::collections::BTreeSet;

/// What lives of threads tell.
pub struct Lives;

impl Detector for Lives {
    fn detect(&self, view: &View<'_>) -> Vec<Candidate> {
        let mut lives = story::lives(view);
        if view.is_beyond() {
            lives.iter_mut().for_each(|life| life.beyond = true);
            return lives;
        }
        let mut habits = habits::habits(view);
        // What a thread is busy with says less than why there is so much of it.
        lives.retain(|life| {
            let habit = habits.iter_mut().find(|habit| {
                (life.why.is_call() || life.why.is_thread())
                    && (life.summary.split(" after ").next())
                        .is_some_and(|told| told.contains(&habit.subject))
            });
            match habit {
                Some(habit) => {
                    habit.saving = habit.saving.max(life.saving);
                    habit.chain.extend(life.chain.iter().cloned());
                    false
                }
                None => true,
            }
        });
        let own: Option<BTreeSet<String>> =
            view.own().map(|own| own.iter().map(|group| view.threads(*group)).collect());
        let foreign = |habit: &Candidate| own.as_ref().is_some_and(|o| !o.contains(&habit.subject));
        for habit in habits.iter_mut().filter(|habit| foreign(habit)) {
            (habit.foreign, habit.at_most) = (true, Some(Severity::Low));
        }
        habits.extend(lives);
        // A way that ends there says so itself, unless it says it of little.
        let quota = |told: &Candidate| told.summary.contains("throttled");
        if !habits.iter().any(|told| quota(told) && told.at_most != Some(Severity::Low)) {
            let whole = throttled::throttled(view);
            habits.retain(|told| whole.is_empty() || !quota(told));
            habits.extend(whole);
        }
        habits
    }
}
