//! One event, as a format hands it out: borrowed, not interpreted.
//!
//! An [`Event`] borrows from the reader's page or line, so nothing is allocated
//! for it. What it means is the business of [`crate::ops`], which resolves the
//! fields it needs once per [`EventType`] and then reads them by offset.

/// What kind of event it is: one per name in a trace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EventType {
    /// Dense number of the type in its trace: use it to index tables.
    pub id: u32,
    /// Subsystem (`kvm`, `sched`), empty where the format does not say.
    pub system: String,
    /// Name, e.g. `kvm_exit`.
    pub name: String,
    /// Fields of a binary record, from the trace's own format text; else empty.
    pub fields: Vec<Field>,
    /// The format text's `print fmt`, for its tables of symbols; else empty.
    pub print_fmt: String,
}

impl EventType {
    /// The field of that name in a binary record.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|f| f.name == name)
    }

    /// Accessor of an integer field; one that always reads as absent if there is none.
    pub fn int(&self, name: &str) -> IntField {
        match self.field(name) {
            Some(f) if matches!(f.size, 1 | 2 | 4 | 8) => {
                IntField { offset: f.offset, size: f.size as u8, signed: f.signed }
            }
            _ => IntField::ABSENT,
        }
    }

    /// Accessor of a string field; one that always reads as absent if there is none.
    pub fn string(&self, name: &str) -> StrField {
        self.field(name).map_or(StrField { kind: StrKind::Absent, offset: 0, size: 0 }, |f| {
            let kind = match f.kind {
                FieldKind::DataLoc => StrKind::DataLoc,
                FieldKind::RelLoc => StrKind::RelLoc,
                FieldKind::Plain => StrKind::Array,
            };
            StrField { kind, offset: f.offset, size: f.size }
        })
    }
}

/// How a field is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FieldKind {
    /// At its offset.
    #[default]
    Plain,
    /// A 32-bit word: offset from the record's start (low half), length (high half).
    DataLoc,
    /// As `DataLoc`, the offset counted from the end of that word.
    RelLoc,
}

/// A field of a binary record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Field {
    /// Name.
    pub name: String,
    /// C type, as the format text spells it.
    pub type_name: String,
    /// Offset in the record, bytes.
    pub offset: u32,
    /// Size in the record, bytes.
    pub size: u32,
    /// True for a signed integer.
    pub signed: bool,
    /// How it is stored.
    pub kind: FieldKind,
}

/// Typed access to an integer field by a precomputed offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IntField {
    offset: u32,
    size: u8,
    signed: bool,
}

impl IntField {
    /// Reads as absent everywhere.
    pub const ABSENT: IntField = IntField { offset: 0, size: 0, signed: false };

    /// The integer of `size` bytes (1, 2, 4 or 8) at an offset.
    pub(crate) fn at(offset: u32, size: u32, signed: bool) -> IntField {
        match size {
            1 | 2 | 4 | 8 => IntField { offset, size: size as u8, signed },
            _ => IntField::ABSENT,
        }
    }

    /// True if the event type has the field.
    pub fn is_present(self) -> bool {
        self.size != 0
    }

    /// The field's value, sign-extended if it is signed; none if the record is too short.
    #[inline]
    pub fn get(self, record: &[u8]) -> Option<u64> {
        let at = self.offset as usize;
        let bytes = record.get(at..at.checked_add(self.size as usize)?)?;
        Some(match (bytes, self.signed) {
            ([a, b, c, d], false) => u64::from(u32::from_le_bytes([*a, *b, *c, *d])),
            ([a, b, c, d], true) => i32::from_le_bytes([*a, *b, *c, *d]) as i64 as u64,
            ([a, b, c, d, e, f, g, h], _) => u64::from_le_bytes([*a, *b, *c, *d, *e, *f, *g, *h]),
            ([a, b], false) => u64::from(u16::from_le_bytes([*a, *b])),
            ([a, b], true) => i16::from_le_bytes([*a, *b]) as i64 as u64,
            ([a], false) => u64::from(*a),
            ([a], true) => *a as i8 as i64 as u64,
            _ => return None,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StrKind {
    Absent,
    Array,
    DataLoc,
    RelLoc,
}

/// Typed access to a string field by a precomputed offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StrField {
    kind: StrKind,
    offset: u32,
    size: u32,
}

impl StrField {
    /// The field's text up to its NUL; none if absent, out of the record or not UTF-8.
    pub fn get(self, record: &[u8]) -> Option<&str> {
        let at = self.offset as usize;
        let word = || {
            let bytes = record.get(at..at.checked_add(4)?)?;
            let word = u32::from_le_bytes(bytes.try_into().ok()?);
            Some(((word & 0xffff) as usize, (word >> 16) as usize))
        };
        let bytes = match self.kind {
            StrKind::Absent => None,
            StrKind::Array => record.get(at..at.checked_add(self.size as usize)?),
            StrKind::DataLoc => word().and_then(|(start, len)| record.get(start..start + len)),
            StrKind::RelLoc => {
                word().and_then(|(start, len)| record.get(at + 4 + start..at + 4 + start + len))
            }
        }?;
        let end = memchr::memchr(0, bytes).unwrap_or(bytes.len());
        std::str::from_utf8(&bytes[..end]).ok()
    }
}

/// What an event carries besides its head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Body<'a> {
    /// The kernel's binary record, common fields included.
    Record(&'a [u8]),
    /// The text after the event's name.
    Text(&'a str),
    /// Words of a xentrace record.
    Words {
        /// Event id, 28 bits.
        event: u32,
        /// Extra words.
        words: &'a [u32],
    },
    /// A finished system call, as strace prints it.
    Call {
        /// Arguments.
        arguments: &'a str,
        /// What follows the `=`.
        result: &'a str,
        /// Time inside the call, in the trace's ticks.
        duration: Option<u64>,
    },
    /// Events are missing here on this CPU: how many, if the trace says.
    Lost(Option<u64>),
}

/// What a CPU did when it recorded an event, as the event itself says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Context {
    /// The event does not say.
    #[default]
    Unknown,
    /// The thread's own doing.
    Task,
    /// A soft interrupt's handler.
    Softirq,
    /// An interrupt's handler.
    Hardirq,
}

impl Context {
    /// From `common_flags` (`TRACE_FLAG_HARDIRQ`, `TRACE_FLAG_SOFTIRQ`, `TRACE_FLAG_NMI` in the
    /// kernel's include/linux/trace_events.h).
    #[inline]
    fn of_flags(flags: u8) -> Context {
        match flags {
            f if f & (0x08 | 0x40) != 0 => Context::Hardirq,
            f if f & 0x10 != 0 => Context::Softirq,
            _ => Context::Task,
        }
    }

    /// From ftrace's latency column, `d.h1.`: its third letter.
    pub(crate) fn of_column(column: &str) -> Context {
        match column.as_bytes() {
            [_, _, b'h' | b'H' | b'z' | b'Z', _, ..] => Context::Hardirq,
            [_, _, b's', _, ..] => Context::Softirq,
            [_, _, b'.', _, ..] => Context::Task,
            _ => Context::Unknown,
        }
    }
}

/// CPU number of an event whose trace does not say.
pub const NO_CPU: u32 = u32::MAX;

/// One event.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Event<'a> {
    /// What kind.
    pub kind: &'a EventType,
    /// When, in ticks of the trace's [`crate::Clock`].
    pub ts: u64,
    /// CPU it happened on, or [`NO_CPU`].
    pub cpu: u32,
    /// Thread it happened in; for xentrace not known here (-1).
    pub tid: i32,
    /// Index into [`crate::TraceInfo::buffers`].
    pub buffer: u32,
    /// Name of the thread, where the trace gives one with the event.
    pub comm: Option<&'a str>,
    /// What a text's latency column says; a binary record says it itself.
    pub column: Context,
    /// The rest.
    pub body: Body<'a>,
}

impl Event<'_> {
    /// What the CPU did, as far as the event says.
    #[inline]
    pub fn context(&self) -> Context {
        match self.body {
            // `struct trace_entry`: u16 type, u8 flags.
            Body::Record(record) => {
                record.get(2).map_or(Context::Unknown, |f| Context::of_flags(*f))
            }
            _ => self.column,
        }
    }
}
