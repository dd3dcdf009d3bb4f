//! A kernel that nobody gave a file of, found in guest RAM with its own tables.
//!
//! A running kernel holds all that is read out of its file otherwise: kallsyms and BTF are in
//! its read-only data (`include/asm-generic/vmlinux.lds.h`, `RO_DATA`), for its own use. That
//! data begins on a boundary of 2 MiB (`X86_ALIGN_RODATA_BEGIN` of
//! arch/x86/kernel/vmlinux.lds.S) with the first object's, which is `init/version.o` or
//! `init/main.o`: `Linux version ` is in its first page in kernels 5.10 to 7.3. So a short
//! read at each boundary finds it, wherever a boot loader or KASLR has put it, in RAM of any
//! size. What else looks like it (a copy that was not run) has no `_text` that fits.

use crate::error::{Error, Result};
use crate::functions::FunctionTable;
use crate::info::KernelInfo;
use crate::kallsyms;
use crate::locate::{head, locate, places, Candidate, Located, BANNER};
use crate::ram::{HostMemory, KERNEL_MAP};
use std::collections::HashSet;
use std::path::Path;

/// Read-only data begins on such a boundary, and so does `_text`.
const ALIGN: u64 = 2 << 20;
/// Longest banner, bytes.
const MAX_BANNER: usize = 1024;
/// Most read-only data read, bytes: a distribution's has 8 to 16 MiB.
const MAX_RODATA: u64 = 64 << 20;
/// The address that kernels are linked for (`__START_KERNEL`), to which what was found is
/// brought: what KASLR added to it is found again by [`locate()`].
const LINKED: u64 = KERNEL_MAP + (16 << 20);
/// Most places that are looked into.
const MAX_PLACES: usize = 64;

/// A kernel found in RAM.
#[derive(Debug, Clone)]
pub struct Discovered {
    /// What is known of it.
    pub info: KernelInfo,
    /// Its functions.
    pub functions: FunctionTable,
    /// Where it is.
    pub located: Located,
}

/// Finds the kernel that runs in a guest, whichever it is. What was worked out of one is kept
/// in `cache` for its next run.
///
/// # Errors
/// [`Error::Ram`] when no candidate holds a kernel that got as far as its page tables;
/// [`Error::Missing`] when it has no kallsyms.
pub fn discover<H: HostMemory + ?Sized>(
    candidates: &[Candidate],
    host: &H,
    cache: &Path,
) -> Result<Discovered> {
    let (mut best, mut problem): (Option<Discovered>, _) = (None, None);
    let mut seen = HashSet::new();
    let heads = candidates.iter().flat_map(|c| places(*c).map(move |at| (*c, at)));
    let heads = heads.filter_map(|(block, at)| Some((block, at, head(host, at)?)));
    for (block, at, text) in heads.take(MAX_PLACES) {
        let key = KernelInfo::key_of_text(cache, &text);
        if seen.contains(&key) {
            continue;
        }
        let made = known(&key, candidates, host).map_or_else(
            || {
                let (mut info, mut functions) = worked_out(block, at, host)?;
                let mut located = locate(candidates, host, &info)?;
                if host.changes() {
                    // It runs by now; when it was read first, a part of it may have been on its way.
                    (info, functions) = worked_out(block, at, host)?;
                    located = locate(candidates, host, &info)?;
                }
                info.store(&key, &functions);
                Ok(Discovered { info, functions, located })
            },
            Ok,
        );
        match made {
            Ok(found) => {
                seen.insert(key);
                if best.as_ref().is_none_or(|best| best.located.life < found.located.life) {
                    best = Some(found);
                }
            }
            Err(error) => problem = Some(error),
        }
    }
    best.ok_or_else(|| {
        problem.unwrap_or_else(|| {
            Error::Ram(
                "the guest's RAM contains no Linux kernel: the guest ended before its \
                kernel was loaded"
                    .into(),
            )
        })
    })
}

/// A kernel that was found before, where it is now.
fn known<H: HostMemory + ?Sized>(
    key: &Path,
    candidates: &[Candidate],
    host: &H,
) -> Option<Discovered> {
    let info = KernelInfo::cached(key)?;
    let functions = info.cached_functions()?;
    let located = locate(candidates, host, &info).ok()?;
    Some(Discovered { info, functions, located })
}

/// What the tables say that begin at `rodata` in a block.
fn worked_out<H: HostMemory + ?Sized>(
    block: Candidate,
    rodata: u64,
    host: &H,
) -> Result<(KernelInfo, FunctionTable)> {
    let end = block.address.saturating_add(block.length);
    let mut data = vec![0; MAX_RODATA.min(end.saturating_sub(rodata)) as usize];
    host.read(rodata, &mut data).map_err(|e| {
        Error::Ram(format!(
            "cannot read {} bytes at {rodata:#x} in the VMM's memory: {e}",
            data.len()
        ))
    })?;
    let is_text = |text| text >= KERNEL_MAP && text % ALIGN == 0;
    let symbols = kallsyms::parse_where(&data, is_text, LINKED)?;
    let missing = |what: &str| Error::Missing {
        what: format!("the symbol {what}"),
        why: "the kernel in the guest's RAM was built without CONFIG_KALLSYMS_ALL".into(),
    };
    let address = |name: &str| symbols.address(name).ok_or_else(|| missing(name));
    let (text, start) = (address("_text")?, address("__start_rodata")?);
    let slice = |from: u64, to: u64| {
        let from = usize::try_from(from.checked_sub(start)?).ok()?;
        data.get(from..usize::try_from(to.checked_sub(start)?).ok()?)
    };
    let banner = address("linux_banner")?;
    let banner = slice(banner, banner.saturating_add(MAX_BANNER as u64))
        .and_then(|rest| rest.get(..memchr::memchr2(b'\n', 0, rest)?))
        .filter(|text| text.starts_with(BANNER))
        .and_then(|text| std::str::from_utf8(text).ok())
        .ok_or_else(|| {
            let text = "the kernel's symbol linux_banner does not lead to a \"Linux version\" \
                banner";
            Error::Ram(text.into())
        })?;
    let btf = address("__start_BTF").ok().zip(address("__stop_BTF").ok());
    let btf = btf.and_then(|(from, to)| slice(from, to));
    let banner = banner.to_owned();
    let symbols = symbols.lowered(KERNEL_MAP, text.saturating_sub(LINKED));
    let mut info = KernelInfo::of_tables(&banner, &symbols, btf);
    info.container = "guest RAM".into();
    Ok((info, FunctionTable::of(&symbols)))
}
