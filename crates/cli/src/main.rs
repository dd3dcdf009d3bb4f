//! The `vmeter` command.

fn main() {}
