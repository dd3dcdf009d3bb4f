//! Which sessions are meant.

use crate::cache::Entry;
use crate::machine::Machine;
use crate::IndexError;
use std::time::{Duration, SystemTime};

/// Conditions, all of which have to hold; the default is every session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Words about the machine, each of which it must match: `NAME=VALUE` a setting as it
    /// was chosen, anything else a part of any setting, version, digest or argument.
    pub machine: Vec<String>,
    /// The command, e.g. `boot`.
    pub command: Option<String>,
    /// Not older than this, s since the epoch.
    pub since_s: Option<i64>,
    /// Older than this, s since the epoch.
    pub before_s: Option<i64>,
}

impl Filter {
    /// True if the session's own facts match.
    pub(crate) fn takes(&self, entry: &Entry) -> bool {
        self.command.as_ref().is_none_or(|command| *command == entry.command)
            && self.since_s.is_none_or(|since| since <= entry.started_s)
            && self.before_s.is_none_or(|before| entry.started_s < before)
    }

    /// True if the machine matches each word, in upper or lower case.
    pub(crate) fn wants(&self, machine: &Machine) -> bool {
        let text = machine.text.to_ascii_lowercase();
        self.machine.iter().all(|word| {
            let word = word.to_ascii_lowercase();
            match word.contains('=') {
                // A value is whole, but for its unit.
                true => ['\n', ' '].iter().any(|end| text.contains(&format!("\n{word}{end}"))),
                false => text.contains(&word) || machine.id.starts_with(&word),
            }
        })
    }
}

/// The last second that a session can have begun in, s since the epoch.
const END_OF_9999: i64 = 253_402_300_799;

/// A date (`2026-05-01`, `2026-05-01T12:00:00Z`, both UTC) or how long ago it was (`30d`,
/// `12h`), as seconds since the epoch.
///
/// # Errors
/// [`IndexError::Time`] for anything else.
pub fn ago_or_date(text: &str, now: SystemTime) -> Result<i64, IndexError> {
    let wrong = || IndexError::Time(text.to_owned());
    let text = text.trim();
    let time = if let Ok(length) = humantime::parse_duration(text) {
        now.checked_sub(length).unwrap_or(SystemTime::UNIX_EPOCH)
    } else if text.len() == "2026-05-01".len() {
        humantime::parse_rfc3339(&format!("{text}T00:00:00Z")).map_err(|_| wrong())?
    } else {
        humantime::parse_rfc3339_weak(text).map_err(|_| wrong())?
    };
    // A clock that is later has sessions begin there.
    Ok(seconds(time).min(END_OF_9999))
}

/// A session's `started_at` as seconds since the epoch; 0 if it is no time.
pub(crate) fn started_s(text: &str) -> i64 {
    humantime::parse_rfc3339_weak(text).map_or(0, seconds)
}

fn seconds(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn dates_and_lengths() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let at = |text: &str| ago_or_date(text, now).ok();
        assert_eq!(at("2026-05-01"), Some(1_777_593_600));
        assert_eq!(at("2026-05-01T00:00:01Z"), Some(1_777_593_601));
        assert_eq!(at("30d"), Some(1_800_000_000 - 30 * 86_400));
        assert_eq!(at(" 12h "), Some(1_800_000_000 - 12 * 3_600));
        assert_eq!(at("9999999999d"), Some(0));
        let late = SystemTime::UNIX_EPOCH + Duration::from_secs(300_000_000_000);
        assert_eq!(ago_or_date("5d", late).ok(), Some(END_OF_9999));
        for wrong in ["", "May", "2026-13-01", "2026-05", "-3d"] {
            let error = ago_or_date(wrong, now).expect_err(wrong).to_string();
            assert!(error.contains("30d"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in ".{0,40}") {
            let _ = ago_or_date(&text, SystemTime::now());
            let _ = started_s(&text);
        }
    }
}
