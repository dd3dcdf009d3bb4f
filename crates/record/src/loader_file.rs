//! Which file gives a kernel its words that a boot loader starts: by what the loader said on the
//! console.

use crate::stamped::Lines;
use std::io::Read;
use std::path::Path;
use vmeter_base::files;
use vmeter_model::expression::compiled;
use vmeter_model::kernel_log::split_stamp;

/// A boot loader speaks early: so much of the console is looked at, bytes.
const EARLY: u64 = 256 << 10;

/// What a loader prints (GRUB 2, SYSLINUX 6 and its kin, systemd-boot, iPXE when it boots), and
/// where it has its kernel's command line; the first that fits.
const LOADERS: &[(&str, &str)] = &[
    (
        r"GRUB loading|Welcome to GRUB!|GNU GRUB +version",
        "to GRUB_CMDLINE_LINUX in the guest's /etc/default/grub, and run update-grub there",
    ),
    (
        r"^(SYSLINUX|EXTLINUX) \d",
        "to the entry's APPEND in the guest's extlinux.conf or syslinux.cfg",
    ),
    (r"^ISOLINUX \d", "to the entry's APPEND in ISOLINUX's isolinux.cfg"),
    (r"^PXELINUX \d", "to the entry's APPEND in PXELINUX's file under pxelinux.cfg/"),
    (
        r"^Boot in \d+ s",
        "to `options` of the entry in loader/entries on the guest's ESP (if the guest boots a \
         UKI: to /etc/kernel/cmdline, then rebuild the UKI)",
    ),
    (r"^iPXE initialising devices", "to the `kernel` line of the iPXE script"),
    // systemd-boot without a menu says nothing, and a UKI needs no loader.
    (
        r"^EFI stub: ",
        "to /etc/kernel/cmdline and rebuild the UKI, or to `options` of the boot entry in \
         loader/entries on the ESP",
    ),
];

/// Where nobody said which loader it is.
const ANY: &str = "to the configuration of the guest's boot loader: to GRUB_CMDLINE_LINUX in \
                   /etc/default/grub (then run update-grub), to APPEND in extlinux.conf, or to \
                   `options` in loader/entries";

/// Where the words of a guest's kernel are, by the file of a run's console.
pub(crate) fn of_console(console: &Path) -> &'static str {
    let mut saved = Vec::new();
    let read =
        files::open_regular(console).and_then(|file| file.take(EARLY).read_to_end(&mut saved));
    match read {
        Ok(_) => {
            let lines = Lines::of(&saved).lines;
            let texts = lines.iter().map(|line| line.text.as_str());
            // What comes after the kernel's first line is no loader's.
            of_lines(texts.take_while(|text| split_stamp(text).0.is_none()))
        }
        Err(_) => ANY,
    }
}

/// True for a line by which a boot loader says who it is.
pub(crate) fn is_of_loader(line: &str) -> bool {
    let mut all = LOADERS.iter().filter_map(|(expression, _)| compiled(expression));
    all.any(|expression| expression.is_match(line.trim()))
}

fn of_lines<'a>(lines: impl Iterator<Item = &'a str> + Clone) -> &'static str {
    // A menu is drawn in the middle of its screen.
    let says = |expression: &'static str| {
        compiled(expression).is_some_and(|regex| lines.clone().any(|l| regex.is_match(l.trim())))
    };
    LOADERS.iter().find(|(expression, _)| says(expression)).map_or(ANY, |(_, file)| file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_the_loaders_own() {
        for (line, file) in [
            ("GRUB loading.", "GRUB_CMDLINE_LINUX"),
            (
                "SYSLINUX 6.04 20210613 Copyright (C) 1994-2015 H. Peter Anvin et al",
                "extlinux.conf",
            ),
            ("Boot in 3 s.", "loader/entries"),
            ("                         Boot in 4 s.            ", "UKI"),
            ("iPXE initialising devices...ok", "iPXE script"),
            ("EFI stub: Loaded initrd from LINUX_EFI_INITRD_MEDIA_GUID device path", "UKI"),
        ] {
            // An option ROM that is asked in vain says who it is, too.
            let lines = ["iPXE (http://ipxe.org) 00:03.0 C900 PCI2.10 PnP PMM", line];
            assert!(of_lines(lines.into_iter()).contains(file), "{line}");
        }
        assert_eq!(of_lines(["[    0.000000] Linux version 6.1"].into_iter()), ANY);
        for (expression, _) in LOADERS {
            assert!(regex::Regex::new(expression).is_ok(), "{expression}");
        }
    }
}
