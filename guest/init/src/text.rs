//! Text without allocation: fixed buffers that truncate, and splitting of bytes.

use core::ffi::CStr;

/// Up to `N - 1` bytes of text; what does not fit is cut off.
pub struct Text<const N: usize> {
    buffer: [u8; N],
    len: usize,
}

impl<const N: usize> Text<N> {
    /// Empty.
    pub fn new() -> Self {
        Text { buffer: [0; N], len: 0 }
    }

    /// Appends bytes, up to the first NUL.
    pub fn push(&mut self, bytes: &[u8]) -> &mut Self {
        for &byte in bytes {
            if byte == 0 || self.len + 1 >= N {
                break;
            }
            self.buffer[self.len] = byte;
            self.len += 1;
        }
        self
    }

    /// Appends a decimal number.
    pub fn push_number(&mut self, mut value: u64) -> &mut Self {
        let mut digits = [0u8; 20];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b'0' + (value % 10) as u8;
            value /= 10;
            if value == 0 {
                break;
            }
        }
        self.push(&digits[at..])
    }

    /// Appends a number in 16 hexadecimal digits.
    pub fn push_hex(&mut self, value: u64) -> &mut Self {
        let mut digits = [0u8; 16];
        for (at, digit) in digits.iter_mut().enumerate() {
            *digit = b"0123456789abcdef"[(value >> (60 - 4 * at)) as usize & 0xf];
        }
        self.push(&digits)
    }

    /// The text.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[..self.len]
    }

    /// The text as the kernel wants it. `push` lets no NUL in and keeps one byte free.
    pub fn c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.buffer).unwrap_or(c"")
    }
}

impl Text<512> {
    /// A path (or any system call argument) made of bytes.
    pub fn path(bytes: &[u8]) -> Self {
        let mut text = Self::new();
        text.push(bytes);
        text
    }
}

/// Lines that are neither empty nor comments.
pub fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|&b| b == b'\n').filter(|line| !line.is_empty() && line[0] != b'#')
}

/// What is before and after the first `separator`; all and nothing without one.
pub fn split_once(text: &[u8], separator: u8) -> (&[u8], &[u8]) {
    match text.iter().position(|&b| b == separator) {
        Some(at) => (&text[..at], &text[at + 1..]),
        None => (text, b""),
    }
}

/// A decimal number.
pub fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |value, &b| {
        let digit = b.wrapping_sub(b'0');
        (digit <= 9).then_some(())?;
        value.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// A number, hexadecimal with `0x`.
pub fn any_number(text: &[u8]) -> Option<u64> {
    let Some(digits) = text.strip_prefix(b"0x") else {
        return number(text);
    };
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |value, &b| {
        let digit = (b as char).to_digit(16)?;
        value.checked_mul(16)?.checked_add(u64::from(digit))
    })
}

/// Step name of a module file: `insmod crc32c_intel` for `…/crc32c-intel.ko`,
/// spelled as the kernel spells modules.
pub fn module_name(path: &[u8]) -> Text<128> {
    let file = path.rsplit(|&b| b == b'/').next().unwrap_or(path);
    let (stem, _) = split_once(file, b'.');
    let mut name = Text::new();
    name.push(b"insmod ");
    for &byte in stem {
        name.push(&[if byte == b'-' { b'_' } else { byte }]);
    }
    name
}
