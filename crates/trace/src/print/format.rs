//! The `printf` format of a `print fmt` with its arguments.

use super::expr::{truncate, Expr, Parser, Value};
use crate::event::EventType;
use std::fmt::Write;

/// Longest `print fmt` that is read; the kernel's own longest has some 10 KB.
const MAX_FORMAT: usize = 64 << 10;
/// Widest field.
const MAX_WIDTH: usize = 256;

/// A conversion such as `%-5lx`.
#[derive(Debug, Clone, Default)]
struct Spec {
    left: bool,
    zero: bool,
    plus: bool,
    alternate: bool,
    width: usize,
    precision: Option<usize>,
    /// Bits of the argument.
    bits: u32,
    conversion: char,
    /// `%pS`, `%ps`: an address as its symbol.
    symbol: bool,
}

#[derive(Debug, Clone)]
enum Piece {
    Literal(String),
    Argument(Spec, Expr),
}

/// A compiled `print fmt`.
#[derive(Debug, Clone)]
pub(super) struct Format(Vec<Piece>);

impl Format {
    /// Compiles a type's `print fmt`; none if there is something in it that is not
    /// understood.
    pub(super) fn of(kind: &EventType) -> Option<Format> {
        if kind.print_fmt.is_empty() || kind.print_fmt.len() > MAX_FORMAT {
            return None;
        }
        let mut parser = Parser::new(&kind.print_fmt, kind);
        let text = parser.string()?;
        let mut pieces = Vec::new();
        let mut rest = text.as_str();
        while let Some(at) = rest.find('%') {
            literal(&mut pieces, &rest[..at]);
            let (spec, after) = spec(&rest[at + 1..])?;
            rest = after;
            if spec.conversion == '%' {
                literal(&mut pieces, "%");
                continue;
            }
            if !parser.eat(",") {
                return None;
            }
            pieces.push(Piece::Argument(spec, parser.expr()?));
        }
        literal(&mut pieces, rest);
        parser.is_done().then_some(Format(pieces))
    }

    /// Appends the text of a record; false if the record does not have what it needs.
    pub(super) fn print(
        &self,
        record: &[u8],
        symbol: &dyn Fn(u64) -> Option<String>,
        out: &mut String,
    ) -> bool {
        let begin = out.len();
        for piece in &self.0 {
            match piece {
                Piece::Literal(text) => out.push_str(text),
                Piece::Argument(spec, expr) => match expr.eval(record) {
                    Some(value) => spec.print(value, symbol, out),
                    None => {
                        out.truncate(begin);
                        return false;
                    }
                },
            }
        }
        true
    }
}

fn literal(pieces: &mut Vec<Piece>, text: &str) {
    match pieces.last_mut() {
        _ if text.is_empty() => {}
        Some(Piece::Literal(before)) => before.push_str(text),
        _ => pieces.push(Piece::Literal(text.to_string())),
    }
}

/// Reads what follows a `%`.
fn spec(text: &str) -> Option<(Spec, &str)> {
    let mut spec = Spec { bits: 32, ..Spec::default() };
    let flags = text.bytes().take_while(|b| b"-0+# ".contains(b)).count();
    for flag in text[..flags].bytes() {
        match flag {
            b'-' => spec.left = true,
            b'0' => spec.zero = true,
            b'+' => spec.plus = true,
            b'#' => spec.alternate = true,
            _ => {}
        }
    }
    let (width, rest) = digits(&text[flags..]);
    spec.width = width.unwrap_or(0).min(MAX_WIDTH);
    let mut rest = rest;
    if let Some(after) = rest.strip_prefix('.') {
        let (precision, after) = digits(after);
        (spec.precision, rest) = (Some(precision.unwrap_or(0).min(MAX_WIDTH)), after);
    }
    for (length, bits) in [("hh", 8), ("h", 16), ("ll", 64), ("l", 64), ("z", 64), ("L", 64)] {
        if let Some(after) = rest.strip_prefix(length) {
            (spec.bits, rest) = (bits, after);
            break;
        }
    }
    spec.conversion = rest.chars().next()?;
    rest = &rest[spec.conversion.len_utf8()..];
    match spec.conversion {
        'd' | 'i' | 'u' | 'x' | 'X' | 'o' | 's' | 'c' | '%' => {}
        'p' => {
            // What the kernel appends to %p says how to print; symbols are known here.
            let extension = rest.bytes().take_while(u8::is_ascii_alphanumeric).count();
            spec.symbol = matches!(&rest[..extension], "s" | "S" | "F" | "f" | "B" | "SR");
            if !spec.symbol && extension > 0 && !matches!(&rest[..extension], "x" | "K") {
                return None;
            }
            (spec.bits, rest) = (64, &rest[extension..]);
        }
        _ => return None,
    }
    Some((spec, rest))
}

fn digits(text: &str) -> (Option<usize>, &str) {
    let end = text.bytes().take_while(u8::is_ascii_digit).count();
    (text[..end].parse().ok(), &text[end..])
}

impl Spec {
    fn print(&self, value: Value<'_>, symbol: &dyn Fn(u64) -> Option<String>, out: &mut String) {
        let made;
        let text = match &value {
            Value::Str(text) => text,
            Value::Made(text) => text.as_str(),
            Value::Int(n) => {
                made = self.number(*n, symbol);
                made.as_str()
            }
        };
        let cut = match (self.precision, &value) {
            (Some(most), Value::Str(_) | Value::Made(_)) => {
                text.char_indices().nth(most).map_or(text, |(at, _)| &text[..at])
            }
            _ => text,
        };
        let padding = self.width.saturating_sub(cut.chars().count());
        let zero = self.zero && !self.left && matches!(value, Value::Int(_));
        match (self.left, zero) {
            (true, _) => {
                out.push_str(cut);
                out.extend(std::iter::repeat_n(' ', padding));
            }
            (_, true) => {
                // Zeros go between the sign or the 0x and the digits.
                let sign = match cut.strip_prefix("0x") {
                    Some(_) => 2,
                    None => usize::from(cut.starts_with('-')),
                };
                out.push_str(&cut[..sign]);
                out.extend(std::iter::repeat_n('0', padding));
                out.push_str(&cut[sign..]);
            }
            _ => {
                out.extend(std::iter::repeat_n(' ', padding));
                out.push_str(cut);
            }
        }
    }

    fn number(&self, n: i128, symbol: &dyn Fn(u64) -> Option<String>) -> String {
        let unsigned = truncate(n, self.bits, false);
        let mut text = String::new();
        let written = match self.conversion {
            'd' | 'i' if self.plus => write!(text, "{:+}", truncate(n, self.bits, true)),
            'd' | 'i' => write!(text, "{}", truncate(n, self.bits, true)),
            'x' if self.alternate => write!(text, "{unsigned:#x}"),
            'x' => write!(text, "{unsigned:x}"),
            'X' => write!(text, "{unsigned:X}"),
            'o' => write!(text, "{unsigned:o}"),
            'c' => write!(text, "{}", char::from((unsigned & 0x7f) as u8)),
            'p' => match self.symbol.then(|| symbol(unsigned as u64)).flatten() {
                Some(name) => write!(text, "{name}"),
                None => write!(text, "0x{unsigned:x}"),
            },
            _ => write!(text, "{unsigned}"),
        };
        debug_assert!(written.is_ok());
        text
    }
}
