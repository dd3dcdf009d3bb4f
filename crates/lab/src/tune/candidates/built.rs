//! Kernels that `vmeter kernel` has built. vmeter tune builds none itself: a build takes longer than
//! a search.

use super::Candidate;
use crate::findings::catalogue::{files, Part, Remedy, UserChange};
use vmeter_model::tune::{Allow, Keep};
use vmeter_timeline::registry;

const KERNEL: Remedy = Remedy {
    needs: Some(Allow::KernelBuild),
    breaks: &[Keep::Kernel],
    predicts: &[
        Part::Span("kernel:initcalls-before-userspace", 0.0, 0.9),
        Part::Span("kernel:entry", 0.0, 0.6),
        Part::Span("kernel:decompress", 0.0, 0.8),
    ],
    ..Remedy::FREE
};

pub(super) const ALL: &[Candidate] = &[
    Candidate {
        cause: registry::KERNEL_OPTIONS,
        remedy: Remedy {
            changes: &[UserChange::Make("kernel by `vmeter kernel diet`", files::dieted_kernel)],
            gives_up: "kernel options; the file `fragment` beside this kernel has the list",
            conflicts: &["kernel-minimal"],
            ..KERNEL
        },
    },
    Candidate {
        cause: registry::KERNEL_MINIMAL,
        remedy: Remedy {
            changes: &[UserChange::Make("vmeter's minimal kernel", files::minimal_kernel)],
            gives_up: "all kernel options except those that vmeter's guest needs",
            breaks: &[
                Keep::Kernel,
                Keep::Hotplug,
                Keep::Network,
                Keep::Display,
                Keep::Input,
                Keep::Usb,
                Keep::Debug,
                Keep::Suspend,
            ],
            conflicts: &["kernel-options"],
            ..KERNEL
        },
    },
];
