//! Lines of bytes that were stamped on arrival, each with the time of its own first character.

use vmeter_model::kernel_log::split_stamp;
use vmeter_model::Ns;

/// Lines longer than this are cut, so that a guest cannot exhaust memory.
const MAX_LINE: usize = 64 << 10;

/// What arrives later than the part of its line that it would belong to is a part of its own,
/// ns: there are no more of them than ms in the run.
const PART: Ns = 1_000_000;
/// What is printed so long after a prompt is none of it, ns.
const AFTER_PROMPT: Ns = 5_000_000;
/// What an unfinished line ends with that waits for somebody: a login's, a shell's prompt.
const PROMPTS: &[&[u8]] = &[b"login: ", b"assword: ", b"# ", b"$ ", b"> "];

/// A line with the stamps of its first and last byte.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Line {
    /// When its first byte arrived, `CLOCK_MONOTONIC` ns.
    pub start: Ns,
    /// When its last byte arrived.
    pub end: Ns,
    /// Its text, invalid UTF-8 replaced, without the line end.
    pub text: String,
    /// From which byte of the text on it arrived later than what is before, and when; in order.
    pub later: Vec<(u32, Ns)>,
}

impl Line {
    /// When the byte at `offset` of the text arrived.
    pub fn at(&self, offset: usize) -> Ns {
        let parts = self.later.partition_point(|(from, _)| *from as usize <= offset);
        parts.checked_sub(1).map_or(self.start, |last| self.later[last].1)
    }
}

/// Makes lines of stamped bytes as they come.
///
/// What only steers a terminal is no part of a line's text, and does not begin one: a boot
/// loader ends its lines with `\n\r`, so that the carriage return comes long before the next
/// line's first character. What is written over a line (after a carriage return, or where the
/// cursor was moved to, as menus are drawn) is a line of its own, with its own time; and so is
/// what somebody else prints behind a prompt that nobody has answered; and, later than what is
/// before it, a line of the kernel's log and a status of systemd's.
#[derive(Debug, Default)]
pub struct LineCutter {
    lines: Vec<Line>,
    pending: Vec<u8>,
    start: Ns,
    end: Ns,
    /// Where in `pending` a later part begins, and when it arrived.
    later: Vec<(usize, Ns)>,
    steering: Steering,
    /// When the last escape arrived.
    escaped: Ns,
    /// True for a control sequence that is a 2 so far.
    two: bool,
    /// When the screen was cleared (`ESC [ 2 J`), the first so many.
    cleared: Vec<Ns>,
}

/// Whoever clears a screen more often has no menu.
const MOST_CLEARED: usize = 1_000;

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
                self.escaped = at;
            }
            (Steering::Escape, b'[') => self.steering = Steering::Control(0),
            (Steering::Control(n), 0x20..=0x3f) if n < MAX_CONTROL => {
                self.steering = Steering::Control(n + 1);
                self.two = n == 0 && byte == b'2';
            }
            // Cursor up, down, to a place; erasing.
            (Steering::Control(_), b'A' | b'B' | b'E'..=b'H' | b'J' | b'd' | b'f') => {
                if byte == b'J' && self.two && self.cleared.len() < MOST_CLEARED {
                    self.cleared.push(self.escaped);
                }
                self.two = false;
                self.steering = Steering::Returned;
                self.overwritten();
            }
            // A choice of characters (`ESC ( B`) has a byte more.
            (Steering::Escape, 0x20..=0x2f) => {}
            (Steering::Escape, 0x30..=0x7e) | (Steering::Control(_), 0x40..=0x7e) => {
                self.two = false;
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
                if at.saturating_sub(self.end) >= AFTER_PROMPT
                    && PROMPTS.iter().any(|prompt| self.pending.ends_with(prompt))
                {
                    self.cut();
                }
                if self.pending.is_empty() {
                    self.start = at;
                }
                self.end = at;
                if self.pending.len() < MAX_LINE {
                    let part = self.later.last().map_or(self.start, |(_, at)| *at);
                    if at.saturating_sub(part) >= PART {
                        self.later.push((self.pending.len(), at));
                    }
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
        let mut line = self.open_line();
        let mut lines = Vec::new();
        while let Some((from, _)) = line.later.iter().rfind(|(from, _)| begins(&line.text, *from)) {
            let from = *from as usize;
            let text = line.text.split_off(from);
            let at = line.later.partition_point(|(offset, _)| (*offset as usize) < from);
            let mut later = line.later.split_off(at);
            let start = later.remove(0).1;
            let offset = u32::try_from(from).unwrap_or(u32::MAX);
            later.iter_mut().for_each(|(from, _)| *from -= offset);
            lines.push(Line { start, end: line.end, text, later });
            line.end = line.later.last().map_or(line.start, |(_, at)| *at);
        }
        lines.push(line);
        self.lines.extend(lines.into_iter().rev());
        self.pending.clear();
        self.later.clear();
    }

    /// Takes the lines that are complete so far.
    pub fn take(&mut self) -> Vec<Line> {
        std::mem::take(&mut self.lines)
    }

    /// When the screen was cleared so far, as the first byte of the word for it arrived.
    pub fn cleared(&self) -> &[Ns] {
        &self.cleared
    }

    /// The line that is still open (a login prompt has no line end).
    pub fn open_line(&self) -> Line {
        let (text, later) = readable(&self.pending, &self.later);
        Line { start: self.start, end: self.end, text, later }
    }

    /// Ends the last line and returns all that are left.
    pub fn finish(mut self) -> Vec<Line> {
        if !self.pending.is_empty() {
            self.cut();
        }
        self.lines
    }
}

/// True for a later part of a line that is one of its own: who prints it always begins one, and
/// somebody else had left his unfinished.
fn begins(text: &str, from: u32) -> bool {
    const STATUS: &[&str] = &["[  OK  ] ", "[FAILED] ", "[DEPEND] "];
    let part = text.get(from as usize..).unwrap_or_default();
    let stamped = || part.starts_with('[') && split_stamp(part).0.is_some();
    from > 0 && (STATUS.iter().any(|status| part.starts_with(status)) || stamped())
}

/// Bytes as text, and where in it the parts begin.
fn readable(bytes: &[u8], parts: &[(usize, Ns)]) -> (String, Vec<(u32, Ns)>) {
    let offset = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
    let mut text = String::with_capacity(bytes.len());
    let mut later = Vec::with_capacity(parts.len());
    let mut parts = parts.iter().peekable();
    let mut read = 0;
    for chunk in bytes.utf8_chunks() {
        let valid = read + chunk.valid().len();
        while let Some((from, at)) = parts.next_if(|(from, _)| *from < valid) {
            later.push((offset(text.len() + from - read), *at));
        }
        text.push_str(chunk.valid());
        read = valid + chunk.invalid().len();
        while let Some((_, at)) = parts.next_if(|(from, _)| *from < read) {
            later.push((offset(text.len()), *at));
        }
        if !chunk.invalid().is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }
    (text, later)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
        assert_eq!(texts(&[(1, b"\x1b(B\x1b)0ok\x1b(0\n")]), [(1, "ok".to_owned())]);
    }

    #[test]
    fn a_screen_that_is_cleared_has_its_time() {
        let mut cutter = LineCutter::default();
        let reads: [(Ns, &[u8]); 6] = [
            (1, b"\x1b[2J\x1b[01;01H menu"),
            (5, b"\x1b[1;02H Boot in 1 s.\x1b[12J\x1b[J\x1b[22J\x1b[2K"),
            (7, b"\x1b"),
            (9, b"[2"),
            (11, b"J"),
            (12, b"2J"),
        ];
        reads.iter().for_each(|(at, bytes)| cutter.push(*at, bytes));
        assert_eq!(cutter.cleared(), [1, 7]);
    }

    #[test]
    fn what_comes_behind_a_prompt_has_its_own_time() {
        const S: Ns = 1_000_000_000;
        let reads: [(Ns, &[u8]); 3] =
            [(S, b"\nhost login: "), (3 * S, b"appliance "), (4 * S, b"end\n")];
        let expected = [
            (S, S, String::new()),
            (S, S, "host login: ".to_owned()),
            (3 * S, 4 * S, "appliance end".to_owned()),
        ];
        assert_eq!(cut(&reads), expected);
        // What nobody waits at is one line, of which each part has its time.
        let mut cutter = LineCutter::default();
        cutter.push(S, b"Starting it: ");
        cutter.push(S + PART / 2, b"... ");
        cutter.push(5 * S, "d\u{f6}ne\n".as_bytes());
        let line = cutter.take().remove(0);
        assert_eq!((line.at(0), line.at(14), line.at(17)), (S, S, 5 * S));
        assert_eq!(line.later, [(17, 5 * S)]);
        assert_eq!(cut(&[(S, b"login: "), (S + 1, b"root\n")]).len(), 1);
    }

    #[test]
    fn whoever_begins_a_line_has_one() {
        let reads: [(Ns, &[u8]); 4] = [
            (PART, b"Passphrase for vda3: "),
            (5 * PART, b"[   12.000345] random: crng init done"),
            (9 * PART, b"[  OK  ] Found device vda4."),
            (11 * PART, b" [ ok ]\n"),
        ];
        let expected = [
            (1, 1, "Passphrase for vda3: "),
            (5, 5, "[   12.000345] random: crng init done"),
            (9, 11, "[  OK  ] Found device vda4. [ ok ]"),
        ];
        let expected = expected.map(|(at, end, text)| (at * PART, end * PART, text.to_owned()));
        assert_eq!(cut(&reads), expected);
        // A log that is printed again has its stamps in the middle of a line.
        assert_eq!(cut(&[(1, b"kern.info kernel: [    1.000000] x\n")]).len(), 1);
    }

    proptest! {
        #[test]
        fn parts_are_where_their_bytes_are(
            reads in proptest::collection::vec((0..5i64, proptest::collection::vec(any::<u8>(), 0..6)), 0..40)
        ) {
            let mut cutter = LineCutter::default();
            let mut now = 0;
            for (ms, bytes) in &reads {
                now += ms * 1_000_000;
                cutter.push(now, bytes);
                let open = cutter.open_line();
                let lossy = String::from_utf8_lossy(&cutter.pending).into_owned();
                prop_assert_eq!(open.text, lossy);
            }
            for line in cutter.finish() {
                let in_order = line.later.windows(2).all(|w| w[0].0 <= w[1].0 && w[0].1 < w[1].1);
                prop_assert!(in_order, "{:?}", line);
                prop_assert!(line.later.iter().all(|(at, _)| *at as usize <= line.text.len()));
                prop_assert_eq!(line.at(0) >= line.start, true);
                prop_assert!(line.later.iter().all(|(_, at)| line.start < *at && *at <= line.end));
            }
        }
    }
}
