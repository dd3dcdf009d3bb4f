//! Which addresses are stamped, and the list that the plugin reads.

use super::virtual_time::WRITERS;
use std::collections::HashSet;
use std::fmt::Write as _;
use vmeter_kernel_image::{KernelImage, Symbol, Symbols};
use vmeter_model::run::WatchLevel;

/// Where x86-64 maps its kernel image (`__START_KERNEL_map`).
const KERNEL_BASE: u64 = 0xffff_ffff_8000_0000;
/// Where a bzImage's kernel is unpacked to (`LOAD_PHYSICAL_ADDR`), without KASLR.
const LOAD_ADDRESS: u64 = 0x100_0000;
/// More initcalls than any kernel has.
const MAX_INITCALLS: u64 = 20_000;
/// Fewer than any kernel that boots has.
const FEWEST_INITCALLS: usize = 50;
/// A function longer than this is not one: its symbol's successor is missing.
const MAX_FUNCTION: u64 = 64 << 10;

/// One address to stamp, or a range that the plugin must know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// Linear address, as in the kernel image: without the slide of KASLR.
    pub address: u64,
    /// Length, bytes, where the plugin needs it; else 0.
    pub length: u64,
    /// Flags, as in the plugin's list format (`guest/plugin/src/addresses.rs`).
    pub flags: &'static str,
    /// Name that the stamp gets.
    pub name: String,
}

impl Address {
    /// An address whose first execution is stamped.
    pub fn once(address: u64, name: &str) -> Self {
        Self::flagged(address, "o", name)
    }

    fn flagged(address: u64, flags: &'static str, name: &str) -> Self {
        Self { address, length: 0, flags, name: name.into() }
    }
}

/// What runs before any symbol of the kernel: architecture and boot protocol
/// fix these. The set-up code is entered at 0x1020:0 (QEMU: hw/i386/x86.c puts
/// it at 0x10000, its entry is 0x200 in), the decompressor at `code32_start`.
const FIXED: &[(u64, &str)] = &[
    (0x1_0200, "bzimage-setup"),
    (0x10_0000, "bzimage-startup_32"),
    (0x10_0200, "bzimage-startup_64"),
];

/// Where a vCPU starts.
const RESET: (u64, &str) = (0xffff_fff0, "reset-vector");
/// Where a BIOS reads a boot sector to, and enters it.
const BOOT_SECTOR: (u64, &str) = (0x7c00, "boot-sector");

/// Who puts the kernel into memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadedBy {
    /// The VMM, or an option ROM of its own, at addresses that the boot protocol fixes.
    Vmm,
    /// A boot loader or UEFI, wherever they like. Their own code runs at those addresses
    /// too: GRUB's core is unpacked to 1 MiB.
    Guest,
}

/// `start_kernel` and what it calls, in the order of init/main.c, of kernels
/// 4.19 to 6.12; then pid 1, and how a guest ends.
const FUNCTIONS: &str = "\
    setup_arch setup_command_line setup_per_cpu_areas build_all_zonelists page_alloc_init \
    page_alloc_init_cpuhp parse_early_param random_init_early setup_log_buf \
    vfs_caches_init_early sort_main_extable trap_init mm_init mm_core_init poking_init \
    ftrace_init early_trace_init sched_init radix_tree_init maple_tree_init \
    housekeeping_init workqueue_init_early rcu_init kvfree_rcu_init trace_init \
    context_tracking_init early_irq_init init_IRQ tick_init rcu_init_nohz init_timers \
    srcu_init hrtimers_init softirq_init timekeeping_init time_init random_init \
    kfence_init perf_event_init profile_init call_function_init kmem_cache_init_late \
    console_init lockdep_init mem_encrypt_init setup_per_cpu_pageset numa_policy_init \
    acpi_early_init late_time_init sched_clock_init calibrate_delay arch_cpu_finalize_init \
    check_bugs pid_idr_init anon_vma_init efi_enter_virtual_mode thread_stack_cache_init \
    cred_init fork_init proc_caches_init uts_ns_init key_init security_init dbg_late_init \
    net_ns_init vfs_caches_init pagecache_init signals_init seq_file_init proc_root_init \
    nsfs_init pidfs_init cpuset_init cgroup_init taskstats_init_early delayacct_init \
    acpi_subsystem_init arch_post_acpi_subsys_init kcsan_init rest_init kernel_init \
    kernel_init_freeable smp_init sched_init_smp do_basic_setup driver_init \
    do_populate_rootfs wait_for_initramfs console_on_rootfs prepare_namespace \
    integrity_load_keys mark_readonly free_initmem run_init_process kernel_restart \
    kernel_halt kernel_power_off device_shutdown machine_power_off acpi_power_off panic";

/// The addresses that are stamped at a level of watching.
///
/// `symbols` looks up a kernel symbol by name; names that a kernel does not have
/// are left out. Without any symbol what remains is the firmware, the set-up
/// code and the decompressor, or the boot loader. Of a kernel that a loader loads, every
/// execution of an address is stamped that a relocatable image can begin at (its
/// decompressor's, then its own), and the first in the kernel's half of the addresses,
/// where nothing else runs. Initcalls come from [`initcalls`].
pub fn addresses(
    symbols: &dyn Fn(&str) -> Option<u64>,
    watch: WatchLevel,
    by: LoadedBy,
) -> Vec<Address> {
    let once = |(address, name): &(u64, &str)| Address::once(*address, name);
    let mut all: Vec<Address> = vec![once(&RESET)];
    match by {
        LoadedBy::Vmm => all.extend(FIXED.iter().map(once)),
        LoadedBy::Guest => all.push(once(&BOOT_SECTOR)),
    }
    let physical = symbols("startup_64").and_then(|a| a.checked_sub(KERNEL_BASE));
    let physical = physical.unwrap_or(LOAD_ADDRESS);
    let start_kernel = symbols("start_kernel");
    match by {
        LoadedBy::Vmm => all.push(Address::flagged(physical, "om", "startup_64")),
        LoadedBy::Guest => {
            all.push(Address::flagged(physical, "m", "image-entry"));
            let flags =
                if start_kernel.is_none() && watch != WatchLevel::Full { "ohl" } else { "oh" };
            all.push(Address::flagged(KERNEL_BASE, flags, "kernel-mapped"));
        }
    }
    if let Some(address) = symbols("x86_64_start_kernel") {
        all.push(Address::flagged(address, "ok", "x86_64_start_kernel"));
    }
    if let Some(address) = start_kernel {
        let flags = if watch == WatchLevel::Full { "o" } else { "ol" };
        all.push(Address::flagged(address, flags, "start_kernel"));
    }
    if watch == WatchLevel::Full {
        let known = FUNCTIONS.split(' ').filter_map(|name| Some((symbols(name)?, name)));
        all.extend(known.map(|(address, name)| Address::once(address, name)));
    }
    all
}

/// The functions that write the guest's trace, every execution of which is stamped.
pub(super) fn writers(symbols: &Symbols) -> Vec<Address> {
    let known = WRITERS.iter().filter_map(|name| Some((symbols.address(name)?, *name)));
    known.map(|(address, name)| Address::flagged(address, "-", name)).collect()
}

/// Every function that the kernel's initcall table names, and their caller.
///
/// The table lies from `__initcall_start` to `__initcall_end`, and each entry is
/// the function's distance from the entry itself (`HAVE_ARCH_PREL32_RELOCATIONS`:
/// x86-64 since Linux 4.19). A kernel without `CONFIG_KALLSYMS_ALL` does not say where it is:
/// there it is found by that shape. Empty for a kernel without it.
pub fn initcalls(image: &KernelImage, symbols: &Symbols) -> Vec<Address> {
    let Some(caller) = symbols.address("do_one_initcall") else { return Vec::new() };
    let mut all = vec![Address {
        length: length(symbols, caller),
        ..Address::flagged(caller, "c", "do_one_initcall")
    }];
    all.extend(thunks(symbols));
    let mut functions = table(image, symbols).unwrap_or_else(|| by_shape(image, symbols));
    functions.sort_unstable();
    functions.dedup();
    all.extend(functions.into_iter().filter_map(|address| {
        let (symbol, 0) = symbols.lookup(address)? else { return None };
        Some(Address::flagged(address, "i", symbol.name))
    }));
    all
}

/// What the table of initcalls leads to, if it is where symbols say.
fn table(image: &KernelImage, symbols: &Symbols) -> Option<Vec<u64>> {
    let (start, end) = (symbols.address("__initcall_start")?, symbols.address("__initcall_end")?);
    let size = end.saturating_sub(start).min(MAX_INITCALLS * 4);
    Some(targets(start, image.read(start, size).unwrap_or(&[])).collect())
}

/// True if symbols are of an image's own build: all that its table of initcalls leads to are
/// functions that begin there.
pub(super) fn fits(image: &KernelImage, symbols: &Symbols) -> bool {
    let begins = |address: &u64| {
        symbols.lookup(*address).is_some_and(|(symbol, offset)| offset == 0 && symbol.is_function())
    };
    table(image, symbols).is_some_and(|all| all.len() >= FEWEST_INITCALLS && all.iter().all(begins))
}

/// What the entries of a table of distances that begins at `start` lead to.
fn targets(start: u64, entries: &[u8]) -> impl Iterator<Item = u64> + '_ {
    entries.chunks_exact(4).zip((start..).step_by(4)).map(|(entry, at)| {
        let distance = entry.try_into().map_or(0, i32::from_le_bytes);
        at.wrapping_add_signed(distance.into())
    })
}

/// The functions of the longest run of entries that all lead to begins of functions, most of them of the init text (a
/// few initcalls are not in it). None if it is short, or if another one is half as long.
fn by_shape(image: &KernelImage, symbols: &Symbols) -> Vec<u64> {
    let text = symbols.address("_sinittext").zip(symbols.address("_einittext"));
    let Some((start, end)) = text else { return Vec::new() };
    let of_init = |address: &u64| (start..end).contains(address);
    let begins: HashSet<u64> =
        symbols.iter().filter(Symbol::is_function).map(|symbol| symbol.address).collect();
    let (mut longest, mut other) = (Vec::new(), 0);
    let mut run = Vec::new();
    for segment in image.segments() {
        let data = image.read(segment.virtual_address, segment.file_size).unwrap_or(&[]);
        // What ends the last run.
        let all = targets(segment.virtual_address, data).chain([0]);
        for target in all {
            if (KERNEL_BASE..end).contains(&target) && begins.contains(&target) {
                run.push(target);
                continue;
            }
            let found = std::mem::take(&mut run);
            let is_table = 2 * found.iter().filter(|a| of_init(a)).count() > found.len();
            if is_table && found.len() > longest.len() {
                other = std::mem::replace(&mut longest, found).len();
            } else if is_table {
                other = other.max(found.len());
            }
        }
    }
    let fits = (FEWEST_INITCALLS..MAX_INITCALLS as usize).contains(&longest.len());
    if fits && 2 * other < longest.len() {
        longest
    } else {
        Vec::new()
    }
}

/// Distance to the next symbol.
fn length(symbols: &Symbols, address: u64) -> u64 {
    symbols
        .iter()
        .map(|symbol| symbol.address)
        .find(|next| *next > address)
        .map_or(0, |next| (next - address).min(MAX_FUNCTION))
}

/// The retpoline thunks, through which a mitigated kernel calls indirectly.
fn thunks(symbols: &Symbols) -> Option<Address> {
    let all = symbols.iter().filter(|s| s.name.starts_with("__x86_indirect_thunk_"));
    let (first, last) = all.fold((u64::MAX, 0), |(first, last), symbol| {
        (first.min(symbol.address), last.max(symbol.address))
    });
    (first <= last).then(|| Address {
        length: (last - first).min(MAX_FUNCTION) + length(symbols, last).min(64),
        ..Address::flagged(first, "t", "thunks")
    })
}

/// The list as the plugin reads it; the id of an address is its place in it.
///
/// Of several names for one address the first counts.
pub fn list(addresses: &[Address]) -> String {
    let mut seen = HashSet::new();
    let kept = addresses.iter().filter(|a| a.flags == "t" || seen.insert(a.address));
    kept.enumerate().fold(String::new(), |mut text, (id, a)| {
        let _ = writeln!(text, "{:x} {id} {} {:x} {}", a.address, a.flags, a.length, a.name);
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(watch: WatchLevel, known: &[&str]) -> Vec<String> {
        let look_up = |name: &str| {
            let at = known.iter().position(|k| *k == name)?;
            Some(KERNEL_BASE + 0x100_0000 + at as u64 * 64)
        };
        addresses(&look_up, watch, LoadedBy::Vmm)
            .into_iter()
            .map(|a| format!("{}:{}", a.name, a.flags))
            .collect()
    }

    #[test]
    fn a_kernel_without_symbols_still_has_a_boot_protocol() {
        let names = names(WatchLevel::Full, &[]);
        assert_eq!(names.first().map(String::as_str), Some("reset-vector:o"));
        assert_eq!(names.last().map(String::as_str), Some("startup_64:om"));
    }

    #[test]
    fn light_ends_at_start_kernel_and_full_does_not() {
        let known = ["startup_64", "x86_64_start_kernel", "start_kernel", "sched_init"];
        let light = names(WatchLevel::Light, &known);
        assert_eq!(light[5..], ["x86_64_start_kernel:ok", "start_kernel:ol"]);
        let full = names(WatchLevel::Full, &known);
        assert_eq!(full[5..], ["x86_64_start_kernel:ok", "start_kernel:o", "sched_init:o"]);
    }

    #[test]
    fn of_a_loaders_kernel_no_fixed_address_is_taken() {
        let named = |symbols: &dyn Fn(&str) -> Option<u64>| -> Vec<String> {
            let all = addresses(symbols, WatchLevel::Light, LoadedBy::Guest);
            all.into_iter().map(|a| format!("{}:{}", a.name, a.flags)).collect()
        };
        let unknown = ["reset-vector:o", "boot-sector:o", "image-entry:m", "kernel-mapped:ohl"];
        assert_eq!(named(&|_| None), unknown);
        let known = named(&|name| (name == "start_kernel").then_some(KERNEL_BASE));
        assert_eq!(known[3..], ["kernel-mapped:oh", "start_kernel:ol"]);
    }

    #[test]
    fn thunks_are_one_range_and_lengths_are_bounded() {
        let symbols = Symbols::from_text(
            "ffffffff81000000 T do_one_initcall\nffffffff81000220 T next\n\
             ffffffff82000000 T __x86_indirect_thunk_rax\n\
             ffffffff820001e0 T __x86_indirect_thunk_r15\nffffffff82ffffff D far\n",
        );
        assert_eq!(length(&symbols, 0xffff_ffff_8100_0000), 0x220);
        let thunks = thunks(&symbols).unwrap();
        assert_eq!((thunks.address, thunks.length), (0xffff_ffff_8200_0000, 0x1e0 + 64));
    }

    #[test]
    fn the_list_names_an_address_once() {
        let twice = [Address::once(16, "a"), Address::once(16, "b"), Address::once(32, "c")];
        assert_eq!(list(&twice), "10 0 o 0 a\n20 1 o 0 c\n");
    }
}
