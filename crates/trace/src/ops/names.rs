//! Names, each with a small number, so that ops are plain data.

use crate::event::EventType;
use crate::hash::{FastMap, Recent};
use crate::names::{ioctl, svm_exception, svm_exit, syscall, vmx_exit};
use std::collections::HashMap;

/// Number of a name in its [`Names`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NameId(pub u32);

/// Names by number and numbers by name.
///
/// Untrusted traces can hold any number of names: the table stops growing at
/// [`Names::MAX`] and gives number 0, `other`, for every further one.
#[derive(Debug)]
pub struct Names {
    list: Vec<Box<str>>,
    by_name: HashMap<Box<str>, NameId>,
    recent: Recent,
}

impl Default for Names {
    fn default() -> Names {
        Names { list: vec!["other".into()], by_name: HashMap::new(), recent: Recent::default() }
    }
}

impl Names {
    /// Most names that are told apart.
    pub const MAX: usize = 1 << 15;
    /// Longest name that is kept, bytes.
    pub const MAX_LEN: usize = 96;

    /// The number of a name.
    pub fn id(&mut self, name: &str) -> NameId {
        let guess = NameId(self.recent.guess(name));
        // Number 0 is none that a text has, whatever it is spelled like.
        if guess.0 != 0 && self.name(guess) == name {
            return guess;
        }
        if let Some(&id) = self.by_name.get(name) {
            self.recent.note(name, id.0);
            return id;
        }
        if self.list.len() >= Names::MAX || name.len() > Names::MAX_LEN {
            return NameId(0);
        }
        let id = NameId(self.list.len() as u32);
        self.list.push(name.into());
        self.by_name.insert(name.into(), id);
        id
    }

    /// The names from a number on, in the order of their numbers.
    pub fn since(&self, from: usize) -> &[Box<str>] {
        self.list.get(from..).unwrap_or_default()
    }

    /// The name of a number.
    pub fn name(&self, id: NameId) -> &str {
        self.list.get(id.0 as usize).map_or("other", |name| name)
    }
}

/// Soft interrupts by number (the kernel's include/linux/interrupt.h).
const SOFTIRQS: [&str; 10] =
    ["HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU"];

/// Kinds of number that are turned into a name once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Number {
    Exit { isa: u32 },
    UserspaceExit,
    Ioctl,
    Syscall,
    Hypercall,
    HvHypercall,
    XenHypercall,
    Irq,
    Softirq,
    Address,
    IpiReason,
}

/// Names, and what turns numbers into them.
#[derive(Default)]
pub(crate) struct Resolver {
    pub(crate) names: Names,
    cache: FastMap<(Number, u64), NameId>,
    /// Tables of the trace's own `kvm_exit` format, by instruction set (1 VMX, 2 SVM).
    exits: [HashMap<u64, String>; 2],
    userspace_exits: HashMap<u64, String>,
}

impl Resolver {
    /// Takes the symbol tables of an event type's format text.
    pub(crate) fn learn(&mut self, kind: &EventType) {
        let tables = symbol_tables(&kind.print_fmt);
        match kind.name.as_str() {
            "kvm_exit" => {
                for (slot, table) in self.exits.iter_mut().zip(tables) {
                    *slot = table;
                }
            }
            "kvm_userspace_exit" => {
                self.userspace_exits = tables.into_iter().next().unwrap_or_default();
            }
            _ => {}
        }
    }

    /// The name of a number.
    #[inline]
    pub(crate) fn number(&mut self, kind: Number, number: u64) -> NameId {
        match self.cache.get(&(kind, number)) {
            Some(&id) => id,
            None => self.number_new(kind, number),
        }
    }

    #[cold]
    fn number_new(&mut self, kind: Number, number: u64) -> NameId {
        let name = self.spell(kind, number);
        let id = self.names.id(&name);
        if self.cache.len() < Names::MAX {
            self.cache.insert((kind, number), id);
        }
        id
    }

    /// `number name`, e.g. an interrupt's.
    pub(crate) fn irq(&mut self, irq: u64, name: Option<&str>) -> NameId {
        // Devices can share a line, so the name is part of the key (FNV-1a of it).
        let name = name.unwrap_or("?");
        let mix = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3);
        let key = (Number::Irq, name.bytes().fold(0xcbf2_9ce4_8422_2325 ^ irq, mix));
        if let Some(&id) = self.cache.get(&key) {
            return id;
        }
        let id = self.names.id(format!("{irq} {name}").trim_end());
        if self.cache.len() < Names::MAX {
            self.cache.insert(key, id);
        }
        id
    }

    fn spell(&self, kind: Number, number: u64) -> String {
        let word = number as u32;
        match kind {
            Number::Exit { isa } => self.exit(isa, number),
            Number::UserspaceExit => match self.userspace_exits.get(&number) {
                Some(name) => name.clone(),
                None => format!("KVM_EXIT {number}"),
            },
            Number::Ioctl => ioctl(word),
            Number::Syscall => {
                syscall(number).map_or_else(|| format!("syscall {number}"), str::to_string)
            }
            Number::Hypercall => match number {
                1 => "vapic_poll_irq".into(),
                5 => "kick_cpu".into(),
                9 => "clock_pairing".into(),
                10 => "send_ipi".into(),
                11 => "sched_yield".into(),
                12 => "map_gpa_range".into(),
                _ => format!("hypercall {number}"),
            },
            Number::HvHypercall => format!("hyperv {number:#x}"),
            Number::XenHypercall => crate::names::xen_hypercall(word)
                .map_or_else(|| format!("hypercall {number}"), str::to_string),
            Number::Softirq => usize::try_from(number)
                .ok()
                .and_then(|at| SOFTIRQS.get(at))
                .map_or_else(|| format!("softirq {number}"), ToString::to_string),
            Number::Irq => number.to_string(),
            Number::Address | Number::IpiReason => format!("{number:#x}"),
        }
    }

    fn exit(&self, isa: u32, reason: u64) -> String {
        // Bit 31 of a VMX reason marks a failed entry; the low half is the reason.
        let basic = if isa == 1 { reason & 0xffff } else { reason };
        let table = &self.exits[usize::from(isa == 2)];
        let named = table.get(&basic).cloned().or_else(|| match isa {
            1 => vmx_exit(basic as u32).map(str::to_string),
            _ => svm_exception(basic).or_else(|| svm_exit(basic as u32)),
        });
        named.unwrap_or_else(|| format!("exit {basic:#x}"))
    }

    /// Takes over another's names, addresses as such, to be renamed later; gives the own
    /// numbers of its names, by its numbers.
    pub(crate) fn learn_from(&mut self, other: &Resolver) -> Vec<NameId> {
        for &(kind, number) in other.cache.keys() {
            if kind == Number::Address {
                self.number(kind, number);
            }
        }
        other.names.list.iter().skip(1).fold(vec![NameId(0)], |mut ids, name| {
            ids.push(self.names.id(name));
            ids
        })
    }

    /// Renames addresses by the trace's symbols.
    pub(crate) fn resolve(&mut self, symbol: impl Fn(u64) -> Option<String>) {
        for (&(kind, number), id) in &self.cache {
            if kind == Number::Address && id.0 != 0 {
                if let Some(name) = symbol(number) {
                    self.names.list[id.0 as usize] = name.into();
                }
            }
        }
    }
}

/// The `{ number, "name" }` tables of a `print fmt`, in order.
///
/// The kernel prints adjacent literals as they stand: `"KVM_EXIT_" "IO"`.
pub(crate) fn symbol_tables(print_fmt: &str) -> Vec<HashMap<u64, String>> {
    let mut tables = Vec::new();
    for call in print_fmt.split("__print_symbolic(").skip(1) {
        let mut table = HashMap::new();
        // The call's own entries end where a brace is closed and not followed by a comma.
        for entry in call.split('{').skip(1) {
            let Some((pair, rest)) = entry.split_once('}') else { break };
            if let Some((number, name)) = pair.split_once(',') {
                let name: String = name.split('"').skip(1).step_by(2).collect();
                if let Some(number) = crate::text::number(number.trim()) {
                    table.insert(number, name);
                }
            }
            if !rest.trim_start().starts_with(',') {
                break;
            }
        }
        tables.push(table);
    }
    tables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbol_tables_are_told_apart() {
        let fmt = "\"r %s\", (REC->isa == 1) ? __print_symbolic(REC->r & 0xffff, { 0, \"A\" }, \
                   { 0x1e, \"IO\" }) : __print_symbolic(REC->r, { 0x7b, \"io\" }), REC->x";
        let tables = symbol_tables(fmt);
        assert_eq!(tables.len(), 2);
        assert_eq!(tables[0].get(&0x1e).map(String::as_str), Some("IO"));
        assert_eq!(tables[1].get(&0x7b).map(String::as_str), Some("io"));
        let joined = symbol_tables("__print_symbolic(REC->reason, { 2, \"KVM_EXIT_\" \"IO\" })");
        assert_eq!(joined[0].get(&2).map(String::as_str), Some("KVM_EXIT_IO"));
    }

    #[test]
    fn names_that_share_a_slot_are_told_apart() {
        let mut names = Names::default();
        let alike = ["function_a_of_work", "function_b_of_work", "a", "b", "", "other"];
        let ids = alike.map(|name| names.id(name));
        for _ in 0..2 {
            assert_eq!(alike.map(|name| names.id(name)), ids);
        }
        assert_eq!(ids.map(|id| names.name(id).to_string()), alike);
        assert_ne!(ids[5], NameId(0), "a name of the trace is not the one for all the rest");
    }

    #[test]
    fn names_are_bounded() {
        let mut names = Names::default();
        for n in 0..Names::MAX * 2 {
            names.id(&n.to_string());
        }
        assert_eq!(names.list.len(), Names::MAX);
        assert_eq!(names.name(names.by_name["7"]), "7");
        assert_eq!(names.id("one more"), NameId(0));
    }
}
