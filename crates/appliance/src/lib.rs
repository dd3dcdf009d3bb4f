//! The guest that is measured: kernels, modules, initramfs.
