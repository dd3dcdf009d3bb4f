//! Compiles `guest/init` with rustc alone, so that `vmeter` carries its init inside.
//!
//! It is not a Cargo dependency: it is linked against nothing, not even the C
//! start files, and must not inherit the flags of the host's build.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

fn main() {
    let variable = |name: &str| env::var(name).expect("set by Cargo");
    let sources = Path::new(&variable("CARGO_MANIFEST_DIR")).join("../../guest/init/src");
    println!("cargo::rerun-if-changed={}", sources.display());
    for file in fs::read_dir(&sources).expect("guest/init/src is part of the repository").flatten()
    {
        println!("cargo::rerun-if-changed={}", file.path().display());
    }
    assert!(
        variable("CARGO_CFG_TARGET_ARCH") == "x86_64",
        "vmeter's guest is x86-64: build with --target x86_64-unknown-linux-gnu"
    );
    let output = Path::new(&variable("OUT_DIR")).join("vmeter-init");
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args(["--edition=2021", "--crate-name=vmeter_init", "--crate-type=bin"]);
    rustc.arg(format!("--target={}", variable("TARGET")));
    rustc.args(["-Cpanic=abort", "-Copt-level=s", "-Clto=fat", "-Ccodegen-units=1"]);
    rustc.args(["-Crelocation-model=static", "-Cstrip=symbols", "-Cdebuginfo=0"]);
    rustc.args(["-Clink-arg=-nostartfiles", "-Clink-arg=-nostdlib", "-Clink-arg=-static"]);
    // One mapping per permission is not worth its padding in a file this small.
    rustc.arg("-Clink-arg=-Wl,--build-id=none,-z,noseparate-code,-z,max-page-size=4096");
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        rustc.arg(format!("-Clinker={linker}"));
    }
    rustc.arg("-o").arg(&output).arg(sources.join("main.rs"));
    let status = rustc.status().expect("Cargo's own rustc runs");
    assert!(status.success(), "guest/init does not compile: {rustc:?} ended with {status}");
}
