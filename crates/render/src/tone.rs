//! Emphasis, the same in every output.

/// Emphasis of a row, cell or node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tone {
    /// None.
    #[default]
    Normal,
    /// Less important.
    Muted,
    /// More important.
    Strong,
    /// An improvement.
    Good,
    /// A failure or a regression.
    Bad,
}
