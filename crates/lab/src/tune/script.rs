//! The answer as a script to run.

use vmeter_model::tune::TuneResult;
use vmeter_render::quantity::{compact_seconds, ratio_interval};

/// A shell script that starts the recommended machine, with what each step gives up.
pub fn script(result: &TuneResult) -> String {
    let mut text = String::from("#!/bin/sh\n");
    let mut say = |line: String| {
        let line: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        text += &format!("# {line}\n");
    };
    match (&result.ratio, &result.before, &result.after) {
        (Some(ratio), Some(before), Some(after)) if result.recommended => say(format!(
            "vmeter tune: {} times as fast as the original ({} -> {}).",
            ratio_interval(ratio),
            compact_seconds(before.mean),
            compact_seconds(after.mean)
        )),
        _ => {
            say("vmeter tune found nothing to gain: this script starts the original machine."
                .into())
        }
    }
    for step in result.steps.iter().filter(|step| step.kept) {
        say(format!("{}: {}; gives up {}", step.id, step.change, step.gives_up));
    }
    text += &format!("exec {} \"$@\"\n", vmeter_base::shell::join(&result.command));
    text
}
