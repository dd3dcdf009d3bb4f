# The guest that is migrated: 64-bit code that runs from the firmware's place.
# Parameters are patched in at `vmeter_migrate_parameters`. Registers, once running:
#   r8 next heartbeat   r9 next page due   r10 pages written   r11 page to write
#   r12 r13 working set   r14 stop at this many pages   r15 heartbeats
#   rbx rbp the command that arrives   rsi local APIC
# Nothing that depends on time is kept in RAM, so that two copies of one guest that
# have written equally many pages have equal memory.

.pushsection .rodata.vmeter_migrate_guest, "a", @progbits
.balign 16
.globl vmeter_migrate_guest
.globl vmeter_migrate_parameters
.globl vmeter_migrate_guest_end
vmeter_migrate_guest:
.code16
    cli
    .byte 0x2e, 0x66, 0x0f, 0x01, 0x16          # lgdt cs:[gdtr]
    .word vmeter_migrate_gdtr - vmeter_migrate_guest
    mov eax, cr0
    or al, 1
    mov cr0, eax
    .byte 0x66, 0xea                            # jmp far 0x08:protected
    .long 0xffff0000 + (vmeter_migrate_protected - vmeter_migrate_guest)
    .word 0x08

.code32
vmeter_migrate_protected:
    mov eax, 0x10
    mov ds, eax
    mov es, eax
    mov ss, eax
    in al, 0x92                                 # A20 on
    or al, 2
    and al, 0xfe
    out 0x92, al
    cld
    mov edi, 0x1000                             # page tables and stack: 0x1000 to 0x7fff
    xor eax, eax
    mov ecx, 0x1c00
    rep stosd
    mov dword ptr [0x1000], 0x2003
    mov dword ptr [0x2000], 0x3003
    mov dword ptr [0x2008], 0x4003
    mov dword ptr [0x2010], 0x5003
    mov dword ptr [0x2018], 0x6003
    mov edi, 0x3000                             # 4 GiB, virtual = physical, 2 MiB pages
    mov eax, 0x83
    mov ecx, 2048
2:  mov dword ptr [edi], eax
    add eax, 0x200000
    add edi, 8
    dec ecx
    jnz 2b
    mov eax, cr4
    or eax, 0x20                                # PAE
    mov cr4, eax
    mov eax, 0x1000
    mov cr3, eax
    mov ecx, 0xc0000080                         # EFER.LME
    rdmsr
    or eax, 0x100
    wrmsr
    mov eax, cr0
    or eax, 0x80000000
    mov cr0, eax
    .byte 0xea                                  # jmp far 0x18:long
    .long 0xffff0000 + (vmeter_migrate_long - vmeter_migrate_guest)
    .word 0x18

.code64
vmeter_migrate_long:
    mov esp, 0x8000
    lidt [rip + vmeter_migrate_idtr]
    mov al, 0xff                                # the 8259s are not used
    out 0x21, al
    out 0xa1, al
    mov esi, 0xfee00000
    mov dword ptr [rsi + 0xf0], 0x12f           # APIC on, spurious vector 0x2f
    mov dword ptr [rsi + 0x350], 0x10000        # LINT0 masked
    mov dword ptr [rsi + 0x3e0], 0x0b           # timer: divide by 1,
    mov dword ptr [rsi + 0x320], 0x20020        # periodic, vector 0x20
    mov dx, 0x3f9                               # 16550: no interrupts, 115200 8N1, FIFOs
    xor eax, eax
    out dx, al
    mov dx, 0x3fb
    mov al, 0x80
    out dx, al
    mov dx, 0x3f8
    mov al, 1
    out dx, al
    mov dx, 0x3f9
    xor eax, eax
    out dx, al
    mov dx, 0x3fb
    mov al, 3
    out dx, al
    mov dx, 0x3fa
    mov al, 7
    out dx, al
    mov dx, 0x3fc
    mov al, 3
    out dx, al

    mov rdi, qword ptr [rip + vmeter_migrate_parameters]
    mov rcx, qword ptr [rip + vmeter_migrate_parameters + 8]
    mov eax, 1
    call 20f
    mov r12, qword ptr [rip + vmeter_migrate_parameters]
    mov r11, r12
    mov r13, qword ptr [rip + vmeter_migrate_parameters + 16]
    xor r10d, r10d
    xor r15d, r15d
    xor ebx, ebx
    xor ebp, ebp
    mov r14, -1
    rdtsc
    shl rdx, 32
    or rax, rdx
    mov r8, rax
    mov r9, rax
    mov rdi, rax
    mov eax, 0xb4                               # ready
    call 30f
    mov eax, dword ptr [rip + vmeter_migrate_parameters + 56]
    mov dword ptr [rsi + 0x380], eax            # the timer starts

10: # forever
    rdtsc
    shl rdx, 32
    or rax, rdx
    cmp rax, r8
    jae 40f
11: cmp r10, r14
    jae 50f
    mov rdx, qword ptr [rip + vmeter_migrate_parameters + 24]
    test rdx, rdx
    jz 13f
    mov rcx, rax                                # what the host did not let it write in
    sub rcx, qword ptr [rip + vmeter_migrate_parameters + 48]
    jb 12f                                      # nothing yet: the TSC began at 0
    cmp r9, rcx                                 # time is forgotten, not caught up with
    jae 12f
    mov r9, rcx
12: cmp rax, r9
    jb 13f
    add r9, rdx
    inc r10
    movabs rax, 0x9e3779b97f4a7c15
    imul rax, r10
    mov rdi, r11
    mov rcx, qword ptr [rip + vmeter_migrate_parameters + 32]
    call 20f
    add r11, 0x1000
    cmp r11, r13
    jb 10b
    mov r11, r12
    jmp 10b
13: sti
    hlt
    cli
    jmp 10b

20: # writes rcx words from rdi on, noise that begins with rax
    imul rax, rax, 0x5851f42d
    add rax, 0x3c6ef35f
    mov rdx, rax
    shr rdx, 32
    xor rdx, rax
    mov qword ptr [rdi], rdx
    add rdi, 8
    dec rcx
    jnz 20b
    ret

30: # sends a frame: al its kind, rdi the time
    movzx ecx, r15w
    shl ecx, 16
    or eax, ecx
    mov ecx, r10d
    shl rcx, 32
    or rax, rcx
    xor edx, edx
    mov rcx, rax
31: add dl, cl
    shr rcx, 8
    jnz 31b
    mov rcx, rdi
32: add dl, cl
    shr rcx, 8
    jnz 32b
    movzx edx, dl
    shl edx, 8
    or rax, rdx
    mov dx, 0x3f8
    mov ecx, 8
33: out dx, al
    shr rax, 8
    dec ecx
    jnz 33b
    mov rax, rdi
    mov ecx, 8
34: out dx, al
    shr rax, 8
    dec ecx
    jnz 34b
    ret

40: # a heartbeat, and what the host has to say
    mov rdi, rax
    mov rax, cr3                                # as a kernel does when it switches tasks
    mov cr3, rax
    inc r15
    add r8, qword ptr [rip + vmeter_migrate_parameters + 40]
    cmp r8, rax
    ja 41f
    mov r8, rax
    add r8, qword ptr [rip + vmeter_migrate_parameters + 40]
41: mov dx, 0x3fd
    in al, dx
    test al, 1
    jz 43f
    mov dx, 0x3f8
    in al, dx
    shr rbx, 8
    movzx eax, al
    shl rax, 56
    or rbx, rax
    inc ebp
    cmp ebp, 8
    jne 41b
    mov r14, rbx
    xor ebp, ebp
    jmp 41b
43: test al, 0x20                               # a full FIFO: this one is not sent
    jz 44f
    mov eax, 0xb5
    call 30b
44: mov rax, rdi
    jmp 11b

50: # the end: clears what interrupts left on the stack, then says so, and halts: who hears it compares
    mov r8, rax                                 # memories at once
    mov edi, 0x7000
    xor eax, eax
    mov ecx, 512
    rep stosq
    mov rdi, r8
51: mov dx, 0x3fd
    in al, dx
    test al, 0x20
    jz 51b
    mov eax, 0xb6
    call 30b
52: cli
    hlt
    jmp 52b

vmeter_migrate_tick:
    mov dword ptr [rsi + 0xb0], 0
vmeter_migrate_spurious:
    iretq

.balign 8
vmeter_migrate_gdt:
    .quad 0
    .quad 0x00cf9b000000ffff                    # 0x08: code, 32 bit
    .quad 0x00cf93000000ffff                    # 0x10: data
    .quad 0x00af9b000000ffff                    # 0x18: code, 64 bit
vmeter_migrate_gdtr:
    .word 31
    .long 0xffff0000 + (vmeter_migrate_gdt - vmeter_migrate_guest)
.balign 8
vmeter_migrate_idt:
    .fill 64, 8, 0
    .word vmeter_migrate_tick - vmeter_migrate_guest, 0x18, 0x8e00, 0xffff
    .quad 0
    .fill 28, 8, 0
    .word vmeter_migrate_spurious - vmeter_migrate_guest, 0x18, 0x8e00, 0xffff
    .quad 0
vmeter_migrate_idtr:
    .word 0x2ff
    .quad 0xffff0000 + (vmeter_migrate_idt - vmeter_migrate_guest)
.balign 8
vmeter_migrate_parameters:
    .fill 8, 8, 0
vmeter_migrate_guest_end:
.code64
.popsection
