//! The guest's program: one access to each port in turn, a number of times.
//!
//! The ports are a disk's task file and, as peers that are served as quickly, the
//! clock's and the speaker's. None of them is one that is slow by nature, such as a
//! serial port with an exit a byte.

/// Where the guest says that it is done.
pub(crate) const DONE_PORT: u16 = 0xf4;

/// The port that a faulty model is slow at: the disk's command register.
pub const COMMAND_PORT: u16 = 0x1f7;

/// A port access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// `in al, dx`
    Read(u16),
    /// `out dx, al`
    Write(u16),
}

/// A round of the guest's.
pub const ACCESSES: [Access; 9] = [
    Access::Write(0x1f2),
    Access::Write(0x1f3),
    Access::Write(0x1f6),
    Access::Write(COMMAND_PORT),
    Access::Read(0x1f0),
    Access::Read(0x1f1),
    Access::Write(0x70),
    Access::Read(0x71),
    Access::Read(0x61),
];

/// Goes through [`ACCESSES`] rcx times, then writes to [`DONE_PORT`]. Encodings: Intel
/// SDM vol. 2.
pub(crate) fn program() -> Vec<u8> {
    let mut code = Vec::new();
    for access in ACCESSES {
        let (port, instruction) = match access {
            Access::Read(port) => (port, 0xec),  // in al, dx
            Access::Write(port) => (port, 0xee), // out dx, al
        };
        code.push(0xba); // mov edx, imm32
        code.extend(u32::from(port).to_le_bytes());
        code.push(instruction);
    }
    code.extend([0x48, 0xff, 0xc9]); // dec rcx
    let end = code.len() as i32 + 6;
    code.extend([0x0f, 0x85]); // jnz to the start
    code.extend((-end).to_le_bytes());
    code.extend([0xe6, DONE_PORT as u8]); // out imm8, al
    code.extend([0xeb, 0xfc]); // jmp to the out
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_port_is_written_once_a_round() {
        let commands = ACCESSES.iter().filter(|a| **a == Access::Write(COMMAND_PORT)).count();
        assert_eq!(commands, 1);
        let code = program();
        assert_eq!(code.len(), ACCESSES.len() * 6 + 3 + 6 + 2 + 2);
    }
}
