// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The changes that a batch stages.

use crate::fixed::FixedOp;
use crate::message::MsiMessage;
use crate::route::Route;
use crate::source::Source;
use smallvec::SmallVec;

#[derive(Debug)]
pub(crate) enum Op {
    Add(Route, MsiMessage, bool),
    Message(Route, MsiMessage),
    Mask(Route),
    Unmask(Route),
    /// An eventfd of others in the place of the one before.
    Exchange(Route, Source),
    Remove(Route),
    Fixed(Box<FixedOp>),
}

/// One vector's usual changes, its message and its mask, need no allocation.
pub(crate) type Ops = SmallVec<[Op; 2]>;
