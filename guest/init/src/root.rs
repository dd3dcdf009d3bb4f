//! The root file system: mounted read-only on `/sysroot`, and a little of it read.

use crate::options::Options;
use crate::steps::Steps;
use crate::sys::{self, Errno};
use crate::text::{split_once, Text};
use core::ffi::CStr;

/// How long a root device may take to appear, ms.
const DEVICE_WAIT_MS: i32 = 10_000;
/// The file that the image builder puts on every root.
const DATA_FILE: &CStr = c"/sysroot/vmeter.data";

/// Mounts the root that `vmeter.root=` names and reads from it.
pub fn apply(steps: &mut Steps, options: &Options) {
    if !options.root.is_empty() {
        apply_named(steps, options);
    }
}

#[inline(never)]
fn apply_named(steps: &mut Steps, options: &Options) {
    let (kind, rest) = split_once(options.root, b':');
    let (device, mount_options): (&[u8], &[u8]) = match kind {
        b"initramfs" if sys::exists(DATA_FILE) => return read_data(steps, options),
        b"initramfs" => return,
        b"virtio-blk" => (b"/dev/vda", b""),
        b"dax" | b"virtio-pmem" => (b"/dev/pmem0", b"dax=always"),
        _ => return steps.complain(b"unknown root", kind),
    };
    let (own_device, rest) = split_once(rest, b':');
    let (own_type, own_options) = split_once(rest, b':');
    let device = Text::path(or(own_device, device));
    let filesystem = Text::path(or(own_type, b"ext4"));
    let mount_options = Text::path(or(own_options, mount_options));
    steps.run(b"mount root", |_| {
        wait_for_device(device.c_str())?;
        let (target, flags) = (c"/sysroot", sys::MS_RDONLY);
        sys::mount(device.c_str(), target, filesystem.c_str(), flags, mount_options.c_str())
    });
    read_data(steps, options);
}

/// Reads of the root's data file.
fn read_data(steps: &mut Steps, options: &Options) {
    if options.read_kib > 0 {
        steps.run(b"read root", |_| sys::read_through(DATA_FILE, options.read_kib * 1024));
    }
}

fn or<'a>(own: &'a [u8], default: &'a [u8]) -> &'a [u8] {
    if own.is_empty() {
        default
    } else {
        own
    }
}

/// Waits until a node in `/dev` exists; drivers may probe after their module is loaded.
fn wait_for_device(path: &CStr) -> Result<(), Errno> {
    if sys::exists(path) {
        return Ok(());
    }
    let watch = sys::watch_created(c"/dev")?;
    let deadline = sys::monotonic_ns() + u64::from(DEVICE_WAIT_MS.unsigned_abs()) * 1_000_000;
    while !sys::exists(path) {
        let left = deadline.saturating_sub(sys::monotonic_ns()) / 1_000_000;
        if left == 0 {
            return Err(Errno::NO_SUCH_FILE);
        }
        sys::wait_readable(watch, left as i32);
        let mut events = [0u8; 4096];
        let _ = sys::read(watch, &mut events);
    }
    sys::close(watch);
    Ok(())
}
