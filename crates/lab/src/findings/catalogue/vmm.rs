//! Before the guest's first instruction: the VMM, and who starts it.

use super::{Finding, Pair, Part, Remedy, UserChange, UserRemedy};
use crate::findings::change::Change::{Make, Vmm};
use vmeter_model::findings::Price;
use vmeter_timeline::registry;

pub(super) const LINK_LOADING: Finding = Finding {
    cause: registry::VMM_LINK_LOADING,
    what: "the dynamic linker resolves the VMM's symbols at every start",
    published: "60 ms for `qemu -version`",
    stand_in: "",
    expected: &["vmm:link"],
    contrasts: &[Pair::part()],
    price: Price::OtherMachine,
    remedy: "a VMM that loads fewer libraries, or a statically linked VMM",
    user_remedy: UserRemedy::Never("a VMM that is linked differently is a different program"),
};

pub(super) const FW_CFG_DMA: Finding = Finding {
    cause: registry::FW_CFG_DMA,
    what: "the firmware fetches kernel and initrd byte by byte through a port",
    published: "700 → ~0 ms",
    stand_in: "",
    expected: &["bios:overhead", "kernel:load"],
    contrasts: &[Pair::of(&[Vmm(&["-global", "fw_cfg.dma_enabled=off"])], &[])],
    price: Price::VmmOption,
    remedy: "-global fw_cfg.dma_enabled=on, or a machine type that has fw_cfg's DMA",
    user_remedy: UserRemedy::Remedy(Remedy {
        absent: |machine| {
            let off =
                machine.has_value("fw_cfg.dma_enabled=off") || machine.is_without_fw_cfg_dma();
            (!off).then(|| "nothing in its command line turns fw_cfg's DMA off".into())
        },
        changes: &[UserChange::Arguments(&["-global", "fw_cfg.dma_enabled=on"])],
        predicts: &[Part::Span("kernel:load", 0.5, 1.0), Part::Span("bios:overhead", 0.0, 0.9)],
        ..Remedy::FREE
    }),
};

/// What libguestfs asked before it remembered the answers, once for each kernel that is started.
/// Asked by way of the dynamic linker: a process called after QEMU would be taken for the machine.
const ASKS: &str = "#!/bin/sh
# Before each start, this script asks the VMM what it can do.
case \" $* \" in *\" -kernel \"*) ;; *) exec {vmm} \"$@\" ;; esac
vmm=$(command -v {vmm}) || exit 127
for question in -help -version '-device help'; do
    /lib64/ld-linux-x86-64.so.2 \"$vmm\" $question >/dev/null 2>&1
done
exec {vmm} \"$@\"
";

pub(super) const FEATURE_DETECTION: Finding = Finding {
    cause: registry::FEATURE_DETECTION,
    what: "the launcher runs `-help`, `-version` and `-device help` and remembers no answer",
    published: "99 → 0 ms",
    stand_in: "",
    expected: &["vmm:wrapper"],
    contrasts: &[
        Pair::of(&[Make(|builder, spec| builder.launcher(spec, "asks", ASKS))], &[]).timed_only()
    ],
    price: Price::Launcher,
    remedy: "cache the answers, keyed by the size and mtime of the VMM's file",
    user_remedy: UserRemedy::Never(
        "vmeter starts the VMM without querying its features: only a launcher of your own can \
         have this cause",
    ),
};

/// Starts the machine stopped, waits for the monitor's greeting and lets it go.
const WAITS: &str = "#!/bin/sh
# Lets the machine run only after the VMM's monitor has answered.
case \" $* \" in *\" -kernel \"*) ;; *) exec {vmm} \"$@\" ;; esac
d=$(mktemp -d) && mkfifo \"$d/m.in\" \"$d/m.out\" || exit 1
(
    exec 3>\"$d/m.in\" 4<\"$d/m.out\"
    read -r greeting <&4
    echo '{\"execute\":\"qmp_capabilities\"}' >&3
    read -r agreed <&4
    echo '{\"execute\":\"query-status\"}' >&3
    read -r status <&4
    echo '{\"execute\":\"cont\"}' >&3
    read -r running <&4
    rm -rf \"$d\"
) </dev/null >/dev/null 2>&1 &
exec {vmm} \"$@\" -S -chardev \"pipe,id=launcher,path=$d/m\" -mon chardev=launcher,mode=control
";

pub(super) const MONITOR_WAIT: Finding = Finding {
    cause: registry::MONITOR_WAIT,
    what: "the launcher starts the VMM with the machine paused, and later sends a monitor \
        command that lets the machine run",
    published: "200 ms (libvirt)",
    stand_in: "a script that stands in for libvirt and waits for QMP's greeting in a blocking \
        read, not in a loop that polls and sleeps",
    expected: &["vmm:init", "vmm:wrapper"],
    contrasts: &[
        Pair::of(&[Make(|builder, spec| builder.launcher(spec, "waits", WAITS))], &[]).timed_only()
    ],
    price: Price::Launcher,
    remedy: "start the VMM without -S, or use a launcher that does not poll",
    user_remedy: UserRemedy::Remedy(Remedy {
        absent: |machine| {
            let stopped = machine.has_word("-S");
            Some(if stopped {
                "with -S, the machine stays paused until a launcher lets it run".into()
            } else {
                "its command line has no -S, so the guest runs at once".into()
            })
        },
        changes: &[],
        ..Remedy::FREE
    }),
};
