//! Just enough of the protobuf wire format to write a trace.
//!
//! Encoding: <https://protobuf.dev/programming-guides/encoding/>. A message is
//! a buffer; a field is its number and wire type as a varint, then its value.

use crate::text::Safe;

/// A message being written.
#[derive(Debug, Default, Clone)]
pub struct Message(Vec<u8>);

const VARINT: u64 = 0;
const LENGTH_DELIMITED: u64 = 2;

impl Message {
    fn raw_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn tag(&mut self, field: u32, wire_type: u64) {
        self.raw_varint(u64::from(field) << 3 | wire_type);
    }

    /// A `uint32`, `uint64`, `bool` or enum field.
    pub fn varint(&mut self, field: u32, value: u64) -> &mut Self {
        self.tag(field, VARINT);
        self.raw_varint(value);
        self
    }

    /// An `int32` or `int64` field: two's complement in ten bytes if negative.
    pub fn int(&mut self, field: u32, value: i64) -> &mut Self {
        self.varint(field, value as u64)
    }

    /// A `string` field.
    pub fn string(&mut self, field: u32, text: &Safe<'_>) -> &mut Self {
        let text = text.as_str();
        self.tag(field, LENGTH_DELIMITED);
        self.raw_varint(text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
        self
    }

    /// A message field.
    pub fn message(&mut self, field: u32, message: &Message) -> &mut Self {
        self.tag(field, LENGTH_DELIMITED);
        self.raw_varint(message.0.len() as u64);
        self.0.extend_from_slice(&message.0);
        self
    }

    /// The encoded message.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}
