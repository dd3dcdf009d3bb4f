//! What no tracepoint tells of processes, by probes of the kernel's own that it sets at its
//! start: `kprobe_event=` (kernel: Documentation/trace/kprobetrace.rst).
//!
//! - `exec`: the arguments of a new image, where `finalize_exec` finds them on its stack.
//! - `reap`: when a process is taken away, by whom, how it ended, the CPU time that it had
//!   (`sum_exec_runtime`), and the control group that it was in: systemd's unit.
//!
//! The places of fields in the kernel's structures are those of its BTF. `%di` is the first
//! argument on x86-64.

use super::EventFormat;
use crate::btf::Field;
use crate::error::Result;
use crate::guest::Guest;
use crate::info::KernelInfo;
use std::collections::BTreeMap;

/// The group that the probes are in.
const GROUP: &str = "vmeter";
/// Bytes of a probe's record before its arguments: `struct kprobe_trace_entry_head`.
const HEAD: u32 = 16;
/// Words of 8 bytes of a new image's arguments that are kept: kernels up to 6.1 take no arrays
/// of user memory, so that each is an argument of the probe, and a command line is short.
const WORDS: u32 = 16;
/// More events than any kernel has.
const MAX_EVENTS: usize = 1 << 15;

/// A probe: its name as an event's here and in the kernel, and its arguments with their sizes.
struct Probe {
    name: &'static str,
    event: &'static str,
    fields: &'static [(&'static str, u32)],
}

const PROBES: &[Probe] = &[
    Probe {
        name: "vmeter_exec",
        event: "vmeter_exec",
        fields: &[("argc", 4), ("argv", 8 * WORDS)],
    },
    Probe {
        name: "vmeter_reap",
        event: "vmeter_reap",
        fields: &[("pid", 4), ("status", 4), ("cpu", 8), ("__data_loc_group", 4)],
    },
];

/// The value of `kprobe_event=` for this kernel; none if it has no such parameter, or no
/// types.
pub fn boot_probes(info: &KernelInfo) -> Option<String> {
    info.symbols.get("setup_boot_kprobe_events").or(info.symbols.get("set_kprobe_boot_events"))?;
    let at = |name: &str| info.field(name).ok().map(Field::offset);
    let (argc, stack) = (at("linux_binprm.argc")?, at("linux_binprm.p")?);
    // On the new stack: the number of arguments, then the address of each; the texts themselves
    // lie one behind the other.
    let words = (0..WORDS).map(|n| format!(",+u{}(+u8(+{stack}(%di))):x64", n * 8));
    let words: String = words.collect();
    let exec = format!("p:{GROUP}/vmeter_exec,finalize_exec,+{argc}(%di):s32{words}");
    let (pid, cpu) = (at("task_struct.pid")?, at("task_struct.se.sum_exec_runtime")?);
    let status = at("task_struct.exit_code")?;
    let (sets, of) = (at("task_struct.cgroups")?, at("css_set.dfl_cgrp")?);
    let (node, name) = (at("cgroup.kn")?, at("kernfs_node.name")?);
    let reap = format!(
        "p:{GROUP}/vmeter_reap,release_task,+{pid}(%di):s32,+{status}(%di):s32,+{cpu}(%di):u64,\
         +0(+{name}(+{node}(+{of}(+{sets}(%di))))):string"
    );
    Some(format!("{exec};{reap}"))
}

/// Numbers and fields of the probes that a guest had.
pub(super) fn probes(guest: &Guest<'_>) -> Result<BTreeMap<String, EventFormat>> {
    let mut found = BTreeMap::new();
    let (Ok(list), Ok(link)) = (
        guest.symbol("ftrace_events"),
        guest.info().field("trace_event_call.list").map(Field::offset),
    ) else {
        return Ok(found);
    };
    let mut next = guest.u64(list)?;
    for _ in 0..MAX_EVENTS {
        if next == list || found.len() == PROBES.len() {
            break;
        }
        let call = next.wrapping_sub(link);
        next = guest.u64(next)?;
        // Of a tracepoint's event this is no text, and of no interest.
        let name = guest.field(call, "trace_event_call.name").and_then(|at| guest.text(at, 32));
        let probe = PROBES.iter().find(|p| name.as_deref().is_ok_and(|name| name == p.event));
        if let Some(probe) = probe {
            let id = guest.field(call, "trace_event_call.event.type")?;
            found.insert(probe.name.to_owned(), EventFormat { id, fields: fields(probe) });
        }
    }
    Ok(found)
}

/// A probe's arguments lie one behind the other, without gaps.
fn fields(probe: &Probe) -> BTreeMap<String, Field> {
    let mut at = HEAD;
    let mut fields = BTreeMap::new();
    for &(name, size) in probe.fields {
        fields.insert(name.to_owned(), Field { bit: at * 8, bits: size * 8 });
        at += size;
    }
    fields
}

/// The first `argc` texts of what lay on a new image's stack. The last may be cut.
pub(super) fn arguments(argc: u64, stack: &[u8]) -> Vec<String> {
    let count = usize::try_from(argc).unwrap_or(0);
    let texts = stack.split(|byte| *byte == 0).take(count);
    texts.map(|text| String::from_utf8_lossy(text).into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn arguments_are_as_many_as_there_were() {
        assert_eq!(arguments(2, b"sleep\x000.7\0HOME=/\0PATH"), ["sleep", "0.7"]);
        assert_eq!(arguments(3, b"a\0\0cut of"), ["a", "", "cut of"]);
        assert_eq!(arguments(0, b"a\0"), Vec::<String>::new());
    }

    proptest! {
        #[test]
        fn no_stack_panics(argc: u64, stack in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = arguments(argc, &stack);
        }
    }
}
