//! Compiles the TCG plugin, so that it can be embedded in vmeter.
//!
//! The plugin is a shared library for QEMU, built apart from the workspace's
//! profile: always optimised, and without unwinding. Cargo cannot yet give one
//! package's cdylib to another (`artifact-dependencies` is unstable), but the
//! plugin has no dependencies, so that rustc alone is enough.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let source = Path::new("../../guest/plugin/src");
    println!("cargo:rerun-if-changed={}", source.display());
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let library = out.join("vmeter-tcg-plugin.so");
    let target = env::var("TARGET").expect("cargo sets TARGET");
    // A QEMU that can load plugins is linked dynamically, in practice to glibc.
    if !target.ends_with("-linux-gnu") {
        std::fs::write(&library, []).expect("OUT_DIR is writable");
        println!("cargo:warning=no TCG plugin for {target}: boots in TCG will have fewer stamps");
        return;
    }
    let mut rustc = Command::new(env::var_os("RUSTC").expect("cargo sets RUSTC"));
    rustc
        .args(["--edition=2021", "--crate-type=cdylib", "--crate-name=vmeter_tcg_plugin"])
        .args([
            "-Copt-level=3",
            "-Ccodegen-units=1",
            "-Clto=fat",
            "-Cpanic=abort",
            "-Cstrip=symbols",
        ])
        .args(["--cap-lints=allow", "--target", &target, "-o"])
        .arg(&library)
        .arg(source.join("lib.rs"));
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        let mut option = std::ffi::OsString::from("-Clinker=");
        option.push(linker);
        rustc.arg(option);
    }
    let status = rustc.status().unwrap_or_else(|error| panic!("{rustc:?}: {error}"));
    assert!(status.success(), "{rustc:?}: {status}");
}
