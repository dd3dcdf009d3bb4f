//! Kernel sources of a few lines, with all that `vmeter kernel build` needs beside them.
#![allow(dead_code, reason = "each test binary uses its own part of this")]

use crate::common::{text, Lab};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// Objects of the sources below.
pub const OBJECTS: usize = 30;

/// A top makefile with the kernel's targets: `allnoconfig` takes what it is given, `bzImage`
/// "compiles" what is not there yet and notes each object that it compiles.
pub const MAKEFILE: &str = r#"
objects := $(shell seq 1 30)
prepare:
allnoconfig:
	cp $(KCONFIG_ALLCONFIG) $(O)/.config
bzImage: $(objects:%=$(O)/.%.o.cmd)
	mkdir -p $(O)/arch/x86/boot $(O)/include/config
	dd if=/dev/zero of=$(O)/arch/x86/boot/bzImage bs=1024 count=4 status=none
	printf HdrS | dd of=$(O)/arch/x86/boot/bzImage bs=1 seek=514 conv=notrunc status=none
	sed -n 's/^CONFIG_LOCALVERSION="\(.*\)"/6.1.1\1/p' $(O)/.config > $(O)/include/config/kernel.release
	touch $(O)/System.map $(O)/modules.builtin $(O)/modules.builtin.modinfo
$(O)/.%.o.cmd:
	@echo '  CC      $*.o'
	@sleep 0.1; echo $* >> $(COMPILED); touch $@
"#;

/// Sources, programs that make needs beside them, and a cache of its own.
pub struct Sources {
    /// The top of the sources.
    pub folder: PathBuf,
    /// What make notes each object in that it compiles.
    pub compiled: PathBuf,
    /// What vmeter's environment has more.
    pub environment: Vec<(&'static str, String)>,
}

impl Sources {
    /// In the lab's scratch space.
    pub fn new(lab: &Lab) -> Self {
        let (folder, bin) = (lab.path("linux"), lab.path("bin"));
        fs::create_dir_all(&folder).expect("a folder");
        fs::create_dir_all(&bin).expect("a folder");
        fs::write(folder.join("Makefile"), MAKEFILE).expect("a file");
        fs::write(folder.join("Kconfig"), "").expect("a file");
        for program in ["gcc", "flex", "bison", "bc", "ld", "pahole"] {
            lab.script(&format!("bin/{program}"), "#!/bin/sh\necho a stand-in 1.0\n");
        }
        let compiled = lab.path("compiled");
        let path = std::env::var("PATH").unwrap_or_default();
        let environment = vec![
            ("PATH", format!("{}:{path}", bin.display())),
            ("XDG_CACHE_HOME", text(&lab.path("cache")).to_owned()),
            ("COMPILED", text(&compiled).to_owned()),
        ];
        Sources { folder, compiled, environment }
    }

    /// The command that builds them.
    pub fn arguments(&self) -> [&str; 8] {
        let folder = text(&self.folder);
        ["kernel", "build", "--config", "minimal", "--jobs", "1", "--source", folder]
    }

    /// Objects that were compiled so far, in order.
    pub fn compiled(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.compiled).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

/// True where make(1) is.
pub fn has_make() -> bool {
    let there = Command::new("make").arg("--version").output().is_ok();
    if !there {
        eprintln!("skipped: make is not installed");
    }
    there
}
