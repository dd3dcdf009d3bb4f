//! A file of the plugin's stamps, and the list of addresses that it was made with.

use super::format::*;
use std::collections::BTreeMap;

/// What heads a file of stamps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// True when instructions were counted.
    pub counted: bool,
    /// Instructions executed, by vCPU: since the start of the guest, and only of
    /// blocks translated while the hook was there.
    pub instructions: Vec<u64>,
    /// `CLOCK_MONOTONIC` when QEMU loaded the plugin, ns.
    pub installed_ns: u64,
    /// When QEMU exited; none if it was killed, or has several vCPUs and lost its hook.
    pub ended_ns: Option<u64>,
    /// When the translation hook was taken away; none if it stayed.
    pub unhooked_ns: Option<u64>,
    /// Blocks translated under the hook.
    pub blocks: u64,
    /// How far KASLR moved the kernel, bytes; none if it was never reached.
    pub kaslr_slide: Option<u64>,
    /// Stamps that found no room.
    pub lost: u64,
}

/// One stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// `CLOCK_MONOTONIC`, ns.
    pub at: u64,
    /// Instructions executed by all vCPUs before it.
    pub instructions: u64,
    /// Number of the address in the list.
    pub id: u32,
    /// True for the return from an initcall's function into the one with `id`.
    pub returned: bool,
    /// vCPU that got there.
    pub vcpu: u32,
}

/// A file of stamps, as `guest/plugin/src/format.rs` describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamps {
    /// Its header.
    pub header: Header,
    /// Its stamps, in order of time.
    pub stamps: Vec<Stamp>,
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let end = at.checked_add(4)?;
    Some(u32::from_le_bytes(bytes.get(at..end)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let end = at.checked_add(8)?;
    Some(u64::from_le_bytes(bytes.get(at..end)?.try_into().ok()?))
}

impl Stamps {
    /// Reads a file, whole or cut short.
    ///
    /// # Errors
    /// In words, when it is not one or its header is damaged.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        if bytes.get(..MAGIC.len()) != Some(&MAGIC) {
            return Err(format!(
                "expected stamps of the TCG plugin, found {} bytes without the plugin's mark: \
                    QEMU did not load the plugin (QEMU's standard error says why)",
                bytes.len()
            ));
        }
        let damaged = || "the header of the TCG plugin's stamps is cut short".to_owned();
        let word = |at| u64_at(bytes, at).ok_or_else(damaged);
        let half = |at| u32_at(bytes, at).ok_or_else(damaged);
        for (what, expected, found) in [
            ("version", VERSION.into(), half(8)?.into()),
            ("clock", MONOTONIC.into(), half(CLOCK)?.into()),
            ("ticks a second", 1_000_000_000, word(TICKS)?),
        ] {
            if found != expected {
                return Err(format!(
                    "TCG plugin's stamps: expected {what} {expected}, found {found}"
                ));
            }
        }
        let vcpus = half(COUNTERS)?.min(MAX_VCPUS) as usize;
        let counters = (0..vcpus).map_while(|vcpu| u64_at(bytes, HEADER + vcpu * LINE)).collect();
        let wanted = word(WANTED)?;
        let room = word(ROOM)?.min(CAPACITY as u64);
        let header = Header {
            counted: half(FLAGS)? & 1 != 0,
            instructions: counters,
            installed_ns: word(INSTALLED)?,
            ended_ns: Some(word(ENDED)?).filter(|ns| *ns != 0),
            unhooked_ns: Some(word(UNHOOKED)?).filter(|ns| *ns != 0),
            blocks: word(TRANSLATED)?,
            kaslr_slide: Some(word(SLIDE)?).filter(|_| word(SLIDE_KNOWN) == Ok(1)),
            lost: wanted.saturating_sub(room),
        };
        let start = usize::try_from(word(RECORDS_AT)?).unwrap_or(usize::MAX);
        let count = usize::try_from(wanted.min(room)).unwrap_or(usize::MAX);
        let records = bytes.get(start..).unwrap_or(&[]).chunks_exact(RECORD);
        let mut stamps: Vec<Stamp> = records.take(count).filter_map(stamp).collect();
        stamps.sort_by_key(|stamp| stamp.at);
        Ok(Self { header, stamps })
    }
}

/// A record; none when its writer did not finish it.
fn stamp(record: &[u8]) -> Option<Stamp> {
    let at = u64_at(record, 0).filter(|ns| *ns != 0)?;
    let id = u32_at(record, 16)?;
    Some(Stamp {
        at,
        instructions: u64_at(record, 8)?,
        id: id & !RETURNED,
        returned: id & RETURNED != 0,
        vcpu: u32_at(record, 20)?,
    })
}

/// What a line of the list says of an address.
pub(super) struct Listed<'a> {
    pub flags: &'a str,
    pub name: &'a str,
}

pub(super) fn listed(list: &str) -> BTreeMap<u32, Listed<'_>> {
    list.lines().filter_map(listed_line).collect()
}

/// `ADDRESS ID FLAGS LENGTH NAME`.
fn listed_line(line: &str) -> Option<(u32, Listed<'_>)> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let id = words.next()?.parse().ok()?;
    let flags = words.next()?;
    Some((id, Listed { flags, name: words.nth(1)? }))
}
