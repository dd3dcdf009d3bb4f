//! The sources, one file each, registered here.

use crate::source::Source;

/// Every source that can be decoded, by [`vmeter_model::run::SourceRecord::name`].
pub fn all() -> Vec<&'static dyn Source> {
    vec![]
}
