//! Lines of bytes that were stamped on arrival, each with the time of its own first character.

use vmeter_model::Ns;

/// Lines longer than this are cut, so that a guest cannot exhaust memory.
const MAX_LINE: usize = 64 << 10;

/// A line with the stamps of its first and last byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// When its first byte arrived, `CLOCK_MONOTONIC` ns.
    pub start: Ns,
    /// When its last byte arrived.
    pub end: Ns,
    /// Its text, invalid UTF-8 replaced, without the line end.
    pub text: String,
}

/// Makes lines of stamped bytes as they come.
///
/// What only steers a terminal is no part of a line's text, and does not begin one: a boot
/// loader ends its lines with `\n\r`, so that the carriage return comes long before the next
/// line's first character. What is written over a line (after a carriage return, or where the
/// cursor was moved to, as menus are drawn) is a line of its own, with its own time.
#[derive(Debug, Default)]
pub struct LineCutter {
    lines: Vec<Line>,
    pending: Vec<u8>,
    start: Ns,
    end: Ns,
    steering: Steering,
}

/// Where in a sequence that steers a terminal (ECMA-48) the last byte was.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Steering {
    /// In none.
    #[default]
    Text,
    /// After a carriage return: what comes next decides.
    Returned,
    /// After an escape.
    Escape,
    /// In a control sequence, after this many bytes.
    Control(u8),
}

/// A longer control sequence is text that only looks like one.
const MAX_CONTROL: u8 = 32;
const ESCAPE: u8 = 0x1b;

impl LineCutter {
    /// Adds bytes that arrived at `at`.
    pub fn push(&mut self, at: Ns, bytes: &[u8]) {
        for &byte in bytes {
            self.byte(at, byte);
        }
    }

    fn byte(&mut self, at: Ns, byte: u8) {
        match (self.steering, byte) {
            (Steering::Text | Steering::Returned, ESCAPE) => {
                self.overwritten();
                self.steering = Steering::Escape;
            }
            (Steering::Escape, b'[') => self.steering = Steering::Control(0),
            (Steering::Control(n), 0x20..=0x3f) if n < MAX_CONTROL => {
                self.steering = Steering::Control(n + 1);
            }
            // Cursor up, down, to a place; erasing.
            (Steering::Control(_), b'A' | b'B' | b'E'..=b'H' | b'J' | b'd' | b'f') => {
                self.steering = Steering::Returned;
                self.overwritten();
            }
            (Steering::Escape, 0x20..=0x7e) | (Steering::Control(_), 0x40..=0x7e) => {
                self.steering = Steering::Text;
            }
            _ => self.text(at, byte),
        }
    }

    fn text(&mut self, at: Ns, byte: u8) {
        match byte {
            b'\n' => {
                if self.pending.is_empty() {
                    self.start = at;
                }
                self.end = at;
                self.steering = Steering::Text;
                self.cut();
            }
            b'\r' => self.steering = Steering::Returned,
            _ => {
                self.overwritten();
                if self.pending.is_empty() {
                    self.start = at;
                }
                self.end = at;
                if self.pending.len() < MAX_LINE {
                    self.pending.push(byte);
                }
            }
        }
    }

    /// Ends a line that the next text is written over.
    fn overwritten(&mut self) {
        if self.steering == Steering::Returned && !self.pending.is_empty() {
            self.cut();
        }
        self.steering = Steering::Text;
    }

    fn cut(&mut self) {
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        self.lines.push(Line { start: self.start, end: self.end, text });
        self.pending.clear();
    }

    /// Takes the lines that are complete so far.
    pub fn take(&mut self) -> Vec<Line> {
        std::mem::take(&mut self.lines)
    }

    /// The text of the line that is still open (a login prompt has no line end).
    pub fn open_line(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.pending)
    }

    /// Ends the last line and returns all that are left.
    pub fn finish(mut self) -> Vec<Line> {
        if !self.pending.is_empty() {
            self.cut();
        }
        self.lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(reads: &[(Ns, &[u8])]) -> Vec<(Ns, Ns, String)> {
        let mut cutter = LineCutter::default();
        reads.iter().for_each(|(at, bytes)| cutter.push(*at, bytes));
        cutter.finish().into_iter().map(|l| (l.start, l.end, l.text)).collect()
    }

    #[test]
    fn a_line_begins_with_its_own_first_character() {
        // GRUB ends its lines with \n\r, and was silent for 3 s.
        let lines =
            cut(&[(1, b"Loading initial ramdisk ...\n\r"), (3_000, b"[    0.0] Linux\r\n")]);
        assert_eq!(lines[1], (3_000, 3_000, "[    0.0] Linux".into()));
        assert_eq!(lines.len(), 2);
        assert_eq!(cut(&[(1, b"a\r"), (2, b"\r\nb\r"), (3, b"\n")]).len(), 2);
    }

    #[test]
    fn what_is_written_over_a_line_has_its_own_time() {
        let texts = |reads: &[(Ns, &[u8])]| -> Vec<(Ns, String)> {
            cut(reads).into_iter().map(|(at, _, text)| (at, text)).collect()
        };
        let menu: &[(Ns, &[u8])] = &[
            (10, b"\x1b[2J\x1b[01;01HWelcome to GRUB!\x1b[05;80H*Debian"),
            (20, b"\x1b[22;04Hautomatically in 1s."),
            (1_000, b"\x1b[22;04Hautomatically in 0s.\r"),
            (1_100, b"Loading Linux 6.1\n"),
        ];
        let expected = [
            (10, "Welcome to GRUB!"),
            (10, "*Debian"),
            (20, "automatically in 1s."),
            (1_000, "automatically in 0s."),
            (1_100, "Loading Linux 6.1"),
        ];
        assert_eq!(texts(menu), expected.map(|(at, text)| (at, text.to_owned())));
        let coloured =
            texts(&[(1, b"[\x1b[0;32m  OK  \x1b[0m] Started \x1b[0;1;39mcron\x1b[0m.\n")]);
        assert_eq!(coloured, [(1, "[  OK  ] Started cron.".to_owned())]);
        assert_eq!(texts(&[(1, b"10 %\r"), (2, b"20 %\n")]).len(), 2);
        assert_eq!(texts(&[(1, b"a\x1b[999"), (2, b"\n")]), [(1, "a".to_owned())]);
    }
}
