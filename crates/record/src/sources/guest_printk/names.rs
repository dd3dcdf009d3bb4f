//! Names for the addresses that a kernel without `CONFIG_KALLSYMS` logs: those of its own build,
//! where the user gave one (`--symbols`, or a kernel file that has symbols).

use super::Recording;
use crate::guest_ram::failed;
use crate::recorder::SourceError;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use vmeter_kernel_image::printk::PrintkRecord;
use vmeter_kernel_image::{same_build, BuildSymbols};
use vmeter_model::{kernel_log, Event, EventKind};

/// A line for each address: the address, and its name.
pub(super) const FILE: &str = "guest-printk-names.txt";

/// Names by address.
pub(super) type Names = BTreeMap<u64, String>;

/// The names of the addresses in a log; none where it has no addresses, or nobody gave symbols.
///
/// # Errors
/// When the symbols that were given are not of the kernel that ran.
pub(super) fn of(
    recording: &Recording,
    records: &[PrintkRecord],
) -> Result<Option<Names>, SourceError> {
    let own = records.iter().filter(|record| record.by_kernel);
    let addresses: BTreeSet<u64> =
        own.filter_map(|record| same_build::unnamed(&record.text)).collect();
    if addresses.is_empty() {
        return Ok(None);
    }
    let Some(given) = &recording.symbols else {
        // Most kernel files have no symbols that the kernel itself has not.
        let build = recording.image.as_deref().and_then(|path| BuildSymbols::open(path).ok());
        return Ok(build.and_then(|build| build.names(&addresses).ok()));
    };
    let named = BuildSymbols::open(given).and_then(|build| build.names(&addresses));
    named.map(Some).map_err(|error| {
        SourceError::Other(format!(
            "--symbols {}: vmeter shows addresses in place of the names of initcalls: {}",
            given.display(),
            failed(error)
        ))
    })
}

pub(super) fn to_text(names: &Names) -> String {
    names.iter().fold(String::new(), |mut text, (address, name)| {
        let _ = writeln!(text, "{address:x} {name}");
        text
    })
}

pub(super) fn parse(text: &str) -> Names {
    let line = |line: &str| {
        let (address, name) = line.split_once(' ')?;
        Some((u64::from_str_radix(address, 16).ok()?, name.to_owned()))
    };
    text.lines().filter_map(line).collect()
}

/// Puts the names into lines of the log and of the console.
pub(super) fn put(names: &Names, events: &mut [Event]) {
    if names.is_empty() {
        return;
    }
    for event in events {
        let text = match &mut event.what {
            EventKind::KernelLine { text, by_program: false } => text,
            // Pieces of a line that came one after another are told by their places in it.
            EventKind::ConsoleLine { text, later, .. } if later.is_empty() => text,
            _ => continue,
        };
        let start = text.len() - kernel_log::split_stamp(text).1.len();
        if let Some(named) = same_build::named(&text[start..], names) {
            text.replace_range(start.., &named);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_written_is_read_again() {
        let names: Names = [(0xffff_ffff_8200_0010, "a_init".to_owned())].into();
        assert_eq!(parse(&to_text(&names)), names);
        let line = |text: &str, by_program| Event {
            at: 0,
            error_ns: 0,
            source: "guest-printk".into(),
            insns: None,
            what: EventKind::KernelLine { text: text.into(), by_program },
        };
        let said = "calling  0xffffffff82000010 @ 1";
        let mut events = [line(said, false), line(said, true)];
        put(&names, &mut events);
        assert_eq!(events, [line("calling  a_init+0x0 @ 1", false), line(said, true)]);
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "[0-9a-f \n]{0,100}") {
            let names = parse(&text);
            prop_assert_eq!(&parse(&to_text(&names)), &names);
        }
    }
}
