//! The JSON body of `vmeter doctor`. Field names are fixed by schema `vmeter/1`.

use vmeter_model::result::{self, DoctorResult};
use vmeter_render::exported;
use vmeter_render::exported::Word;

exported! {
    /// The fields after the envelope.
    pub(super) struct Body<'a> of DoctorResult {
        checks: Vec<Check<'a>>,
    }

    struct Check<'a> of result::Check {
        name: Word,
        status: Word,
        found: &'a str,
        mend: &'a str,
        detail: &'a str,
    }
}
