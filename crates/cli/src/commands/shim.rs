//! `vmeter shim`.

use crate::output::{self, Output};
use crate::progress::Bar;
use crate::status::Status;
use anyhow::Result;
use clap::{Args, Subcommand};
use std::path::{Path, PathBuf};
use vmeter_base::shell;
use vmeter_lab::shim::{
    install, remove, status, watch, InstallOptions, Removed, Shim as Installed, Standing,
};
use vmeter_session::{Interrupt, Watch};

/// What `vmeter shim` is for.
pub const ABOUT: &str = "\
    How does a VM boot if libvirt, libguestfs or a script starts it?\n\n\
    A shim is a copy of vmeter that you put where such a program looks for its VMM. The program \
    starts the shim. The shim starts a watcher process. Then the shim replaces itself with \
    the real VMM (exec), so the VMM has the shim's pid. The watcher reads the guest's RAM from \
    outside until the guest is up, and saves a record. The watcher needs no root. It does not \
    stop the VMM, and it adds nothing to the VM.";

/// `vmeter shim`.
#[derive(Debug, Subcommand)]
pub enum Shim {
    /// Install a shim for a VMM, and print how libvirt and others use it.
    Install(Install),
    /// Check the shim, and list its records.
    Status(Place),
    /// Remove the shim. Its records stay.
    Remove(Place),
    /// Record the boot of the VMM that a shim has started. Only the shim calls this.
    #[command(hide = true)]
    Watch(Follow),
}

/// Where a shim is.
#[derive(Debug, Args)]
pub struct Place {
    /// The shim's file (default: vmeter-qemu-system-x86_64 in /usr/local/bin, or in ~/.local/bin
    /// without root).
    #[arg(long = "as", value_name = "FILE")]
    pub file: Option<PathBuf>,
}

/// `vmeter shim install`.
#[derive(Debug, Args)]
pub struct Install {
    /// The VMM that the shim executes (default: qemu-system-x86_64 in $PATH).
    #[arg(long, value_name = "FILE")]
    pub real: Option<PathBuf>,
    /// Where to put the shim (default: vmeter-NAME in /usr/local/bin, or in ~/.local/bin without
    /// root; NAME is the VMM's). If FILE exists, vmeter replaces it only if it is a vmeter shim.
    #[arg(long = "as", value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Folder for the records (default: /var/lib/vmeter, or $XDG_STATE_HOME/vmeter/shim without
    /// root). The user that runs the VMM must be able to write there.
    #[arg(long, value_name = "DIR")]
    pub records: Option<PathBuf>,
    /// Event that ends a boot: userspace, systemd-ready, or line:REGEX (a line of the guest's log
    /// matches). Default: the line in which the guest reports that it is up, or the last line
    /// before 10 s of silence.
    #[arg(long)]
    pub until: Option<String>,
    /// Record only VMs whose command line matches REGEX (default: all VMs).
    #[arg(long = "match", value_name = "REGEX")]
    pub matching: Option<String>,
}

/// `vmeter shim watch`.
#[derive(Debug, Args)]
pub struct Follow {
    /// The shim's file.
    pub file: PathBuf,
    /// The VMM's pid.
    pub pid: i32,
    /// Start time of the VMM's process, in clock ticks after the host's boot.
    pub started: u64,
}

/// Installs, shows, removes.
///
/// # Errors
/// A path at which another file exists; a missing shim; any error of the file system.
pub fn run(arguments: Shim, _: &Output) -> Result<Status> {
    match arguments {
        Shim::Install(Install { real, file, records, until, matching }) => {
            let options = InstallOptions { real, file, records, until, matching };
            say_installed(&install(&options)?)
        }
        Shim::Status(place) => say_standing(&status(place.file.as_deref())?),
        Shim::Remove(place) => say_removed(&remove(place.file.as_deref())?),
        Shim::Watch(follow) => {
            let interrupt = Interrupt::install()?;
            let mut bar = Bar::new(true);
            let mut all = Watch::new(&mut bar, &interrupt);
            watch(&follow.file, follow.pid, follow.started, &mut all).map(|()| Status::Good)
        }
    }
}

fn say_installed(shim: &Installed) -> Result<Status> {
    let Installed { file, config } = shim;
    let (shown, real) = (shell::path(file), config.real.display());
    output::line(&format!("{} starts {real} and records the boot", file.display()))?;
    output::line(&format!("records  {}", config.records.display()))?;
    output::line(
        "The program that starts your VMs must use the shim. Set this up in one of these ways:",
    )?;
    output::line(&format!("  libvirt     virsh edit VM: <emulator>{}</emulator>", file.display()))?;
    output::line(&format!("  libguestfs  export LIBGUESTFS_HV={shown}"))?;
    let folder = file.parent().unwrap_or(Path::new("/"));
    let by_path = match file.file_name() == config.real.file_name() {
        true => format!(
            "PATH={}:$PATH, in the environment of incus, LXD or a script",
            shell::path(folder)
        ),
        false => {
            format!(
                "install the shim with --as FOLDER/{}, in a folder without other programs",
                name(&config.real)
            )
        }
    };
    output::line(&format!("  by $PATH    {by_path}"))?;
    output::line(&format!("To list the shim's records, run: {}", command("status", file)))?;
    Ok(Status::Good)
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn command(what: &str, file: &Path) -> String {
    format!("vmeter shim {what} --as {}", shell::path(file))
}

fn say_standing(standing: &Standing) -> Result<Status> {
    let (file, config) = (&standing.shim.file, &standing.shim.config);
    let real = match (standing.has_real, standing.real_is_newer) {
        (false, _) => " (this file cannot be executed, so VMs do not start)",
        (true, true) => {
            " (newer than the shim: run `vmeter shim install` again, so that libvirt queries the \
                VMM's features again)"
        }
        (true, false) => "",
    };
    output::line(&format!("shim     {}", file.display()))?;
    output::line(&format!("starts   {}{real}", config.real.display()))?;
    let of = [("until", &config.until), ("match", &config.matching)];
    for (name, value) in of.iter().filter_map(|(name, value)| Some((name, value.as_ref()?))) {
        output::line(&format!("{name:<8} {value}"))?;
    }
    let written = if standing.can_record {
        ""
    } else {
        " (this user cannot write there, so VMs of this user are not recorded)"
    };
    output::line(&format!(
        "records  {} in {}{written}",
        standing.records,
        config.records.display()
    ))?;
    if let Some(newest) = &standing.newest {
        let sudo = if newest.is_readable { "" } else { "sudo " };
        output::line(&format!("newest   {sudo}vmeter show {}", shell::path(&newest.dir)))?;
    }
    if let Some(why) = &standing.why {
        let why = vmeter_render::text::neutralise(why);
        output::line(&format!("The last VM was not recorded: {why}"))?;
    }
    Ok(if standing.has_real { Status::Good } else { Status::Bad })
}

fn say_removed(removed: &Removed) -> Result<Status> {
    output::line(&format!("removed  {}", removed.file.display()))?;
    if removed.kept > 0 {
        let records = vmeter_render::quantity::plural(removed.kept as u64, "record");
        output::line(&format!("kept     {records} in {}", removed.records.display()))?;
    }
    Ok(Status::Good)
}
