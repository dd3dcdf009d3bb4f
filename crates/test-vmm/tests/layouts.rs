//! VMMs that are not QEMU, in one that has their habits: the RAM of a Linux that ran elsewhere
//! is planted in it, laid out as one VMM or another lays it out, and a guest in ring 3 runs
//! beside it, so that KVM knows a vCPU. What vmeter finds in it must be what that Linux did.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use vmeter_machine::launch::Stopper;
use vmeter_machine::plan::LaunchPlan;
use vmeter_machine::vmm::Abilities;
use vmeter_model::run::WatchLevel;
use vmeter_model::{EventKind, MachineSpec, Moment, RunRecord};
use vmeter_record::ready::Until;
use vmeter_record::recorder::Context;
use vmeter_record::run::{run, Request};

const VMM: &str = env!("CARGO_BIN_EXE_test-vmm");
const PARAMETERS: &str = "quiet panic=-1 no_timer_check cryptomgr.notests \
                          trace_event=initcall:* trace_clock=x86-tsc";

/// RAM of a Linux, and its kernel.
struct Planted {
    folder: tempfile::TempDir,
    kernel: PathBuf,
    /// MiB: all of it, and where its hole begins.
    memory: u32,
    hole: u32,
}

impl Planted {
    /// Boots a kernel to its panic for want of a root; its RAM is a file afterwards.
    fn boot(memory: u32, hole: u32) -> Option<Self> {
        if std::fs::File::options().read(true).write(true).open("/dev/kvm").is_err() {
            println!("skipped: no /dev/kvm to open");
            return None;
        }
        let Some(kernel) = vmeter_appliance::kernel::default_kernel() else {
            println!("skipped: no kernel; run `vmeter kernel fetch`");
            return None;
        };
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ram");
        let backend = format!(
            "memory-backend-file,id=ram,size={memory}M,mem-path={},share=on",
            path.display()
        );
        let machine = format!("pc,memory-backend=ram,max-ram-below-4g={hole}M");
        let status = Command::new("qemu-system-x86_64")
            .args(["-accel", "tcg", "-machine", &machine, "-smp", "2", "-m", &format!("{memory}M")])
            .args(["-object", &backend, "-nodefaults", "-display", "none", "-no-reboot"])
            .args(["-append", PARAMETERS, "-kernel"])
            .arg(&kernel.vmlinuz)
            .stdin(Stdio::null())
            .status();
        match status {
            Ok(status) => assert!(status.success(), "QEMU ended with {status}"),
            Err(error) => {
                println!("skipped: qemu-system-x86_64 can't be run: {error}");
                return None;
            }
        }
        Some(Planted { folder, kernel: kernel.vmlinuz, memory, hole })
    }

    /// The test's VMM with this RAM.
    fn vmm(&self, habits: &[&str]) -> Vec<String> {
        let (memory, hole) = (self.memory.to_string(), self.hole.to_string());
        let ram = self.folder.path().join("ram").display().to_string();
        let machine = [VMM, "--memory", &memory, "--hole", &hole, "--plant", &ram];
        machine.iter().chain(habits).map(|word| (*word).to_owned()).collect()
    }

    fn watch(&self, argv: &[String]) -> Watched {
        let dir = tempfile::tempdir().expect("a folder");
        let record = record(argv, &self.kernel, self.folder.path(), dir.path());
        Watched { record, dir }
    }
}

struct Watched {
    record: RunRecord,
    dir: tempfile::TempDir,
}

impl Watched {
    /// Initcalls that ended, by the guest's own trace.
    fn initcalls(&self) -> usize {
        let (events, _) = vmeter_record::decode::events(self.dir.path(), &self.record);
        events.iter().filter(|e| matches!(e.what, EventKind::InitcallEnd { .. })).count()
    }

    fn moments(&self, moment: &Moment) -> usize {
        self.record.moments.iter().filter(|(_, m)| m == moment).count()
    }

    #[track_caller]
    fn is_complete(&self, what: &str) {
        let warnings = &self.record.warnings;
        assert!(self.initcalls() >= 400, "{what}: {} initcalls; {warnings:?}", self.initcalls());
        let printk = self.record.sources.iter().any(|s| s.name == "guest-printk");
        assert!(printk, "{what}: {warnings:?}");
    }
}

fn record(argv: &[String], kernel: &Path, cache: &Path, dir: &Path) -> RunRecord {
    let spec = MachineSpec::default();
    let context = Context {
        snapshot: None,
        spec: &spec,
        watch: WatchLevel::Light,
        dir,
        cache,
        kernel: Some(kernel),
        accel: None,
        running: false,
        own_init: false,
        memory: false,
        vmm: Abilities::default(),
        ready: None,
        watches: Vec::new(),
    };
    let plan = LaunchPlan { argv: argv.iter().map(Into::into).collect(), ..LaunchPlan::default() };
    let request = Request {
        context,
        plan,
        index: 0,
        label: "test".into(),
        warmup: false,
        until: Until::PowerOff,
        timeout: Some(Duration::from_secs(60)),
        pin: Vec::new(),
        traced: true,
    };
    run(request, &Stopper::new().expect("an eventfd")).expect("it starts")
}

/// High RAM below low, pieces of a memfd, a gap, whatever: all is freed before the VMM ends.
#[test]
fn ram_is_found_however_it_is_laid_out_and_before_it_is_freed() {
    let Some(planted) = Planted::boot(3600, 3072) else { return };
    let mut layouts = vec!["high-low", "pieces"];
    if std::env::var_os("VMETER_LONG").is_some_and(|value| value == "1") {
        layouts.extend(["low-high", "apart", "gap", "memfd"]);
    }
    for layout in layouts {
        let watched = planted.watch(&planted.vmm(&["--layout", layout, "--vcpus", "2"]));
        watched.is_complete(layout);
        assert_eq!(watched.moments(&Moment::VmmExiting), 1, "{layout}");
    }
    let kept = planted.vmm(&["--end", "exit", "--vm-thread", "--thread-name", "fc_vcpu%"]);
    planted.watch(&kept).is_complete("RAM is there to the end");
    kicks(&planted);
    who_it_is(&planted);
}

/// A signal to a thread that is traced stops it: few are borne, many are not.
fn kicks(planted: &Planted) {
    let let_go = |watched: &Watched| watched.record.warnings.iter().any(|w| w.contains("signals"));
    let few = planted.watch(&planted.vmm(&["--kicks", "20"]));
    few.is_complete("some signals");
    assert!(!let_go(&few), "{:?}", few.record.warnings);
    let many = ["--kicks", "2000", "--work", "2000000000"];
    let freed = planted.watch(&planted.vmm(&many));
    assert!(let_go(&freed), "{:?}", freed.record.warnings);
    let kept = planted.watch(&planted.vmm(&[many.as_slice(), &["--end", "exit"]].concat()));
    kept.is_complete("signals, and RAM is there to the end");
}

/// A launcher's child is the VMM; the launcher's time is its own.
fn who_it_is(planted: &Planted) {
    let mut script = "sleep 0; \"$@\"; sleep 0; exit 0".to_owned();
    for session in [false, true] {
        if session {
            script = script.replace("\"$@\"", "setsid \"$@\"");
        }
        let words = ["/bin/sh", "-c", &script, "sh"].map(str::to_owned);
        let argv: Vec<String> = words.into_iter().chain(planted.vmm(&[])).collect();
        let watched = planted.watch(&argv);
        watched.is_complete(&script);
        let count = |moment| watched.moments(&moment);
        assert_eq!(count(Moment::VmmExec), 1, "{:?}", watched.record.moments);
        let resumed = count(Moment::WrapperResumed);
        let seen = &watched.record.moments;
        assert_eq!((count(Moment::VmmEntry), resumed), (1, 1), "{script}: {seen:?}");
        assert!(count(Moment::WrapperExec) >= 1);
    }
}
