//! Making the snapshot: a guest is booted to its ready point and saved, by QEMU's monitor or by the VMM's API,
//! or the user's command does all of it.

use super::image::{files_in, named_by, stored};
use super::method::{empty_qcow2, Method, DISK, NAME};
use super::proof::nonce;
use super::ready::{self, Heard};
use super::saved_machine::{by_api, wrong, Making};
use anyhow::{anyhow, Context, Result};
use regex::Regex;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};
use vmeter_base::files;
use vmeter_base::scratch::Scratch;
use vmeter_machine::snapshots::{connect, with_socket, Snapshots};
use vmeter_migrate::commands::{set, Human, Migrate, QueryMigrate};
use vmeter_migrate::{Process, Side, Vm};
use vmeter_model::time::seconds;
use vmeter_model::Ns;
use vmeter_record::clock;
use vmeter_session::failure::{failure, host, Class};
use vmeter_session::{subcommand, Interrupt, Watch};

/// Says what a snapshot is, in its folder, once it is whole.
pub(super) const MANIFEST: &str = "vmeter-image.json";
/// A migration into a file is not to be slowed down, bytes/s.
const BANDWIDTH: u64 = 1 << 40;
/// Between two questions how far it is, unless it says something itself.
const ASK: Duration = Duration::from_millis(50);
/// A file's time is that of the kernel's last tick.
const FILE_CLOCK: Duration = Duration::from_millis(20);
/// How long a VMM may take to make its API's socket, and to write all of its RAM.
const API: Duration = Duration::from_secs(60);
const SAVE: Duration = Duration::from_secs(3600);
/// How long a QEMU that was told to end may take.
const END: Duration = Duration::from_secs(20);

/// A snapshot that was made.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Made {
    /// The method's word; empty for a command of the user's.
    pub method: String,
    /// From the exec of the VMM, or of the command, until the snapshot was on disk, s.
    pub create_s: f64,
    /// Of that, from the exec until the guest was ready, s, where vmeter made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot_s: Option<f64>,
    /// Of that, writing the snapshot, s, where vmeter made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub save_s: Option<f64>,
    /// What its files take on disk, bytes.
    pub image_bytes: u64,
    /// How often its guest prints the ready line, s, where vmeter made it and the line came again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period_s: Option<f64>,
    /// The number that its guest drew when it booted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nonce: Option<String>,
    /// Its files.
    pub files: Vec<PathBuf>,
    /// Why nothing says whose its pages are, if so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unnamed: Option<String>,
}

impl Made {
    /// The snapshot that is in a folder, if it is whole.
    pub(super) fn in_folder(image: &Path) -> Option<Self> {
        let text = files::read_limited(&image.join(MANIFEST), 1 << 20).ok()?;
        let made: Made = serde_json::from_slice(&text).ok()?;
        made.files.iter().all(|file| file.is_file()).then_some(made)
    }

    /// Writes it into its folder, which is whole then.
    pub(super) fn note(&self, image: &Path) -> Result<()> {
        let path = image.join(MANIFEST);
        files::write_atomic(&path, &serde_json::to_vec_pretty(self)?)
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Boots a machine and saves it into the folder `image`.
///
/// # Errors
/// Class answer: a guest that is never ready, a VMM that does not save it. Class host: no room.
pub(super) fn by_vmm(making: &Making<'_>, image: &Path, watch: &Watch<'_>) -> Result<Made> {
    match by_api(&making.saved.machine) {
        Some(api) => by_requests(api, making, image, watch),
        None => by_monitor(making, image, watch),
    }
}

fn by_monitor(making: &Making<'_>, image: &Path, watch: &Watch<'_>) -> Result<Made> {
    let method = making.saved.method;
    if method == Method::Loadvm {
        let disk = image.join(DISK);
        std::fs::write(&disk, empty_qcow2())
            .map_err(|error| host(format!("{}: {error}", disk.display())))?;
    }
    let argv = making.saved.booted(image);
    let begun = clock::monotonic();
    let failed = |error| wrong(method, &error);
    let (mut vm, serial) = Vm::start(Side::Source, &argv, making.pin).map_err(failed)?;
    let heard = ready::wait(&mut vm.process, serial, making, watch.interrupt)?;
    let save = clock::monotonic();
    match method {
        Method::Loadvm => savevm(&mut vm)?,
        _ => migrate(&mut vm, method, image, watch)?,
    }
    let saved = clock::monotonic();
    end(&mut vm)?;
    made(making, image, &heard, [begun, save, saved])
}

fn by_requests(
    api: &dyn Snapshots,
    making: &Making<'_>,
    image: &Path,
    watch: &Watch<'_>,
) -> Result<Made> {
    let failed = |error: &dyn std::fmt::Display| wrong(making.saved.method, error);
    let folder = Scratch::new();
    let folder = folder.map_err(|error| host(format!("making a temporary folder: {error}")))?;
    let mut plan = making.saved.machine.plan();
    plan.place_config(folder.path()).map_err(host)?;
    let path = folder.path().join("api");
    let argv = with_socket(&api.with_api(&plan.argv), &path);
    let begun = clock::monotonic();
    let started = Process::start(&argv, making.pin, None);
    let (mut process, serial) = started.map_err(|error| failed(&error))?;
    let heard = ready::wait(&mut process, serial, making, watch.interrupt)?;
    let save = clock::monotonic();
    let socket = connect(&path, API, &|| watch.interrupt.is_raised());
    watch.go_on()?;
    let socket = socket.ok_or_else(|| failed(&"the VMM made no socket for its API"))?;
    for request in api.save(image) {
        watch.go_on()?;
        let sent = request.send(&socket, SAVE, &|| watch.interrupt.is_raised());
        watch.go_on()?;
        sent.map_err(|error| failed(&error))?;
    }
    let saved = clock::monotonic();
    process.kill();
    made(making, image, &heard, [begun, save, saved])
}

/// What was made, when the VMM began, when it began to save and when it had.
fn made(
    making: &Making<'_>,
    image: &Path,
    heard: &Heard,
    [begun, save, saved]: [Ns; 3],
) -> Result<Made> {
    let files = files_in(image);
    on_disk(&files)?;
    let since = |from: Ns, to: Ns| seconds(to - from);
    Ok(Made {
        method: making.saved.method.word().into(),
        // How often the line comes was listened for besides.
        create_s: since(begun, heard.at) + since(save, clock::monotonic()),
        boot_s: Some(since(begun, heard.at)),
        save_s: Some(since(save, saved)),
        image_bytes: stored(&files),
        nonce: nonce(making.until, &heard.line),
        period_s: heard.period_s,
        files,
        unnamed: None,
    })
}

fn savevm(vm: &mut Vm) -> Result<()> {
    let command_line = format!("savevm {NAME}");
    let said = vm.execute(&Human { command_line }).map_err(|e| wrong(Method::Loadvm, &e))?;
    match said.trim() {
        "" => Ok(()),
        said => Err(wrong(Method::Loadvm, &said)),
    }
}

fn migrate(vm: &mut Vm, method: Method, image: &Path, watch: &Watch<'_>) -> Result<()> {
    // It says when it is done.
    let on: Vec<(&str, bool)> =
        method.capability().into_iter().chain(["events"]).map(|name| (name, true)).collect();
    let bandwidth = Map::from_iter([("max-bandwidth".to_owned(), Value::from(BANDWIDTH))]);
    set(vm, &on, &bandwidth).map_err(|e| wrong(method, &e))?;
    vm.execute(&Migrate { uri: method.target(image) }).map_err(|e| wrong(method, &e))?;
    loop {
        watch.go_on()?;
        let info = vm.execute(&QueryMigrate {}).map_err(|e| wrong(method, &e))?;
        if info.status == "completed" {
            return Ok(());
        }
        if info.is_over() {
            let why = info.error_desc.unwrap_or(info.status);
            return Err(wrong(method, &format!("QEMU's migration into a file: {why}")));
        }
        // Only what is new is news.
        vm.qmp.announcements().map_err(|e| wrong(method, &e))?;
        vm.wait_for_news(&[], ASK);
    }
}

/// Ends the machine; what it still had to write is written then.
fn end(vm: &mut Vm) -> Result<()> {
    vm.qmp.quit().map_err(|e| anyhow!("{e}"))?;
    let deadline = Instant::now() + END;
    while vm.process.ended().is_none() && Instant::now() < deadline {
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(ASK.subsec_nanos()) };
        // An interrupted wait is only a shorter one.
        let _ = poll(&mut [PollFd::new(vm.process.pidfd(), PollFlags::IN)], Some(&timeout));
    }
    vm.process.kill();
    Ok(())
}

fn on_disk(files: &[PathBuf]) -> Result<()> {
    for path in files {
        let synced = std::fs::File::open(path).and_then(|file| file.sync_all());
        synced.map_err(|error| host(format!("{}: {error}", path.display())))?;
    }
    Ok(())
}

/// Has a command of the user's make the snapshot; `restore` names its files, if `own` does not.
///
/// # Errors
/// Class answer: a command that fails, or leaves no snapshot. Class interrupted.
pub(super) fn by_command(
    (create, restore): (&str, &[String]),
    own: &[PathBuf],
    until: Option<&Regex>,
    image: &Path,
    interrupt: &Interrupt,
) -> Result<Made> {
    let since = SystemTime::now() - FILE_CLOCK;
    let begun = clock::monotonic();
    let mut command = Command::new("sh");
    command.args(["-c", create]).stdin(Stdio::null());
    let output = subcommand::output(&mut command, interrupt).map_err(host)?;
    let Some(output) = output else { return Err(failure(Class::Interrupted, "interrupted")) };
    let bad = |why: String| Err(failure(Class::Answer, format!("--create: {why}")));
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.trim().lines().next_back().unwrap_or_default().to_owned();
        return bad(format!("{} of `{create}`: {said}", output.status));
    }
    let mut found = own.to_vec();
    if own.is_empty() {
        found = files_in(image);
        found.extend(named_by(restore, since));
        found.sort();
        found.dedup();
    }
    if let Some(missing) = found.iter().find(|file| !file.is_file()) {
        return bad(format!(
            "{}: --image names this file, but it does not exist",
            missing.display()
        ));
    }
    if found.is_empty() {
        return bad(
            "the command wrote no file in the folder {image}, and no file that --restore names: \
             give each file of the snapshot with --image FILE"
                .into(),
        );
    }
    let said = String::from_utf8_lossy(&output.stdout);
    let drawn = until.and_then(|until| said.lines().rev().find_map(|line| nonce(until, line)));
    on_disk(&found)?;
    let made = Made {
        create_s: seconds(clock::monotonic() - begun),
        image_bytes: stored(&found),
        nonce: drawn,
        files: found,
        ..Made::default()
    };
    Ok(made)
}
