//! VMEXIT reasons by number (Intel SDM volume 3 appendix C, AMD APM volume 2
//! appendix C) and Xen's hypercalls (xen/include/public/xen.h).

/// VMX basic exit reasons from 0 on; empty where the number is free.
const VMX_EXITS: [&str; 65] = [
    "EXCEPTION_NMI",
    "EXTERNAL_INTERRUPT",
    "TRIPLE_FAULT",
    "INIT",
    "SIPI",
    "IO_SMI",
    "OTHER_SMI",
    "INTERRUPT_WINDOW",
    "NMI_WINDOW",
    "TASK_SWITCH",
    "CPUID",
    "GETSEC",
    "HLT",
    "INVD",
    "INVLPG",
    "RDPMC",
    "RDTSC",
    "RSM",
    "VMCALL",
    "VMCLEAR",
    "VMLAUNCH",
    "VMPTRLD",
    "VMPTRST",
    "VMREAD",
    "VMRESUME",
    "VMWRITE",
    "VMXOFF",
    "VMXON",
    "CR_ACCESS",
    "DR_ACCESS",
    "IO_INSTRUCTION",
    "MSR_READ",
    "MSR_WRITE",
    "INVALID_GUEST_STATE",
    "MSR_LOADING",
    "",
    "MWAIT_INSTRUCTION",
    "MONITOR_TRAP_FLAG",
    "",
    "MONITOR_INSTRUCTION",
    "PAUSE_INSTRUCTION",
    "MCE_DURING_VMENTRY",
    "",
    "TPR_BELOW_THRESHOLD",
    "APIC_ACCESS",
    "EOI_INDUCED",
    "GDTR_IDTR",
    "LDTR_TR",
    "EPT_VIOLATION",
    "EPT_MISCONFIG",
    "INVEPT",
    "RDTSCP",
    "PREEMPTION_TIMER",
    "INVVPID",
    "WBINVD",
    "XSETBV",
    "APIC_WRITE",
    "RDRAND",
    "INVPCID",
    "VMFUNC",
    "ENCLS",
    "RDSEED",
    "PML_FULL",
    "XSAVES",
    "XRSTORS",
];

/// Name of a VMX basic exit reason.
pub fn vmx_exit(reason: u32) -> Option<&'static str> {
    VMX_EXITS.get(reason as usize).copied().filter(|name| !name.is_empty())
}

/// SVM exit codes from 0x60 on.
const SVM_FROM_60: [&str; 48] = [
    "INTR",
    "NMI",
    "SMI",
    "INIT",
    "VINTR",
    "CR0_SEL_WRITE",
    "IDTR_READ",
    "GDTR_READ",
    "LDTR_READ",
    "TR_READ",
    "IDTR_WRITE",
    "GDTR_WRITE",
    "LDTR_WRITE",
    "TR_WRITE",
    "RDTSC",
    "RDPMC",
    "PUSHF",
    "POPF",
    "CPUID",
    "RSM",
    "IRET",
    "SWINT",
    "INVD",
    "PAUSE",
    "HLT",
    "INVLPG",
    "INVLPGA",
    "IOIO",
    "MSR",
    "TASK_SWITCH",
    "FERR_FREEZE",
    "SHUTDOWN",
    "VMRUN",
    "VMMCALL",
    "VMLOAD",
    "VMSAVE",
    "STGI",
    "CLGI",
    "SKINIT",
    "RDTSCP",
    "ICEBP",
    "WBINVD",
    "MONITOR",
    "MWAIT",
    "MWAIT_CONDITIONAL",
    "XSETBV",
    "RDPRU",
    "EFER_WRITE_TRAP",
];

/// Name of an intercepted exception, as KVM spells it (arch/x86/include/uapi/asm/svm.h,
/// `SVM_EXIT_REASONS`): a trace's own table has these as sums, which are not worked out.
pub fn svm_exception(code: u64) -> Option<String> {
    const VECTORS: [&str; 20] = [
        "DE", "DB", "", "BP", "OF", "BR", "UD", "NM", "DF", "", "TS", "NP", "SS", "GP", "PF", "",
        "MF", "AC", "MC", "XF",
    ];
    let vector = usize::try_from(code.checked_sub(64)?).ok()?;
    let name = VECTORS.get(vector).filter(|name| !name.is_empty())?;
    Some(format!("{name} excp"))
}

/// Name of an SVM exit code, as AMD's manual spells it.
pub fn svm_exit(code: u32) -> Option<String> {
    Some(match code {
        0..=15 => format!("VMEXIT_CR{code}_READ"),
        16..=31 => format!("VMEXIT_CR{}_WRITE", code - 16),
        32..=47 => format!("VMEXIT_DR{}_READ", code - 32),
        48..=63 => format!("VMEXIT_DR{}_WRITE", code - 48),
        64..=95 => format!("VMEXIT_EXCP{}", code - 64),
        0x60..=0x8f => format!("VMEXIT_{}", SVM_FROM_60[code as usize - 0x60]),
        0x90..=0x9f => format!("VMEXIT_CR{}_WRITE_TRAP", code - 0x90),
        0xa5 => "VMEXIT_BUSLOCK".into(),
        0x400 => "VMEXIT_NPF".into(),
        0x401 => "VMEXIT_AVIC_INCOMPLETE_IPI".into(),
        0x402 => "VMEXIT_AVIC_NOACCEL".into(),
        0x403 => "VMEXIT_VMGEXIT".into(),
        _ => return None,
    })
}

/// Xen's hypercalls from 0 on; empty where the number is free.
const HYPERCALLS: [&str; 42] = [
    "set_trap_table",
    "mmu_update",
    "set_gdt",
    "stack_switch",
    "set_callbacks",
    "fpu_taskswitch",
    "sched_op_compat",
    "platform_op",
    "set_debugreg",
    "get_debugreg",
    "update_descriptor",
    "",
    "memory_op",
    "multicall",
    "update_va_mapping",
    "set_timer_op",
    "event_channel_op_compat",
    "xen_version",
    "console_io",
    "physdev_op_compat",
    "grant_table_op",
    "vm_assist",
    "update_va_mapping_otherdomain",
    "iret",
    "vcpu_op",
    "set_segment_base",
    "mmuext_op",
    "xsm_op",
    "nmi_op",
    "sched_op",
    "callback_op",
    "xenoprof_op",
    "event_channel_op",
    "physdev_op",
    "hvm_op",
    "sysctl",
    "domctl",
    "kexec_op",
    "tmem_op",
    "argo_op",
    "xenpmu_op",
    "dm_op",
];

/// Name of a Xen hypercall.
pub fn xen_hypercall(number: u32) -> Option<&'static str> {
    HYPERCALLS.get(number as usize).copied().filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_have_the_manuals_names() {
        assert_eq!(vmx_exit(48), Some("EPT_VIOLATION"));
        assert_eq!(vmx_exit(30), Some("IO_INSTRUCTION"));
        assert_eq!(vmx_exit(35), None);
        assert_eq!(svm_exit(0x7b).as_deref(), Some("VMEXIT_IOIO"));
        assert_eq!(svm_exit(0x64).as_deref(), Some("VMEXIT_VINTR"));
        assert_eq!(svm_exit(0x8f).as_deref(), Some("VMEXIT_EFER_WRITE_TRAP"));
        assert_eq!(svm_exception(0x46).as_deref(), Some("UD excp"));
        assert_eq!([63, 64 + 15, 64 + 20, 0x400].map(svm_exception), [None, None, None, None]);
        assert_eq!(svm_exit(0x400).as_deref(), Some("VMEXIT_NPF"));
        assert_eq!(xen_hypercall(34), Some("hvm_op"));
        assert_eq!(xen_hypercall(29), Some("sched_op"));
        assert_eq!(xen_hypercall(11), None);
    }
}
