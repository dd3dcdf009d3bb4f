//! The ways in which a snapshot is restored, and how QEMU writes it and goes on from it.

use serde_json::{json, Value};
use std::ffi::OsString;
use std::path::Path;
use vmeter_base::shell;

vmeter_base::words! {
    /// How a VMM restores a snapshot.
    pub enum Method {
        /// `savevm` into a qcow2 file, `-loadvm`.
        Loadvm = "loadvm",
        /// A migration into a file, `-incoming` from it.
        Incoming = "incoming",
        /// The same without the RAM, which is a file of its own and is mapped (x-ignore-shared).
        Shared = "shared",
        /// A migration into a file in which each page has its place (mapped-ram, QEMU 9.0).
        MappedRam = "mapped-ram",
        /// Firecracker maps the RAM's file.
        File = "file",
        /// vmeter copies a page of the RAM's file for Firecracker when the guest first touches that
        /// page (userfaultfd).
        Uffd = "uffd",
        /// cloud-hypervisor copies the RAM's file before the guest goes on.
        Copy = "copy",
        /// cloud-hypervisor copies a page of the RAM's file when the guest first touches that page
        /// (userfaultfd).
        OnDemand = "on-demand",
    }
}

/// What a snapshot in a qcow2 file is called there.
pub(super) const NAME: &str = "vmeter";
/// The machine's RAM where that is a file.
pub(super) const RAM: &str = "ram";
/// The rest of the machine, and its RAM where that is none.
pub(super) const STATE: &str = "state";
/// The file that `savevm` writes into.
pub(super) const DISK: &str = "disk.qcow2";

/// Those of QEMU's.
pub(super) const OF_QEMU: [Method; 4] =
    [Method::Loadvm, Method::Incoming, Method::Shared, Method::MappedRam];

impl Method {
    /// The QEMU that has it first, if that is not any that runs today.
    pub fn since(self) -> Option<(u32, u32, u32)> {
        (self == Method::MappedRam).then_some((9, 0, 0))
    }

    /// The migration's capability that it needs.
    pub(super) fn capability(self) -> Option<&'static str> {
        match self {
            Method::Shared => Some("x-ignore-shared"),
            Method::MappedRam => Some("mapped-ram"),
            _ => None,
        }
    }

    /// What QEMU is given to begin with besides the machine, its snapshot being in `image`; `kept`
    /// says that what the guest writes is kept there.
    fn devices(self, image: &Path, memory_mib: u64, kept: bool) -> Vec<String> {
        let file = |name: &str| image.join(name).display().to_string().replace(',', ",,");
        match self {
            Method::Loadvm => {
                let drive = format!("if=none,id=vmeter-snapshot,format=qcow2,file={}", file(DISK));
                vec!["-drive".into(), drive]
            }
            Method::Shared => {
                let share = if kept { "on" } else { "off" };
                let size = format!("size={memory_mib}M,share={share},mem-path={}", file(RAM));
                vec![
                    "-object".into(),
                    format!("memory-backend-file,id=vmeter-ram,{size}"),
                    "-machine".into(),
                    "memory-backend=vmeter-ram".into(),
                ]
            }
            _ => Vec::new(),
        }
    }

    /// The machine `argv` as it is booted to be saved into `image`.
    pub(super) fn saved(self, argv: &[OsString], image: &Path, memory_mib: u64) -> Vec<OsString> {
        let more = self.devices(image, memory_mib, true);
        argv.iter().cloned().chain(more.into_iter().map(OsString::from)).collect()
    }

    /// The machine `argv` as it goes on from `image`. What the guest then writes into its RAM is no
    /// part of the snapshot.
    pub(super) fn restored(
        self,
        argv: &[OsString],
        image: &Path,
        memory_mib: u64,
    ) -> Vec<OsString> {
        let mut more = self.devices(image, memory_mib, false);
        match self {
            Method::Loadvm => more.extend(["-loadvm".into(), NAME.into()]),
            Method::Incoming => more.extend(["-incoming".into(), self.source(image)]),
            _ => more.extend(["-incoming".into(), "defer".into()]),
        }
        argv.iter().cloned().chain(more.into_iter().map(OsString::from)).collect()
    }

    /// What the monitor is told of a machine that goes on from `image`.
    pub(super) fn commands(self, image: &Path) -> Vec<String> {
        let Some(capability) = self.capability() else { return Vec::new() };
        let on = json!({ "capabilities": [{ "capability": capability, "state": true }] });
        let command = |name: &str, arguments: Value| {
            json!({ "execute": name, "arguments": arguments }).to_string()
        };
        vec![
            command("migrate-set-capabilities", on),
            command("migrate-incoming", json!({ "uri": self.source(image) })),
        ]
    }

    fn source(self, image: &Path) -> String {
        let state = image.join(STATE);
        match self {
            Method::MappedRam => format!("file:{}", state.display()),
            _ => format!("exec:cat {}", shell::path(&state)),
        }
    }

    /// Where a migration into `image` goes.
    pub(super) fn target(self, image: &Path) -> String {
        let state = image.join(STATE);
        match self {
            Method::MappedRam => format!("file:{}", state.display()),
            _ => format!("exec:cat >{}", shell::path(&state)),
        }
    }
}

/// An empty qcow2 file of 1 MiB (docs/interop/qcow2.txt, version 3): its header, a table and a block of
/// reference counts, and a table of clusters, a cluster each.
pub(super) fn empty_qcow2() -> Vec<u8> {
    const CLUSTER: usize = 1 << 16;
    let mut image = vec![0; 4 * CLUSTER];
    let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"QFI\xfb");
    put(4, &3u32.to_be_bytes());
    put(20, &16u32.to_be_bytes());
    put(24, &(1u64 << 20).to_be_bytes());
    put(36, &1u32.to_be_bytes());
    put(40, &(3 * CLUSTER as u64).to_be_bytes());
    put(48, &(CLUSTER as u64).to_be_bytes());
    put(56, &1u32.to_be_bytes());
    // Reference counts have 2^4 bits; the header has 104 bytes.
    put(96, &4u32.to_be_bytes());
    put(100, &104u32.to_be_bytes());
    put(CLUSTER, &(2 * CLUSTER as u64).to_be_bytes());
    for cluster in 0..4 {
        put(2 * CLUSTER + 2 * cluster, &1u16.to_be_bytes());
    }
    image
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(method: Method) -> Vec<String> {
        let argv = [OsString::from("qemu")];
        let restored = method.restored(&argv, Path::new("/i,m"), 64);
        restored.into_iter().map(|word| word.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn what_a_guest_writes_after_it_went_on_stays_out_of_its_snapshot() {
        let shared = words(Method::Shared);
        assert!(shared[2].contains("share=off,mem-path=/i,,m/ram"), "{shared:?}");
        assert_eq!(shared[5..], ["-incoming", "defer"]);
        let saved = Method::Shared.saved(&[], Path::new("/i"), 64);
        assert!(saved[1].to_string_lossy().contains("share=on"), "{saved:?}");
        assert_eq!(words(Method::Incoming)[1..], ["-incoming", "exec:cat /i,m/state"]);
        assert_eq!(words(Method::Loadvm)[3..], ["-loadvm", "vmeter"]);
        let commands = Method::Shared.commands(Path::new("/i"));
        assert!(commands[0].contains("x-ignore-shared") && commands[1].contains("/i/state"));
        assert!(Method::Loadvm.commands(Path::new("/i")).is_empty());
    }
}
