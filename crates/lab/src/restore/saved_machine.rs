//! The machine of QEMU's that a snapshot is made of.

use super::method::Method;
use regex::Regex;
use std::ffi::OsString;
use std::time::Duration;
use vmeter_session::failure::{failure, Class};

/// A machine of QEMU's to be saved.
pub(super) struct OfQemu<'a> {
    pub method: Method,
    /// The machine, as it is booted.
    pub argv: &'a [OsString],
    pub memory_mib: u64,
    /// The ready point.
    pub until: &'a Regex,
    pub timeout: Duration,
    pub pin: &'a [usize],
}

/// No snapshot was made, for what an error says.
pub(super) fn wrong(method: Method, error: &dyn std::fmt::Display) -> anyhow::Error {
    failure(Class::Answer, format!("no snapshot was made for {}: {error}", method.word()))
}
