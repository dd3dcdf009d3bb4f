//! Enums of which each variant is a word: one spelling on disk, in exports, in options and in
//! sentences.

use std::fmt;

/// An enum that [`words!`](crate::words) declared.
pub trait Word: Copy + 'static {
    /// All of them, in the order of their declaration.
    const WORDS: &'static [Self];

    /// As files, exports, options and sentences have it.
    fn word(self) -> &'static str;

    /// What it means, as its declaration says.
    fn about(self) -> &'static str;
}

/// A text that is none of an enum's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownWord {
    /// What was given.
    pub found: String,
    /// The words that there are.
    pub known: Vec<&'static str>,
}

impl fmt::Display for UnknownWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = match self.known.as_slice() {
            [others @ .., last] if !others.is_empty() => format!("{} or {last}", others.join(", ")),
            known => known.join(""),
        };
        write!(f, "expected {known}, found {:?}", self.found)
    }
}

impl std::error::Error for UnknownWord {}

/// Declares an enum whose variants are written as words. It gets `ALL`, `word`, `Display`,
/// `FromStr` (with [`UnknownWord`](crate::words::UnknownWord)), and serde's traits, by these
/// words. The crate that declares it depends on `serde` with its derives.
///
/// ```
/// vmeter_base::words! {
///     /// Which of two.
///     pub enum Side {
///         /// The one.
///         Left = "left",
///         /// The other.
///         Right = "right",
///     }
/// }
/// assert_eq!("right".parse(), Ok(Side::Right));
/// assert_eq!(serde_json::to_string(&Side::Left).expect("JSON"), "\"left\"");
/// let error = "up".parse::<Side>().expect_err("unknown").to_string();
/// assert_eq!(error, "expected left or right, found \"up\"");
/// use vmeter_base::words::Word;
/// assert_eq!(Side::WORDS.iter().map(|side| side.about().trim()).last(), Some("The other."));
/// ```
#[macro_export]
macro_rules! words {
    (
        $(#[$about:meta])*
        $visible:vis enum $name:ident {
            $(
                $(#[doc = $doc:literal])+
                $(#[default $($is_default:tt)?])?
                $variant:ident = $word:literal
            ),+ $(,)?
        }
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[derive(serde::Serialize, serde::Deserialize)]
        $visible enum $name {
            $(
                $(#[doc = $doc])+
                $(#[default $($is_default)?])?
                #[serde(rename = $word)]
                $variant
            ),+
        }

        impl $name {
            /// All of them, in the order of their declaration.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// As files, exports, options and sentences have it.
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word),+
                }
            }
        }

        impl $crate::words::Word for $name {
            const WORDS: &'static [Self] = Self::ALL;

            fn word(self) -> &'static str {
                $name::word(self)
            }

            fn about(self) -> &'static str {
                match self {
                    $(Self::$variant => concat!($($doc),+)),+
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.word())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::words::UnknownWord;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let found = Self::ALL.iter().copied().find(|one| one.word() == text);
                found.ok_or_else(|| $crate::words::UnknownWord {
                    found: text.to_owned(),
                    known: Self::ALL.iter().map(|one| one.word()).collect(),
                })
            }
        }
    };
}
