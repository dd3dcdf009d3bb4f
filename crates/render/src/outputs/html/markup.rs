//! HTML that no raw string can get into.
//!
//! Text from a guest becomes [`Markup`] by [`escape`] alone, and markup is composed by
//! [`markup!`](crate::markup) alone, which takes what is [`Harmless`]: other markup, numbers,
//! and words of the program's own. A `String` in its place does not compile.

use crate::text::neutralise;
use std::fmt::{self, Display};

/// A piece of a page, escaped.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Markup(String);

/// `text` safe in content and in quoted attributes.
pub fn escape(text: &str) -> Markup {
    let text = neutralise(text);
    let mut out = String::with_capacity(text.as_str().len());
    for c in text.as_str().chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    Markup(out)
}

/// What may stand in a page as it is.
///
/// A string that was made at run time is not:
/// ```compile_fail
/// let name = String::from("<script>");
/// vmeter_render::markup!("<p>{}</p>", name);
/// ```
/// nor when it is borrowed, nor when the format names it:
/// ```compile_fail
/// let name = String::from("<script>");
/// vmeter_render::markup!("<p>{}</p>", name.as_str());
/// ```
/// ```compile_fail
/// let name = String::from("<script>");
/// vmeter_render::markup!("<p>{name}</p>");
/// ```
/// Escaped, it is:
/// ```
/// use vmeter_render::outputs::html::escape;
/// let name = String::from("<b>");
/// assert_eq!(vmeter_render::markup!("<p>{}</p>", escape(&name)).as_str(), "<p>&lt;b&gt;</p>");
/// ```
pub trait Harmless: Display {}

impl Harmless for Markup {}
impl Harmless for &'static str {}
impl Harmless for f64 {}
impl Harmless for usize {}

/// Composes [`Markup`], as `format!` does, of what is [`Harmless`].
#[macro_export]
macro_rules! markup {
    // A format that comes out of a macro cannot capture variables: all that is shown is listed.
    ($format:literal $(, $shown:expr)* $(,)?) => {
        $crate::outputs::html::Markup::compose(format_args!(
            concat!($format) $(, $crate::outputs::html::harmless(&$shown))*
        ))
    };
}

/// Lets only [`Harmless`] values pass.
pub fn harmless<T: Harmless>(shown: &T) -> &T {
    shown
}

impl Markup {
    /// For [`markup!`](crate::markup), which checks the arguments.
    #[doc(hidden)]
    pub fn compose(parts: fmt::Arguments<'_>) -> Markup {
        Markup(parts.to_string())
    }

    /// The HTML.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Appends more.
    pub fn push(&mut self, more: Markup) {
        self.0.push_str(&more.0);
    }
}

impl Display for Markup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Extend<Markup> for Markup {
    fn extend<I: IntoIterator<Item = Markup>>(&mut self, parts: I) {
        parts.into_iter().for_each(|part| self.push(part));
    }
}

impl FromIterator<Markup> for Markup {
    fn from_iter<I: IntoIterator<Item = Markup>>(parts: I) -> Self {
        let mut whole = Markup::default();
        whole.extend(parts);
        whole
    }
}
