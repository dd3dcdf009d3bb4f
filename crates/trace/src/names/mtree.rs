//! Which device serves an address: QEMU's own map, `info mtree -f`.
//!
//! The monitor prints the memory map as it is after overlaps were resolved, one
//! flat view for several address spaces (QEMU, `softmmu/memory.c`,
//! `mtree_print_flatview`):
//! ```text
//! FlatView #3
//!  AS "I/O", root: io
//!  Root memory region: io
//!   0000000000000040-0000000000000043 (prio 0, i/o): pit
//! ```

/// Most ranges that are kept: a guest can't make more than its devices have.
const MAX_RANGES: usize = 1 << 16;

/// A served range of addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Range {
    first: u64,
    last: u64,
    device: String,
}

/// Devices by port and by guest-physical address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceMap {
    ports: Vec<Range>,
    memory: Vec<Range>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Space {
    Ports,
    Memory,
    Other,
}

/// Most bytes of a map: one of a machine with thousands of devices has some MiB.
const MAX_FILE: u64 = 16 << 20;

impl DeviceMap {
    /// Reads a file of what [`DeviceMap::parse`] takes.
    ///
    /// # Errors
    /// That it can't be read, or what was expected of it.
    pub fn open(path: &std::path::Path) -> Result<DeviceMap, String> {
        let text = vmeter_base::files::read_text_limited(path, MAX_FILE);
        DeviceMap::parse(&text.map_err(|error| error.to_string())?)
    }

    /// Reads what the monitor's `info mtree -f` printed, with or without prompts.
    ///
    /// # Errors
    /// What was expected, if there is no address space `I/O` or `memory` in it.
    pub fn parse(text: &str) -> Result<DeviceMap, String> {
        let mut map = DeviceMap::default();
        let mut space = Space::Other;
        for line in text.lines().map(str::trim) {
            if line.starts_with("FlatView #") {
                space = Space::Other;
            } else if let Some(name) = line.strip_prefix("AS \"") {
                match name.split('"').next() {
                    Some("I/O") => space = Space::Ports,
                    Some("memory") => space = Space::Memory,
                    _ => {}
                }
            } else if let Some(range) = range(line) {
                match space {
                    Space::Ports if map.ports.len() < MAX_RANGES => map.ports.push(range),
                    Space::Memory if map.memory.len() < MAX_RANGES => map.memory.push(range),
                    _ => {}
                }
            }
        }
        if map == DeviceMap::default() {
            return Err(
                "it has no flat view of an address space (I/O or memory); expected the output \
                of `info mtree -f` in QEMU's monitor"
                    .into(),
            );
        }
        map.ports.sort_by_key(|r| r.first);
        map.memory.sort_by_key(|r| r.first);
        Ok(map)
    }

    /// The device at a port; none where nothing answers.
    pub fn port(&self, port: u32) -> Option<&str> {
        // The container itself: reads give all ones, writes go nowhere.
        find(&self.ports, u64::from(port)).filter(|device| *device != "io")
    }

    /// The device at a guest-physical address.
    pub fn address(&self, address: u64) -> Option<&str> {
        find(&self.memory, address)
    }
}

fn find(ranges: &[Range], address: u64) -> Option<&str> {
    let after = ranges.partition_point(|r| r.first <= address);
    let range = ranges.get(after.checked_sub(1)?)?;
    (address <= range.last).then_some(range.device.as_str())
}

/// `0000…40-0000…43 (prio 0, i/o): pit @0000…2 KVM`.
fn range(line: &str) -> Option<Range> {
    let (addresses, rest) = line.split_once(" (prio ")?;
    let (first, last) = addresses.split_once('-')?;
    let (_, device) = rest.split_once("): ")?;
    let device = device.split(" @0").next()?.split(" KVM").next()?.trim();
    Some(Range {
        first: u64::from_str_radix(first, 16).ok()?,
        last: u64::from_str_radix(last, 16).ok()?,
        device: device.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAP: &str = "(qemu) info mtree -f\r\nFlatView #0\n AS \"memory\", root: system\n \
        AS \"cpu-memory-0\", root: system\n Root memory region: system\n  \
        0000000000000000-000000000009ffff (prio 0, ram): pc.ram KVM\n  \
        00000000fec00000-00000000fec00fff (prio 0, i/o): ioapic\n\nFlatView #1\n \
        AS \"I/O\", root: io\n Root memory region: io\n  \
        0000000000000071-0000000000000071 (prio 0, i/o): rtc @0000000000000001\n  \
        0000000000000072-000000000000007d (prio 0, i/o): io @0000000000000072\n  \
        00000000000001f0-00000000000001f7 (prio 0, i/o): ide\n";

    #[test]
    fn a_map_names_devices() {
        let map = DeviceMap::parse(MAP).expect("a map");
        assert_eq!(map.port(0x71), Some("rtc"));
        assert_eq!(map.port(0x72), None, "nothing answers there");
        assert_eq!(map.port(0x1f7), Some("ide"));
        assert_eq!(map.port(0x1f8), None);
        assert_eq!(map.address(0xfec00010), Some("ioapic"));
        assert_eq!(map.address(0x1000), Some("pc.ram"));
        assert!(DeviceMap::parse("address-space: memory\n").unwrap_err().contains("mtree -f"));
    }

    proptest! {
        #[test]
        fn any_text(text in "(FlatView #1\n|AS \"I/O\"\n|[0-9a-f-]{0,40}|\\(prio 0, i/o\\): |.|\n){0,60}") {
            if let Ok(map) = DeviceMap::parse(&text) {
                map.port(0x40);
                map.address(u64::MAX);
            }
        }
    }
}
