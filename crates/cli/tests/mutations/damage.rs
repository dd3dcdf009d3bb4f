//! Damage: bytes and JSON changed at random, and the same again for the same seed.

use serde_json::Value;

/// Random numbers (Vigna's xorshift64*).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, most: usize) -> usize {
        (self.number() % most.max(1) as u64) as usize
    }

    pub fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

const NUMBERS: [u64; 12] = [
    0,
    1,
    7,
    127,
    255,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 40,
    i64::MAX as u64,
    u64::MAX,
];

/// Changes a few bytes, numbers or parts.
pub fn bytes(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..=random.below(4) {
        if bytes.is_empty() {
            bytes.extend(random.number().to_le_bytes());
        }
        // Most of what a file means is in its first bytes.
        let reach = if random.below(2) == 0 { bytes.len().min(4096) } else { bytes.len() };
        let at = random.below(reach);
        match random.below(8) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.number() as u8,
            2 => {
                let number = random.pick(&NUMBERS).to_le_bytes();
                let width = *random.pick(&[2, 4, 8]);
                let end = (at + width).min(bytes.len());
                bytes[at..end].copy_from_slice(&number[..end - at]);
            }
            3 => {
                let end = (at + random.below(64)).min(bytes.len());
                bytes.drain(at..end);
            }
            4 => {
                let from = random.below(bytes.len());
                let part = bytes[from..(from + random.below(256)).min(bytes.len())].to_vec();
                bytes.splice(at..at, part);
            }
            5 => {
                let digits = random.pick(&NUMBERS).to_string().into_bytes();
                bytes.splice(at..at, digits);
            }
            6 if random.below(4) == 0 => bytes.truncate(at),
            _ => bytes[at] = *random.pick(b"0123456789.-:= \n\0\xff,[]{}\""),
        }
    }
}

/// A value that few expect.
fn odd(random: &mut Random) -> Value {
    match random.below(12) {
        0 => Value::Null,
        1 => (*random.pick(&NUMBERS)).into(),
        2 => i64::MIN.into(),
        3 => (-1).into(),
        4 => 1e308.into(),
        5 => (-0.0).into(),
        6 => "".into(),
        7 => "\u{1b}]0;x\u{7}<script>\u{202e}=1+1".into(),
        8 => "x".repeat(random.below(5000)).into(),
        9 => Value::Array(Vec::new()),
        10 => Value::Object(Default::default()),
        _ => random.number().into(),
    }
}

/// Changes one value somewhere below.
fn value(random: &mut Random, at: &mut Value, depth: usize) {
    let stop = random.below(6) == 0 || depth > 12;
    match at {
        Value::Array(all) if !stop && !all.is_empty() => {
            let index = random.below(all.len());
            match random.below(10) {
                0 => drop(all.remove(index)),
                1 => {
                    let same = all[index].clone();
                    (0..random.below(50)).for_each(|_| all.push(same.clone()));
                }
                2 => {
                    let other = random.below(all.len());
                    all.swap(index, other);
                }
                _ => value(random, &mut all[index], depth + 1),
            }
        }
        Value::Object(all) if !stop && !all.is_empty() => {
            let key = all.keys().nth(random.below(all.len())).cloned().unwrap_or_default();
            match (random.below(12), all.get_mut(&key)) {
                (0, _) => drop(all.remove(&key)),
                (_, Some(inner)) => value(random, inner, depth + 1),
                (_, None) => {}
            }
        }
        Value::Number(number) if random.below(2) == 0 => {
            let near = number.as_f64().unwrap_or(0.0) * *random.pick(&[-1.0, 0.0, 2.0, 1e6, 1e12]);
            *at = if near.abs() < 9e18 { (near as i64).into() } else { near.into() };
        }
        _ => *at = odd(random),
    }
}

/// Changes a JSON file: its values, or just its bytes.
pub fn json(random: &mut Random, text: &mut Vec<u8>) {
    match serde_json::from_slice::<Value>(text) {
        Ok(mut whole) if random.below(5) > 0 => {
            for _ in 0..=random.below(3) {
                value(random, &mut whole, 0);
            }
            *text = whole.to_string().into_bytes();
        }
        _ => bytes(random, text),
    }
}
