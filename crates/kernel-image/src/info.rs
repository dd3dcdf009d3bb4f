//! What later stages need to know of a kernel, worked out once and cached.
//!
//! Unpacking an image and reading its tables takes a fraction of a second; a
//! boot is not to wait for that twice. Two files are kept for a kernel: a small
//! one with symbols and field offsets, read before each run, and the table of
//! functions, read only when addresses are to be named.

use crate::btf::{Btf, Field};
use crate::error::{Error, Result};
use crate::functions::FunctionTable;
use crate::image::{write_whole, KernelImage};
use crate::symbols::Symbols;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::hash::{Hash as _, Hasher as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use vmeter_base::files;
use vmeter_base::fnv::Fnv;

/// Largest file of the cache that is read, bytes.
const MAX_CACHED: u64 = 64 << 20;

/// Raised when what is cached changes: files of another version are not read.
const CACHE_VERSION: u32 = 18;

/// Symbols that the readers of guest RAM use, where the kernel has them.
pub(crate) const SYMBOLS: &[&str] = &[
    "_text",
    "__gtod_offset",
    "__per_cpu_end",
    "__per_cpu_load",
    "__per_cpu_offset",
    "__per_cpu_start",
    "__pgtable_l5_enabled",
    "__sched_clock_offset",
    "boot_params",
    "cyc2ns",
    "e820_table",
    "event_cgroup_attach_task",
    "event_console",
    "event_initcall_finish",
    "event_initcall_level",
    "event_initcall_start",
    "event_module_load",
    "event_sched_process_exec",
    "event_sched_process_exit",
    "event_sched_process_wait",
    "event_task_newtask",
    "ftrace_events",
    "global_trace",
    "hv_clock_boot",
    "init_stack",
    "init_thread_union",
    "init_top_pgt",
    "kvm_sched_clock_offset",
    "level3_kernel_pgt",
    "level4_kernel_pgt",
    "linux_banner",
    "max_pfn",
    "modules",
    "nr_cpu_ids",
    "phys_base",
    "prb",
    "runqueues",
    "set_kprobe_boot_events",
    "setup_boot_kprobe_events",
    "super_blocks",
    "system_state",
    "timekeeper_data",
    "tk_core",
    "trace_clocks",
    "vmemmap_base",
    "_etext",
    "__start_rodata",
    "__end_rodata",
    "_sdata",
    "_edata",
    "__bss_start",
    "__bss_stop",
    "init_task",
];

/// Symbols that a tracer sets breakpoints on or a plugin watches.
const CODE_SYMBOLS: &[&str] = &[
    "do_one_initcall",
    "kernel_init",
    "kernel_init_freeable",
    "kernel_power_off",
    "machine_power_off",
    "pvh_start_xen",
    "rest_init",
    "run_init_process",
    "secondary_startup_64",
    "start_kernel",
    "startup_64",
    "trace_init",
    "x86_64_start_kernel",
];

/// Fields used, each with the structures and paths it has had; the first is the key.
pub(crate) const FIELDS: &[&[(&str, &str)]] = &[
    &[("printk_ringbuffer", "desc_ring.count_bits")],
    &[("printk_ringbuffer", "desc_ring.descs")],
    &[("printk_ringbuffer", "desc_ring.infos")],
    &[("printk_ringbuffer", "desc_ring.head_id")],
    &[("printk_ringbuffer", "desc_ring.tail_id")],
    &[("printk_ringbuffer", "text_data_ring.size_bits")],
    &[("printk_ringbuffer", "text_data_ring.data")],
    &[("printk_ringbuffer", "text_data_ring.head_lpos")],
    &[("printk_ringbuffer", "text_data_ring.tail_lpos")],
    &[("prb_desc", "state_var")],
    &[("prb_desc", "text_blk_lpos.begin")],
    &[("prb_desc", "text_blk_lpos.next")],
    &[("printk_info", "seq")],
    &[("printk_info", "ts_nsec")],
    &[("printk_info", "text_len")],
    &[("printk_info", "facility")],
    &[("printk_info", "level")],
    &[("printk_info", "caller_id")],
    &[("cyc2ns", "data")],
    &[("cyc2ns", "seq")],
    &[("cyc2ns_data", "cyc2ns_mul")],
    &[("cyc2ns_data", "cyc2ns_shift")],
    &[("cyc2ns_data", "cyc2ns_offset")],
    &[("rq", "clock")],
    &[("tk_data", "timekeeper")],
    &[("timekeeper", "tkr_mono.clock")],
    &[("timekeeper", "tkr_mono.cycle_last")],
    &[("timekeeper", "tkr_mono.mult")],
    &[("timekeeper", "tkr_mono.shift")],
    &[("timekeeper", "tkr_mono.xtime_nsec")],
    &[("timekeeper", "tkr_mono.base")],
    &[("timekeeper", "cycle_interval")],
    &[("clocksource", "name")],
    &[("trace_array", "array_buffer.buffer"), ("trace_array", "trace_buffer.buffer")],
    &[("trace_array", "clock_id")],
    &[("trace_buffer", "buffers"), ("ring_buffer", "buffers")],
    &[("trace_buffer", "subbuf_order")],
    &[("ring_buffer_per_cpu", "nr_pages")],
    &[("ring_buffer_per_cpu", "head_page")],
    &[("ring_buffer_per_cpu", "commit_page")],
    &[("ring_buffer_per_cpu", "reader_page")],
    &[("ring_buffer_per_cpu", "entries")],
    &[("ring_buffer_per_cpu", "overrun")],
    &[("ring_buffer_per_cpu", "commit_overrun")],
    &[("ring_buffer_per_cpu", "dropped_events")],
    &[("buffer_page", "list.next")],
    &[("buffer_page", "list.prev")],
    &[("buffer_page", "page")],
    &[("buffer_data_page", "time_stamp")],
    &[("buffer_data_page", "commit")],
    &[("buffer_data_page", "data")],
    &[("trace_event_call", "event.type")],
    &[("trace_entry", "type")],
    &[("trace_entry", "pid")],
    &[("trace_event_raw_initcall_start", "func")],
    &[("trace_event_raw_initcall_finish", "func")],
    &[("trace_event_raw_initcall_finish", "ret")],
    &[("trace_event_raw_initcall_level", "__data_loc_level")],
    &[("trace_event_raw_module_load", "__data_loc_name")],
    &[("trace_event_raw_sched_process_exec", "__data_loc_filename")],
    &[("trace_event_raw_sched_process_exec", "pid")],
    &[
        ("trace_event_raw_sched_process_exit", "comm"),
        ("trace_event_raw_sched_process_template", "comm"),
    ],
    &[
        ("trace_event_raw_sched_process_exit", "pid"),
        ("trace_event_raw_sched_process_template", "pid"),
    ],
    &[
        ("trace_event_raw_sched_process_wait", "pid"),
        ("trace_event_raw_sched_process_template", "pid"),
    ],
    &[("trace_event_raw_task_newtask", "pid")],
    &[("trace_event_raw_task_newtask", "clone_flags")],
    &[("trace_event_raw_cgroup_attach_task", "pid"), ("trace_event_raw_cgroup_migrate", "pid")],
    &[
        ("trace_event_raw_cgroup_attach_task", "__data_loc_dst_path"),
        ("trace_event_raw_cgroup_migrate", "__data_loc_dst_path"),
    ],
    &[("trace_event_raw_console", "__data_loc_msg")],
    &[("trace_event_call", "list")],
    &[("trace_event_call", "name")],
    &[("linux_binprm", "argc")],
    &[("linux_binprm", "p")],
    &[("task_struct", "pid")],
    &[("task_struct", "exit_code")],
    &[("task_struct", "se.sum_exec_runtime")],
    &[("task_struct", "cgroups")],
    &[("css_set", "dfl_cgrp")],
    &[("cgroup", "kn")],
    &[("kernfs_node", "name")],
    &[("print_entry", "buf")],
    &[("module", "list.next")],
    &[("module", "list")],
    &[("module", "name")],
    &[("module", "init")],
    &[("super_block", "s_list.next")],
    &[("super_block", "s_inodes.next")],
    &[("super_block", "s_type")],
    &[("file_system_type", "name")],
    &[("dentry", "d_u.d_alias.next"), ("dentry", "d_alias.next")],
    &[("dentry", "d_parent")],
    &[("dentry", "d_name.name")],
    &[("inode", "i_sb_list.next")],
    &[("inode", "i_dentry.first")],
    &[("inode", "i_mode")],
    &[("inode", "i_size")],
    &[("inode", "i_mapping")],
    &[("address_space", "i_pages.xa_head")],
    &[("xa_node", "shift")],
    &[("xa_node", "slots")],
    &[("address_space", "host")],
    &[("page", "flags")],
    &[("page", "mapping")],
    &[("page", "index"), ("page", "__folio_index")],
    &[("page", "compound_head"), ("page", "compound_info")],
    &[("page", "page_type")],
    &[("page", "private")],
    &[("slab", "slab_cache"), ("page", "slab_cache")],
    &[("kmem_cache", "name")],
    &[("task_struct", "tasks.next")],
    &[("task_struct", "mm")],
    &[("task_struct", "comm")],
    &[("task_struct", "stack")],
    &[("mm_struct", "pgd")],
];

/// Values of enumerations used.
const ENUMERATORS: &[&str] = &["PG_slab", "PG_swapbacked", "PGTY_buddy", "PGTY_slab", "PGTY_table"];

/// Sizes used.
pub(crate) const SIZES: &[&str] = &["cyc2ns_data", "dentry", "page", "prb_desc", "printk_info"];

/// A kernel, as far as its guests' RAM is to be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelInfo {
    /// Release, as `uname -r` says it.
    pub version: String,
    /// `linux_banner`, without its newline.
    pub banner: String,
    /// GNU build id, hexadecimal.
    pub build_id: Option<String>,
    /// What the file is, in words.
    pub container: String,
    /// Physical address of the PVH entry, if the kernel has one.
    pub pvh_entry: Option<u64>,
    /// Number of symbols in the kernel's table.
    pub symbol_count: u64,
    /// Link-time addresses of the symbols that are used.
    pub symbols: BTreeMap<String, u64>,
    /// Places of the fields that are used, by `structure.path`.
    pub fields: BTreeMap<String, Field>,
    /// Sizes of the structures that are used, bytes.
    pub sizes: BTreeMap<String, u64>,
    /// True if it has the events of initcalls, which one without `CONFIG_TRACEPOINTS` lacks.
    pub traces_initcalls: bool,
    /// Event type of `trace_marker` records.
    pub trace_print: Option<u32>,
    /// Values of the enumerators that are used.
    #[serde(default)]
    pub enumerators: BTreeMap<String, u32>,
    /// Where the function table is, if it is cached.
    #[serde(skip)]
    pub(crate) functions: Option<PathBuf>,
}

impl KernelInfo {
    /// What is known of the kernel in `path`, from the cache folder if it was
    /// opened before (same path, size and modification time), else worked out
    /// and cached. A cache that can't be written is no error.
    ///
    /// # Errors
    /// As [`KernelImage::open`] and [`KernelImage::symbols`].
    pub fn open(cache: &Path, path: &Path) -> Result<Self> {
        let folder = cache.join("kernel-info");
        let key = folder.join(format!("{:016x}.json", file_key(path)?));
        if let Some(info) = Self::cached(&key) {
            return Ok(info);
        }
        let image = KernelImage::open(path)?;
        let (mut info, functions) = Self::of(&image)?;
        info.store(&key, &functions);
        Ok(info)
    }

    /// Keeps it under `key`, its functions beside it; a cache that can't be written is no error.
    pub(crate) fn store(&mut self, key: &Path, functions: &FunctionTable) {
        let Some(folder) = key.parent() else { return };
        let table = folder.join(self.cache_name("functions"));
        let stored = fs::create_dir_all(folder)
            .map_err(|e| Error::io(folder, e))
            .and_then(|()| write_whole(&table, functions.bytes()))
            .and_then(|()| write_whole(key, &self.to_json()));
        if stored.is_ok() {
            self.functions = Some(table);
        }
    }

    /// Where what was found in RAM under a text of the kernel is kept.
    pub(crate) fn key_of_text(cache: &Path, text: &str) -> PathBuf {
        let mut hasher = Fnv::default();
        (CACHE_VERSION, text).hash(&mut hasher);
        cache.join("kernel-info").join(format!("ram-{:016x}.json", hasher.finish()))
    }

    /// The table of functions, if it is cached.
    pub(crate) fn cached_functions(&self) -> Option<FunctionTable> {
        FunctionTable::from_bytes(cached_bytes(self.functions.as_ref()?)?).ok()
    }

    /// Works it out of an image, with the table of its functions.
    ///
    /// # Errors
    /// As [`KernelImage::symbols`]. Missing types or symbols are no error here: the
    /// readers that need them say so.
    pub fn of(image: &KernelImage) -> Result<(Self, FunctionTable)> {
        let symbols = image.symbols()?;
        let section = image.section(".BTF").map(|(_, data)| data).or_else(|| {
            let start = symbols.address("__start_BTF")?;
            let end = symbols.address("__stop_BTF")?;
            image.read(start, end.checked_sub(start)?)
        });
        let mut info = Self::of_tables(image.banner(), &symbols, section);
        info.build_id = image.build_id().map(str::to_owned);
        info.container = image.container().to_owned();
        info.pvh_entry = image.pvh_entry();
        info.traces_initcalls = image.traces_initcalls();
        Ok((info, FunctionTable::of(&symbols)))
    }

    /// What a kernel's own tables say: its symbols, at link-time addresses, and its types.
    pub(crate) fn of_tables(banner: &str, symbols: &Symbols, btf: Option<&[u8]>) -> Self {
        let mut info = KernelInfo {
            version: banner.split(' ').nth(2).unwrap_or_default().to_owned(),
            banner: banner.to_owned(),
            build_id: None,
            container: String::new(),
            pvh_entry: None,
            symbol_count: symbols.len() as u64,
            symbols: SYMBOLS
                .iter()
                .chain(CODE_SYMBOLS)
                .filter_map(|&name| Some((name.to_owned(), symbols.address(name)?)))
                .collect(),
            fields: BTreeMap::new(),
            sizes: BTreeMap::new(),
            traces_initcalls: symbols.address("event_initcall_finish").is_some(),
            trace_print: None,
            enumerators: BTreeMap::new(),
            functions: None,
        };
        if let Some(btf) = btf.and_then(|data| Btf::parse(data).ok()) {
            info.take_types(&btf);
        }
        info
    }

    /// Takes field offsets from a kernel's types.
    fn take_types(&mut self, btf: &Btf<'_>) {
        for names in FIELDS {
            let field = names.iter().find_map(|(structure, path)| btf.field(structure, path));
            if let Some(field) = field {
                self.fields.insert(format!("{}.{}", names[0].0, names[0].1), field);
            }
        }
        for &name in SIZES {
            if let Some(size) = btf.size_of(name) {
                self.sizes.insert(name.to_owned(), size);
            }
        }
        self.trace_print = btf.enumerator("TRACE_PRINT");
        let known = |name: &&str| Some(((*name).to_owned(), btf.enumerator(name)?));
        self.enumerators = ENUMERATORS.iter().filter_map(known).collect();
    }

    /// The link-time address of a symbol.
    ///
    /// # Errors
    /// [`Error::Missing`] with the option that leaves variables out of kallsyms.
    pub fn symbol(&self, name: &str) -> Result<u64> {
        self.symbols.get(name).copied().ok_or_else(|| Error::Missing {
            what: format!("the symbol {name}"),
            why: format!(
                "kernel {} was built without CONFIG_KALLSYMS_ALL, or without the feature that \
                 the symbol belongs to",
                self.version
            ),
        })
    }

    /// The place of a field, by `structure.path`.
    ///
    /// # Errors
    /// [`Error::Missing`] when the kernel has no BTF or no such field.
    pub fn field(&self, name: &str) -> Result<Field> {
        self.fields.get(name).copied().ok_or_else(|| Error::Missing {
            what: format!("the place of {name}"),
            why: if self.fields.is_empty() {
                format!("kernel {} was built without CONFIG_DEBUG_INFO_BTF", self.version)
            } else {
                format!(
                    "kernel {} has a layout of this structure that vmeter does not know",
                    self.version
                )
            },
        })
    }

    /// What it lacks of what guests' RAM is read by: variables among its symbols, types, and
    /// events of initcalls.
    pub fn lacks(&self) -> [bool; 3] {
        [!self.symbols.contains_key("prb"), self.fields.is_empty(), !self.traces_initcalls]
    }

    /// The table that names functions by address: from the cache, or worked out
    /// of `kernel` again.
    ///
    /// # Errors
    /// As [`KernelImage::open`] and [`KernelImage::symbols`].
    pub fn functions(&self, kernel: &Path) -> Result<FunctionTable> {
        match self.cached_functions() {
            Some(table) => Ok(table),
            None => Ok(FunctionTable::of(&KernelImage::open(kernel)?.symbols()?)),
        }
    }

    fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(&(CACHE_VERSION, self)).unwrap_or_default()
    }

    pub(crate) fn cached(key: &Path) -> Option<Self> {
        let data = cached_bytes(key)?;
        let (version, mut info): (u32, KernelInfo) = serde_json::from_slice(&data).ok()?;
        if version != CACHE_VERSION {
            return None;
        }
        let table = key.parent()?.join(info.cache_name("functions"));
        if !table.is_file() {
            return None;
        }
        info.functions = Some(table);
        Some(info)
    }

    /// A file name that is the same for the same kernel, wherever it lies.
    fn cache_name(&self, suffix: &str) -> String {
        let id = self.build_id.as_deref().unwrap_or("no-id");
        let mut hasher = Fnv::default();
        self.banner.hash(&mut hasher);
        self.symbol_count.hash(&mut hasher);
        format!("{}-{:016x}-v{CACHE_VERSION}.{suffix}", &id[..id.len().min(16)], hasher.finish())
    }
}

/// A file of the cache.
fn cached_bytes(path: &Path) -> Option<Vec<u8>> {
    files::read_limited(path, MAX_CACHED).ok()
}

/// A number for a file as it is now: path, size, modification time, device and inode.
fn file_key(path: &Path) -> Result<u64> {
    let metadata = fs::metadata(path).map_err(|e| Error::io(path, e))?;
    let path = fs::canonicalize(path).map_err(|e| Error::io(path, e))?;
    let mut hasher = Fnv::default();
    path.hash(&mut hasher);
    (CACHE_VERSION, metadata.len(), metadata.mtime(), metadata.mtime_nsec()).hash(&mut hasher);
    (metadata.dev(), metadata.ino()).hash(&mut hasher);
    Ok(hasher.finish())
}
