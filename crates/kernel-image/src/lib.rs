//! Symbols and types out of a Linux kernel image, and its logs and traces out of a guest's RAM.
