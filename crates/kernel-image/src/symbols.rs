//! Symbols by name and by address.
//!
//! One table, filled from the kallsyms inside an image ([`crate::kallsyms`]), from an ELF
//! symbol table, or from the text of `/proc/kallsyms` or `System.map`.

use object::{Object as _, ObjectSymbol as _};

/// One symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    address: u64,
    name: u32,
    length: u16,
    kind: u8,
}

/// The symbols of a kernel.
#[derive(Debug, Default)]
pub struct Symbols {
    /// In order of address; equal addresses in the order of the source.
    entries: Vec<Entry>,
    /// Indices of `entries` in order of name.
    by_name: Vec<u32>,
    text: String,
}

/// A symbol as the lookups give it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Symbol<'a> {
    /// Its address, as linked or as the text gave it.
    pub address: u64,
    /// Its type as `nm` letters it: `T` text, `D` data, `B` bss, `R` read-only …,
    /// lower case when local.
    pub kind: char,
    /// Its name.
    pub name: &'a str,
}

impl Symbol<'_> {
    /// True for a function.
    pub fn is_function(&self) -> bool {
        matches!(self.kind, 't' | 'T' | 'w' | 'W')
    }
}

impl Symbols {
    /// The ELF symbol table, `None` when it is stripped.
    pub fn from_symbol_table(vmlinux: &[u8]) -> Option<Self> {
        let elf = object::File::parse(vmlinux).ok()?;
        let mut builder = SymbolsBuilder::default();
        for symbol in elf.symbols() {
            let Ok(name) = symbol.name() else { continue };
            // Names are parts of the file; one that many symbols share is no kernel's.
            if builder.text.len() + name.len() > vmlinux.len() {
                break;
            }
            let kind = match symbol.kind() {
                object::SymbolKind::Text => b't',
                object::SymbolKind::Data => b'd',
                object::SymbolKind::Unknown | object::SymbolKind::Label => b'n',
                _ => continue,
            };
            let kind = if symbol.is_global() { kind.to_ascii_uppercase() } else { kind };
            if !name.is_empty() && !symbol.is_undefined() {
                builder.push(symbol.address(), kind, name);
            }
        }
        let symbols = builder.build();
        (!symbols.is_empty()).then_some(symbols)
    }

    /// Reads the text of `/proc/kallsyms` or `System.map`: lines of an address in
    /// hexadecimal, a letter, a name, and perhaps a module in brackets, whose
    /// symbols are left out. Lines that are not of this form are skipped.
    pub fn from_text(text: &str) -> Self {
        let mut builder = SymbolsBuilder::default();
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            let (Some(address), Some(kind), Some(name), None) =
                (words.next(), words.next(), words.next(), words.next())
            else {
                continue;
            };
            let (Ok(address), &[kind]) = (u64::from_str_radix(address, 16), kind.as_bytes()) else {
                continue;
            };
            builder.push(address, kind, name);
        }
        builder.build()
    }

    /// The same with every address from `from` on lowered by `by`.
    pub(crate) fn lowered(mut self, from: u64, by: u64) -> Self {
        for entry in self.entries.iter_mut().filter(|e| e.address >= from) {
            entry.address = entry.address.wrapping_sub(by);
        }
        self
    }

    /// Number of symbols.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True without symbols.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All symbols in order of address.
    pub fn iter(&self) -> impl Iterator<Item = Symbol<'_>> {
        self.entries.iter().map(|e| self.symbol(e))
    }

    /// The address of a name; of several, the lowest.
    pub fn address(&self, name: &str) -> Option<u64> {
        let start = self.by_name.partition_point(|&i| self.name(&self.entries[i as usize]) < name);
        let entry = &self.entries[*self.by_name.get(start)? as usize];
        (self.name(entry) == name).then_some(entry.address)
    }

    /// The symbol at or before an address, and the distance from it, bytes. Of
    /// several at one address the first that is a function, else the first.
    pub fn lookup(&self, address: u64) -> Option<(Symbol<'_>, u64)> {
        let end = self.entries.partition_point(|e| e.address <= address);
        let found = self.entries.get(end.checked_sub(1)?)?.address;
        let start = self.entries.partition_point(|e| e.address < found);
        let here = &self.entries[start..end];
        let best = here.iter().find(|e| self.symbol(e).is_function()).or(here.first())?;
        Some((self.symbol(best), address - found))
    }

    fn name(&self, entry: &Entry) -> &str {
        let start = entry.name as usize;
        &self.text[start..start + usize::from(entry.length)]
    }

    fn symbol(&self, entry: &Entry) -> Symbol<'_> {
        Symbol { address: entry.address, kind: char::from(entry.kind), name: self.name(entry) }
    }
}

/// Collects symbols in any order.
#[derive(Debug, Default)]
pub(crate) struct SymbolsBuilder {
    entries: Vec<Entry>,
    text: String,
}

impl SymbolsBuilder {
    pub(crate) fn with_capacity(count: usize) -> Self {
        SymbolsBuilder {
            entries: Vec::with_capacity(count),
            text: String::with_capacity(count * 24),
        }
    }

    /// Adds one; a name too long for the table (64 KiB, or 4 GiB in all) is left out.
    pub(crate) fn push(&mut self, address: u64, kind: u8, name: &str) {
        let (Ok(length), Ok(start)) = (u16::try_from(name.len()), u32::try_from(self.text.len()))
        else {
            return;
        };
        self.text.push_str(name);
        self.entries.push(Entry { address, name: start, length, kind });
    }

    pub(crate) fn build(mut self) -> Symbols {
        self.entries.sort_by_key(|e| e.address);
        let mut symbols = Symbols { entries: self.entries, by_name: Vec::new(), text: self.text };
        let mut by_name: Vec<u32> = (0..symbols.entries.len() as u32).collect();
        by_name.sort_by_key(|&i| symbols.name(&symbols.entries[i as usize]));
        symbols.by_name = by_name;
        symbols
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str = "0000000000000000 A fixed_percpu_data\n\
        ffffffff81000000 T _stext\nffffffff81000000 T _text\n\
        ffffffff81000040 t local\nnonsense\n\
        ffffffffc0000000 t init_module\t[virtio]\nffffffff81000040 d twin\n";

    #[test]
    fn looks_up_by_name_and_by_address() {
        let symbols = Symbols::from_text(TEXT);
        assert_eq!(symbols.len(), 5);
        assert_eq!(symbols.address("local"), Some(0xffff_ffff_8100_0040));
        assert_eq!(symbols.address("loca"), None);
        assert_eq!(symbols.address("init_module"), None);
        let (symbol, offset) = symbols.lookup(0xffff_ffff_8100_0045).unwrap();
        assert_eq!((symbol.name, offset), ("local", 5));
        let (symbol, offset) = symbols.lookup(0xffff_ffff_8100_003f).unwrap();
        assert_eq!((symbol.name, offset), ("_stext", 0x3f));
        assert!(Symbols::default().lookup(1).is_none());
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in "\\PC{0,300}", address: u64) {
            let symbols = Symbols::from_text(&text);
            let _ = symbols.lookup(address);
            let _ = symbols.address(&text);
        }
    }
}
