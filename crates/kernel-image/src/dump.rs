//! The file that a ring is saved in: a description, then raw bytes.
//!
//! The magic `vmeterD1`, a little-endian u32 with the length of the description,
//! the description (JSON, whose `kind` says which ring it is), and the bytes
//! that the description refers to by offset.

use crate::bytes::u32_at;
use crate::error::{Error, Result};
use crate::image::write_whole;
use serde::de::DeserializeOwned;
use serde::Serialize;
use std::path::Path;

const MAGIC: &[u8; 8] = b"vmeterD1";
/// Largest dump read.
const MAX_FILE: u64 = 128 << 20;

/// Writes a dump, whole or not at all.
pub(crate) fn write(path: &Path, header: &impl Serialize, raw: &[u8]) -> Result<()> {
    write_whole(path, &to_bytes(header, raw)?)
}

/// A dump as bytes.
pub(crate) fn to_bytes(header: &impl Serialize, raw: &[u8]) -> Result<Vec<u8>> {
    let header = serde_json::to_vec(header)
        .map_err(|e| Error::malformed("dump", format!("its header can't be written: {e}")))?;
    let mut data = MAGIC.to_vec();
    data.extend((header.len() as u32).to_le_bytes());
    data.extend(header);
    data.extend(raw);
    Ok(data)
}

/// Reads a dump's file.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<(T, Vec<u8>)> {
    let bytes = vmeter_base::files::read_limited(path, MAX_FILE);
    from_bytes(&bytes.map_err(|e| Error::io(path, e))?)
}

/// Reads a dump from bytes.
pub(crate) fn from_bytes<T: DeserializeOwned>(data: &[u8]) -> Result<(T, Vec<u8>)> {
    let bad = |reason: String| Error::malformed("dump", reason);
    if !data.starts_with(MAGIC) {
        return Err(bad("it does not begin with vmeterD1".into()));
    }
    let end = u32_at(data, 8)
        .and_then(|n| 12usize.checked_add(n as usize))
        .filter(|&end| end <= data.len())
        .ok_or_else(|| bad("its header runs past the end of the dump".into()))?;
    let header = serde_json::from_slice(&data[12..end])
        .map_err(|e| bad(format!("its header can't be read: {e}")))?;
    Ok((header, data[end..].to_vec()))
}
