//! Kernel symbols of a trace (`/proc/kallsyms` as recorded).

/// Addresses in order, names kept in the text that was read.
#[derive(Debug, Default)]
pub struct Symbols {
    text: Vec<u8>,
    /// (address, offset of the name, length of the name), by address.
    index: Vec<(u64, u32, u16)>,
}

impl Symbols {
    /// Bytes that a line takes beside its text.
    pub(crate) const INDEX_BYTES: u64 = 16;

    /// Parses lines of `address type name [module]`; others are skipped.
    pub fn parse(text: Vec<u8>) -> Symbols {
        // No line is shorter than `0 t a` and its end, and what grows doubles.
        let lines = memchr::memchr_iter(b'\n', &text).count() + 1;
        let mut index = Vec::with_capacity(lines.min(text.len() / 6 + 1));
        let mut at = 0;
        for line in text.split(|&b| b == b'\n') {
            if let Some((address, start, len)) = parse_line(line) {
                if let (Ok(offset), Ok(len)) = (u32::try_from(at + start), u16::try_from(len)) {
                    index.push((address, offset, len));
                }
            }
            at += line.len() + 1;
        }
        index.sort_unstable();
        index.shrink_to_fit();
        Symbols { text, index }
    }

    /// Name of the symbol at or below `address`.
    pub fn name(&self, address: u64) -> Option<&str> {
        let after = self.index.partition_point(|&(a, _, _)| a <= address);
        let &(base, offset, len) = self.index.get(after.checked_sub(1)?)?;
        // Without kptr access every address is zero, and the answer would be wrong.
        if base == 0 {
            return None;
        }
        let start = offset as usize;
        std::str::from_utf8(self.text.get(start..start + len as usize)?).ok()
    }
}

fn parse_line(line: &[u8]) -> Option<(u64, usize, usize)> {
    let space = memchr::memchr(b' ', line)?;
    let address = std::str::from_utf8(&line[..space]).ok()?;
    let address = u64::from_str_radix(address, 16).ok()?;
    let start = space + 3;
    let rest = line.get(start..)?;
    let len = rest.iter().position(|b| b.is_ascii_whitespace()).unwrap_or(rest.len());
    (len > 0).then_some((address, start, len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_symbol_at_or_below_an_address_is_found() {
        let text = b"ffffffff81000000 T _stext\nffffffff81000100 t process_srcu\t[kvm]\nrubbish\n";
        let symbols = Symbols::parse(text.to_vec());
        assert_eq!(symbols.name(0xffffffff81000104), Some("process_srcu"));
        assert_eq!(symbols.name(0xffffffff81000000), Some("_stext"));
        assert_eq!(symbols.name(0x1000), None);
    }
}
