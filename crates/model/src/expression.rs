//! Regular expressions that are part of the program, each compiled once.
//!
//! To compile one takes up to a millisecond, and a session reads lines of many runs.

use regex::Regex;
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

/// The compiled expression; none for one that is not valid.
pub fn compiled(expression: &'static str) -> Option<&'static Regex> {
    static ALL: LazyLock<Mutex<HashMap<&'static str, Option<&'static Regex>>>> =
        LazyLock::new(Mutex::default);
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    // As many as the program has stay in memory until it ends.
    let compile = || Regex::new(expression).ok().map(|regex| &*Box::leak(Box::new(regex)));
    *all.entry(expression).or_insert_with(compile)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_is_compiled_once_or_not_at_all() {
        let first = compiled("a+").expect("valid");
        assert!(first.is_match("caat") && std::ptr::eq(first, compiled("a+").expect("valid")));
        assert!(compiled("a(").is_none());
    }
}
