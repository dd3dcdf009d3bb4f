//! Commands that a user reads and pastes into a shell.

use std::borrow::Cow;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// `word` as a shell takes it for one argument, quoted only where needed.
///
/// What a POSIX shell treats specially is the `shell-words` crate's to know. It leaves braces
/// and exclamation marks bare, which an interactive bash expands.
pub fn quote(word: &str) -> String {
    match shell_words::quote(word) {
        Cow::Borrowed(bare) if bare.contains(['{', '}', '!', '^']) => format!("'{bare}'"),
        quoted => quoted.into_owned(),
    }
}

/// An argument vector as one line, each argument quoted where needed.
pub fn join<S: AsRef<str>>(words: impl IntoIterator<Item = S>) -> String {
    let words: Vec<String> = words.into_iter().map(|w| quote(w.as_ref())).collect();
    words.join(" ")
}

/// A path as a word of a command that is to be pasted. Bytes that are not UTF-8 become
/// U+FFFD, which no command can have.
pub fn path(path: &Path) -> String {
    quote(&path.to_string_lossy())
}

/// The program of PATH that a shell would run for a name.
pub fn find(name: &str) -> Option<PathBuf> {
    let is_program = |path: &PathBuf| {
        path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    };
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(is_program)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::process::Command;

    /// The arguments that a shell makes of a line.
    fn understood(line: &str) -> Vec<String> {
        // printf prints its format once even without arguments, hence the first one.
        let script = format!(r"printf '%s\0' first {line}");
        let output = Command::new("sh").arg("-c").arg(script).output().expect("sh runs");
        assert!(output.status.success(), "{line}: {output:?}");
        let text = String::from_utf8(output.stdout).expect("UTF-8 went in");
        let words = text.strip_suffix('\0').expect("printf ends each with NUL").split('\0');
        words.skip(1).map(str::to_owned).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// All of them, with those that a shell treats specially often among them.
        #[test]
        fn what_is_printed_pastes_back(
            words in prop::collection::vec(
                prop_oneof![r"[#~=%!^{},a'\x22$`\\ \t\n*?;&|<>()\[\]-]{0,6}", "[^\0]{0,12}"],
                0..5,
            )
        ) {
            prop_assert_eq!(understood(&join(&words)), words);
        }
    }

    #[test]
    fn empty_words_and_comments_are_quoted_and_plain_words_are_not() {
        assert_eq!(quote(""), "''");
        assert_eq!(quote("#1"), "'#1'");
        assert_eq!(quote("{a,b}"), "'{a,b}'");
        assert_eq!(quote("it's; rm"), r"'it'\''s; rm'");
        assert_eq!(
            join(["--memory", "512", "a/b-c_d.e:f,g@h+i"]),
            "--memory 512 a/b-c_d.e:f,g@h+i"
        );
    }
}
