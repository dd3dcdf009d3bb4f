//! QEMU TCG plugin that stamps guest addresses with `CLOCK_MONOTONIC` and
//! instruction counts, without any help from the guest.
//!
//! QEMU calls back for every block it translates. A block that begins at a
//! listed address gets a callback that stamps it each time it executes, and with
//! `count=on` every block gets an inline addition of its length. The hook
//! itself is what costs (QEMU emits and removes empty callbacks around every
//! guest instruction it translates), so with `mode=early` it is taken away at
//! the address flagged last, by which time little has been translated.
//!
//! ```text
//! -plugin FILE,addresses=PATH,out=PATH,mode=early|full,count=on|off[,limit=BLOCKS]
//! ```
//!
//! `addresses` is described in [`addresses`], `out` in [`format`](mod@format).
//! `limit` is the number of blocks after which `mode=early` gives up waiting for
//! the last address, so that a kernel other than the listed one is not slowed down.
//!
//! The kernel's addresses need no `nokaslr`: KASLR moves the kernel by multiples
//! of 2 MiB, so the first block in the kernel's range with the low 21 bits of
//! the address flagged as anchor tells the slide, and it is written to `out`.
//!
//! The library has no dependencies and calls QEMU through `dlsym`, so that one
//! file serves QEMU 7.2 (plugin API 1) and QEMU 10 (API 2 and later) alike.

pub mod addresses;
mod calls;
pub mod format;
pub mod output;
mod qemu;

use addresses::{Addresses, KERNEL_BASE, PHYSICAL_ALIGN};
use output::Output;
use qemu::{Qemu, Tb};
use std::ffi::{c_char, c_int, c_uint, c_void, CStr};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::Relaxed};

/// How instructions are counted.
enum Counting {
    /// Not at all.
    Off,
    /// An inline addition to one counter (API 1): for one vCPU, and until
    /// `start_kernel`, when the others have done nothing but park themselves.
    Inline,
    /// A callback that adds to the vCPU's own counter: API 1 has no inline
    /// addition per vCPU, and a shared one loses updates.
    Callback,
    /// An inline addition per vCPU (API 2 and later).
    Scoreboard(qemu::Scoreboard),
}

struct Plugin {
    id: qemu::PluginId,
    qemu: Qemu,
    addresses: Addresses,
    seen: Vec<AtomicBool>,
    output: Output,
    counting: Counting,
    early: bool,
    hooked: AtomicBool,
    /// Blocks left until `mode=early` gives up.
    left: AtomicU64,
    /// KASLR: how far the kernel is above its nominal address.
    slide: AtomicU64,
    slide_known: AtomicBool,
    /// Where the initcall's function returns to, once it was translated.
    return_to: AtomicU64,
}

static PLUGIN: AtomicPtr<Plugin> = AtomicPtr::new(std::ptr::null_mut());

fn plugin() -> Option<&'static Plugin> {
    // SAFETY: the pointer is null or a box that is never freed.
    unsafe { PLUGIN.load(Relaxed).as_ref() }
}

/// Entry point: QEMU calls it once, before any vCPU runs.
///
/// # Safety
/// Called by QEMU with a live `info` and `argc` C strings in `argv`.
#[no_mangle]
pub unsafe extern "C" fn qemu_plugin_install(
    id: qemu::PluginId,
    info: *const qemu::Info,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    // SAFETY: as promised by the caller.
    let arguments: Vec<String> = (0..usize::try_from(argc).unwrap_or(0))
        .map(|i| unsafe { CStr::from_ptr(*argv.add(i)) }.to_string_lossy().into_owned())
        .collect();
    // SAFETY: as promised by the caller.
    match install(id, unsafe { &*info }, &arguments) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("vmeter-tcg-plugin: {error}");
            1
        }
    }
}

struct Arguments {
    addresses: String,
    out: String,
    early: bool,
    count: bool,
    limit: u64,
}

fn arguments(words: &[String]) -> Result<Arguments, String> {
    let mut parsed = Arguments {
        addresses: String::new(),
        out: String::new(),
        early: true,
        count: false,
        limit: u64::MAX,
    };
    for word in words {
        match word.split_once('=') {
            Some(("addresses", value)) => parsed.addresses = value.into(),
            Some(("out", value)) => parsed.out = value.into(),
            Some(("mode", "early")) => parsed.early = true,
            Some(("mode", "full")) => parsed.early = false,
            Some(("count", "on")) => parsed.count = true,
            Some(("count", "off")) => parsed.count = false,
            Some(("limit", value)) => {
                parsed.limit = value
                    .parse()
                    .map_err(|_| format!("limit={value}: expected a number of blocks"))?;
            }
            _ => {
                return Err(format!(
                    "unknown argument {word}: expected addresses=, out=, mode=early|full, \
                     count=on|off or limit="
                ))
            }
        }
    }
    for (name, value) in [("addresses", &parsed.addresses), ("out", &parsed.out)] {
        if value.is_empty() {
            return Err(format!("argument {name}=PATH is missing"));
        }
    }
    Ok(parsed)
}

fn install(id: qemu::PluginId, info: &qemu::Info, words: &[String]) -> Result<(), String> {
    let arguments = arguments(words)?;
    let qemu = Qemu::find(info.current_version)?;
    let text = std::fs::read_to_string(&arguments.addresses)
        .map_err(|error| format!("{}: {error}", arguments.addresses))?;
    let addresses =
        Addresses::parse(&text).map_err(|error| format!("{}: {error}", arguments.addresses))?;
    let vcpus = u32::try_from(info.max_vcpus).unwrap_or(1).clamp(1, format::MAX_VCPUS);
    let output = Output::create(&arguments.out, vcpus, arguments.count)
        .map_err(|error| format!("{}: {error}", arguments.out))?;
    let counting = if !arguments.count {
        Counting::Off
    } else if let Some(scoreboard) = qemu.new_scoreboard() {
        Counting::Scoreboard(scoreboard)
    } else if arguments.early || info.max_vcpus <= 1 {
        Counting::Inline
    } else {
        Counting::Callback
    };
    let seen = addresses.entries.iter().map(|_| AtomicBool::new(false)).collect();
    let plugin = Box::new(Plugin {
        id,
        qemu,
        addresses,
        seen,
        output,
        counting,
        early: arguments.early,
        hooked: AtomicBool::new(true),
        left: AtomicU64::new(arguments.limit),
        slide: AtomicU64::new(0),
        slide_known: AtomicBool::new(false),
        return_to: AtomicU64::new(0),
    });
    let plugin: &'static Plugin = Box::leak(plugin);
    PLUGIN.store(std::ptr::from_ref(plugin).cast_mut(), Relaxed);
    plugin.qemu.register_translation(id, Some(translated));
    plugin.qemu.register_exit(id, exiting);
    Ok(())
}

/// QEMU translated a block.
extern "C" fn translated(_id: qemu::PluginId, tb: *mut Tb) {
    if let Some(plugin) = plugin() {
        plugin.translated(tb);
    }
}

/// A listed block executes; `data` is the index of its entry, or [`RETURN`].
extern "C" fn reached(vcpu: c_uint, data: *mut c_void) {
    if let Some(plugin) = plugin() {
        plugin.reached(vcpu, data as usize);
    }
}

/// A block executes; `data` is its number of instructions.
extern "C" fn executed(vcpu: c_uint, data: *mut c_void) {
    if let Some(plugin) = plugin() {
        plugin.output.add(vcpu, data as u64);
    }
}

extern "C" fn exiting(_id: qemu::PluginId, _data: *mut c_void) {
    if let Some(plugin) = plugin() {
        plugin.instructions();
        plugin.output.ended();
    }
}

/// Stands for the return from an initcall's function in place of an index.
const RETURN: usize = usize::MAX;

impl Plugin {
    fn translated(&self, tb: *mut Tb) {
        if !self.hooked.load(Relaxed) {
            return;
        }
        let address = self.qemu.address(tb);
        let nominal = self.nominal(address);
        if let Some(index) = self.addresses.find(nominal) {
            self.qemu.on_execution(tb, reached, index as *mut c_void);
        } else if let Some(index) = self.addresses.find_modulo(address) {
            if !self.seen[index].load(Relaxed) {
                self.qemu.on_execution(tb, reached, index as *mut c_void);
            }
        }
        if let Some(index) = self.addresses.find_high(address) {
            if !self.seen[index].load(Relaxed) {
                self.qemu.on_execution(tb, reached, index as *mut c_void);
            }
        }
        if self.addresses.calls_initcalls(nominal) {
            self.in_caller(tb, address);
        }
        self.count(tb);
        self.output.translated();
        if self.early && self.left.fetch_sub(1, Relaxed) <= 1 {
            self.unhook();
        }
    }

    /// The address as the kernel image has it, without the slide of KASLR.
    fn nominal(&self, address: u64) -> u64 {
        if address < KERNEL_BASE {
            return address;
        }
        if !self.slide_known.load(Relaxed) {
            if let Some(anchor) = self.addresses.anchor {
                if (address ^ anchor) % PHYSICAL_ALIGN == 0 {
                    let slide = address.wrapping_sub(anchor);
                    self.slide.store(slide, Relaxed);
                    self.slide_known.store(true, Relaxed);
                    self.output.slide(slide);
                }
            }
        }
        address.wrapping_sub(self.slide.load(Relaxed))
    }

    /// A block of `do_one_initcall`: finds the one that follows its indirect call.
    fn in_caller(&self, tb: *mut Tb, address: u64) {
        if address == self.return_to.load(Relaxed) {
            self.qemu.on_execution(tb, reached, RETURN as *mut c_void);
        }
        let Some(last) = self.qemu.last_instruction(tb) else { return };
        let slide = self.slide.load(Relaxed);
        if calls::is_indirect(last.bytes(), last.address.wrapping_sub(slide), &self.addresses) {
            let next = last.address.wrapping_add(last.bytes().len() as u64);
            self.return_to.store(next, Relaxed);
        }
    }

    fn count(&self, tb: *mut Tb) {
        match &self.counting {
            Counting::Off => {}
            Counting::Inline => self.qemu.add_inline(tb, self.output.counter(0)),
            Counting::Callback => {
                let length = self.qemu.length(tb);
                self.qemu.on_execution(tb, executed, length as *mut c_void);
            }
            Counting::Scoreboard(scoreboard) => self.qemu.add_per_vcpu(tb, scoreboard),
        }
    }

    /// Instructions executed by all vCPUs so far, copied to `out` on the way.
    fn instructions(&self) -> u64 {
        if let Counting::Scoreboard(scoreboard) = &self.counting {
            for vcpu in 0..self.output.vcpus().min(self.qemu.vcpus()) {
                self.output.set(vcpu, self.qemu.count_of(scoreboard, vcpu));
            }
        }
        self.output.sum()
    }

    fn reached(&self, vcpu: u32, index: usize) {
        let Some(entry) = self.addresses.entries.get(index) else {
            let id = self.addresses.caller_id | format::RETURNED;
            return self.output.stamp(id, vcpu, self.instructions());
        };
        if entry.once && self.seen[index].swap(true, Relaxed) {
            return;
        }
        self.output.stamp(entry.id, vcpu, self.instructions());
        if entry.last && self.early {
            self.unhook();
        }
    }

    /// Takes the translation hook away.
    ///
    /// With one vCPU by registering no function. That frees QEMU's record of the
    /// callback, which another vCPU could be reading; with several the plugin is
    /// reset, which stops them first. It also flushes all translated code (little,
    /// and mostly firmware, at this point), ends the callback at exit, and in QEMU
    /// before 7.2.18 and 8.0 leaves the plugin lock taken, which only plugging in
    /// another vCPU would notice.
    fn unhook(&self) {
        if !self.hooked.swap(false, Relaxed) {
            return;
        }
        self.output.unhooked();
        if self.output.vcpus() == 1 {
            self.qemu.register_translation(self.id, None);
        } else {
            self.qemu.reset(self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_checked() {
        let words = |text: &str| text.split_whitespace().map(String::from).collect::<Vec<_>>();
        let good = arguments(&words("addresses=a out=b mode=full count=on limit=7")).unwrap();
        assert!(!good.early && good.count && good.limit == 7 && good.out == "b");
        for bad in
            ["", "addresses=a", "addresses=a out=b mode=late", "x=y", "addresses=a out=b limit=z"]
        {
            assert!(arguments(&words(bad)).is_err(), "{bad}");
        }
    }
}
