//! The JSON body of `vmeter doctor`. Field names are fixed by schema `vmeter/1`.

use super::report::word;
use vmeter_model::result::{self, DoctorResult};
use vmeter_render::exported;

exported! {
    /// The fields after the envelope.
    pub(super) struct Body<'a> of DoctorResult {
        checks: Vec<Check<'a>>,
    }

    struct Check<'a> of result::Check {
        name: &'a str,
        status: &'static str = |check| word(check.status),
        found: &'a str,
        mend: &'a str,
        detail: &'a str,
    }
}
