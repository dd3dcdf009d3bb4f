//! Machines of VMMs that are not QEMU, described for stand-ins of theirs: the command lines
//! and files are those that the real ones would be given.

use serde_json::json;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use vmeter_machine::backend::{self, Machine, MachineError, Request};
use vmeter_machine::backends::qemu::Qemu;
use vmeter_machine::vmm::Dialect;
use vmeter_model::{Accel, MachineSpec};

/// A folder with stand-ins, a kernel that is one by its first bytes, and an initrd.
struct Host {
    folder: tempfile::TempDir,
    kvm: bool,
}

impl Host {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, version) in [
            ("firecracker", "Firecracker v1.12.0"),
            ("cloud-hypervisor", "cloud-hypervisor v53.0"),
            ("crosvm", "crosvm 0.1.0"),
            ("lkvm", "kvm tool 3.18.0"),
        ] {
            let path = folder.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\necho '{version}'\n")).expect("written");
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("chmod");
        }
        std::fs::write(folder.path().join("vmlinux"), b"\x7fELF\x02\x01\x01").expect("written");
        let mut image = vec![0; 1024];
        image[0x202..0x206].copy_from_slice(b"HdrS");
        std::fs::write(folder.path().join("vmlinuz"), image).expect("written");
        std::fs::write(folder.path().join("initrd"), b"0707").expect("written");
        let kvm = std::fs::File::options().read(true).write(true).open("/dev/kvm").is_ok();
        if !kvm {
            println!("skipped: no /dev/kvm to open");
        }
        Host { folder, kvm }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn spec(&self, vmm: &str) -> MachineSpec {
        let vmm = self.path(vmm).to_str().expect("UTF-8").to_owned();
        MachineSpec { vmm: Some(vmm), ..MachineSpec::default() }
    }

    fn describe(&self, spec: &MachineSpec) -> Result<Machine, MachineError> {
        backend::describe(&Request {
            spec,
            cache: self.folder.path(),
            kernel: Some(&self.path(if self.is_kvmtool(spec) { "vmlinuz" } else { "vmlinux" })),
            initrd: Some(&self.path("initrd")),
            root_image: None,
        })
    }

    fn is_kvmtool(&self, spec: &MachineSpec) -> bool {
        spec.vmm.as_deref().is_some_and(|vmm| vmm.ends_with("lkvm"))
    }

    /// A text with this folder called DIR.
    fn shown(&self, text: &str) -> String {
        text.replace(self.folder.path().to_str().expect("UTF-8"), "DIR")
    }

    fn argv(&self, machine: &Machine) -> Vec<String> {
        machine.argv_text().iter().map(|word| self.shown(word)).collect()
    }
}

const WORDS: &[&str] = &["trace_event=initcall:*", "trace_clock=x86-tsc"];

#[test]
fn firecracker_is_told_by_a_file() {
    let host = Host::new();
    if !host.kvm {
        return;
    }
    let spec = MachineSpec {
        smp: Some(2),
        memory_mib: Some(256),
        append: vec!["loglevel=7".into()],
        ..host.spec("firecracker")
    };
    let machine = host.describe(&spec).expect("described");
    assert_eq!(
        host.argv(&machine),
        ["DIR/firecracker", "--no-api", "--config-file", "firecracker.json"]
    );
    let line = "console=ttyS0 quiet panic=-1 reboot=k pci=off vmeter.exit=reset loglevel=7";
    let expected = |line: &str| {
        json!({
            "boot-source": {
                "kernel_image_path": "DIR/vmlinux",
                "boot_args": line,
                "initrd_path": "DIR/initrd",
            },
            "drives": [],
            "machine-config": { "vcpu_count": 2, "mem_size_mib": 256 },
        })
    };
    let read = |path: &Path| -> serde_json::Value {
        let text = std::fs::read_to_string(path).expect("the file");
        serde_json::from_str(&host.shown(&text)).expect("JSON")
    };
    assert_eq!(
        (machine.accel, machine.kernel.clone()),
        (Some(Accel::Kvm), Some(host.path("vmlinux")))
    );
    assert!(machine.provenance["vmm"].starts_with("Firecracker v1.12.0 ("));

    let run = tempfile::tempdir().expect("a run's folder");
    let mut plan = machine.plan();
    assert!(plan.inject_kernel_parameters(WORDS));
    plan.place_config(run.path()).expect("written");
    let file = run.path().join("firecracker.json");
    assert_eq!(plan.argv[3], *file.as_os_str());
    assert_eq!(read(&file), expected(&format!("{line} {}", WORDS.join(" "))));
    assert_eq!(plan.injected, [format!("kernel: {}", WORDS.join(" "))]);

    // The next run begins with what was asked for.
    let quiet = MachineSpec { no_inject: true, ..spec };
    let mut plan = host.describe(&quiet).expect("described").plan();
    assert!(!plan.inject_kernel_parameters(WORDS));
    plan.place_config(run.path()).expect("written");
    assert_eq!(read(&file), expected(line));
    assert!(plan.injected.is_empty());
}

#[test]
fn cloud_hypervisor_is_told_by_its_command_line() {
    let host = Host::new();
    if !host.kvm {
        return;
    }
    let machine = host.describe(&host.spec("cloud-hypervisor")).expect("described");
    let line = "console=ttyS0 quiet panic=-1";
    let expected = [
        "DIR/cloud-hypervisor",
        "--kernel",
        "DIR/vmlinux",
        "--initramfs",
        "DIR/initrd",
        "--cmdline",
        line,
        "--cpus",
        "boot=1",
        "--memory",
        "size=512M",
        "--serial",
        "tty",
        "--console",
        "off",
    ];
    assert_eq!(host.argv(&machine), expected);
    let mut plan = machine.plan();
    assert!(plan.inject_kernel_parameters(WORDS));
    assert_eq!(plan.argv[6], *format!("{line} {}", WORDS.join(" ")));
    assert_eq!((plan.argv.len(), plan.kernel_line().is_some()), (expected.len(), true));
}

/// Those with a sub-command.
#[test]
fn crosvm_and_kvmtool_are_told_by_their_command_lines() {
    let host = Host::new();
    if !host.kvm {
        return;
    }
    let line = "console=ttyS0 quiet panic=-1";
    let serial = "type=stdout,hardware=serial,num=1,console";
    let reset = format!("{line} vmeter.exit=reset");
    let crosvm = [
        &["DIR/crosvm", "run", "--disable-sandbox", "--serial", serial, "--cpus", "1"][..],
        &["--mem", "512", "--params", line, "--initrd", "DIR/initrd", "DIR/vmlinux"],
    ];
    let kvmtool = [
        &["DIR/lkvm", "run", "--console", "serial", "--network", "mode=none"][..],
        &["--kernel", "DIR/vmlinuz", "--initrd", "DIR/initrd", "--params", &reset],
        &["--cpus", "1", "--mem", "512"],
    ];
    for (name, expected, line, kernel) in [
        ("crosvm", crosvm.concat(), line, "vmlinux"),
        ("lkvm", kvmtool.concat(), &reset, "vmlinuz"),
    ] {
        let machine = host.describe(&host.spec(name)).expect("described");
        assert_eq!(host.argv(&machine), expected);
        assert_eq!(machine.kernel, Some(host.path(kernel)));
        let mut plan = machine.plan();
        assert_eq!(plan.kernel_line().as_deref(), Some(line));
        assert!(plan.inject_kernel_parameters(WORDS));
        let added = format!("{line} {}", WORDS.join(" "));
        assert_eq!(plan.kernel_line(), Some(added.clone()));
        assert_eq!(plan.ends_by_reset(false), name == "lkvm");
        // The same command line, as the user's own.
        let command = machine.argv_text();
        let own = MachineSpec { command: command.clone(), ..MachineSpec::default() };
        let read = host.describe(&own).expect("described");
        assert_eq!((read.kernel.clone(), read.accel), (machine.kernel, Some(Accel::Kvm)));
        let mut plan = read.plan();
        assert!(plan.inject_kernel_parameters(WORDS));
        assert_eq!((plan.kernel_line(), plan.argv.len()), (Some(added), expected.len()));
        // Its program by --vmm, its sub-command after `--`.
        let vmm = Some(command[0].clone());
        let parted = MachineSpec { vmm: vmm.clone(), command: command[1..].to_vec(), ..own };
        assert_eq!(host.describe(&parted).expect("described").argv_text(), command);
        let both = MachineSpec { vmm, command: vec!["/bin/true".into()], ..parted };
        let error = host.describe(&both).expect_err("two programs").to_string();
        assert!(error.contains("leave out one of the two"), "{error}");
    }
}

#[test]
fn what_they_cannot_do_is_refused_in_words() {
    let host = Host::new();
    for vmm in ["firecracker", "cloud-hypervisor", "crosvm", "lkvm"] {
        let base = host.spec(vmm);
        let some = |text: &str| Some(text.to_owned());
        for (spec, said) in [
            (MachineSpec { accel: Some(Accel::Tcg.into()), ..base.clone() }, "--accel tcg"),
            (MachineSpec { accel: Some(Accel::Icount.into()), ..base.clone() }, "--accel icount"),
            (MachineSpec { machine: some("q35"), ..base.clone() }, "--machine q35"),
            (MachineSpec { firmware: some("qboot"), ..base.clone() }, "--firmware qboot"),
            (MachineSpec { pcie_root_ports: Some(3), ..base.clone() }, "--pcie-root-ports 3"),
            (MachineSpec { root: some("dax"), ..base.clone() }, "--root dax"),
        ] {
            let error = host.describe(&spec).expect_err(said).to_string();
            assert!(error.starts_with(said) && error.contains("use --vmm qemu"), "{error}");
        }
        let told = host.describe(&MachineSpec { until: some("guest-booted"), ..base.clone() });
        let refused = told.is_err_and(|e| e.to_string().starts_with("--until guest-booted"));
        assert_eq!(refused, ["crosvm", "lkvm"].contains(&vmm), "{vmm}");
        let error = host.describe(&MachineSpec { init: some("x"), ..base.clone() });
        assert!(error.expect_err("no init").to_string().contains("expected minimal or udev"));
        if host.kvm {
            let many = MachineSpec { smp: Some(1000), ..base.clone() };
            assert!(host.describe(&many).expect_err("too many").to_string().contains("1 to "));
            let kvmtool = host.is_kvmtool(&base);
            let other = if kvmtool { "vmlinux" } else { "vmlinuz" };
            let other = MachineSpec { kernel: Some(host.path(other)), ..base };
            let error = host.describe(&other).expect_err("another kind").to_string();
            let wanted = if kvmtool { "enters a bzImage" } else { "uncompressed vmlinux" };
            assert!(error.contains(wanted), "{error}");
        }
    }
    let link = host.path("firecracker-v1");
    std::os::unix::fs::symlink("/bin/true", link).expect("a link");
    let error = host.describe(&host.spec("firecracker-v1")).expect_err("it is true(1)").to_string();
    assert!(error.contains("does not mention Firecracker"), "{error}");
}

/// The user's own command line, read and added to.
#[test]
fn command_lines_of_the_users_own() {
    let host = Host::new();
    let own = |words: &[&str]| {
        let command = words.iter().map(|w| (*w).to_owned()).collect();
        MachineSpec { command, ..MachineSpec::default() }
    };
    let firecracker = host.path("firecracker").to_str().expect("UTF-8").to_owned();
    let hypervisor = host.path("cloud-hypervisor").to_str().expect("UTF-8").to_owned();
    let kernel = host.path("vmlinux");
    let config = host.path("vm.json");
    let text = json!({
        "boot-source": { "kernel_image_path": kernel, "boot_args": "mine=1" },
        "drives": [{ "drive_id": "a" }],
        "vsock": { "guest_cid": 3 },
    })
    .to_string();
    std::fs::write(&config, &text).expect("written");
    let config_text = config.to_str().expect("UTF-8");
    let run = tempfile::tempdir().expect("a run's folder");

    let words = [&*firecracker, "--no-api", "--config-file", config_text];
    let machine = host.describe(&own(&words)).expect("described");
    assert_eq!((machine.accel, machine.kernel.as_ref()), (Some(Accel::Kvm), Some(&kernel)));
    let mut plan = machine.plan();
    plan.place_config(run.path()).expect("nothing to write");
    assert_eq!(plan.argv[3], *config.as_os_str(), "the user's own, as nothing was added");
    assert!(plan.inject_kernel_parameters(WORDS));
    plan.place_config(run.path()).expect("written");
    let copy = run.path().join("firecracker.json");
    assert_eq!(plan.argv[3], *copy.as_os_str());
    let told: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(copy).expect("a copy")).expect("JSON");
    assert_eq!(told["boot-source"]["boot_args"], format!("mine=1 {}", WORDS.join(" ")));
    assert_eq!(told["vsock"]["guest_cid"], 3);
    assert_eq!(std::fs::read_to_string(&config).expect("there"), text, "left alone");
    assert!(plan.injected[1].contains("firecracker.json in place of "), "{:?}", plan.injected);

    let by_api = host.describe(&own(&[&firecracker, "--api-sock", "/run/fc"])).expect("described");
    assert!(by_api.chosen.iter().any(|c| c.value == "by the API"), "{by_api:?}");
    assert!(!by_api.plan().inject_kernel_parameters(WORDS));
    std::fs::write(&config, "{ broken").expect("written");
    let broken = host.describe(&own(&words)).expect("Firecracker will say so itself");
    assert!(broken.chosen.iter().any(|c| c.note.contains("not JSON")), "{broken:?}");

    let kernel = kernel.to_str().expect("UTF-8");
    for (words, line) in [
        (vec![&*hypervisor, "--kernel", kernel, "--cmdline", "mine=1"], "mine=1 "),
        (vec![&*hypervisor, "--kernel", kernel, "--cmdline=mine=1"], "--cmdline=mine=1 "),
        (vec![&*hypervisor, "--kernel", kernel], ""),
    ] {
        let machine = host.describe(&own(&words)).expect("described");
        let mut plan = machine.plan();
        assert!(plan.inject_kernel_parameters(WORDS), "{words:?}");
        let added = format!("{line}{}", WORDS.join(" "));
        assert!(plan.argv.iter().any(|word| *word == *added), "{:?}", plan.argv);
        let quiet = MachineSpec { no_inject: true, ..own(&words) };
        let mut plan = host.describe(&quiet).expect("described").plan();
        assert!(!plan.inject_kernel_parameters(WORDS));
        assert_eq!(plan.argv, words, "run as given");
    }
    let crosvm = host.path("crosvm").to_str().expect("UTF-8").to_owned();
    let snapshots = [
        (vec![&*hypervisor, "--restore", "source_url=file:///x"], "--restore"),
        (vec![&*crosvm, "run", "--restore", "x", kernel], "--restore"),
    ];
    for (words, option) in snapshots {
        let machine = host.describe(&own(&words)).expect("described");
        assert_eq!(machine.abilities().restored, Some(option));
        assert!(machine.chosen.iter().any(|c| c.value == option), "{:?}", machine.chosen);
        assert!(!machine.plan().inject_kernel_parameters(WORDS));
    }
    let told = |words: &[&str]| {
        let argv: Vec<_> = words.iter().map(Into::into).collect();
        Qemu.restores(&argv)
    };
    assert_eq!(told(&["qemu-system-x86_64", "-loadvm", "a"]), Some("-loadvm"));
    assert_eq!(told(&["qemu-system-x86_64", "--incoming", "defer"]), Some("-incoming"));
    assert_eq!(told(&["qemu-system-x86_64", "-kernel", "incoming"]), None);
}
