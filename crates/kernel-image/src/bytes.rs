//! Little-endian reads that answer `None` outside the slice.

/// Reads a `u16` at `at`.
pub(crate) fn u16_at(data: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(array_at(data, at)?))
}

/// Reads a `u32` at `at`.
pub(crate) fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(array_at(data, at)?))
}

/// Reads a `u64` at `at`.
pub(crate) fn u64_at(data: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(array_at(data, at)?))
}

/// Reads `N` bytes at `at`.
pub(crate) fn array_at<const N: usize>(data: &[u8], at: usize) -> Option<[u8; N]> {
    data.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// The text up to the first NUL (or the end), lossily decoded.
pub(crate) fn text_until_nul(data: &[u8]) -> String {
    let end = memchr::memchr(0, data).unwrap_or(data.len());
    String::from_utf8_lossy(&data[..end]).into_owned()
}
