//! Initcalls that a guest may do without, left out by `initcall_blacklist=` (kernel:
//! Documentation/admin-guide/kernel-parameters.txt, init/main.c). A kernel without
//! `CONFIG_KALLSYMS` ignores the parameter, and each use of it adds to the list.
//!
//! Only initcalls are named here whose loss is known from their source: nothing of the kernel needs
//! what they register, or does without it.

use super::kernel::words;
use super::Candidate;
use crate::findings::catalogue::{Part, Remedy, UserChange};
use crate::findings::user_machine::OwnMachine;
use vmeter_model::tune::Keep;
use vmeter_timeline::registry::{self, Named};

const fn without(cause: Named, changes: &'static [UserChange], remedy: Remedy) -> Candidate {
    let absent = |machine: &OwnMachine| machine.says("initcall_blacklist");
    words(cause, changes, Remedy { absent, ..remedy })
}

pub(super) const ALL: &[Candidate] = &[
    // The files of tracefs are made by a work item; whichever initcall needs its lock waits for it.
    // Without `event_trace_enable_again` events of system calls stay off, and vmeter would not see
    // what user space does.
    without(
        registry::TRACEFS,
        &[UserChange::Kernel(
            "initcall_blacklist=tracer_init_tracefs,init_kprobe_trace,\
             init_trace_printk_function_export",
        )],
        Remedy {
            gives_up: "the files of tracefs, which perf, trace-cmd and bpftrace need",
            breaks: &[Keep::Debug],
            predicts: &[
                Part::Span("initcall tracer_init_tracefs", 0.5, 1.0),
                Part::Span("initcall init_kprobe_trace", 0.0, 1.0),
                Part::Span("initcall event_trace_enable_again", 0.0, 1.0),
                Part::Span("initcall init_trace_printk_function_export", 0.0, 1.0),
            ],
            ..Remedy::FREE
        },
    ),
    // The first of them parses all types (BTF); these are Linux 6.1's. A kernel with another one
    // parses them there.
    without(
        registry::BPF_FUNCTIONS,
        &[UserChange::Kernel(
            "initcall_blacklist=cubictcp_register,bpf_rstat_kfunc_init,kfunc_init,\
             bpf_prog_test_run_init,bpf_tcp_ca_kfunc_init,bpf_key_sig_kfuncs_init",
        )],
        Remedy {
            gives_up: "kernel functions for BPF programs, and TCP's CUBIC: connections use Reno",
            breaks: &[Keep::Network, Keep::Debug],
            predicts: &[
                Part::Span("initcall cubictcp_register", 0.0, 1.0),
                Part::Span("initcall bpf_*", 0.0, 1.0),
                Part::Span("initcall kfunc_init", 0.0, 1.0),
            ],
            ..Remedy::FREE
        },
    ),
    // `cryptomgr.notests` does not reach it.
    without(
        registry::KDF_TEST,
        &[UserChange::Kernel("initcall_blacklist=crypto_kdf108_init")],
        Remedy {
            gives_up: "the self-test of the key derivation of SP800-108, which FIPS asks for",
            predicts: &[Part::Span("initcall crypto_kdf108_init", 0.7, 1.0)],
            ..Remedy::FREE
        },
    ),
    without(
        registry::SLAB_FILES,
        &[UserChange::Kernel("initcall_blacklist=slab_sysfs_init")],
        Remedy {
            gives_up: "the files in /sys/kernel/slab",
            breaks: &[Keep::Debug],
            predicts: &[Part::Span("initcall slab_sysfs_init", 0.7, 1.0)],
            ..Remedy::FREE
        },
    ),
    without(
        registry::CMOS_CLOCK,
        &[UserChange::Kernel("initcall_blacklist=cmos_init")],
        Remedy {
            gives_up: "/dev/rtc0, with the alarm that ends a suspend",
            breaks: &[Keep::Chipset, Keep::Suspend],
            predicts: &[Part::Span("initcall cmos_init", 0.7, 1.0)],
            ..Remedy::FREE
        },
    ),
    without(
        registry::CERTIFICATES,
        &[UserChange::Kernel("initcall_blacklist=load_system_certificate_list")],
        Remedy {
            gives_up: "the kernel's own certificates; without them, all modules count as unsigned",
            breaks: &[Keep::Kernel],
            predicts: &[Part::Span("initcall load_system_certificate_list", 0.7, 1.0)],
            ..Remedy::FREE
        },
    ),
];
