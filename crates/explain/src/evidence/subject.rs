//! What is explained: a kind of request, and what the time of all its instances went into.

use super::series::Series;
use super::thread::Sleep;
use crate::moment::{Place, Sym, Tid};
use vmeter_trace::hash::FastMap;
use vmeter_trace::ops::Access;
use vmeter_trace::stat::hist::Hist;
use vmeter_trace::walk::{IMPLAUSIBLE, LONGEST};

/// Most parts of a subject that are told apart.
const MAX_PARTS: usize = 512;

/// A kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SubjectKind {
    /// Accesses of a port.
    Port {
        /// Port.
        port: u32,
        /// True for writes.
        write: bool,
    },
    /// Accesses of a guest-physical address.
    Mmio {
        /// Address.
        address: u64,
        /// True for writes.
        write: bool,
    },
    /// Exits to user space or VMEXITs for another reason.
    Exit(Sym),
    /// Hypercalls, by name.
    Hypercall(Sym),
    /// A system call of a trace that has nothing but these (strace).
    Call(Sym),
    /// Accesses of a port, in a device model's log.
    LoggedPort {
        /// Port.
        port: u32,
        /// True for writes.
        write: bool,
    },
    /// Accesses of a guest-physical address, in a device model's log.
    LoggedMmio {
        /// Address.
        address: u64,
        /// True for writes.
        write: bool,
    },
}

impl SubjectKind {
    /// What an access asks a device for; none if it asks KVM itself.
    pub fn of(access: Access) -> Option<SubjectKind> {
        match access {
            Access::Port { port, write } => Some(SubjectKind::Port { port, write }),
            Access::Mmio { address, write } => Some(SubjectKind::Mmio { address, write }),
            Access::Msr { .. } | Access::Hypercall { .. } => None,
        }
    }

    /// As [`SubjectKind::of`], of an access in a device model's log.
    pub fn logged(access: Access) -> Option<SubjectKind> {
        match access {
            Access::Port { port, write } => Some(SubjectKind::LoggedPort { port, write }),
            Access::Mmio { address, write } => Some(SubjectKind::LoggedMmio { address, write }),
            Access::Msr { .. } | Access::Hypercall { .. } => None,
        }
    }

    /// True for what a vCPU asks of a device and waits for.
    pub fn is_request(self) -> bool {
        match self {
            SubjectKind::Port { .. } | SubjectKind::Mmio { .. } => true,
            SubjectKind::Exit(_) | SubjectKind::Hypercall(_) | SubjectKind::Call(_) => false,
            SubjectKind::LoggedPort { .. } | SubjectKind::LoggedMmio { .. } => false,
        }
    }

    /// True for accesses in a device model's log.
    pub fn is_logged(self) -> bool {
        matches!(self, SubjectKind::LoggedPort { .. } | SubjectKind::LoggedMmio { .. })
    }
}

/// A kind of request in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Number of the file.
    pub file: u16,
    /// What is asked for.
    pub what: SubjectKind,
}

/// In whom time went by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Who {
    /// The vCPU's own thread.
    Own,
    /// Another thread.
    Thread(Tid),
}

/// What the time of a Xen vCPU's exit went into, in the hypervisor and in its device model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// User space.
    User,
    /// A system call, on a CPU.
    Kernel(Sym),
    /// KVM.
    Kvm,
    /// A work item ran.
    Work(Sym),
    /// Ready, without a CPU.
    Runnable,
    /// Asleep in a call; the reason is not known.
    Blocked(Option<Sym>),
    /// Xen: the hypervisor worked.
    XenRunning,
    /// Xen: the vCPU waited for a physical CPU.
    XenRunnable,
    /// Xen: until the device model was woken.
    Delivery,
    /// Xen: after the device model slept again.
    Return,
    /// Xen: paused; the reason is not known.
    Paused,
    /// Not recorded.
    Unknown,
}

/// How much, and where to see it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Amount {
    /// Ticks.
    pub ticks: u64,
    /// Calls that ended, or work items, or waits.
    pub count: u64,
    /// The instance with most of it.
    pub worst: Option<(u64, Place)>,
}

impl Amount {
    fn note_worst(&mut self, ticks: u64, place: Place) {
        if self.worst.is_none_or(|(most, _)| most < ticks) {
            self.worst = Some((ticks, place));
        }
    }
}

/// One instance, taken apart.
#[derive(Debug, Clone, Default)]
pub struct Breakdown {
    /// Ticks in all.
    pub total: u64,
    /// Ticks of them without a CPU, of threads that are no kernel's workers: the host's other load
    /// decides. Who needs one CPU's worker needs that CPU.
    pub waited: u64,
    /// Calls that ended in it.
    pub calls: u64,
    /// What a Xen vCPU's went into.
    pub parts: Vec<((Who, Part), Amount)>,
    /// When it began, ticks of the common base.
    pub start: u64,
    /// Where that is.
    pub place: Place,
    /// Events were lost meanwhile.
    pub incomplete: bool,
    /// Longest sleep of the vCPU's thread in it.
    pub sleep: Option<Sleep>,
    /// The event that ended it.
    pub ended: Option<Place>,
}

impl Breakdown {
    /// Adds to a part.
    pub fn add(&mut self, who: Who, part: Part, ticks: u64) -> &mut Amount {
        let at = match self.parts.iter().position(|(key, _)| *key == (who, part)) {
            Some(at) => at,
            None => {
                self.parts.push(((who, part), Amount::default()));
                self.parts.len() - 1
            }
        };
        let amount = &mut self.parts[at].1;
        amount.ticks = amount.ticks.saturating_add(ticks);
        amount
    }

    /// Ticks of the parts that `want` chooses.
    pub fn ticks(&self, want: impl Fn(Who, Part) -> bool) -> u64 {
        let chosen = self.parts.iter().filter(|((who, part), _)| want(*who, *part));
        crate::sum(chosen.map(|(_, amount)| amount.ticks))
    }

    /// Its length without waiting for a CPU.
    pub fn net(&self) -> u64 {
        let waiting = |_, part| matches!(part, Part::Runnable | Part::XenRunnable);
        self.total.saturating_sub(self.waited).saturating_sub(self.ticks(waiting))
    }
}

/// All instances of a kind of request.
#[derive(Debug, Default)]
pub struct Subject {
    /// Instances.
    pub count: u64,
    /// Instances that were timed.
    pub timed: u64,
    /// Ticks in all.
    pub total: u64,
    /// Ticks in all without waiting for a CPU.
    pub net_total: u64,
    /// Sum of the squares of the instances' ticks without waiting for a CPU.
    pub squares: f64,
    /// Length of an instance.
    pub length: Hist,
    /// The same without waiting for a CPU.
    pub net: Hist,
    /// What the time of Xen's vCPUs went into.
    pub parts: FastMap<(Who, Part), Amount>,
    /// Length and calls by number of the instance.
    pub series: Series,
    /// First instance.
    pub first: Option<Place>,
    /// Several threads make it.
    pub shared: bool,
    /// Longest instance.
    pub worst: Option<(u64, Place)>,
    /// The longest ones, longest first.
    longest: Vec<Breakdown>,
}

impl Subject {
    /// Takes an instance whose time is not known.
    pub fn count(&mut self) {
        self.count += 1;
    }

    /// Takes an instance.
    pub fn add(&mut self, anatomy: &Breakdown) {
        self.count += 1;
        if anatomy.incomplete {
            return;
        }
        let net = anatomy.net();
        self.timed += 1;
        self.total = self.total.saturating_add(anatomy.total);
        self.net_total = self.net_total.saturating_add(net);
        self.squares += net as f64 * net as f64;
        self.length.add(anatomy.total);
        self.net.add(net);
        self.series.add(net, anatomy.calls);
        let first = self.first.get_or_insert(anatomy.place);
        self.shared |= first.tid != anatomy.place.tid;
        if self.worst.is_none_or(|(ticks, _)| ticks < anatomy.total) {
            self.worst = Some((anatomy.total, anatomy.place));
        }
        self.keep(anatomy);
        for (key, amount) in &anatomy.parts {
            if self.parts.len() < MAX_PARTS || self.parts.contains_key(key) {
                merge(self.parts.entry(*key).or_default(), amount, anatomy.place);
            }
        }
    }

    /// Standard error of the sum of all instances, ticks.
    pub fn error(&self) -> f64 {
        let (count, sum) = (self.timed.max(1) as f64, self.net_total as f64);
        (self.squares - sum * sum / count).max(0.0).sqrt()
    }

    fn keep(&mut self, anatomy: &Breakdown) {
        let at = self.longest.partition_point(|kept| kept.total >= anatomy.total);
        if at < LONGEST {
            self.longest.insert(at, anatomy.clone());
            self.longest.truncate(LONGEST);
        }
    }

    /// The longest instances, longest first.
    pub fn longest(&self) -> &[Breakdown] {
        &self.longest
    }

    /// Takes out instances that began before `complete` and are too long to be true; gives
    /// their threads and lengths.
    pub fn drop_implausible(&mut self, complete: u64) -> Vec<(Tid, u64)> {
        let limit = self.net.quantile(0.5).unwrap_or(0.0) * IMPLAUSIBLE;
        let (out, kept): (Vec<Breakdown>, Vec<Breakdown>) = std::mem::take(&mut self.longest)
            .into_iter()
            .partition(|a| a.start < complete && a.total as f64 > limit && limit > 0.0);
        for anatomy in &out {
            self.timed = self.timed.saturating_sub(1);
            self.total = self.total.saturating_sub(anatomy.total);
            self.net_total = self.net_total.saturating_sub(anatomy.net());
            for (key, amount) in &anatomy.parts {
                if let Some(sum) = self.parts.get_mut(key) {
                    sum.ticks = sum.ticks.saturating_sub(amount.ticks);
                }
            }
            self.worst = kept.first().map(|kept| (kept.total, kept.place));
        }
        self.longest = kept;
        let place = |anatomy: &Breakdown| Tid { file: anatomy.place.file, tid: anatomy.place.tid };
        out.iter().map(|anatomy| (place(anatomy), anatomy.total)).collect()
    }

    /// Ticks of the parts that `want` chooses.
    pub fn ticks(&self, want: impl Fn(Who, Part) -> bool) -> u64 {
        let chosen = self.parts.iter().filter(|((who, part), _)| want(*who, *part));
        crate::sum(chosen.map(|(_, amount)| amount.ticks))
    }
}

fn merge(to: &mut Amount, amount: &Amount, place: Place) {
    to.ticks = to.ticks.saturating_add(amount.ticks);
    to.count += amount.count;
    to.note_worst(amount.ticks, place);
}
