//! What the kernel does on the way, which says why a call takes long.

/// TCP's state of a connection that nobody has answered (kernel: include/net/tcp_states.h).
const SYN_SENT: u64 = 2;

/// A sign of why somebody waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Sign {
    /// Pages are taken from the thread's own memory cgroup, which is full
    /// (`vmscan:mm_vmscan_memcg_reclaim_begin`).
    CgroupReclaim,
    /// Pages are taken from anybody, as there is no free memory
    /// (`vmscan:mm_vmscan_direct_reclaim_begin`).
    Reclaim,
    /// A thread that writes is made to wait for what it has written to reach the disk
    /// (`writeback:balance_dirty_pages`).
    Dirty,
    /// A thread is about to run a signal's handler, or what the signal does without one
    /// (`signal:signal_deliver`).
    Delivered,
    /// A connection is asked for again, of which nothing was heard (`tcp:tcp_retransmit_skb`).
    SynAgain {
        /// The port that it is for.
        port: u16,
    },
    /// Data that were not acknowledged are sent again (`tcp:tcp_retransmit_skb`).
    SentAgain {
        /// The port that they are for.
        port: u16,
    },
}

impl Sign {
    /// The event that says it.
    pub fn event(self) -> &'static str {
        match self {
            Sign::CgroupReclaim => "mm_vmscan_memcg_reclaim_begin",
            Sign::Reclaim => "mm_vmscan_direct_reclaim_begin",
            Sign::Dirty => "balance_dirty_pages",
            Sign::Delivered => "signal_deliver",
            Sign::SynAgain { .. } | Sign::SentAgain { .. } => "tcp_retransmit_skb",
        }
    }

    /// TCP sends again, in a state of the connection.
    pub(super) fn again(state: u64, port: u64) -> Sign {
        let port = port as u16;
        match state {
            SYN_SENT => Sign::SynAgain { port },
            _ => Sign::SentAgain { port },
        }
    }

    /// The same of a state's name.
    pub(super) fn again_by_name(state: &str, port: u64) -> Sign {
        Sign::again(if state == "TCP_SYN_SENT" { SYN_SENT } else { 0 }, port)
    }
}
