//! Boots what this crate builds, in QEMU's interpreter, and reads what the guest says.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use vmeter_appliance::{
    build_in, kernel, root_image, Appliance, ApplianceSpec, Compression, Content, ExtraFile,
    ModulesFrom,
};

/// A boot that takes longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(240);

struct Kernel {
    image: PathBuf,
    modules: Option<ModulesFrom>,
}

/// `VMETER_TEST_KERNEL` (a bzImage, with its modules beside it as packages lay them out),
/// or the newest kernel in the cache.
fn test_kernel() -> Option<Kernel> {
    let qemu = Command::new("qemu-system-x86_64").arg("--version").output();
    if qemu.is_err() {
        println!("skipped: qemu-system-x86_64 is not installed");
        return None;
    }
    if let Some(image) = std::env::var_os("VMETER_TEST_KERNEL").map(PathBuf::from) {
        let name = image.file_name()?.to_str()?;
        let version = name.strip_prefix("vmlinuz-").unwrap_or(name).to_owned();
        let folder = image.parent()?.parent()?.join("lib/modules").join(&version);
        let modules = folder.is_dir().then_some(ModulesFrom { folder, version });
        return Some(Kernel { image, modules });
    }
    let Some(kernel) = kernel::default_kernel() else {
        println!("skipped: no kernel; set VMETER_TEST_KERNEL or run `vmeter kernel fetch`");
        return None;
    };
    let modules = Some(kernel.modules());
    Some(Kernel { image: kernel.vmlinuz, modules })
}

/// Boots to the end; returns the console and QEMU's exit status.
fn boot(kernel: &Kernel, initrd: &Path, append: &str, machine: &[&str]) -> (String, i32) {
    let mut command = Command::new("qemu-system-x86_64");
    command.args(["-accel", "tcg", "-machine", "q35", "-nodefaults", "-display", "none"]);
    command.args(["-no-reboot", "-serial", "stdio", "-kernel"]).arg(&kernel.image);
    command.arg("-initrd").arg(initrd).arg("-append");
    command.arg(format!(
        "console=ttyS0 quiet panic=-1 cryptomgr.notests no_timer_check random.trust_cpu=on {append}"
    ));
    if !machine.contains(&"-m") {
        command.args(["-m", "512"]);
    }
    command.args(machine).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut child = command.spawn().unwrap();
    let mut output = child.stdout.take().unwrap();
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = output.read_to_end(&mut text);
        let _ = send.send(String::from_utf8_lossy(&text).into_owned());
    });
    let text = receive.recv_timeout(PATIENCE);
    if text.is_err() {
        let _ = child.kill();
    }
    let status = child.wait().unwrap().code().unwrap_or(-1);
    (text.expect("the guest ended in time"), status)
}

fn built(folder: &Path, spec: &ApplianceSpec) -> Appliance {
    build_in(folder, spec).unwrap()
}

/// The markers of a trace dump, in order.
fn markers(console: &str) -> Vec<String> {
    let lines = console.lines().filter_map(|line| Some(line.split_once("tracing_mark_write: ")?.1));
    lines.map(|line| line.trim_end().to_owned()).collect()
}

/// Every step that begins ends before the next begins.
fn assert_brackets(markers: &[String]) {
    let mut open: Option<&str> = None;
    for marker in markers {
        if let Some(step) = marker.strip_prefix("vmeter:begin ") {
            assert_eq!(open.replace(step), None, "{markers:#?}");
        } else if let Some(step) = marker.strip_prefix("vmeter:end ") {
            assert_eq!(open.take(), Some(step), "{markers:#?}");
        }
    }
    assert_eq!(open, None);
}

const TRACED: &str = "trace_event=initcall:* trace_clock=x86-tsc vmeter.dump_trace";

#[test]
fn a_silent_boot_says_one_short_line() {
    let Some(kernel) = test_kernel() else { return };
    let folder = tempfile::tempdir().unwrap();
    let guest = built(folder.path(), &ApplianceSpec::minimal());
    assert!(guest.sizes.file < 32 << 10, "{:?}", guest.sizes);
    let (console, status) = boot(&kernel, &guest.path, "", &[]);
    assert_eq!(status, 0);
    // The kernel's own last word is an emergency message, which nothing silences.
    let lines: Vec<_> = console.lines().filter(|l| !l.contains("reboot: Power down")).collect();
    assert_eq!(lines, ["vmeter: ready"], "{console}");
}

#[test]
fn planted_steps_are_bracketed_and_clocked() {
    let Some(kernel) = test_kernel() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut spec = ApplianceSpec::minimal();
    spec.compression = Compression::Gzip;
    spec.extra_files.push(ExtraFile {
        path: "/bin/broken".into(),
        content: Content::Bytes(b"no program".to_vec()),
        mode: 0o755,
    });
    let guest = built(folder.path(), &spec);
    let words =
        "vmeter.sleep=nap:70 vmeter.busy=30 vmeter.sleep_if_ports=2:20 vmeter.run=/bin/broken \
        vmeter.memory vmeter.report vmeter.colour=red vmeter.sleep=x vmeter.exit=debug:0xf4";
    let ports =
        ["-device", "pcie-root-port,id=a,chassis=1", "-device", "pcie-root-port,id=b,chassis=2"];
    let machine = [&ports[..], &["-device", "isa-debug-exit,iobase=0xf4,iosize=4"]].concat();
    let (console, status) = boot(&kernel, &guest.path, &format!("{TRACED} {words}"), &machine);
    assert_eq!(status, 33, "{console}");
    let markers = markers(&console);
    assert_brackets(&markers);
    for step in [
        "mount devtmpfs",
        "mount sysfs",
        "nap",
        "busy",
        "sleep-if-ports",
        "run /bin/broken",
        "memory",
        "report",
    ] {
        assert!(markers.contains(&format!("vmeter:begin {step}")), "{step} in {markers:#?}");
    }
    assert_eq!(markers.last().map(String::as_str), Some("vmeter:ready"));
    let clock = |step: &str| -> u64 {
        let suffix = format!(" {step}");
        let line = markers
            .iter()
            .find(|m| m.starts_with("vmeter:clock ") && m.ends_with(&suffix))
            .unwrap();
        let words: Vec<_> = line.split(' ').collect();
        words[2].parse::<u64>().unwrap() - words[1].parse::<u64>().unwrap()
    };
    assert!(clock("nap") >= 70_000_000);
    assert!(clock("busy") >= 30_000_000);
    assert!(clock("sleep-if-ports") >= 20_000_000);
    for line in [
        "vmeter: vmeter.colour=red: not understood",
        "vmeter: vmeter.sleep=x: not understood",
        "vmeter: run /bin/broken: error 8",
        "vmeter: meminfo",
        "vmeter: end of meminfo",
    ] {
        assert!(console.lines().any(|l| l.trim_end() == line), "{line} in {console}");
    }
    assert!(console.contains("vmeter: clock ") && console.contains("MemAvailable:"), "{console}");
}

#[test]
fn a_root_is_mounted_and_read() {
    let Some(kernel) = test_kernel() else { return };
    let Some(modules) = kernel.modules.clone() else {
        return println!("skipped: no modules beside {}", kernel.image.display());
    };
    let folder = tempfile::tempdir().unwrap();
    let root = match root_image::build_in(folder.path(), &root_image::RootImageSpec::default()) {
        Err(error) => return println!("skipped: {error}"),
        Ok(root) => root,
    };
    let spec = |names: &[&str]| ApplianceSpec {
        modules_from: Some(modules.clone()),
        load: names.iter().map(|&n| n.to_owned()).collect(),
        ..ApplianceSpec::minimal()
    };
    let file = format!("file={},if=none,id=r,format=raw,readonly=on", root.path.display());
    let disk = ["-drive", &file, "-device", "virtio-blk-pci,drive=r"];
    let memory = format!(
        "memory-backend-file,id=r,share=on,mem-path={},size={}",
        root.path.display(),
        root.bytes
    );
    let pmem = [
        "-m",
        "512,slots=2,maxmem=2G",
        "-object",
        &memory,
        "-device",
        "virtio-pmem-pci,memdev=r,id=nv",
    ];
    let words = format!("{TRACED} vmeter.read=32768 vmeter.memory vmeter.root=");
    let mut cached = Vec::new();
    for (root, names, machine) in [
        ("virtio-blk", vmeter_appliance::modules_for_root("virtio-blk"), &disk[..]),
        ("dax", vmeter_appliance::modules_for_root("dax"), &pmem[..]),
    ] {
        let guest = built(folder.path(), &spec(names));
        let (console, status) = boot(&kernel, &guest.path, &format!("{words}{root}"), machine);
        assert_eq!(status, 0, "{console}");
        let markers = markers(&console);
        assert_brackets(&markers);
        assert!(markers.contains(&"vmeter:end read root".into()), "{console}");
        assert!(markers.contains(&"vmeter:end insmod virtio_pci".into()), "{markers:#?}");
        assert!(!console.contains(": error "), "{console}");
        let line = console.lines().find(|l| l.starts_with("Cached:")).unwrap();
        cached.push(line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap());
    }
    assert!(cached[0] > cached[1] + 24_000, "KiB cached: block {} dax {}", cached[0], cached[1]);
}

#[test]
fn udev_cold_plugs() {
    let Some(kernel) = test_kernel() else { return };
    let Some(modules) = kernel.modules.clone() else {
        return println!("skipped: no modules beside {}", kernel.image.display());
    };
    if !Path::new("/usr/lib/systemd/systemd-udevd").exists() {
        return println!("skipped: udev is not installed here");
    }
    let folder = tempfile::tempdir().unwrap();
    let spec = ApplianceSpec::udev(modules);
    let guest = built(folder.path(), &spec);
    for (part, bytes) in &guest.sizes.parts {
        println!("{bytes:10} {part}");
    }
    println!("{:#?}", guest.notes);
    let again = tempfile::tempdir().unwrap();
    assert_eq!(built(again.path(), &spec).sha256, guest.sha256, "the same input is the same bytes");
    let cached = built(folder.path(), &spec);
    assert!(cached.cached && cached.sha256 == guest.sha256);
    let words = "trace_event=module:module_load,sched:sched_process_exec vmeter.dump_trace \
                 vmeter.exit=reset";
    let machine = ["-device", "virtio-rng-pci", "-device", "virtio-net-pci", "-smp", "2"];
    let (console, status) = boot(&kernel, &guest.path, words, &machine);
    assert_eq!(status, 0, "{console}");
    let markers = markers(&console);
    assert_brackets(&markers);
    for step in ["udev-start", "udev-trigger", "udev-settle"] {
        assert!(markers.contains(&format!("vmeter:end {step}")), "{console}");
    }
    for module in ["virtio_rng", "virtio_net"] {
        assert!(console.contains(&format!("module_load: {module} ")), "{console}");
    }
    assert!(!console.contains(": error "), "{console}");
    assert!(!console.contains("not understood"), "{console}");
}
