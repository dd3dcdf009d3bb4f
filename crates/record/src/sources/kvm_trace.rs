//! KVM's own account of a boot, by its tracepoints.
//!
//! Under KVM no plugin sees the guest's instructions, but the host's kernel sees
//! every exit from it. A tracefs instance of vmeter's own (`vmeter-tracefs`)
//! records them for the VMM's threads alone. It is made before the launch and
//! follows the forks from vmeter on, so that nothing is done while the VMM is
//! held; events are stamped with `CLOCK_MONOTONIC`. What is saved is a
//! `trace.dat` as trace-cmd writes it: `vmeter trace stat` reads it too.
//!
//! An event costs the host some 0.1 us, an exit 1 us and more: `light` takes one
//! to three events an exit, `full` has the entries as well, so that the time of
//! each exit is known. Which events a KVM has depends on the host: one in software
//! (PVM) has neither `kvm_exit` nor `kvm_entry`, and nothing here needs them.
//!
//! KVM's counters in debugfs are read at the VMM's end as well. They count what
//! tracepoints do not show there, or may not show to this user.

mod decode;
mod place;
mod stats;

use super::path_of;
use crate::end::EndEvidence;
use crate::guest_clock::{kvm_tsc_offset, share_offset, TscOffset};
use crate::guest_ram::slots;
use crate::ready::GUEST_BOOTED;
use crate::recorder::{self, Context, Live, Recorder, Saved, SourceError};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use vmeter_machine::launch::{kvm, Tracee};
use vmeter_machine::plan::LaunchPlan;
use vmeter_model::run::{SourceRecord, WatchLevel};
use vmeter_model::{Accel, Event, Moment, Ns, RunRecord};
use vmeter_tracefs::{Instance, Plan, Probe, Tracefs};

/// Name in [`SourceRecord::name`].
pub const NAME: &str = "kvm-trace";

/// The trace in the run's folder.
pub const FILE: &str = "kvm-trace.dat";

/// Of every exit: why, and what the VMM had to do for it.
const LIGHT: &[&str] = &[
    "kvm:kvm_exit",
    "kvm:kvm_userspace_exit",
    "kvm:kvm_pio",
    "kvm:kvm_mmio",
    "kvm:kvm_write_tsc_offset",
];
/// How long each took, and which registers it was about.
const FULL: &[&str] =
    &["kvm:kvm_entry", "kvm:kvm_msr", "kvm:kvm_cpuid", "kvm:kvm_hypercall", "kvm:kvm_fast_mmio"];

/// The trace clock is read within the event.
const ERROR_NS: Ns = 1_000;

/// KVM's tracepoints.
pub struct KvmTrace;

impl Recorder for KvmTrace {
    type Parameters = Parameters;
    type Raw = Raw;
    const NAME: &'static str = NAME;

    fn live(&self, context: &Context<'_>) -> Option<Box<dyn Live>> {
        let kvm = match context.accel {
            Some(accel) => accel == Accel::Kvm,
            // Somebody's own VMM: whether it uses KVM shows at its end.
            None => Path::new("/dev/kvm").exists(),
        };
        (kvm && context.watch != WatchLevel::None).then(|| {
            Box::new(Recording {
                dir: context.dir.to_owned(),
                watch: context.watch,
                booted: context.spec.until.as_deref() == Some(GUEST_BOOTED),
                sure: context.accel.is_some(),
                instance: None,
                slots: None,
                told: 0,
                lays_out: !context.vmm.ram_at_exit,
                trouble: None,
                machines: None,
                stats: BTreeMap::new(),
                scaled: false,
            }) as _
        })
    }

    fn read(
        &self,
        dir: &Path,
        source: &SourceRecord,
        parameters: Parameters,
    ) -> Result<Raw, SourceError> {
        let mut seen = decode::Seen::default();
        if !source.files.is_empty() {
            seen = decode::read(&path_of(dir, source, 0)?)?;
        }
        Ok(Raw { seen, parameters })
    }

    fn decode(
        &self,
        raw: &Raw,
        _: &SourceRecord,
        saved: &Saved<'_>,
    ) -> Result<Vec<Event>, SourceError> {
        decode::events(&raw.seen, &raw.parameters.stats, saved.run)
    }

    fn clues(&self, raw: &Raw, clues: &mut EndEvidence) {
        clues.triple_faults = clues.triple_faults.saturating_add(raw.seen.triple_faults());
        clues.kvm_traced |= raw.seen.has_exits();
    }

    /// Shares what it saw of the guest's TSC.
    fn refine_run(&self, dir: &Path, run: &mut RunRecord) {
        let own = run.sources.iter().find(|source| source.name == NAME);
        let Some(own) = own else { return };
        let map = own.parameters.clone().into_iter().collect();
        let parameters: Parameters = serde_json::from_value(Value::Object(map)).unwrap_or_default();
        if parameters.booted {
            place_ready(dir, run);
        }
        if parameters.offset.tsc_offset.is_some() {
            share_offset(&mut run.sources, parameters.offset);
        }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(n: &usize) -> bool {
    *n == 0
}

/// When a guest went on that was restored from a snapshot, by its first exit.
pub(crate) fn went_on(saved: &Saved<'_>) -> Option<Ns> {
    decode::went_on(&saved.raw(&KvmTrace).ok()??.seen, saved.run)
}

/// The VMM prints some time later what its guest told it by a port or an address, which
/// KVM saw: the ready point is there, and so is the end of what is measured.
fn place_ready(dir: &Path, run: &mut RunRecord) {
    let source = run.sources.iter().find(|source| source.name == NAME);
    let seen = source.and_then(|source| decode::read(&path_of(dir, source, 0).ok()?).ok());
    let said = seen.and_then(|seen| decode::booted(&seen, run));
    let ready = run.moments.iter_mut().find(|(_, moment)| *moment == Moment::Ready);
    let (Some(said), Some((printed, _))) = (said, ready) else { return };
    if said < *printed {
        if run.total_ns == *printed {
            run.total_ns = said;
        }
        *printed = said;
    }
}

/// What is known besides the trace.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Parameters {
    /// KVM's counters of the VM, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    stats: BTreeMap<String, u64>,
    /// The guest's TSC, where the trace has it.
    #[serde(flatten)]
    offset: TscOffset,
    /// Pieces of guest RAM that KVM was told of, where a kprobe saw that.
    #[serde(default, skip_serializing_if = "is_zero")]
    ram_slots: usize,
    /// True if the run ends when the guest tells its VMM that it has booted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    booted: bool,
    /// True if the trace reached its bound and what came after is missing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    limited: bool,
}

/// The trace, read to its end.
#[derive(Debug)]
pub struct Raw {
    seen: decode::Seen,
    parameters: Parameters,
}

struct Recording {
    dir: PathBuf,
    watch: WatchLevel,
    booted: bool,
    /// True if KVM is used for certain.
    sure: bool,
    instance: Option<Instance>,
    /// Sees how the guest's RAM is laid out, where that has to be guessed otherwise.
    slots: Option<Probe>,
    lays_out: bool,
    /// In how many pieces RAM was, by that.
    told: usize,
    /// Why there is no instance; said once it is known that KVM is used.
    trouble: Option<String>,
    /// VMs that the VMM had at its end, if it was seen then.
    machines: Option<usize>,
    stats: BTreeMap<String, u64>,
    /// True where the guest's TSC is not the host's plus an offset.
    scaled: bool,
}

impl Recording {
    fn record(&self) -> Result<Instance, vmeter_tracefs::Error> {
        let mut events = LIGHT.to_vec();
        if self.watch == WatchLevel::Full {
            events.extend(FULL);
        }
        Tracefs::find()?.record(&Plan::new(&events).of_own_children().spool(&self.dir))
    }

    /// Saves the trace; gives its clock, and what it knows of the guest's TSC.
    fn save(&mut self, instance: Instance) -> Result<Option<Spooled>, SourceError> {
        let failed = |error: vmeter_tracefs::Error| SourceError::Other(format!("{NAME}: {error}"));
        let recorded = instance.stop().map_err(failed)?;
        if recorded.bytes() == 0 {
            return Ok(None);
        }
        let (limited, clock) = (recorded.is_limited(), recorded.clock().to_owned());
        let path = self.dir.join(FILE);
        recorded.save(&path).map_err(failed)?;
        let tsc_offset = decode::read(&path)?.tsc_offset();
        Ok(Some(Spooled { clock, limited, tsc_offset }))
    }
}

struct Spooled {
    clock: String,
    limited: bool,
    /// Offset and spread, cycles.
    tsc_offset: Option<(i64, u64)>,
}

impl Live for Recording {
    fn prepare(&mut self, _plan: &mut LaunchPlan) -> Result<(), SourceError> {
        match self.record() {
            Ok(instance) => {
                self.instance = Some(instance);
                // Without kprobes it is guessed from the VMM's mappings.
                let probe =
                    |tracefs: Tracefs| Probe::start(&tracefs, &slots::FUNCTIONS, slots::ARGUMENTS);
                let wanted = self.lays_out.then(Tracefs::find);
                self.slots = wanted.and_then(|tracefs| tracefs.and_then(probe).ok());
            }
            Err(error) => self.trouble = Some(format!("KVM's exits are not recorded: {error}")),
        }
        Ok(())
    }

    fn exiting(&mut self, tracee: &Tracee) -> Result<(), SourceError> {
        let machines = kvm::machines(tracee.pid);
        self.machines = Some(machines);
        if let Some(Ok(text)) = self.slots.as_ref().map(Probe::text) {
            let saved = slots::save(&self.dir, tracee, &text);
            let path = || self.dir.join(slots::FILE);
            self.told = saved.map_err(|error| SourceError::Io { path: path(), error })?;
        }
        if machines == 0 && !self.sure {
            return Ok(());
        }
        self.stats = stats::of(tracee.pid);
        self.scaled = !self.stats.is_empty() && kvm_tsc_offset(tracee.pid).is_none();
        self.trouble.take().map_or(Ok(()), |trouble| Err(SourceError::Other(trouble)))
    }

    fn finish(mut self: Box<Self>, _exec_ns: Ns) -> Result<Option<SourceRecord>, SourceError> {
        let recorded = self.instance.is_some();
        let saved = match self.instance.take() {
            Some(instance) => self.save(instance)?,
            None => None,
        };
        if saved.is_none() && self.stats.is_empty() {
            // Without ptrace nobody saw its end, and nothing was said yet.
            return match (self.trouble.filter(|_| self.sure), self.machines) {
                (Some(trouble), _) => Err(SourceError::Other(trouble)),
                (None, Some(1..)) if recorded => Err(SourceError::Other(SILENT.into())),
                _ => Ok(None),
            };
        }
        let (files, clock) = match &saved {
            Some(saved) if self.told > 0 => {
                (&[FILE, slots::FILE][..], clock_in_words(&saved.clock))
            }
            Some(saved) => (&[FILE][..], clock_in_words(&saved.clock)),
            None => (&[][..], "none: vmeter read counters when the VMM ended".to_owned()),
        };
        let mut parameters = Parameters { stats: self.stats, ..Parameters::default() };
        if let Some(saved) = saved {
            if let Some((offset, spread)) = saved.tsc_offset.filter(|_| !self.scaled) {
                let tsc_offset_spread = Some(spread).filter(|spread| *spread > 0);
                parameters.offset = TscOffset { tsc_offset: Some(offset), tsc_offset_spread };
            }
            parameters.limited = saved.limited;
            parameters.booted = self.booted;
            parameters.ram_slots = self.told;
        }
        Ok(Some(recorder::record::<KvmTrace>(files, clock, ERROR_NS, &parameters)))
    }
}

const SILENT: &str = "kvm-trace: the VMM used KVM, but vmeter received none of KVM's events. In a \
    PID namespace (a container), the kernel's filter cannot find the VMM: run vmeter on the host \
    itself";

fn clock_in_words(clock: &str) -> String {
    match clock {
        "mono" => "CLOCK_MONOTONIC, read by the host's kernel at the event".into(),
        "x86-tsc" => "host TSC, paired with CLOCK_MONOTONIC before the run and after it".into(),
        other => format!("trace clock {other}"),
    }
}
