//! `vmeter kernel build` on sources of a few lines: the commands are the kernel's, what they do
//! takes no time. (A real build is half an hour; docs/KERNELS.md has what came of some.)

use crate::common;
use crate::sources;

use common::{signal, Lab};
use sources::{has_make, Sources, MAKEFILE, OBJECTS};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The sources and the vmeter that builds them.
struct MachineBuilder {
    lab: Lab,
    sources: Sources,
}

impl MachineBuilder {
    fn new() -> Self {
        let lab = Lab::new();
        let sources = Sources::new(&lab);
        MachineBuilder { lab, sources }
    }

    fn command(&self) -> Command {
        let mut command = self.lab.command(&self.sources.arguments());
        command.envs(self.sources.environment.iter().cloned());
        command
    }

    fn build(&self) -> common::Ran {
        self.command().output().expect("vmeter runs").into()
    }

    fn compiled(&self) -> Vec<String> {
        self.sources.compiled()
    }
}

#[test]
fn a_build_that_was_killed_goes_on_and_is_kept() {
    if !has_make() {
        return;
    }
    let builder = MachineBuilder::new();
    let mut child =
        builder.command().stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("vmeter runs");
    let begun = Instant::now();
    while builder.compiled().len() < 3 && begun.elapsed() < Duration::from_secs(60) {
        assert!(child.try_wait().expect("a child").is_none(), "it ended by itself");
        std::thread::sleep(Duration::from_millis(10));
    }
    signal(&child, "KILL");
    child.wait().expect("a child");
    // Its make is gone as well: nothing is compiled any more.
    std::thread::sleep(Duration::from_millis(600));
    let before = builder.compiled();
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(builder.compiled(), before, "make outlived its vmeter");
    assert!((3..OBJECTS).contains(&before.len()), "{before:?}");

    let built = builder.build();
    assert_eq!(built.status, 0, "{}", built.stderr);
    assert!(built.stderr.contains("resuming the build in"), "{}", built.stderr);
    assert!(built.stderr.contains("(2 makes)"), "{}", built.stderr);
    let mut all = builder.compiled();
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

    let compiled = builder.compiled().len();
    let again = builder.build();
    assert_eq!((again.status, &again.stdout), (0, &built.stdout), "{}", again.stderr);
    assert!(again.stderr.contains("there already"), "{}", again.stderr);
    assert_eq!(builder.compiled().len(), compiled, "nothing is compiled for it");
    let mut list = builder.lab.command(&["kernel", "list"]);
    let list = list.env("XDG_CACHE_HOME", builder.lab.path("cache")).output().expect("a list");
    assert!(String::from_utf8_lossy(&list.stdout).contains(release));
}

#[test]
fn what_is_missing_or_wrong_is_said_before_anything_is_compiled() {
    if !has_make() {
        return;
    }
    let builder = MachineBuilder::new();
    let broken = MAKEFILE.replace("cp $(KCONFIG_ALLCONFIG)", "grep -v BTF $(KCONFIG_ALLCONFIG) >");
    fs::write(builder.sources.folder.join("Makefile"), broken).expect("a file");
    let refused = builder.build();
    assert_eq!(refused.status, 3, "{}", refused.stderr);
    assert!(refused.stderr.contains("CONFIG_DEBUG_INFO_BTF (expected y"), "{}", refused.stderr);
    fs::remove_file(builder.sources.folder.join("Kconfig")).expect("a file");
    let none = builder.build();
    assert!(none.stderr.contains("expected a kernel's sources"), "{}", none.stderr);
    assert!(builder.compiled().is_empty());
    let custom = builder.lab.run(&["kernel", "build", "--config", "custom"]);
    assert_eq!(custom.status, 2);
    assert!(custom.stderr.contains("--from"), "{}", custom.stderr);
}
