//! Making the snapshot: a guest of QEMU's is booted to its ready point and saved, or the user's command
//! does all of it.

use super::image::{files_in, named_by, stored};
use super::method::{empty_qcow2, Method, DISK, NAME};
use super::proof::nonce;
use super::ready;
use super::saved_machine::{wrong, OfQemu};
use anyhow::{anyhow, Context, Result};
use regex::Regex;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};
use vmeter_base::files;
use vmeter_migrate::commands::{set, Human, Migrate, QueryMigrate};
use vmeter_migrate::{Side, Vm};
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
/// Class answer: a guest that is never ready, a QEMU that does not save it. Class host: no room.
pub(super) fn by_qemu(asked: &OfQemu<'_>, image: &Path, watch: &Watch<'_>) -> Result<Made> {
    let method = asked.method;
    if method == Method::Loadvm {
        let disk = image.join(DISK);
        std::fs::write(&disk, empty_qcow2())
            .map_err(|error| host(format!("{}: {error}", disk.display())))?;
    }
    let argv = method.saved(asked.argv, image, asked.memory_mib);
    let begun = clock::read().monotonic_ns;
    let failed = |error| wrong(method, &error);
    let (mut vm, serial) = Vm::start(Side::Source, &argv, asked.pin).map_err(failed)?;
    let heard = ready::wait(&mut vm, serial, asked, watch.interrupt)?;
    let save = clock::read().monotonic_ns;
    match method {
        Method::Loadvm => savevm(&mut vm)?,
        _ => migrate(&mut vm, method, image, watch)?,
    }
    let saved = clock::read().monotonic_ns;
    end(&mut vm)?;
    let files = files_in(image);
    on_disk(&files)?;
    let since = |from: Ns, to: Ns| seconds(to - from);
    let made = Made {
        method: method.word().into(),
        // How often the line comes was listened for besides.
        create_s: since(begun, heard.at) + since(save, clock::read().monotonic_ns),
        boot_s: Some(since(begun, heard.at)),
        save_s: Some(since(save, saved)),
        image_bytes: stored(&files),
        nonce: nonce(asked.until, &heard.line),
        period_s: heard.period_s,
        files,
        unnamed: None,
    };
    Ok(made)
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
    while vm.ended().is_none() && Instant::now() < deadline {
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(ASK.subsec_nanos()) };
        // An interrupted wait is only a shorter one.
        let _ = poll(&mut [PollFd::new(vm.pidfd(), PollFlags::IN)], Some(&timeout));
    }
    vm.kill();
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
    let begun = clock::read().monotonic_ns;
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
            "the command made no file that --restore names, and no file in {image}: name the \
             snapshot's files with --image FILE"
                .into(),
        );
    }
    let said = String::from_utf8_lossy(&output.stdout);
    let drawn = until.and_then(|until| said.lines().rev().find_map(|line| nonce(until, line)));
    on_disk(&found)?;
    let made = Made {
        create_s: seconds(clock::read().monotonic_ns - begun),
        image_bytes: stored(&found),
        nonce: drawn,
        files: found,
        ..Made::default()
    };
    Ok(made)
}
