//! The C expressions of a `print fmt`, as far as tracepoints use them.
//!
//! Those are what the kernel's TP_printk macros leave behind (include/trace/stages/
//! stage3_trace_output.h): fields as `REC->name`, arithmetic, conditions, casts, and
//! helpers such as `__print_symbolic`. What is not understood makes the whole text
//! fall back to plain fields.

use crate::event::{EventType, FieldKind, IntField, StrField};

/// Nesting beyond this is no expression of a kernel's.
const MAX_DEPTH: u32 = 64;

/// A value while a text is made.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value<'a> {
    /// Wide enough for every integer type of C, signed or not.
    Int(i128),
    Str(&'a str),
    Made(String),
}

#[derive(Debug, Clone)]
pub(super) enum Expr {
    Int(i128),
    Str(String),
    Field(IntField, bool),
    /// An element of an array field: offset, size of an element, length, signed.
    Element(u32, u32, u32, bool, Box<Expr>),
    Text(StrField),
    Bytes(u32, u32),
    Unary(char, Box<Expr>),
    Binary(&'static str, Box<Expr>, Box<Expr>),
    Choice(Box<Expr>, Box<Expr>, Box<Expr>),
    /// To so many bits, signed or not.
    Cast(u32, bool, Box<Expr>),
    Symbolic(Box<Expr>, Vec<(i128, String)>),
    Flags(Box<Expr>, String, Vec<(i128, String)>),
}

impl Expr {
    /// The value for a record; none if the record is too short or types do not fit.
    pub(super) fn eval<'a>(&'a self, record: &'a [u8]) -> Option<Value<'a>> {
        Some(match self {
            Expr::Int(n) => Value::Int(*n),
            Expr::Str(text) => Value::Str(text),
            Expr::Field(field, signed) => Value::Int(widen(field.get(record)?, *signed)),
            Expr::Element(offset, size, len, signed, index) => {
                let index = u32::try_from(index.int(record)?).ok()?;
                let start = index.checked_mul(*size).filter(|at| at + size <= *len)?;
                let field = IntField::at(offset.checked_add(start)?, *size, *signed);
                Value::Int(widen(field.get(record)?, *signed))
            }
            Expr::Text(field) => Value::Str(field.get(record)?),
            Expr::Bytes(offset, size) => {
                let bytes = record.get(*offset as usize..)?.get(..*size as usize)?;
                let bytes: Vec<String> = bytes.iter().map(|b| format!("{b:02x}")).collect();
                Value::Made(bytes.join(" "))
            }
            Expr::Unary(op, of) => {
                let n = of.int(record)?;
                Value::Int(match op {
                    '-' => n.wrapping_neg(),
                    '~' => !n,
                    _ => i128::from(n == 0),
                })
            }
            Expr::Binary(op, a, b) => Value::Int(binary(op, a, b, record)?),
            Expr::Choice(condition, yes, no) => {
                return if condition.int(record)? != 0 { yes } else { no }.eval(record)
            }
            Expr::Cast(bits, signed, of) => match of.eval(record)? {
                Value::Int(n) => Value::Int(truncate(n, *bits, *signed)),
                text => text,
            },
            Expr::Symbolic(of, table) => {
                let n = truncate(of.int(record)?, 64, false);
                match table.iter().find(|(value, _)| truncate(*value, 64, false) == n) {
                    Some((_, name)) => Value::Str(name),
                    None => Value::Made(format!("{n:#x}")),
                }
            }
            Expr::Flags(of, delimiter, table) => {
                Value::Made(flags(truncate(of.int(record)?, 64, false), delimiter, table))
            }
        })
    }

    pub(super) fn int(&self, record: &[u8]) -> Option<i128> {
        match self.eval(record)? {
            Value::Int(n) => Some(n),
            Value::Str(_) | Value::Made(_) => None,
        }
    }
}

fn widen(raw: u64, signed: bool) -> i128 {
    if signed {
        i128::from(raw as i64)
    } else {
        i128::from(raw)
    }
}

/// To the low bits, as a C cast does.
pub(super) fn truncate(n: i128, bits: u32, signed: bool) -> i128 {
    let low = n & ((1i128 << bits.min(64)) - 1);
    if signed && bits <= 64 && low >> (bits - 1) & 1 == 1 {
        low - (1i128 << bits)
    } else {
        low
    }
}

/// Names of the bits that are set, as `trace_print_flags_seq` joins them.
fn flags(mut n: i128, delimiter: &str, table: &[(i128, String)]) -> String {
    let mut parts: Vec<String> = Vec::new();
    for (mask, name) in table {
        if *mask != 0 && n & mask == *mask {
            parts.push(name.clone());
            n &= !mask;
        }
    }
    if n != 0 {
        parts.push(format!("{n:#x}"));
    }
    parts.join(delimiter)
}

fn binary(op: &str, a: &Expr, b: &Expr, record: &[u8]) -> Option<i128> {
    let left = a.int(record)?;
    match op {
        "&&" if left == 0 => return Some(0),
        "||" if left != 0 => return Some(1),
        _ => {}
    }
    let right = b.int(record)?;
    let shift = || u32::try_from(right).ok().filter(|by| *by < 64);
    Some(match op {
        "*" => left.wrapping_mul(right),
        "/" => left.checked_div(right)?,
        "%" => left.checked_rem(right)?,
        "+" => left.wrapping_add(right),
        "-" => left.wrapping_sub(right),
        "<<" => truncate(left.wrapping_shl(shift()?), 64, left < 0),
        ">>" => left >> shift()?,
        "<" => i128::from(left < right),
        "<=" => i128::from(left <= right),
        ">" => i128::from(left > right),
        ">=" => i128::from(left >= right),
        "==" => i128::from(left == right),
        "!=" => i128::from(left != right),
        "&" => left & right,
        "^" => left ^ right,
        "|" => left | right,
        "&&" | "||" => i128::from(right != 0),
        _ => return None,
    })
}

/// Operators by how tightly they bind, the loosest first.
const LEVELS: [&[&str]; 10] = [
    &["||"],
    &["&&"],
    &["|"],
    &["^"],
    &["&"],
    &["==", "!="],
    &["<=", ">=", "<", ">"],
    &["<<", ">>"],
    &["+", "-"],
    &["*", "/", "%"],
];

/// Reads expressions of one event type.
pub(super) struct Parser<'a> {
    rest: &'a str,
    kind: &'a EventType,
    depth: u32,
}

impl<'a> Parser<'a> {
    pub(super) fn new(text: &'a str, kind: &'a EventType) -> Parser<'a> {
        Parser { rest: text.trim_start(), kind, depth: 0 }
    }

    pub(super) fn is_done(&self) -> bool {
        self.rest.is_empty()
    }

    /// Takes a token if it is next.
    pub(super) fn eat(&mut self, token: &str) -> bool {
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest.trim_start();
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, token: &str) -> Option<()> {
        self.eat(token).then_some(())
    }

    pub(super) fn expr(&mut self) -> Option<Expr> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        let condition = self.level(0)?;
        let found = if self.eat("?") {
            let yes = self.expr()?;
            self.expect(":")?;
            Expr::Choice(Box::new(condition), Box::new(yes), Box::new(self.expr()?))
        } else {
            condition
        };
        self.depth -= 1;
        Some(found)
    }

    fn level(&mut self, level: usize) -> Option<Expr> {
        let Some(operators) = LEVELS.get(level) else { return self.unary() };
        let mut left = self.level(level + 1)?;
        let mut count = 0;
        while let Some(op) = self.operator(operators) {
            count += 1;
            if count > 256 {
                return None;
            }
            left = Expr::Binary(op, Box::new(left), Box::new(self.level(level + 1)?));
        }
        Some(left)
    }

    /// The next operator if it is one of these, and not the beginning of a longer one.
    fn operator(&mut self, operators: &[&'static str]) -> Option<&'static str> {
        let found = LEVELS.iter().copied().flatten().filter(|op| self.rest.starts_with(**op));
        let longest = *found.max_by_key(|op| op.len())?;
        let op = operators.iter().find(|op| **op == longest)?;
        self.eat(op).then_some(*op)
    }

    fn unary(&mut self) -> Option<Expr> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        let op = ['-', '~', '!'].into_iter().find(|op| self.rest.starts_with(*op));
        let found = match op {
            Some(op) => {
                self.rest = self.rest[1..].trim_start();
                Expr::Unary(op, Box::new(self.unary()?))
            }
            None => self.primary()?,
        };
        self.depth -= 1;
        Some(found)
    }

    fn primary(&mut self) -> Option<Expr> {
        if let Some((bits, signed)) = self.cast() {
            return Some(Expr::Cast(bits, signed, Box::new(self.unary()?)));
        }
        if self.eat("(") {
            let inner = self.expr()?;
            self.expect(")")?;
            return Some(inner);
        }
        if self.rest.starts_with('"') {
            return Some(Expr::Str(self.string()?));
        }
        if self.rest.starts_with(|c: char| c.is_ascii_digit()) {
            return Some(Expr::Int(self.number()?));
        }
        if self.eat("REC->") {
            let name = self.word()?;
            return self.field(name);
        }
        let name = self.word()?;
        self.expect("(")?;
        self.call(name)
    }

    /// `(unsigned long)` and the like: bits and sign; pointers are 64 bits.
    fn cast(&mut self) -> Option<(u32, bool)> {
        let inside = self.rest.strip_prefix('(')?;
        let (inside, after) = inside.split_once(')')?;
        let type_like = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ' ' | '*');
        if !inside.chars().all(type_like)
            || !inside.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        {
            return None;
        }
        let words: Vec<&str> = inside.split_whitespace().collect();
        let has = |word: &str| words.contains(&word);
        let size = if inside.contains('*') || has("long") || has("size_t") {
            64
        } else if has("char") {
            8
        } else if has("short") {
            16
        } else {
            match words.last().map(|w| w.trim_start_matches('_')) {
                Some("u8" | "s8" | "bool" | "uint8_t") => 8,
                Some("u16" | "s16" | "uint16_t") => 16,
                Some(
                    "u64" | "s64" | "uint64_t" | "dma_addr_t" | "phys_addr_t" | "gfn_t" | "gpa_t",
                ) => 64,
                Some(
                    "int" | "unsigned" | "u32" | "s32" | "uint32_t" | "gfp_t" | "pid_t" | "umode_t",
                ) => 32,
                _ => return None,
            }
        };
        let unsigned = has("unsigned")
            || inside.contains('*')
            || words
                .iter()
                .any(|w| w.trim_start_matches('_').starts_with('u') || w.ends_with("_t"));
        self.rest = after.trim_start();
        Some((size, !unsigned))
    }

    fn field(&mut self, name: &str) -> Option<Expr> {
        let field = self.kind.field(name)?;
        if self.eat("[") {
            let index = self.expr()?;
            self.expect("]")?;
            let size = element_size(&field.type_name)?;
            return Some(Expr::Element(
                field.offset,
                size,
                field.size,
                field.signed,
                Box::new(index),
            ));
        }
        let int = self.kind.int(name);
        if field.kind != FieldKind::Plain || field.type_name.contains('[') {
            return if field.type_name.contains("char") {
                Some(Expr::Text(self.kind.string(name)))
            } else {
                Some(Expr::Bytes(field.offset, field.size))
            };
        }
        int.is_present().then_some(Expr::Field(int, field.signed))
    }

    fn call(&mut self, name: &str) -> Option<Expr> {
        match name {
            "__get_str" | "__get_rel_str" => {
                let field = self.word()?;
                self.expect(")")?;
                self.kind.field(field)?;
                Some(Expr::Text(self.kind.string(field)))
            }
            "__print_symbolic" | "__print_symbolic_u64" => {
                let of = self.expr()?;
                Some(Expr::Symbolic(Box::new(of), self.table()?))
            }
            "__print_flags" | "__print_flags_u64" => {
                let of = self.expr()?;
                self.expect(",")?;
                let delimiter = self.string()?;
                Some(Expr::Flags(Box::new(of), delimiter, self.table()?))
            }
            _ => None,
        }
    }

    /// `, { 1, "A" }, { 2, "B" })`.
    fn table(&mut self) -> Option<Vec<(i128, String)>> {
        let mut table = Vec::new();
        while self.eat(",") {
            self.expect("{")?;
            let number = self.expr()?.int(&[])?;
            self.expect(",")?;
            let name = self.string()?;
            self.expect("}")?;
            table.push((number, name));
        }
        self.expect(")")?;
        Some(table)
    }

    /// A string; neighbours are one.
    pub(super) fn string(&mut self) -> Option<String> {
        let mut text = String::new();
        let mut any = false;
        while let Some(rest) = self.rest.strip_prefix('"') {
            let mut chars = rest.char_indices();
            let end = loop {
                match chars.next()? {
                    (at, '"') => break at,
                    (_, '\\') => text.push(match chars.next()?.1 {
                        'n' => '\n',
                        't' => '\t',
                        other => other,
                    }),
                    (_, c) => text.push(c),
                }
            };
            self.rest = rest[end + 1..].trim_start();
            any = true;
        }
        any.then_some(text)
    }

    fn word(&mut self) -> Option<&'a str> {
        let end = self.rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let (word, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest.trim_start();
        (!word.is_empty()).then_some(word)
    }

    fn number(&mut self) -> Option<i128> {
        let word = self.word()?;
        let digits = word.trim_end_matches(['u', 'U', 'l', 'L']);
        let parsed = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
            Some(hex) => u64::from_str_radix(hex, 16),
            None if digits.len() > 1 && digits.starts_with('0') => u64::from_str_radix(digits, 8),
            None => digits.parse(),
        };
        parsed.ok().map(i128::from)
    }
}

/// Bytes of an element of an array field.
fn element_size(type_name: &str) -> Option<u32> {
    let (element, _) = type_name.split_once('[')?;
    let has = |word: &str| {
        element.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).any(|w| w == word)
    };
    Some(if has("long") || has("u64") || has("s64") || has("__u64") {
        8
    } else if has("char") || has("u8") || has("__u8") {
        1
    } else if has("short") || has("u16") || has("__u16") {
        2
    } else if has("int") || has("u32") || has("__u32") || has("unsigned") {
        4
    } else {
        return None;
    })
}
