//! `vmeter restore`.

use crate::options::{word, Machine, Runs};
use crate::output;
use crate::output::Output;
use crate::progress::Bar;
use crate::status::Status;
use anyhow::Context;
use clap::Args;
use std::path::{Path, PathBuf};
use vmeter_lab::restore::{
    prefetch_list, read_list, restore, Cache, Method, Prefetch, RestoreOptions, RestoreResult,
};
use vmeter_lab::Shown;
use vmeter_render::Target;
use vmeter_session::failure::{failure, usage, Class};
use vmeter_session::{Interrupt, Views, Watch};

/// `vmeter restore`.
#[derive(Debug, Args)]
pub struct Restore {
    /// Command that makes the snapshot. vmeter runs it once, and replaces {image} in this command
    /// by the path of a folder for the snapshot (default: vmeter makes the snapshot itself, with
    /// QEMU, Firecracker or cloud-hypervisor only).
    #[arg(long, value_name = "CMD", requires = "restore")]
    pub create: Option<String>,
    /// Command that starts a VMM from the snapshot of --create. vmeter replaces {image} in this
    /// command by the path of the snapshot's folder (default: vmeter starts the VMM itself).
    #[arg(long, value_name = "CMD")]
    pub restore: Option<String>,
    /// Where the measurement ends: line:REGEX of the guest's console, or another point that
    /// `vmeter boot --until` accepts.
    /// A group (?<nonce>…) in REGEX matches a random number that the guest draws when it boots. If
    /// a restored guest prints another number than the guest in the snapshot, it has booted again
    /// instead of being restored, and the run fails.
    #[arg(long, value_name = "WHAT", conflicts_with = "until")]
    pub ready: Option<String>,
    /// With --create: a file of the snapshot; may be repeated (default: all files in {image}, and
    /// each file outside of {image} that the command --create wrote and whose path is in the command --restore).
    #[arg(long, value_name = "FILE", requires = "create")]
    pub image: Vec<PathBuf>,
    /// Ways to restore, separated by commas; vmeter uses them in turn (default: all that this VMM
    /// has). QEMU: loadvm, incoming, shared, mapped-ram; Firecracker: file, uffd; cloud-hypervisor:
    /// copy, on-demand.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = word::<Method>())]
    pub method: Vec<Method>,
    /// Drop the snapshot from the page cache before each restore. vmeter checks that
    /// the page cache no longer holds the snapshot (default: --warm).
    #[arg(long)]
    pub cold: bool,
    /// Read the snapshot into the page cache before each restore (this is the default). With --warm
    /// and --cold, vmeter alternates warm and cold restores.
    #[arg(long)]
    pub warm: bool,
    /// Write to FILE a list of the snapshot's pages that every restore needs (default: write no
    /// list). A restore needs a page if the VMM had mapped it by the guest's first answer. Each line has a file, an
    /// offset and a length.
    #[arg(long, value_name = "FILE")]
    pub prefetch_list: Option<PathBuf>,
    /// Before each restore, load into the page cache the pages that FILE lists; --prefetch-list
    /// writes such a file (default: load nothing).
    /// If FILE is the word `first`, vmeter loads the pages that
    /// the warm-ups mapped. vmeter alternates restores with and without this loading, and compares
    /// the measured gain with the predicted gain.
    #[arg(long, value_name = "FILE")]
    pub prefetch: Option<PathBuf>,
    /// Measure what watching costs: alternate watched and unwatched restores, at most 40 pairs
    /// (default: watch all restores).
    #[arg(long)]
    pub overhead: bool,
    /// Measure only restores, no boots (default: vmeter also boots the machine, in turn with the
    /// restores, and compares the times of restores and boots).
    #[arg(long)]
    pub no_boot: bool,
    /// Start N VMs at once, and repeat that --runs times. With N,M,… vmeter does this for each
    /// number, in random order. The report shows p50, p90 and p99 of the restore times. It also
    /// shows the mean tear-down time, and what the slowest VMs waited for (default: one VM at a
    /// time).
    #[arg(long, value_name = "N[,M…]", value_delimiter = ',')]
    pub concurrency: Vec<u32>,
    /// Show all tables (default: phases and snapshots).
    #[arg(long)]
    pub long: bool,
    /// The machine.
    #[command(flatten)]
    pub machine: Machine,
    /// How often.
    #[command(flatten)]
    pub runs: Runs,
    /// VMM command line of your own machine (default: the machine of the options).
    #[arg(last = true, value_name = "VMM ARGS")]
    pub command: Vec<String>,
}

/// Writes the list of pages of the first machine whose VMM mapped a file of the snapshot.
fn write_list(result: &RestoreResult, file: &Path) -> anyhow::Result<()> {
    let mut all = result.machines.iter();
    let mapped = all.find(|machine| machine.pages.runs > 0).ok_or_else(|| {
        failure(
            Class::Answer,
            "--prefetch-list: the VMM did not map a file of the snapshot in any restore, so there \
                are no pages to list; with QEMU, use --method shared, which maps the RAM file",
        )
    })?;
    let nonce = mapped.made.as_ref().and_then(|made| made.nonce.as_deref());
    vmeter_base::files::write_atomic(file, prefetch_list(&mapped.pages, nonce).as_bytes())
        .with_context(|| format!("cannot write {}", file.display()))
}

/// The pages to load before each restore.
fn prefetch(file: &Path) -> anyhow::Result<Prefetch> {
    if file.as_os_str() == "first" {
        return Ok(Prefetch::First);
    }
    let text = read_list(file)
        .map_err(|error| usage(format!("--prefetch: {}: {error}", file.display())))?;
    Ok(Prefetch::List(text))
}

/// Makes snapshots, restores them, shows and exports the result.
///
/// # Errors
/// As [`vmeter_lab::restore::restore`]; an export that cannot be written.
pub fn run(arguments: Restore, out: &Output) -> anyhow::Result<Status> {
    output::check(out)?;
    if let Some(file) = &arguments.prefetch_list {
        output::check_target(&Target::File(file.clone()))?;
    }
    if arguments.restore.is_some() && !arguments.command.is_empty() {
        return Err(usage(
            "--restore: with a command line after `--`, vmeter itself makes and restores the \
                snapshot; give either --restore or that command line",
        ));
    }
    let mut spec = arguments.machine.spec(arguments.command);
    spec.until = arguments.ready.or(spec.until);
    let caches = [(arguments.warm, Cache::Warm), (arguments.cold, Cache::Cold)];
    let options = RestoreOptions {
        spec,
        create: arguments.create,
        restore: arguments.restore,
        images: arguments.image,
        methods: arguments.method,
        caches: caches.into_iter().filter(|(asked, _)| *asked).map(|(_, cache)| cache).collect(),
        prefetch: arguments.prefetch.as_deref().map(prefetch).transpose()?,
        overhead: arguments.overhead,
        no_boot: arguments.no_boot,
        concurrency: arguments.concurrency,
        runs: arguments.runs.options()?,
    };
    let interrupt = Interrupt::install()?;
    let mut bar = Bar::new(out.quiet);
    let (spread, result) = restore(&options, &mut Watch::new(&mut bar, &interrupt))?;
    if let Some(file) = &arguments.prefetch_list {
        write_list(&result, file)?;
    }
    let views = Views { long: arguments.long, ..Views::default() };
    output::done(spread.shown(Shown(result)).as_ref(), &views, out)
}
