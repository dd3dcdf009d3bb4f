//! A small result of `vmeter memory`: two roots, one of which failed once.

use super::boot::failed_run;
use super::{envelope, words};
use vmeter_lab::memory::*;
use vmeter_model::run::{Outcome, SessionMachine};

const MIB: u64 = 1 << 20;

fn guest(buff_cache: u64) -> GuestMemory {
    GuestMemory {
        total_bytes: 488 * MIB,
        used_bytes: 27 * MIB,
        free_bytes: (461 - buff_cache) * MIB,
        shared_bytes: MIB / 4,
        buff_cache_bytes: buff_cache * MIB,
        available_bytes: 461 * MIB,
    }
}

fn vmm(more: u64, parts: &[(Part, u64)]) -> VmmFigures {
    let part = |(part, mib): &(Part, u64)| PartFigures {
        part: *part,
        rss_bytes: mib * MIB,
        pss_bytes: mib * MIB * 7 / 8,
    };
    let rss: u64 = parts.iter().map(|(_, mib)| mib * MIB).sum();
    VmmFigures {
        peak_rss_bytes: rss + more * MIB,
        rss_bytes: rss,
        pss_bytes: rss * 7 / 8,
        anonymous_bytes: rss / 2,
        swap_bytes: 0,
        parts: parts.iter().map(part).collect(),
    }
}

fn sample(run: u32, buff_cache: u64, ram: u64, files: u64) -> Sample {
    let meminfo = [("MemTotal".to_owned(), 488 * MIB), ("Buffers".to_owned(), 4096)];
    let mut parts = vec![(Part::GuestRam, ram), (Part::TranslatedCode, 40), (Part::Heap, 15)];
    parts.extend((files > 0).then_some((Part::GuestFiles, files)));
    Sample {
        run,
        guest: Some(guest(buff_cache)),
        meminfo: meminfo.into(),
        vmm: Some(vmm(2, &parts)),
    }
}

fn moment(stage: Stage, root: &str, samples: Vec<Sample>) -> Moment {
    let machine = SessionMachine {
        label: format!("{root}, {}", stage.word()),
        argv: words("qemu-system-x86_64 -m 512M -kernel vmlinuz"),
        ..SessionMachine::default()
    };
    Moment { stage, machine, samples, failures: Vec::new() }
}

pub fn result() -> MemoryResult {
    let dax = vec![
        moment(Stage::Ready, "dax", vec![sample(0, 9, 82, 1), sample(5, 9, 84, 1)]),
        moment(Stage::Read, "dax", vec![sample(2, 9, 82, 64)]),
    ];
    let mut disk = vec![
        moment(Stage::Ready, "virtio-blk", vec![sample(1, 9, 80, 0)]),
        moment(Stage::Read, "virtio-blk", vec![sample(4, 73, 148, 0)]),
    ];
    disk[1].failures = vec![failed_run(3, Outcome::TimedOut { last: "initcall a".into() })];
    let machine = |label: &str, moments| MachineMemory { label: label.into(), moments };
    let mut silent = moment(Stage::End, "own", vec![sample(6, 1, 100, 0)]);
    silent.samples[0].guest = None;
    silent.samples[0].meminfo.clear();
    MemoryResult {
        envelope: envelope("memory"),
        read_mib: 64,
        machines: vec![
            machine("dax", dax),
            machine("virtio-blk", disk),
            machine("own", vec![silent]),
        ],
        warnings: vec!["virtio-blk, read 64 MiB, run 3: timed out".into()],
        hints: Vec::new(),
        saved_in: "/home/user/.local/state/vmeter/runs/2026-11-20T12-10-00-memory".into(),
    }
}
