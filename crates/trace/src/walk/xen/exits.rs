//! What a Xen vCPU left its guest for, and how long that took: the VMEXIT as xenalyze times
//! it, and the request from VMEXIT to VMENTRY.

use crate::ops::Access;
use crate::walk::vcpu::{VcpuExit, VcpuRequest};
use crate::walk::{At, Open, Took};

/// Which record decides where a VMEXIT's time goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Handler {
    #[default]
    Generic,
    Cr,
    Access(Access),
}

#[derive(Debug, Clone, Copy, Default)]
struct Exit {
    valid: bool,
    start: u64,
    reason: u32,
    handler: Handler,
}

#[derive(Debug, Clone, Copy)]
struct Pending {
    open: Open,
    access: Option<Access>,
    incomplete: bool,
}

/// The VMEXIT and the request that are open in one vCPU.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Exits {
    /// VMEXITs begun.
    pub(super) seen: u64,
    exit: Exit,
    request: Option<Pending>,
}

impl Exits {
    pub(super) fn begin(&mut self, at: &At, reason: u32) {
        self.seen += 1;
        self.exit = Exit { valid: true, start: at.ts, reason, handler: Handler::Generic };
        self.request = Some(Pending { open: Open::at(at), access: None, incomplete: false });
    }

    /// Takes a handler's record. Returns by how much it speaks for reasons that are numbered
    /// as SVM's, or, below 0, as VMX's.
    pub(super) fn handled(&mut self, access: Access) -> i64 {
        if let Some(request) = &mut self.request {
            request.access.get_or_insert(access);
        }
        if !self.exit.valid {
            return 0;
        }
        let reason = self.exit.reason;
        match (self.exit.handler, access) {
            (Handler::Generic, _) => self.exit.handler = Handler::Access(access),
            // The handler's own direction counts, the last port's number.
            (Handler::Access(Access::Port { write, .. }), Access::Port { port, .. }) => {
                self.exit.handler = Handler::Access(Access::Port { port, write });
            }
            (Handler::Access(Access::Mmio { .. }), Access::Mmio { .. })
            | (Handler::Access(Access::Msr { .. }), Access::Msr { .. }) => {
                self.exit.handler = Handler::Access(access);
            }
            (Handler::Access(_) | Handler::Cr, _) => {}
        }
        let (svm, vmx): (u32, &[u32]) = match access {
            Access::Port { .. } => (0x7b, &[30]),
            Access::Msr { .. } => (0x7c, &[31, 32]),
            Access::Hypercall { .. } => (0x81, &[18]),
            Access::Mmio { .. } => return 0,
        };
        i64::from(reason == svm) - i64::from(vmx.contains(&reason))
    }

    /// The handler wrote a control register.
    pub(super) fn cr_written(&mut self) {
        if self.exit.valid && self.exit.handler == Handler::Generic {
            self.exit.handler = Handler::Cr;
        }
    }

    /// The VMEXIT is over; none if there was none, or if records of it are missing.
    pub(super) fn close(&mut self, now: u64) -> Option<VcpuExit> {
        let Exit { valid, start, reason, handler } = self.exit;
        self.exit.valid = false;
        let access = match handler {
            Handler::Generic | Handler::Cr => None,
            Handler::Access(access) => Some(access),
        };
        let took = now.checked_sub(start).filter(|&ticks| ticks > 0).into();
        valid.then_some(VcpuExit { reason, took, access })
    }

    /// The guest goes on: the request is served.
    pub(super) fn resumed(&mut self, now: u64) -> Option<VcpuRequest> {
        let Pending { open, access, incomplete } = self.request.take()?;
        let took = match now.checked_sub(open.start) {
            Some(_) if incomplete => Took::Cut,
            ticks => ticks.into(),
        };
        Some(VcpuRequest { open, took, access })
    }

    /// Records are missing that may have been the vCPU's own.
    pub(super) fn tear(&mut self) {
        self.exit.valid = false;
        if let Some(request) = &mut self.request {
            request.incomplete = true;
        }
    }
}
