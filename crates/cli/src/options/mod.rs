//! Options that several commands take.

mod gate;
mod machine;
mod many;
mod runs;
mod views;

pub use gate::{ruled, FailIfSlower, SavedGate};
pub use machine::Machine;
pub use many::Many;
pub use runs::{drawn_seed, Runs};
pub use views::Views;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use std::str::FromStr;
use vmeter_base::words::{UnknownWord, Word};
use vmeter_session::failure::usage;

/// Parses a word of the enum `W`. The help lists all words of `W`.
pub fn word<W>() -> impl TypedValueParser<Value = W>
where
    W: Word + FromStr<Err = UnknownWord> + Send + Sync,
{
    let possible = |word: &W| {
        let about = word.about().trim().trim_end_matches('.');
        PossibleValue::new(word.word()).help(about)
    };
    let words: Vec<PossibleValue> = W::WORDS.iter().map(possible).collect();
    PossibleValuesParser::new(words).try_map(|text| text.parse::<W>())
}

/// The values in an option's list, without repetitions. `all` means all values. Without names: `None`.
///
/// # Errors
/// A usage error, if a name is unknown.
pub fn listed<T>(option: &str, names: &[String], all: &[T]) -> anyhow::Result<Option<Vec<T>>>
where
    T: Copy + PartialEq + FromStr<Err: std::fmt::Display>,
{
    if names.is_empty() {
        return Ok(None);
    }
    if names.iter().any(|name| name == "all") {
        return Ok(Some(all.to_vec()));
    }
    let mut found = Vec::new();
    for name in names {
        let one = name.parse().map_err(|e| usage(format!("{option}: {e}")))?;
        if !found.contains(&one) {
            found.push(one);
        }
    }
    Ok(Some(found))
}

/// Parses a percentage above 0.
///
/// # Errors
/// In words.
pub fn positive(text: &str) -> Result<f64, String> {
    match percent(text) {
        Ok(percent) if percent > 0.0 => Ok(percent),
        _ => Err("expected a number above 0".into()),
    }
}

/// Parses a duration and returns it in seconds. `text` is a number of 0 or more, followed by one of
/// `units`. If a unit ends with another one (`ms` with `s`), the longer one must come first.
pub fn seconds(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let found = units.iter().find_map(|(unit, s)| Some((text.strip_suffix(unit)?, s)));
    found.and_then(|(number, s)| Some(percent(number).ok()? * s))
}

/// Parses a percentage of 0 or more. NaN is an error, because with NaN `--fail-if-slower` would
/// never fail.
pub fn percent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(percent) if percent.is_finite() && percent >= 0.0 => Ok(percent),
        _ => Err("expected a number, 0 or more".into()),
    }
}
