//! What the walk tells its visitors, from ops made by hand.

use vmeter_trace::ops::{Access, NameId, Op, Sleep};
use vmeter_trace::walk::{At, Ended, Open, Request, State, Thread, Took, Visitor, Walk};
use vmeter_trace::{Context, NO_CPU};

const REASON: NameId = NameId(1);
const CLONE: NameId = NameId(2);

/// Keeps all that it is told.
#[derive(Default)]
struct Told {
    requests: Vec<(i32, Took, Vec<Access>)>,
    spans: Vec<(i32, State, u64)>,
    late: Vec<(Access, Took)>,
    logged: Vec<(Access, u64)>,
    losses: usize,
}

impl Visitor for Told {
    fn request(&mut self, _at: &At, thread: &Thread, request: &Request<'_>) {
        self.requests.push((thread.tid, request.took, request.accesses.to_vec()));
    }

    fn span(&mut self, thread: &Thread, ended: &Ended) {
        self.spans.push((thread.tid, ended.state, ended.end - ended.start));
    }

    fn late(&mut self, _at: &At, _thread: &Thread, access: Access, took: Took) {
        self.late.push((access, took));
    }

    fn logged(&mut self, at: &At, _thread: &Thread, access: Access, open: Open) {
        self.logged.push((access, at.ts - open.start));
    }

    fn lost(&mut self, _at: &At) {
        self.losses += 1;
    }
}

fn walked(ops: &[(u64, u32, i32, Op)]) -> Told {
    let (mut walk, mut told) = (Walk::default(), Told::default());
    for &(ts, cpu, tid, op) in ops {
        walk.add(&At { ts, cpu, tid, context: Context::Unknown }, op, &mut told);
    }
    told
}

fn write(port: u32) -> Access {
    Access::Port { port, write: true }
}

/// A vCPU each on CPU 0 and 1, both in a request when events of `lost` are lost.
fn two_vcpus(lost: u32) -> Vec<Took> {
    let exit = Op::VmExit { reason: REASON };
    let told = walked(&[
        (10, 0, 100, exit),
        (11, 0, 100, Op::Access(write(0x70))),
        (12, 1, 101, exit),
        (13, 1, 101, Op::Access(write(0x71))),
        (14, lost, 0, Op::Lost),
        (20, 0, 100, Op::VmEntry),
        (22, 1, 101, Op::VmEntry),
    ]);
    assert_eq!(told.losses, 1);
    assert_eq!(told.requests[0].2, [write(0x70)]);
    told.requests.iter().map(|(_, took, _)| *took).collect()
}

#[test]
fn a_loss_cuts_the_requests_of_its_cpu() {
    assert_eq!(two_vcpus(0), [Took::Cut, Took::Ticks(10)]);
    assert_eq!(two_vcpus(1), [Took::Ticks(10), Took::Cut]);
    assert_eq!(two_vcpus(2), [Took::Ticks(10), Took::Ticks(10)]);
    // Nobody knows of which.
    assert_eq!(two_vcpus(NO_CPU), [Took::Cut, Took::Cut]);
}

#[test]
fn a_new_thread_runs_from_its_return_from_clone() {
    let enter = Op::SyscallEnter { name: CLONE, request: None, kvm_run: false };
    let told = walked(&[
        (10, 0, 100, enter),
        (15, 1, 200, Op::ThreadStart),
        (18, 0, 100, Op::SyscallExit { name: CLONE, returned: Some(200) }),
        (
            25,
            1,
            200,
            Op::Switch { prev: 200, runnable: false, sleep: Sleep::Light, prio: None, next: 0 },
        ),
    ]);
    assert!(told.spans.contains(&(200, State::User, 10)), "{:?}", told.spans);
    assert!(told.spans.contains(&(100, State::Kernel, 8)), "{:?}", told.spans);
}

#[test]
fn software_kvm_tells_of_a_read_when_it_has_been_served() {
    let run = Op::SyscallEnter { name: REASON, request: Some(REASON), kvm_run: true };
    let exit = Op::UserspaceExit { reason: REASON };
    let read = Access::Port { port: 0x71, write: false };
    let told = walked(&[
        (10, 0, 100, Op::Access(write(0x70))),
        (11, 0, 100, exit),
        (20, 0, 100, run),
        (30, 0, 100, exit),
        (50, 0, 100, run),
        (51, 0, 100, Op::Access(read)),
    ]);
    // Each is claimed by what is reported next to it, once the next event tells of none nearer.
    let expected = [(100, Took::Ticks(9), vec![]), (100, Took::Ticks(20), vec![])];
    assert_eq!(told.requests, expected);
    assert_eq!(told.late, [(write(0x70), Took::Ticks(9)), (read, Took::Ticks(20))]);
}

#[test]
fn a_log_has_the_time_after_a_write_and_before_a_read() {
    let read = Access::Port { port: 0x71, write: false };
    let told = walked(&[
        (10, NO_CPU, 7, Op::Logged(write(0x70))),
        (40, NO_CPU, 7, Op::Logged(write(0x72))),
        (41, NO_CPU, 8, Op::Logged(read)),
        (45, NO_CPU, 7, Op::Logged(read)),
        (95, NO_CPU, 7, Op::Logged(read)),
        (99, NO_CPU, 7, Op::Logged(write(0x70))),
    ]);
    assert_eq!(told.logged, [(write(0x70), 30), (write(0x72), 5), (read, 50)]);
}
