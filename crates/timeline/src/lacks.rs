//! What a kernel lacks to be read by, and which one line would give what: of its configuration, of its
//! command line, of vmeter's. Only what would have told more of this run is said.

use crate::facts::RunIndex;
use crate::lines::Line;
use crate::patterns::On;
use vmeter_model::Ns;

/// Records of a log that are off by more than this are placed better by a clock that can be read, ns.
const ROUGH_NS: Ns = 1_000_000;

/// A sentence for each thing that this run would have more of.
pub(crate) fn said(facts: &RunIndex<'_>) -> Vec<String> {
    let by_address = facts.calls.builtin().filter(|call| call.function.starts_with("0x")).count();
    let unnamed = (by_address > 0).then(|| {
        format!(
            "{by_address} initcalls have only an address, because the kernel was built without \
                CONFIG_KALLSYMS. To see their names, give the System.map or the vmlinux of the \
                same build with --symbols FILE, or use a kernel with CONFIG_KALLSYMS=y"
        )
    });
    unnamed.into_iter().chain(untold(facts)).chain(rough(facts)).collect()
}

/// Of a kernel that neither traced its initcalls nor logged them.
fn untold(facts: &RunIndex<'_>) -> Option<String> {
    let [_, _, events] = facts.lacks;
    let spoke = facts.lines.iter().any(|line| line.on == On::Kernel);
    (events && spoke && facts.calls.builtin().next().is_none()).then(|| {
        "the kernel can't trace its initcalls (no CONFIG_FTRACE), so no initcall has a name. \
            With `quiet initcall_debug log_buf_len=512K` on its command line, the kernel writes \
            its initcalls to its log, and not to the console. If the console is quiet, and you \
            allow vmeter to change the command line, vmeter adds the last two parameters itself. \
            The kernel needs no new configuration"
            .to_owned()
    })
}

/// Of a log that is placed by what was seen of it from outside.
fn rough(facts: &RunIndex<'_>) -> Option<String> {
    let [data, types, _] = facts.lacks;
    let lacking: Vec<&str> = [(data, "CONFIG_KALLSYMS_ALL=y"), (types, "CONFIG_DEBUG_INFO_BTF=y")]
        .into_iter()
        .filter_map(|(lacks, line)| lacks.then_some(line))
        .collect();
    let logged = |line: &&Line<'_>| line.on == On::Kernel && !line.console && line.timed;
    let mut errors: Vec<Ns> = facts.lines.iter().filter(logged).map(|line| line.error).collect();
    errors.sort_unstable();
    let typical = *errors.get(errors.len() / 2)?;
    (!lacking.is_empty() && typical > ROUGH_NS).then(|| {
        format!(
            "the times of the kernel's log lines are off by {:.1} ms, because vmeter cannot read \
                this kernel's clock in RAM; if the kernel has {}, vmeter can read the clock, \
                and the times are off by 0.02 ms at most",
            typical as f64 / 1e6,
            lacking.join(" and ")
        )
    })
}
