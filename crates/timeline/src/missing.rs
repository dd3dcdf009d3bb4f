//! Why time is `unattributed`: the evidence that would have explained it.

use crate::anchors::{Anchor, Anchors, Stamp};
use crate::facts::RunIndex;
use crate::landmarks::is_linux;
use crate::lines::{Line, EARLY_CLOCK_ERROR_NS};
use crate::second_kernel::By;
use vmeter_model::run::WatchLevel;
use vmeter_model::span::UNATTRIBUTED;
use vmeter_model::time::seconds;
use vmeter_model::{Ns, RunRecord, Span, Timeline};

/// Unattributed time that is less than this share of the run for one reason is not explained.
const WORTH_A_WORD: f64 = 0.01;

/// One warning for each reason why long stretches are explained by nothing.
pub(crate) fn explain(
    timeline: &Timeline,
    facts: &RunIndex<'_>,
    anchors: &Anchors<'_>,
    run: &RunRecord,
) -> Vec<String> {
    if run.watch == WatchLevel::None || run.runs_on {
        return Vec::new();
    }
    let shortest = timeline.total as f64 * WORTH_A_WORD;
    let unexplained = timeline.leaves().filter(|s| s.name == UNATTRIBUTED);
    let mut of_reason: Vec<(String, Vec<&Span>)> = Vec::new();
    for span in unexplained {
        let why = match reason((facts, anchors), span.start, span.end) {
            KERNEL_UNSEEN => of_kernel(facts, run),
            why => why.to_owned(),
        };
        match of_reason.iter_mut().find(|(known, _)| *known == why) {
            Some((_, spans)) => spans.push(span),
            None => of_reason.push((why, vec![span])),
        }
    }
    let all = |spans: &[&Span]| -> Ns { spans.iter().map(|s| s.len()).sum() };
    of_reason
        .iter()
        .filter(|(_, spans)| all(spans) as f64 > shortest)
        .map(|(why, spans)| {
            let all = all(spans);
            let pieces = match spans.len() {
                1 => String::new(),
                n => format!(" in {n} stretches"),
            };
            let from = spans.first().map_or(0, |s| s.start);
            format!("unattributed {:.3} s{pieces} from {:.3} s: {why}", seconds(all), seconds(from))
        })
        .collect()
}

/// What is told of a trace and a log whose first records were overwritten.
pub(crate) fn lost(facts: &RunIndex<'_>) -> Vec<String> {
    let trace = facts.lost.map(|(count, from)| {
        let kept = if from < facts.total {
            format!("has only the records from {:.3} s on", seconds(from))
        } else {
            "has no record of the boot".to_owned()
        };
        format!(
            "the guest's trace {kept}, because the guest overwrote {count} earlier records; add \
                {} to the kernel's command line to keep all records",
            trace_size(facts)
        )
    });
    let log = (facts.log_lost > 0).then(|| {
        format!(
            "the guest's log has only its last records, because the guest overwrote {} earlier \
                records; add {} to the kernel's command line to keep all records",
            facts.log_lost,
            log_size(facts)
        )
    });
    let unplaced = (facts.log_unplaced > 0).then(|| {
        format!(
            "vmeter does not know the times of the {} records in the kernel's log, so it makes \
                no spans from them: the console showed no line of the kernel, and the guest's \
                RAM has no clock that vmeter can read",
            facts.log_unplaced
        )
    });
    let torn =
        facts.torn.into_iter().zip(["records of the guest's log", "pages of the guest's trace"]);
    let torn = torn.filter(|(count, _)| *count > 0).map(|(count, of)| {
        format!(
            "vmeter left out {count} {of}, because the guest overwrote them while vmeter copied \
            them"
        )
    });
    trace.into_iter().chain(log).chain(unplaced).chain(torn).collect()
}

/// A guest's clock that lost less is as good as any, ns and share.
const LOST_NS: Ns = 300_000_000;
const LOST_SHARE: f64 = 0.05;

/// What is told of a kernel's clock that lost time up to its init: whoever compares these times with
/// the guest's own finds less there.
pub(crate) fn lost_time(facts: &RunIndex<'_>, anchors: &Anchors<'_>) -> Option<String> {
    let init = anchors.get(Anchor::Userspace)?.at;
    let live = |l: &&Line<'_>| l.console && l.timed && l.error < EARLY_CLOCK_ERROR_NS;
    let stamped = facts.lines.iter().filter(live).filter(|l| l.at <= init);
    let mut stamped = stamped.filter_map(|l| Some((l.at, l.stamp.filter(|stamp| *stamp > 0)?)));
    let first = stamped.next()?;
    let last = stamped.next_back()?;
    let took = last.0 - first.0;
    let lost = took - (last.1 - first.1);
    (lost >= LOST_NS && lost as f64 >= LOST_SHARE * took as f64).then(|| {
        format!(
            "the guest's clock lost {:.3} s of the {:.3} s up to the start of init, so dmesg and \
             systemd-analyze show times that are too short by this amount. vmeter shows times of \
             the host's clock. (Until the guest's kernel switches to the TSC, it counts timer \
             ticks, and a busy host does not deliver all of them.)",
            seconds(lost),
            seconds(took)
        )
    })
}

/// What is said of a guest whose first kernel gave way to another.
pub const GAVE_WAY: &str = "a second kernel replaced the guest's first kernel";

/// What is told of a guest whose first kernel gave way to another.
pub(crate) fn of_first(since: Stamp<'_>, by: By) -> String {
    let how = if by == By::Reset { "after a reset" } else { "kexec" };
    format!(
        "at {:.3} s {GAVE_WAY} ({how}). At the end of the run the guest's RAM holds the \
            second kernel, so vmeter knows the first kernel only from the console and from what \
            vmeter saw while the first kernel ran",
        seconds(since.at)
    )
}

/// Why nothing is known of a kernel that was seen to begin.
const KERNEL_UNSEEN: &str =
    "vmeter saw the kernel, but not what it did (no initcall events, and no line of its log). To \
        trace its initcalls, add trace_event=initcall:* to the kernel's command line. If you \
        give a VMM's own command line, name the kernel with --kernel FILE. If the kernel lacks \
        CONFIG_FTRACE, add `quiet initcall_debug log_buf_len=512K` to its command line instead: \
        the kernel then logs its initcalls";
/// The same where its log has no place in time.
const UNPLACED: &str =
    "vmeter saw the kernel, but does not know the times of its log's lines. With TCG, \
     `--watch full` records the times of initcalls; without `quiet`, the console shows the time of \
     each line";
/// The same where it was told to trace.
const UNTRACED: &str =
    "vmeter saw the kernel, but not what it did. Its command line had trace_event=initcall:*, but \
        vmeter found no record of an initcall in the guest's RAM. The kernel may lack \
        CONFIG_FTRACE. Or it may lack CONFIG_KALLSYMS_ALL: vmeter needs this second option to find \
        the trace. Use a kernel with both options, or let the kernel print its log on the console \
        (no `quiet`)";
/// The same where its records were overwritten.
fn overwritten(facts: &RunIndex<'_>) -> String {
    let trace = facts.lost.map(|_| trace_size(facts));
    let log = (facts.log_lost > 0).then(|| log_size(facts));
    let words: Vec<String> = trace.into_iter().chain(log).collect();
    format!(
        "vmeter saw the kernel, but later records overwrote the records of the kernel's start: \
            add {} to the kernel's command line to keep all records",
        words.join(" ")
    )
}

/// The kernel's word for a trace that keeps all.
fn trace_size(facts: &RunIndex<'_>) -> String {
    format!("trace_buf_size={}", size(facts.wanted[1].unwrap_or(8 << 20)))
}

/// The kernel's word for a log that keeps all.
fn log_size(facts: &RunIndex<'_>) -> String {
    format!("log_buf_len={}", size(facts.wanted[0].unwrap_or(16 << 20)))
}

/// As the kernel reads a size.
fn size(bytes: u64) -> String {
    match bytes {
        0..0x10_0000 => format!("{}K", bytes.div_ceil(1 << 10)),
        _ => format!("{}M", bytes.div_ceil(1 << 20)),
    }
}

/// Which of these it is.
fn of_kernel(facts: &RunIndex<'_>, run: &RunRecord) -> String {
    let told = |word: &String| word.contains("trace_event=") && word.contains("initcall:");
    let traced = facts.calls.builtin().next().is_some();
    if facts.lost.is_some() || facts.log_lost > 0 {
        overwritten(facts)
    } else if !traced && facts.log_unplaced > 0 {
        UNPLACED.to_owned()
    } else if !traced && run.argv.iter().chain(&run.injected).any(told) {
        UNTRACED.to_owned()
    } else {
        KERNEL_UNSEEN.to_owned()
    }
}

/// Which anchors lie in a stretch unseen, in words.
fn reason((facts, anchors): (&RunIndex<'_>, &Anchors<'_>), start: i64, end: i64) -> &'static str {
    let before = |a: Anchor| anchors.get(a).is_some_and(|s| s.at <= start);
    let after = |a: Anchor| anchors.get(a).is_some_and(|s| s.at >= end);
    let last = Anchor::ALL.into_iter().filter(|a| before(*a)).max();
    let next = Anchor::ALL.into_iter().find(|a| after(*a) && last.is_none_or(|l| *a > l));
    match last {
        None if next.is_none() => "no source saw anything there",
        None | Some(Anchor::Wrapper) => "vmeter did not see the VMM's start (no ptrace)",
        Some(Anchor::ExecDone | Anchor::Main | Anchor::Waits) => {
            "vmeter did not see when the vCPU began to run (no VMM trace, TCG plugin or firmware \
                log)"
        }
        Some(Anchor::Reset | Anchor::Loader | Anchor::KernelFirst | Anchor::Decompress)
            if next.is_none_or(|next| next > Anchor::Panic) && !is_linux(facts) =>
        {
            "the guest showed no sign of Linux (no kernel log or trace), so vmeter cannot divide \
                its boot into parts"
        }
        Some(Anchor::Reset | Anchor::Loader | Anchor::KernelFirst | Anchor::Decompress) => {
            "vmeter did not see when decompression and the kernel began (no TCG plugin, fw_cfg \
                trace or kernel log)"
        }
        Some(Anchor::Hypervisor) => {
            "vmeter did not see when the hypervisor in the guest (Xen) started the Linux kernel"
        }
        Some(Anchor::KernelEntry | Anchor::Initcalls) => KERNEL_UNSEEN,
        Some(Anchor::Userspace | Anchor::Programs) => {
            "user space: in this time vmeter saw no step of init and no console line of a program. \
                Processes that ran at the same time as others are not shown here; --tree lists \
                them under \"Off the critical path\""
        }
        Some(Anchor::Kexec) => "the second kernel: no console line shows what it did",
        Some(Anchor::Panic | Anchor::Shutdown | Anchor::Exiting | Anchor::Resumed) => {
            "vmeter did not see everything that happened at the end of the run"
        }
    }
}
