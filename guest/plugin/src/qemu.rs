//! QEMU's plugin interface, as far as it is needed.
//!
//! Declared after the headers `include/qemu/qemu-plugin.h` of QEMU 7.2 (API 1)
//! and 10.0 (API 4). QEMU refuses a plugin whose `qemu_plugin_version` is
//! outside its range, API 2 dropped the shared inline addition, and API 3
//! changed `qemu_plugin_insn_data` to copy. The functions are therefore looked
//! up at run time, and the version is chosen when the library is loaded, which
//! is before QEMU reads it.

use std::ffi::{c_char, c_int, c_uint, c_void, CStr};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// Identifies this plugin to QEMU.
pub type PluginId = u64;

/// `struct qemu_plugin_tb`, opaque.
#[repr(C)]
pub struct Tb {
    _opaque: [u8; 0],
}

/// `qemu_info_t` for system emulation.
#[repr(C)]
pub struct Info {
    _target_name: *const c_char,
    _minimum_version: c_int,
    /// Newest API version that this QEMU has.
    pub current_version: c_int,
    _system_emulation: bool,
    _smp_vcpus: c_int,
    /// Most vCPUs that the machine can have.
    pub max_vcpus: c_int,
}

/// `qemu_plugin_u64`: a counter per vCPU.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Scoreboard {
    score: *mut c_void,
    offset: usize,
}

// SAFETY: QEMU locks its scoreboards; the handle itself is only a pointer.
unsafe impl Send for Scoreboard {}
// SAFETY: as above.
unsafe impl Sync for Scoreboard {}

type OnTranslation = extern "C" fn(PluginId, *mut Tb);
type OnExecution = extern "C" fn(c_uint, *mut c_void);
type OnReset = extern "C" fn(PluginId);
type OnExit = extern "C" fn(PluginId, *mut c_void);

/// The API version that QEMU checks. An `AtomicI32` has the layout of an `int`.
#[allow(non_upper_case_globals)]
#[no_mangle]
pub static qemu_plugin_version: AtomicI32 = AtomicI32::new(1);

/// The dynamic loader runs this before QEMU looks at the version.
#[used]
#[link_section = ".init_array"]
static CHOOSE_VERSION: extern "C" fn() = choose_version;

extern "C" fn choose_version() {
    if lookup(c"qemu_plugin_scoreboard_new").is_some() {
        qemu_plugin_version.store(2, Relaxed);
    }
}

extern "C" {
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// A function of the program that loaded this library (`RTLD_DEFAULT`).
fn lookup(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: dlsym reads a C string and has no other precondition.
    let address = unsafe { dlsym(std::ptr::null_mut(), name.as_ptr()) };
    (!address.is_null()).then_some(address)
}

/// A function of QEMU, if this one has it.
///
/// # Safety
/// `F` is the type of a pointer to the function `name` in QEMU's header.
unsafe fn function<F: Copy>(name: &CStr) -> Option<F> {
    const { assert!(std::mem::size_of::<F>() == std::mem::size_of::<*mut c_void>()) };
    let address = lookup(name)?;
    // SAFETY: both are pointers; the type is promised by the caller.
    Some(unsafe { std::mem::transmute_copy::<*mut c_void, F>(&address) })
}

/// As [`function`], for one that every QEMU with plugins has.
///
/// # Safety
/// As [`function`].
unsafe fn required<F: Copy>(name: &CStr) -> Result<F, String> {
    // SAFETY: as promised by the caller.
    unsafe { function(name) }.ok_or_else(|| missing(name))
}

fn missing(name: &CStr) -> String {
    format!(
        "this QEMU has no {}: expected one with TCG plugins (configure --enable-plugins)",
        name.to_string_lossy()
    )
}

type InsnDataPointer = unsafe extern "C" fn(*const c_void) -> *const u8;
type InsnDataCopy = unsafe extern "C" fn(*const c_void, *mut u8, usize) -> usize;

/// The functions of QEMU that the plugin calls.
pub struct Qemu {
    api: c_int,
    register_translation: unsafe extern "C" fn(PluginId, Option<OnTranslation>),
    register_exit: unsafe extern "C" fn(PluginId, OnExit, *mut c_void),
    reset: unsafe extern "C" fn(PluginId, Option<OnReset>),
    tb_vaddr: unsafe extern "C" fn(*const Tb) -> u64,
    tb_n_insns: unsafe extern "C" fn(*const Tb) -> usize,
    tb_get_insn: unsafe extern "C" fn(*const Tb, usize) -> *const c_void,
    insn_vaddr: unsafe extern "C" fn(*const c_void) -> u64,
    insn_size: unsafe extern "C" fn(*const c_void) -> usize,
    insn_data: *mut c_void,
    tb_exec_cb: unsafe extern "C" fn(*mut Tb, OnExecution, c_int, *mut c_void),
    tb_exec_inline: Option<unsafe extern "C" fn(*mut Tb, c_int, *mut u64, u64)>,
    scoreboard_new: Option<unsafe extern "C" fn(usize) -> *mut c_void>,
    tb_exec_per_vcpu: Option<unsafe extern "C" fn(*mut Tb, c_int, Scoreboard, u64)>,
    u64_get: Option<unsafe extern "C" fn(Scoreboard, c_uint) -> u64>,
    num_vcpus: Option<unsafe extern "C" fn() -> c_int>,
}

// SAFETY: function pointers and addresses of functions, never written.
unsafe impl Send for Qemu {}
// SAFETY: as above; QEMU's functions are made to be called from any vCPU thread.
unsafe impl Sync for Qemu {}

/// `QEMU_PLUGIN_CB_NO_REGS`.
const NO_REGS: c_int = 0;
/// `QEMU_PLUGIN_INLINE_ADD_U64`.
const ADD_U64: c_int = 0;

impl Qemu {
    /// Looks up the functions; `api` is the newest version that QEMU has.
    pub fn find(api: c_int) -> Result<Self, String> {
        // SAFETY: the fields' types are those of the functions in QEMU's header.
        let qemu = unsafe {
            Self {
                api,
                register_translation: required(c"qemu_plugin_register_vcpu_tb_trans_cb")?,
                register_exit: required(c"qemu_plugin_register_atexit_cb")?,
                reset: required(c"qemu_plugin_reset")?,
                tb_vaddr: required(c"qemu_plugin_tb_vaddr")?,
                tb_n_insns: required(c"qemu_plugin_tb_n_insns")?,
                tb_get_insn: required(c"qemu_plugin_tb_get_insn")?,
                insn_vaddr: required(c"qemu_plugin_insn_vaddr")?,
                insn_size: required(c"qemu_plugin_insn_size")?,
                insn_data: required(c"qemu_plugin_insn_data")?,
                tb_exec_cb: required(c"qemu_plugin_register_vcpu_tb_exec_cb")?,
                tb_exec_inline: function(c"qemu_plugin_register_vcpu_tb_exec_inline"),
                scoreboard_new: function(c"qemu_plugin_scoreboard_new"),
                tb_exec_per_vcpu: function(c"qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu"),
                u64_get: function(c"qemu_plugin_u64_get"),
                num_vcpus: function(c"qemu_plugin_num_vcpus"),
            }
        };
        if qemu.tb_exec_inline.is_none() && qemu.tb_exec_per_vcpu.is_none() {
            return Err(missing(c"qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu"));
        }
        Ok(qemu)
    }

    /// Calls `f` for every block translated from now on, or no longer any.
    pub fn register_translation(&self, id: PluginId, f: Option<OnTranslation>) {
        // SAFETY: the id is the one QEMU gave; QEMU takes no function as "unregister".
        unsafe { (self.register_translation)(id, f) }
    }

    /// Calls `f` when QEMU exits.
    pub fn register_exit(&self, id: PluginId, f: OnExit) {
        // SAFETY: the id is the one QEMU gave.
        unsafe { (self.register_exit)(id, f, std::ptr::null_mut()) }
    }

    /// Removes all callbacks and all translated code, once every vCPU has stopped.
    pub fn reset(&self, id: PluginId) {
        // SAFETY: the id is the one QEMU gave; this is a vCPU's thread.
        unsafe { (self.reset)(id, None) }
    }

    /// Linear guest address at which the block begins.
    pub fn address(&self, tb: *const Tb) -> u64 {
        // SAFETY: the block is the one that QEMU is translating.
        unsafe { (self.tb_vaddr)(tb) }
    }

    /// Number of guest instructions in the block.
    pub fn length(&self, tb: *const Tb) -> u64 {
        // SAFETY: the block is the one that QEMU is translating.
        unsafe { (self.tb_n_insns)(tb) as u64 }
    }

    /// Calls `f` each time the block executes, before its first instruction.
    pub fn on_execution(&self, tb: *mut Tb, f: OnExecution, data: *mut c_void) {
        // SAFETY: the block is the one that QEMU is translating.
        unsafe { (self.tb_exec_cb)(tb, f, NO_REGS, data) }
    }

    /// Adds the block's length to a counter each time it executes.
    pub fn add_inline(&self, tb: *mut Tb, counter: *mut u64) {
        if let Some(add) = self.tb_exec_inline {
            // SAFETY: the counter lies in a mapping that is never removed.
            unsafe { add(tb, ADD_U64, counter, self.length(tb)) }
        }
    }

    /// Adds the block's length to the executing vCPU's counter.
    pub fn add_per_vcpu(&self, tb: *mut Tb, scoreboard: &Scoreboard) {
        if let Some(add) = self.tb_exec_per_vcpu {
            // SAFETY: the scoreboard is QEMU's own and is never freed.
            unsafe { add(tb, ADD_U64, *scoreboard, self.length(tb)) }
        }
    }

    /// A counter per vCPU, if this QEMU has such.
    pub fn new_scoreboard(&self) -> Option<Scoreboard> {
        let new = self.scoreboard_new?;
        self.tb_exec_per_vcpu?;
        self.u64_get?;
        self.num_vcpus?;
        // SAFETY: no precondition but a size.
        Some(Scoreboard { score: unsafe { new(std::mem::size_of::<u64>()) }, offset: 0 })
    }

    /// vCPUs that have a counter.
    pub fn vcpus(&self) -> u32 {
        // SAFETY: no precondition.
        self.num_vcpus.map_or(0, |f| u32::try_from(unsafe { f() }).unwrap_or(0))
    }

    /// The counter of a vCPU below [`Self::vcpus`].
    pub fn count_of(&self, scoreboard: &Scoreboard, vcpu: u32) -> u64 {
        // SAFETY: the scoreboard is QEMU's own and has an element for this vCPU.
        self.u64_get.map_or(0, |f| unsafe { f(*scoreboard, vcpu) })
    }

    /// The block's last instruction.
    pub fn last_instruction(&self, tb: *const Tb) -> Option<Instruction> {
        let last = usize::try_from(self.length(tb)).ok()?.checked_sub(1)?;
        let mut instruction = Instruction { address: 0, bytes: [0; 16], length: 0 };
        // SAFETY: the index is below the block's length; the data has the size
        // that QEMU says, and is copied while the block is being translated.
        unsafe {
            let insn = (self.tb_get_insn)(tb, last);
            if insn.is_null() {
                return None;
            }
            instruction.address = (self.insn_vaddr)(insn);
            instruction.length = (self.insn_size)(insn).min(instruction.bytes.len());
            let into = instruction.bytes.as_mut_ptr();
            if self.api >= 3 {
                let copy: InsnDataCopy = std::mem::transmute(self.insn_data);
                instruction.length = copy(insn, into, instruction.length);
            } else {
                let data: InsnDataPointer = std::mem::transmute(self.insn_data);
                std::ptr::copy_nonoverlapping(data(insn), into, instruction.length);
            }
        }
        Some(instruction)
    }
}

/// A guest instruction.
pub struct Instruction {
    /// Its linear address.
    pub address: u64,
    bytes: [u8; 16],
    length: usize,
}

impl Instruction {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or(&[])
    }
}
