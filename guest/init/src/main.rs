//! `/init` of the guest that vmeter measures.
//!
//! A boot is timed down to single steps of user space, so the program that makes
//! those steps must cost nothing itself: no C library, no allocation, no dynamic
//! linker, a few kilobytes to unpack from the initramfs. It says what it does
//! through ftrace's `trace_marker`, which the host reads out of guest RAM after
//! the boot, and prints one short line, because console output costs an exit per
//! character.
//!
//! Marker grammar, one write each:
//!
//! ```text
//! vmeter:begin STEP            a step begins; STEP is the rest of the line
//! vmeter:end STEP              it ended; steps do not overlap
//! vmeter:clock FROM TO STEP    CLOCK_MONOTONIC in ns inside that step's bracket
//! vmeter:error N STEP          it failed with errno N (or exit status N for `run`)
//! vmeter:ready                 the guest is up
//! vmeter:poweroff              the shutdown begins
//! ```
#![no_std]
#![no_main]

mod options;
mod print;
mod root;
mod start;
mod steps;
mod sys;
mod text;
mod udev;

use options::{Action, Exit, Options};
use steps::Steps;
use sys::Errno;

/// Words for kernels or images that want them baked in; the command line comes after.
const OPTIONS_FILE: &core::ffi::CStr = c"/etc/vmeter/options";
/// One module a line: `[-]PATH [PARAMETERS]`; `-` means that it may fail.
const MODULES_FILE: &core::ffi::CStr = c"/etc/vmeter/modules";

/// Runs as process 1; called by `_start` and never returns.
pub fn main() -> ! {
    sys::reserve_standard_files();
    let proc = sys::mount(c"proc", c"/proc", c"proc", 0, c"");
    let mut words = [0u8; options::WORDS];
    let words = options::read_words(OPTIONS_FILE, &mut words);
    let mut steps = Steps::new();
    let options = Options::parse(words, &mut steps);
    mount_all(&mut steps, &options, proc);
    if options.udev {
        udev::coldplug(&mut steps);
    }
    load_modules(&mut steps);
    root::apply(&mut steps, &options);
    for action in options.actions() {
        perform(&mut steps, &action);
    }
    steps.print_report(options.report);
    steps.mark(b"vmeter:ready");
    if options.announce {
        steps.print(b"vmeter: ready\n");
    }
    if options.dump_trace {
        steps.dump_trace();
    }
    leave(&mut steps, &options)
}

fn mount_all(steps: &mut Steps, options: &Options, proc: Result<(), Errno>) {
    // tracefs needs no sysfs to be mounted, so the markers come first and every
    // later mount is bracketed; it moves to its usual place once that exists.
    let traced = options.markers && sys::mount(c"tracefs", c"/trace", c"tracefs", 0, c"").is_ok();
    if traced {
        steps.open_marker(c"/trace/trace_marker");
    }
    steps.check(b"mount proc", proc);
    steps
        .run(b"mount devtmpfs", |_| sys::mount(c"devtmpfs", c"/dev", c"devtmpfs", 0, c"mode=0755"));
    steps.run(b"mount sysfs", |_| {
        sys::mount(c"sysfs", c"/sys", c"sysfs", 0, c"")?;
        if traced {
            sys::move_mount(c"/trace", c"/sys/kernel/tracing")?;
        }
        Ok(())
    });
}

fn load_modules(steps: &mut Steps) {
    if sys::exists(MODULES_FILE) {
        load_listed_modules(steps);
    }
}

// Large buffers live in functions of their own, never inlined: each page of stack
// that main's frame would span is a page fault of the boot being measured.
#[inline(never)]
fn load_listed_modules(steps: &mut Steps) {
    let mut list = [0u8; 8192];
    let Ok(list) = sys::read_file(MODULES_FILE, &mut list) else {
        return;
    };
    for line in text::lines(list) {
        let (may_fail, line) = match line.strip_prefix(b"-") {
            Some(rest) => (true, rest),
            None => (false, line),
        };
        let (path, parameters) = text::split_once(line, b' ');
        if path.is_empty() {
            continue;
        }
        let name = text::module_name(path);
        steps.run(name.bytes(), |_| {
            match sys::insmod(text::Text::path(path).c_str(), text::Text::path(parameters).c_str())
            {
                Err(Errno::EXISTS) => Ok(()),
                Err(_) if may_fail => Ok(()),
                other => other,
            }
        });
    }
}

fn perform(steps: &mut Steps, action: &Action) {
    match *action {
        Action::Sleep { name, ms } => steps.run_clocked(name, |_| sys::sleep_ms(ms)),
        Action::Busy { ms } => steps.run_clocked(b"busy", |_| sys::busy_ms(ms)),
        Action::SleepIfPorts { ports, ms } => steps.run_clocked(b"sleep-if-ports", |_| {
            if sys::count_root_ports()? >= ports {
                sys::sleep_ms(ms)?;
            }
            Ok(())
        }),
        Action::Memory => steps.run(b"memory", |_| steps::print_meminfo()),
        Action::Run { path } => {
            let mut name = text::Text::<256>::new();
            name.push(b"run ").push(text::split_once(path, b',').0);
            steps.run(name.bytes(), |_| print::run(path));
        }
        Action::Print { to, bytes } => {
            let mut name = text::Text::<256>::new();
            name.push(b"print ").push(to).push(b" ").push_number(bytes);
            steps.run_clocked(name.bytes(), |_| print::print(to, bytes));
        }
    }
}

/// Says for ever that the guest lives: a number that this boot has drawn, by which a guest that is
/// restored is known from one that is booted again, and how often it has been said.
fn tick(steps: &Steps, ms: u64) -> ! {
    let nonce = sys::nonce();
    let mut count = 0;
    loop {
        let mut line = text::Text::<64>::new();
        line.push(b"vmeter: tick ").push_hex(nonce).push(b" ").push_number(count).push(b"\n");
        steps.print(line.bytes());
        count += 1;
        let _ = sys::sleep_ms(ms);
    }
}

fn leave(steps: &mut Steps, options: &Options) -> ! {
    if options.tick_ms > 0 {
        tick(steps, options.tick_ms);
    }
    if let Exit::Stay = options.exit {
        sys::wait_forever();
    }
    steps.mark(b"vmeter:poweroff");
    if options.poweroff_delay_ms > 0 {
        steps.run_clocked(b"poweroff-delay", |_| sys::sleep_ms(options.poweroff_delay_ms));
        steps.print_report(options.report);
    }
    let result = match options.exit {
        Exit::Reset => sys::reboot(sys::REBOOT_RESTART),
        Exit::Debug { port, value } => sys::write_port(port, value),
        Exit::PowerOff | Exit::Stay => sys::reboot(sys::REBOOT_POWER_OFF),
    };
    steps.check(b"poweroff", result);
    sys::wait_forever()
}
