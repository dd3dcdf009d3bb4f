//! Tests of recording, in one binary: each file of it is a module.

#[path = "guest.rs"]
mod guest;
#[path = "look.rs"]
mod look;
#[path = "tcg_plugin.rs"]
mod tcg_plugin;
