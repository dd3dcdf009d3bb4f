//! The events of a walk, and the visitors that receive them.

use super::cpu::{Interrupt, Waker};
use super::interval::{At, Open, Took};
use super::thread::{Call, Ended, Thread};
use super::vcpu::{VcpuExit, VcpuId, VcpuRequest, VcpuSpan};
use crate::ops::{Access, Lock, NameId, Sign};

/// What a request began with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// `kvm_exit`.
    Exit,
    /// `kvm_userspace_exit`, on a host that records no `kvm_exit`.
    UserspaceExit,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The guest went on.
    Resumed,
    /// The next one began, so that its end is missing.
    Missing,
    /// The trace did.
    OfTrace,
}

/// A request that a vCPU waited for.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// What it began with.
    pub by: By,
    /// Why the guest left.
    pub reason: NameId,
    /// Its begin.
    pub open: Open,
    /// How long it took.
    pub took: Took,
    /// How it ended.
    pub end: End,
    /// What it was for, as far as that was reported; where it began with
    /// [`By::UserspaceExit`] and nothing was, a read may follow in [`Visitor::late`].
    pub accesses: &'a [Access],
}

/// What a thread, a vCPU or a CPU is in from an event on, as a timeline draws it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slice {
    /// A thread is in a system call.
    Call(NameId),
    /// A thread runs a work item.
    Work(NameId),
    /// A thread's vCPU is out of the guest.
    Exit(NameId),
    /// A CPU is in an interrupt's handler, maybe within another's.
    Interrupt(NameId),
}

/// What an event ends, whether its begin was seen or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    /// The thread's system call.
    Call,
    /// The thread's work item.
    Work,
    /// The time of the thread's vCPU out of the guest.
    Exit,
    /// The CPU's innermost interrupt.
    Interrupt,
    /// The time of a Xen vCPU out of the guest, on this CPU.
    VcpuExit,
}

/// What a visitor receives. Everything but the counts that only statistics need has an
/// empty default; a visitor's calls are compiled into the walk.
pub trait Visitor {
    /// Wake-ups come with the thread that made them, which costs a look at the CPU an event.
    const WAKERS: bool = false;

    /// Something begins here.
    #[inline]
    fn begins(&mut self, _at: &At, _slice: Slice) {}
    /// Something ends here.
    #[inline]
    fn ends(&mut self, _at: &At, _ends: Ends) {}
    /// A thread did something for a while; `thread` is in its new state.
    #[inline]
    fn span(&mut self, _thread: &Thread, _ended: &Ended) {}
    /// Events are missing: what the thread did since its last span is not known.
    fn incomplete(&mut self, _thread: &Thread) {}
    /// A system call is over, or its end is missing.
    #[inline]
    fn call(&mut self, _call: NameId, _request: Option<NameId>, _took: Took) {}
    /// A whole call (strace), which began at `at`; `thread` is none where the trace does not say.
    fn whole_call(&mut self, _at: &At, _call: &Call, _took: Took, _returned: Option<i64>) {}
    /// The guest left, by `kvm_exit` or to user space.
    #[inline]
    fn left(&mut self, _at: &At, _thread: &Thread) {}
    /// An exit to user space is over.
    #[inline]
    fn userspace_exit(&mut self, _reason: NameId, _took: Took) {}
    /// A request is over; called before [`Visitor::resumed`].
    #[inline]
    fn request(&mut self, _at: &At, _thread: &Thread, _request: &Request<'_>) {}
    /// What the thread's last request, which nothing was known of, was for.
    fn late(&mut self, _at: &At, _thread: &Thread, _access: Access, _took: Took) {}
    /// What the thread's last request was for will never be known.
    #[inline]
    fn unclaimed(&mut self, _thread: &Thread) {}
    /// The guest goes on, by `kvm_entry` or `KVM_RUN`.
    #[inline]
    fn resumed(&mut self, _at: &At, _thread: &Thread) {}
    /// An access is reported; what it belongs to, if anything, is reported separately.
    #[inline]
    fn reported(&mut self, _at: &At, _thread: Option<&Thread>, _access: Access) {}
    /// An access that is of no request whose time is known.
    fn untimed(&mut self, _access: Access) {}
    /// From one line of a device model's log to the next, an access was served at the beginning
    /// (a write) or at the end (a read), and the guest may have run meanwhile.
    fn logged(&mut self, _at: &At, _thread: &Thread, _access: Access, _open: Open) {}
    /// A CPU gets an interrupt.
    #[inline]
    fn interrupted(&mut self, _interrupt: Interrupt) {}
    /// Its handler returns.
    #[inline]
    fn handled(&mut self, _interrupt: Interrupt, _took: Took) {}
    /// A soft interrupt's handler returns, which ran since `since` in a thread's time on a CPU; only
    /// if [`Visitor::WAKERS`].
    fn softirq(&mut self, _at: &At, _thread: &Thread, _action: NameId, _since: u64) {}
    /// A CPU interrupts another.
    #[inline]
    fn ipi(&mut self, _at: &At, _name: NameId) {}
    /// A thread, not an interrupt that came to it, has another CPU run a function.
    fn calls_cpu(&mut self, _at: &At, _thread: &Thread, _function: NameId) {}
    /// The kernel does something that says why somebody waits, for a thread or in an interrupt;
    /// only if [`Visitor::WAKERS`].
    fn sign(&mut self, _at: &At, _thread: Option<&Thread>, _sign: Sign) {}
    /// A thread touches a page that is not there, in user space; only if [`Visitor::WAKERS`].
    #[inline]
    fn page_fault(&mut self, _at: &At, _thread: &Thread) {}
    /// A thread has waited for a lock of the kernel; only if [`Visitor::WAKERS`].
    fn lock_waited(&mut self, _at: &At, _thread: &Thread, _kind: Lock, _open: Open) {}
    /// A thread or process begins.
    #[inline]
    fn forked(&mut self, _at: &At, _child: i32) {}
    /// A thread queues a work item, not an interrupt that came to it.
    #[inline]
    fn queued(&mut self, _at: &At, _thread: &Thread, _function: NameId) {}
    /// A work item begins.
    #[inline]
    fn work_begins(&mut self, _at: &At, _item: u64, _function: NameId) {}
    /// A work item is done, or its end is missing.
    #[inline]
    fn work(&mut self, _function: NameId, _took: Took) {}
    /// A CPU goes over to a thread; called before that changes.
    #[inline]
    fn switched(&mut self, _at: &At, _prev: i32, _next: Option<&Thread>) {}
    /// A thread is woken, whether it slept or not; called before that changes.
    #[inline]
    fn woken(&mut self, _at: &At, _thread: &Thread, _waker: Waker) {}
    /// A Xen vCPU was in a runstate for a while.
    fn vcpu_span(&mut self, _vcpu: VcpuId, _ended: &VcpuSpan) {}
    /// A Xen domain's vCPUs together were in a state (an index of [`super::vcpu::DOMAIN_RUNSTATES`])
    /// for so many ticks.
    fn domain_span(&mut self, _domain: u16, _state: u8, _ticks: u64) {}
    /// A Xen vCPU leaves the guest.
    fn vcpu_left(&mut self, _at: &At, _vcpu: VcpuId) {}
    /// A Xen vCPU's VMEXIT is over, waiting for a CPU left out.
    fn vcpu_exit(&mut self, _exit: &VcpuExit) {}
    /// A Xen vCPU's request is over.
    fn vcpu_request(&mut self, _at: &At, _vcpu: VcpuId, _request: &VcpuRequest) {}
    /// A Xen vCPU enters the guest, which one need not be known.
    fn vcpu_resumed(&mut self, _at: &At) {}
    /// Events are missing here.
    fn lost(&mut self, _at: &At) {}
}
