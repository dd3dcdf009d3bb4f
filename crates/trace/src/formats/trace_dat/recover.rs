//! What can be had from a version 7 file whose options are cut off.
//!
//! The options that say where the buffers are stand at the file's end, so a torn
//! file lacks them. Its sections follow one another, though, and so do the CPUs'
//! data inside the section of a buffer, each from a page's boundary on.

use super::parts::CpuData;
use super::sections::{Packing, Sections};
use crate::input::RandomAccess;

const SECTION_HEAD: u64 = 16;
const BUFFER: u16 = 3;
const MAX_CPUS: usize = 4096;
/// trace-cmd writes a dozen.
const MAX_SECTIONS: usize = 1 << 12;

/// Walks the sections from `at` on and shows each to `section` (its id, where it is), up to
/// that of a buffer, whose CPUs it gives.
pub fn recover(
    file: &RandomAccess,
    mut at: u64,
    packing: Packing,
    page_size: u32,
    mut section: impl FnMut(u16, u64),
) -> Option<Vec<CpuData>> {
    for _ in 0..MAX_SECTIONS {
        if at.saturating_add(SECTION_HEAD) > file.len() {
            break;
        }
        let mut s = Sections::new(file, at);
        let (Ok(id), Ok(flags), Ok(_), Ok(size)) = (s.u16(), s.u16(), s.u32(), s.u64()) else {
            return None;
        };
        if id == BUFFER {
            let packing = if flags & 1 != 0 { packing } else { Packing::None };
            return Some(cpus(file, at + SECTION_HEAD, packing, u64::from(page_size.max(64))));
        }
        section(id, at);
        at = at.saturating_add(SECTION_HEAD).saturating_add(size);
    }
    None
}

fn cpus(file: &RandomAccess, start: u64, packing: Packing, page: u64) -> Vec<CpuData> {
    let mut cpus = Vec::new();
    let mut at = start.next_multiple_of(page);
    while at < file.len() && cpus.len() < MAX_CPUS {
        let end = match packing {
            Packing::None => end_of_pages(file, at, page),
            _ => end_of_chunks(file, at, page),
        };
        if end <= at {
            break;
        }
        // The size of packed data leaves out the word that counts the chunks.
        let head = if packing == Packing::None { 0 } else { 4 };
        let size = (end - at).saturating_sub(head);
        cpus.push(CpuData { cpu: cpus.len() as u32, offset: at, size, packing });
        at = end.next_multiple_of(page);
    }
    cpus
}

/// A CPU's pages end where time goes back or a page can't be one.
fn end_of_pages(file: &RandomAccess, at: u64, page: u64) -> u64 {
    let mut s = Sections::new(file, at);
    let mut last = 0;
    loop {
        let start = s.position();
        if start >= file.len() {
            return file.len();
        }
        let (Ok(ts), Ok(commit)) = (s.u64(), s.u64()) else { return file.len() };
        if ts < last || commit & 0x7ff_ffff > page {
            return start;
        }
        last = ts;
        if s.skip(page - 16).is_err() {
            return file.len();
        }
    }
}

fn end_of_chunks(file: &RandomAccess, at: u64, page: u64) -> u64 {
    let mut s = Sections::new(file, at);
    let Ok(count) = s.u32() else { return at };
    for _ in 0..count {
        let (Ok(packed), Ok(unpacked)) = (s.u32(), s.u32()) else { return file.len() };
        if packed == 0 || unpacked == 0 || u64::from(unpacked) % page != 0 {
            return at;
        }
        if s.skip(u64::from(packed)).is_err() || s.position() >= file.len() {
            return file.len();
        }
    }
    s.position()
}
