//! Which events of a trace: options that several commands share.

use clap::Args;
use vmeter_base::CpuList;
use vmeter_session::failure::usage;
use vmeter_trace::select::Select;
use vmeter_trace::Tick;

/// Which events.
#[derive(Debug, Args)]
#[command(next_help_heading = "Which events")]
pub struct Selection {
    /// Only events with this name; * and ? are wildcards, e.g. kvm_exit or 'kvm:*'; may be repeated
    /// (default: all).
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    event: Vec<String>,
    /// CPUs, e.g. 0,2-3.
    #[arg(long, value_name = "CPUS")]
    cpu: Option<CpuList>,
    /// Only events of the thread with this id; may be repeated (default: all threads).
    #[arg(long, value_name = "TID", value_delimiter = ',')]
    pid: Vec<i32>,
    /// Only events at this time stamp or later: SECONDS in the form of the trace's time stamps, or
    /// +SECONDS after the trace's first event (default: the first event). If the trace's time stamps count cycles or events, give
    /// such counts instead of seconds.
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Only events at this time stamp or earlier; TIME has the same format as for --from (default: the last event).
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
}

/// A time stamp that the user gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stamp {
    /// As in the trace.
    At(u64),
    /// After the first event.
    After(u64),
}

impl Stamp {
    /// The time stamp in a trace whose first event has the time stamp `first`.
    pub fn resolve(self, first: u64) -> u64 {
        match self {
            Stamp::At(ticks) => ticks,
            Stamp::After(ticks) => first.saturating_add(ticks),
        }
    }
}

impl Selection {
    /// The choice by name, CPU and thread.
    ///
    /// # Errors
    /// None, because clap has already parsed the list of CPUs.
    pub fn select(&self) -> anyhow::Result<Select> {
        let cpus =
            self.cpu.iter().flat_map(|list| list.as_slice()).map(|cpu| *cpu as u32).collect();
        Ok(Select::new(self.event.clone(), cpus, self.pid.clone()))
    }

    /// The limits of time, in ticks.
    ///
    /// # Errors
    /// A text that is not a time stamp.
    pub fn limits(&self, tick: Tick) -> anyhow::Result<[Option<Stamp>; 2]> {
        let parse = |name: &str, text: &Option<String>| -> anyhow::Result<Option<Stamp>> {
            let Some(text) = text else { return Ok(None) };
            let found = stamp(text, tick);
            found.map(Some).ok_or_else(|| {
                usage(format!(
                    "{name} {text}: expected a time in the trace, or +SECONDS after its \
                    first event, e.g. +1.5"
                ))
            })
        };
        Ok([parse("--from", &self.from)?, parse("--to", &self.to)?])
    }
}

fn stamp(text: &str, tick: Tick) -> Option<Stamp> {
    let (relative, digits) = match text.strip_prefix('+') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let ticks = match tick {
        Tick::Nanosecond => nanoseconds(digits)?,
        Tick::Cycle | Tick::Order => digits.parse().ok()?,
    };
    Some(if relative { Stamp::After(ticks) } else { Stamp::At(ticks) })
}

/// Decimal seconds as nanoseconds, exactly.
fn nanoseconds(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |t: &str| t.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole)
        || !digits(fraction)
        || fraction.len() > 9
        || (whole.is_empty() && fraction.is_empty())
    {
        return None;
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let fraction: u64 = format!("{fraction:0<9}").parse().ok()?;
    whole.checked_mul(1_000_000_000)?.checked_add(fraction)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_exact() {
        assert_eq!(stamp("12.5", Tick::Nanosecond), Some(Stamp::At(12_500_000_000)));
        assert_eq!(stamp("+.000000001", Tick::Nanosecond), Some(Stamp::After(1)));
        assert_eq!(stamp("123456789", Tick::Cycle), Some(Stamp::At(123_456_789)));
        for bad in ["", "+", ".", "1.0000000001", "-1", "x", "99999999999999999999"] {
            assert_eq!(stamp(bad, Tick::Nanosecond), None, "{bad}");
        }
    }
}
