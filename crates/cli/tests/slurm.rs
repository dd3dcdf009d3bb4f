//! `vmeter sweep --on slurm` on a real cluster: munged, slurmctld and four slurmd of this
//! host, started and ended by the test.

use crate::common;
use crate::repository;

use common::{signal, text, Lab};
use repository::{build, mock_guest, repository};
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

const NODES: usize = 4;

/// A mock that takes its time by `--prepare`.
const SCRIPT: &str = "vmeter-mock 1
30ms vmm-main
300ms reach start_kernel
90ms+9ms*pcie_root_ports initcall acpi_init
5ms reach run_init_process
count pci_config_reads 397+291*pcie_root_ports
1ms ready
";

/// Daemons of a cluster, and their folder.
struct Cluster {
    folder: tempfile::TempDir,
    daemons: Vec<Child>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Jobs first, so that no task outlives its node.
        let _ = self.command("scancel").args(["--user", &user(), "--full"]).output();
        let idle = || self.says("squeue", &["--noheader"]).is_some_and(|left| left.is_empty());
        wait_for(Duration::from_secs(10), idle);
        for daemon in self.daemons.iter_mut().rev() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

fn wait_for(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    while !done() {
        if begun.elapsed() > limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    true
}

fn user() -> String {
    let ran = Command::new("id").arg("-un").output().expect("id");
    String::from_utf8_lossy(&ran.stdout).trim().to_owned()
}

/// Ports that nobody listens on.
fn free_ports(n: usize) -> Vec<u16> {
    let bound: Vec<TcpListener> =
        (0..n).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
    bound.iter().map(|b| b.local_addr().expect("an address").port()).collect()
}

impl Cluster {
    /// None, with a line that says so, where Slurm is not installed or does not come up.
    fn start() -> Option<Self> {
        for (program, package) in [
            ("munged", "munge"),
            ("slurmctld", "slurmctld"),
            ("slurmd", "slurmd"),
            ("sbatch", "slurm-client"),
        ] {
            let found = std::env::var_os("PATH").is_some_and(|paths| {
                std::env::split_paths(&paths).any(|dir| dir.join(program).exists())
            });
            if !found {
                eprintln!("skipped: needs {program} (apt-get install {package}; make setup-test)");
                return None;
            }
        }
        if user() != "root" {
            eprintln!("skipped: slurmd starts jobs as root only");
            return None;
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut cluster = Cluster { folder, daemons: Vec::new() };
        cluster.configure();
        cluster.munged();
        cluster.slurm();
        let up = || {
            cluster
                .says("sinfo", &["-hN", "-o", "%T"])
                .is_some_and(|s| s.matches("idle").count() == NODES)
        };
        if wait_for(Duration::from_secs(30), up) {
            return Some(cluster);
        }
        let said = cluster.says("sinfo", &["-N"]).unwrap_or_default();
        let log = std::fs::read_to_string(cluster.path("slurmctld.log")).unwrap_or_default();
        eprintln!("skipped: the cluster did not come up: {said}\n{log}");
        None
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn configure(&self) {
        use std::os::unix::fs::PermissionsExt;
        let dir = self.folder.path();
        let world = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(dir, world).expect("chmod");
        std::fs::create_dir(self.path("state")).expect("scratch space");
        let key: Vec<u8> = (0..1024u32).map(|n| (n * 7919 % 251) as u8).collect();
        std::fs::write(self.path("munge.key"), key).expect("scratch space");
        let secret = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(self.path("munge.key"), secret).expect("chmod");
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("a name");
        let (name, dir) = (name.trim(), dir.display());
        let ports = free_ports(NODES + 1);
        let nodes: String = (0..NODES)
            .map(|n| {
                format!(
                    "NodeName=n{n} NodeHostname={name} NodeAddr=127.0.0.1 Port={} CPUs=1 RealMemory=64\n",
                    ports[n + 1]
                )
            })
            .collect();
        let conf = format!(
            "ClusterName=vmeter-test
SlurmctldHost={name}(127.0.0.1)
SlurmctldPort={}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={dir}/munge.socket
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool-%n
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/slurmd-%n.pid
SlurmctldLogFile={dir}/slurmctld.log
SlurmdLogFile={dir}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=1
SchedulerParameters=sched_interval=1
{nodes}PartitionName=main Nodes=n[0-{}] Default=YES MaxTime=INFINITE State=UP
",
            ports[0],
            NODES - 1
        );
        std::fs::write(self.path("slurm.conf"), conf).expect("scratch space");
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("SLURM_CONF", self.path("slurm.conf")).stdin(Stdio::null());
        command
    }

    fn says(&self, program: &str, arguments: &[&str]) -> Option<String> {
        let ran = self.command(program).args(arguments).output().ok()?;
        let said = String::from_utf8_lossy(&ran.stdout).into_owned();
        ran.status.success().then_some(said)
    }

    fn daemon(&mut self, program: &str, arguments: &[String]) {
        let out = std::fs::File::create(self.path(&format!("{program}.out"))).expect("a log");
        let mut command = self.command(program);
        command.args(arguments).stdout(out.try_clone().expect("a log")).stderr(out);
        self.daemons.push(command.spawn().expect("a daemon"));
    }

    fn munged(&mut self) {
        let file = |option: &str, name: &str| format!("--{option}={}", self.path(name).display());
        let arguments = [
            "--foreground".to_owned(),
            "--force".to_owned(),
            "--num-threads=1".to_owned(),
            file("key-file", "munge.key"),
            file("socket", "munge.socket"),
            file("pid-file", "munged.pid"),
            file("log-file", "munged.log"),
            file("seed-file", "munged.seed"),
        ];
        self.daemon("munged", &arguments);
        let socket = self.path("munge.socket");
        assert!(wait_for(Duration::from_secs(10), || socket.exists()), "munged makes its socket");
    }

    fn slurm(&mut self) {
        self.daemon("slurmctld", &["-D".to_owned()]);
        for node in 0..NODES {
            self.daemon("slurmd", &["-D".to_owned(), "-N".to_owned(), format!("n{node}")]);
        }
    }
}

/// A sweep of 12 points on the cluster.
fn sweep(lab: &Lab, cluster: &Cluster, save: &Path) -> Command {
    let script = lab.path("slurm.mock");
    std::fs::write(&script, SCRIPT).expect("scratch space");
    let arguments = [
        "sweep",
        "-P",
        "pcie-root-ports=0..11",
        "--vmm",
        "mock",
        "--machine",
        text(&script),
        "--until",
        "userspace",
        "--runs",
        "4",
        "--warmup",
        "0",
        "--prepare",
        "sleep 0.2",
        "--on",
        "slurm",
        "--shards",
        "4",
        "--partition",
        "main",
        "--sbatch=--time=10",
        "--save",
        text(save),
        "--export-json",
        "-",
    ];
    let mut command = lab.command(&arguments);
    command.env("SLURM_CONF", cluster.path("slurm.conf"));
    command.env("VMETER_SLURM_PATIENCE", "2");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).expect("a file")).expect("JSON")
}

/// When each finished run of a session was written.
fn finished(dir: &Path) -> BTreeMap<String, SystemTime> {
    let runs = std::fs::read_dir(dir.join("runs")).into_iter().flatten().flatten();
    let written = runs.filter_map(|entry| {
        let written = entry.path().join("run.json").metadata().ok()?.modified().ok()?;
        Some((entry.file_name().to_string_lossy().into_owned(), written))
    });
    written.filter(|(name, _)| !name.contains("partial")).collect()
}

/// SIGKILL for the vmeter that is at work in a shard.
fn kill_who_resumes(shard: &Path) {
    let at_work = |pid: &String| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|b| *b == 0).collect();
        words.contains(&b"--resume".as_slice()) && words.contains(&text(shard).as_bytes())
    };
    let processes = std::fs::read_dir("/proc").expect("proc").flatten();
    let mut names = processes.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let numbers = |name: &String| name.bytes().all(|b| b.is_ascii_digit());
    let pid = names.find(|name| numbers(name) && at_work(name));
    let line = format!("kill -KILL {}", pid.expect("a vmeter in the shard"));
    assert!(Command::new("sh").args(["-c", &line]).status().expect("sh").success());
}

fn assert_whole(result: &Value) {
    let points = result["points"].as_array().expect("points");
    assert_eq!(points.len(), 12);
    let mut numbers = Vec::new();
    for point in points {
        let runs = point["runs"].as_array().expect("runs");
        assert_eq!(runs.len(), 4, "{}", point["label"]);
        numbers.extend(runs.iter().map(|r| r["index"].as_u64().expect("a number")));
    }
    numbers.sort_unstable();
    assert_eq!(numbers, (0..48).collect::<Vec<u64>>(), "every run once");
    let counts = result["count_scaling"].as_array().expect("count_scaling");
    let reads = counts.iter().find(|c| c["count"] == "pci_config_reads").expect("reads");
    assert_eq!(reads["exact_step"], 291.0);
}

#[test]
fn an_array_of_four_loses_a_task_and_no_run() {
    let Some(cluster) = Cluster::start() else { return };
    let lab = Lab::new();

    // Tasks are killed in the middle, one by Slurm and one behind its back: they are
    // submitted again, and repeat nothing.
    let save = lab.path("killed");
    let running = sweep(&lab, &cluster, &save).spawn().expect("vmeter");
    let (shard, other) = (save.join("shards/2"), save.join("shards/3"));
    let half = || [&shard, &other].iter().all(|s| (2..10).contains(&finished(s).len()));
    assert!(wait_for(Duration::from_secs(60), half), "shards 2 and 3 begin");
    kill_who_resumes(&other);
    let jobs = json(&save.join("slurm.json"))["jobs"].clone();
    let task = format!("{}_2", jobs[0].as_str().expect("a job"));
    let killed = cluster.command("scancel").args(["--signal=KILL", "--full", &task]).status();
    assert!(killed.expect("scancel").success());
    let before = [finished(&shard), finished(&other)];
    let ran = running.wait_with_output().expect("vmeter");
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert_eq!(ran.status.code(), Some(0), "{said}");
    for lost in ["shard 2/4 was lost after", "shard 3/4 was lost after", "submitted again"] {
        assert!(said.contains(lost), "{said}");
    }
    assert_whole(&serde_json::from_slice(&ran.stdout).expect("JSON"));
    for (shard, before) in [&shard, &other].into_iter().zip(before) {
        let after = finished(shard);
        assert_eq!(after.len(), 12);
        let unchanged = |(name, written): (&String, &SystemTime)| after.get(name) == Some(written);
        assert!(before.iter().all(unchanged), "finished runs are not repeated");
    }
    assert_whole(&lab.json(&["show", text(&save)]));

    // Ctrl-C leaves the tasks to Slurm; who comes back finds them.
    let save = lab.path("left");
    let running = sweep(&lab, &cluster, &save).spawn().expect("vmeter");
    let begun = || !finished(&save.join("shards/1")).is_empty();
    assert!(wait_for(Duration::from_secs(60), begun), "shard 1 begins");
    signal(&running, "INT");
    let left = running.wait_with_output().expect("vmeter");
    let said = String::from_utf8_lossy(&left.stderr).into_owned();
    assert_eq!(left.status.code(), Some(130), "{said}");
    assert!(said.contains("--resume") && said.contains("scancel"), "{said}");
    let mut again = lab.command(&["sweep", "--resume", text(&save), "--export-json", "-"]);
    let again = again.env("SLURM_CONF", cluster.path("slurm.conf")).output().expect("vmeter");
    let said = String::from_utf8_lossy(&again.stderr).into_owned();
    assert_eq!(again.status.code(), Some(0), "{said}");
    assert_whole(&serde_json::from_slice(&again.stdout).expect("JSON"));
    let jobs = json(&save.join("slurm.json"))["jobs"].clone();
    assert_eq!(jobs.as_array().map(Vec::len), Some(1), "nothing was submitted again");

    // What Slurm refuses is said with what would mend it, and leaves nothing behind.
    let save = lab.path("refused");
    let mut refused = sweep(&lab, &cluster, &save);
    let refused = refused.args(["--partition", "nowhere"]).output().expect("vmeter");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "given twice: {said}");
    let mut refused = sweep(&lab, &cluster, &save);
    let refused = refused.arg("--sbatch=--partition=nowhere").output().expect("vmeter");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(3), "{said}");
    assert!(said.contains("sinfo") && said.contains("--partition"), "{said}");
    assert!(!save.exists());
}

#[test]
fn a_range_is_built_once_and_measured_by_four() {
    let Some(cluster) = Cluster::start() else { return };
    let lab = Lab::new();
    let length = |i: usize| if i >= 5 { 120.0 } else { 50.0 };
    let (repo, range) = repository(&lab, 9, |i| {
        let (name, line) = build(i, &[3]);
        let built = format!("echo $VMETER_COMMIT >>{}\n", text(&lab.path("built")));
        vec![("source", mock_guest(length(i))), (name, format!("{built}{line}"))]
    });
    let save = lab.path("range");
    let fixed = ["range", "--repo", text(&repo), &range, "--build", "sh build.sh", "--runs", "4"];
    let machine = ["--vmm", "mock", "--machine", "{worktree}/product", "--warmup", "0"];
    let many = ["--on", "slurm", "--shards", "4", "--save", text(&save), "--export-json", "-"];
    let mut command = lab.command(&[&fixed[..], &machine[..], &many[..]].concat());
    let ran = command.env("SLURM_CONF", cluster.path("slurm.conf")).output().expect("vmeter");
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert_eq!(ran.status.code(), Some(0), "{said}");
    let result: Value = serde_json::from_slice(&ran.stdout).expect("JSON");
    let changes = result["changes"].as_array().expect("changes");
    assert_eq!((changes.len(), &changes[0]["commits"][0]), (1, &5.into()), "{changes:?}");
    for commit in result["commits"].as_array().expect("commits") {
        let measured = if commit["index"] == 3 { 0 } else { 4 };
        assert_eq!(commit["samples_s"].as_array().map(Vec::len), Some(measured), "{commit}");
    }
    assert_eq!(result["effort"]["builds"], 9);
    let built = std::fs::read_to_string(lab.path("built")).expect("builds");
    assert_eq!(built.lines().count(), 9, "each commit once, whichever shard did it: {built}");
    let shown = lab.json(&["show", text(&save)]);
    assert_eq!(shown["changes"], result["changes"]);
}

#[test]
fn without_slurm_it_says_what_would_mend_that() {
    let lab = Lab::new();
    let save = lab.path("sweep");
    let fixed = ["sweep", "-P", "pcie-root-ports=0..3", "--vmm", "mock", "--on", "slurm"];
    let ran = |more: &[&str], path: &Path| -> common::Ran {
        let all: Vec<&str> = fixed.iter().chain(more).copied().collect();
        let mut command = lab.command(&all);
        let patience = command.env("VMETER_SLURM_PATIENCE", "0.3");
        patience.env("PATH", path).output().expect("vmeter").into()
    };
    let empty = lab.path("empty");
    std::fs::create_dir(&empty).expect("scratch space");
    let missing = ran(&["--shards", "2", "--save", text(&save)], &empty);
    assert_eq!(missing.status, 3, "{}", missing.stderr);
    for said in ["slurm-client", "--shard I/N", "vmeter merge"] {
        assert!(missing.stderr.contains(said), "{}", missing.stderr);
    }
    assert!(!save.exists(), "nothing is left behind");
    let none = ran(&[], &empty);
    assert_eq!(none.status, 2);
    assert!(none.stderr.contains("--shards N"), "{}", none.stderr);
    let many = ran(&["--shards", "99"], &empty);
    assert_eq!(many.status, 2);
    assert!(many.stderr.contains("at most"), "{}", many.stderr);

    // A task that always fails is not submitted for ever.
    let fake = lab.path("fake");
    std::fs::create_dir(&fake).expect("scratch space");
    let count = lab.path("submitted");
    let sbatch = format!("#!/bin/sh\ndate +%s.%N >> {0}\necho 7\n", count.display());
    lab.script("fake/sbatch", &sbatch);
    lab.script("fake/squeue", "#!/bin/sh\nexit 0\n");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::iter::once(fake.clone()).chain(std::env::split_paths(&path));
    let path = std::env::join_paths(dirs).expect("a path");
    let lost = ran(&["--shards", "2", "--save", text(&save)], Path::new(&path));
    assert_eq!(lost.status, 3, "{}", lost.stderr);
    let submitted = std::fs::read_to_string(&count).expect("submissions");
    let at: Vec<f64> = submitted.lines().map(|line| line.parse().expect("a time")).collect();
    // A file server may show a task's files late: each time it is waited for twice as long.
    let waited: Vec<f64> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let enough = waited.iter().zip([0.3, 0.6, 1.2]).all(|(waited, patience)| *waited >= patience);
    assert!(at.len() == 4 && enough, "{waited:?}");
    assert!(lost.stderr.contains("4 attempts"), "{}", lost.stderr);
    assert!(lost.stderr.contains("--resume"), "{}", lost.stderr);
}
