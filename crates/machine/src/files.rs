//! Digests and kinds of what is booted.

use sha2::{Digest, Sha256};
use std::io::{self, Read};
use std::path::Path;
use vmeter_base::files;

/// Largest kernel, initrd or firmware, bytes: the boot protocol gives their sizes 32 bits.
const MAX_BOOTED: u64 = 1 << 32;

/// What a kernel file is, by its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelKind {
    /// Uncompressed: an ELF file, entered by PVH.
    Vmlinux,
    /// Linux/x86 boot protocol (Documentation/arch/x86/boot.rst): `HdrS` at 0x202.
    BzImage,
    /// Something else.
    Other,
}

/// Recognises a kernel.
///
/// # Errors
/// When the file cannot be read.
pub fn kernel_kind(path: &Path) -> io::Result<KernelKind> {
    let mut head = Vec::new();
    files::open_regular(path)?.take(0x206).read_to_end(&mut head)?;
    Ok(if head.starts_with(b"\x7fELF") {
        KernelKind::Vmlinux
    } else if head.get(0x202..0x206) == Some(b"HdrS") {
        KernelKind::BzImage
    } else {
        KernelKind::Other
    })
}

/// `sha256:…` of a file.
///
/// # Errors
/// When it cannot be read.
pub fn digest(path: &Path) -> io::Result<String> {
    let mut file = files::open_regular(path)?;
    let length = file.metadata()?.len();
    if length > MAX_BOOTED {
        let message =
            format!("it is {length} bytes long; vmeter boots files of at most {MAX_BOOTED} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let mut hash = Sha256::new();
    let mut buffer = vec![0u8; 1 << 16];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            n => hash.update(&buffer[..n]),
        }
    }
    let hex: String = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
    Ok(format!("sha256:{hex}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_and_digests() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        std::fs::write(&file, "abc").expect("written");
        assert_eq!(kernel_kind(&file).expect("read"), KernelKind::Other);
        assert_eq!(
            digest(&file).expect("read"),
            "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        std::fs::write(&file, "\x7fELF").expect("replaced");
        assert_eq!(kernel_kind(&file).expect("read"), KernelKind::Vmlinux);
        let mut bz = vec![0; 0x202];
        bz.extend(b"HdrS");
        std::fs::write(&file, &bz).expect("replaced");
        assert_eq!(kernel_kind(&file).expect("read"), KernelKind::BzImage);
    }
}
