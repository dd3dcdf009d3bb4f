//! What vmeters that were killed have left on this host.

use super::check;
use std::path::PathBuf;
use vmeter_guard::Leavings;
use vmeter_model::result::{Check, CheckName as Name, CheckStatus as Status};

/// Things that are named one by one; the others are counted.
const NAMED: usize = 20;
const NAME: Name = Name::Leavings;

/// Names them, and with `clean` ends and removes them first.
pub(super) fn leftovers(places: &[PathBuf], clean: bool) -> Check {
    let found = Leavings::of_earlier(places);
    if found.all().is_empty() {
        return check(NAME, Status::Good, "none from earlier runs", "");
    }
    if !clean {
        let mend = "vmeter doctor --clean ends and removes them";
        return check(NAME, Status::Poor, named(&found), mend);
    }
    let before = named(&found);
    let left = found.clear(places);
    if left.all().is_empty() {
        return check(NAME, Status::Good, format!("cleared: {before}"), "");
    }
    let mend = "they could not be cleared, and may be another user's: try sudo vmeter doctor \
        --clean";
    check(NAME, Status::Poor, named(&left), mend)
}

fn named(found: &Leavings) -> String {
    let all = found.all();
    let mut names: Vec<String> = all.iter().take(NAMED).map(ToString::to_string).collect();
    if all.len() > NAMED {
        names.push(format!("and {} more", all.len() - NAMED));
    }
    format!("{} from earlier runs: {}", all.len(), names.join(", "))
}
