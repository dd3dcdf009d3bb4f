//! Tests of appliances, in one binary: each file of it is a module.

#[path = "boot.rs"]
mod boot;
#[path = "init_words.rs"]
mod init_words;
