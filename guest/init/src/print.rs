//! Known amounts of text on consoles, and programs with arguments.

use crate::sys::{self, Errno};
use crate::text::{any_number, Text};
use core::ffi::CStr;

/// Written at a time, bytes.
const CHUNK: usize = 4096;
/// A program and its arguments.
const WORDS: usize = 7;

/// Prints `bytes` characters; it is done when they are sent.
#[inline(never)]
pub fn print(to: &[u8], bytes: u64) -> Result<(), Errno> {
    let text = [b'x'; CHUNK];
    let port = |number: &[u8]| any_number(number).and_then(|n| u16::try_from(n).ok());
    let ports = [(to.strip_prefix(b"outb-"), false), (to.strip_prefix(b"outsb-"), true)];
    for (number, together) in ports {
        if let Some(port) = number.and_then(port) {
            return chunks(bytes, |n| sys::write_port_bytes(port, &text[..n], together));
        }
    }
    let mut path = Text::<128>::new();
    path.push(b"/dev/").push(to);
    let terminal = sys::open(path.c_str(), sys::O_WRONLY | sys::O_CLOEXEC)?;
    let _ = chunks(bytes, |n| {
        sys::write(terminal, &text[..n]);
        Ok(())
    });
    sys::write(terminal, b"\n");
    let result = sys::drain(terminal);
    sys::close(terminal);
    result
}

fn chunks(mut left: u64, each: impl Fn(usize) -> Result<(), Errno>) -> Result<(), Errno> {
    while left > 0 {
        let n = left.min(CHUNK as u64);
        each(n as usize)?;
        left -= n;
    }
    Ok(())
}

/// Runs `PATH[,ARGUMENT]…`; what is beyond seven words is left out.
#[inline(never)]
pub fn run(command: &[u8]) -> Result<(), Errno> {
    let mut texts = [const { None::<Text<128>> }; WORDS];
    for (text, word) in texts.iter_mut().zip(command.split(|&b| b == b',')) {
        text.insert(Text::new()).push(word);
    }
    let mut words = [c"" as &CStr; WORDS];
    let mut count = 0;
    for text in texts.iter().flatten() {
        words[count] = text.c_str();
        count += 1;
    }
    sys::run(&words[..count])
}
