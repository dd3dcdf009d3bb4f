//! Memory slots: those of the measurement of 2010 that docs/DIRTY.md cites ("the
//! publication" in this crate), or one's own.
//!
//! What a harvest costs depends on how long slots are and on how many pages are dirty, not
//! on where the slots are: addresses are given out in order, past the guest's code and past
//! what KVM keeps below 4 GiB.

use crate::DirtyError;
use serde::{Deserialize, Serialize};
use vmeter_kvm_probe::Vm;

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Slots up to this size are never scaled: it is their length that is measured.
const LARGE: u64 = 32 << 20;
/// The most slots: what every KVM has.
const MOST_SLOTS: usize = 32;
/// Guest-physical memory that is mapped, less what comes before the slots.
const MOST_BYTES: u64 = 256 << 30;
/// No slot may be in the gigabyte below 4 GiB.
const HOLE: std::ops::Range<u64> = 3 << 30..4 << 30;

/// A slot to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotPlan {
    /// Number in tables.
    pub number: u32,
    /// Size, whole pages.
    pub bytes: u64,
    /// May the workload's buffer be in it?
    pub buffer: bool,
}

impl SlotPlan {
    /// Pages.
    pub fn pages(&self) -> u64 {
        self.bytes / PAGE
    }
}

/// All slots of a guest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Layout {
    /// The slots.
    pub slots: Vec<SlotPlan>,
    /// Where they come from.
    pub source: String,
    /// Size of the large ones over what was asked for.
    pub scale: f64,
}

/// Slots 0 to 8 of the publication's live migration: number, bytes, does the 1 GB buffer
/// of its guest lie in it (its slots 0 to 2 have dirty pages).
const MIGRATION: [(u32, u64, bool); 9] = [
    (0, 655_360, false),
    (1, 3_757_047_808, true),
    (2, 637_534_208, true),
    (3, 131_072, false),
    (4, 131_072, false),
    (5, 131_072, false),
    (6, 16_777_216, false),
    (7, 32_768, false),
    (8, 32_768, false),
];

/// Its two windows of a VGA frame buffer.
const GUI: [(u32, u64, bool); 2] = [(7, 32_768, true), (8, 32_768, false)];

/// One slot in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileSlot {
    slot: u32,
    bytes: Size,
    #[serde(default)]
    buffer: bool,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Size {
    Bytes(u64),
    Text(String),
}

/// `65536`, `64K`, `16M`, `3.5G`; powers of 1024.
fn size(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => return None,
    };
    let value: f64 = digits.trim().parse().ok()?;
    let bytes = value * (1u64 << shift) as f64;
    (bytes.is_finite() && (0.0..=1e18).contains(&bytes)).then_some(bytes as u64)
}

impl Layout {
    fn of(slots: &[(u32, u64, bool)], source: &str) -> Self {
        let plan = |&(number, bytes, buffer)| SlotPlan { number, bytes, buffer };
        Self { slots: slots.iter().map(plan).collect(), source: source.into(), scale: 1.0 }
    }

    /// The publication's live migration of a 4 GB guest.
    pub fn migration() -> Self {
        Self::of(&MIGRATION, "slots 0-8 of a 4 GB guest during live migration")
    }

    /// The publication's guest in graphical mode.
    pub fn gui() -> Self {
        Self::of(&GUI, "slots 7 and 8 of a guest in graphical mode")
    }

    /// Reads a layout: a JSON array of `{"slot": N, "bytes": N or "16M", "buffer": BOOL}`.
    /// Without any `buffer`, the buffer is in the largest slot.
    ///
    /// # Errors
    /// What is wrong and where.
    pub fn parse(text: &str, source: &str) -> Result<Self, DirtyError> {
        let wrong = |what: String| DirtyError::Layout { file: source.into(), what };
        let mut slots: Vec<SlotPlan> = Vec::new();
        let parsed: Vec<FileSlot> = serde_json::from_str(text).map_err(|error| {
            wrong(format!(
                "{error}; expected [{{\"slot\": 0, \"bytes\": \"640K\"}}, …], with \"buffer\": \
                    true in the slot that holds the workload's buffer"
            ))
        })?;
        for FileSlot { slot: number, bytes, buffer } in parsed {
            let bytes = match &bytes {
                Size::Bytes(bytes) => Some(*bytes),
                Size::Text(text) => size(text),
            };
            // What is no size is no whole number of pages either.
            slots.push(SlotPlan { number, bytes: bytes.unwrap_or(0), buffer });
        }
        if !slots.iter().any(|slot| slot.buffer) {
            if let Some(largest) = slots.iter_mut().max_by_key(|slot| slot.bytes) {
                largest.buffer = true;
            }
        }
        let layout = Self { slots, source: source.into(), scale: 1.0 };
        layout.check()?;
        Ok(layout)
    }

    /// Refuses slots that can't be, whether they were parsed or saved.
    ///
    /// # Errors
    /// What is wrong and where.
    pub fn check(&self) -> Result<(), DirtyError> {
        let wrong = |what: String| Err(DirtyError::Layout { file: self.source.clone(), what });
        let slots = &self.slots;
        if slots.is_empty() || slots.len() > MOST_SLOTS {
            return wrong(format!("{} slots: 1 to {MOST_SLOTS} are possible", slots.len()));
        }
        let whole = |bytes: u64| bytes > 0 && bytes % PAGE == 0 && bytes <= MOST_BYTES;
        for (i, slot) in slots.iter().enumerate() {
            let number = slot.number;
            if !whole(slot.bytes) {
                return wrong(format!(
                    "the size of slot {number} must be a multiple of 4096 bytes and at most 256 \
                        GiB; give it in bytes, or as a number with K, M or G"
                ));
            }
            if slots[..i].iter().any(|other| other.number == number) {
                return wrong(format!("slot {number} is there twice"));
            }
        }
        if self.bytes() > MOST_BYTES {
            return wrong("more than 256 GiB in all".into());
        }
        Ok(())
    }

    /// All slots together, bytes.
    pub fn bytes(&self) -> u64 {
        self.slots.iter().map(|slot| slot.bytes).sum()
    }

    /// The same, with the large slots made smaller by one factor until all of it fits.
    ///
    /// # Errors
    /// The small ones alone do not.
    pub fn fitted(mut self, most: u64) -> Result<Self, DirtyError> {
        let large: u64 = self.slots.iter().map(|s| s.bytes).filter(|&b| b > LARGE).sum();
        let small = self.bytes() - large;
        if self.bytes() <= most {
            return Ok(self);
        }
        let room = most.saturating_sub(small);
        let scale = room as f64 / large as f64;
        if large == 0 || room < LARGE {
            return Err(DirtyError::TooLittleMemory { needed: self.bytes(), most });
        }
        for slot in self.slots.iter_mut().filter(|slot| slot.bytes > LARGE) {
            slot.bytes = ((slot.bytes as f64 * scale) as u64 / PAGE).max(1) * PAGE;
        }
        self.scale = scale;
        Ok(self)
    }

    /// Into how many bytes it can be [fitted](Self::fitted), all in all.
    pub(crate) fn least(&self) -> u64 {
        let small: u64 = self.slots.iter().map(|s| s.bytes).filter(|&b| b <= LARGE).sum();
        self.bytes().min(small + LARGE)
    }

    /// Guest-physical addresses of the slots.
    pub fn places(&self) -> Vec<u64> {
        let mut next = Vm::FIRST_FREE_GPA;
        let mut place = |slot: &SlotPlan| {
            if next < HOLE.end && next + slot.bytes > HOLE.start {
                next = HOLE.end;
            }
            let gpa = next;
            next = (gpa + slot.bytes).next_multiple_of(2 << 20);
            gpa
        };
        self.slots.iter().map(&mut place).collect()
    }

    /// Behind the last slot.
    pub fn end(&self) -> u64 {
        let ends = self.places().into_iter().zip(&self.slots).map(|(gpa, slot)| gpa + slot.bytes);
        ends.max().unwrap_or(Vm::FIRST_FREE_GPA)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_file_says_it_all() {
        let text = r#"[{"slot": 3, "bytes": "640K"}, {"slot": 1, "bytes": 8192, "buffer": true},
                       {"slot": 9, "bytes": "1.5G"}]"#;
        let layout = Layout::parse(text, "own.json").unwrap();
        let bytes: Vec<u64> = layout.slots.iter().map(|slot| slot.bytes).collect();
        assert_eq!(bytes, [655_360, 8192, 1_610_612_736]);
        let buffers: Vec<u32> =
            layout.slots.iter().filter(|s| s.buffer).map(|s| s.number).collect();
        assert_eq!(buffers, [1]);
        let largest = Layout::parse(r#"[{"slot":0,"bytes":4096},{"slot":1,"bytes":8192}]"#, "x");
        assert!(largest.unwrap().slots[1].buffer);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, named) in [
            ("{}", "expected ["),
            ("[]", "0 slots"),
            (r#"[{"slot":0,"bytes":5000}]"#, "slot 0"),
            (r#"[{"slot":0,"bytes":"x"}]"#, "slot 0"),
            (r#"[{"slot":0,"bytes":0}]"#, "slot 0"),
            (r#"[{"slot":0,"bytes":4096},{"slot":0,"bytes":4096}]"#, "twice"),
            (r#"[{"slot":0,"bites":4096}]"#, "bites"),
        ] {
            let error = Layout::parse(text, "own.json").unwrap_err().to_string();
            assert!(error.contains(named) && error.contains("own.json"), "{text}: {error}");
        }
    }

    #[test]
    fn the_large_ones_are_scaled_and_the_small_ones_are_not() {
        let whole = Layout::migration();
        let fitted = whole.clone().fitted(1 << 30).unwrap();
        assert!(fitted.bytes() <= 1 << 30 && fitted.scale < 0.3);
        assert_eq!(fitted.slots[6], whole.slots[6]);
        assert!(fitted.slots[1].bytes > fitted.slots[2].bytes);
        assert_eq!(whole.clone().fitted(u64::MAX).unwrap(), whole);
        assert!(matches!(whole.fitted(1 << 20), Err(DirtyError::TooLittleMemory { .. })));
        assert!(Layout::gui().fitted(4096).is_err());
    }

    proptest! {
        #[test]
        fn no_text_is_too_much(text in "\\PC{0,200}") {
            let _ = Layout::parse(&text, "x");
            let _ = size(&text);
        }

        #[test]
        fn slots_have_room(sizes in proptest::collection::vec(1u64..2_000_000, 1..9)) {
            let slots: Vec<String> = sizes.iter().enumerate()
                .map(|(i, pages)| format!("{{\"slot\":{i},\"bytes\":{}}}", pages * PAGE))
                .collect();
            let layout = Layout::parse(&format!("[{}]", slots.join(",")), "x").unwrap();
            let mut taken: Vec<_> = layout.places().into_iter().zip(&layout.slots)
                .map(|(gpa, slot)| gpa..gpa + slot.bytes).collect();
            taken.push(0xfec0_0000..1 << 32);
            taken.sort_by_key(|range| range.start);
            prop_assert!(taken.windows(2).all(|pair| pair[0].end <= pair[1].start));
            prop_assert!(taken[0].start >= Vm::FIRST_FREE_GPA);
        }
    }
}
