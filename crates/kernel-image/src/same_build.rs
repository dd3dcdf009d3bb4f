//! Addresses of functions that a kernel's log has, named by the symbols of the same build.
//!
//! A kernel without `CONFIG_KALLSYMS` prints `calling  0xffffffff82a1b2c0 @ 1` where others print a
//! name. The file that it was built to (`vmlinux`), or the map beside it (`System.map`), has the
//! names. Whether it is of the same build the addresses tell: all of them are begins of its
//! functions, under one and only one shift of KASLR, or none is named. Functions of another build
//! begin elsewhere.

use crate::error::{Error, Result};
use crate::functions::FunctionTable;
use crate::image::KernelImage;
use crate::ram::KERNEL_MAP;
use crate::symbols::Symbols;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Largest `System.map` that is read, bytes: a distribution's has 5 to 10 MiB.
const MAX_MAP: u64 = 128 << 20;
/// What KASLR shifts by (`MIN_KERNEL_ALIGN` of arch/x86/include/asm/boot.h), and how far at most
/// (`KERNEL_IMAGE_SIZE`).
const STEP: u64 = 2 << 20;
const REACH: u64 = 1 << 30;
/// Fewest addresses that tell one build from another.
const FEWEST: usize = 16;
/// What stands before an address.
const BEFORE: [&str; 2] = ["calling  ", "initcall "];

/// The symbols of a kernel's build.
#[derive(Debug)]
pub struct BuildSymbols {
    symbols: Symbols,
}

impl BuildSymbols {
    /// Reads a `System.map` or the text of `/proc/kallsyms`, or a kernel that has symbols.
    ///
    /// # Errors
    /// When the file can't be read, or has no function of a kernel.
    pub fn open(path: &Path) -> Result<Self> {
        let file = vmeter_base::files::open_regular(path).map_err(|e| Error::io(path, e))?;
        let mut magic = [0; 4];
        let is_elf = crate::ram::HostMemory::read(&file, 0, &mut magic).is_ok()
            && magic == object::elf::ELFMAG;
        let symbols = if is_elf {
            let image = KernelImage::open(path)?;
            Symbols::from_symbol_table(image.vmlinux()).map_or_else(|| image.symbols(), Ok)?
        } else {
            let text = vmeter_base::files::read_limited(path, MAX_MAP);
            let text = text.map_err(|e| Error::io(path, e))?;
            Symbols::from_text(&String::from_utf8_lossy(&text))
        };
        if symbols.iter().any(|s| s.is_function() && s.address >= KERNEL_MAP) {
            return Ok(BuildSymbols { symbols });
        }
        Err(Error::malformed(
            "kernel's symbols",
            format!(
                "{} contains no function of an x86-64 kernel; expected the System.map or the \
                    vmlinux of the booted kernel",
                path.display()
            ),
        ))
    }

    /// The symbols.
    pub fn symbols(&self) -> &Symbols {
        &self.symbols
    }

    /// The symbols, alone.
    pub fn into_symbols(self) -> Symbols {
        self.symbols
    }

    /// The names of these addresses of a kernel that runs.
    ///
    /// # Errors
    /// When they are too few, or not all begins of functions of this build.
    pub fn names(&self, addresses: &BTreeSet<u64>) -> Result<BTreeMap<u64, String>> {
        let bad = |reason: String| Err(Error::OtherBuild(reason));
        let all = addresses.len();
        if all < FEWEST {
            return bad(format!(
                "the kernel's log has only {all} addresses of functions; vmeter needs {FEWEST} to \
                    check that the symbols are of the booted kernel"
            ));
        }
        let table = FunctionTable::of(&self.symbols);
        let at = |address: u64, shift: u64| match table.lookup(address.wrapping_sub(shift)) {
            Some((name, 0)) => Some(name),
            _ => None,
        };
        let right = |shift: u64| addresses.iter().filter(|a| at(**a, shift).is_some()).count();
        let shifts = (0..REACH).step_by(STEP as usize);
        let fits: Vec<u64> = shifts.clone().filter(|shift| right(*shift) == all).collect();
        let &[shift] = fits.as_slice() else {
            let best = shifts.map(right).max().unwrap_or(0);
            return bad(match fits.len() {
                0 => format!(
                    "the symbols are of another kernel build: of {all} function addresses in the \
                        kernel's log, only {best} match a symbol"
                ),
                n => format!(
                    "the addresses in the kernel's log match these symbols at {n} \
                    different KASLR offsets, and only one of them can be right"
                ),
            });
        };
        let name = |address: &u64| Some((*address, at(*address, shift)?.to_owned()));
        Ok(addresses.iter().filter_map(name).collect())
    }
}

/// Where in a line of the log an initcall's address is, and which it is: none of a module's, which
/// lies where the kernel was free to put it.
fn address_in(line: &str) -> Option<(usize, usize, u64)> {
    let start = BEFORE.into_iter().find(|words| line.starts_with(words))?.len();
    let digits = line.get(start..)?.strip_prefix("0x")?;
    let length = digits.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(digits.len());
    let address = u64::from_str_radix(&digits[..length], 16).ok()?;
    let of_image = (KERNEL_MAP..KERNEL_MAP + REACH).contains(&address);
    of_image.then_some((start, start + 2 + length, address))
}

/// The address of an initcall that a line of the log says instead of its name.
pub fn unnamed(line: &str) -> Option<u64> {
    address_in(line).map(|(.., address)| address)
}

/// A line of the log with the name where the address is.
pub fn named(line: &str, names: &BTreeMap<u64, String>) -> Option<String> {
    let (start, end, address) = address_in(line)?;
    let name = names.get(&address)?;
    Some(format!("{}{name}+0x0{}", &line[..start], &line[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: u64 = KERNEL_MAP + (16 << 20);

    /// A build whose functions are of all lengths, so that no two shifts look alike.
    fn build(longer: u64) -> (BuildSymbols, Vec<u64>) {
        let mut text = String::new();
        let (mut at, mut all) = (TEXT, Vec::new());
        for n in 0..40_000u64 {
            text += &format!("{at:016x} t function_{n}\n");
            all.push(at);
            at += 16 * (1 + (n * n + longer) % 61);
        }
        (BuildSymbols { symbols: Symbols::from_text(&text) }, all)
    }

    #[test]
    fn all_are_named_under_one_shift_or_none_is() {
        let (build, all) = build(0);
        for shift in [0, STEP, 300 * STEP] {
            let called: BTreeSet<u64> = all.iter().step_by(90).map(|at| at + shift).collect();
            let names = build.names(&called).expect("of this build");
            assert_eq!(names.len(), called.len());
            assert_eq!(names[&(all[180] + shift)], "function_180");
            let line = format!("calling  {:#018x} @ 1", all[90] + shift);
            let expected = "calling  function_90+0x0 @ 1";
            assert_eq!(named(&line, &names).as_deref(), Some(expected));
        }
    }

    #[test]
    fn another_build_names_nothing_and_says_how_many_fit() {
        let (_, all) = build(1);
        let called: BTreeSet<u64> = all.iter().step_by(90).copied().collect();
        let error = build(0).0.names(&called).expect_err("another build").to_string();
        assert!(error.contains("another kernel build: of 445 function addresses"), "{error}");
        let few: BTreeSet<u64> = all.iter().take(5).copied().collect();
        assert!(build(1).0.names(&few).is_err(), "five prove nothing");
    }

    #[test]
    fn only_an_initcalls_address_in_the_image_is_one() {
        let at = Some(0xffff_ffff_8200_0010);
        assert_eq!(unnamed("calling  0xffffffff82000010 @ 1"), at);
        assert_eq!(unnamed("initcall 0xffffffff82000010 returned 0 after 3 usecs"), at);
        for other in [
            "calling  0xffffffffc0000010 @ 1",
            "calling  acpi_init+0x0/0x10 @ 1",
            "x: calling  0xffffffff82000010 @ 1",
            "calling  0x @ 1",
            "calling  0xfffffffffffffffff @ 1",
        ] {
            assert_eq!(unnamed(other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn any_line_is_read(line in "(calling  |initcall )?(0x)?[0-9a-fé]{0,20}.{0,20}") {
            let names = unnamed(&line).map(|at| (at, "x".to_owned())).into_iter().collect();
            prop_assert_eq!(named(&line, &names).is_some(), unnamed(&line).is_some());
        }
    }
}
