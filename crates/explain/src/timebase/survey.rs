//! What a trace holds that relates its clock to another's.

use crate::ExplainError;
use std::collections::HashMap;
use std::path::Path;
use vmeter_trace::ops::{Decoder, Op, XenOp};
use vmeter_trace::{open, Body, Clock, Event, Input};

/// Most port accesses that are kept for matching.
const MAX_ACCESSES: usize = 1 << 15;
/// Most offsets that are kept.
const MAX_OFFSETS: usize = 1 << 14;

/// A port access: what, and between which stamps it was served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Access {
    /// Port and direction.
    pub key: u64,
    /// Stamp: KVM's is before it is served.
    pub at: u64,
    /// Stamp after it was served.
    pub until: Option<u64>,
}

/// A thread's exit: since when, and the write in it that is not served yet.
#[derive(Debug, Clone, Copy, Default)]
struct Exit {
    since: Option<u64>,
    write: Option<usize>,
}

/// What a first reading of a trace gives.
#[derive(Debug)]
pub(crate) struct Survey {
    pub clock: Clock,
    pub first: u64,
    pub last: u64,
    /// Guest TSC less host TSC, as KVM set it: the middle and half the spread.
    pub tsc_offset: Option<(i64, u64)>,
    pub accesses: Vec<Access>,
    /// True for a trace of the device model itself.
    pub of_model: bool,
}

impl Survey {
    /// Reads a trace to its end; only its head if nothing has to be matched.
    pub fn read(path: &Path, whole: bool) -> Result<Survey, ExplainError> {
        let mut reader = open(Input::open(path)?)?;
        let info = reader.info();
        let mut survey = Survey {
            clock: info.clock.clone(),
            first: 0,
            last: 0,
            tsc_offset: None,
            accesses: Vec::new(),
            of_model: info.format.starts_with("QEMU"),
        };
        if !whole {
            return Ok(survey);
        }
        let mut decoder = Decoder::default();
        let mut exits: HashMap<i32, Exit> = HashMap::new();
        let mut offsets = Vec::new();
        let mut first = None;
        while let Some(event) = reader.next_event() {
            first.get_or_insert(event.ts);
            survey.last = survey.last.max(event.ts);
            if event.kind.name == "kvm_write_tsc_offset" && offsets.len() < MAX_OFFSETS {
                offsets.extend(next_offset(&event));
            }
            let op = decoder.decode(&event);
            survey.access(&event, op, &mut exits);
        }
        survey.first = first.unwrap_or(0);
        survey.tsc_offset = middle(offsets);
        Ok(survey)
    }

    fn access(&mut self, event: &Event<'_>, op: Op, exits: &mut HashMap<i32, Exit>) {
        if exits.len() >= MAX_OFFSETS && !exits.contains_key(&event.tid) {
            return;
        }
        let exit = exits.entry(event.tid).or_default();
        match op {
            Op::VmExit { .. } | Op::UserspaceExit { .. } => exit.since = Some(event.ts),
            Op::Pio { port, write } | Op::Xen(XenOp::Pio { port, write })
                if self.accesses.len() < MAX_ACCESSES =>
            {
                let key = u64::from(port) << 1 | u64::from(write);
                let mut access = Access { key, at: event.ts, until: None };
                match event.kind.name == "kvm_pio" && !write {
                    // KVM tells of a read once it has been answered.
                    true => (access.at, access.until) = (exit.since.unwrap_or(0), Some(event.ts)),
                    false => exit.write = Some(self.accesses.len()),
                }
                if access.at > 0 {
                    self.accesses.push(access);
                }
            }
            Op::VmEntry | Op::Xen(XenOp::VmEntry) | Op::SyscallEnter { kvm_run: true, .. } => {
                let access = exit.write.take().and_then(|at| self.accesses.get_mut(at));
                access.into_iter().for_each(|access| access.until = Some(event.ts));
            }
            _ => {}
        }
    }
}

/// The offset that `kvm_write_tsc_offset` sets.
fn next_offset(event: &Event<'_>) -> Option<i64> {
    match event.body {
        Body::Record(record) => {
            event.kind.int("next_tsc_offset").get(record).map(|offset| offset as i64)
        }
        Body::Text(text) => {
            let number = text.split("next=").nth(1)?.split_whitespace().next()?;
            number.parse::<u64>().ok().map(|offset| offset as i64)
        }
        _ => None,
    }
}

fn middle(mut offsets: Vec<i64>) -> Option<(i64, u64)> {
    offsets.sort_unstable();
    let (least, most) = (*offsets.first()?, *offsets.last()?);
    Some((offsets[offsets.len() / 2], most.abs_diff(least) / 2))
}
