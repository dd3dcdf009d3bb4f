//! The kernel, by its command line, and how it is entered.

use super::{files, Finding, Pair, Part, Remedy, UserChange, UserRemedy};
use crate::findings::change::Change::{Kernel, Machine, Smp};
use vmeter_model::findings::Price;
use vmeter_model::tune::{Allow, Keep};
use vmeter_timeline::registry;

pub(super) const ENTRY: Finding = Finding {
    cause: registry::KERNEL_ENTRY,
    what: "before the kernel logs its first line, it decompresses and relocates itself",
    published: "80 ms of unexplained work",
    stand_in: "",
    expected: &["kernel:decompress", "kernel:setup"],
    contrasts: &[Pair::of(&[], &[Machine("pvh")])],
    price: Price::Kernel,
    remedy: "the uncompressed kernel, entered by PVH (-kernel vmlinux; --machine pvh)",
    user_remedy: UserRemedy::Remedy(Remedy {
        absent: |machine| machine.has_no_packed_kernel(),
        changes: &[UserChange::Make("vmlinux", files::enter_by_pvh)],
        // What moves a kernel to a random address is the decompressor (arch/x86/boot/compressed/kaslr.c).
        gives_up: "KASLR, because the decompressor applies it, and an uncompressed kernel has no \
            decompressor",
        needs: Some(Allow::Insecure),
        safe_if: &["nokaslr"],
        breaks: &[Keep::Kernel],
        conflicts: &["edd"],
        predicts: &[
            Part::Span("kernel:decompress", 0.9, 1.0),
            Part::Span("kernel:setup", 0.5, 1.0),
            Part::Span("kernel:load", 0.0, 0.3),
        ],
    }),
};

pub(super) const ACPI_OFF: Finding = Finding {
    cause: registry::ACPI_OFF,
    what: "to initialise devices, the kernel interprets the code in the tables",
    published: "190 → 0 ms, not reproduced on later VMMs",
    stand_in: "",
    expected: &["kernel:initcalls-before-userspace"],
    contrasts: &[Pair::of(&[Kernel("vmeter.exit=reset")], &[Kernel("acpi=off vmeter.exit=reset")])],
    price: Price::OtherMachine,
    remedy: "acpi=off (the machine then can't be powered off)",
    user_remedy: UserRemedy::Never(
        "a machine without ACPI is a different machine: its guest cannot power it off",
    ),
};

pub(super) const FTRACE: Finding = Finding {
    cause: registry::FTRACE_INIT,
    what: "ftrace patches every function of the kernel at boot",
    published: "20 ms",
    stand_in: "",
    expected: &["kernel:ftrace_init"],
    contrasts: &[Pair::part()],
    price: Price::Kernel,
    remedy: "a kernel without CONFIG_FUNCTION_TRACER",
    user_remedy: UserRemedy::Never("the remedy needs another kernel"),
};

// arch/x86/kernel/alternative.c, alternative_instructions(): only where one CPU is present, or maxcpus=
// allows no more.
pub(super) const LOCK_PREFIXES: Finding = Finding {
    cause: registry::LOCK_PREFIXES,
    what: "with one vCPU, the kernel looks for each LOCK prefix in its code and replaces it",
    published: "not named",
    stand_in: "",
    expected: &["kernel:mitigations-and-alternatives"],
    contrasts: &[Pair::of(&[Smp(1)], &[Smp(1), Kernel("noreplace-smp")])],
    price: Price::KernelParameter,
    remedy: "noreplace-smp (with -smp 1)",
    user_remedy: UserRemedy::Remedy(Remedy {
        absent: |machine| {
            let several = machine.smp() > 1;
            let why = several.then(|| "it has several vCPUs".to_owned());
            why.or_else(|| machine.says("noreplace-smp"))
        },
        changes: &[UserChange::Kernel("noreplace-smp")],
        gives_up: "atomic instructions without the LOCK prefix",
        predicts: &[Part::Span("kernel:mitigations-and-alternatives", 0.0, 0.7)],
        ..Remedy::FREE
    }),
};

pub(super) const CRYPTO_TESTS: Finding = Finding {
    cause: registry::CRYPTO_TESTS,
    what: "the kernel tests each cipher and hash when it registers the algorithm",
    published: "18 → 0 ms (aesni_init)",
    stand_in: "",
    expected: &["initcall crypto_algapi_init", "kernel:initcalls-before-userspace"],
    contrasts: &[Pair::of(&[], &[Kernel("cryptomgr.notests")])],
    price: Price::KernelParameter,
    remedy: "cryptomgr.notests",
    user_remedy: UserRemedy::Remedy(Remedy {
        absent: |machine| machine.says("cryptomgr.notests"),
        changes: &[UserChange::Kernel("cryptomgr.notests")],
        gives_up: "the self-tests of ciphers, which FIPS asks for",
        predicts: &[
            Part::Span("initcall crypto_algapi_init", 0.7, 1.0),
            Part::Span("initcall crypto_selftests", 0.7, 1.0),
            Part::Span("initcall *_mod_init", 0.0, 0.9),
        ],
        ..Remedy::FREE
    }),
};

pub(super) const SERIAL_8250: Finding = Finding {
    cause: registry::SERIAL8250_INIT,
    what: "serial8250_init looks for as many UARTs as it was configured for",
    published: "25 ms",
    stand_in: "",
    expected: &["initcall serial8250_init"],
    contrasts: &[Pair::of(&[], &[Kernel("8250.nr_uarts=1")])],
    price: Price::KernelParameter,
    remedy: "8250.nr_uarts=1",
    user_remedy: UserRemedy::Remedy(Remedy {
        absent: |machine| machine.says("8250.nr_uarts"),
        changes: &[UserChange::Kernel("8250.nr_uarts=1")],
        gives_up: "serial ports from the second one on",
        breaks: &[Keep::Serial],
        predicts: &[Part::Span("initcall serial8250_init", 0.2, 1.0)],
        ..Remedy::FREE
    }),
};

pub(super) const INITCALLS: Finding = Finding {
    cause: registry::INITCALLS,
    what: "the kernel runs hundreds of initcalls, many of which take a fraction of a millisecond",
    published: "690 ms",
    stand_in: "",
    expected: &["kernel:initcalls-before-userspace"],
    contrasts: &[Pair::part()],
    price: Price::Kernel,
    remedy: "a smaller kernel: custom-kernel, minimal-kernel",
    user_remedy: UserRemedy::Never(
        "the remedy needs another kernel: see custom-kernel and minimal-kernel",
    ),
};
