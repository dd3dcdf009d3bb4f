//! What a remedy should save, from one watched boot: the spans that it removes or makes shorter.

use crate::findings::catalogue::Part;
use std::collections::HashSet;
use vmeter_model::event::EventKind;
use vmeter_model::identity::UNFINISHED;
use vmeter_model::span::UNATTRIBUTED;
use vmeter_model::time::seconds;
use vmeter_model::{Estimate, Event, Span, Timeline};
use vmeter_timeline::names::is_called;

/// How far off one boot's span may be from the next one's, as a share.
const NOISE: f64 = 0.25;
/// Below this share of named time, what nobody saw may be anything.
const WELL_NAMED: f64 = 0.8;
/// A line of the log takes a console of which nothing was seen at most so long, s: it scrolls a text
/// screen by memory that the VMM emulates.
const LINE_S: f64 = 1e-3;

/// A watched boot.
#[derive(Debug)]
pub(crate) struct Watched {
    /// What its time was spent on.
    pub timeline: Timeline,
    /// Lines of its kernel's log.
    pub log_lines: usize,
    /// Words of its kernel's command line.
    pub words: Vec<String>,
}

impl Watched {
    /// Of a run's events and what was understood of them.
    pub fn of(timeline: Timeline, events: &[Event], words: Vec<String>) -> Self {
        let is_line = |event: &&Event| matches!(event.what, EventKind::KernelLine { .. });
        let log_lines = events.iter().filter(is_line).count();
        // A search keeps hundreds of them: spans, phases and what was printed are all that it asks for.
        let bare = |span: Span| Span { source: String::new(), ..span };
        let timeline = Timeline {
            total: timeline.total,
            spans: timeline.spans.into_iter().map(bare).collect(),
            phases: timeline.phases,
            printing: timeline.printing,
            ..Timeline::default()
        };
        Watched { timeline, log_lines, words }
    }

    /// The whole boot, s.
    pub fn total_s(&self) -> f64 {
        seconds(self.timeline.total)
    }

    /// What a remedy that takes these parts away should save, s: `mean` is the middle of the interval.
    pub fn predicted(&self, parts: &[Part]) -> Estimate {
        let (mut least, mut most) = (0.0, 0.0);
        for part in parts {
            let (from, to) = self.part(part);
            least += from;
            most += to;
        }
        if self.timeline.coverage() < WELL_NAMED {
            most += self.unseen();
        }
        let most = most.min(self.total_s());
        let mean = (least + most) / 2.0;
        Estimate { mean, median: mean, sd: 0.0, ci95: [least, most], min: least, max: most, n: 1 }
    }

    fn part(&self, part: &Part) -> (f64, f64) {
        let noisy = |s: f64, least: f64, most: f64| {
            (s * least * (1.0 - NOISE), s * (most * (1.0 + NOISE)).min(1.0 + NOISE))
        };
        match *part {
            Part::Span(name, least, most) => noisy(self.length(&[name]), least, most),
            Part::Printing(least, most) => match self.timeline.printing {
                Some(printing) => noisy(seconds(printing.time), least, most),
                None => (0.0, self.log_lines as f64 * LINE_S * most),
            },
            Part::Word(name) => {
                let value = |w: &String| w.strip_prefix(name)?.strip_prefix('=')?.parse().ok();
                let s: f64 = self.words.iter().find_map(value).unwrap_or(0.0);
                (0.9 * s, s)
            }
        }
    }

    /// How long the parts took together that a remedy makes shorter, s; nothing counts twice.
    fn length_of(&self, parts: &[Part]) -> f64 {
        let name = |part: &Part| match part {
            Part::Span(name, ..) => Some(*name),
            Part::Printing(..) | Part::Word(_) => None,
        };
        let names: Vec<&str> = parts.iter().filter_map(name).collect();
        let prints = parts.iter().any(|part| matches!(part, Part::Printing(..)));
        let printing = self.timeline.printing.filter(|_| prints).map_or(0, |p| p.time);
        self.length(&names) + seconds(printing)
    }

    /// How long these parts took together, and the rest of the boot, s.
    pub fn split(&self, parts: &[Part]) -> (f64, f64) {
        let part = self.length_of(parts);
        (part, self.total_s() - part)
    }

    /// How long spans of these names took, s; one inside another counts once.
    fn length(&self, names: &[&str]) -> f64 {
        let mut within: HashSet<u32> = HashSet::new();
        let mut sum = 0;
        // Parents stand before their children.
        for span in &self.timeline.spans {
            let inside = span.parent.is_some_and(|parent| within.contains(&parent));
            let name = span.name.strip_suffix(UNFINISHED).unwrap_or(&span.name);
            if inside || names.iter().any(|pattern| is_called(name, pattern)) {
                within.insert(span.id);
                sum += if inside { 0 } else { span.len() };
            }
        }
        seconds(sum)
    }

    /// Time that nothing explains, s.
    fn unseen(&self) -> f64 {
        let nameless = self.timeline.leaves().filter(|span| span.name == UNATTRIBUTED);
        seconds(nameless.map(vmeter_model::Span::len).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmeter_model::Span;

    fn span(id: u32, parent: Option<u32>, name: &str, ms: [i64; 2]) -> Span {
        let [start, end] = ms.map(|ms| ms * 1_000_000);
        Span { id, parent, name: name.into(), start, end, ..Span::default() }
    }

    #[test]
    fn a_part_counts_once_and_within_its_shares() {
        let spans = vec![
            span(0, None, "kernel:entry", [0, 100]),
            span(1, Some(0), "kernel:start_kernel", [0, 60]),
            span(2, None, "initcall a_mod_init", [100, 200]),
        ];
        let timeline = Timeline { total: 200_000_000, spans, ..Timeline::default() };
        let words = vec!["rootdelay=5".to_owned()];
        let watched = Watched { timeline, log_lines: 100, words };
        let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
        let all = watched.predicted(&[Part::Span("kernel:*", 0.5, 0.8)]);
        assert!(near(all.ci95[0], 0.1 * 0.5 * 0.75) && near(all.ci95[1], 0.1), "{all:?}");
        let none = watched.predicted(&[Part::Span("initcall b*", 1.0, 1.0)]);
        assert_eq!(none.ci95, [0.0, 0.0]);
        let middle = watched.predicted(&[Part::Span("initcall *_init", 0.0, 0.4)]);
        assert!(near(middle.ci95[1], 0.05));
        assert_eq!(watched.predicted(&[Part::Printing(0.0, 0.5)]).ci95, [0.0, 0.05]);
        // No more than the boot.
        assert_eq!(watched.predicted(&[Part::Word("rootdelay")]).ci95[1], 0.2);
    }

    #[test]
    fn what_nobody_saw_may_be_saved() {
        let spans = vec![span(0, None, UNATTRIBUTED, [0, 100])];
        let timeline = Timeline { total: 100_000_000, spans, ..Timeline::default() };
        let watched = Watched { timeline, log_lines: 0, words: Vec::new() };
        assert_eq!(watched.predicted(&[Part::Span("bios:*", 0.1, 1.0)]).ci95, [0.0, 0.1]);
    }
}
