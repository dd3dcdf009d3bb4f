//! Which of a console's lines are a guest's.

use crate::loader_file::is_of_loader;
use crate::ready::is_user_space;
use vmeter_model::kernel_log::split_stamp;

/// True for a line that a guest prints and a launcher does not: its kernel's, firmware's, a boot
/// loader's, that user space is there.
pub(crate) fn is_of_guest(line: &str) -> bool {
    /// SeaBIOS, OVMF, iPXE.
    const FIRMWARE: [&str; 4] = ["SeaBIOS (", "BdsDxe: ", "UEFI firmware", "iPXE "];
    split_stamp(line).0.is_some()
        || line.contains("Linux version ")
        || FIRMWARE.iter().any(|words| line.contains(words))
        || is_of_loader(line)
        || is_user_space(line)
}
