//! The cause at the end of a path: its kind, and what tells one from another.

use super::end::{is_brief, End, Ending};
use super::locks;
use super::path::{Edge, Hop, Path};
use crate::detect::growth::{series_grows, time_grows, Growth};
use crate::detect::segments::GUEST;
use crate::detect::{is_grace, syncs, Peers, View, LEAST_COUNT};
use crate::evidence::groups::GroupId;
use crate::evidence::name_traits::Traits;
use crate::evidence::subject::{Key, SubjectKind};
use crate::evidence::tree::Frame;
use crate::kind::Why;
use crate::moment::Sym;
use vmeter_trace::ops::Sign;

/// The timers of TCP: the function that they call, and how long a wait is that ends by one, s (kernel:
/// include/net/tcp.h, `TCP_DELACK_MIN` and `TCP_RTO_MIN`); soft interrupts may be late.
const TCP: [(&str, f64, f64, &str); 2] = [
    ("tcp_delack_timer", 0.038, 0.048, "TCP's delayed acknowledgement"),
    ("tcp_write_timer", 0.198, 0.23, "TCP's retransmission timer"),
];

/// Calls that start a process.
const FORKS: [&str; 4] = ["clone", "clone3", "fork", "vfork"];

/// A process that is there for longer does more than to start and to end, s.
const BRIEF_CHILD: f64 = 0.1;
/// Sleeps from which they come again and again.
const AGAIN: u64 = 10;
/// Calls in a row from which one would do for all.
const MANY: f64 = 32.0;
/// Where nobody recorded what has a CPU: so many calls for so few bytes.
const SMALL: (u64, f64) = (1000, 512.0);

/// A loop of equal calls, one of which would do.
pub struct Batch {
    /// Calls in a row; none where their rows are not known.
    pub(super) row: Option<f64>,
    /// Calls in all.
    pub(super) count: u64,
    /// Bytes of each, if they move some.
    pub(super) bytes: Option<f64>,
}

/// A path with its end, ready to be put in words.
pub struct Cause<'a> {
    /// The evidence.
    pub view: &'a View<'a>,
    /// The path.
    pub path: &'a Path,
    /// Its end.
    pub ending: Ending,
    /// How the subject waits for the first thread of user space on the path.
    pub hop: Option<Hop>,
}

impl<'a> Cause<'a> {
    /// The cause at the end of a path.
    pub fn of(view: &'a View<'a>, path: &'a Path, ending: Ending) -> Cause<'a> {
        let hop = if path.doer > 0 { path.hop(1) } else { None };
        Cause { view, path, ending, hop }
    }

    /// Who is at the end, if that is not the subject.
    pub fn doer(&self) -> Option<GroupId> {
        self.path.doing().who.filter(|_| self.path.doer > 0)
    }

    /// The hop that waits for a lock, if there is one.
    pub fn lock(&self) -> Option<(usize, Hop)> {
        let hop = |at| Some((at, self.path.hop(at)?));
        let hops = (1..=self.path.doer).filter_map(hop);
        hops.rev().find(|(_, hop)| hop.edge == Edge::Lock)
    }

    /// Threads of the subject's own name that hold a lock in turn: in what call they wait for it, and
    /// for how long.
    pub fn convoy(&self) -> Option<(Option<Sym>, u64)> {
        let path = self.path;
        let (call, ticks, count) = path.own_lock(self.view, path.doer)?;
        let whole = path.doing().all.ticks.saturating_sub(path.doing().noise());
        (ticks * 5 >= whole && count >= 10).then_some((call, ticks))
    }

    /// True if the one at the end is a process that was started for it, and is not there for long.
    pub fn child(&self) -> bool {
        let brief = |hop: Hop| {
            let each = self.view.seconds(hop.ticks / hop.count.max(1));
            each.is_none_or(|each| each <= BRIEF_CHILD)
        };
        self.path.hop(self.path.doer).is_some_and(|hop| hop.edge == Edge::Child && brief(hop))
    }

    /// It takes longer each time: ticks by its number.
    pub fn growth(&self) -> Option<Growth> {
        let evidence = self.view.evidence;
        if !matches!(self.ending.end, End::User | End::Faults | End::Syscall | End::InCall) {
            return None;
        }
        match self.path.root {
            Frame::Request(key) => {
                let subject = evidence.subjects.get(&key);
                time_grows(subject.filter(|subject| subject.timed >= LEAST_COUNT)?)
            }
            // Of threads each call is looked at by itself.
            _ if matches!(self.ending.end, End::Syscall | End::InCall) => None,
            _ => {
                let who = self.path.group_at(self.view, self.path.doer)?;
                series_grows(evidence.ledger.active.get(&who)?, |point| point.ticks)
            }
        }
    }

    pub(super) fn name(&self, call: Sym) -> &str {
        self.view.name(call)
    }

    /// Who on the path starts the processes at its end, if not the subject, and by which call.
    pub(super) fn starter(&self) -> Option<(GroupId, Option<Sym>)> {
        let at = self.path.doer.checked_sub(1).filter(|at| *at > 0)?;
        let level = self.path.levels.get(at)?;
        let forks = |call: &Sym| FORKS.contains(&self.name(*call));
        Some((level.who?, level.system_calls().map(|(call, _)| call).find(forks)))
    }

    /// The call at the end; empty outside of any.
    pub(super) fn call(&self) -> &str {
        self.ending.call.map_or("", |call| self.name(call))
    }

    pub(super) fn inside(&self, call: Option<Sym>) -> String {
        call.map(|call| format!(" in {}", self.name(call))).unwrap_or_default()
    }

    pub(super) fn each(&self) -> String {
        let Ending { ticks, count, .. } = self.ending;
        self.view.time(ticks as f64 / count.max(1) as f64)
    }

    /// The timer of TCP that ends its sleep: by name where timers are recorded, else by how long it is.
    pub(super) fn tcp_timer(&self) -> Option<&'static str> {
        let Ending { ticks, count, call, .. } = self.ending;
        let fired = |function: &str| {
            let level = self.path.doing();
            let by = |state: Frame| match state {
                Frame::Irq(irq) => self.name(irq).starts_with(function),
                _ => false,
            };
            level.ticks(|_, state| by(state)).saturating_mul(3) >= ticks
        };
        if let Some((.., name)) = TCP.iter().find(|(function, ..)| fired(function)) {
            return Some(name);
        }
        // Others end by a time that they are given.
        let network = call.is_some_and(|call| {
            let name = self.name(call);
            name.starts_with("read") || name.starts_with("recv")
        });
        let each = self.view.seconds(ticks / count.max(1)).filter(|_| network)?;
        let spans = TCP.iter().find(|(_, from, to, _)| (*from..*to).contains(&each));
        spans.map(|(.., name)| *name)
    }

    /// The kind.
    pub fn why(&self) -> Why {
        let call = self.call();
        let lock = self.lock().is_some() || self.convoy().is_some();
        match self.ending.end {
            End::Cpu(_) => Why::NoCpu,
            End::Quota => Why::Throttled,
            End::Stopped(_) => Why::Stopped,
            End::User | End::Syscall | End::InCall | End::Work(_) | End::Faults | End::HostLoad
                if self.child() =>
            {
                Why::Child
            }
            End::Timer if self.lock().is_some_and(|(_, hop)| self.is_surely(hop)) => Why::Lock,
            End::Timer => Why::Timer,
            End::Held => Why::InCall,
            End::Network => Why::Network,
            End::Asleep | End::Interrupt if self.tcp_timer().is_some() => Why::Network,
            End::Disk => Why::Device,
            End::User
            | End::Syscall
            | End::Asleep
            | End::Interrupt
            | End::Deep
            | End::Idle
            | End::Peer(_)
            | End::HostLoad
                if lock =>
            {
                Why::Lock
            }
            End::Syscall | End::InCall if self.growth().is_some() => Why::Grows,
            _ if self.growth().is_some() => Why::Walks,
            End::Work(work) if is_grace(self.name(work)) => Why::Grace,
            End::Work(_) | End::Kernel(_) => Why::Work,
            End::Faults | End::Dropped(_) => Why::Faults,
            End::Syscall if syncs(call) => Why::Device,
            End::Syscall if self.spins() => Why::Lock,
            End::Syscall | End::InCall if self.batch().is_some() => Why::Burst,
            End::Syscall => Why::Busy,
            End::InCall if syncs(call) => Why::SlowSync,
            End::InCall => Why::SlowCall,
            End::User if !self.calls_seen() => Why::OnCpu,
            End::User | End::Guest => Why::Computes,
            End::Peer(_) => Why::HandOver,
            End::Asleep if call == "futex(lock)" || call == "futex" && self.path.doer == 0 => {
                Why::Lock
            }
            End::Asleep | End::Idle | End::Interrupt | End::Deep => Why::Asleep,
            End::HostLoad => Why::NoCpu,
        }
    }

    /// How a call of strace compares with others, if it is slower by far.
    pub fn peers_of_call(&self) -> Option<&Peers> {
        let call = self.ending.call.filter(|_| self.ending.end == End::InCall)?;
        let key = Key { file: call.file(), what: SubjectKind::Call(call) };
        self.view.peers(key).filter(|peers| peers.slow)
    }

    /// A lock by its call, and not by what its holder does.
    pub(super) fn is_surely(&self, hop: Hop) -> bool {
        let name = hop.call.map_or("", |call| self.name(call));
        name == "futex(lock)" || ["flock", "fcntl"].iter().any(|lock| name.starts_with(lock))
    }

    pub(super) fn spins(&self) -> bool {
        let who = self.path.group_at(self.view, self.path.doer);
        who.is_some_and(|who| locks::spins(self.view, self.path.doing(), who).is_some())
    }

    /// No thread of the kernel runs the work at the end: a soft interrupt did.
    pub(super) fn is_interrupted(&self) -> bool {
        let who = self.path.group_at(self.view, self.path.doer);
        let End::Work(work) = self.ending.end else { return false };
        let soft = self.path.workers().is_none() && !self.view.evidence.works.contains_key(&work);
        soft && who.is_some_and(|who| !self.view.evidence.groups.is_kernel(who))
    }

    /// The calls at the end, if they are small and many.
    pub fn batch(&self) -> Option<Batch> {
        let view = self.view;
        let Ending { end, call, count, .. } = self.ending;
        let call = call.filter(|call| !syncs(self.name(*call)))?;
        let request = match self.path.root {
            Frame::Request(key) => view.evidence.subjects.get(&key).map(|subject| subject.timed),
            _ => None,
        };
        let who = self.path.group_at(view, self.path.doer);
        let calls = who.and_then(|who| view.evidence.ledger.calls.get(&(who, call)));
        let moves = Traits::of(self.name(call)).has(Traits::MOVES);
        let moves = calls.filter(|calls| moves && calls.returned > 0);
        let bytes = moves.map(|calls| calls.returned as f64 / calls.count.max(1) as f64);
        match (end, request, calls) {
            (End::Syscall, Some(requests), _) => {
                let row = count as f64 / requests.max(1) as f64;
                (row >= MANY).then_some(Batch { row: Some(row), count, bytes })
            }
            (End::Syscall, None, Some(calls)) => {
                let grows = series_grows(&calls.turns, |point| point.calls).is_some();
                // A thread's last row ends with the thread.
                let threads = who.and_then(|who| view.evidence.groups.get(who));
                let rows = calls.turns.instances().max(threads.map_or(1, |own| own.members.into()));
                let row = calls.count as f64 / rows.max(1) as f64;
                let count = calls.count;
                (row >= MANY && !grows).then_some(Batch { row: Some(row), count, bytes })
            }
            (End::InCall, _, Some(calls)) => {
                let (least, few) = SMALL;
                let small = calls.count >= least
                    && bytes? <= few
                    && is_brief(view, calls.ticks, calls.count);
                small.then_some(Batch { row: None, count: calls.count, bytes })
            }
            _ => None,
        }
    }

    /// A vCPU that sleeps until a time-out of its own, again and again: its guest idles otherwise, so that
    /// is a throttle.
    pub(super) fn held_back(&self) -> bool {
        let Ending { end, count, .. } = self.ending;
        let timer = self.path.doer == 0 && end == End::Timer && count >= AGAIN;
        timer && self.path.levels[0].vcpu && !GUEST.contains(&self.call())
    }

    pub(super) fn calls_seen(&self) -> bool {
        self.view.evidence.seen_anywhere().syscalls
    }

    /// In most of its waits for a disk the kernel let requests go that an I/O limit had held back.
    pub(super) fn is_held_back(&self) -> bool {
        let who = self.path.group_at(self.view, self.path.doer);
        let held = who.and_then(|who| self.view.evidence.held_back.get(&who));
        held.is_some_and(|(_, ticks)| ticks.saturating_mul(2) >= self.ending.ticks)
    }

    /// The kernel takes memory back in the name of the doer.
    pub(super) fn reclaims(&self) -> bool {
        let who = self.path.group_at(self.view, self.path.doer);
        let ledger = &self.view.evidence.ledger;
        let pressure = ledger.provoked.iter().any(|((by, _, work), made)| {
            Some(*by) == who && made.count >= 20 && self.name(*work) == "vmpressure_work_fn"
        });
        pressure
            || ledger.signs.iter().any(|((by, sign), seen)| {
                let reclaim = matches!(sign, Sign::Reclaim | Sign::CgroupReclaim);
                reclaim && seen.count >= 20 && by.map(|(group, _)| group) == who
            })
    }
}
