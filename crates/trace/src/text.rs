//! Picking values out of the kernel's `print fmt` texts without allocating.

/// What follows `key` up to a space, a comma or a closing bracket.
///
/// `key` includes its separator: `"irq="`, `"reason "`. It must begin a word.
pub(crate) fn after<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let mut from = 0;
    loop {
        let at = from + text.get(from..)?.find(key)?;
        let begins = at == 0 || !is_word(text.as_bytes()[at - 1]);
        let rest = &text[at + key.len()..];
        if begins {
            let rest = rest.trim_start();
            let end = rest.find([' ', ',', ')', ']', '\t']).unwrap_or(rest.len());
            return Some(&rest[..end]);
        }
        from = at + key.len();
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// A number as it is printed: decimal, or hexadecimal after `0x`.
pub(crate) fn number(text: &str) -> Option<u64> {
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

/// Seconds with a decimal fraction as nanoseconds; an integer without one as it is.
pub(crate) fn stamp(text: &str) -> Option<(u64, bool)> {
    let Some((whole, fraction)) = text.split_once('.') else {
        return Some((text.parse().ok()?, false));
    };
    if fraction.is_empty() || fraction.len() > 18 || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let seconds: u64 = whole.parse().ok()?;
    let mut ns = 0;
    for place in 0..9 {
        let digit = fraction.as_bytes().get(place).map_or(0, |b| u64::from(b - b'0'));
        ns = ns * 10 + digit;
    }
    Some((seconds.checked_mul(1_000_000_000)?.checked_add(ns)?, true))
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
        assert_eq!(number("-1"), Some(u64::MAX));
        assert_eq!(hex("ae80"), Some(0xae80));
        assert_eq!(stamp("69.243562"), Some((69_243_562_000, true)));
        assert_eq!(stamp("48514053194"), Some((48_514_053_194, false)));
        assert_eq!(stamp("1.x"), None);
        assert_eq!(stamp("99999999999999999999.1"), None);
    }
}
