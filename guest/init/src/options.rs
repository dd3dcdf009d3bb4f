//! The `vmeter.*` words of the kernel command line.
//!
//! The kernel keeps words with a dot from init's arguments and environment (it
//! takes them for module parameters), so they are read from `/proc/cmdline`.

use crate::steps::Steps;
use crate::sys;
use crate::text::{any_number, number, split_once};
use core::ffi::CStr;

/// How the guest ends.
#[derive(Clone, Copy)]
pub enum Exit {
    /// `reboot(POWER_OFF)`: ACPI, or a halt where there is none.
    PowerOff,
    /// `reboot(RESTART)`, for machines without power-off run with `-no-reboot`.
    Reset,
    /// A byte to QEMU's `isa-debug-exit`, whose exit status is `value * 2 + 1`.
    Debug {
        /// I/O port.
        port: u16,
        /// Byte written.
        value: u8,
    },
    /// Not at all: the host ends it.
    Stay,
}

/// Something extra to do before the guest is ready, in the order of the words.
pub enum Action<'a> {
    /// `vmeter.sleep=NAME:MS`
    Sleep {
        /// Name of the step.
        name: &'a [u8],
        /// Milliseconds.
        ms: u64,
    },
    /// `vmeter.sleep_if_ports=N:MS`
    SleepIfPorts {
        /// Sleep only with at least so many PCIe root ports.
        ports: u64,
        /// Milliseconds.
        ms: u64,
    },
    /// `vmeter.busy=MS`
    Busy {
        /// Milliseconds.
        ms: u64,
    },
    /// `vmeter.memory`
    Memory,
    /// `vmeter.run=PATH[,ARGUMENT]…`
    Run {
        /// Program in the guest and its arguments, with commas in between.
        path: &'a [u8],
    },
    /// `vmeter.print=WHERE:BYTES`
    Print {
        /// A terminal's name in `/dev`, `outb-PORT` or `outsb-PORT`.
        to: &'a [u8],
        /// How many bytes.
        bytes: u64,
    },
}

/// What the words ask for.
pub struct Options<'a> {
    words: &'a [u8],
    /// Write trace markers.
    pub markers: bool,
    /// Print `vmeter: ready`.
    pub announce: bool,
    /// Print the clocks of the planted steps.
    pub report: bool,
    /// Print the trace buffer before leaving.
    pub dump_trace: bool,
    /// Cold plug by udev.
    pub udev: bool,
    /// `KIND[:DEVICE[:TYPE[:MOUNT OPTIONS]]]`, empty for none.
    pub root: &'a [u8],
    /// KiB to read from the root's data file.
    pub read_kib: u64,
    /// How to end.
    pub exit: Exit,
    /// Planted delay of the shutdown, ms.
    pub poweroff_delay_ms: u64,
    /// Time between two signs of life once the guest is ready, ms; 0 for none.
    pub tick_ms: u64,
}

/// Room for the options file and the command line (x86's COMMAND_LINE_SIZE is 2048), bytes.
pub const WORDS: usize = 4096;

/// The options file followed by the kernel command line, as one run of words.
pub fn read_words<'b>(file: &CStr, buffer: &'b mut [u8; WORDS]) -> &'b [u8] {
    let (head, tail) = buffer.split_at_mut(WORDS / 2);
    let from_file = sys::read_file(file, &mut head[..WORDS / 2 - 1]).map_or(0, |bytes| bytes.len());
    let from_kernel = sys::read_file(c"/proc/cmdline", tail).map_or(0, |bytes| bytes.len());
    buffer[from_file] = b'\n';
    buffer.copy_within(WORDS / 2..WORDS / 2 + from_kernel, from_file + 1);
    &buffer[..from_file + 1 + from_kernel]
}

fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|&b| matches!(b, b' ' | b'\n' | b'\t')).filter(|word| !word.is_empty())
}

/// `vmeter.KEY=VALUE` as (KEY, VALUE).
fn key_and_value(word: &[u8]) -> Option<(&[u8], &[u8])> {
    Some(split_once(word.strip_prefix(b"vmeter.")?, b'='))
}

impl<'a> Options<'a> {
    /// Understands the words; what it does not understand is printed and passed over.
    pub fn parse(text: &'a [u8], steps: &mut Steps) -> Self {
        let mut options = Options {
            words: text,
            markers: words(text).any(|w| w.starts_with(b"trace_") || w.starts_with(b"ftrace")),
            announce: true,
            report: false,
            dump_trace: false,
            udev: false,
            root: b"",
            read_kib: 64,
            exit: Exit::PowerOff,
            poweroff_delay_ms: 0,
            tick_ms: 0,
        };
        for word in words(text) {
            if let Some((key, value)) = key_and_value(word) {
                if options.set(key, value).is_none() && action(key, value).is_none() {
                    steps.complain(b"not understood", word);
                }
            }
        }
        options
    }

    /// Sets one option; `None` when there is no such option or the value is wrong.
    fn set(&mut self, key: &[u8], value: &'a [u8]) -> Option<()> {
        match (key, value) {
            (b"markers", b"") => self.markers = true,
            (b"nomarkers", b"") => self.markers = false,
            (b"noready", b"") => self.announce = false,
            (b"report", b"") => self.report = true,
            (b"dump_trace", b"") => self.dump_trace = true,
            (b"init", b"minimal") => self.udev = false,
            (b"init", b"udev") => self.udev = true,
            (b"root", root) if !root.is_empty() => self.root = root,
            (b"read", kib) => self.read_kib = number(kib)?,
            (b"poweroff_delay", ms) => self.poweroff_delay_ms = number(ms)?,
            (b"tick", ms) => self.tick_ms = number(ms)?,
            (b"exit", how) => self.exit = exit(how)?,
            _ => return None,
        }
        Some(())
    }

    /// The extra steps in the order of their words.
    pub fn actions(&self) -> impl Iterator<Item = Action<'a>> {
        words(self.words).filter_map(|word| {
            let (key, value) = key_and_value(word)?;
            action(key, value)
        })
    }
}

fn action<'a>(key: &[u8], value: &'a [u8]) -> Option<Action<'a>> {
    let (first, second) = split_once(value, b':');
    match key {
        b"sleep" if !first.is_empty() => Some(Action::Sleep { name: first, ms: number(second)? }),
        b"sleep_if_ports" => {
            Some(Action::SleepIfPorts { ports: number(first)?, ms: number(second)? })
        }
        b"busy" => Some(Action::Busy { ms: number(value)? }),
        b"memory" if value.is_empty() => Some(Action::Memory),
        b"print" if !first.is_empty() => Some(Action::Print { to: first, bytes: number(second)? }),
        b"run" if value.starts_with(b"/") => Some(Action::Run { path: value }),
        _ => None,
    }
}

fn exit(how: &[u8]) -> Option<Exit> {
    match how {
        b"poweroff" => Some(Exit::PowerOff),
        b"reset" => Some(Exit::Reset),
        b"stay" => Some(Exit::Stay),
        _ => {
            let (port, value) = split_once(how.strip_prefix(b"debug:")?, b':');
            // 0x10 gives QEMU the exit status 33, which no failure of its own has.
            let value = if value.is_empty() { 0x10 } else { any_number(value)? };
            Some(Exit::Debug {
                port: u16::try_from(any_number(port)?).ok()?,
                value: u8::try_from(value).ok()?,
            })
        }
    }
}
