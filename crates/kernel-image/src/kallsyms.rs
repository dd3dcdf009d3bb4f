//! The kernel's own symbol table, kallsyms, found in an image without symbols.
//!
//! `scripts/kallsyms.c` writes these tables into `.rodata`, each aligned to 8:
//!
//! | until 6.3 | since 6.4 |
//! | --- | --- |
//! | offsets, relative_base, num_syms, names, markers, [seqs_of_names since 6.2,] token_table, token_index | num_syms, names, markers, token_table, token_index, offsets, relative_base, seqs_of_names |
//!
//! `names` holds a length (one byte, or two when the top bit of the first is
//! set) and that many token numbers for each symbol; each token stands for the
//! text at `token_table[token_index[n]]`. Digits stand for themselves, and that
//! run of one-character tokens is what the search looks for. All the rest is
//! found from there, and checked: a marker every 256 names says where in
//! `names` it begins, and `_text` must come out at the address the ELF gives.

use crate::bytes::{u16_at, u32_at, u64_at};
use crate::error::{Error, Result};
use crate::symbols::{Symbols, SymbolsBuilder};

/// Most symbols accepted; a distribution's kernel has 90 to 200 thousand.
const MAX_SYMBOLS: usize = 4 << 20;
/// Fewest symbols: a tinyconfig kernel has some thousands.
const MIN_SYMBOLS: usize = 256;
/// Longest symbol, `KSYM_NAME_LEN` since 6.1.
const MAX_NAME: usize = 512;

/// Reads the kallsyms tables of a vmlinux; `text` is the address of `_text`.
///
/// # Errors
/// [`Error::Missing`] when the tables are not there, which is so for a kernel
/// without `CONFIG_KALLSYMS`.
pub fn parse(image: &[u8], text: u64) -> Result<Symbols> {
    const DIGITS: &[u8] = b"0\x001\x002\x003\x004\x005\x006\x007\x008\x009\x00";
    for at in memchr::memmem::find_iter(image, DIGITS) {
        let Some(tokens) = Tokens::around_digits(image, at) else { continue };
        let Some(names) = Names::before(image, &tokens) else { continue };
        if let Some(symbols) = addresses(image, &tokens, &names, text) {
            return Ok(symbols);
        }
    }
    Err(Error::Missing {
        what: "kallsyms".into(),
        why: "the kernel was built without CONFIG_KALLSYMS, or it lays the tables out in a way \
              that this version does not know; give a vmlinux with a symbol table, or the \
              kernel's System.map"
            .into(),
    })
}

/// `kallsyms_token_table` and `kallsyms_token_index`.
struct Tokens<'a> {
    start: usize,
    end: usize,
    text: [&'a [u8]; 256],
}

impl<'a> Tokens<'a> {
    /// `digits` is where the token of the digit 0 seems to be.
    fn around_digits(image: &'a [u8], digits: usize) -> Option<Self> {
        let mut table_end = digits;
        for _ in usize::from(b'0')..256 {
            table_end += memchr::memchr(0, image.get(table_end..table_end + 128)?)? + 1;
        }
        for align in [8usize, 4, 2] {
            let index = table_end.next_multiple_of(align);
            if let Some(tokens) = Self::with_index(image, digits, index) {
                return Some(tokens);
            }
        }
        None
    }

    fn with_index(image: &'a [u8], digits: usize, index: usize) -> Option<Self> {
        let entry = |n: usize| u16_at(image, index + 2 * n).map(usize::from);
        let start = digits.checked_sub(entry(usize::from(b'0'))?)?;
        let mut text: [&[u8]; 256] = [&[]; 256];
        let mut expected = 0;
        for (n, slot) in text.iter_mut().enumerate() {
            if entry(n)? != expected {
                return None;
            }
            let token = image.get(start + expected..index)?;
            *slot = &token[..memchr::memchr(0, token)?];
            expected += slot.len() + 1;
        }
        Some(Tokens { start, end: index + 512, text })
    }
}

/// `kallsyms_num_syms` and `kallsyms_names`.
struct Names {
    /// Where `kallsyms_num_syms` is.
    at: usize,
    count: usize,
    start: usize,
}

/// One entry of `names`: its tokens and where the next begins.
fn entry(image: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let first = usize::from(*image.get(at)?);
    let (length, start) = if first & 0x80 == 0 {
        (first, at + 1)
    } else {
        ((first & 0x7f) | usize::from(*image.get(at + 1)?) << 7, at + 2)
    };
    let end = start.checked_add(length)?;
    (length > 0 && length <= MAX_NAME).then_some((image.get(start..end)?, end))
}

impl Names {
    fn before(image: &[u8], tokens: &Tokens<'_>) -> Option<Self> {
        let last = tokens.start & !7;
        let first = last.saturating_sub(64 << 20);
        (first..last).step_by(8).rev().find_map(|at| Self::at(image, at, tokens))
    }

    /// Checks that a count is at `at`, and that many names after it, and then
    /// markers that agree with them.
    fn at(image: &[u8], at: usize, tokens: &Tokens<'_>) -> Option<Self> {
        let count = u32_at(image, at)? as usize;
        if !(MIN_SYMBOLS..=MAX_SYMBOLS).contains(&count) || u32_at(image, at + 4)? != 0 {
            return None;
        }
        let start = at + 8;
        let mut position = start;
        let mut marks = Vec::new();
        for n in 0..count {
            if n % 256 == 0 {
                marks.push(position - start);
            }
            let (name, next) = entry(image, position)?;
            let kind = tokens.text[usize::from(name[0])].first()?;
            if !(kind.is_ascii_alphabetic() || *kind == b'?') || next > tokens.start {
                return None;
            }
            position = next;
        }
        let markers = position.next_multiple_of(8);
        // Markers were of 8 bytes until 4.20.
        let agree = |width: usize| {
            marks.iter().enumerate().all(|(n, &mark)| {
                let at = markers + n * width;
                let value = if width == 4 {
                    u32_at(image, at).map(u64::from)
                } else {
                    u64_at(image, at)
                };
                value == Some(mark as u64)
            })
        };
        (agree(4) || agree(8)).then_some(Names { at, count, start })
    }
}

/// Tries both places of the offsets, and both ways to read them.
fn addresses(
    image: &[u8],
    tokens: &Tokens<'_>,
    names: &Names,
    text: u64,
) -> Option<Symbols> {
    let size = (names.count * 4).next_multiple_of(8);
    let before = names.at.checked_sub(8 + size);
    let after = Some(tokens.end.next_multiple_of(8));
    for offsets in [after, before].into_iter().flatten() {
        let Some(base) = u64_at(image, offsets + size) else { continue };
        // With CONFIG_KALLSYMS_ABSOLUTE_PERCPU (until 6.14) a negative offset
        // counts down from the base, and the others are absolute.
        for absolute_percpu in [true, false] {
            let address = |offset: u32| match (absolute_percpu, offset as i32) {
                (true, o) if o < 0 => base.wrapping_sub(1).wrapping_sub(i64::from(o) as u64),
                (true, o) => o as u64,
                (false, _) => base.wrapping_add(u64::from(offset)),
            };
            let symbols = collect(image, tokens, names, |n| {
                u32_at(image, offsets + 4 * n).map(address)
            })?;
            if symbols.address("_text") == Some(text) {
                return Some(symbols);
            }
        }
    }
    None
}

fn collect(
    image: &[u8],
    tokens: &Tokens<'_>,
    names: &Names,
    address: impl Fn(usize) -> Option<u64>,
) -> Option<Symbols> {
    let mut builder = SymbolsBuilder::with_capacity(names.count);
    let mut position = names.start;
    let mut name = Vec::new();
    for n in 0..names.count {
        let (codes, next) = entry(image, position)?;
        name.clear();
        for &code in codes {
            name.extend_from_slice(tokens.text[usize::from(code)]);
        }
        position = next;
        let (&kind, text) = name.split_first()?;
        builder.push(address(n)?, kind, &String::from_utf8_lossy(text));
    }
    Some(builder.build())
}
