//! Tiny guests in /dev/kvm: does it run guest instructions, and how fast.
