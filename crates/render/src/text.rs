//! Strings that someone else wrote, made safe to show.
//!
//! Guests, traces and run folders put their own text into results: module
//! names, panic lines, command lines. A terminal obeys what it is sent, so
//! whatever does not simply take up columns is shown as an escape instead:
//! C0 and C1 controls, bidirectional overrides, zero-width characters.

use std::borrow::Cow;
use std::fmt;
use unicode_width::UnicodeWidthChar;

/// True for a character that could act on a terminal, reorder text or hide.
///
/// Everything without a column of its own counts: controls have no width, and
/// zero-width characters (joiners, bidirectional controls, combining marks) have
/// width 0. U+00AD (soft hyphen) has a width in some tables and none on screen.
pub fn is_hostile(c: char) -> bool {
    c.is_control()
        || c == '\u{ad}'
        || matches!(c, '\u{2028}' | '\u{2029}' | '\u{e000}'..='\u{f8ff}' | '\u{fff9}'..='\u{fffb}')
        || matches!(c.width(), None | Some(0))
}

/// Appends `c` as an escape that prints as itself: `\n`, `\x1b`, `\u{202e}`.
fn push_escaped(out: &mut String, c: char) {
    use std::fmt::Write;
    let written = match c {
        '\n' => write!(out, "\\n"),
        '\r' => write!(out, "\\r"),
        '\t' => write!(out, "\\t"),
        c if u32::from(c) < 0x100 => write!(out, "\\x{:02x}", u32::from(c)),
        c => write!(out, "\\u{{{:x}}}", u32::from(c)),
    };
    debug_assert!(written.is_ok());
}

/// Text that holds nothing hostile: [`neutralise`] made it, or it is a word of this program.
///
/// What is sent to a terminal or written into a label is of this type, so that a string
/// from a guest cannot get there as it came.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Safe<'a>(Cow<'a, str>);

/// `text` with every hostile character shown as an escape.
///
/// ```
/// assert_eq!(vmeter_render::text::neutralise("a\x1b[31mb").as_str(), "a\\x1b[31mb");
/// ```
pub fn neutralise(text: &str) -> Safe<'_> {
    let Some(first) = text.find(is_hostile) else { return Safe(Cow::Borrowed(text)) };
    let mut out = String::with_capacity(text.len() + 16);
    out.push_str(&text[..first]);
    for c in text[first..].chars() {
        if is_hostile(c) {
            push_escaped(&mut out, c);
        } else {
            out.push(c);
        }
    }
    Safe(Cow::Owned(out))
}

/// Longest text that [`Safe::wrap`] breaks into lines, in characters; the rest is cut.
const WRAP_LIMIT: usize = 4000;

impl<'a> Safe<'a> {
    /// A word or sign of the program's own.
    pub const fn own(text: &'static str) -> Safe<'static> {
        Safe(Cow::Borrowed(text))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The same, kept beyond its origin.
    pub fn into_owned(self) -> Safe<'static> {
        Safe(Cow::Owned(self.0.into_owned()))
    }

    /// True for no text.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Columns that it takes.
    pub fn width(&self) -> usize {
        width(&self.0)
    }

    /// The same in ASCII, for terminals that show nothing else: the program's own signs get
    /// a spelling, other characters become escapes.
    pub fn to_ascii(self) -> Safe<'a> {
        if self.0.is_ascii() {
            return self;
        }
        let mut out = String::with_capacity(self.0.len());
        for c in self.0.chars() {
            match c {
                c if c.is_ascii() => out.push(c),
                '±' => out.push_str("+-"),
                '…' => out.push_str("..."),
                '×' => out.push('x'),
                '–' | '─' => out.push('-'),
                'µ' => out.push('u'),
                '·' => out.push('.'),
                '│' | '├' | '└' => out.push('|'),
                c => push_escaped(&mut out, c),
            }
        }
        Safe(Cow::Owned(out))
    }

    /// The text in at most `columns` columns; what is cut is marked by `mark`.
    pub fn truncate(&self, columns: usize, mark: &'static str) -> Safe<'_> {
        if self.width() <= columns {
            return Safe(Cow::Borrowed(&self.0));
        }
        let room = columns.saturating_sub(width(mark));
        let mut out = String::new();
        let mut used = 0;
        for c in self.0.chars() {
            used += c.width().unwrap_or(0);
            if used > room {
                break;
            }
            out.push(c);
        }
        if columns >= width(mark) {
            out.push_str(mark);
        }
        Safe(Cow::Owned(out))
    }

    /// A name in at most `columns` columns: its middle is cut, and of its end `end` columns stay.
    pub fn shorten(&self, columns: usize, end: usize, mark: &'static str) -> Safe<'_> {
        if self.width() <= columns || columns < end + 2 * width(mark) {
            return self.truncate(columns, mark);
        }
        let mut tail = self.0.len();
        let mut used = 0;
        for (at, c) in self.0.char_indices().rev() {
            used += c.width().unwrap_or(0);
            if used > end {
                break;
            }
            tail = at;
        }
        let tail = &self.0[tail..];
        let head = self.truncate(columns - width(tail), mark);
        Safe(Cow::Owned(format!("{}{tail}", head.as_str())))
    }

    /// The text in lines of at most `columns` columns, broken at spaces where there are any.
    pub fn wrap(&self, columns: usize) -> Vec<Safe<'static>> {
        let columns = columns.max(8);
        let mut lines = Vec::new();
        let mut line = String::new();
        let mut used = 0;
        let limited: String = self.0.chars().take(WRAP_LIMIT).collect();
        for word in limited.split(' ') {
            let mut word = word;
            let mut needed = width(word);
            if used > 0 && used + 1 + needed > columns {
                lines.push(std::mem::take(&mut line));
                used = 0;
            } else if used > 0 {
                line.push(' ');
                used += 1;
            }
            while needed > columns {
                let cut = split_at_width(word, columns - used);
                line.push_str(&word[..cut]);
                lines.push(std::mem::take(&mut line));
                used = 0;
                word = &word[cut..];
                needed = width(word);
            }
            line.push_str(word);
            used += needed;
        }
        if self.0.chars().nth(WRAP_LIMIT).is_some() {
            line.push_str("...");
        }
        lines.push(line);
        lines.into_iter().map(|line| Safe(Cow::Owned(line))).collect()
    }

    /// As many whole words as fit into `columns`, and the rest.
    pub fn split_line(&self, columns: usize) -> (Safe<'_>, Safe<'_>) {
        let parts = |first, rest| (Safe(Cow::Borrowed(first)), Safe(Cow::Borrowed(rest)));
        if self.width() <= columns {
            return parts(&self.0, "");
        }
        let spaces = self.0.match_indices(' ').map(|(at, _)| at);
        let fitting = spaces.take_while(|at| width(&self.0[..*at]) <= columns).last();
        fitting.map_or_else(|| parts("", &self.0), |at| parts(&self.0[..at], &self.0[at + 1..]))
    }
}

impl fmt::Display for Safe<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Columns that `text` takes, if it holds nothing hostile.
fn width(text: &str) -> usize {
    text.chars().map(|c| c.width().unwrap_or(0)).sum()
}

/// Byte position after at most `columns` columns of `text`, and after one character at least.
fn split_at_width(text: &str, columns: usize) -> usize {
    let mut used = 0;
    for (at, c) in text.char_indices() {
        used += c.width().unwrap_or(0);
        if used > columns && at > 0 {
            return at;
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controls_and_bidi_are_spelled_out() {
        assert_eq!(neutralise("\x1b]0;t\x07").as_str(), "\\x1b]0;t\\x07");
        assert_eq!(
            neutralise("a\u{9b}2J\u{202e}b\u{200d}").as_str(),
            "a\\x9b2J\\u{202e}b\\u{200d}"
        );
        assert_eq!(neutralise("été 漢").as_str(), "été 漢");
    }

    #[test]
    fn truncation_counts_columns() {
        assert_eq!(neutralise("漢字漢字").truncate(5, "…").as_str(), "漢字…");
        assert_eq!(neutralise("abc").truncate(3, "…").as_str(), "abc");
        assert_eq!(neutralise("abcd").truncate(3, "…").as_str(), "ab…");
        assert_eq!(
            neutralise("init_kprobe_trace_early").shorten(16, 5, "…").as_str(),
            "init_kprob…early"
        );
        assert_eq!(neutralise("漢字漢字漢字").shorten(8, 2, "…").as_str(), "漢字…字");
    }

    #[test]
    fn wrapping_keeps_every_character_and_the_width() {
        let text = "one two aaaaaaaaaaaaaaaaaaaaaaaaaaa three";
        let lines = neutralise(text).wrap(10);
        assert!(lines.iter().all(|l| l.width() <= 10), "{lines:?}");
        let joined: String = lines.iter().map(Safe::as_str).collect();
        assert_eq!(joined.replace(' ', ""), text.replace(' ', ""));
    }
}
