//! Heartbeats: what the guest says over its serial port.
//!
//! A frame has 16 bytes, which is what a 16550's FIFO holds: kind, sum of the other
//! bytes, number of the heartbeat (16 bits), pages written (32 bits), the guest's time
//! stamp counter (64 bits), little-endian. What is in between, as from a firmware that
//! talks, is skipped.

use vmeter_model::Ns;

/// Length of a frame.
pub const FRAME: usize = 16;

/// What a frame says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The guest's memory is filled; it begins.
    Ready,
    /// It lives.
    Alive,
    /// It was told to stop, and has.
    Halted,
}

/// One frame, with the host's time of its arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beat {
    /// Arrival, `CLOCK_MONOTONIC` ns.
    pub at: Ns,
    /// What it says.
    pub kind: Kind,
    /// Number of the heartbeat; one that is missing was not sent, the port being busy.
    pub number: u64,
    /// Pages written since the guest began.
    pub pages: u64,
    /// The guest's clock, cycles.
    pub tsc: u64,
}

/// Frames out of a stream of bytes.
#[derive(Debug, Clone, Default)]
pub struct Parser {
    rest: Vec<u8>,
    number: u64,
    pages: u64,
}

impl Parser {
    /// Frames that `bytes` complete. Never holds back more than a frame.
    pub fn push(&mut self, bytes: &[u8], at: Ns) -> Vec<Beat> {
        self.rest.extend_from_slice(bytes);
        let mut found = Vec::new();
        let mut from = 0;
        while let Some(frame) = self.rest.get(from..from + FRAME) {
            match decode(frame) {
                Some(raw) => {
                    found.push(self.unwrapped(raw, at));
                    from += FRAME;
                }
                None => from += 1,
            }
        }
        self.rest.drain(..from);
        found
    }

    /// The counters without their wraps.
    fn unwrapped(&mut self, raw: Raw, at: Ns) -> Beat {
        let step = |last: u64, raw: u64, bits: u32| {
            last.wrapping_add(raw.wrapping_sub(last) & ((1 << bits) - 1))
        };
        // The first frame of a destination is far into the guest's life: of no matter.
        self.number = step(self.number, raw.number.into(), 16);
        self.pages = step(self.pages, raw.pages.into(), 32);
        Beat { at, kind: raw.kind, number: self.number, pages: self.pages, tsc: raw.tsc }
    }
}

struct Raw {
    kind: Kind,
    number: u16,
    pages: u32,
    tsc: u64,
}

fn decode(frame: &[u8]) -> Option<Raw> {
    let kind = match frame.first()? {
        0xb4 => Kind::Ready,
        0xb5 => Kind::Alive,
        0xb6 => Kind::Halted,
        _ => return None,
    };
    let sum = frame.iter().enumerate().filter(|(n, _)| *n != 1);
    let sum = sum.fold(0u8, |sum, (_, byte)| sum.wrapping_add(*byte));
    (*frame.get(1)? == sum).then_some(())?;
    Some(Raw {
        kind,
        number: u16::from_le_bytes(frame.get(2..4)?.try_into().ok()?),
        pages: u32::from_le_bytes(frame.get(4..8)?.try_into().ok()?),
        tsc: u64::from_le_bytes(frame.get(8..16)?.try_into().ok()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(kind: u8, number: u16, pages: u32, tsc: u64) -> Vec<u8> {
        let mut frame = vec![kind, 0];
        frame.extend(number.to_le_bytes());
        frame.extend(pages.to_le_bytes());
        frame.extend(tsc.to_le_bytes());
        frame[1] = frame.iter().fold(0, |sum: u8, byte| sum.wrapping_add(*byte));
        frame
    }

    #[test]
    fn counters_go_on_where_their_fields_wrap() {
        let mut parser = Parser::default();
        let mut stream = frame(0xb5, 65535, u32::MAX, 7);
        stream.extend(b"SeaBIOS\r\n");
        stream.extend(frame(0xb6, 1, 3, 9));
        let beats = parser.push(&stream, 5);
        assert_eq!(beats.len(), 2);
        assert_eq!((beats[1].number, beats[1].pages), (65537, (1 << 32) + 3));
        assert_eq!((beats[1].kind, beats[1].tsc, beats[1].at), (Kind::Halted, 9, 5));
    }

    proptest! {
        #[test]
        fn frames_survive_any_cut_and_any_noise_before_them(
            noise in prop::collection::vec(0u8..0xb0, 0..40),
            beats in prop::collection::vec((any::<u16>(), any::<u32>(), any::<u64>()), 1..8),
            cut in 1usize..40,
        ) {
            let mut stream = noise;
            for (number, pages, tsc) in &beats {
                stream.extend(frame(0xb5, *number, *pages, *tsc));
            }
            let mut parser = Parser::default();
            let found: Vec<Beat> =
                stream.chunks(cut).flat_map(|chunk| parser.push(chunk, 0)).collect();
            prop_assert_eq!(found.len(), beats.len());
            for (found, (number, pages, tsc)) in found.iter().zip(beats) {
                prop_assert_eq!(found.number as u16, number);
                prop_assert_eq!((found.pages as u32, found.tsc), (pages, tsc));
            }
        }

        #[test]
        fn any_bytes(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..64), 0..16)) {
            let mut parser = Parser::default();
            for chunk in chunks {
                parser.push(&chunk, 1);
                prop_assert!(parser.rest.len() < FRAME);
            }
        }
    }
}
