//! Machines that are played, and the noise of the hosts that they are played on.

use crate::common::{is_long, Lab};
use serde_json::Value;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A host.
pub struct World {
    pub name: &'static str,
    /// Its `noise` lines.
    pub noise: &'static [&'static str],
    /// True if one of what is compared has more noise than the others: five times theirs.
    pub is_uneven: bool,
}

impl World {
    const fn of(name: &'static str, noise: &'static [&'static str]) -> Self {
        World { name, noise, is_uneven: false }
    }

    /// True if it is to be played: with `VMETER_WORLD`, one of which that is a part of the name.
    pub fn is_asked(&self) -> bool {
        std::env::var("VMETER_WORLD").map_or(true, |part| self.name.contains(&part))
    }

    /// The lines of its noise for a machine, `condition` being what tells one of those that are
    /// compared from the others.
    pub fn lines(&self, condition: &str) -> Vec<String> {
        // With the 3 % that all have: five times as much.
        let more = self.is_uneven.then(|| format!("if {condition}: noise normal 14.7%"));
        more.into_iter().collect()
    }
}

pub const NORMAL: World = World::of("normal 3 %", &["normal 3%"]);
pub const SESSION: World = World::of("sessions 3 %", &["normal 2%", "session 3%"]);
pub const BUILD: World = World::of("builds 1 %", &["normal 3%", "build 1%"]);

/// The hosts on which nothing may be found where nothing is. Builds differ where there are
/// builds: in ranges.
pub const WORLDS: [World; 7] = [
    NORMAL,
    World::of("skewed, slow spells", &["skewed 3%"]),
    World::of("AR(1) 0.5", &["ar1 3% 0.5"]),
    SESSION,
    World::of("drift 0.2 % a boot", &["normal 3%", "drift 0.2%"]),
    World::of("steal bursts", &["normal 3%", "steal 30%"]),
    World { name: "one five times as noisy", noise: &["normal 3%"], is_uneven: true },
];

/// Hosts on which a boot is rarely slow: a retry, a timeout, a flush.
pub const RARE: [World; 4] = [
    World::of("one of ten 30 % slower", &["rare 1% 1/10 x1.3"]),
    World::of("one of twenty 30 % slower", &["rare 1% 1/20 x1.3"]),
    World::of("one of ten takes 3 times as long", &["rare 3% 1/10 x3"]),
    World::of("one of twenty takes 3 times as long", &["rare 3% 1/20 x3"]),
];

/// A folder for many sessions, in memory where there is room.
pub struct Many {
    lab: Lab,
    folder: tempfile::TempDir,
}

impl Many {
    pub fn new() -> Self {
        let memory = std::path::Path::new("/dev/shm");
        let folder = tempfile::tempdir_in(memory).or_else(|_| tempfile::tempdir());
        Many { lab: Lab::new(), folder: folder.expect("a folder") }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a machine that boots in 100 ms, with more lines of its own.
    pub fn machine(&self, name: &str, noise: &[&str], lines: &[&str]) -> String {
        self.script(name, &[], noise, lines)
    }

    /// As [`Many::machine`], with settings of the script.
    pub fn script(
        &self,
        name: &str,
        settings: &[String],
        noise: &[&str],
        lines: &[&str],
    ) -> String {
        let mut text = String::from("vmeter-mock 1\n");
        settings.iter().for_each(|line| text += &format!("{line}\n"));
        noise.iter().for_each(|n| text += &format!("noise {n}\n"));
        text += "1ms vmm-exec\n60ms reach start_kernel\n30ms reach run_init_process\n";
        lines.iter().for_each(|line| text += &format!("{line}\n"));
        text += "8ms poweroff\n1ms exit 0\n";
        let path = self.path(name);
        std::fs::write(&path, text).expect("a script");
        path.display().to_string()
    }

    /// As [`Many::machine`], on a host.
    pub fn on(&self, world: &World, name: &str, condition: &str, lines: &[&str]) -> String {
        let own = world.lines(condition);
        let all: Vec<&str> = own.iter().map(String::as_str).chain(lines.iter().copied()).collect();
        self.machine(name, world.noise, &all)
    }

    /// One session: exit status, and what it exports.
    pub fn session(&self, words: &[&str], seed: u64) -> (i32, Value) {
        let save = self.path(&format!("s{seed}-{}", words.len()));
        let ran = self.saved(words, seed, &save);
        let _ = std::fs::remove_dir_all(&save);
        ran
    }

    /// What a command that measures nothing exports.
    pub fn json(&self, words: &[&str]) -> Value {
        let mut command = self.lab.command(words);
        command.env("XDG_STATE_HOME", self.folder.path());
        let output = command.args(["-q", "--export-json", "-"]).output().expect("vmeter runs");
        serde_json::from_slice(&output.stdout).expect("one JSON object")
    }

    /// Makes a session one of a day of January, and of an hour.
    pub fn dated(&self, session: &std::path::Path, day: u64, hour: u64) {
        let file = session.join("session.json");
        let text = std::fs::read_to_string(&file).expect("a session");
        let mut record: Value = serde_json::from_str(&text).expect("JSON");
        record["started_at"] = format!("2026-01-{:02}T{hour:02}:00:00Z", day + 1).into();
        std::fs::write(&file, record.to_string()).expect("written");
    }

    /// The exit status of a command.
    pub fn status(&self, words: &[&str]) -> i32 {
        let mut command = self.lab.command(words);
        command.env("XDG_STATE_HOME", self.folder.path()).arg("-q");
        command.output().expect("vmeter runs").status.code().unwrap_or(-1)
    }

    /// As [`Many::session`], and leaves it in a folder.
    pub fn saved(&self, words: &[&str], seed: u64, save: &std::path::Path) -> (i32, Value) {
        let (seed, folder) = (seed.to_string(), save.display().to_string());
        let mut command = self.lab.command(words);
        command.args(["--seed", &seed, "--save", &folder, "-q", "--export-json", "-"]);
        command.env("XDG_STATE_HOME", self.folder.path());
        let output = command.output().expect("vmeter runs");
        let status = output.status.code().unwrap_or(-1);
        let said = String::from_utf8_lossy(&output.stderr);
        let json = serde_json::from_slice(&output.stdout);
        (status, json.unwrap_or_else(|e| panic!("{words:?}: {e}: {said}")))
    }
}

/// How many trials: few in `make test`, at most `VMETER_TRIALS` where that is set.
pub fn trials(few: u64, many: u64) -> u64 {
    if is_long() {
        let most = std::env::var("VMETER_TRIALS").ok().and_then(|most| most.parse().ok());
        many.min(most.unwrap_or(many))
    } else {
        few
    }
}

/// The answers of trials 0 to `count`, on all CPUs.
pub fn each<T: Send>(count: u64, trial: impl Fn(u64) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let work = || {
        let mut found = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed) as u64;
            if seed >= count {
                return found;
            }
            found.push((seed, trial(seed + 1)));
        }
    };
    let mut all: Vec<(u64, T)> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        running.into_iter().flat_map(|thread| thread.join().expect("trials")).collect()
    });
    all.sort_by_key(|(seed, _)| *seed);
    all.into_iter().map(|(_, found)| found).collect()
}
