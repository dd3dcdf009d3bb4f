//! What `-h` shows: one screen of 24 lines a command, with two examples. `--help` shows every option.
//!
//! A new command needs a row in [`SCREENS`]. The tests below hold each screen to its size and
//! parse each example.

use clap::Command;

/// The short help of a command.
struct Screen {
    /// The command's words.
    command: &'static str,
    /// The options that most users need, each in a few words.
    options: &'static [(&'static str, &'static str)],
    /// Command lines that run as they stand, or with a file of the user's.
    examples: &'static [&'static str],
}

const fn screen(
    command: &'static str,
    options: &'static [(&'static str, &'static str)],
    examples: &'static [&'static str],
) -> Screen {
    Screen { command, options, examples }
}

const SCREENS: &[Screen] = &[
    screen(
        "boot",
        &[
            ("machine", "q35, pc, microvm or pvh [default: q35]"),
            ("kernel", "Kernel image [default: newest fetched]"),
            ("append", "Add to the kernel command line"),
            ("until", "End at poweroff, userspace or line:REGEX"),
            ("runs", "Measured boots [default: 5]"),
            ("watch", "none, light or full [default: light]"),
            ("overhead", "Measure how much --watch slows the boot"),
            ("baseline", "Compare with a saved session"),
            ("fail-if-slower", "Exit 1 if more than PCT % slower than --baseline"),
            ("next", "Record the next VM that another program starts"),
            ("long", "Show all tables"),
            ("blame", "Show all activities, longest first"),
        ],
        &["vmeter boot --machine pvh --smp 2", "vmeter boot -- qemu-system-x86_64 -m 512"],
    ),
    screen(
        "bench",
        &[
            ("vs", "Compare with a machine that differs in SPEC"),
            ("detect", "Make enough runs to detect a PCT % difference"),
            ("fail-if-slower", "Exit 1 if a machine is slower by more than PCT %"),
            ("machine", "q35, pc, microvm or pvh [default: q35]"),
            ("kernel", "Kernel image [default: newest fetched]"),
            ("until", "End at poweroff, userspace or line:REGEX"),
            ("runs", "Measured boots of each machine [default: 10]"),
        ],
        &["vmeter bench --vs '--machine pc'", "vmeter bench --detect 2 --vs '--append quiet'"],
    ),
    screen(
        "sweep",
        &[
            ("list", "Vary an option over values"),
            ("range", "Vary an option over a range"),
            ("runs", "Measured boots of each point [default: 5]"),
            ("shard", "Run part I of N; vmeter merge joins them"),
            ("on", "Run on a cluster [possible values: slurm]"),
        ],
        &["vmeter sweep -P pcie-root-ports=0..6", "vmeter sweep -L memory=256,512 -L smp=1,2"],
    ),
    screen(
        "range",
        &[
            ("repo", "The git repository; vmeter only reads it"),
            ("build", "Shell command that builds a commit"),
            ("run", "Shell command to measure instead of a boot"),
            ("bisect", "Search for one commit instead of measuring all"),
            ("kernel", "Kernel image, e.g. {worktree}/bzImage"),
            ("runs", "Measured runs of each commit [default: 5]"),
            (
                "fail-if-slower",
                "Exit 1 if a change (one commit or several) slows the runs by \
                more than PCT %",
            ),
        ],
        &[
            "vmeter range --repo . v1..v2 --run ./bench.sh",
            "vmeter range --repo . v1..v2 --bisect --build make --run ./x",
        ],
    ),
    screen(
        "findings",
        &[
            ("list", "List the known causes"),
            ("long", "Explain each result in words"),
            ("runs", "Measured boots of each machine [default: 10]"),
        ],
        &["vmeter findings console-log", "vmeter findings -- qemu-system-x86_64 -m 512"],
    ),
    screen(
        "tune",
        &[
            ("budget", "Limit of the total time of all boots [default: 15m]"),
            ("worth", "Smallest gain worth a change, % [default: 1]"),
            ("keep", "What to keep, e.g. acpi,console,network"),
            ("allow", "insecure: also try less safe changes"),
            ("output-file", "Write the tuned machine as a shell script"),
            ("long", "Show why each change was taken or rejected"),
            ("until", "End at poweroff, userspace or line:REGEX"),
        ],
        &["vmeter tune --budget 10m", "vmeter tune -o tuned.sh -- qemu-system-x86_64 -m 512"],
    ),
    screen(
        "diff",
        &[("fail-if-slower", "Exit 1 if B is more than PCT % slower")],
        &["vmeter diff before after", "vmeter diff before after --fail-if-slower 3"],
    ),
    screen(
        "merge",
        &[
            ("save", "Folder for the merged session"),
            ("mixed-hosts", "Accept hosts of different kinds"),
        ],
        &["vmeter merge part1 part2", "vmeter merge part1 part2 --save whole"],
    ),
    screen(
        "restore",
        &[
            ("create", "Command that makes the snapshot in {image}"),
            ("restore", "Command that restores the snapshot"),
            ("ready", "line:REGEX that matches the guest's first answer"),
            ("method", "loadvm, incoming, shared, mapped-ram"),
            ("cold", "Restore while the snapshot is not in the page cache"),
            ("concurrency", "Start N at once, e.g. 1,2,4,8"),
            ("no-boot", "Measure only restores, no boots"),
            ("runs", "Measured restores of each way [default: 10]"),
            ("long", "Show all tables"),
        ],
        &["vmeter restore --cold --warm", "vmeter restore -- qemu-system-x86_64 -m 512"],
    ),
    screen("runs", &[], &["vmeter runs list", "vmeter runs trend"]),
    screen(
        "runs list",
        &[
            ("machine", "Only machines with this setting"),
            ("command", "Only sessions of the given command, e.g. boot"),
            ("since", "Only sessions since a date (2026-05-01), or of the last days (30d)"),
            ("limit", "Show at most N sessions [default: 20]"),
        ],
        &["vmeter runs list --since 2026-05-01", "vmeter runs list --machine smp=2"],
    ),
    screen("runs trend", &[], &["vmeter runs trend", "vmeter runs trend DIR"]),
    screen(
        "runs rm",
        &[
            (
                "older-than",
                "Remove sessions that began before a date, or that are older than \
                e.g. 90d",
            ),
            ("dry-run", "Only print what would be removed"),
        ],
        &["vmeter runs rm NAME", "vmeter runs rm --older-than 90d --dry-run"],
    ),
    screen(
        "runs export",
        &[
            ("export-csv", "Write a row for each run"),
            ("export-json", "Write the same as JSON"),
            ("since", "Only sessions since a date (2026-05-01), or of the last days (30d)"),
        ],
        &["vmeter runs export --export-csv -", "vmeter runs export --since 7d --export-json -"],
    ),
    screen("runs add", &[], &["vmeter runs add DIR", "vmeter runs add DIR1 DIR2"]),
    screen(
        "look",
        &[
            ("until", "End at userspace, systemd-ready or line:REGEX"),
            (
                "follow",
                "Print the report, then each new line of the guest's log as soon as it appears; \
                    with --until, print all lines of the log first and the report last",
            ),
            ("long", "Show all tables"),
            ("blame", "Show all activities, longest first"),
        ],
        &["vmeter look libvirt:web", "vmeter look 4711 --follow"],
    ),
    screen("shim", &[], &["vmeter shim install", "vmeter shim status"]),
    screen(
        "shim install",
        &[
            ("real", "The VMM [default: qemu-system-x86_64]"),
            ("as", "The shim's file [default: vmeter-NAME]"),
            ("records", "Folder for the records"),
            ("match", "Record only VMs whose command line matches"),
        ],
        &["vmeter shim install", "vmeter shim install --match web"],
    ),
    screen("shim status", &[("as", "The shim's file")], &["vmeter shim status"]),
    screen("shim remove", &[("as", "The shim's file")], &["vmeter shim remove"]),
    screen(
        "show",
        &[
            ("long", "Show all tables"),
            ("blame", "Show all activities, longest first"),
            ("critical-chain", "Show the chain of steps that the boot waited for"),
            ("tree", "Show the tree of spans"),
            ("mark", "Mark the first console line that matches"),
        ],
        &["vmeter show --tree", "vmeter show before --long"],
    ),
    screen(
        "report",
        &[("output-file", "File; .html, .json, .csv, .md or .pftrace")],
        &["vmeter report before -o before.html", "vmeter report before -o before.csv"],
    ),
    screen(
        "memory",
        &[
            ("root", "Roots to compare: initramfs, dax, virtio-blk"),
            ("read", "MiB that the guest reads [default: 64]"),
            ("vs", "Compare with a machine that differs in SPEC"),
            ("runs", "Measured boots of each machine [default: 3]"),
        ],
        &["vmeter memory --root dax,virtio-blk", "vmeter memory --vs '--memory 256'"],
    ),
    screen(
        "dirty",
        &[
            ("workload", "What the guest does [default: migration]"),
            ("tracker", "Mechanisms to compare, or all"),
            ("strategy", "Ways of reading the dirty bitmap, or all"),
            ("buffer", "Memory that the guest writes, MiB"),
            ("vms", "Also measure N VMs at once, e.g. 1,8,32"),
            ("runs", "Passes of each tracker"),
        ],
        &["vmeter dirty --workload gui", "vmeter dirty --vms 1,8"],
    ),
    screen(
        "migrate",
        &[
            ("dirty-rate", "MB/s that the guest writes [default: 0,50,200]"),
            ("bandwidth", "Limit of the bandwidth, MB/s"),
            ("downtime-limit", "Longest downtime allowed, ms [default: 300]"),
            ("postcopy", "Switch to postcopy after the first round"),
            ("list", "Vary a setting over values"),
            ("runs", "Measured migrations of each point"),
        ],
        &["vmeter migrate --dirty-rate 0,50", "vmeter migrate -L bandwidth=50,100"],
    ),
    screen(
        "irq",
        &[
            ("vfs", "Devices [default: 8]"),
            ("vectors", "MSI-X vectors of each device [default: 65]"),
            ("strategy", "Commit strategies to compare, or all"),
            ("vms", "Also set up N VMs at once, e.g. 1,8,32"),
            ("vfio", "Real devices that are bound to vfio-pci"),
            ("runs", "Measured runs of each strategy"),
        ],
        &["vmeter irq --vfs 8 --vectors 65", "vmeter irq --strategy per_vector,per_vm"],
    ),
    screen(
        "explain",
        &[
            ("vs", "Baseline trace of the same workload"),
            ("comm", "Explain these programs, e.g. 'nginx|php-fpm*'"),
            ("pid", "Record a running VMM, then explain"),
            ("duration", "Record at most this many seconds"),
            ("mtree", "QEMU's `info mtree -f`, to name devices"),
            ("cpu-hz", "Clock rate, if time stamps are cycles, e.g. 2.0G"),
        ],
        &["vmeter explain trace.dat qemu.log", "vmeter explain slow.txt --vs healthy.txt"],
    ),
    screen("trace", &[], &["vmeter trace stat trace.dat", "vmeter trace record --pid auto"]),
    screen(
        "trace record",
        &[
            ("pid", "A running VMM, or auto"),
            ("preset", "Sets of events [default: io]"),
            ("event", "Further events, e.g. 'kvm:kvm_msi*'"),
            ("duration", "Stop after this many seconds"),
            ("output-file", "File to write [default: trace.dat]"),
        ],
        &["vmeter trace record --pid auto --duration 5", "vmeter trace record -- ls"],
    ),
    screen(
        "trace stat",
        &[
            ("vs", "Compare with another trace"),
            ("mtree", "QEMU's `info mtree -f`, to name devices"),
            ("cpu-hz", "Clock rate, if time stamps are cycles, e.g. 2.0G"),
            ("top", "Rows of each table [default: 12; 0: all]"),
        ],
        &["vmeter trace stat trace.dat", "vmeter trace stat slow.dat --vs healthy.dat"],
    ),
    screen(
        "trace report",
        &[
            ("event", "Only these events, e.g. 'kvm:*'"),
            ("cpu", "Only these CPUs, e.g. 0,2-3"),
            ("pid", "Only these threads"),
            ("from", "Only events at this time stamp or later"),
            ("to", "Only events at this time stamp or earlier"),
        ],
        &["vmeter trace report trace.dat", "vmeter trace report trace.dat --event 'kvm:*'"],
    ),
    screen(
        "trace convert",
        &[
            ("output-file", "File; its ending picks the format"),
            ("event", "Only these events, e.g. 'kvm:*'"),
        ],
        &[
            "vmeter trace convert trace.dat -o trace.pftrace",
            "vmeter trace convert trace.dat -o trace.csv",
        ],
    ),
    screen("kernel", &[], &["vmeter kernel fetch", "vmeter kernel list"]),
    screen("kernel fetch", &[], &["vmeter kernel fetch"]),
    screen("kernel list", &[], &["vmeter kernel list"]),
    screen(
        "kernel build",
        &[
            ("config", "debian, custom or minimal"),
            ("from", "Saved boot of the full kernel, for --config custom"),
            ("source", "Sources [default: Debian's linux-source]"),
            ("jobs", "Compilers at once [default: one per CPU]"),
        ],
        &["vmeter kernel build --config minimal", "vmeter kernel build --config custom --from DIR"],
    ),
    screen(
        "kernel diet",
        &[
            ("dry-run", "Only show which options would change"),
            ("threshold", "Shortest initcall to consider, e.g. 500us [default: 1ms]"),
            ("from", "Saved boot of the full kernel [default: boot now]"),
            ("machine", "q35, pc, microvm or pvh [default: q35]"),
            ("runs", "Boots of each kernel to compare their times at the end"),
        ],
        &["vmeter kernel diet --dry-run --machine pvh", "vmeter kernel diet --threshold 500us"],
    ),
    screen("appliance", &[], &["vmeter appliance build --out initrd.img"]),
    screen("appliance build", &[], &["vmeter appliance build --out initrd.img"]),
    screen(
        "doctor",
        &[
            ("aa", "Compare one machine with itself"),
            (
                "clean",
                "Remove leftovers of killed \
            vmeters",
            ),
        ],
        &["vmeter doctor", "vmeter doctor --aa"],
    ),
];

/// The text at the end of the long help of `vmeter` itself.
const ROOT: &str = "\
Every command takes --export-FORMAT FILE (json, csv, markdown, html, text; perfetto if there is a \
    timeline), --color, -q and -v. `vmeter COMMAND -h` shows the main options, `--help` all. \
    vmeter --generate man|complete-bash|complete-zsh|complete-fish prints a man page or a completion.";

/// The command line with its help.
pub fn with_screens(command: Command) -> Command {
    let command = command
        .help_template("{about}\n{subcommands}{after-help}")
        .after_long_help(ROOT)
        .mut_args(|arg| arg.hide_short_help(true));
    with_screens_below(command, "")
}

fn with_screens_below(command: Command, above: &str) -> Command {
    command.mut_subcommands(|sub| {
        let words = format!("{above} {}", sub.get_name()).trim_start().to_owned();
        let sub = match SCREENS.iter().find(|screen| screen.command == words) {
            Some(screen) => on_screen(sub, screen),
            None => sub,
        };
        with_screens_below(sub, &words)
    })
}

fn on_screen(command: Command, screen: &Screen) -> Command {
    let examples = format!("Examples:\n  {}", screen.examples.join("\n  "));
    let command = command.after_help(examples);
    command.mut_args(|arg| {
        let brief = screen.options.iter().find(|(name, _)| Some(*name) == arg.get_long());
        let Some((_, brief)) = brief else {
            let shown = arg.is_positional() && !arg.is_last_set();
            return arg.hide_short_help(!shown);
        };
        let whole = arg.get_long_help().or(arg.get_help()).cloned().unwrap_or_default();
        arg.help(*brief).long_help(whole).help_heading(None).hide_short_help(false)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::{CommandFactory, Parser};

    fn each(command: &Command, words: &str, found: &mut Vec<(String, Command)>) {
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            let words = format!("{words} {}", sub.get_name()).trim_start().to_owned();
            found.push((words.clone(), sub.clone()));
            each(sub, &words, found);
        }
    }

    fn all() -> Vec<(String, Command)> {
        let mut command = with_screens(Cli::command());
        command.build();
        let mut found = vec![(String::new(), command.clone())];
        each(&command, "", &mut found);
        found
    }

    /// Parses a line of a shell without its comment.
    fn understood(place: &str, line: &str) {
        let line = line.split(" #").next().unwrap_or_default();
        let words = shell_words::split(line).expect("a line of a shell");
        if let Err(error) = Cli::try_parse_from(&words) {
            let help = matches!(error.kind(), clap::error::ErrorKind::DisplayHelp);
            assert!(help, "{place}: {line}\n{error}");
        }
    }

    #[test]
    fn the_command_lines_of_the_documents_are_understood() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let entries = std::fs::read_dir(root.join("docs")).expect("docs").flatten();
        let pages = entries.map(|entry| entry.path()).chain([root.join("README.md")]);
        let mut found = 0;
        for page in pages.filter(|page| page.extension().is_some_and(|e| e == "md")) {
            let text = std::fs::read_to_string(&page).expect("a page").replace("\\\n", " ");
            for block in text.split("```sh\n").skip(1) {
                let lines = block.split("```").next().unwrap_or_default().lines();
                let commands = lines.map(|line| line.trim_start_matches("sudo "));
                let whole = commands.filter(|line| !line.contains(['\u{2026}', '|', '$', '>']));
                for line in whole.filter(|line| line.starts_with("vmeter ")) {
                    understood(&page.display().to_string(), line);
                    found += 1;
                }
            }
        }
        assert!(found > 30, "found only {found}");
    }

    #[test]
    fn a_short_help_is_one_screen() {
        for (words, mut command) in all() {
            let help = command.render_help().to_string();
            let longest = help.lines().map(|line| line.chars().count()).max().unwrap_or(0);
            let lines = help.trim_end().lines().count();
            assert!(lines <= 24 && longest <= 80, "{words}: {lines} x {longest}\n{help}");
            let has = SCREENS.iter().any(|screen| screen.command == words);
            assert!(has || words.is_empty(), "{words} has no screen");
        }
    }

    #[test]
    fn what_a_screen_names_is_there() {
        let commands = all();
        for screen in SCREENS {
            let found = commands.iter().find(|(words, _)| words == screen.command);
            let (_, command) = found.unwrap_or_else(|| panic!("no command {}", screen.command));
            for (option, _) in screen.options {
                let is = |arg: &clap::Arg| arg.get_long() == Some(*option);
                assert!(command.get_arguments().any(is), "{} --{option}", screen.command);
            }
            for example in screen.examples {
                understood("a screen", example);
            }
        }
    }
}
