//! What limits the figures, in words.

use crate::read::Read;
use crate::result::ExplainResult;
use vmeter_timebase::Clocks;

/// What the result can't be trusted for.
pub fn warnings(result: &ExplainResult, sources: &[Read], clocks: &Clocks) -> Vec<String> {
    let mut all = Vec::new();
    for source in sources {
        let (file, losses) = (&source.file, &source.losses);
        let mut say = |count: u64, what: &str| {
            if count > 0 {
                all.push(format!("{file}: {count} {what}"));
            }
        };
        say(
            losses.lost_events,
            "events were lost during the recording: counts are lower bounds, \
            and vmeter does not time requests near the gaps",
        );
        say(
            losses.overwritten,
            "events were overwritten before vmeter read the trace, so the trace begins in the \
                middle",
        );
        say(losses.uncounted_gaps, "gaps where an unknown number of events was lost");
        say(losses.unreadable, "lines or records could not be understood");
        all.extend(losses.missing.iter().map(|what| format!("{file}: {what}")));
    }
    for file in result.files.iter().filter(|file| file.alignment.method == "none") {
        all.push(format!(
            "{}: this file's clock ({}) could not be related to that of {}: record both files \
             with trace_clock=x86-tsc, or explain this file alone",
            file.file,
            file.clock,
            result.files.first().map_or("the first file", |first| first.file.as_str())
        ));
    }
    all.extend(clocks.rate().map(str::to_string));
    if clocks.tick_s().is_none() {
        all.push(
            "the clock counts cycles at an unknown rate, so vmeter prints times in cycles; \
                --cpu-hz HZ converts them to seconds"
                .to_string(),
        );
    }
    all
}
