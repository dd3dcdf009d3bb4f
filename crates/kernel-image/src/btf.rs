//! Where the fields of the kernel's structures are, out of its `.BTF` section.
//!
//! Format: the kernel's Documentation/bpf/btf.rst. Only what layouts need is
//! read: structures, unions, enumerations, and the types on the way to them.
//! Crates that read all of BTF exist (`btfparse`, Apache-2.0; `btf`, MIT); little
//! of it is needed here, and that must neither panic nor grow on whatever a file holds.

use crate::bytes::{u16_at, u32_at};
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

const MAGIC: u16 = 0xeb9f;
/// How many typedefs, qualifiers and nested anonymous structures are followed.
const MAX_DEPTH: u32 = 32;
/// Most members looked at for one: anonymous structures can hold themselves.
const MAX_LOOKS: u32 = 1 << 20;
/// Longest name, bytes.
const MAX_NAME: usize = 512;

const KIND_INT: u32 = 1;
const KIND_PTR: u32 = 2;
const KIND_ARRAY: u32 = 3;
const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
const KIND_ENUM: u32 = 6;
const KIND_TYPEDEF: u32 = 8;
const KIND_VOLATILE: u32 = 9;
const KIND_CONST: u32 = 10;
const KIND_RESTRICT: u32 = 11;
const KIND_FUNC_PROTO: u32 = 13;
const KIND_VAR: u32 = 14;
const KIND_DATASEC: u32 = 15;
const KIND_FLOAT: u32 = 16;
const KIND_DECL_TAG: u32 = 17;
const KIND_TYPE_TAG: u32 = 18;
const KIND_ENUM64: u32 = 19;

/// A field's place in its structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Field {
    /// First bit, counted from the structure's start (little-endian order).
    pub bit: u32,
    /// Length in bits; 0 for a flexible array.
    pub bits: u32,
}

impl Field {
    /// Offset in bytes.
    pub fn offset(self) -> u64 {
        u64::from(self.bit / 8)
    }

    /// Length in bytes, rounded up.
    pub fn size(self) -> u64 {
        u64::from(self.bits.div_ceil(8))
    }

    /// Its value in a copy of the structure, as an unsigned number of at most 8
    /// bytes; `None` when the copy is too short or the field too long.
    pub fn get(self, structure: &[u8]) -> Option<u64> {
        let start = usize::try_from(self.offset()).ok()?;
        let shift = self.bit % 8;
        let end_bit = shift.checked_add(self.bits)?;
        if self.bits == 0 || end_bit > 64 {
            return None;
        }
        let bytes = structure.get(start..start.checked_add(end_bit.div_ceil(8) as usize)?)?;
        let value = bytes.iter().rev().fold(0u64, |v, &b| v << 8 | u64::from(b));
        Some((value >> shift) & (u64::MAX >> (64 - self.bits)))
    }
}

/// The types of a kernel.
#[derive(Debug)]
pub struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// Where each type begins in `types`; type 1 is the first.
    starts: Vec<u32>,
    /// Structures and unions by name; of several the first.
    named: HashMap<&'a [u8], u32>,
}

#[derive(Debug, Clone, Copy)]
struct Type {
    name: u32,
    kind: u32,
    count: usize,
    flag: bool,
    size_or_type: u32,
    /// Where what follows the common part begins in `types`.
    body: usize,
}

impl<'a> Btf<'a> {
    /// Reads a `.BTF` section.
    ///
    /// # Errors
    /// [`Error::Malformed`] when it is not BTF or cut short.
    pub fn parse(data: &'a [u8]) -> Result<Self> {
        let bad = |reason: &str| Error::malformed("BTF", reason);
        if u16_at(data, 0) != Some(MAGIC) {
            return Err(bad("it does not begin with eb9f"));
        }
        let word = |at| u32_at(data, at).map(|v| v as usize).ok_or_else(|| bad("short header"));
        let header = word(4)?;
        let part = |offset: usize, length: usize| {
            let start = header.checked_add(offset)?;
            data.get(start..start.checked_add(length)?)
        };
        let types = part(word(8)?, word(12)?).ok_or_else(|| bad("types run past the end"))?;
        let strings = part(word(16)?, word(20)?).ok_or_else(|| bad("strings run past the end"))?;
        let mut btf = Btf { types, strings, starts: vec![0], named: HashMap::new() };
        let mut at = 0;
        while at < types.len() {
            let (kind, end) = btf
                .type_at(at)
                .and_then(|t| Some((t, t.body + t.extra()?)))
                .filter(|&(_, end)| end <= types.len())
                .ok_or_else(|| bad("a type has an unknown kind or is truncated"))?;
            if matches!(kind.kind, KIND_STRUCT | KIND_UNION) && kind.name != 0 {
                let id = btf.starts.len() as u32;
                btf.named.entry(btf.name(kind.name)).or_insert(id);
            }
            btf.starts.push(at as u32);
            at = end;
        }
        Ok(btf)
    }

    /// Size of a structure or union, bytes.
    pub fn size_of(&self, structure: &str) -> Option<u64> {
        let id = *self.named.get(structure.as_bytes())?;
        self.get(id).map(|t| u64::from(t.size_or_type))
    }

    /// A field of a structure, by a path through embedded structures, e.g.
    /// `("printk_ringbuffer", "desc_ring.count_bits")`. Members of anonymous
    /// structures count as members of what holds them.
    pub fn field(&self, structure: &str, path: &str) -> Option<Field> {
        let mut id = *self.named.get(structure.as_bytes())?;
        let mut bit = 0u32;
        let mut bits = 0;
        for name in path.split('.') {
            let mut looks = MAX_LOOKS;
            let found = self.member(id, name.as_bytes(), MAX_DEPTH, &mut looks);
            let (member, at, length) = found?;
            bit = bit.checked_add(at)?;
            id = member;
            bits = length;
        }
        if bits == 0 {
            bits = self.size(id, MAX_DEPTH)?.checked_mul(8)?;
        }
        Some(Field { bit, bits })
    }

    /// The value of an enumerator, in whichever enumeration has it.
    pub fn enumerator(&self, name: &str) -> Option<u32> {
        (1..self.starts.len()).find_map(|id| {
            let t = self.get(id as u32)?;
            (0..t.count).filter(|_| t.kind == KIND_ENUM).find_map(|n| {
                let at = t.body + 8 * n;
                (self.name(u32_at(self.types, at)?) == name.as_bytes())
                    .then(|| u32_at(self.types, at + 4))?
            })
        })
    }

    /// A member by name: its type, its first bit, and its length if a bit field (else 0).
    fn member(&self, id: u32, name: &[u8], depth: u32, looks: &mut u32) -> Option<(u32, u32, u32)> {
        let depth = depth.checked_sub(1)?;
        let t = self.skip_modifiers(id)?;
        if !matches!(t.kind, KIND_STRUCT | KIND_UNION) {
            return None;
        }
        for n in 0..t.count {
            *looks = looks.checked_sub(1)?;
            let at = t.body + 12 * n;
            let member_name = u32_at(self.types, at)?;
            let member_type = u32_at(self.types, at + 4)?;
            let raw = u32_at(self.types, at + 8)?;
            let (bit, bits) = if t.flag { (raw & 0xff_ffff, raw >> 24) } else { (raw, 0) };
            if member_name == 0 {
                if let Some((found, inner, length)) = self.member(member_type, name, depth, looks) {
                    return Some((found, bit.checked_add(inner)?, length));
                }
            } else if self.name(member_name) == name {
                return Some((member_type, bit, bits));
            }
        }
        None
    }

    fn size(&self, id: u32, depth: u32) -> Option<u32> {
        let depth = depth.checked_sub(1)?;
        let t = self.skip_modifiers(id)?;
        match t.kind {
            KIND_PTR => Some(8),
            KIND_ARRAY => {
                let element = self.size(u32_at(self.types, t.body)?, depth)?;
                element.checked_mul(u32_at(self.types, t.body + 8)?)
            }
            KIND_INT | KIND_STRUCT | KIND_UNION | KIND_ENUM | KIND_ENUM64 | KIND_FLOAT => {
                Some(t.size_or_type)
            }
            _ => None,
        }
    }

    fn skip_modifiers(&self, mut id: u32) -> Option<Type> {
        for _ in 0..MAX_DEPTH {
            let t = self.get(id)?;
            match t.kind {
                KIND_TYPEDEF | KIND_VOLATILE | KIND_CONST | KIND_RESTRICT | KIND_TYPE_TAG => {
                    id = t.size_or_type
                }
                _ => return Some(t),
            }
        }
        None
    }

    fn get(&self, id: u32) -> Option<Type> {
        let start = *self.starts.get(id as usize).filter(|_| id != 0)?;
        self.type_at(start as usize)
    }

    fn type_at(&self, at: usize) -> Option<Type> {
        let info = u32_at(self.types, at + 4)?;
        Some(Type {
            name: u32_at(self.types, at)?,
            kind: (info >> 24) & 0x1f,
            count: (info & 0xffff) as usize,
            flag: info >> 31 != 0,
            size_or_type: u32_at(self.types, at + 8)?,
            body: at + 12,
        })
    }

    fn name(&self, offset: u32) -> &'a [u8] {
        let rest = self.strings.get(offset as usize..).unwrap_or(&[]);
        let rest = &rest[..rest.len().min(MAX_NAME)];
        &rest[..memchr::memchr(0, rest).unwrap_or(rest.len())]
    }
}

impl Type {
    /// Bytes after the common part.
    fn extra(&self) -> Option<usize> {
        Some(match self.kind {
            KIND_INT | KIND_VAR | KIND_DECL_TAG => 4,
            KIND_ARRAY => 12,
            KIND_STRUCT | KIND_UNION | KIND_DATASEC | KIND_ENUM64 => 12 * self.count,
            KIND_ENUM | KIND_FUNC_PROTO => 8 * self.count,
            1..=KIND_ENUM64 => 0,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(values: &[u32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    /// `struct outer { int a; struct { unsigned f:5, l:3; struct inner in; }; int tail[3]; }`
    /// with `struct inner { int x, y; }`, as a compiler would lay it out.
    fn sample() -> Vec<u8> {
        let strings = b"\0int\0outer\0a\0inner\0x\0y\0f\0l\0in\0tail\0";
        let name = |n: &str| {
            let needle = format!("\0{n}\0");
            memchr::memmem::find(strings, needle.as_bytes()).unwrap() as u32 + 1
        };
        let kind = |kind: u32, count: u32, flag: u32| kind << 24 | count | flag << 31;
        let types = words(&[
            // 1: int
            name("int"),
            kind(KIND_INT, 0, 0),
            4,
            32,
            // 2: struct inner
            name("inner"),
            kind(KIND_STRUCT, 2, 0),
            8,
            name("x"),
            1,
            0,
            name("y"),
            1,
            32,
            // 3: anonymous, with bit fields
            0,
            kind(KIND_STRUCT, 3, 1),
            12,
            name("f"),
            1,
            5 << 24,
            name("l"),
            1,
            3 << 24 | 5,
            name("in"),
            2,
            32,
            // 4: int[3]
            0,
            kind(KIND_ARRAY, 0, 0),
            0,
            1,
            1,
            3,
            // 5: struct outer
            name("outer"),
            kind(KIND_STRUCT, 3, 0),
            28,
            name("a"),
            1,
            0,
            0,
            3,
            32,
            name("tail"),
            4,
            128,
        ]);
        let mut data = words(&[
            0x0001_eb9f,
            24,
            0,
            types.len() as u32,
            types.len() as u32,
            strings.len() as u32,
        ]);
        data.extend(types);
        data.extend(strings);
        data
    }

    #[test]
    fn finds_fields_through_anonymous_members_and_paths() {
        let data = sample();
        let btf = Btf::parse(&data).unwrap();
        assert_eq!(btf.size_of("outer"), Some(28));
        assert_eq!(btf.field("outer", "a"), Some(Field { bit: 0, bits: 32 }));
        assert_eq!(btf.field("outer", "in.y"), Some(Field { bit: 96, bits: 32 }));
        assert_eq!(btf.field("outer", "tail"), Some(Field { bit: 128, bits: 96 }));
        assert_eq!(btf.field("outer", "l"), Some(Field { bit: 37, bits: 3 }));
        assert_eq!(btf.field("outer", "missing"), None);
        let level = btf.field("outer", "l").unwrap();
        assert_eq!(level.get(&[0, 0, 0, 0, 0b1010_0000]), Some(0b101));
        assert_eq!(level.get(&[0, 0, 0, 0]), None);
    }

    proptest! {
        #[test]
        fn damaged_btf_never_panics(at in 0usize..250, value: u8, cut in 0usize..300) {
            let mut data = sample();
            let at = at % data.len();
            data[at] = value;
            data.truncate(cut.max(8));
            if let Ok(btf) = Btf::parse(&data) {
                let _ = btf.field("outer", "in.y");
                let _ = btf.field("outer", "tail");
                let _ = btf.enumerator("x");
            }
        }
    }
}
