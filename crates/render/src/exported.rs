//! The contract of an export: structs of its own, field by field.
//!
//! What scripts read in JSON must not change because a type inside has, and above all not
//! because something that is stored on disk has. So nothing else is ever serialised into an
//! export: each has structs that [`exported!`](crate::exported) makes, whose fields have the
//! names and the order of JSON, and a field that has lost its origin does not compile.

pub use serde::Serialize;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// What a value is in an export.
pub trait Of<'a, T: ?Sized> {
    /// Takes or borrows it.
    fn of(value: &'a T) -> Self;
}

/// A value as the field that it becomes.
pub fn exported<'a, T: ?Sized, E: Of<'a, T>>(value: &'a T) -> E {
    E::of(value)
}

/// Declares a struct of an export and where each field comes from: by default, from the
/// field of the same name of the type after `of`; else, from what follows `=`.
///
/// ```
/// struct Ended { code: i32 }
/// struct Run { label: String, samples_s: Vec<f64>, ended: Ended }
///
/// vmeter_render::exported! {
///     /// A run.
///     struct RunJson<'a> of Run {
///         label: &'a str,
///         samples_s: &'a [f64],
///         code: i32 = |run| run.ended.code,
///     }
/// }
///
/// let run = Run { label: "a".into(), samples_s: vec![1.5], ended: Ended { code: 3 } };
/// let json: RunJson<'_> = vmeter_render::exported::exported(&run);
/// let json = serde_json::to_string(&json).unwrap();
/// assert_eq!(json, r#"{"label":"a","samples_s":[1.5],"code":3}"#);
/// ```
#[macro_export]
macro_rules! exported {
    ($(
        $(#[$meta:meta])*
        $vis:vis struct $name:ident $(<$life:lifetime>)? of $source:ty {
            $($(#[$of_field:meta])* $field:ident : $kind:ty $(= $value:expr)?),* $(,)?
        }
    )*) => {$(
        $(#[$meta])*
        #[derive(Debug, $crate::exported::Serialize)]
        $vis struct $name $(<$life>)? {
            $($(#[$of_field])* $field: $kind),*
        }

        impl<'a> $crate::exported::Of<'a, $source> for $name $(<$life>)? {
            fn of(of: &'a $source) -> Self {
                $name {
                    $($field: $crate::exported!(@value of, $field, $source, $kind $(, $value)?)),*
                }
            }
        }
    )*};
    (@value $of:ident, $field:ident, $source:ty, $kind:ty) => {
        $crate::exported::Of::of(&$of.$field)
    };
    (@value $of:ident, $field:ident, $source:ty, $kind:ty, $value:expr) => {{
        let value: fn(&'a $source) -> $kind = $value;
        value($of)
    }};
}

macro_rules! as_they_are {
    ($($kind:ty)*) => {$(
        impl Of<'_, $kind> for $kind {
            fn of(value: &$kind) -> Self {
                *value
            }
        }

        impl<'a> Of<'a, Vec<$kind>> for &'a [$kind] {
            fn of(value: &'a Vec<$kind>) -> Self {
                value
            }
        }
    )*};
}

as_they_are!(bool u8 u16 u32 u64 usize i32 i64 f64 &'static str);

impl<'a> Of<'a, String> for &'a str {
    fn of(value: &'a String) -> Self {
        value
    }
}

impl<'a> Of<'a, Vec<String>> for &'a [String] {
    fn of(value: &'a Vec<String>) -> Self {
        value
    }
}

/// A variant of an enum of words ([`vmeter_base::words!`]), by its word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Word(&'static str);

impl<W: vmeter_base::words::Word> Of<'_, W> for Word {
    fn of(value: &W) -> Self {
        Word(value.word())
    }
}

impl<'a> Of<'a, serde_json::Value> for &'a serde_json::Value {
    fn of(value: &'a serde_json::Value) -> Self {
        value
    }
}

/// JSON has no other paths.
impl<'a> Of<'a, PathBuf> for Cow<'a, str> {
    fn of(value: &'a PathBuf) -> Self {
        value.to_string_lossy()
    }
}

impl<'a, T, E: Of<'a, T>> Of<'a, Option<T>> for Option<E> {
    fn of(value: &'a Option<T>) -> Self {
        value.as_ref().map(E::of)
    }
}

impl<'a, T, E: Of<'a, T>> Of<'a, Vec<T>> for Vec<E> {
    fn of(value: &'a Vec<T>) -> Self {
        value.iter().map(E::of).collect()
    }
}

impl<'a, T, E: Of<'a, T>, const N: usize> Of<'a, [T; N]> for [E; N] {
    fn of(value: &'a [T; N]) -> Self {
        value.each_ref().map(E::of)
    }
}

impl<'a, A, B, C: Of<'a, A>, D: Of<'a, B>> Of<'a, (A, B)> for (C, D) {
    fn of(value: &'a (A, B)) -> Self {
        (C::of(&value.0), D::of(&value.1))
    }
}

impl<'a, T, E: Of<'a, T>> Of<'a, BTreeMap<String, T>> for BTreeMap<&'a str, E> {
    fn of(value: &'a BTreeMap<String, T>) -> Self {
        value.iter().map(|(name, value)| (name.as_str(), E::of(value))).collect()
    }
}

crate::exported! {
    /// A quantity measured several times, in every export.
    #[derive(Clone, Copy, PartialEq)]
    pub struct Estimate of vmeter_base::Estimate {
        mean: f64,
        median: f64,
        sd: f64,
        ci95: [f64; 2],
        min: f64,
        max: f64,
        n: usize,
    }
}
