//! How often the runs of machines in turn were looked at, and what each look may therefore say.
//!
//! Who looks at the runs, finds nothing, adds more and looks again finds something more often
//! than one look's level says. So a session keeps its looks. The first has the whole 5 %; what is
//! added afterwards has half a percent among all further looks. `--detect PCT` plans its looks: all
//! but the last have so little each (0.05 %; J. Haybittle 1971, R. Peto et al. 1976) that the last
//! keeps nearly all of it, and how many runs there are until the last depends on their noise alone,
//! never on their difference.

use crate::blocks::pairs;
use crate::compare::Sampled;
use serde::{Deserialize, Serialize};
use vmeter_stats::decide::MARGIN;
use vmeter_stats::Rule;

/// Chance of a false difference of all looks together.
const ALPHA: f64 = 0.05;
/// … of each look of `--detect` but the last.
const INTERIM: f64 = 0.0005;
/// … of the first of the looks that were not planned; each next one has half of it.
const EXTENSION: f64 = 0.0025;
/// Pairs at the first look of `--detect`: with fewer no interim look can find anything.
const PILOT: usize = 12;
/// Pairs at most, unless `--runs` says otherwise.
const MOST: usize = 2000;

/// What a session that compares machines keeps of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Asked {
    /// `--detect`, %.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detect: Option<f64>,
    /// Looks so far.
    #[serde(default)]
    pub looks: Vec<Look>,
}

/// A look at the runs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Look {
    /// Runs of each machine at it.
    pub runs: usize,
    /// True for the one that ends it.
    pub last: bool,
}

impl Asked {
    /// Notes a look at so many runs, unless that was the latest one.
    fn looked(&mut self, runs: usize, last: bool) {
        if self.looks.last().is_none_or(|look| look.runs < runs || look.last != last) {
            self.looks.push(Look { runs, last });
        }
    }

    /// True for the looks of `--detect` that have not come to their end.
    pub fn is_open(&self) -> bool {
        self.detect.is_some() && !self.looks.last().is_some_and(|look| look.last)
    }

    /// Looks at the runs, so many of each machine, of which some `failed`; how many there must be
    /// at the next look, if there is to be one.
    pub fn look(
        &mut self,
        machines: &[Sampled<'_>],
        (runs, most): (usize, Option<u32>),
        failed: bool,
    ) -> Option<usize> {
        if !self.is_open() {
            self.looked(runs, true);
            return None;
        }
        let more = self.next(machines, runs, most).filter(|_| !failed);
        // What ends it before the runs that were wanted keeps the level of a look on the way.
        let last = more.is_none() && !self.stopped_early(machines, runs, most);
        self.looked(runs, last);
        more
    }

    /// How the runs are judged at the latest look.
    pub fn rule(&self) -> Rule {
        let interim = self.looks.iter().filter(|look| !look.last).count();
        let ended = self.looks.last().is_some_and(|look| look.last);
        let alpha = match self.detect {
            Some(_) if ended => ALPHA - INTERIM * interim as f64,
            Some(_) => INTERIM,
            None => match self.looks.len() {
                0 | 1 => ALPHA,
                n => EXTENSION / 2f64.powi(i32::try_from(n - 2).unwrap_or(i32::MAX)),
            },
        };
        let margin = self.detect.map_or(MARGIN, |pct| pct / 100.0);
        Rule { alpha, margin, ..Rule::default() }
    }

    /// Runs to have at the first look of `--detect`, with so many at most.
    pub fn first(&self, most: Option<u32>) -> usize {
        PILOT.min(most.map_or(MOST, |most| most as usize))
    }

    /// Runs to have at the next look of `--detect`, after this one; none if it is the last:
    /// everything differs, or the effect asked for would have been found.
    fn next(&self, machines: &[Sampled<'_>], runs: usize, most: Option<u32>) -> Option<usize> {
        let effect = self.detect? / 100.0;
        let most = most.map_or(MOST, |most| most as usize);
        let (first, others) = machines.split_first()?;
        let all: Vec<Vec<(f64, f64)>> =
            others.iter().map(|other| pairs(&first.wall, &other.wall).0).collect();
        let comparisons = others.len();
        let interim = Rule { alpha: INTERIM, comparisons, ..Rule::default() };
        let differs = |pairs: &Vec<(f64, f64)>| {
            interim.decide(pairs).is_some_and(|found| {
                let [low, high] = found.ratio.ci95;
                found.pairs >= found.needed && (low > 1.0 || high < 1.0)
            })
        };
        if all.iter().all(differs) {
            return None;
        }
        let looks = self.looks.len() as f64 + 2.0;
        let last = Rule { alpha: ALPHA - INTERIM * looks, comparisons, ..Rule::default() };
        let wanted = all.iter().filter_map(|pairs| last.pairs_for(pairs, effect)).max()?;
        let wanted = wanted.min(most);
        // As many again at most, so that what is far larger than asked for ends it early.
        (runs < wanted).then(|| wanted.min(runs * 2))
    }

    /// True where fewer runs were made than were wanted or allowed, everything having been found
    /// before: then what is said is said at the level of a look on the way.
    fn stopped_early(&self, machines: &[Sampled<'_>], runs: usize, most: Option<u32>) -> bool {
        let Some(effect) = self.detect.map(|pct| pct / 100.0) else { return false };
        if runs >= most.map_or(MOST, |most| most as usize) {
            return false;
        }
        let Some((first, others)) = machines.split_first() else { return false };
        let rule = Rule { comparisons: others.len(), ..Rule::default() };
        others.iter().any(|other| {
            let (pairs, _) = pairs(&first.wall, &other.wall);
            rule.pairs_for(&pairs, effect).is_some_and(|wanted| wanted > runs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_that_were_not_planned_share_half_a_percent() {
        let mut asked = Asked::default();
        assert_eq!(asked.rule().alpha, ALPHA);
        let mut spent = 0.0;
        for n in 1..20 {
            asked.looked(10 * n, true);
            asked.looked(10 * n, true);
            assert_eq!(asked.looks.len(), n);
            spent += asked.rule().alpha;
        }
        assert!(spent <= 0.055, "{spent}");
    }

    #[test]
    fn planned_looks_spend_five_percent() {
        let mut asked = Asked { detect: Some(2.0), ..Asked::default() };
        let mut spent = 0.0;
        for runs in [12, 24, 48] {
            asked.looked(runs, false);
            spent += asked.rule().alpha;
        }
        asked.looked(90, true);
        spent += asked.rule().alpha;
        assert!(spent <= ALPHA + 1e-12 && asked.rule().margin == 0.02, "{spent}");
    }
}
