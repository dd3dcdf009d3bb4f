//! The kernel's own symbol table, kallsyms, found in an image without symbols.
//!
//! `scripts/kallsyms.c` writes these tables into `.rodata`, each aligned to 8 (in 7.3 to 4):
//!
//! | until 6.3 | since 6.4 |
//! | --- | --- |
//! | offsets, relative_base, num_syms, names, markers, [seqs_of_names since 6.2,] token_table, token_index | num_syms, names, markers, token_table, token_index, offsets, relative_base, seqs_of_names |
//!
//! Since 7.0 there is no `relative_base`: each offset counts from where the offset itself is.
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
/// Most places that are taken for the tokens of digits.
const MAX_DIGITS: usize = 16;
/// Most bytes of all names; those of a distribution's kernel have 5 MiB.
const MAX_TEXT: usize = 64 << 20;
/// Most names looked at while the tables are searched for: places that look like them and are
/// not, in an image made for that, would take any time.
const MAX_LOOKS: usize = 16 * MAX_SYMBOLS;

/// Reads the kallsyms tables of a vmlinux; `text` is the address of `_text`.
///
/// # Errors
/// [`Error::Missing`] when the tables are not there, which is so for a kernel
/// without `CONFIG_KALLSYMS`.
pub fn parse(image: &[u8], text: u64) -> Result<Symbols> {
    parse_where(image, |address| address == text, text)
}

/// As [`parse`], where of the address of `_text` is only known what it can be. Tables that
/// do not tell it are read as if `_text` were at `linked`.
///
/// # Errors
/// As [`parse`].
pub fn parse_where(image: &[u8], is_text: impl Fn(u64) -> bool, linked: u64) -> Result<Symbols> {
    const DIGITS: &[u8] = b"0\x001\x002\x003\x004\x005\x006\x007\x008\x009\x00";
    let mut looks = MAX_LOOKS;
    for at in memchr::memmem::find_iter(image, DIGITS).take(MAX_DIGITS) {
        let Some(tokens) = Tokens::around_digits(image, at) else { continue };
        let Some(names) = Names::before(image, &tokens, &mut looks) else { continue };
        let based = addresses(image, &tokens, &names, &is_text);
        if let Some(symbols) = based.or_else(|| by_place(image, &tokens, &names, linked)) {
            return Ok(symbols);
        }
    }
    Err(Error::Missing {
        what: "kallsyms".into(),
        why: "the kernel was built without CONFIG_KALLSYMS, or this vmeter does not know the \
            layout of the kernel's symbol tables; give a vmlinux with a symbol table, or the \
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

/// What tables are aligned to.
const ALIGNMENTS: [usize; 2] = [8, 4];

/// `kallsyms_num_syms` and `kallsyms_names`.
struct Names {
    /// Where `kallsyms_num_syms` is.
    at: usize,
    count: usize,
    start: usize,
    align: usize,
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
    fn before(image: &[u8], tokens: &Tokens<'_>, looks: &mut usize) -> Option<Self> {
        ALIGNMENTS.into_iter().find_map(|align| {
            let last = tokens.start & !(align - 1);
            let first = last.saturating_sub(64 << 20);
            let places = (first..last).step_by(align).rev();
            places.into_iter().find_map(|at| Self::at(image, at, align, tokens, looks))
        })
    }

    /// Checks that a count is at `at`, and that many names after it, and then
    /// markers that agree with them.
    fn at(
        image: &[u8],
        at: usize,
        align: usize,
        tokens: &Tokens<'_>,
        looks: &mut usize,
    ) -> Option<Self> {
        let count = u32_at(image, at)? as usize;
        let start = at + align;
        let padding = image.get(at + 4..start)?;
        if !(MIN_SYMBOLS..=MAX_SYMBOLS).contains(&count) || padding.iter().any(|b| *b != 0) {
            return None;
        }
        let mut position = start;
        let mut marks = Vec::new();
        for n in 0..count {
            if n % 256 == 0 {
                marks.push(position - start);
            }
            *looks = looks.checked_sub(1)?;
            let (name, next) = entry(image, position)?;
            let kind = tokens.text[usize::from(name[0])].first()?;
            if !(kind.is_ascii_alphabetic() || *kind == b'?') || next > tokens.start {
                return None;
            }
            position = next;
        }
        let markers = position.next_multiple_of(align);
        // Markers were of 8 bytes until 4.20.
        let agree = |width: usize| {
            marks.iter().enumerate().all(|(n, &mark)| {
                let at = markers + n * width;
                let value =
                    if width == 4 { u32_at(image, at).map(u64::from) } else { u64_at(image, at) };
                value == Some(mark as u64)
            })
        };
        (agree(4) || agree(8)).then_some(Names { at, count, start, align })
    }
}

/// Tries both places of the offsets, and both ways to read them.
fn addresses(
    image: &[u8],
    tokens: &Tokens<'_>,
    names: &Names,
    is_text: impl Fn(u64) -> bool,
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
            let symbols =
                collect(image, tokens, names, |n| u32_at(image, offsets + 4 * n).map(address))?;
            if symbols.address("_text").is_some_and(&is_text) {
                return Some(symbols);
            }
        }
    }
    None
}

/// Most bytes from `_text` to the tables.
const MAX_IMAGE: u64 = 1 << 30;

/// The addresses since 7.0, with `_text` at `text`.
fn by_place(image: &[u8], tokens: &Tokens<'_>, names: &Names, text: u64) -> Option<Symbols> {
    let table = tokens.end.next_multiple_of(names.align);
    let read = |shift: u64| {
        collect(image, tokens, names, |n| {
            let at = table + 4 * n;
            let offset = i64::from(u32_at(image, at)? as i32) as u64;
            Some(shift.wrapping_add(at as u64).wrapping_add(offset))
        })
    };
    let shift = text.wrapping_sub(read(0)?.address("_text")?);
    let symbols = read(shift)?;
    // The table is in the read-only data, behind the code: what is read wrongly puts it elsewhere.
    let code = symbols.address("_etext").filter(|code| *code > text)?;
    let place = shift.wrapping_add(table as u64);
    (place > code && place - text < MAX_IMAGE).then_some(symbols)
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
    let mut text = 0;
    for n in 0..names.count {
        let (codes, next) = entry(image, position)?;
        name.clear();
        for &code in codes {
            name.extend_from_slice(tokens.text[usize::from(code)]);
        }
        position = next;
        text += name.len();
        if text > MAX_TEXT {
            return None;
        }
        let (&kind, text) = name.split_first()?;
        builder.push(address(n)?, kind, &String::from_utf8_lossy(text));
    }
    Some(builder.build())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: u64 = 0xffff_ffff_8100_0000;
    /// Where the offsets are, from `_text` on.
    const TABLES: i32 = 1 << 20;

    /// Symbols as `scripts/kallsyms.c` sorts them; one has a name of two length bytes.
    fn symbols() -> Vec<(u64, String)> {
        let mut symbols = vec![(TEXT, "T_text".to_owned()), (TEXT, "T_stext".to_owned())];
        symbols.extend((1..600).map(|n| (TEXT + 16 * n, format!("tfunction_{n}"))));
        symbols.push((TEXT + 0x8000, format!("d{}", "long".repeat(50))));
        symbols.push((TEXT + 0x9000, "T_etext".to_owned()));
        symbols
    }

    /// How offsets are written.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Offsets {
        AbsolutePercpu,
        FromBase,
        FromTheirPlace,
    }
    use Offsets::{AbsolutePercpu, FromBase, FromTheirPlace};

    /// An image with tables in the order of before or since 6.4, every character
    /// a token of its own, and two of several characters. The code is 1 MiB before it.
    fn image(new_order: bool, written: Offsets) -> Vec<u8> {
        aligned(new_order, written, 8)
    }

    fn aligned(new_order: bool, written: Offsets, align: usize) -> Vec<u8> {
        let mut tokens: Vec<Vec<u8>> = (0..=255u8).map(|c| vec![c.max(1)]).collect();
        tokens[200] = b"function_".to_vec();
        tokens[201] = b"long".to_vec();
        let mut offsets = Vec::new();
        let mut names = Vec::new();
        let mut markers = Vec::new();
        for (n, (address, name)) in symbols().iter().enumerate() {
            if n % 256 == 0 {
                markers.extend((names.len() as u32).to_le_bytes());
            }
            let distance = (address - TEXT) as i32;
            let offset = match written {
                AbsolutePercpu => -1 - distance,
                FromBase => distance,
                FromTheirPlace => distance - TABLES - 4 * n as i32,
            };
            offsets.extend(offset.to_le_bytes());
            let name = name.replace("function_", "\u{1}").into_bytes();
            let codes: Vec<u8> = name.iter().map(|&c| if c == 1 { 200 } else { c }).collect();
            match codes.len() {
                n @ ..128 => names.push(n as u8),
                n => names.extend([0x80 | (n & 0x7f) as u8, (n >> 7) as u8]),
            }
            names.extend(codes);
        }
        let mut table = Vec::new();
        let mut index = Vec::new();
        for token in &tokens {
            index.extend((table.len() as u16).to_le_bytes());
            table.extend(token);
            table.push(0);
        }
        let base = if written == FromTheirPlace { 0xcccc } else { TEXT };
        let addresses = [offsets, base.to_le_bytes().to_vec()];
        let count = (symbols().len() as u32).to_le_bytes().to_vec();
        let strings = [count, names, markers, table, index];
        let mut data = vec![0xcc; 4096];
        let (first, second) = (&addresses[..], &strings[..]);
        let order = if new_order { [second, first] } else { [first, second] };
        for part in order.into_iter().flatten() {
            data.resize(data.len().next_multiple_of(align), 0);
            data.extend(part);
        }
        data.extend([0xcc; 4096]);
        data
    }

    #[test]
    fn both_orders_and_all_kinds_of_offsets_are_read() {
        for (new_order, written, align) in [
            (false, AbsolutePercpu, 8),
            (false, FromBase, 8),
            (true, AbsolutePercpu, 8),
            (true, FromBase, 8),
            (true, FromTheirPlace, 8),
            (true, FromTheirPlace, 4),
        ] {
            let found = parse(&aligned(new_order, written, align), TEXT).unwrap();
            let expected = symbols();
            assert_eq!(found.len(), expected.len());
            for (found, (address, name)) in found.iter().zip(&expected) {
                assert_eq!((found.address, found.name), (*address, &name[1..]));
                assert_eq!(found.kind, char::from(name.as_bytes()[0]));
            }
        }
    }

    #[test]
    fn offsets_from_a_base_are_not_taken_for_others() {
        for written in [FromBase, AbsolutePercpu] {
            assert!(parse(&image(true, written), TEXT + 4096).is_err(), "{written:?}");
        }
    }

    #[test]
    fn an_image_without_tables_says_which_option_is_missing() {
        let error = parse(&[0; 10_000], TEXT).unwrap_err().to_string();
        assert!(error.contains("CONFIG_KALLSYMS"), "{error}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn damaged_tables_never_panic(at in 0usize..20_000, value: u8, cut in 0usize..20_000, new: bool) {
            let mut image = image(new, if new { FromTheirPlace } else { FromBase });
            let length = image.len();
            image[at % length] = value;
            image.truncate(cut);
            let _ = parse(&image, TEXT);
        }
    }
}
