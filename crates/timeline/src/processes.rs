//! The processes of a guest: who began whom, what each executed, who waited for its end, and
//! the CPU time that it had.
//!
//! A parent is who forked, and waiting is what a thread said before the end that it waited
//! for: that two lived at one time says neither. Threads count as their process.

use crate::anchors::Stamp;
use crate::input::Seen;
use crate::systemd::is_script;
use std::collections::{BTreeMap, HashMap};
use vmeter_model::{EventKind, Ns};

/// What a process executes from a moment on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Image<'a> {
    pub at: Ns,
    pub file: &'a str,
    pub arguments: &'a [String],
}

/// One process.
#[derive(Debug, Clone)]
pub(crate) struct Process<'a> {
    pub pid: i32,
    /// Index of its parent; none of the kernel's own helpers.
    pub parent: Option<usize>,
    /// Its fork; its first `execve` where no fork was seen.
    pub start: Stamp<'a>,
    /// None if it was still there at the end.
    pub end: Option<Ns>,
    /// In order.
    pub images: Vec<Image<'a>>,
    /// CPU time of its threads, ns; none while it was there.
    pub cpu: Option<Ns>,
    /// systemd's unit that it belongs to.
    pub unit: Option<&'a str>,
    /// When it was first put into a unit.
    pub joined: Option<Ns>,
    /// Since when somebody had been waiting for its end when it came.
    pub waited: Option<Ns>,
    /// True if it had not ended when the run did, and its parent waited for that.
    pub held: bool,
    /// How it ended, as wait(2) says it.
    pub status: Option<i32>,
}

/// All of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Processes<'a> {
    /// In order of their starts.
    pub all: Vec<Process<'a>>,
    /// True if forks were seen, so that parents are known.
    pub with_parents: bool,
    /// Each one's children, by index, in order of their starts.
    children: BTreeMap<usize, Vec<usize>>,
}

/// What the end of a process is set against: the last time that a thread began to wait.
#[derive(Debug, Clone, Copy)]
struct Wait {
    at: Ns,
    child: Option<i32>,
}

#[derive(Default)]
struct Reading<'a> {
    all: Vec<Process<'a>>,
    /// Which process a thread is of.
    threads: HashMap<i32, usize>,
    arguments: HashMap<i32, &'a [String]>,
    waits: HashMap<i32, Wait>,
    /// Ended while this thread waited; what it does next says whether it was for them.
    expected: HashMap<i32, Vec<usize>>,
    reaps: bool,
    forks: bool,
    /// The last that each process forked.
    youngest: HashMap<usize, usize>,
}

impl<'a> Processes<'a> {
    /// Reads the events once.
    pub(crate) fn of(seen: &[Seen<'a>]) -> Self {
        let mut reading = Reading {
            reaps: seen.iter().any(|s| matches!(s.what, EventKind::ProcessReap { .. })),
            ..Reading::default()
        };
        for seen in seen {
            reading.read(seen);
        }
        reading.stages_of_init();
        reading.background();
        reading.held();
        let mut children: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (index, process) in reading.all.iter().enumerate() {
            if let Some(parent) = process.parent {
                children.entry(parent).or_default().push(index);
            }
        }
        Processes { all: reading.all, with_parents: reading.forks, children }
    }

    /// The children of a process, in order of their starts.
    pub(crate) fn children(&self, index: usize) -> &[usize] {
        self.children.get(&index).map_or(&[], Vec::as_slice)
    }

    /// CPU time of the processes of a unit that ended in `since..=by`, ns; none if none is known.
    pub(crate) fn cpu_of_unit(&self, unit: &str, since: Ns, by: Ns) -> Option<Ns> {
        let ended = |p: &&Process<'a>| p.end.is_some_and(|end| since <= end && end <= by);
        let of = self.all.iter().filter(|p| p.unit == Some(unit)).filter(ended);
        of.filter_map(|p| p.cpu).reduce(|a, b| a.saturating_add(b))
    }

    /// As a result shows them: user space, with those that executed something.
    pub(crate) fn shown(&self) -> Vec<vmeter_model::Process> {
        let of_user = |(_, process): &(usize, &Process<'a>)| !process.images.is_empty();
        self.all.iter().enumerate().filter(of_user).map(|(index, _)| self.show(index)).collect()
    }

    fn show(&self, index: usize) -> vmeter_model::Process {
        let process = &self.all[index];
        vmeter_model::Process {
            pid: process.pid,
            parent: process.parent.map(|parent| self.all[parent].pid),
            name: self.name(index),
            arguments: process.images.last().map(|i| i.arguments.to_vec()).unwrap_or_default(),
            unit: process.unit.map(str::to_owned),
            start: process.start.at,
            end: process.end,
            status: process.status,
            cpu: process.cpu,
            waited: process.end.zip(process.waited).map(|(end, since)| end - since),
        }
    }

    /// What a process is called: `exec` and what it first executed.
    pub(crate) fn name(&self, index: usize) -> String {
        let process = &self.all[index];
        match (process.images.first(), process.parent) {
            (Some(image), parent) => {
                let parent = parent.map(|parent| &self.all[parent]);
                let service = parent.and_then(|parent| of_service(parent, image));
                format!("exec {}", service.unwrap_or_else(|| words(image)))
            }
            (None, Some(parent)) => {
                let parent = &self.all[parent];
                let image = parent.images.iter().rev().find(|i| i.at <= process.start.at);
                let of = image.map_or("a process", |i| base(i.file));
                format!("fork of {of}")
            }
            (None, None) => "fork".to_owned(),
        }
    }
}

/// What runs a service of OpenRC's, whose file is its first argument.
const OPENRC_RUN: &str = "openrc-run";
/// From the end of a stage to the start of the next, at most, ns, on a guest by TCG with a load.
const THEN_NS: Ns = 500_000_000;
/// Longest name of what is executed, characters.
const MAX_NAME: usize = 70;

/// Who run the services of a folder, each in a folder of its own that their argument names:
/// runit's, s6's and daemontools'.
const SUPERVISORS: &[&str] = &["runsv", "s6-supervise", "supervise"];

/// What a supervisor of services begins is called `./run` for each of them.
fn of_service(parent: &Process<'_>, image: &Image<'_>) -> Option<String> {
    let script = image.file.strip_prefix("./")?;
    let by = parent.images.iter().rfind(|by| by.at <= image.at)?;
    let service = by.arguments.get(1).filter(|_| SUPERVISORS.contains(&base(by.file)))?;
    Some(format!("{}/{script}", service.trim_end_matches('/')))
}

/// The last part of a path.
pub(crate) fn base(file: &str) -> &str {
    file.rsplit('/').next().unwrap_or(file)
}

/// What was executed, with its arguments: of a script the script, of a program with many
/// names (busybox) the one it was called by.
pub(crate) fn words(image: &Image<'_>) -> String {
    let Image { file, arguments, .. } = *image;
    let Some(first) = arguments.first() else { return file.to_owned() };
    let script = arguments.iter().position(|argument| argument == file).filter(|at| *at > 0);
    let many = file == "/proc/self/exe" || base(file) == "busybox";
    let (program, rest) = match script {
        Some(at) => (file, &arguments[at + 1..]),
        None if base(file) == OPENRC_RUN && arguments.len() > 1 => {
            // `--lockfd N` is of one run.
            let own = arguments.iter().position(|a| a == "--lockfd").map_or(2, |at| at + 2);
            (arguments[1].as_str(), arguments.get(own..).unwrap_or_default())
        }
        None if many => (first.as_str(), &arguments[1..]),
        None => (file, &arguments[1..]),
    };
    let text = std::iter::once(program).chain(rest.iter().map(String::as_str));
    let text = text.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(MAX_NAME) {
        Some((end, _)) => format!("{}\u{2026}", text[..end].trim_end()),
        None => text,
    }
}

/// The group of systemd itself, and of what it forks for itself.
const INIT: &str = "init.scope";

/// The unit in the path of a control group.
fn unit(path: &str) -> Option<&str> {
    let kinds = [".service", ".mount", ".swap", ".socket", ".scope"];
    let of = |part: &&str| *part != INIT && kinds.iter().any(|kind| part.ends_with(kind));
    path.rsplit('/').find(of)
}

impl<'a> Reading<'a> {
    fn read(&mut self, seen: &Seen<'a>) {
        match seen.what {
            EventKind::ProcessFork { pid, parent, thread } => {
                self.forks = true;
                let parent = self.threads.get(parent).copied();
                if *thread {
                    self.threads.extend(parent.map(|parent| (*pid, parent)));
                } else {
                    self.begin(*pid, parent, Stamp::of(seen));
                }
            }
            EventKind::ProcessArguments { pid, arguments } => {
                self.arguments.insert(*pid, arguments);
            }
            EventKind::ProcessExec { pid, file } => {
                let own = self.threads.get(pid).copied();
                let index = own.unwrap_or_else(|| self.begin(*pid, None, Stamp::of(seen)));
                let arguments = self.arguments.remove(pid).unwrap_or_default();
                self.all[index].images.push(Image { at: seen.at, file, arguments });
            }
            EventKind::ProcessGroup { pid, path } => {
                if let Some(index) = self.threads.get(pid) {
                    self.all[*index].unit = unit(path);
                    self.all[*index].joined.get_or_insert(seen.at);
                }
            }
            EventKind::ProcessWait { pid, child } => self.wait(*pid, *child, seen.at),
            EventKind::ProcessExit { pid, .. } => self.exit(*pid, seen.at),
            EventKind::ProcessReap { pid, by, status, cpu_ns, group } => {
                self.reap(*pid, *by, *cpu_ns, group);
                if let Some(index) = self.all.iter().rposition(|p| p.pid == *pid) {
                    self.all[index].status = *status;
                }
            }
            _ => {}
        }
    }

    fn begin(&mut self, pid: i32, parent: Option<usize>, start: Stamp<'a>) -> usize {
        let index = self.all.len();
        // A process begins in its parent's unit; systemd puts its own children elsewhere.
        let unit = parent.filter(|p| self.all[*p].pid != 1).and_then(|p| self.all[p].unit);
        let (images, cpu, end, joined) = (Vec::new(), None, None, None);
        let (waited, status, held) = (None, None, false);
        let process =
            Process { pid, parent, start, end, images, cpu, unit, joined, waited, held, status };
        self.all.push(process);
        self.youngest.extend(parent.map(|parent| (parent, index)));
        self.threads.insert(pid, index);
        index
    }

    fn wait(&mut self, thread: i32, child: Option<i32>, at: Ns) {
        self.waits.insert(thread, Wait { at, child });
        // Who asks for one by its number after it ended was told so, and had not waited.
        for index in self.expected.remove(&thread).unwrap_or_default() {
            if child == Some(self.all[index].pid) {
                self.all[index].waited = None;
            }
        }
    }

    /// An init that is told of ends by a signal (sysvinit's, runit's) asks who ended, and is not
    /// seen to wait. What it begins as soon as one ended had waited for that one. systemd does
    /// everything at once, and says itself what it waits for.
    fn stages_of_init(&mut self) {
        if self.all.iter().any(|process| process.unit.is_some()) {
            return;
        }
        let of_init = |process: &Process<'_>| process.parent.is_some_and(|p| self.all[p].pid == 1);
        let own: Vec<usize> = (0..self.all.len()).filter(|i| of_init(&self.all[*i])).collect();
        let starts: Vec<Ns> = own.iter().map(|index| self.all[*index].start.at).collect();
        for index in own {
            let process = &mut self.all[index];
            let Some(end) = process.end.filter(|_| process.waited.is_none()) else { continue };
            let start = process.start.at;
            let alone = !starts.iter().any(|other| start < *other && *other < end);
            let then = |other: &Ns| (end..=end.saturating_add(THEN_NS)).contains(other);
            if alone && starts.iter().any(then) {
                process.waited = Some(start);
            }
        }
    }

    /// What a shell has in its background goes on while it waits for others, and ends in a wait
    /// for one of those. After one that began later and was waited for, the parent began another,
    /// and went on to the wait in which this one ended: for the most of its life nobody waited.
    fn background(&mut self) {
        let mut families: HashMap<usize, Vec<usize>> = HashMap::new();
        for (index, process) in self.all.iter().enumerate() {
            if let Some(parent) = process.parent {
                families.entry(parent).or_default().push(index);
            }
        }
        for mut family in families.into_values() {
            family.sort_by_key(|index| self.all[*index].start.at);
            let starts: Vec<Ns> = family.iter().map(|index| self.all[*index].start.at).collect();
            // The first end of those that began later and were waited for.
            let mut first = Ns::MAX;
            for index in family.into_iter().rev() {
                let process = &mut self.all[index];
                let Some((end, since)) = process.end.zip(process.waited) else { continue };
                let began = starts.partition_point(|start| *start <= since);
                let last = began.checked_sub(1).map_or(Ns::MIN, |at| starts[at]);
                if first <= last && (end - since) < (since - process.start.at) {
                    process.waited = None;
                } else {
                    first = first.min(end);
                }
            }
        }
    }

    /// Who is still waited for at the end: what somebody forked last, and has waited for since.
    /// An init that is no script takes care of many, and waits for any of them.
    fn held(&mut self) {
        let alive = |index: usize| self.all[index].end.is_none();
        let only = |parent: usize, child: usize| {
            let own = |index: &usize| self.all[*index].parent == Some(parent) && alive(*index);
            (0..self.all.len()).filter(own).eq([child])
        };
        let held = |(parent, child): (usize, usize)| {
            let by = &self.all[parent];
            let of = &self.all[child];
            let wait = self.waits.get(&by.pid).filter(|wait| wait.at >= of.start.at)?;
            let same = wait.child.is_none_or(|child| child == of.pid);
            let script = by.images.last().is_some_and(is_script);
            let known = by.pid != 1 || script || only(parent, child);
            (alive(child) && alive(parent) && same && known).then_some((child, wait.at))
        };
        let found: Vec<(usize, Ns)> = self
            .youngest
            .iter()
            .map(|(parent, child)| (*parent, *child))
            .filter_map(held)
            .collect();
        for (child, since) in found {
            self.all[child].held = true;
            self.all[child].waited = Some(since.max(self.all[child].start.at));
        }
    }

    fn exit(&mut self, pid: i32, at: Ns) {
        let Some(index) = self.threads.get(&pid).copied() else { return };
        if self.all[index].pid != pid || self.all[index].end.is_some() {
            return;
        }
        self.all[index].end = Some(at);
        // Where no trace says who took it away, its parent's next deed tells.
        let parent = self.all[index].parent.filter(|_| !self.reaps).map(|p| self.all[p].pid);
        let Some(parent) = parent else { return };
        let wait = self.waits.get(&parent).filter(|w| w.child.is_none_or(|child| child == pid));
        if let Some(since) = wait.map(|w| w.at) {
            self.all[index].waited = Some(since.max(self.all[index].start.at));
            self.expected.entry(parent).or_default().push(index);
        }
    }

    fn reap(&mut self, pid: i32, by: i32, cpu_ns: u64, group: &'a str) {
        let Some(index) = self.threads.remove(&pid) else { return };
        let waited = self.waits.get(&by).filter(|_| by != pid).map(|w| w.at);
        let process = &mut self.all[index];
        let cpu = Ns::try_from(cpu_ns).unwrap_or(Ns::MAX);
        process.cpu = Some(process.cpu.unwrap_or(0).saturating_add(cpu));
        process.unit = process.unit.or_else(|| unit(group));
        if process.pid == pid {
            let since = waited.filter(|wait| process.end.is_some_and(|end| *wait <= end));
            process.waited = since.map(|wait| wait.max(process.start.at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image<'a>(file: &'a str, arguments: &'a [String]) -> Image<'a> {
        Image { at: 0, file, arguments }
    }

    #[test]
    fn what_is_executed_has_the_name_that_a_person_knows() {
        let own = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        for (file, arguments, name) in [
            ("/bin/mount", "mount -t proc proc /proc", "/bin/mount -t proc proc /proc"),
            ("/proc/self/exe", "sleep 0.7", "sleep 0.7"),
            ("/bin/busybox", "sleep 1", "sleep 1"),
            (
                "/sbin/openrc-run",
                "/sbin/openrc-run /etc/init.d/udev --lockfd 5 start",
                "/etc/init.d/udev start",
            ),
            (
                "/scripts/init-top/udev",
                "/bin/sh -e /scripts/init-top/udev",
                "/scripts/init-top/udev",
            ),
        ] {
            assert_eq!(words(&image(file, &own(arguments))), name);
        }
        assert_eq!(words(&image("/bin/x", &[])), "/bin/x");
    }

    #[test]
    fn a_unit_is_the_last_one_in_the_path() {
        assert_eq!(unit("/system.slice/ssh.service"), Some("ssh.service"));
        assert_eq!(unit("/system.slice/systemd-udevd.service/udev"), Some("systemd-udevd.service"));
        assert_eq!(unit("/user.slice"), None);
    }

    #[test]
    fn an_init_begins_the_next_stage_when_one_ended() {
        let fork = |pid| EventKind::ProcessFork { pid, parent: 1, thread: false };
        let exec = |pid| EventKind::ProcessExec { pid, file: "/etc/rc".into() };
        let exit = |pid| EventKind::ProcessExit { pid, comm: String::new() };
        let group = EventKind::ProcessGroup { pid: 3, path: "/system.slice/a.service".into() };
        let first = EventKind::ProcessFork { pid: 1, parent: 0, thread: false };
        let whats = [first, fork(2), exec(2), exit(2), fork(3), exec(3), exit(3), group];
        let waited = |count: usize| -> Vec<bool> {
            let seen: Vec<Seen<'_>> = whats[..count]
                .iter()
                .zip(1..)
                .map(|(what, at)| Seen { at, error: 0, source: "t", insns: None, what })
                .collect();
            Processes::of(&seen).all.iter().map(|p| p.waited.is_some()).collect()
        };
        // Nothing came of the end of the second.
        assert_eq!(waited(7), [false, true, false]);
        assert_eq!(waited(8), [false; 3], "systemd");
    }

    #[test]
    fn who_polls_does_not_wait() {
        let fork = |pid, parent| EventKind::ProcessFork { pid, parent, thread: false };
        let exit = |pid| EventKind::ProcessExit { pid, comm: String::new() };
        let wait = |pid, child| EventKind::ProcessWait { pid, child };
        let reap = |pid, by| EventKind::ProcessReap {
            pid,
            by,
            status: Some(256),
            cpu_ns: 5,
            group: String::new(),
        };
        for reaps in [true, false] {
            let mut whats = vec![fork(1, 0), fork(2, 1), wait(1, None), exit(2)];
            whats.extend(reaps.then(|| reap(2, 1)));
            // A poll: it asks before, and by number afterwards.
            whats.extend([fork(3, 1), wait(1, None), exit(3), wait(1, Some(3))]);
            whats.extend(reaps.then(|| reap(3, 1)));
            let seen: Vec<Seen<'_>> = whats
                .iter()
                .zip(1..)
                .map(|(what, at)| Seen { at, error: 0, source: "t", insns: None, what })
                .collect();
            let processes = Processes::of(&seen);
            let waited: Vec<bool> = processes.all.iter().map(|p| p.waited.is_some()).collect();
            assert_eq!(waited, [false, true, false], "reaps {reaps}");
            assert_eq!(processes.all[1].cpu, reaps.then_some(5));
            assert_eq!(processes.children(0), [1, 2]);
        }
    }
}
