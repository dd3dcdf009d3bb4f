//! Field numbers of the messages that are written, from
//! `protos/perfetto/trace/` of Perfetto 59: `trace.proto`, `trace_packet.proto`,
//! `clock_snapshot.proto`, `interned_data/interned_data.proto`,
//! `track_event/{track_descriptor,counter_descriptor,track_event,debug_annotation}.proto`.

/// `Trace.packet`.
pub const TRACE_PACKET: u32 = 1;

/// `TracePacket`.
pub mod packet {
    pub const FTRACE_EVENTS: u32 = 1;
    pub const CLOCK_SNAPSHOT: u32 = 6;
    pub const TIMESTAMP: u32 = 8;
    pub const TRUSTED_PACKET_SEQUENCE_ID: u32 = 10;
    pub const TRACK_EVENT: u32 = 11;
    pub const INTERNED_DATA: u32 = 12;
    pub const SEQUENCE_FLAGS: u32 = 13;
    pub const TIMESTAMP_CLOCK_ID: u32 = 58;
    pub const TRACK_DESCRIPTOR: u32 = 60;
    /// `SequenceFlags.SEQ_INCREMENTAL_STATE_CLEARED`.
    pub const STATE_CLEARED: u64 = 1;
    /// `SequenceFlags.SEQ_NEEDS_INCREMENTAL_STATE`.
    pub const NEEDS_STATE: u64 = 2;
}

/// `ClockSnapshot`, its `Clock`, and `BuiltinClock`.
pub mod clock {
    pub const CLOCKS: u32 = 1;
    pub const PRIMARY_TRACE_CLOCK: u32 = 2;
    pub const CLOCK_ID: u32 = 1;
    pub const TIMESTAMP: u32 = 2;
    pub const REALTIME: u64 = 1;
    pub const MONOTONIC: u64 = 3;
}

/// `TrackDescriptor` and `CounterDescriptor`.
pub mod track {
    pub const UUID: u32 = 1;
    pub const NAME: u32 = 2;
    pub const THREAD: u32 = 4;
    pub const PARENT_UUID: u32 = 5;
    pub const COUNTER: u32 = 8;
    pub const CHILD_ORDERING: u32 = 11;
    pub const SIBLING_ORDER_RANK: u32 = 12;
    /// `ChildTracksOrdering.EXPLICIT`.
    pub const EXPLICIT: u64 = 3;
    pub const COUNTER_UNIT: u32 = 3;
    /// `CounterDescriptor.Unit.UNIT_COUNT`.
    pub const UNIT_COUNT: u64 = 2;
}

/// `ThreadDescriptor`.
pub mod thread {
    pub const PID: u32 = 1;
    pub const TID: u32 = 2;
    pub const NAME: u32 = 5;
}

/// `FtraceEventBundle`, `FtraceEvent` and its events, from `ftrace/ftrace_event_bundle.proto`,
/// `ftrace/ftrace_event.proto` and `ftrace/sched.proto`.
pub mod ftrace {
    pub const CPU: u32 = 1;
    pub const EVENT: u32 = 2;
    pub const TIMESTAMP: u32 = 1;
    pub const PID: u32 = 2;
    pub const SCHED_SWITCH: u32 = 4;
    pub const SCHED_WAKEUP: u32 = 17;
    pub const SCHED_WAKING: u32 = 20;
    /// `SchedSwitchFtraceEvent`.
    pub const PREV_COMM: u32 = 1;
    pub const PREV_PID: u32 = 2;
    pub const PREV_PRIO: u32 = 3;
    pub const PREV_STATE: u32 = 4;
    pub const NEXT_COMM: u32 = 5;
    pub const NEXT_PID: u32 = 6;
    pub const NEXT_PRIO: u32 = 7;
    /// `SchedWakingFtraceEvent` and `SchedWakeupFtraceEvent`.
    pub const COMM: u32 = 1;
    pub const WOKEN: u32 = 2;
    pub const PRIO: u32 = 3;
    pub const TARGET_CPU: u32 = 5;
}

/// `TrackEvent`.
pub mod event {
    pub const CATEGORY_IIDS: u32 = 3;
    pub const DEBUG_ANNOTATIONS: u32 = 4;
    pub const TYPE: u32 = 9;
    pub const NAME_IID: u32 = 10;
    pub const TRACK_UUID: u32 = 11;
    pub const COUNTER_VALUE: u32 = 30;
    pub const SLICE_BEGIN: u64 = 1;
    pub const SLICE_END: u64 = 2;
    pub const INSTANT: u64 = 3;
    pub const COUNTER: u64 = 4;
}

/// `InternedData`, and the `iid` and `name` of each entry.
pub mod interned {
    pub const EVENT_CATEGORIES: u32 = 1;
    pub const EVENT_NAMES: u32 = 2;
    pub const DEBUG_ANNOTATION_NAMES: u32 = 3;
    pub const IID: u32 = 1;
    pub const NAME: u32 = 2;
}

/// `DebugAnnotation`.
pub mod annotation {
    pub const NAME_IID: u32 = 1;
    pub const UINT_VALUE: u32 = 3;
    pub const INT_VALUE: u32 = 4;
    pub const STRING_VALUE: u32 = 6;
}
