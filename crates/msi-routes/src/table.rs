// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The kernel's table as it is, edited in place, with an undo log until the kernel took it.

use crate::error::RouteError;
use crate::foreign::Routing;
use crate::message::{FixedRoute, MsiMessage};
use kvm_bindings::{kvm_irq_routing_entry, KvmIrqRouting};

const NOWHERE: u32 = u32::MAX;
const LOGGED: &str = "logged with its undo";

#[derive(Clone, Copy)]
enum Undo {
    /// An entry was appended.
    Pushed,
    /// The entry here was overwritten.
    Replaced(u32),
    /// The entry here was taken out, and the last one moved to its place; true for an MSI
    /// route of the library's, whose position is kept.
    Removed(u32, bool),
}

pub(crate) struct Table {
    /// Room for all the host allows; `None` only inside [`Self::set_len`].
    routes: Option<Routing>,
    len: usize,
    /// Where the library's MSI route of a GSI is; fixed routes have none.
    position: Vec<u32>,
    undo: Vec<Undo>,
    /// The entries of `Replaced` and `Removed`, in their order.
    old: Vec<kvm_irq_routing_entry>,
    /// The kernel panicked: it may have another one.
    doubtful: bool,
}

impl Table {
    pub(crate) fn new(limit: usize) -> Result<Self, RouteError> {
        let full = |_| RouteError::Full { limit, fixed: 0, msi: 0, first: 0 };
        let mut table = Self {
            routes: Some(Routing(KvmIrqRouting::new(limit).map_err(full)?)),
            len: limit,
            position: vec![NOWHERE; limit],
            undo: Vec::new(),
            old: Vec::new(),
            doubtful: false,
        };
        table.set_len(0);
        Ok(table)
    }

    /// Routes that the host allows.
    pub(crate) fn limit(&self) -> usize {
        self.position.len()
    }

    /// As the ioctl takes it.
    pub(crate) fn routes(&self) -> &Routing {
        self.routes.as_ref().expect("the table has its routes outside of set_len")
    }

    pub(crate) fn entries(&self) -> &[kvm_irq_routing_entry] {
        self.routes().entries()
    }

    fn entries_mut(&mut self) -> &mut [kvm_irq_routing_entry] {
        self.routes.as_mut().expect("the table has its routes outside of set_len").0.as_mut_slice()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// FamStructWrapper's own resizing reallocates; the buffer here has room for the limit.
    fn set_len(&mut self, len: usize) {
        assert!(len <= self.position.len(), "the pool limits the number of routes");
        let mut raw =
            self.routes.take().expect("the table has its routes outside of set_len").0.into_raw();
        raw[0].nr = len as u32;
        self.len = len;
        // SAFETY: the buffer was laid out by KvmIrqRouting::new for `limit` entries, all of
        // them initialised, and `len` is not larger.
        self.routes = Some(Routing(unsafe { KvmIrqRouting::from_raw(raw) }));
    }

    fn push(&mut self, entry: kvm_irq_routing_entry) {
        self.set_len(self.len + 1);
        let at = self.len - 1;
        self.entries_mut()[at] = entry;
    }

    /// True if the GSI has an MSI route.
    pub(crate) fn is_routed(&self, gsi: u32) -> bool {
        self.position.get(gsi as usize).is_some_and(|&at| at != NOWHERE)
    }

    /// True if the GSI has an MSI route with this message.
    pub(crate) fn has(&self, gsi: u32, message: &MsiMessage) -> bool {
        let Some(&at) = self.position.get(gsi as usize) else { return false };
        let at = at as usize;
        self.entries().get(at).is_some_and(|entry| message.is_in(entry))
    }

    /// An MSI route: a new one, or the new content of the one that the GSI has.
    /// Nothing for one that is not a GSI of the host.
    pub(crate) fn put(&mut self, gsi: u32, entry: kvm_irq_routing_entry) {
        let Some(&at) = self.position.get(gsi as usize) else { return };
        if at == NOWHERE {
            self.position[gsi as usize] = self.len as u32;
            self.push(entry);
            self.undo.push(Undo::Pushed);
        } else {
            let old = std::mem::replace(&mut self.entries_mut()[at as usize], entry);
            self.undo.push(Undo::Replaced(at));
            self.old.push(old);
        }
    }

    /// Takes an MSI route out, if the table has it.
    pub(crate) fn remove(&mut self, gsi: u32) {
        let Some(&at) = self.position.get(gsi as usize) else { return };
        if at != NOWHERE {
            self.position[gsi as usize] = NOWHERE;
            self.remove_at(at, true);
        }
    }

    fn remove_at(&mut self, at: u32, own: bool) {
        let last = self.len - 1;
        let old = self.entries()[at as usize];
        self.move_entry(last as u32, at);
        self.set_len(last);
        self.undo.push(Undo::Removed(at, own));
        self.old.push(old);
    }

    /// Moves an entry to another place, and its GSI's position with it.
    fn move_entry(&mut self, from: u32, to: u32) {
        let entry = self.entries()[from as usize];
        self.entries_mut()[to as usize] = entry;
        let position = &mut self.position[entry.gsi as usize];
        if *position == from {
            *position = to;
        }
    }

    /// A fixed route; an MSI route of its GSI is one that is no more.
    pub(crate) fn push_fixed(&mut self, route: &FixedRoute) {
        self.remove(route.gsi());
        self.push(*route.entry());
        self.undo.push(Undo::Pushed);
    }

    /// Takes out all fixed routes of a GSI; returns how many there were.
    pub(crate) fn remove_fixed(&mut self, gsi: u32) -> usize {
        let mut removed = 0;
        let find = |table: &Self| table.entries().iter().position(|e| e.gsi == gsi);
        while let Some(at) = find(self) {
            removed += 1;
            self.remove_at(at as u32, false);
        }
        removed
    }

    /// True unless the kernel is known to have it as it is.
    pub(crate) fn is_changed(&self) -> bool {
        self.doubtful || !self.undo.is_empty()
    }

    /// The kernel panicked, and may have taken it or not: the next commit hands it over anew.
    pub(crate) fn doubt(&mut self) {
        self.roll_back();
        self.doubtful = true;
    }

    /// The kernel took it.
    pub(crate) fn keep(&mut self) {
        self.doubtful = false;
        self.undo.clear();
        self.old.clear();
    }

    /// The kernel did not take it: as it was before the first change since [`Self::keep`].
    pub(crate) fn roll_back(&mut self) {
        while let Some(undo) = self.undo.pop() {
            match undo {
                Undo::Pushed => {
                    let gone = self.entries()[self.len - 1];
                    let position = &mut self.position[gone.gsi as usize];
                    if *position == (self.len - 1) as u32 {
                        *position = NOWHERE;
                    }
                    self.set_len(self.len - 1);
                }
                Undo::Replaced(at) => {
                    let old = self.old.pop().expect(LOGGED);
                    self.entries_mut()[at as usize] = old;
                }
                Undo::Removed(at, own) => {
                    let old = self.old.pop().expect(LOGGED);
                    self.set_len(self.len + 1);
                    let last = self.len - 1;
                    if at as usize != last {
                        self.move_entry(at, last as u32);
                    }
                    self.entries_mut()[at as usize] = old;
                    if own {
                        self.position[old.gsi as usize] = at;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const LIMIT: u32 = 40;
    /// Above the GSIs of fixed routes.
    const FIRST: u32 = 8;

    #[derive(Debug, Clone)]
    enum Step {
        Put(u32, u32),
        Remove(u32),
        PushFixed(u32),
        RemoveFixed(u32),
        Keep,
        RollBack,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (FIRST..LIMIT, any::<u32>()).prop_map(|(g, d)| Step::Put(g, d)),
            2 => (FIRST..LIMIT).prop_map(Step::Remove),
            1 => (0..FIRST).prop_map(Step::PushFixed),
            1 => (0..FIRST).prop_map(Step::RemoveFixed),
            1 => Just(Step::Keep),
            1 => Just(Step::RollBack),
        ]
    }

    fn content(table: &Table) -> BTreeMap<u32, u32> {
        assert_eq!(table.entries().len(), table.len());
        // SAFETY: plain data; zero in the entries of fixed routes.
        table.entries().iter().map(|e| (e.gsi, unsafe { e.u.msi.data })).collect()
    }

    proptest! {
        #[test]
        fn it_is_a_map_that_can_be_rolled_back(steps in proptest::collection::vec(step(), 0..200)) {
            let mut table = Table::new(LIMIT as usize).unwrap();
            let (mut now, mut kept) = (BTreeMap::new(), BTreeMap::new());
            for step in steps {
                match step {
                    Step::Put(gsi, data) => {
                        let message = MsiMessage { data, ..MsiMessage::x86(0, 0) };
                        table.put(gsi, message.entry(gsi));
                        now.insert(gsi, data);
                    }
                    Step::Remove(gsi) => {
                        table.remove(gsi);
                        now.remove(&gsi);
                    }
                    Step::PushFixed(gsi) if !now.contains_key(&gsi) => {
                        table.push_fixed(&FixedRoute::hv_sint(gsi, 0, 0));
                        now.insert(gsi, 0);
                    }
                    Step::PushFixed(_) => {}
                    Step::RemoveFixed(gsi) => {
                        let removed = table.remove_fixed(gsi);
                        prop_assert_eq!(removed == 1, now.remove(&gsi).is_some());
                    }
                    Step::Keep => {
                        table.keep();
                        kept = now.clone();
                    }
                    Step::RollBack => {
                        table.roll_back();
                        now = kept.clone();
                    }
                }
                prop_assert_eq!(content(&table), now.clone());
            }
        }
    }
}
