//! Strings that someone else wrote, made safe to show.
//!
//! Guests, traces and run folders put their own text into results: module
//! names, panic lines, command lines. A terminal obeys what it is sent, so
//! whatever does not simply take up columns is shown as an escape instead:
//! C0 and C1 controls, bidirectional overrides, zero-width characters.

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

/// `text` with every hostile character shown as an escape.
///
/// ```
/// assert_eq!(vmeter_render::text::neutralise("a\x1b[31mb"), "a\\x1b[31mb");
/// ```
pub fn neutralise(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_hostile(c) {
            push_escaped(&mut out, c);
        } else {
            out.push(c);
        }
    }
    out
}

/// `text` in ASCII, for terminals that show nothing else.
///
/// The report's own signs get a spelling; other characters become escapes.
pub fn to_ascii(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
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
    out
}

/// Columns that `text` takes, if it holds nothing hostile.
pub fn width(text: &str) -> usize {
    text.chars().map(|c| c.width().unwrap_or(0)).sum()
}

/// `text` in at most `columns` columns; what is cut is marked by `mark`.
pub fn truncate(text: &str, columns: usize, mark: &str) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let room = columns.saturating_sub(width(mark));
    let mut out = String::new();
    let mut used = 0;
    for c in text.chars() {
        used += c.width().unwrap_or(0);
        if used > room {
            break;
        }
        out.push(c);
    }
    if columns >= width(mark) {
        out.push_str(mark);
    }
    out
}

/// Longest text that [`wrap`] breaks into lines, in characters; the rest is cut.
const WRAP_LIMIT: usize = 4000;

/// `text` in lines of at most `columns` columns, broken at spaces where there are any.
pub fn wrap(text: &str, columns: usize) -> Vec<String> {
    let columns = columns.max(8);
    let mut lines = Vec::new();
    let mut line = String::new();
    let mut used = 0;
    let limited: String = text.chars().take(WRAP_LIMIT).collect();
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
    if text.chars().nth(WRAP_LIMIT).is_some() {
        line.push('…');
    }
    lines.push(line);
    lines
}

/// As many whole words of `text` as fit into `columns`, and the rest.
pub fn split_line(text: &str, columns: usize) -> (&str, &str) {
    if width(text) <= columns {
        return (text, "");
    }
    let spaces = text.match_indices(' ').map(|(at, _)| at);
    let fitting = spaces.take_while(|at| width(&text[..*at]) <= columns).last();
    fitting.map_or(("", text), |at| (&text[..at], &text[at + 1..]))
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

/// A shell-quoted argument vector, to be read and pasted.
pub fn shell_words(argv: &[String]) -> String {
    let quote = |word: &String| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%^".contains(c);
        if !word.is_empty() && word.chars().all(plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', "'\\''"))
        }
    };
    argv.iter().map(quote).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controls_and_bidi_are_spelled_out() {
        assert_eq!(neutralise("\x1b]0;t\x07"), "\\x1b]0;t\\x07");
        assert_eq!(neutralise("a\u{9b}2J\u{202e}b\u{200d}"), "a\\x9b2J\\u{202e}b\\u{200d}");
        assert_eq!(neutralise("été 漢"), "été 漢");
    }

    #[test]
    fn truncation_counts_columns() {
        assert_eq!(truncate("漢字漢字", 5, "…"), "漢字…");
        assert_eq!(truncate("abc", 3, "…"), "abc");
        assert_eq!(truncate("abcd", 3, "…"), "ab…");
    }

    #[test]
    fn wrapping_keeps_every_character_and_the_width() {
        let text = "one two aaaaaaaaaaaaaaaaaaaaaaaaaaa three";
        let lines = wrap(text, 10);
        assert!(lines.iter().all(|l| width(l) <= 10), "{lines:?}");
        assert_eq!(lines.concat().replace(' ', ""), text.replace(' ', ""));
    }

    #[test]
    fn arguments_are_quoted_for_a_shell() {
        let argv = ["a b".to_owned(), "it's".to_owned(), "-x=1".to_owned(), String::new()];
        assert_eq!(shell_words(&argv), r"'a b' 'it'\''s' -x=1 ''");
    }
}
