//! The JSON body of `vmeter memory`. Field names are fixed by schema `vmeter/1`.

use crate::json_common;
use crate::memory::guest::GuestMemory;
use crate::memory::result::{MachineMemory, MemoryResult, Moment, PartFigures, Sample, VmmFigures};
use std::collections::BTreeMap;
use vmeter_model::result::FailedRun;
use vmeter_render::exported;
use vmeter_render::exported::{exported, Word};

exported! {
    /// The fields after the envelope.
    pub(super) struct Body<'a> of MemoryResult {
        read_mib: u32,
        machines: Vec<Machine<'a>>,
        warnings: &'a [String],
        hints: &'a [String],
        saved_in: &'a str,
    }

    struct Machine<'a> of MachineMemory {
        label: &'a str,
        guest: Option<Guest> = |machine| Some(Guest::of(machine.last()?.middle()?.guest.as_ref()?)),
        vmm: Option<Vmm> = |machine| Some(Vmm::of(machine.last()?.middle()?.vmm.as_ref()?)),
        moments: Vec<At<'a>>,
    }

    struct At<'a> of Moment {
        moment: Word = |moment| Word::of(&moment.stage),
        guest: Option<Guest> = |moment| Some(Guest::of(moment.middle()?.guest.as_ref()?)),
        vmm: Option<Vmm> = |moment| Some(Vmm::of(moment.middle()?.vmm.as_ref()?)),
        runs: Vec<Run<'a>> = |moment| exported(&moment.samples),
        failures: Vec<Failure<'a>>,
        machine: json_common::Machine<'a>,
    }

    struct Run<'a> of Sample {
        run: u32,
        guest: Option<Guest>,
        vmm: Option<Vmm>,
        meminfo: BTreeMap<&'a str, u64> = |sample| sample.meminfo.iter().map(|(k, v)| (k.as_str(), *v)).collect(),
    }

    struct Guest of GuestMemory {
        total_bytes: u64,
        used_bytes: u64,
        free_bytes: u64,
        shared_bytes: u64,
        buff_cache_bytes: u64,
        available_bytes: u64,
    }

    struct Vmm of VmmFigures {
        peak_rss_bytes: u64,
        rss_bytes: u64,
        pss_bytes: u64,
        anonymous_bytes: u64,
        swap_bytes: u64,
        parts: Vec<PartOfVmm>,
    }

    struct PartOfVmm of PartFigures {
        part: Word,
        rss_bytes: u64,
        pss_bytes: u64,
    }

    struct Failure<'a> of FailedRun {
        run: u32,
        outcome: json_common::Failure<'a> = |failed| exported(&failed.outcome),
        #[serde(skip_serializing_if = "Option::is_none")]
        end: Option<json_common::End<'a>>,
    }
}
