//! Tests of from events to timelines, in one binary: each file of it is a module.

mod common;

#[path = "before_linux.rs"]
mod before_linux;
#[path = "endings.rs"]
mod endings;
#[path = "firmware_lines.rs"]
mod firmware_lines;
#[path = "gone.rs"]
mod gone;
#[path = "init.rs"]
mod init;
#[path = "kernels.rs"]
mod kernels;
#[path = "kexec.rs"]
mod kexec;
#[path = "network.rs"]
mod network;
#[path = "soup.rs"]
mod soup;
#[path = "standard.rs"]
mod standard;
#[path = "text.rs"]
mod text;
#[path = "user_space.rs"]
mod user_space;
