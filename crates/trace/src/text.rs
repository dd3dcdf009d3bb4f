//! Picking values out of the kernel's `print fmt` texts without allocating.

/// What follows `key` up to a space, a comma or a closing bracket.
///
/// `key` includes its separator: `"irq="`, `"reason "`. It must begin a word.
pub(crate) fn after<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    split_after(text, key).map(|(value, _)| value)
}

/// What follows `key`, as [`after`] has it, and the rest of the text.
pub(crate) fn split_after<'a>(text: &'a str, key: &str) -> Option<(&'a str, &'a str)> {
    let rest = text.get(ends(text, key).find(|end| begins_word(text, end - key.len()))?..)?;
    let rest = rest.trim_ascii_start();
    let end = rest.bytes().position(|b| matches!(b, b' ' | b',' | b')' | b']' | b'\t'));
    Some(rest.split_at(end.unwrap_or(rest.len())))
}

/// Where the text goes on behind each place at which `part` stands.
///
/// Looked for is its last byte, which of a key is the rarest one: setting a search for the whole
/// of it up takes longer than going through a line.
fn ends<'a>(text: &'a str, part: &'a str) -> impl Iterator<Item = usize> + 'a {
    let last = part.bytes().next_back().unwrap_or_default();
    let hits = memchr::memchr_iter(last, text.as_bytes()).map(|at| at + 1);
    hits.filter(|end| text.as_bytes()[..*end].ends_with(part.as_bytes()))
}

/// Splits at an ASCII byte that is near.
#[inline]
pub(crate) fn split_at_byte(text: &str, byte: u8) -> Option<(&str, &str)> {
    let at = text.bytes().position(|b| b == byte)?;
    Some((&text[..at], &text[at + 1..]))
}

/// Splits at the first place at which `part` stands.
pub(crate) fn split<'a>(text: &'a str, part: &'a str) -> Option<(&'a str, &'a str)> {
    let end = ends(text, part).next()?;
    Some((text.get(..end - part.len())?, text.get(end..)?))
}

fn begins_word(text: &str, at: usize) -> bool {
    at == 0 || !is_word(text.as_bytes()[at - 1])
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// A number as it is printed: decimal, or hexadecimal after `0x`.
pub(crate) fn number(text: &str) -> Option<u64> {
    if let Some((value, length)) = digits(text.as_bytes()) {
        if length == text.len() {
            return Some(value);
        }
    }
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => match text.strip_prefix('-') {
            Some(digits) => Some((digits.parse::<u64>().ok()? as i64).wrapping_neg() as u64),
            None => text.parse().ok(),
        },
    }
}

/// A number that is hexadecimal whether or not `0x` says so.
pub(crate) fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
}

/// The number after `key`.
pub(crate) fn number_after(text: &str, key: &str) -> Option<u64> {
    number(after(text, key)?)
}

const TENS: [u64; 10] =
    [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000];

/// The number that a text begins with, and how many digits it has; none of more than 19.
#[inline]
pub(crate) fn digits(text: &[u8]) -> Option<(u64, usize)> {
    let (mut value, mut length) = (0u64, 0);
    while let Some(digit) = text.get(length).map(|byte| byte.wrapping_sub(b'0')) {
        if digit > 9 {
            break;
        }
        value = value.wrapping_mul(10).wrapping_add(u64::from(digit));
        length += 1;
    }
    (1..=19).contains(&length).then_some((value, length))
}

/// Seconds with a decimal fraction as nanoseconds; an integer without one as it is.
pub(crate) fn stamp(text: &str) -> Option<(u64, bool)> {
    let (value, seconds, length) = stamp_at(text)?;
    (length == text.len()).then_some((value, seconds))
}

/// The [`stamp`] that a text begins with, and its length.
#[inline]
pub(crate) fn stamp_at(text: &str) -> Option<(u64, bool, usize)> {
    let (whole, length) = digits(text.as_bytes())?;
    let Some(fraction) = text[length..].strip_prefix('.') else {
        return Some((whole, false, length));
    };
    let (parts, places) = digits(fraction.as_bytes())?;
    let ns = match places {
        0..=9 => parts * TENS[9 - places],
        10..=18 => parts / TENS[places - 9],
        _ => return None,
    };
    Some((whole.checked_mul(TENS[9])?.checked_add(ns)?, true, length + 1 + places))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_their_keys() {
        let exit = "vcpu 0 reason io rip 0xffffffffafec2276 info1 0x0000000003f80010";
        assert_eq!(after(exit, "reason "), Some("io"));
        assert_eq!(number_after(exit, "info1 "), Some(0x3f80010));
        assert_eq!(after("prev_pid=1 pid=2", "pid="), Some("2"));
        assert_eq!(after("xreason a", "reason "), None);
        assert_eq!(after("next_pid=1 é=2 pid=", "pid="), Some(""));
        assert_eq!(split("a ==> b ==> c", "==>"), Some(("a ", " b ==> c")));
        assert_eq!((split("a = => b", "==>"), split("=>", "==>")), (None, None));
        assert_eq!(stamp("1.123456789987654321"), Some((1_123_456_789, true)));
        assert_eq!((stamp("1.5"), stamp("1.")), (Some((1_500_000_000, true)), None));
        assert_eq!(number("-1"), Some(u64::MAX));
        assert_eq!(hex("ae80"), Some(0xae80));
        assert_eq!(stamp("69.243562"), Some((69_243_562_000, true)));
        assert_eq!(stamp("48514053194"), Some((48_514_053_194, false)));
        assert_eq!(stamp("1.x"), None);
        assert_eq!(stamp("99999999999999999999.1"), None);
    }
}
