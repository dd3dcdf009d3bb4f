//! A VMM that a wrapper executes: watched by what it is really executed with.
//!
//! A script, a program in any language, `taskset` or `sudo` end in a VMM whose arguments nobody
//! knows before its exec. There it is stopped, and what is to be added is added to these
//! arguments. The wrapper itself is started once, as it is given, and is asked nothing.

use crate::not_recorded::{not_recorded, note};
use crate::recorder::{Context, Lives};
use crate::sources::{self, console, kvm_trace, snapshot_files};
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;
use vmeter_base::scratch::Scratch;
use vmeter_machine::argv;
use vmeter_machine::launch::Vmm;
use vmeter_machine::plan::LaunchPlan;
use vmeter_machine::vmm::{Abilities, Console};
use vmeter_model::Accel;

/// Where what a console's file holds is to go.
type Sink = Box<dyn FnMut(&[u8]) + Send>;

/// Of the attached console; of one that nobody reads while it runs, its file.
pub(crate) fn sink(lives: &Lives, output: Option<&OwnedFd>) -> Option<Sink> {
    // What is not taken is not seen on the console; the rest is.
    if let Some(input) = lives.iter().find_map(|(_, live)| live.input()) {
        return Some(Box::new(move |bytes| drop(input.push(bytes))));
    }
    let mut file = File::from(output?.try_clone().ok()?);
    Some(Box::new(move |bytes| drop(file.write_all(bytes))))
}

/// How often a console that goes to a file is looked at.
const FILE_EVERY: Duration = Duration::from_millis(1);

/// What is known of a wrapper's VMM once it is executed.
pub(crate) struct Found {
    /// What it is executed with, additions included.
    pub argv: Vec<OsString>,
    /// What of that was added.
    pub injected: Vec<String>,
    pub vmm: Abilities,
    pub accel: Option<Accel>,
    pub ends_by_reset: bool,
    /// Where its console goes, if nothing can be seen of it.
    pub elsewhere: Option<String>,
    /// True if its console goes to its standard error.
    pub on_stderr: bool,
    /// Sockets and pipes that it was given, for as long as it runs.
    _scratch: Option<Scratch>,
    follows: Option<Follows>,
}

impl Found {
    /// True if its console is read in a file.
    pub fn has_file(&self) -> bool {
        self.follows.is_some()
    }

    /// Reads a console in a file to its end, and no more after it.
    pub fn read_file(&mut self) {
        self.follows = None;
    }

    /// Attaches the sources anew that depend on the VMM, and adds what they want to its
    /// arguments. `output` is what the launch has as standard output.
    pub fn attach(
        context: &Context<'_>,
        vmm: &Vmm<'_>,
        lives: &mut Lives,
        (words, output): (&[&str], Option<&OwnedFd>),
        warnings: &mut Vec<String>,
    ) -> Self {
        let told = vmm.dialect.read(&vmm.argv);
        let abilities = context.abilities(vmm.dialect.abilities_for(&vmm.argv));
        let daemon = argv::has(&vmm.argv, "daemonize");
        // Only QEMU's options can be added to here: others want a file, or a descriptor.
        let may_inject = !context.spec.no_inject && vmm.is_own && abilities.monitor && !daemon;
        let pid = vmm.tracee.pid;
        let kernel = told.kernel.as_deref().and_then(|kernel| file_of(pid, kernel));
        let inner = Context {
            kernel: kernel.as_deref(),
            accel: told.accel.0.parse().ok(),
            vmm: abilities,
            ready: None,
            watches: Vec::new(),
            running: false,
            own_init: false,
            ..*context
        };
        let scratch = may_inject.then(Scratch::new).and_then(Result::ok);
        let mine = [Some(context.dir), Some(context.cache), scratch.as_ref().map(Scratch::path)];
        let reaches = mine.iter().flatten().all(|folder| reaches(pid, folder));
        let mut plan = LaunchPlan {
            argv: vmm.argv.clone(),
            dialect: Some(vmm.dialect),
            program: program(pid, vmm),
            by_path: scratch.as_ref().filter(|_| reaches).map(|s| s.path().to_owned()),
            only_words: !reaches,
            may_inject,
            ..LaunchPlan::default()
        };
        if may_inject && !reaches {
            warnings.push(format!(
                "the VMM (pid {pid}) runs as another user than vmeter, or in another mount \
                 namespace or chroot. vmeter therefore added only kernel parameters: no plugin, no \
                 monitor, no firmware log"
            ));
        }
        let mut elsewhere = None;
        let mut follows = None;
        let mut on_stderr = false;
        match told.console {
            Console::Unsaid(arguments) if vmm.has_console => {
                plan.inject(arguments);
            }
            Console::Elsewhere(mend) => {
                let file = argv::console_file(&vmm.argv);
                let path = file.and_then(|(file, _)| path_of(pid, file));
                let is_file = |path: &PathBuf| path.metadata().map_or(true, |m| m.is_file());
                on_stderr = path.as_ref().is_some_and(|path| is_stderr(pid, path));
                match (path.filter(is_file), sink(lives, output)) {
                    _ if on_stderr => {}
                    (Some(path), Some(sink)) => {
                        warnings.push(read_there(&path));
                        let appends = file.is_some_and(|(_, appends)| appends);
                        follows = Some(Follows::start(path, appends, sink));
                    }
                    _ => {
                        elsewhere =
                            Some(format!("vmeter does not see the console's lines: {mend}"));
                    }
                }
            }
            Console::Unsaid(_) | Console::Stdout(_) => {}
        }
        plan.inject_kernel_parameters(words);
        again(&inner, &mut plan, lives, warnings);
        if !plan.injected.is_empty() {
            if let Err(error) = vmm.replace(&plan.argv) {
                warnings.push(format!("vmeter added nothing to the VMM's arguments: {error}"));
                plan = LaunchPlan { may_inject: false, injected: Vec::new(), ..plan };
                plan.argv.clone_from(&vmm.argv);
                again(&inner, &mut plan, lives, warnings);
            }
        }
        Found {
            ends_by_reset: plan.ends_by_reset(true),
            argv: plan.argv,
            injected: plan.injected,
            vmm: abilities,
            accel: inner.accel,
            elsewhere,
            on_stderr,
            _scratch: scratch,
            follows,
        }
    }
}

/// Makes and prepares the sources that depend on the VMM.
fn again(
    context: &Context<'_>,
    plan: &mut LaunchPlan,
    lives: &mut Lives,
    warnings: &mut Vec<String>,
) {
    let mut failures: Vec<(Vec<&'static str>, String)> = Vec::new();
    for source in sources::all() {
        let name = source.name();
        let is_live = lives.iter().any(|(live, _)| *live == name);
        // These began with the launch, and know no VMM.
        let begun = name == kvm_trace::NAME || name == snapshot_files::NAME;
        if name == console::NAME || begun && is_live {
            continue;
        }
        lives.retain(|(live, _)| *live != name);
        let Some(mut live) = source.live(context) else { continue };
        match live.prepare(plan) {
            Ok(()) => lives.push((name, live)),
            Err(error) => note(&mut failures, name, &error),
        }
    }
    warnings.extend(failures.iter().map(|(names, why)| not_recorded(names, why)));
}

fn cwd(pid: i32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/cwd")).ok()
}

/// A path that a process names, where it is for vmeter.
fn path_of(pid: i32, name: &str) -> Option<PathBuf> {
    let own = name.strip_prefix("/proc/self/").or(match name {
        "/dev/stderr" => Some("fd/2"),
        "/dev/stdout" => Some("fd/1"),
        _ => None,
    });
    match own {
        Some(rest) => Some(PathBuf::from(format!("/proc/{pid}/{rest}"))),
        None => Some(cwd(pid)?.join(name)),
    }
}

/// True for a path that is a process's standard error.
fn is_stderr(pid: i32, path: &Path) -> bool {
    let target = |path: &Path| std::fs::read_link(path).ok();
    let stderr = target(Path::new(&format!("/proc/{pid}/fd/2")));
    stderr.is_some() && target(path) == stderr
}

/// A file that a process names, if it is the same file here.
fn file_of(pid: i32, name: &Path) -> Option<PathBuf> {
    let path = cwd(pid)?.join(name);
    same(pid, &path).then_some(path)
}

/// The image that can be asked what it can do: the one that runs, or the one that a dynamic
/// linker given by name runs.
fn program(pid: i32, vmm: &Vmm<'_>) -> Option<PathBuf> {
    let image = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let is_vmm = image.file_name().is_some_and(|name| vmm.dialect.is_named(name));
    let named = || vmm.argv.iter().find(|word| vmm.dialect.is_named(word)).map(PathBuf::from);
    if is_vmm {
        Some(image)
    } else {
        named()
    }
}

/// True if a path is the same file for a process as for vmeter.
fn same(pid: i32, path: &Path) -> bool {
    let inner = format!("/proc/{pid}/root{}", path.display());
    let identity = |path: &Path| path.metadata().map(|m| (m.dev(), m.ino())).ok();
    let here = identity(path);
    here.is_some() && here == identity(Path::new(&inner))
}

/// True if a process can use a folder of vmeter's.
fn reaches(pid: i32, folder: &Path) -> bool {
    let user = |pid: &str| std::fs::metadata(format!("/proc/{pid}")).map(|m| m.uid()).ok();
    let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    user(&pid.to_string()) == user("self") && same(pid, &folder)
}

/// The console in a file of a VMM that vmeter executes itself; none if it goes elsewhere.
pub(crate) fn file_console(
    plan: &LaunchPlan,
    lives: &Lives,
    warnings: &mut Vec<String>,
) -> Option<Follows> {
    let Console::Elsewhere(_) = plan.dialect?.read(&plan.argv).console else { return None };
    let (file, appends) = argv::console_file(&plan.argv)?;
    let path = std::path::absolute(file).ok().filter(|_| argv::is_same_for_all(file))?;
    let sink = sink(lives, plan.stdout.as_ref())?;
    path.metadata().map_or(true, |found| found.is_file()).then(|| {
        warnings.push(read_there(&path));
        Follows::start(path, appends, sink)
    })
}

/// That a console's lines are read in a file.
fn read_there(path: &Path) -> String {
    format!(
        "the console goes to {}: vmeter reads the lines from there, each up to {} ms late",
        path.display(),
        FILE_EVERY.as_millis()
    )
}

/// A thread that copies what grows in a file to where a console's lines are stamped.
pub(crate) struct Follows {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Follows {
    /// Of a file that the VMM is about to open: it empties it, unless it appends.
    fn start(path: PathBuf, appends: bool, mut sink: Sink) -> Self {
        let before = path.metadata().map(|m| (m.ino(), m.len(), m.mtime(), m.mtime_nsec())).ok();
        let stop = Arc::new(AtomicBool::new(false));
        let ends = stop.clone();
        let copy = move || {
            let mut at = before.filter(|_| appends).map_or(0, |(_, length, ..)| length);
            let mut is_new = before.is_none();
            loop {
                // What was written before the end is read after it.
                let last = ends.load(Ordering::Acquire);
                if let Ok(now) = path.metadata() {
                    is_new |= before != Some((now.ino(), now.len(), now.mtime(), now.mtime_nsec()));
                    if is_new && now.len() > at {
                        at += grown(&path, at, &mut sink).unwrap_or(0);
                    } else if now.len() < at {
                        at = 0;
                    }
                }
                if last {
                    return;
                }
                std::thread::sleep(FILE_EVERY);
            }
        };
        let thread = std::thread::Builder::new().name("console-file".into()).spawn(copy).ok();
        Follows { stop, thread }
    }
}

impl Drop for Follows {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn grown(path: &Path, at: u64, sink: &mut Sink) -> std::io::Result<u64> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(at))?;
    let mut bytes = Vec::new();
    file.take(1 << 20).read_to_end(&mut bytes)?;
    sink(&bytes);
    Ok(bytes.len() as u64)
}
