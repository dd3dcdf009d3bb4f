//! Root file systems for `--root virtio-blk`, `--root dax` and `--root nvdimm`: ext4, read-only, one
//! file of a chosen size to read.

use crate::cache;
use crate::command::Tool;
use crate::error::{At, Result};
use crate::nvdimm_image;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

const MKE2FS: Tool =
    Tool { program: "mke2fs", purpose: "making a root image", package: "e2fsprogs" };

const DEBUGFS: Tool =
    Tool { program: "debugfs", purpose: "making a root image", package: "e2fsprogs" };
/// mke2fs copies these from the host's files; the same image wants them the same.
const FIXED_FIELDS: [(&str, &str); 6] = [
    ("atime", "@1"),
    ("mtime", "@1"),
    ("ctime", "@1"),
    ("crtime", "@1"),
    ("uid", "0"),
    ("gid", "0"),
];

/// The file on the root that the guest reads.
pub const DATA_FILE: &str = "vmeter.data";
/// What ext4 needs beside the data, bytes.
const OVERHEAD: u64 = 4 << 20;
/// The guest maps persistent memory in huge pages: the image is a multiple of this.
const ALIGNMENT: u64 = 2 << 20;
const FORMAT: u32 = 1;

/// What a guest root is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RootImageSpec {
    /// Size of the data file, bytes.
    pub data_bytes: u64,
}

impl Default for RootImageSpec {
    fn default() -> Self {
        RootImageSpec { data_bytes: 64 << 20 }
    }
}

/// A built image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootImage {
    /// The image.
    pub path: PathBuf,
    /// Its size, bytes: a multiple of 2 MiB.
    pub bytes: u64,
    /// SHA-256 of the file, hexadecimal; empty for one from the cache.
    pub sha256: String,
    /// True when it came from the cache.
    pub cached: bool,
}

/// Makes the image, or takes it from the cache.
///
/// The guest mounts it read-only, so one image serves any number of guests.
pub fn build(spec: &RootImageSpec) -> Result<RootImage> {
    build_in(&cache::root()?.join("roots"), spec)
}

/// As [`build`], with a cache folder of one's own.
pub fn build_in(folder: &Path, spec: &RootImageSpec) -> Result<RootImage> {
    let bytes = (spec.data_bytes + spec.data_bytes / 64 + OVERHEAD).next_multiple_of(ALIGNMENT);
    let path = folder.join(format!("ext4-{}-v{FORMAT}.img", spec.data_bytes));
    if fs::metadata(&path).is_ok_and(|m| m.len() == bytes) {
        return Ok(RootImage { path, bytes, sha256: String::new(), cached: true });
    }
    fs::create_dir_all(folder).at(folder)?;
    let work = tempfile::Builder::new()
        .prefix(&crate::cache::own(".new-"))
        .tempdir_in(folder)
        .at(folder)?;
    let content = work.path().join("root");
    fs::create_dir(&content).at(&content)?;
    write_data(&content.join(DATA_FILE), spec.data_bytes)?;
    let image = work.path().join("image");
    make_filesystem(&content, &image, bytes)?;
    cache::readable(&image)?;
    let sha256 = cache::sha256_file(&image)?;
    fs::rename(&image, &path).at(&path)?;
    Ok(RootImage { path, bytes, sha256, cached: false })
}

/// The image of [`build_in`] behind the head that an NVDIMM needs to be read by DAX
/// ([`crate::nvdimm_image`]); made once.
///
/// # Errors
/// As [`build_in`].
pub fn nvdimm_in(folder: &Path, spec: &RootImageSpec) -> Result<PathBuf> {
    let root = build_in(folder, spec)?;
    let path = folder.join(format!("nvdimm-{}-v{FORMAT}.img", spec.data_bytes));
    if fs::metadata(&path).is_ok_and(|m| m.len() == root.bytes + nvdimm_image::DATA_OFFSET) {
        return Ok(path);
    }
    let work = tempfile::Builder::new()
        .prefix(&crate::cache::own(".new-"))
        .tempdir_in(folder)
        .at(folder)?;
    let image = work.path().join("image");
    let mut file = fs::File::create(&image).at(&image)?;
    file.write_all(&nvdimm_image::head(root.bytes)).at(&image)?;
    let mut from = fs::File::open(&root.path).at(&root.path)?;
    std::io::copy(&mut from, &mut file).at(&image)?;
    cache::readable(&image)?;
    fs::rename(&image, &path).at(&path)?;
    Ok(path)
}

/// The data file by itself, for roots that are no image; made once.
///
/// # Errors
/// Any error of the file system.
pub fn data_file_in(folder: &Path, spec: &RootImageSpec) -> Result<PathBuf> {
    let path = folder.join(format!("data-{}-v{FORMAT}", spec.data_bytes));
    if fs::metadata(&path).is_ok_and(|m| m.len() == spec.data_bytes) {
        return Ok(path);
    }
    fs::create_dir_all(folder).at(folder)?;
    let work = tempfile::Builder::new()
        .prefix(&crate::cache::own(".new-"))
        .tempdir_in(folder)
        .at(folder)?;
    let data = work.path().join(DATA_FILE);
    write_data(&data, spec.data_bytes)?;
    cache::readable(&data)?;
    fs::rename(&data, &path).at(&path)?;
    Ok(path)
}

fn make_filesystem(content: &Path, image: &Path, bytes: u64) -> Result<()> {
    let mut command = MKE2FS.command();
    // Same input, same image: no time, no random identifiers.
    command.env("E2FSPROGS_FAKE_TIME", "1").env("SOURCE_DATE_EPOCH", "1");
    command.args(["-q", "-F", "-t", "ext4", "-m", "0", "-L", "vmeter"]);
    // Direct access needs blocks as large as pages; a read-only root no journal.
    command.args(["-b", "4096", "-O", "^has_journal"]);
    command.args(["-U", "766d6574-6572-4000-8000-000000000001"]);
    command.args(["-E", "root_owner=0:0,hash_seed=766d6574-6572-4000-8000-000000000002"]);
    command.args([OsStr::new("-d"), content.as_os_str(), image.as_os_str()]);
    command.arg(format!("{}k", bytes / 1024));
    MKE2FS.finish(command)?;
    fix_fields(image)
}

fn fix_fields(image: &Path) -> Result<()> {
    let mut script = format!("sif / mode 040755\nsif /{DATA_FILE} mode 0100644\n");
    for (field, value) in FIXED_FIELDS {
        script += &format!("sif / {field} {value}\nsif /{DATA_FILE} {field} {value}\n");
    }
    let file = image.with_extension("debugfs");
    fs::write(&file, script).at(&file)?;
    let mut command = DEBUGFS.command();
    command.env("E2FSPROGS_FAKE_TIME", "1").args(["-w", "-f"]).arg(&file).arg(image);
    DEBUGFS.finish(command).map(drop)
}

/// Bytes that no file system stores as a hole: a fixed pseudo-random sequence
/// (xorshift64, Marsaglia 2003).
fn write_data(path: &Path, bytes: u64) -> Result<()> {
    let mut file = BufWriter::new(fs::File::create(path).at(path)?);
    let mut state = 0x766d_6574_6572_0001_u64;
    let mut left = bytes;
    while left > 0 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let word = state.to_le_bytes();
        let n = left.min(8) as usize;
        file.write_all(&word[..n]).at(path)?;
        left -= n as u64;
    }
    file.flush().at(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    fn the_same_root_is_the_same_bytes() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let spec = RootImageSpec { data_bytes: 1_000_001 };
        let first = match build_in(one.path(), &spec) {
            Err(error @ Error::Missing { .. }) => return println!("skipped: {error}"),
            other => other.unwrap(),
        };
        assert_eq!(first.bytes % ALIGNMENT, 0);
        assert!(!first.cached);
        assert_eq!(build_in(two.path(), &spec).unwrap().sha256, first.sha256);
        assert!(build_in(one.path(), &spec).unwrap().cached);
    }
}
