//! Why a command could not do its work, in the classes that exit codes tell apart.

use std::fmt;

/// The class of a failure (docs/INTERFACE.md: exit status).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The question was wrong or an input unreadable: 2.
    Usage,
    /// This host can't do it: 3.
    Host,
    /// It was done, and the answer is bad: 1.
    Answer,
    /// The user interrupted it: 130.
    Interrupted,
}

impl Class {
    /// The exit status.
    pub fn status(self) -> u8 {
        match self {
            Class::Answer => 1,
            Class::Usage => 2,
            Class::Host => 3,
            Class::Interrupted => 130,
        }
    }
}

/// A marker in an error's chain that gives its class.
#[derive(Debug)]
struct Marked {
    class: Class,
    message: String,
}

impl fmt::Display for Marked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Marked {}

/// An error of a class, in words.
pub fn failure(class: Class, message: impl fmt::Display) -> anyhow::Error {
    Marked { class, message: message.to_string() }.into()
}

/// The user asked for something that is not valid, or an input is unreadable.
pub fn usage(message: impl fmt::Display) -> anyhow::Error {
    failure(Class::Usage, message)
}

/// This host can't do it; the message says why and what would mend it.
pub fn host(message: impl fmt::Display) -> anyhow::Error {
    failure(Class::Host, message)
}

/// The class of an error; what nobody classified is the host's fault (a full disk, say).
pub fn class(error: &anyhow::Error) -> Class {
    error
        .chain()
        .find_map(|cause| cause.downcast_ref::<Marked>())
        .map_or(Class::Host, |marked| marked.class)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn a_class_survives_context() {
        let error = Err::<(), _>(usage("no such machine")).context("cannot boot").unwrap_err();
        assert_eq!(class(&error).status(), 2);
        assert_eq!(format!("{error:#}"), "cannot boot: no such machine");
        assert_eq!(class(&anyhow::anyhow!("disk full")).status(), 3);
    }
}
