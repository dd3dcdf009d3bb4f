//! `vmeter kernel build` on sources of a few lines: the commands are the kernel's, what they do
//! takes no time. (A real build is half an hour; docs/KERNELS.md has what came of some.)

mod common;

use common::{signal, text, Lab};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Objects of the sources below.
const OBJECTS: usize = 30;

/// A top makefile with the kernel's targets: `allnoconfig` takes what it is given, `bzImage`
/// "compiles" what is not there yet and notes each object that it compiles.
const MAKEFILE: &str = r#"
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
struct Sources {
    lab: Lab,
    folder: PathBuf,
    compiled: PathBuf,
}

impl Sources {
    fn new() -> Self {
        let lab = Lab::new();
        let (folder, bin) = (lab.path("linux"), lab.path("bin"));
        fs::create_dir_all(&folder).expect("a folder");
        fs::create_dir_all(&bin).expect("a folder");
        fs::write(folder.join("Makefile"), MAKEFILE).expect("a file");
        fs::write(folder.join("Kconfig"), "").expect("a file");
        for program in ["gcc", "flex", "bison", "bc", "ld", "pahole"] {
            lab.script(&format!("bin/{program}"), "#!/bin/sh\necho a stand-in 1.0\n");
        }
        let compiled = lab.path("compiled");
        Sources { lab, folder, compiled }
    }

    fn command(&self) -> Command {
        let folder = text(&self.folder).to_owned();
        let build = ["kernel", "build", "--config", "minimal", "--jobs", "1", "--source", &folder];
        let mut command = self.lab.command(&build);
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .env("PATH", format!("{}:{path}", self.lab.path("bin").display()))
            .env("XDG_CACHE_HOME", self.lab.path("cache"))
            .env("COMPILED", &self.compiled);
        command
    }

    fn build(&self) -> common::Ran {
        self.command().output().expect("vmeter runs").into()
    }

    /// Objects that were compiled so far, in order.
    fn compiled(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.compiled).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

fn has_make() -> bool {
    let there = Command::new("make").arg("--version").output().is_ok();
    if !there {
        eprintln!("skipped: make is not installed");
    }
    there
}

#[test]
fn a_build_that_was_killed_goes_on_and_is_kept() {
    if !has_make() {
        return;
    }
    let sources = Sources::new();
    let mut child =
        sources.command().stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("vmeter runs");
    let begun = Instant::now();
    while sources.compiled().len() < 3 && begun.elapsed() < Duration::from_secs(60) {
        assert!(child.try_wait().expect("a child").is_none(), "it ended by itself");
        std::thread::sleep(Duration::from_millis(10));
    }
    signal(&child, "KILL");
    child.wait().expect("a child");
    // Its make is gone as well: nothing is compiled any more.
    std::thread::sleep(Duration::from_millis(600));
    let before = sources.compiled();
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(sources.compiled(), before, "make outlived its vmeter");
    assert!((3..OBJECTS).contains(&before.len()), "{before:?}");

    let built = sources.build();
    assert_eq!(built.status, 0, "{}", built.stderr);
    assert!(built.stderr.contains("going on in"), "{}", built.stderr);
    assert!(built.stderr.contains("(2 makes)"), "{}", built.stderr);
    let mut all = sources.compiled();
    assert!(all.len() <= OBJECTS + 1, "only what was being compiled is compiled again: {all:?}");
    all.sort();
    all.dedup();
    assert_eq!(all.len(), OBJECTS);
    let (release, image) = built.stdout.trim().split_once(' ').expect("release and image");
    assert!(release.starts_with("6.1.1-vmeter-minimal-"), "{release}");
    let folder = Path::new(image).parent().expect("a folder");
    let record = fs::read_to_string(folder.join("build.json")).expect("build.json");
    let record: serde_json::Value = serde_json::from_str(&record).expect("JSON");
    assert_eq!((&record["objects"], &record["attempts"]), (&OBJECTS.into(), &2.into()));
    let config = fs::read_to_string(folder.join("config")).expect("its configuration");
    assert!(config.lines().any(|line| line == "CONFIG_DEBUG_INFO_BTF=y"), "{config}");

    let compiled = sources.compiled().len();
    let again = sources.build();
    assert_eq!((again.status, &again.stdout), (0, &built.stdout), "{}", again.stderr);
    assert!(again.stderr.contains("there already"), "{}", again.stderr);
    assert_eq!(sources.compiled().len(), compiled, "nothing is compiled for it");
    let mut list = sources.lab.command(&["kernel", "list"]);
    let list = list.env("XDG_CACHE_HOME", sources.lab.path("cache")).output().expect("a list");
    assert!(String::from_utf8_lossy(&list.stdout).contains(release));
}

#[test]
fn what_is_missing_or_wrong_is_said_before_anything_is_compiled() {
    if !has_make() {
        return;
    }
    let sources = Sources::new();
    let broken = MAKEFILE.replace("cp $(KCONFIG_ALLCONFIG)", "grep -v BTF $(KCONFIG_ALLCONFIG) >");
    fs::write(sources.folder.join("Makefile"), broken).expect("a file");
    let refused = sources.build();
    assert_eq!(refused.status, 3, "{}", refused.stderr);
    assert!(
        refused.stderr.contains("CONFIG_DEBUG_INFO_BTF (y was asked for"),
        "{}",
        refused.stderr
    );
    fs::remove_file(sources.folder.join("Kconfig")).expect("a file");
    let none = sources.build();
    assert!(none.stderr.contains("expected a kernel's sources"), "{}", none.stderr);
    assert!(sources.compiled().is_empty());
    let custom = sources.lab.run(&["kernel", "build", "--config", "custom"]);
    assert_eq!(custom.status, 2);
    assert!(custom.stderr.contains("--from"), "{}", custom.stderr);
}
