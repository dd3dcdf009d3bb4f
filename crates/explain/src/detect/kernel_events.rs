//! What the kernel's own events say of why somebody waits: memory that is taken back, a connection
//! that nobody answers.
//!
//! That a call waits for a disk, or for the network, is seen in its sleeps. Why it does, these
//! events say (vscan, writeback, tcp), where they are recorded.

use super::patterns::link;
use super::view::LEAST_COUNT;
use super::{Candidate, Detector, View};
use crate::evidence::calls::{Caller, Provoked};
use crate::evidence::groups::GroupId;
use crate::evidence::tree::Frame;
use crate::kind::Why;
use crate::result::Severity;
use std::collections::BTreeMap;
use vmeter_render::quantity::{brief_percent, grouped};
use vmeter_trace::ops::Sign;

/// Share of the traced time that the call takes.
const SHARE: f64 = 0.1;
/// Connections that are asked for again: fewer are an accident.
const AGAIN: u64 = 3;
/// After which TCP asks again for the first time, s (kernel: include/net/tcp.h,
/// `TCP_TIMEOUT_INIT`), and least time after which it sends data again (`TCP_RTO_MIN`).
const SYN_S: f64 = 1.0;
const DATA_S: f64 = 0.2;

/// What such events say.
pub struct KernelEvents;

impl Detector for KernelEvents {
    fn detect(&self, view: &View<'_>) -> Vec<Candidate> {
        let mut by: BTreeMap<(Sign, Option<Caller>), Provoked> = BTreeMap::new();
        for ((who, sign), seen) in &view.evidence.ledger.signs {
            // It is for whom a connection is, not whom the interrupt came to.
            let who = if again(*sign).is_some() { None } else { *who };
            let sum = by.entry((*sign, who)).or_default();
            (sum.count, sum.first) = (sum.count + seen.count, sum.first.or(seen.first));
        }
        let told = by.into_iter().filter_map(|((sign, who), seen)| match who {
            None => self.sent_again(view, again(sign)?, &seen),
            Some(who) => self.reclaims(view, sign, who, &seen),
        });
        let mut told: Vec<Candidate> = told.collect();
        // The one that takes most says it for all.
        told.sort_by_key(|candidate| std::cmp::Reverse(candidate.saving));
        told.truncate(1);
        told
    }
}

/// For what port something is sent again, and whether it is a connection's first word.
fn again(sign: Sign) -> Option<(u16, bool)> {
    match sign {
        Sign::SynAgain { port } => Some((port, true)),
        Sign::SentAgain { port } => Some((port, false)),
        Sign::CgroupReclaim | Sign::Reclaim | Sign::Dirty | Sign::Delivered => None,
    }
}

impl KernelEvents {
    /// A call in which memory is taken back, or is not there yet.
    fn reclaims(
        &self,
        view: &View<'_>,
        sign: Sign,
        (group, call): Caller,
        Provoked { count, first }: &Provoked,
    ) -> Option<Candidate> {
        let (count, first) = (*count, *first);
        let (why, suggestion) = why(sign)?;
        let tree = view.tree();
        let root = tree.root_of(Frame::Life(group))?;
        let inside = |frame: &Frame| match call {
            Some(call) => *frame == Frame::Call(call),
            // Whoever waits for a thread, or a time, does not touch memory meanwhile.
            None => !matches!(
                frame,
                Frame::Call(_) | Frame::Waker(_) | Frame::Timer | Frame::NoCpu | Frame::Idle
            ),
        };
        let within = tree.within(root);
        let parts = within.iter().filter(|(_, node)| inside(&node.frame));
        let ticks = crate::sum(parts.map(|(_, node)| node.ticks));
        let file = first?.file;
        if count < LEAST_COUNT || view.share(ticks) < SHARE {
            return None;
        }
        let (name, times) = (view.threads(group), grouped(&count.to_string()));
        let place = call.map_or(String::new(), |call| format!(" in {}", view.name(call)));
        let claim = format!(
            "{name} runs or waits{place} for {} ({} of the traced time). In that time {why} \
                {times} times ({event})",
            view.time(ticks as f64),
            brief_percent(view.share(ticks)),
            event = sign.event(),
        );
        Some(Candidate {
            why: if sign == Sign::Dirty { Why::Dirty } else { Why::Reclaim },
            subject: name.clone(),
            saving: ticks,
            summary: format!("{name} is slow{place}: {why}, {times} times"),
            chain: vec![link(view, file, claim, count, ticks, first.map(|place| (0, place)))],
            suggestion: suggestion.into(),
            confirm: "grep -H . /sys/fs/cgroup/*/memory.{max,high,events}; vmstat 1 5".into(),
            max_severity: Some(Severity::Medium),
            other_program: view.is_foreign(group),
            ..Candidate::default()
        })
    }

    /// TCP sends again what nobody has answered.
    fn sent_again(
        &self,
        view: &View<'_>,
        (port, first_word): (u16, bool),
        Provoked { count, first }: &Provoked,
    ) -> Option<Candidate> {
        let (count, first) = (*count, *first);
        let (file, tick) = (first?.file, view.seconds(1).filter(|tick| *tick > 0.0)?);
        let (least, each) = if first_word { (AGAIN, SYN_S) } else { (LEAST_COUNT, DATA_S) };
        let who = if first_word { in_connect(view) } else { None };
        let bound = (count as f64 * each / tick) as u64;
        let waited = who.as_ref().map_or(bound, |(_, ticks)| *ticks);
        let saving = waited.min(view.evidence.span());
        if count < least || view.share(saving) < SHARE {
            return None;
        }
        let times = grouped(&count.to_string());
        let name = who.map_or("a client".to_string(), |(group, _)| view.threads(group));
        let words = match first_word {
            true => unanswered(&name, port, &times),
            false => lost(port, &times),
        };
        let [summary, claim, suggestion] = words;
        Some(Candidate {
            why: Why::SentAgain,
            subject: format!("TCP port {port}"),
            saving,
            summary,
            chain: vec![link(view, file, claim, count, saving, first.map(|place| (0, place)))],
            suggestion,
            confirm: "nstat -az TcpExtListenOverflows TcpExtTCPSynRetrans TcpRetransSegs; ss -ltn"
                .into(),
            max_severity: Some(Severity::Medium),
            ..Candidate::default()
        })
    }
}

/// Why a call takes long in which the kernel does that, and what to change; none if it is no call.
fn why(sign: Sign) -> Option<(&'static str, &'static str)> {
    Some(match sign {
        Sign::CgroupReclaim => (
            "its memory cgroup is full and pages are reclaimed",
            "raise memory.high and memory.max of that cgroup, or use less memory: the kernel \
                must write a changed page to disk before it reclaims the page, and read a page \
                again when a program next uses it",
        ),
        Sign::Reclaim => (
            "it finds no free memory and reclaims pages itself",
            "add memory, run fewer other programs at the same time, or raise vm.min_free_kbytes \
                so that kswapd begins sooner",
        ),
        Sign::Dirty => (
            "the kernel makes it wait because too many dirty pages wait for the disk",
            "use a faster disk, or write less: vm.dirty_bytes sets the amount of dirty data at \
                which writers must wait",
        ),
        Sign::SynAgain { .. } | Sign::SentAgain { .. } | Sign::Delivered => return None,
    })
}

/// A connection that nobody answers: headline, claim, what to change.
fn unanswered(name: &str, port: u16, times: &str) -> [String; 3] {
    [
        format!(
            "{name} waits in connect: port {port} does not answer, and the kernel retransmits \
                {times} SYNs; TCP waits 1 s before it first retransmits a SYN"
        ),
        format!(
            "{times} SYNs for port {port} are retransmitted (tcp_retransmit_skb, TCP_SYN_SENT): \
                the listener's queue is full, or packets are lost; TCP waits at least 1 s before \
                it retransmits a SYN"
        ),
        format!(
            "the program that listens on port {port} must accept sooner, or needs a longer queue \
                (listen's backlog, net.core.somaxconn)"
        ),
    ]
}

/// Data that nobody acknowledges, likewise.
fn lost(port: u16, times: &str) -> [String; 3] {
    [
        format!("TCP retransmits data {times} times to port {port}: packets are lost"),
        format!(
            "TCP retransmits {times} segments to port {port} (tcp_retransmit_skb); if a \
                segment is lost and the peer acknowledges none of the segments that follow it, \
                TCP waits 200 ms or more before it retransmits"
        ),
        "find where packets are lost: ip -s link, tc -s qdisc, nstat -az TcpRetransSegs".into(),
    ]
}

/// Whose threads are in connect for longest, and how long.
fn in_connect(view: &View<'_>) -> Option<(GroupId, u64)> {
    let tree = view.tree();
    let all = tree.roots().filter_map(|(at, node)| {
        let Frame::Life(group) = node.frame else { return None };
        let calls = tree.within(at).into_iter().filter(
            |(_, node)| matches!(node.frame, Frame::Call(call) if view.name(call) == "connect"),
        );
        Some((group, calls.map(|(_, node)| node.ticks).sum::<u64>()))
    });
    all.filter(|(_, ticks)| *ticks > 0).max_by_key(|(group, ticks)| (*ticks, *group))
}
