//! `vmeter kernel`.

use crate::options::word;
use crate::output::{self, Output};
use crate::progress::bar;
use crate::Status;
use clap::Subcommand;
use indicatif::ProgressBar;
use std::path::PathBuf;
use std::time::Duration;
use vmeter_appliance::kernel::{fetch, list_in, FetchOptions};
use vmeter_appliance::kernel_build::{
    self, build, BuildOptions, Built, Config, Initcall, Step, Verdict,
};
use vmeter_render::quantity::{brief_seconds, Quantity, Unit};
use vmeter_session::cache_dir;
use vmeter_session::failure::{host, usage};
use vmeter_session::Interrupt;

/// `vmeter kernel`.
#[derive(Debug, Subcommand)]
pub enum Kernel {
    /// Download a Debian kernel package and unpack it into the cache.
    Fetch {
        /// Package name, or a .deb file.
        #[arg(default_value = "linux-image-cloud-amd64")]
        package: String,
    },
    /// List the cached kernels: built ones, then fetched ones. vmeter boots the last by default.
    List,
    /// Build a kernel from Debian's sources, out of tree. An interrupted build resumes.
    Build(Build),
}

/// `vmeter kernel build`.
#[derive(Debug, clap::Args)]
pub struct Build {
    /// The configuration.
    #[arg(long, value_name = "CONFIG", value_parser = word::<Config>())]
    config: Config,
    /// For --config custom: folder of a saved `vmeter boot` of the full kernel. The custom kernel
    /// omits the initcalls that took over 1 ms in that boot.
    #[arg(long, value_name = "DIR", required_if_eq("config", "custom"))]
    from: Option<PathBuf>,
    /// Sources: a folder, an archive or a .deb file (default: Debian's package linux-source).
    #[arg(long, value_name = "PATH")]
    source: Option<PathBuf>,
    /// Number of compilers that run at once (default: one for each CPU).
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
}

/// Fetches, lists or builds kernels.
///
/// # Errors
/// A package that cannot be had; an empty list; a build that fails.
pub fn run(arguments: Kernel, out: &Output) -> anyhow::Result<Status> {
    let cache = cache_dir()?;
    match arguments {
        Kernel::Fetch { package } => {
            let deb = package.ends_with(".deb").then(|| package.clone().into());
            let package = deb.is_none().then_some(package);
            let options = FetchOptions { package, deb, cache: Some(cache) };
            let quiet = out.quiet;
            let interrupt = Interrupt::install()?;
            let fetched = fetch(&options, &mut |step| {
                if !quiet {
                    eprintln!("{step}");
                }
            });
            let kernel = interrupt.instead(fetched.map_err(host), "nothing of it is kept")?;
            output::line(&format!("{} {}", kernel.version, kernel.vmlinuz.display()))?;
        }
        Kernel::List => {
            let built = kernel_build::list_in(&cache).into_iter().map(|(kernel, _)| kernel);
            let kernels: Vec<_> = built.chain(list_in(&cache)).collect();
            if kernels.is_empty() {
                return Err(host("no kernel is cached: vmeter kernel fetch"));
            }
            for kernel in kernels {
                output::line(&format!("{} {}", kernel.version, kernel.vmlinuz.display()))?;
            }
        }
        Kernel::Build(arguments) => built(arguments, cache, out)?,
    }
    Ok(Status::Good)
}

fn built(arguments: Build, cache: PathBuf, out: &Output) -> anyhow::Result<()> {
    let Build { config, from, source, jobs } = arguments;
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let options = BuildOptions {
        config,
        initcalls: from.as_deref().map_or_else(|| Ok(Vec::new()), initcalls)?,
        source,
        jobs: jobs.map_or(cpus, usize::from),
        cache,
    };
    let progress = bar(out.quiet, "{wide_bar} {pos}/{len} objects  {msg}");
    let interrupt = Interrupt::install()?;
    let built = build(&options, &mut |step| show(&progress, &step, out.quiet)).map_err(host);
    progress.finish_and_clear();
    say(&interrupt.instead(built, KEPT)?, out)
}

/// What there is of a build that was interrupted.
const KEPT: &str = "vmeter keeps the compiled objects; the same command resumes the build";

/// Initcalls of a saved boot, by their mean time.
fn initcalls(dir: &std::path::Path) -> anyhow::Result<Vec<Initcall>> {
    let session = vmeter_session::Session::open(dir)?;
    let boot = vmeter_lab::boot::result(&session)?;
    let found: Vec<Initcall> = boot
        .activities
        .iter()
        .filter_map(|activity| {
            let function = activity.name.strip_prefix("initcall ")?;
            let is_built_in = !function.contains(' ');
            is_built_in
                .then(|| Initcall { function: function.into(), seconds: activity.estimate.mean })
        })
        .collect();
    if found.is_empty() {
        return Err(usage(format!(
            "{}: this session has no times of initcalls; boot Debian's kernel with `vmeter boot \
                --save DIR`, and pass that DIR to --from",
            dir.display()
        )));
    }
    Ok(found)
}

fn show(bar: &ProgressBar, step: &Step, quiet: bool) {
    match step {
        Step::Begin(what) if !quiet => bar.suspend(|| eprintln!("{what}")),
        Step::Cut(verdicts) if !quiet => bar.suspend(|| {
            for verdict in verdicts {
                eprintln!("{}", row(verdict));
            }
        }),
        Step::Begin(_) | Step::Cut(_) => {}
        Step::Objects { done, of, now, seconds } => {
            bar.enable_steady_tick(Duration::from_millis(500));
            bar.set_position(*done as u64);
            match of {
                Some(of) => {
                    bar.set_length((*of).max(*done) as u64);
                    let each = seconds / (*now).max(1) as f64;
                    let left = each * of.saturating_sub(*done) as f64;
                    bar.set_message(format!("some {} left", brief_seconds(left)));
                }
                None => {
                    bar.set_length(*done as u64);
                    bar.set_message(
                        "objects compiled; the total number is not known yet".to_owned(),
                    );
                }
            }
        }
    }
}

/// An initcall that took long, and what becomes of its option.
fn row(verdict: &Verdict) -> String {
    let (took, function) = (verdict.initcall.seconds * 1e3, &verdict.initcall.function);
    let option = verdict.option.as_deref().unwrap_or("-");
    let what = if verdict.dropped { "left out" } else { verdict.why.as_str() };
    let row = format!("{took:>8.1} ms  {function:<32} {option:<24} {what}");
    vmeter_render::text::neutralise(&row).to_string()
}

fn say(built: &Built, out: &Output) -> anyhow::Result<()> {
    let Built { kernel, record, cached } = built;
    if !out.quiet {
        let size = Quantity::exact(record.image_bytes as f64, Unit::Bytes).inline();
        let took = brief_seconds(record.seconds);
        let there = if *cached { "there already: " } else { "" };
        eprintln!(
            "{there}{} of {}: {} objects in {took} ({}), {size}, {} options built in",
            record.config,
            record.source,
            record.objects,
            makes(record.attempts),
            record.options
        );
    }
    output::line(&format!("{} {}", kernel.version, kernel.vmlinuz.display()))
}

fn makes(attempts: u32) -> String {
    vmeter_render::quantity::plural(attempts.into(), "make")
}
