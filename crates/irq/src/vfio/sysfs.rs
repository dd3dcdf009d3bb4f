//! What /sys says of a device: its group, its driver, and what has to be typed to change it.

use super::error::VfioError;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// The driver that hands devices to user space.
const DRIVER: &str = "vfio-pci";

/// A PCI address, spelled as /sys does.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Address(String);

impl TryFrom<String> for Address {
    type Error = VfioError;

    fn try_from(text: String) -> Result<Self, VfioError> {
        Address::parse(&text)
    }
}

impl From<Address> for String {
    fn from(address: Address) -> String {
        address.0
    }
}

impl Address {
    /// Reads `0000:01:00.1`, or `01:00.1` in domain 0.
    ///
    /// # Errors
    /// [`VfioError::Address`].
    pub fn parse(text: &str) -> Result<Self, VfioError> {
        let wrong = || VfioError::Address(text.chars().take(64).collect());
        let (rest, function) = text.rsplit_once('.').ok_or_else(wrong)?;
        let mut numbers: Vec<&str> = rest.split(':').collect();
        if numbers.len() == 2 {
            numbers.insert(0, "0000");
        }
        let hex = |text: &str, digits: usize, most: u32| {
            let fits = (1..=digits).contains(&text.len());
            let plain = text.bytes().all(|b| b.is_ascii_hexdigit());
            let value = u32::from_str_radix(text, 16).ok().filter(|_| fits && plain);
            value.filter(|value| *value <= most).ok_or_else(wrong)
        };
        let [domain, bus, device] = numbers[..] else { return Err(wrong()) };
        Ok(Address(format!(
            "{:04x}:{:02x}:{:02x}.{:x}",
            hex(domain, 8, u32::MAX)?,
            hex(bus, 2, 0xff)?,
            hex(device, 2, 0x1f)?,
            hex(function, 1, 7)?
        )))
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The kernel's view of PCI devices.
#[derive(Debug, Clone)]
pub(super) struct Sysfs {
    devices: PathBuf,
}

impl Default for Sysfs {
    fn default() -> Self {
        Sysfs { devices: "/sys/bus/pci/devices".into() }
    }
}

/// The last part of a link's target.
fn link_name(link: &Path) -> Option<String> {
    Some(fs::read_link(link).ok()?.file_name()?.to_str()?.to_owned())
}

impl Sysfs {
    /// The IOMMU group of a device that VFIO may use.
    ///
    /// # Errors
    /// Whatever is in the way, with what mends it.
    pub(super) fn group(&self, address: &Address) -> Result<u32, VfioError> {
        let device = self.devices.join(address.as_str());
        let name = address.to_string();
        if !device.exists() {
            return Err(VfioError::NoDevice {
                hint: self.virtual_functions(address),
                address: name,
            });
        }
        let group = link_name(&device.join("iommu_group"));
        let Some(group) = group.and_then(|group| group.parse().ok()) else {
            return Err(VfioError::NoGroup { address: name });
        };
        let driver = link_name(&device.join("driver"));
        if driver.as_deref() != Some(DRIVER) {
            let commands = bind_commands(&name, driver.is_some());
            return Err(VfioError::NotBound { address: name, driver, commands });
        }
        Ok(group)
    }

    /// Devices of the same group that keep VFIO from using it, as `address (driver)`.
    /// Bridges are no obstacle.
    pub(super) fn obstacles(&self, address: &Address) -> (Vec<String>, String) {
        let members = self.devices.join(address.as_str()).join("iommu_group/devices");
        let members = fs::read_dir(members).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            members.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        let (mut others, mut commands) = (Vec::new(), Vec::new());
        for name in names {
            let driver = link_name(&self.devices.join(&name).join("driver"));
            let Some(driver) = driver.filter(|d| d != DRIVER && d != "pcieport") else { continue };
            commands.push(bind_commands(&name, true));
            others.push(format!("{name} ({driver})"));
        }
        (others, commands.join("; "))
    }

    /// If a device of the same slot could have virtual functions, the command that makes them.
    fn virtual_functions(&self, address: &Address) -> String {
        let Some((bus, _)) = address.as_str().rsplit_once(':') else { return String::new() };
        let entries = fs::read_dir(&self.devices).into_iter().flatten().flatten();
        let mut able: Vec<String> = entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| name.starts_with(bus))
            .filter(|name| self.devices.join(name).join("sriov_numvfs").exists())
            .collect();
        able.sort();
        able.first().map_or(String::new(), |physical| {
            let total = fs::read_to_string(self.devices.join(physical).join("sriov_totalvfs"));
            let total = total.unwrap_or_default();
            format!(
                "; to create it as a virtual function of {physical}: `echo {} | sudo tee \
                 /sys/bus/pci/devices/{physical}/sriov_numvfs`",
                if total.trim().is_empty() { "1" } else { total.trim() }
            )
        })
    }
}

fn bind_commands(address: &str, bound: bool) -> String {
    let device = format!("/sys/bus/pci/devices/{address}");
    let mut commands = vec![
        "sudo modprobe vfio-pci".to_owned(),
        format!("echo vfio-pci | sudo tee {device}/driver_override"),
    ];
    if bound {
        commands.push(format!("echo {address} | sudo tee {device}/driver/unbind"));
    }
    commands.push(format!("echo {address} | sudo tee /sys/bus/pci/drivers_probe"));
    commands.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::symlink;

    struct Fake(tempfile::TempDir);

    impl Fake {
        fn new() -> Self {
            Fake(tempfile::tempdir().unwrap())
        }

        fn sysfs(&self) -> Sysfs {
            Sysfs { devices: self.0.path().join("devices") }
        }

        fn device(&self, address: &str, group: Option<u32>, driver: Option<&str>) -> PathBuf {
            let folder = self.0.path().join("devices").join(address);
            fs::create_dir_all(&folder).unwrap();
            if let Some(group) = group {
                let target = self.0.path().join("iommu_groups").join(group.to_string());
                fs::create_dir_all(target.join("devices").join(address)).unwrap();
                symlink(&target, folder.join("iommu_group")).unwrap();
            }
            if let Some(driver) = driver {
                symlink(self.0.path().join("drivers").join(driver), folder.join("driver")).unwrap();
            }
            folder
        }
    }

    fn address(text: &str) -> Address {
        Address::parse(text).unwrap()
    }

    #[test]
    fn each_obstacle_names_what_mends_it() {
        let fake = Fake::new();
        let pf = fake.device("0000:01:00.0", Some(3), Some("nvme"));
        fs::write(pf.join("sriov_numvfs"), "0\n").unwrap();
        fs::write(pf.join("sriov_totalvfs"), "8\n").unwrap();
        let error = |at: &str| fake.sysfs().group(&address(at)).unwrap_err().to_string();
        let missing = error("01:00.1");
        assert!(missing.contains("echo 8 | sudo tee") && missing.contains("sriov_numvfs"));
        let bound = error("01:00.0");
        assert!(bound.contains("bound to nvme") && bound.contains("driver/unbind"), "{bound}");
        fake.device("0000:02:00.0", None, Some("vfio-pci"));
        assert!(error("02:00.0").contains("intel_iommu=on"));
        fake.device("0000:03:00.0", Some(4), None);
        let free = error("03:00.0");
        assert!(free.contains("bound to no driver") && !free.contains("unbind"), "{free}");
        fake.device("0000:04:00.0", Some(5), Some("vfio-pci"));
        assert_eq!(fake.sysfs().group(&address("04:00.0")).unwrap(), 5);
    }

    #[test]
    fn who_keeps_a_group_from_being_used_is_named() {
        let fake = Fake::new();
        fake.device("0000:05:00.0", Some(7), Some("vfio-pci"));
        fake.device("0000:05:00.1", Some(7), Some("snd_hda_intel"));
        fake.device("0000:05:00.2", Some(7), Some("pcieport"));
        let (others, commands) = fake.sysfs().obstacles(&address("05:00.0"));
        assert_eq!(others, ["0000:05:00.1 (snd_hda_intel)"]);
        assert!(commands.contains("0000:05:00.1/driver_override"));
    }

    #[test]
    fn addresses() {
        assert_eq!(address("1:0.1").as_str(), "0000:01:00.1");
        assert_eq!(address("10000:E1:1f.7").as_str(), "10000:e1:1f.7");
        for wrong in ["", "01:00", "0000:01:00.8", "0000:01:20.0", "zz:00.0", "1:2:3:4.0", "+1:0.0"]
        {
            assert!(Address::parse(wrong).unwrap_err().is_usage(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_an_address_or_refused(text in "\\PC{0,24}") {
            if let Ok(address) = Address::parse(&text) {
                prop_assert_eq!(Address::parse(address.as_str()).unwrap(), address);
            }
        }
    }
}
