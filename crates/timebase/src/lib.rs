//! The traces' clocks on one time base, that of the first file.
//!
//! In this order: the same clock needs nothing; a guest's TSC is the host's plus the offset
//! that KVM wrote (`kvm_write_tsc_offset`); else port accesses that both traces have bound
//! each other, and a line is fitted between the bounds ([`hull`]). What can't be related
//! is said to be so.

pub mod hull;
mod pairs;
mod rate;
mod survey;

use std::path::Path;
use survey::Survey;
use vmeter_trace::{Clock, Error, Tick, TraceInfo};

/// Relation of a trace's clock to that of the first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Alignment {
    /// `reference`, `same TSC`, `same clock`, `kvm_write_tsc_offset`, `matched pairs`, `none`.
    pub method: String,
    /// What is added to its stamps, s (cycles where no rate is known).
    pub offset_s: f64,
    /// How much faster it runs, parts per million.
    pub drift_ppm: f64,
    /// Greatest error of a stamp on the common base, s; none if unknown.
    pub error_s: Option<f64>,
    /// Pairs of events that it rests on.
    pub pairs: u64,
}

/// How one file's stamps become ticks of the common base:
/// `(stamp - origin) x scale + base`.
#[derive(Debug, Clone, Default)]
struct Line {
    origin: u64,
    scale: f64,
    base: i128,
    told: Alignment,
}

/// Relations of all files' clocks.
#[derive(Debug, Clone, Default)]
pub struct Clocks {
    lines: Vec<Line>,
    tick_s: Option<f64>,
    /// How long a tick is, if that is inferred.
    rate: Option<String>,
}

impl Clocks {
    /// How the length of a tick is known, if it was inferred.
    pub fn rate(&self) -> Option<&str> {
        self.rate.as_deref()
    }

    /// A stamp of a file on the common base.
    #[inline]
    pub fn common(&self, file: u16, stamp: u64) -> u64 {
        let Some(line) = self.lines.get(file as usize) else { return stamp };
        if line.scale == 1.0 && line.base == i128::from(line.origin) {
            return stamp;
        }
        let since = i128::from(stamp) - i128::from(line.origin);
        let scaled = match line.scale {
            1.0 => since,
            scale => (since as f64 * scale) as i128,
        };
        (scaled + line.base).clamp(0, i128::from(u64::MAX)) as u64
    }

    /// Seconds a tick of the common base, where known.
    pub fn tick_s(&self) -> Option<f64> {
        self.tick_s
    }

    /// How each file's clock was brought to that of the first, in their order.
    pub fn alignments(&self) -> impl Iterator<Item = &Alignment> {
        self.lines.iter().map(|line| &line.told)
    }
}

/// Finds out how the clocks of files relate, of which the caller knows what they say of themselves.
/// Several are each read once for it.
///
/// # Errors
/// A file that can't be read.
pub fn align(files: &[(&Path, &TraceInfo)], cpu_hz: Option<f64>) -> Result<Clocks, Error> {
    let mut surveys = Vec::with_capacity(files.len());
    for (path, info) in files {
        // Only the whole tells how long a cycle is.
        let cycles = info.clock.tick == Tick::Cycle && cpu_hz.is_none();
        let whole = files.len() > 1 || cycles;
        surveys.push(if whole { Survey::read(path)? } else { Survey::of(info) });
    }
    let mut clocks = Clocks::default();
    let mut cpu_hz = cpu_hz;
    let cycles = |survey: &&Survey| survey.clock.tick == Tick::Cycle;
    if cpu_hz.is_none() && surveys.first().is_some_and(|first| cycles(&first)) {
        let rate = surveys.iter().filter(cycles).find_map(|survey| rate::of(survey.tick?));
        (cpu_hz, clocks.rate) = rate.map_or((None, None), |(rate, told)| (Some(rate), Some(told)));
    }
    for survey in &surveys {
        let line = match surveys.first() {
            Some(first) if !std::ptr::eq(first, survey) => relate(first, survey, cpu_hz),
            _ => {
                clocks.tick_s = seconds_a_tick(&survey.clock, cpu_hz);
                identity(Alignment { error_s: Some(0.0), ..told("reference") })
            }
        };
        clocks.lines.push(line);
    }
    Ok(clocks)
}

fn seconds_a_tick(clock: &Clock, cpu_hz: Option<f64>) -> Option<f64> {
    match clock.tick {
        Tick::Nanosecond => Some(1e-9),
        Tick::Cycle => cpu_hz.map(|hz| 1.0 / hz),
        Tick::Order => None,
    }
}

fn told(method: &str) -> Alignment {
    Alignment { method: method.into(), ..Alignment::default() }
}

fn identity(told: Alignment) -> Line {
    Line { origin: 0, scale: 1.0, base: 0, told }
}

/// The second trace's clock in terms of the first's.
fn relate(first: &Survey, other: &Survey, cpu_hz: Option<f64>) -> Line {
    let tick_s = seconds_a_tick(&first.clock, cpu_hz);
    let exact = |method: &str| identity(Alignment { error_s: Some(0.0), ..told(method) });
    let cycles = |survey: &Survey| survey.clock.tick == Tick::Cycle;
    if cycles(first) && cycles(other) {
        if overlap(first, other, 0) {
            return exact("same TSC");
        }
        if let Some((shift, spread)) = tsc_offset(first, other) {
            let seconds = |ticks: f64| tick_s.map_or(ticks, |tick| ticks * tick);
            let told = Alignment {
                offset_s: seconds(shift as f64),
                error_s: Some(seconds(spread as f64)),
                ..told("kvm_write_tsc_offset")
            };
            return Line { origin: 0, scale: 1.0, base: i128::from(shift), told };
        }
    }
    // A clock's name is not its identity: two machines have a `local` each.
    let named_alike = first.clock == other.clock && overlap(first, other, 0);
    match matched(first, other, tick_s) {
        Some(line) if !named_alike || contradicts(&line) => line,
        _ if named_alike => exact("same clock"),
        _ => identity(told("none")),
    }
}

/// True if the pairs leave no room for clocks that are the same.
fn contradicts(line: &Line) -> bool {
    let error = line.told.error_s.unwrap_or(f64::INFINITY);
    line.told.offset_s.abs() > 2.0 * error
}

fn matched(first: &Survey, other: &Survey, tick_s: Option<f64>) -> Option<Line> {
    let (fit, origin, base, pairs) = pairs::fit(other, first)?;
    let seconds = |ticks: f64| tick_s.map_or(ticks, |tick| ticks * tick);
    let base = i128::from(base) + fit.offset.round() as i128;
    // The rates' nominal ratio is known if both clocks are of the same unit.
    let alike = first.clock.tick == other.clock.tick;
    let told = Alignment {
        offset_s: seconds((base - i128::from(origin)) as f64),
        drift_ppm: if alike { (fit.scale - 1.0) * 1e6 } else { 0.0 },
        error_s: Some(seconds(fit.error)),
        pairs,
        ..told("matched pairs")
    };
    Some(Line { origin, scale: fit.scale, base, told })
}

/// What to add to the second trace's TSC if one of them is a guest of the other's host.
fn tsc_offset(first: &Survey, other: &Survey) -> Option<(i64, u64)> {
    let guest = first.tsc_offset.map(|(offset, spread)| (offset.wrapping_neg(), spread));
    guest.into_iter().chain(other.tsc_offset).find(|(shift, _)| overlap(first, other, *shift))
}

/// True if the second trace, shifted, shares time with the first.
fn overlap(first: &Survey, other: &Survey, shift: i64) -> bool {
    let (from, to) =
        (other.first.wrapping_add_signed(shift), other.last.wrapping_add_signed(shift));
    from <= to && from <= first.last && to >= first.first
}

#[cfg(test)]
mod tests {
    use super::*;

    fn survey(first: u64, last: u64, tsc_offset: Option<(i64, u64)>) -> Survey {
        let clock = Clock { name: "x86-tsc".into(), tick: Tick::Cycle };
        Survey { clock, first, last, tsc_offset, accesses: Vec::new(), of_model: false, tick: None }
    }

    #[test]
    fn a_guests_tsc_is_put_on_the_hosts() {
        let host = survey(5_000_000, 9_000_000, Some((-4_900_000, 12)));
        let guest = survey(200_000, 3_000_000, None);
        let line = relate(&host, &guest, Some(1e9));
        assert_eq!(line.told.method, "kvm_write_tsc_offset");
        assert!(line.told.error_s.is_some_and(|error| (error - 12e-9).abs() < 1e-15));
        let clocks = Clocks { lines: vec![identity(told("reference")), line], ..Clocks::default() };
        assert_eq!(clocks.common(1, 200_000), 5_100_000);
        assert_eq!(clocks.common(0, 7), 7);
        // And the other way round.
        let line = relate(&guest, &host, Some(1e9));
        let clocks = Clocks { lines: vec![identity(told("reference")), line], ..Clocks::default() };
        assert_eq!(clocks.common(1, 5_100_000), 200_000);
    }

    #[test]
    fn clocks_without_anything_in_common_are_not_related() {
        let line = relate(&survey(0, 10, None), &survey(1_000, 2_000, None), None);
        assert_eq!(line.told.method, "none");
        assert_eq!(line.told.error_s, None);
    }
}
