//! A guest that logs as fast as it can, read while it runs: every record that is read is one that
//! the guest itself printed on its console, whole, and its VMM is given no memory by it.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use vmeter_appliance::{build_to, ApplianceSpec, Content, ExtraFile};
use vmeter_kernel_image::printk::{PrintkDump, PrintkRecord};
use vmeter_model::kernel_log::split_stamp;
use vmeter_record::look::{find, LookError, Looked, Vmm};

const BUSYBOX: &str = "/bin/busybox";
/// It logs for ever.
const SCRIPT: &str = "#!/bin/busybox sh\nn=0\nwhile :; do n=$((n+1)); \
                      echo \"flood $n ........................................\" >/dev/kmsg; done\n";
const READS: usize = 200;
const PATIENCE: Duration = Duration::from_secs(120);

/// A VMM that is ended with its test.
struct Guest(Child);

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The guest, its console a file; none where this host lacks something.
fn guest(folder: &Path) -> Option<(Guest, PathBuf)> {
    let qemu = Command::new("qemu-system-x86_64").arg("-version").output().is_ok();
    if !qemu || !Path::new(BUSYBOX).exists() {
        println!("skipped: needs qemu-system-x86_64 and busybox-static");
        return None;
    }
    let Some(kernel) = vmeter_appliance::kernel::default_kernel() else {
        println!("skipped: no kernel; run `vmeter kernel fetch`");
        return None;
    };
    let file = |path: &str, bytes: Vec<u8>| {
        let content = Content::Bytes(bytes);
        ExtraFile { path: path.into(), content, mode: 0o755 }
    };
    let busybox = std::fs::read(BUSYBOX).expect("busybox");
    let files = vec![file("/bin/busybox", busybox), file("/bin/flood", SCRIPT.into())];
    let spec = ApplianceSpec { extra_files: files, ..ApplianceSpec::minimal() };
    let (initrd, console) = (folder.join("initrd"), folder.join("console"));
    build_to(&spec, &initrd).expect("an initramfs");
    let child = Command::new("qemu-system-x86_64")
        .args(["-accel", "tcg", "-M", "q35", "-m", "256", "-nodefaults", "-display", "none"])
        .args(["-no-reboot", "-serial", &format!("file:{}", console.display())])
        .args([
            "-append",
            "console=ttyS0 ignore_loglevel printk.devkmsg=on panic=-1 no_timer_check \
                           cryptomgr.notests vmeter.run=/bin/flood",
            "-kernel",
        ])
        .arg(&kernel.vmlinuz)
        .arg("-initrd")
        .arg(&initrd)
        .stdin(Stdio::null())
        .spawn();
    Some((Guest(child.expect("QEMU")), console))
}

/// KiB that a process has in RAM.
fn rss(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse().expect("KiB")
}

fn read(looked: &mut Looked) -> (Vec<PrintkRecord>, u64) {
    let dump = looked.kernel.look_into(&looked.tracee, PrintkDump::take).expect("a log");
    (dump.records(), dump.torn())
}

/// Waits until the guest logs at full speed; none where this user may not look.
fn at_full_speed(vmm: &Vmm, folder: &Path) -> Looked {
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < PATIENCE, "the guest did not come so far");
        std::thread::sleep(Duration::from_millis(200));
        match find(vmm, folder, folder) {
            Ok(mut looked) => {
                if read(&mut looked).0.iter().any(|record| record.text.starts_with("flood ")) {
                    return looked;
                }
            }
            Err(LookError::NoKernel(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_guest_that_logs_at_full_speed_is_read_whole_and_its_vmm_grows_by_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some((guest, console)) = guest(folder.path()) else { return };
    let vmm = match Vmm::of(guest.0.id() as i32) {
        Ok(vmm) => vmm,
        Err(error) => return println!("skipped: {error}"),
    };
    let mut looked = at_full_speed(&vmm, folder.path());
    let before = rss(vmm.pid);
    let (mut seen, mut torn) = (BTreeMap::new(), 0);
    for number in 0..READS {
        let (records, left_out) = read(&mut looked);
        torn += left_out;
        for record in records {
            let said = (record.ts_ns / 1_000 * 1_000, record.text);
            let known = seen.entry(record.seq).or_insert_with(|| said.clone());
            assert_eq!(*known, said, "record {} in read {number}", record.seq);
        }
        std::thread::sleep(Duration::from_millis(4));
    }
    let grown = rss(vmm.pid).saturating_sub(before);
    println!("{READS} reads, {} records, {torn} times one left out; {grown} KiB", seen.len());
    assert!(grown < 1024, "the VMM has {grown} KiB more");
    are_what_the_guest_printed(&console, &seen);
}

/// The console shows records as they were said: each that was read is there.
fn are_what_the_guest_printed(console: &Path, seen: &BTreeMap<u64, (u64, String)>) {
    let last = &seen.values().next_back().expect("records").1;
    let begun = Instant::now();
    let mut printed = String::new();
    while !printed.contains(last) && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(100));
        printed = String::from_utf8_lossy(&std::fs::read(console).expect("a console")).into_owned();
    }
    assert!(!printed.contains("printk messages dropped"), "the console is no witness of all");
    let lines = printed.lines().map(|line| split_stamp(line.trim_end()));
    let said: HashSet<(u64, &str)> =
        lines.filter_map(|(stamp, text)| Some((stamp? as u64, text))).collect();
    let is_said = |(stamp, text): &(u64, String)| {
        text.split('\n').all(|line| said.contains(&(*stamp, line.trim_end())))
    };
    let wrong: Vec<_> = seen.iter().filter(|(_, record)| !is_said(record)).collect();
    assert!(
        wrong.is_empty(),
        "{} not as the guest said: {:?}",
        wrong.len(),
        &wrong[..wrong.len().min(5)]
    );
    assert!(seen.len() > 1000, "{} records", seen.len());
}
