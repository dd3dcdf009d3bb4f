//! How commands end.

/// How a command that did its work ended.
pub enum Status {
    /// Exit status 0.
    Good,
    /// Done, and the answer is bad: exit status 1.
    Bad,
    /// Done, and a gate could not decide: exit status 4.
    Inconclusive,
}
