//! The guests' programs: a few bytes of position-independent 64-bit code each.
//!
//! Parameters come in registers, so one program serves every size; each ends in
//! `out imm8, al` to the port it is made with, then starts over if resumed. All
//! run in ring 0 and in ring 3. Encodings: Intel SDM vol. 2.

/// `dec rcx; jnz` until rcx is 0. Executes 2 x rcx instructions, then the `out`.
pub fn count_down(port: u8) -> Vec<u8> {
    vec![
        0x48, 0xff, 0xc9, // dec rcx
        0x75, 0xfb, // jnz -5
        0xe6, port, // out port, al
        0xeb, 0xf7, // jmp -9
    ]
}

/// Writes rcx (counting down) to `[rdi]`, rdi growing by rsi: with rsi = 4096, the
/// first eight bytes of rcx pages from rdi on.
pub fn touch_strided(port: u8) -> Vec<u8> {
    vec![
        0x48, 0x89, 0x0f, // mov [rdi], rcx
        0x48, 0x01, 0xf7, // add rdi, rsi
        0x48, 0xff, 0xc9, // dec rcx
        0x75, 0xf5, // jnz -11
        0xe6, port, // out port, al
        0xeb, 0xf1, // jmp -15
    ]
}

/// Writes rcx (counting down) to each of the rcx addresses in the table of u64 at rsi.
pub fn touch_listed(port: u8) -> Vec<u8> {
    vec![
        0x48, 0xad, // lodsq
        0x48, 0x89, 0x08, // mov [rax], rcx
        0x48, 0xff, 0xc9, // dec rcx
        0x75, 0xf6, // jnz -10
        0xe6, port, // out port, al
        0xeb, 0xf2, // jmp -14
    ]
}

/// `out` of al to `io_port` rcx times, then once to `done_port`.
pub fn port_writes(io_port: u8, done_port: u8) -> Vec<u8> {
    vec![
        0xe6, io_port, // out io_port, al
        0x48, 0xff, 0xc9, // dec rcx
        0x75, 0xf9, // jnz -7
        0xe6, done_port, // out done_port, al
        0xeb, 0xf5, // jmp -11
    ]
}

/// Eight-byte reads of `[rdi]` (an address without a slot: MMIO), rcx times.
pub fn mmio_reads(port: u8) -> Vec<u8> {
    vec![
        0x48, 0x8b, 0x07, // mov rax, [rdi]
        0x48, 0xff, 0xc9, // dec rcx
        0x75, 0xf8, // jnz -8
        0xe6, port, // out port, al
        0xeb, 0xf4, // jmp -12
    ]
}
