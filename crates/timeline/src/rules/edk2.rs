//! OVMF's stages (SEC, PEI, DXE, BDS) of a build that prints nothing, by what it asks of the
//! machine, as QEMU's trace has it.
//!
//! Checked against the code itself on one build (Debian's OVMF 2022.11, X64, q35, by the TCG
//! plugin at the addresses of its PEI core and DXE core):
//!
//! | stage | first sign of it | the stage began |
//! |---|---|---|
//! | PEI | fw_cfg's signature is read (PlatformPei) | 23 ms earlier, 1.7 % of SEC |
//! | DXE | the last time that the ACPI timer's library asks which host bridge there is; DXE drivers know it (OvmfPkg/Library/AcpiTimerLib) | 48 ms earlier, after the time before that |
//! | BDS | PCI enumeration, which it asks for (PlatformBootManagerLib): a vendor's id is read | not known; after the last DXE driver's question |

use crate::anchors::Stamp;
use crate::facts::RunIndex;
use crate::input::Seen;
use crate::lines::Hit;
use crate::patterns::On;
use vmeter_model::{EventKind, Ns};

/// Selector of fw_cfg's signature.
const SIGNATURE: u32 = 0x00;
/// Registers of PCI configuration space: vendor and device, and where the ACPI timer is, of
/// q35's and pc's chipsets.
const VENDOR_ID: u32 = 0x00;
const DEVICE_ID: u32 = 0x02;
const PM_BASE: u32 = 0x40;
/// PEI begins this share of SEC before its first sign.
const PEI_EARLIER: Ns = 40;

/// Where a stage begins: its name, when, its error, who says so.
pub(super) type Cut<'a> = (&'static str, Ns, Ns, &'a str);

/// OVMF's stages from the reset on, if it is OVMF that ran and it was seen at work.
pub(super) fn stages<'a>(facts: &RunIndex<'a>, reset: Stamp<'a>, end: Ns) -> Option<Vec<Cut<'a>>> {
    let its = |h: &&Hit<'_>| super::firmware::part_name(h.means).is_some_and(of_edk2);
    let mut said = facts.hits.iter().filter(its).peekable();
    let told = said.peek().is_some();
    // A debug build tells of its stages itself.
    if said.any(|h| h.on == On::Firmware)
        || !told && facts.hits.iter().any(|h| h.on == On::Firmware)
    {
        return None;
    }
    let inside = facts.seen.iter().filter(|s| s.at > reset.at && s.at < end);
    let asked: Vec<&Seen<'a>> = inside.filter(|s| asks(s.what)).collect();
    let first = |from: usize, is: &dyn Fn(&EventKind) -> bool| {
        let found = asked.get(from..)?.iter().position(|s| is(s.what));
        found.map(|index| index + from)
    };
    let mut cuts = vec![("bios:edk2-sec", reset.at, reset.error, reset.source)];
    let mut cut = |name, index: usize, earlier: Ns| {
        let s = asked[index];
        cuts.push((name, s.at, s.error.saturating_add(earlier), s.source));
    };
    let pei = first(0, &|w| matches!(w, EventKind::FwCfg { item: SIGNATURE, .. }))?;
    cut("bios:edk2-pei", pei, (asked[pei].at - reset.at) / PEI_EARLIER);
    let bds = first(pei, &|w| reads(w, VENDOR_ID)).unwrap_or(asked.len());
    let bridge = |s: &&Seen<'_>| reads(s.what, DEVICE_ID);
    if let Some(last) = asked[pei..bds].iter().rposition(bridge).map(|index| index + pei) {
        // By a driver, that is not asked again.
        let dxe = asked[last..bds].iter().filter(|s| reads(s.what, PM_BASE)).count() > 1;
        let before = asked[..last].iter().rfind(|s| reads(s.what, PM_BASE)).filter(|_| dxe);
        if let Some(before) = before {
            cut("bios:edk2-dxe", last, asked[last].at - before.at);
        }
    }
    // Where it prints nothing either (it loads a kernel that QEMU was given), that it asks for the
    // ACPI timer time and again is its own way alone.
    if !told && cuts.len() < 3 {
        return None;
    }
    let mut cut = |name, index: usize, earlier: Ns| {
        let s = asked[index];
        cuts.push((name, s.at, s.error.saturating_add(earlier), s.source));
    };
    if bds < asked.len() {
        cut(BDS, bds, asked[bds].at - asked[bds - 1].at);
    }
    Some(cuts)
}

/// Where OVMF connects its devices and then waits for the key of its boot menu
/// (MdeModulePkg/Universal/BdsDxe, `BdsWait`).
const BDS: &str = "bios:edk2-bds";
/// The name of that wait, of whatever firmware.
const MENU_WAIT: &str = "bios:boot-menu-wait";
const SECOND: Ns = 1_000_000_000;

/// Tells the wait for the key from the rest of BDS, whose last deed it is: OVMF waits whole
/// seconds (`GetFrontPageTimeoutFromQemu`). It may have begun as much earlier as the rest is long.
pub(super) fn menu_wait<'a>(facts: &RunIndex<'a>, cuts: &mut Vec<Cut<'a>>, end: Ns) {
    let Some(wait) = facts.menu_wait else { return };
    let wait = (wait + SECOND - 1) / SECOND * SECOND;
    let Some(bds) = cuts.iter().position(|cut| cut.0 == BDS) else { return };
    let (_, from, error, source) = cuts[bds];
    let to = cuts.get(bds + 1).map_or(end, |next| next.1);
    let rest = to - from - wait;
    if rest > 0 {
        cuts.insert(bds + 1, (MENU_WAIT, to - wait, error.saturating_add(rest), source));
    }
}

pub(crate) fn of_edk2(name: &str) -> bool {
    name.starts_with("bios:edk2-")
}

fn asks(what: &EventKind) -> bool {
    matches!(what, EventKind::FwCfg { .. } | EventKind::PciConfig { write: false, .. })
}

fn reads(what: &EventKind, wanted: u32) -> bool {
    matches!(what, EventKind::PciConfig { write: false, register, .. } if *register == wanted)
}
