//! Guests that boot over the network, and such as only try to: lines of real ones.

use crate::common;

use common::{event, record, MS, US};
use vmeter_model::{Event, EventKind, Ns, Timeline};
use vmeter_timeline::{build, causes, verify};

/// From POST to iPXE's DHCP, by QEMU's own option ROM on `-machine pc`.
const ROM: &[(Ns, Ns, &str)] = &[
    (133, 133, "SeaBIOS (version 1.16.2-debian-1.16.2-1)"),
    (147, 152, "iPXE (http://ipxe.org) 00:03.0 CA00 PCI2.10 PnP PMM+1EFCF160+1EF0F160 CA00"),
    (152, 162, "Press Ctrl-B to configure iPXE (PCI 00:03.0)..."),
    (164, 172, "Booting from Hard Disk..."),
    (172, 175, "Boot failed: could not read the boot disk"),
    (252, 254, "Booting from ROM..."),
    (254, 333, "iPXE (PCI 00:03.0) starting execution...ok"),
    (333, 368, "iPXE initialising devices...ok"),
    (368, 381, "iPXE 1.0.0+git-20190125.36a4c85-5.1 -- Open Source Network Boot Firmware"),
];
const PROMPT: &str = "Press Ctrl-B for the iPXE command line...\u{8} \u{8}";
const OPEN: &str = "net0: 52:54:00:12:34:56 using virtio-net on 0000:00:03.0 (open)";
const BDS_STARTS: &str = "BdsDxe: starting Boot0001 \"UEFI PXEv4\" from PciRoot";
const DHCP: (Ns, Ns, &str) = (2_495, 5_679, "Configuring (net0 52:54:00:12:34:56)...... ok");
const KERNEL: &[(Ns, Ns, &str)] = &[
    (13_255, 13_338, "Probing EDD (edd=off to disable)... o"),
    (14_713, 14_713, "[    0.000000] Linux version 6.1.0-56-cloud-amd64"),
    (14_714, 14_714, "[    0.000000] Command line: BOOT_IMAGE=vmlinuz console=ttyS0"),
];

fn console(lines: &[(Ns, Ns, &str)]) -> Vec<Event> {
    let line = |(at, end, text): &(Ns, Ns, &str)| {
        let what =
            EventKind::ConsoleLine { text: (*text).into(), end: end * MS, later: Vec::new() };
        event(at * MS, 200 * US, "console", what)
    };
    lines.iter().map(line).collect()
}

/// The prompt, which `next` is written over once nobody has answered.
fn prompt(at: Ns, until: Ns, next: &str) -> Event {
    let later = vec![(u32::try_from(PROMPT.len()).unwrap(), until * MS)];
    let what =
        EventKind::ConsoleLine { text: format!("{PROMPT}{next}"), end: (until + 8) * MS, later };
    event(at * MS, 200 * US, "console", what)
}

fn by_rom(rest: &[(Ns, Ns, &str)]) -> Vec<Event> {
    let mut events = console(&[ROM, &[DHCP], rest].concat());
    events.push(prompt(389, 2_461, OPEN));
    let running = EventKind::RunState { state: "running".into() };
    events.push(event(101 * MS, 0, "qemu-trace", running));
    events
}

fn timeline(events: &[Event]) -> Timeline {
    let timeline = build(events, &record(18_000 * MS));
    assert_eq!(verify(&timeline), Ok(()));
    timeline
}

/// Begin and end of the spans of a name, ms.
fn spans(timeline: &Timeline, name: &str) -> Vec<(Ns, Ns)> {
    let own = timeline.spans.iter().filter(|s| s.name == name);
    own.map(|s| (s.start / MS, s.end / MS)).collect()
}

fn ids(timeline: &Timeline) -> Vec<&'static str> {
    causes(timeline).iter().map(|cause| cause.cause.id).collect()
}

const PXELINUX: &[(Ns, Ns, &str)] = &[
    (5_703, 5_719, "tftp://10.0.2.2/pxelinux.0... ok"),
    (5_720, 5_787, "pxelinux.0 : 42430 bytes [PXE-NBP]"),
    (5_808, 5_830, "PXELINUX 6.04 PXE 20200816 Copyright (C) 1994-2015 H. Peter Anvin et al"),
    (5_991, 12_851, "Loading vmlinuz...Loading vmlinuz...  ookk"),
    (12_851, 13_235, "Loading initrd.gz..Loading initrd.gz....ookk"),
];

#[test]
fn an_option_rom_that_boots_is_the_boot_loader() {
    let mut events = by_rom(&[PXELINUX, KERNEL].concat());
    // What it has loaded is where a BIOS puts a disk's sector.
    let sector = EventKind::Reached { symbol: "boot-sector".into() };
    events.push(event(5_783 * MS, 0, "tcg-plugin", sector));
    let timeline = timeline(&events);
    assert_eq!(spans(&timeline, "boot-loader")[0], (254, 13_255));
    assert_eq!(spans(&timeline, "bios:option-roms"), [(147, 254)]);
    assert_eq!(spans(&timeline, "ipxe:prompt"), [(389, 2_461)]);
    assert_eq!(spans(&timeline, "ipxe:network"), [(2_461, 5_703)]);
    assert_eq!(spans(&timeline, "ipxe:download")[0], (5_703, 5_808));
    assert_eq!(spans(&timeline, "syslinux:start"), [(5_808, 5_991)]);
    assert_eq!(spans(&timeline, "syslinux:load vmlinuz"), [(5_991, 12_851)]);
    assert_eq!(spans(&timeline, "syslinux:load initrd.gz"), [(12_851, 13_235)]);
    assert_eq!(ids(&timeline), ["ipxe-prompt"], "without its ROM it does not boot");
}

#[test]
fn a_script_of_ipxe_gets_files_one_after_the_other() {
    let script: &[(Ns, Ns, &str)] = &[
        (5_827, 5_852, "tftp://10.0.2.2/direct.ipxe... ok"),
        (5_887, 7_163, "vmlinuz... 72%\u{8}\u{8}\u{8}    \u{8}\u{8}\u{8} ok"),
        (7_163, 7_278, "initrd.gz... ok"),
    ];
    let timeline = timeline(&by_rom(&[script, KERNEL].concat()));
    assert_eq!(spans(&timeline, "ipxe:download vmlinuz"), [(5_887, 7_163)]);
    assert_eq!(spans(&timeline, "ipxe:download initrd.gz"), [(7_163, 7_278)]);
    assert_eq!(spans(&timeline, "ipxe:download")[0], (5_827, 13_255));
}

/// Nothing to boot was on the network, and the disk was next.
fn in_vain() -> Vec<Event> {
    let mut events = by_rom(&[
        (5_700, 5_720, "Nothing to boot: No such file or directory (http://ipxe.org/2d03e13b)"),
        (5_720, 5_725, "No more network devices"),
        (7_795, 7_803, "GRUB loading..."),
        (7_853, 7_860, "Welcome to GRUB!"),
        (9_048, 9_049, "Loading Linux 6.1.0-50-cloud-amd64 ..."),
        (10_105, 10_106, "Loading initial ramdisk ..."),
        (14_713, 14_713, "[    0.000000] Linux version 6.1.0-56-cloud-amd64"),
    ]);
    events.push(prompt(5_725, 7_795, ""));
    events
}

#[test]
fn an_option_rom_that_boots_nothing_is_the_firmwares() {
    let found = timeline(&in_vain());
    assert_eq!(spans(&found, "bios:network-boot"), [(254, 7_795)]);
    assert_eq!(spans(&found, "boot-loader")[0].0, 7_795);
    assert_eq!(spans(&found, "ipxe:network"), []);
    assert_eq!(ids(&found), ["option-roms", "grub-load"]);
    // Of a VMM that tells nothing, too.
    let mut events = in_vain();
    events.retain(|e| e.source == "console");
    let found = timeline(&events);
    assert_eq!(spans(&found, "bios:network-boot"), [(254, 7_795)]);
    assert!(ids(&found).contains(&"option-roms"));
}

#[test]
fn a_firmware_that_goes_on_says_so_on_its_own_port() {
    let mut events = by_rom(&[(14_713, 14_713, "[    0.000000] Linux version 6.1.0")]);
    let text = "Booting from 0000:7c00".to_owned();
    events.push(event(7_795 * MS, MS, "firmware", EventKind::FirmwareLine { text }));
    let timeline = timeline(&events);
    assert_eq!(spans(&timeline, "bios:network-boot"), [(254, 7_795)]);
    assert_eq!(ids(&timeline), ["option-roms"]);
}

#[test]
fn a_loader_in_the_place_of_a_kernel_is_none() {
    let lines: &[(Ns, Ns, &str)] = &[
        (242, 250, "Booting from ROM..."),
        (595, 1_700, "iPXE initialising devices...ok"),
        (1_725, 1_730, "iPXE 1.0.0+ -- Open Source Network Boot Firmware"),
        (6_884, 6_895, "tftp://10.0.2.2/direct.ipxe... ok"),
    ];
    let mut events = console(&[lines, KERNEL].concat());
    for (at, item) in [(230, 0x17), (235, 0x11), (240, 0x15)] {
        let what = EventKind::FwCfg { item, bytes: 1 };
        events.push(event(at * MS, 0, "qemu-trace", what));
    }
    let reached = EventKind::Reached { symbol: "bzimage-setup".into() };
    events.push(event(241 * MS, 0, "tcg-plugin", reached));
    let timeline = timeline(&events);
    assert_eq!(spans(&timeline, "boot-loader")[0], (240, 13_255));
    assert_eq!(spans(&timeline, "ipxe:download direct.ipxe"), [(6_884, 6_895)]);
    let kernel = |s: &&vmeter_model::Span| s.name.starts_with("kernel:") && s.name != "kernel:load";
    let first = timeline.spans.iter().filter(kernel).map(|s| s.start / MS).min();
    assert_eq!(first, Some(13_255));
}

#[test]
fn uefi_that_loads_over_the_network_boots_by_it() {
    let lines: &[(Ns, Ns, &str)] = &[
        (3_000, 3_001, "BdsDxe: loading Boot0001 \"UEFI PXEv4 (MAC:525400123456)\" from PciRoot"),
        (3_010, 3_020, ">>Start PXE over IPv4."),
        (6_000, 6_001, "  NBP filename is grubnet.efi"),
        (6_500, 6_501, "BdsDxe: starting Boot0001 \"UEFI PXEv4 (MAC:525400123456)\" from PciRoot"),
        (6_600, 6_601, "Welcome to GRUB!"),
        (9_000, 9_001, "[    0.000000] Linux version 6.1.0"),
    ];
    let mut events = console(lines);
    let running = EventKind::RunState { state: "running".into() };
    events.push(event(101 * MS, 0, "qemu-trace", running));
    let found = timeline(&events);
    assert_eq!(spans(&found, "bios:network-load"), [(3_010, 6_500)]);
    assert_eq!(ids(&found), Vec::<&str>::new());
    let failed = "BdsDxe: failed to load Boot0001 \"UEFI PXEv4\" from PciRoot: Not Found";
    events.extend(console(&[(6_400, 6_401, failed)]));
    let found = timeline(&events);
    assert_eq!(spans(&found, "bios:network-boot"), [(3_010, 6_400)]);
    assert_eq!(ids(&found), ["option-roms"]);
}

#[test]
fn uefi_whose_driver_is_ipxe_boots_by_it() {
    let lines: &[(Ns, Ns, &str)] = &[
        (
            3_690,
            3_691,
            "BdsDxe: failed to load Boot0001 \"UEFI QEMU DVD-ROM\" from PciRoot: Not Found",
        ),
        (3_695, 3_699, "iPXE 1.0.0+git-20190125.36a4c85-5.1 -- Open Source Network Boot Firmware"),
        (3_699, 3_702, "Features: DNS HTTP iSCSI NFS TFTP AoE EFI Menu"),
        (5_724, 8_866, "Configuring (net0 52:54:00:12:34:56)...... ok"),
        (8_889, 8_939, "tftp://10.0.2.2/grubnet.efi... ok"),
        (9_036, 9_038, "Welcome to GRUB!"),
        (13_000, 13_001, "[    0.000000] Linux version 6.1.0"),
    ];
    let mut events = console(lines);
    events.push(prompt(3_702, 5_721, OPEN));
    let running = EventKind::RunState { state: "running".into() };
    events.push(event(101 * MS, 0, "qemu-trace", running));
    let found = timeline(&events);
    assert_eq!(spans(&found, "boot-loader")[0].0, 3_695);
    assert_eq!(spans(&found, "ipxe:prompt"), [(3_702, 5_721)]);
    assert_eq!(spans(&found, "ipxe:download grubnet.efi"), [(8_889, 8_939)]);
    assert_eq!(ids(&found), ["ipxe-prompt"]);
    // It had nothing to boot, and the firmware tries by itself.
    let own = console(&[(9_000, 9_001, ">>Start PXE over IPv4."), (9_500, 9_501, BDS_STARTS)]);
    events.retain(|e| e.at < 8_800 * MS || e.at > 12_000 * MS);
    events.extend(own);
    let found = timeline(&events);
    assert_eq!(spans(&found, "bios:network-boot"), [(3_695, 9_000)]);
    assert_eq!(spans(&found, "bios:network-load"), [(9_000, 9_500)]);
}

#[test]
fn firmware_that_waits_for_the_network_waits_to_the_end() {
    let mut events = console(&[
        (3_000, 3_001, "BdsDxe: loading Boot0001 \"UEFI PXEv4\" from PciRoot"),
        (3_010, 3_020, ">>Start PXE over IPv4."),
    ]);
    let running = EventKind::RunState { state: "running".into() };
    events.push(event(101 * MS, 0, "qemu-trace", running));
    let mut run = record(18_000 * MS);
    run.outcome = vmeter_model::Outcome::TimedOut { last: String::new() };
    let found = build(&events, &run);
    assert_eq!(spans(&found, "bios:network-boot"), [(3_010, 18_000)]);
    events.push(event(17_900 * MS, 0, "process", EventKind::VmmExiting));
    let found = build(&events, &run);
    assert_eq!(spans(&found, "bios:network-boot"), [(3_010, 17_900)]);
}

#[test]
fn ovmf_waits_at_its_menu_for_as_long_as_the_command_line_says() {
    let mut events = console(&[
        (8_000, 8_001, "BdsDxe: loading Boot0001 \"UEFI Misc Device\" from PciRoot"),
        (8_100, 8_101, "BdsDxe: starting Boot0001 \"UEFI Misc Device\" from PciRoot"),
        (9_000, 9_001, "[    0.000000] Linux version 6.1.0-56-cloud-amd64"),
    ]);
    for (at, text) in
        [(110, "SecCoreStartupWithStack(0xFFFCC000, 0x820000)"), (2_000, "[Bds]Entry")]
    {
        let what = EventKind::FirmwareLine { text: text.into() };
        events.push(event(at * MS, MS, "firmware", what));
    }
    let running = EventKind::RunState { state: "running".into() };
    events.push(event(101 * MS, 0, "qemu-trace", running));
    let waits = |words: &[&str]| {
        let mut run = record(10_000 * MS);
        run.argv = words.iter().map(|word| (*word).to_owned()).collect();
        let timeline = build(&events, &run);
        assert_eq!(verify(&timeline), Ok(()));
        let wait = timeline.spans.iter().find(|s| s.name == "bios:boot-menu-wait");
        let known = ids(&timeline).contains(&"firmware-menu");
        (wait.map(|s| (s.start / MS, s.end / MS)), known)
    };
    assert_eq!(waits(&["-boot", "menu=on,splash-time=3500"]), (Some((4_000, 8_000)), true));
    for words in [
        &[][..],
        &["-boot", "splash-time=4000"],
        &["-boot", "menu=off,splash-time=4000"],
        &["-boot", "menu=on,splash-time=60000"],
    ] {
        assert_eq!(waits(words), (None, false), "{words:?}");
    }
}
