//! `vmeter kernel build` on sources of a few lines: the commands are the kernel's, what they do
//! takes no time. (A real build is half an hour; docs/KERNELS.md has what came of some.)

use crate::common;
use crate::sources;

use common::{signal, text, Lab};
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
    assert!(built.stderr.contains("(2 make runs);"), "{}", built.stderr);
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
    assert!(again.stderr.contains("already built"), "{}", again.stderr);
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

/// Sources whose image is Debian's kernel whatever is compiled, with the initcalls of a played boot.
fn slimmable(lab: &Lab, kernel: &Path) -> Sources {
    let sources = Sources::new(lab);
    let rule = format!(
        "prepare:\nolddefconfig:\n\ttac $(O)/.config | awk '{{n=$$0; sub(/^# /,\"\",n); \
         sub(/[= ].*/,\"\",n)}} !seen[n]++' | tac >$(O)/new && mv $(O)/new $(O)/.config\n\
         bzImage:\n\t@echo '  CC      all.o'\n\
         \tmkdir -p $(O)/arch/x86/boot $(O)/include/config\n\
         \tcp {} $(O)/arch/x86/boot/bzImage\n\
         \tsed -n 's/^CONFIG_LOCALVERSION=\"\\(.*\\)\"/6.1.1\\1/p' $(O)/.config \
         >$(O)/include/config/kernel.release\n\
         \ttouch $(O)/System.map $(O)/modules.builtin $(O)/modules.builtin.modinfo\n\
         \techo built >>$(COMPILED)\n",
        text(kernel)
    );
    for (name, content) in [
        ("Makefile", rule.as_str()),
        (
            "mm/Makefile",
            "obj-$(CONFIG_KSM) += ksm.o\nobj-$(CONFIG_HUGETLBFS) += hugetlb.o\nobj-y += oom.o\n",
        ),
        ("mm/ksm.c", "subsys_initcall(ksm_init);\n"),
        ("mm/hugetlb.c", "subsys_initcall(hugetlb_init);\n"),
        ("mm/oom.c", "subsys_initcall(oom_init);\n"),
        ("kernel/Makefile", "obj-$(CONFIG_AUDIT) += audit.o\n"),
        ("kernel/audit.c", "postcore_initcall(audit_init);\n"),
    ] {
        let path = sources.folder.join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, content).expect("a file");
    }
    sources
}

/// A QEMU whose guest has no initrd if its kernel was built without this option: it panics.
fn fragile(lab: &Lab, option: &str) {
    let real = Command::new("sh").args(["-c", "command -v qemu-system-x86_64"]).output();
    let real = String::from_utf8(real.expect("sh").stdout).expect("a path");
    lab.script(
        "bin/qemu-system-x86_64",
        &format!(
            "#!/bin/sh\nfor word; do\n  [ \"$last\" != -kernel ] || kernel=$word\n  \
             last=$word\ndone\nconfig=${{kernel%/*}}/config\n\
             if [ -e \"${{kernel%/*}}/build.json\" ] && ! grep -q ^{option}=y \"$config\"; then\n  \
             n=$#\n  while [ $n -gt 0 ]; do\n    word=$1; shift; n=$((n-1))\n    \
             if [ \"$word\" = -initrd ]; then shift; n=$((n-1)); else set -- \"$@\" \"$word\"; fi\n  \
             done\nfi\nexec {} \"$@\"\n",
            real.trim()
        ),
    );
}

#[test]
fn a_diet_keeps_what_the_guest_cannot_do_without() {
    if common::is_left_to_test_long() {
        return;
    }
    let Some((_, vmlinuz)) = common::kernel().filter(|_| has_make()) else { return };
    let lab = Lab::new();
    let sources = slimmable(&lab, &vmlinuz);
    fragile(&lab, "CONFIG_HUGETLBFS");
    let cache = lab.path("cache/vmeter");
    fs::create_dir_all(&cache).expect("a cache");
    let kernels = vmlinuz.ancestors().nth(2).expect("the cached kernels");
    std::os::unix::fs::symlink(kernels, cache.join("kernels")).expect("a link");
    let machine = lab.path("guest.mock");
    let script = "vmeter-mock 1\n1ms vmm-exec\n60ms reach start_kernel\n30ms initcall audit_init\n\
                  20ms initcall hugetlb_init\n9ms initcall ksm_init\n8ms initcall oom_init\n\
                  7ms initcall no_such_init\n9ms poweroff\n0 exit 0\n";
    fs::write(&machine, script).expect("a script");
    let from = lab.path("full");
    let boot = ["boot", "--vmm", "mock", "--machine", text(&machine), "--save", text(&from)];
    assert_eq!(lab.run(&boot).status, 0);
    let diet = |more: &[&str]| -> common::Ran {
        let words = ["kernel", "diet", "--from", text(&from), "--source", text(&sources.folder)];
        let mut command = lab.command(&[&words, more].concat());
        command.envs(sources.environment.iter().cloned());
        command.output().expect("vmeter runs").into()
    };

    let json = |ran: &common::Ran| -> serde_json::Value {
        assert_eq!(ran.status, 0, "{}", ran.stderr);
        serde_json::from_str(&ran.stdout).unwrap_or_else(|e| panic!("{e}: {}", ran.stdout))
    };
    let planned = json(&diet(&["--dry-run", "--export-json", "-"]));
    let off = |options: &[&str]| -> serde_json::Value {
        options.iter().map(|option| format!("# CONFIG_{option} is not set")).collect()
    };
    assert_eq!(planned["changes"], off(&["AUDIT", "HUGETLBFS", "KSM"]));
    let share =
        planned["mapped_s"].as_f64().expect("s") / planned["initcalls_s"].as_f64().expect("s");
    assert!((0.79..0.81).contains(&share), "59 of 74 ms: {share}");
    assert!(sources.compiled().is_empty(), "a dry run builds nothing");

    let more = ["--runs", "1", "--warmup", "0", "--machine", "pc", "--export-json", "-"];
    let ran = diet(&more);
    let found = json(&ran);
    assert_eq!(found["put_back"][0]["option"], "HUGETLBFS", "{found}");
    let why = found["put_back"][0]["why"].as_str().expect("why");
    assert!(why.contains("panic"), "{why}");
    assert_eq!(found["changes"], off(&["AUDIT", "KSM"]));
    let image = Path::new(found["kernel"].as_str().expect("a kernel")).to_owned();
    let fragment = fs::read_to_string(image.with_file_name("fragment")).expect("a fragment");
    assert_eq!(fragment, "# CONFIG_AUDIT is not set\n# CONFIG_KSM is not set\n");
    assert!(found["ratio"].is_number() || found["compared_in"].is_string(), "{found}");
    // With all three, the first, the first two, and then without the second.
    assert_eq!((sources.compiled().len(), &found["builds"]), (4, &4.into()));

    if common::is_long() {
        let again = json(&diet(&more));
        assert_eq!(again["changes"], found["changes"]);
        assert_eq!(sources.compiled().len(), 4, "all kernels are in the cache");
    }
}
