//! QEMU TCG plugin.
