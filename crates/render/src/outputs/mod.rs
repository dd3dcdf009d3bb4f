//! One file an output, and the list of them.

pub mod csv;
pub mod html;
pub mod json;
pub mod markdown;
pub mod perfetto;
pub mod terminal;

use crate::{Report, ReportError};
use std::io::Write;
use std::path::Path;

/// A format that results can be written in.
pub trait Output: Sync {
    /// Its name: `--export-NAME` is its option.
    fn name(&self) -> &'static str;

    /// What it is for, in a few words for `--help`.
    fn about(&self) -> &'static str;

    /// File name endings that mean it, without the dot.
    fn extensions(&self) -> &'static [&'static str];

    /// True if it shows timelines, which not every result has.
    fn needs_timeline(&self) -> bool {
        false
    }

    /// Writes a result.
    ///
    /// # Errors
    /// When the stream breaks, or the result has nothing for this output.
    fn write(&self, report: &dyn Report, out: &mut dyn Write) -> Result<(), ReportError>;
}

/// Every output.
pub const OUTPUTS: &[&dyn Output] = &[
    &terminal::PLAIN,
    &json::Json,
    &csv::Csv,
    &markdown::Markdown,
    &html::Html,
    &perfetto::Perfetto,
];

/// The output that a path's ending means.
pub fn by_extension(path: &Path) -> Option<&'static dyn Output> {
    let extension = path.extension()?.to_str()?.to_ascii_lowercase();
    OUTPUTS.iter().copied().find(|output| output.extensions().contains(&extension.as_str()))
}
