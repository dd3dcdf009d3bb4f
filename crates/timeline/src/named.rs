//! Moments that the user named: the first line of the console that an expression matches.

use crate::lines::Line;
use regex::{Regex, RegexBuilder};
use vmeter_model::Ns;

/// Most marks of a machine.
pub const MOST_MARKS: usize = 64;
/// Memory that one expression may take, bytes.
const MOST_BYTES: usize = 1 << 20;
/// What is looked at of a line, bytes.
const MOST_OF_A_LINE: usize = 4096;

/// A moment that is looked for (`--mark NAME=REGEX`).
#[derive(Debug, Clone)]
pub struct NamedMark {
    name: String,
    regex: Regex,
}

impl NamedMark {
    /// Reads `NAME=REGEX`. The expression's memory is bounded, and so is its time: it is
    /// matched in time linear in the line.
    ///
    /// # Errors
    /// What is wrong with it, and what was expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (name, expression) = text.split_once('=').ok_or_else(|| {
            format!("--mark {text}: expected NAME=REGEX, e.g. 'database=ready for connections'")
        })?;
        if name.trim().is_empty() {
            return Err(format!("--mark {text}: no name before `=`; expected NAME=REGEX"));
        }
        let regex = RegexBuilder::new(expression)
            .size_limit(MOST_BYTES)
            .dfa_size_limit(MOST_BYTES)
            .build()
            .map_err(|e| {
                let all = e.to_string();
                // The error draws the expression over several lines; its last says what.
                let what = all.rsplit("error: ").next().unwrap_or_default().trim();
                format!("--mark {text}: {what}; expected a regular expression after `=`")
            })?;
        Ok(NamedMark { name: name.trim().to_owned(), regex })
    }

    /// All of them.
    ///
    /// # Errors
    /// As [`NamedMark::parse`]; two of one name; too many.
    pub fn parse_all(texts: &[String]) -> Result<Vec<Self>, String> {
        if texts.len() > MOST_MARKS {
            return Err(format!(
                "you gave {} --mark options, but vmeter takes at most \
                {MOST_MARKS}",
                texts.len()
            ));
        }
        let marks: Vec<Self> = texts.iter().map(|t| Self::parse(t)).collect::<Result<_, _>>()?;
        for (at, mark) in marks.iter().enumerate() {
            if marks[..at].iter().any(|other| other.name == mark.name) {
                return Err(format!(
                    "--mark {}: another --mark has this name; give each --mark a \
                    name of its own",
                    mark.name
                ));
            }
        }
        Ok(marks)
    }
}

/// When each mark was first seen, and a warning for each that was not.
pub(crate) fn find(texts: &[String], lines: &[Line<'_>]) -> (Vec<(String, Ns)>, Vec<String>) {
    let marks = match NamedMark::parse_all(texts) {
        Ok(marks) => marks,
        Err(error) => return (Vec::new(), vec![error]),
    };
    let (mut found, mut warnings) = (Vec::new(), Vec::new());
    for NamedMark { name, regex } in marks {
        // What matches may have been printed long after its line began.
        let fits = |line: &Line<'_>| {
            let mut end = line.text.len().min(MOST_OF_A_LINE);
            while !line.text.is_char_boundary(end) {
                end -= 1;
            }
            Some(line.at_of(regex.find(&line.text[..end])?.start()))
        };
        match lines.iter().filter(|line| line.console).filter_map(fits).min() {
            Some(at) => found.push((name, at)),
            None => warnings.push(format!(
                "--mark {name}: no line of the console matches `{regex}`; vmeter does not \
                 compare REGEX with a line's time stamp"
            )),
        }
    }
    (found, warnings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_a_name_and_an_expression() {
        assert!(NamedMark::parse("db=ready for \\w+").is_ok());
        assert!(NamedMark::parse("a=b=c").is_ok_and(|m| m.name == "a" && m.regex.is_match("b=c")));
        for (wrong, says) in [
            ("ready", "expected NAME=REGEX"),
            ("=x", "no name"),
            ("a=(", "unclosed group"),
            ("a=(x{1000}){1000}", "regular expression"),
        ] {
            let error = NamedMark::parse(wrong).expect_err(wrong);
            assert!(error.contains(says), "{wrong}: {error}");
        }
        let two = ["a=x".to_owned(), "a=y".to_owned()];
        assert!(
            NamedMark::parse_all(&two).is_err_and(|e| e.contains("another --mark has this name"))
        );
        let many: Vec<String> = (0..=MOST_MARKS).map(|n| format!("m{n}=x")).collect();
        assert!(NamedMark::parse_all(&many).is_err());
    }
}
