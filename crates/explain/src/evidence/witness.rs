//! What the visitor needs for each event: who, when, where, on the common time base.

use super::path::Path;
use super::subject::Anatomy;
use super::thread::{Thread, Waker};
use super::{xen, Witness};
use crate::moment::{Place, Sym, Tid};
use vmeter_trace::ops::Op;
use vmeter_trace::walk::xen as vcpus;
use vmeter_trace::walk::{self, By, Request, Took};

/// System calls that send to a socket.
const SENDS: [&str; 8] =
    ["write", "writev", "sendto", "sendmsg", "sendmmsg", "sendfile", "shutdown", "close"];

impl Witness<'_> {
    pub(super) fn tid(&self, thread: &walk::Thread) -> Tid {
        Tid { file: self.moment.file, tid: thread.tid }
    }

    pub(super) fn vcpu(&self, (domain, number): vcpus::VcpuId) -> xen::VcpuId {
        (self.moment.file, domain, number)
    }

    pub(super) fn own(&mut self, thread: &walk::Thread) -> Option<&mut Thread> {
        self.evidence.thread(self.tid(thread), self.moment.ts)
    }

    pub(super) fn common(&self, stamp: u64) -> u64 {
        self.merge.common(self.moment.file, stamp)
    }

    pub(super) fn waker(&self, waker: walk::Waker) -> Waker {
        match waker {
            walk::Waker::Unknown => Waker::Unknown,
            walk::Waker::Thread(tid) => Waker::Thread(Tid { file: self.moment.file, tid }),
            walk::Waker::Timer => Waker::Timer,
            walk::Waker::Interrupt => Waker::Interrupt,
            walk::Waker::Irq(irq) => match self.moment.sym(irq) {
                irq if self.sends(irq) => {
                    Waker::Thread(Tid { file: self.moment.file, tid: self.moment.tid })
                }
                irq if self.merge.name(irq).to_ascii_lowercase().contains("timer") => Waker::Timer,
                irq => Waker::Irq(irq),
            },
        }
    }

    /// True if a thread that sends something to this machine itself (by the loopback device)
    /// delivers it, too: the soft interrupt is its own doing.
    fn sends(&self, irq: Sym) -> bool {
        let tid = Tid { file: self.moment.file, tid: self.moment.tid };
        let call = || self.evidence.threads.get(&tid).and_then(Thread::call);
        self.merge.name(irq) == "NET_RX"
            && call().is_some_and(|call| SENDS.contains(&self.merge.name(call)))
    }

    /// What a request's time went into.
    pub(super) fn anatomy(&self, thread: &walk::Thread, request: &Request<'_>) -> Anatomy {
        let (now, tid) = (self.moment.ts, self.tid(thread));
        let start = self.common(request.open.start);
        let event = match request.by {
            By::Exit => "kvm_exit",
            By::UserspaceExit => "kvm_userspace_exit",
        };
        let place = Place { cpu: request.open.cpu, stamp: request.open.start, ..self.place(event) };
        let mut anatomy = Anatomy {
            total: now.saturating_sub(start),
            place,
            torn: matches!(request.took, Took::Cut | Took::Unknown),
            start,
            ..Anatomy::default()
        };
        let path = Path { threads: &self.evidence.threads, merge: self.merge, now };
        path.own(tid, start, now, &mut anatomy);
        let sleep = self.evidence.threads.get(&tid).and_then(|thread| thread.sleep);
        anatomy.sleep = sleep.filter(|sleep| sleep.start >= start);
        let entry = self.moment.op == Op::VmEntry;
        anatomy.ended = Some(self.place(if entry { "kvm_entry" } else { "KVM_RUN" }));
        anatomy
    }

    pub(super) fn place(&self, event: &'static str) -> Place {
        self.moment.place(event)
    }
}
