//! Sources that could not be recorded, told of once a reason.

use crate::recorder::SourceError;

/// Sources that miss the same thing are told of together.
pub(crate) fn note(
    failures: &mut Vec<(Vec<&'static str>, String)>,
    name: &'static str,
    error: &SourceError,
) {
    let error = error.to_string();
    match failures.iter_mut().find(|(_, why)| *why == error) {
        Some((names, _)) => names.push(name),
        None => failures.push((vec![name], error)),
    }
}

/// What is told of sources that one and the same thing keeps from being recorded.
pub(crate) fn not_recorded(names: &[&str], why: &str) -> String {
    match names {
        [name] => format!("source {name} not recorded: {why}"),
        [first @ .., last] => {
            format!("sources {} and {last} not recorded: {why}", first.join(", "))
        }
        [] => why.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::not_recorded;

    #[test]
    fn one_reason_of_several_sources_is_told_once() {
        assert_eq!(not_recorded(&["a"], "no kernel"), "source a not recorded: no kernel");
        let all = not_recorded(&["a", "b", "c"], "no kernel");
        assert_eq!(all, "sources a, b and c not recorded: no kernel");
    }
}
