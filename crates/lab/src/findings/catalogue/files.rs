//! Files that a remedy makes for a machine of the user's own: an unpacked kernel, an unpacked initrd;
//! and arguments that it replaces.
#![allow(clippy::ptr_arg, reason = "each of these functions is an OwnMaker")]

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use vmeter_appliance::kernel_build::{self, Config};
use vmeter_base::bounds::{Budget, KERNEL};
use vmeter_base::files;
use vmeter_kernel_image::decompress::Format;

/// Most bytes of an initrd that is unpacked.
const MAX_INITRD: u64 = 1 << 30;
/// A header of cpio's format `newc` begins so.
const CPIO: &[u8] = b"070701";
const TRAILER: &[u8] = b"TRAILER!!!\0";

/// Where the value of an option is; the last of several.
fn value_of(argv: &[OsString], option: &str) -> Result<usize, String> {
    let is_it = |word: &OsString| {
        let word = word.to_string_lossy();
        word.strip_prefix('-').is_some_and(|w| w.trim_start_matches('-') == option)
    };
    let at = argv.iter().rposition(is_it).map(|at| at + 1).filter(|at| *at < argv.len());
    at.ok_or_else(|| format!("its command line has no -{option}"))
}

/// Enters the kernel by PVH, unpacked.
///
/// # Errors
/// No kernel, or one without a PVH entry point.
pub(crate) fn enter_by_pvh(cache: &Path, argv: &mut Vec<OsString>) -> Result<(), String> {
    let at = value_of(argv, "kernel")?;
    let kernel = PathBuf::from(&argv[at]);
    let made = crate::prepare::uncompressed(&kernel, true, cache);
    argv[at] = made.map_err(|error| format!("{error:#}"))?.into();
    Ok(())
}

/// Loads the initrd unpacked.
///
/// # Errors
/// No initrd, or one that can't be unpacked.
pub(crate) fn unpack_initrd(cache: &Path, argv: &mut Vec<OsString>) -> Result<(), String> {
    let at = value_of(argv, "initrd")?;
    let path = PathBuf::from(&argv[at]);
    let said = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let bytes = files::read_limited(&path, MAX_INITRD).map_err(|e| said(&e))?;
    let packed = packed_from(&bytes).ok_or_else(|| said(&"it is not compressed"))?;
    let format = Format::detect(&bytes[packed..]).ok_or_else(|| said(&"it is not compressed"))?;
    let budget = Budget::new(KERNEL, bytes.len() as u64);
    let mut whole = bytes[..packed].to_vec();
    whole.extend(format.decompress(&bytes[packed..], &budget).map_err(|e| said(&e))?);
    let to = cache.join("initrds").join(format!("{:016x}", vmeter_base::fnv::hash(&bytes)));
    if !to.is_file() {
        files::write_in_new_folder(&to, &whole).map_err(|e| said(&e))?;
    }
    argv[at] = to.into();
    Ok(())
}

/// True for a file of which a part is packed.
pub(crate) fn is_packed(path: &Path) -> bool {
    let bytes = files::read_limited(path, MAX_INITRD).ok();
    bytes.is_some_and(|bytes| {
        packed_from(&bytes).is_some_and(|at| Format::detect(&bytes[at..]).is_some())
    })
}

/// From where on an initrd is packed: after an archive that is not (microcode), or at its begin.
fn packed_from(bytes: &[u8]) -> Option<usize> {
    if !bytes.starts_with(CPIO) {
        return Some(0).filter(|_| !bytes.is_empty());
    }
    let end = bytes.windows(TRAILER.len()).position(|part| part == TRAILER)? + TRAILER.len();
    let next = bytes[end..].iter().position(|byte| *byte != 0)?;
    Some(end + next)
}

/// Takes the disks' flushes away.
///
/// # Errors
/// No disk that is given by `-drive`.
pub(crate) fn never_flush(_: &Path, argv: &mut Vec<OsString>) -> Result<(), String> {
    let mut found = false;
    for at in 1..argv.len() {
        let text = argv[at].to_string_lossy().into_owned();
        let is_drive = argv[at - 1] == "-drive" && !text.contains("cache=");
        if is_drive && !text.contains("if=pflash") && !text.contains("readonly=on") {
            argv[at] = format!("{text},cache=unsafe").into();
            found = true;
        }
    }
    let why = "each -drive in its command line is read-only, is pflash, or sets cache=";
    found.then_some(()).ok_or_else(|| why.into())
}

/// Takes root ports away that nothing is plugged into.
///
/// # Errors
/// None is there.
pub(crate) fn without_root_ports(_: &Path, argv: &mut Vec<OsString>) -> Result<(), String> {
    let text: Vec<String> = argv.iter().map(|w| w.to_string_lossy().into_owned()).collect();
    let id = |device: &str| {
        device.split(',').find_map(|p| p.strip_prefix("id=")).unwrap_or_default().to_owned()
    };
    let is_used = |id: &str| {
        let bus = format!("bus={id}");
        !id.is_empty() && text.iter().any(|word| word.split(',').any(|part| part == bus))
    };
    let is_port = |at: usize| {
        text[at - 1] == "-device"
            && text[at].starts_with("pcie-root-port")
            && !is_used(&id(&text[at]))
    };
    let ports: Vec<usize> = (1..text.len()).filter(|at| is_port(*at)).collect();
    if ports.is_empty() {
        return Err("the machine has no empty root port".into());
    }
    for at in ports.into_iter().rev() {
        argv.drain(at - 1..=at);
    }
    Ok(())
}

/// Gives it QEMU's usual CPU.
///
/// # Errors
/// It names none.
pub(crate) fn usual_cpu(_: &Path, argv: &mut Vec<OsString>) -> Result<(), String> {
    let at = value_of(argv, "cpu")?;
    argv[at] = "qemu64".into();
    Ok(())
}

/// Gives it a board of conventional PCI.
///
/// # Errors
/// It names no board.
pub(crate) fn conventional_board(_: &Path, argv: &mut Vec<OsString>) -> Result<(), String> {
    let at = value_of(argv, "machine").or_else(|_| value_of(argv, "M"))?;
    let text = argv[at].to_string_lossy().into_owned();
    argv[at] = text.replacen("q35", "pc", 1).into();
    Ok(())
}

/// Boots the newest kernel that `vmeter kernel diet` has built.
///
/// # Errors
/// No such kernel, or a command line without a kernel.
pub(crate) fn dieted_kernel(cache: &Path, argv: &mut Vec<OsString>) -> Result<(), String> {
    built_kernel(cache, argv, Config::Custom, "vmeter kernel diet")
}

/// Boots the newest minimal kernel that `vmeter kernel build` has built.
///
/// # Errors
/// As [`dieted_kernel`].
pub(crate) fn minimal_kernel(cache: &Path, argv: &mut Vec<OsString>) -> Result<(), String> {
    built_kernel(cache, argv, Config::Minimal, "vmeter kernel build --config minimal")
}

fn built_kernel(
    cache: &Path,
    argv: &mut [OsString],
    config: Config,
    command: &str,
) -> Result<(), String> {
    let at = value_of(argv, "kernel")?;
    let built = kernel_build::list_in(cache).into_iter();
    let built = built.filter(|(_, record)| record.config == config.word());
    let made = |path: &Path| path.metadata().and_then(|file| file.modified()).ok();
    let newest = built.map(|(kernel, _)| kernel.vmlinuz).max_by_key(|path| made(path));
    argv[at] = newest
        .ok_or_else(|| format!("the cache has no kernel of this kind: run `{command}` first"))?
        .into();
    Ok(())
}

/// Runs the guest by KVM.
///
/// # Errors
/// What this host's KVM is.
pub(crate) fn by_kvm(cache: &Path, argv: &mut Vec<OsString>) -> Result<(), String> {
    let probe = vmeter_machine::accel::probe(cache)?;
    if !matches!(probe.ring0, vmeter_kvm_probe::Quality::Native { .. }) {
        return Err(format!(
            "this host's KVM does not run guest kernel code natively on the CPU \
            ({})",
            probe.ring0
        ));
    }
    argv.extend(["-accel", "kvm"].map(OsString::from));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argv(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn only_ports_without_a_device_go() {
        let mut line =
            argv("q -device pcie-root-port,id=a -device pcie-root-port,id=b -device x,bus=b");
        without_root_ports(Path::new("/"), &mut line).expect("a port");
        assert_eq!(line, argv("q -device pcie-root-port,id=b -device x,bus=b"));
        assert!(without_root_ports(Path::new("/"), &mut line).is_err());
    }

    #[test]
    fn what_follows_microcode_is_unpacked() {
        let folder = tempfile::tempdir().expect("a folder");
        let early = [CPIO, b"...", TRAILER, &[0; 9]].concat();
        assert_eq!(packed_from(&early), None);
        assert_eq!(packed_from(&[&early[..], b"\x1f\x8b"].concat()), Some(early.len()));
        assert_eq!(packed_from(b"\x1f\x8b"), Some(0));
        let path = folder.path().join("initrd");
        std::fs::write(&path, &early).expect("written");
        assert!(!is_packed(&path));
    }
}
