//! The changes that a batch stages.

use crate::message::{FixedRoute, MsiMessage};
use crate::route::Route;
use smallvec::SmallVec;

#[derive(Debug)]
pub(crate) enum Op {
    Add(Route, MsiMessage, bool),
    Message(Route, MsiMessage),
    Mask(Route),
    Unmask(Route),
    Remove(Route),
    AddFixed(Box<FixedRoute>),
    /// All fixed routes of a GSI become these.
    SetFixed(u32, Vec<FixedRoute>),
}

/// One vector's usual changes, its message and its mask, need no allocation.
pub(crate) type Ops = SmallVec<[Op; 2]>;
