//! Guests of a few instructions, and what is said of them.

use crate::common::{text, Lab, Ran};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where an image is loaded, and where its code begins: after the multiboot header.
pub const BASE: u32 = 0x10_0000;
pub const CODE: u32 = BASE + 12;

/// A 32-bit ELF file that QEMU's multiboot loader starts in protected mode.
pub fn image(code: &[u8]) -> Vec<u8> {
    pub const OFFSET: u32 = 0x1000;
    pub const MAGIC: u32 = 0x1bad_b002;
    let mut body: Vec<u8> = [MAGIC, 0, MAGIC.wrapping_neg()].map(u32::to_le_bytes).concat();
    body.extend(code);
    let size = body.len() as u32;
    let mut file = b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x03\0".to_vec();
    // Version, entry, program headers, section headers, flags.
    file.extend([1, CODE, 52, 0, 0].map(u32::to_le_bytes).concat());
    file.extend([52u16, 32, 1, 40, 0, 0].map(u16::to_le_bytes).concat());
    file.extend([1, OFFSET, BASE, BASE, size, size, 5, 0x1000].map(u32::to_le_bytes).concat());
    file.resize(OFFSET as usize, 0);
    file.extend(body);
    file
}

/// `out` of a byte.
pub fn outb(port: u16, value: u8) -> Vec<u8> {
    let [low, high] = port.to_le_bytes();
    vec![0x66, 0xba, low, high, 0xb0, value, 0xee]
}

/// `out` of two bytes.
pub fn outw(port: u16, value: u16) -> Vec<u8> {
    let ([a, b], [c, d]) = (port.to_le_bytes(), value.to_le_bytes());
    vec![0x66, 0xba, a, b, 0x66, 0xb8, c, d, 0x66, 0xef]
}

/// Waits for ever.
pub const HANG: [u8; 4] = [0xfa, 0xf4, 0xeb, 0xfd];

/// ACPI's S5 on the boards that SeaBIOS sets up (PM1a control at 0x604).
pub fn power_off() -> Vec<u8> {
    [outw(0x604, 0x2000), HANG.to_vec()].concat()
}

/// An empty table of interrupts, and one that needs it.
pub fn triple_fault() -> Vec<u8> {
    let table = (CODE + 8).to_le_bytes();
    [&[0x0f, 0x01, 0x1d], &table[..], &[0xcc], &[0; 8]].concat()
}

/// Text on the first serial port.
pub fn say(text: &str) -> Vec<u8> {
    text.bytes().flat_map(|byte| outb(0x3f8, byte)).collect()
}

/// A lab with one image a guest, or none where QEMU is missing.
pub struct Guests {
    pub lab: Lab,
}

impl Guests {
    pub fn new() -> Option<Self> {
        if Command::new("qemu-system-x86_64").arg("-version").output().is_err() {
            eprintln!("skipped: needs QEMU");
            return None;
        }
        Some(Guests { lab: Lab::new() })
    }

    pub fn image(&self, name: &str, code: &[u8]) -> PathBuf {
        let path = self.lab.path(name);
        std::fs::write(&path, image(code)).expect("scratch space");
        path
    }

    /// One boot of an image by vmeter's own command line. The module is none that it needs: it
    /// keeps vmeter from making an initial RAM disk.
    pub fn boot(&self, kernel: &Path, more: &[&str]) -> Ran {
        let kernel = text(kernel);
        let mut all = vec!["boot", "--accel", "tcg", "--kernel", kernel, "--initrd", kernel];
        all.extend(ONCE);
        all.extend(more);
        self.lab.run(&all)
    }

    /// One boot of QEMU's own command line.
    pub fn own(&self, options: &[&str], qemu: &[&str]) -> Ran {
        let mut all = vec!["boot"];
        all.extend(ONCE.iter().filter(|_| !options.contains(&"--runs")));
        all.extend(options);
        all.extend(["--", "qemu-system-x86_64", "-nodefaults", "-display", "none", "-no-reboot"]);
        all.extend(qemu);
        self.lab.run(&all)
    }
}

pub const ONCE: [&str; 4] = ["--warmup", "0", "--runs", "1"];

/// The answer of a report: its first lines, below its title if it has one.
pub fn headline(ran: &Ran) -> String {
    // A title is `vmeter COMMAND`; a sentence may begin so, too.
    let is_title = |line: &&str| line.starts_with("vmeter ") && line.split(' ').count() == 2;
    let lines = ran.stdout.lines().skip_while(is_title);
    lines.take_while(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

/// A run that ended badly: exit status 1, no time of a boot, and its cause in the headline.
pub fn assert_bad(name: &str, ran: &Ran, said: &str) {
    let headline = headline(ran);
    println!("{name:<40} rc {} {headline}", ran.status);
    assert_eq!(ran.status, 1, "{name}: {}\n{}", ran.stderr, ran.stdout);
    assert!(headline.starts_with("No run reached its end"), "{name}: {headline}");
    assert!(headline.contains(said), "{name}: {headline}\n{}", ran.stderr);
    assert!(
        !ran.stdout.contains("from the VMM's exec to its exit after power-off"),
        "{name}: {}",
        ran.stdout
    );
}
