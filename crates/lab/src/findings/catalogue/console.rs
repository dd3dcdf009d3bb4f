//! What is printed, and to where.

use super::{Finding, Pair, Part, Remedy, UserChange, UserRemedy};
use crate::findings::change::Change::{Kernel, Vmm};
use vmeter_model::findings::Price;
use vmeter_model::tune::Keep;
use vmeter_timeline::registry;

pub(super) const UART_COST: Finding = Finding {
    cause: registry::UART_COST,
    what: "each character on a serial port causes one or more exits to the VMM",
    published: "4 µs a character (another framework measured 2.5 µs)",
    stand_in: "",
    expected: &["/init:print ttyS0 20480"],
    contrasts: &[Pair::of(&[Kernel("vmeter.print=ttyS0:20480")], &[]).per(20480.0, "character")],
    price: Price::KernelParameter,
    remedy: "print less, or print to a virtio console (see the table of consoles)",
    user_remedy: UserRemedy::Never(
        "the remedy is to print less of the kernel's log: see the finding `console-log`",
    ),
};

pub(super) const SERIAL_BIOS: Finding = Finding {
    cause: registry::SGABIOS,
    what: "the firmware prints its screen to the UART as well",
    published: "260 → 0 ms (SGABIOS)",
    stand_in: "vmeter measures SeaBIOS's own serial console (sercon): no package contains \
        SGABIOS any more",
    expected: &["bios:overhead"],
    contrasts: &[Pair::of(&[Vmm(&["-machine", "graphics=off"])], &[])],
    price: Price::VmmOption,
    remedy: "-machine graphics=on with -display none",
    user_remedy: UserRemedy::Remedy(Remedy {
        absent: |machine| {
            let on = machine.has_value("graphics=off") || machine.has_word("-nographic");
            let no = || {
                "its command line has neither -nographic nor graphics=off, so the BIOS has no \
                serial console"
            };
            (!on).then(|| no().into())
        },
        changes: &[UserChange::Arguments(&["-machine", "graphics=on"])],
        gives_up: "the firmware's text on the serial port",
        breaks: &[Keep::Log],
        predicts: &[Part::Span("bios:*", 0.0, 0.7)],
        ..Remedy::FREE
    }),
};

pub(super) const QUIET: Finding = Finding {
    cause: registry::CONSOLE_LOG,
    what: "every line of the kernel's log goes through the UART while the boot waits",
    published: "3500 → 2500 ms",
    stand_in: "",
    expected: &["kernel:initcalls-before-userspace"],
    contrasts: &[
        Pair::of(&[Kernel("ignore_loglevel initcall_debug")], &[]).named("with initcall_debug"),
        Pair::of(&[Kernel("loglevel=7")], &[]).named("the usual log"),
    ],
    price: Price::KernelParameter,
    remedy: "quiet; initcall times from ftrace, not the console",
    user_remedy: UserRemedy::Remedy(Remedy {
        absent: |machine| machine.is_quiet(),
        changes: &[
            UserChange::KernelLess("ignore_loglevel"),
            UserChange::KernelLess("initcall_debug"),
            UserChange::Kernel("quiet loglevel=4"),
        ],
        gives_up: "the kernel's log on the console; dmesg keeps it",
        breaks: &[Keep::Log],
        predicts: &[
            Part::Printing(0.5, 1.0),
            Part::Span("kernel:initcalls-before-userspace", 0.0, 0.1),
        ],
        ..Remedy::FREE
    }),
};
