//! Firmware that finds nothing to boot, by what it shows on the console.

use vmeter_model::expression::compiled;

/// What firmware says when it found nothing to boot and waits for ever: SeaBIOS (src/boot.c,
/// without a time to try again after), EDK2's boot manager, and its shell once its script is done.
pub(crate) const NOTHING_TO_BOOT: &str =
    r"No bootable device\.\s*$|BdsDxe: No bootable option or device was found|^Shell> *$";

/// True for a line in which firmware says so.
pub(crate) fn says_nothing_to_boot(line: &str) -> bool {
    compiled(NOTHING_TO_BOOT).is_some_and(|pattern| pattern.is_match(line))
}

/// A line as a terminal shows it: what was rubbed out (iPXE's prompt) is gone.
pub(crate) fn as_shown(line: &str) -> String {
    let mut shown: Vec<char> = Vec::new();
    let mut at = 0_usize;
    for c in line.chars() {
        if c == '\u{8}' {
            at = at.saturating_sub(1);
            continue;
        }
        shown.truncate(at);
        shown.push(c);
        at += 1;
    }
    shown.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn firmware_says_that_there_is_nothing_to_boot() {
        let prompt = "Press Ctrl-B for iPXE...\u{8} \u{8}\u{8} \u{8}";
        let rubbed_out = format!("{prompt}{}No bootable device.", "\u{8} \u{8}".repeat(40));
        assert!(as_shown(&rubbed_out).ends_with("No bootable device."));
        assert!(as_shown(&rubbed_out).starts_with("No "), "{}", as_shown(&rubbed_out));
        for line in
            [rubbed_out.as_str(), "BdsDxe: No bootable option or device was found.", "Shell> "]
        {
            assert!(says_nothing_to_boot(line), "{line}");
        }
        for line in ["No bootable device.  Retrying in 60 seconds.", "busybox Shell> x", "$ "] {
            assert!(!says_nothing_to_boot(line), "{line}");
        }
    }
}
