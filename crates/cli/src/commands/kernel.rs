//! `vmeter kernel`.

use crate::options::{seconds, word, Machine, Runs};
use crate::output::{self, Output};
use crate::progress::{bar, Bar};
use crate::status::Status;
use clap::Subcommand;
use indicatif::ProgressBar;
use std::path::PathBuf;
use std::time::Duration;
use vmeter_appliance::kernel::{fetch, list_in, FetchOptions};
use vmeter_appliance::kernel_build::{
    self, build, BuildOptions, Built, Config, Initcall, Kept, Step, Verdict, LONG_S,
};
use vmeter_lab::diet::{self, DietOptions, DietReport};
use vmeter_render::quantity::{brief_seconds, Quantity, Unit};
use vmeter_session::cache_dir;
use vmeter_session::failure::host;
use vmeter_session::{Interrupt, Watch};

/// `vmeter kernel`.
#[derive(Debug, Subcommand)]
pub enum Kernel {
    /// Download a Debian kernel package and unpack it into the cache.
    Fetch {
        /// Package name, or a .deb file.
        #[arg(default_value = "linux-image-cloud-amd64")]
        package: String,
    },
    /// List cached kernels, built ones first. By default, vmeter boots the newest fetched one.
    List,
    /// Build a kernel from Debian's sources, out of tree. Run it again to resume an interrupted build.
    Build(Build),
    /// Find which kernel options slow the boot down, and build a kernel without them.
    Diet(Box<Diet>),
}

/// `vmeter kernel diet`.
#[derive(Debug, clap::Args)]
pub struct Diet {
    /// Consider only initcalls that take at least this long, e.g. 500us or 1ms (default: 1ms).
    #[arg(long, value_name = "TIME", value_parser = time)]
    threshold: Option<f64>,
    /// Take the times of the initcalls from a saved `vmeter boot` of the full kernel (default:
    /// vmeter boots the full kernel three times).
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
    /// Show which options the diet would change, but build nothing.
    #[arg(long)]
    dry_run: bool,
    /// What is compiled, and how.
    #[command(flatten)]
    sources: Sources,
    /// The machine that must boot with the kernel.
    #[command(flatten)]
    machine: Machine,
    /// Number of boots of each kernel, the full one and the new one, in the final comparison.
    #[command(flatten)]
    runs: Runs,
}

/// A short time, s.
fn time(text: &str) -> Result<f64, String> {
    seconds(text, &[("us", 1e-6), ("ms", 1e-3), ("s", 1.0)])
        .ok_or_else(|| "expected a time such as 500us or 1ms".to_owned())
}

/// What is compiled, and how.
#[derive(Debug, clap::Args)]
pub struct Sources {
    /// Sources: a folder, an archive or a .deb file (default: Debian's package linux-source).
    #[arg(long, value_name = "PATH")]
    source: Option<PathBuf>,
    /// Number of compilers that run at once (default: one for each CPU).
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
}

impl Sources {
    fn jobs(&self) -> usize {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        self.jobs.map_or(cpus, usize::from)
    }
}

/// `vmeter kernel build`.
#[derive(Debug, clap::Args)]
pub struct Build {
    /// The configuration.
    #[arg(long, value_name = "CONFIG", value_parser = word::<Config>())]
    config: Config,
    /// For --config custom: folder of a saved `vmeter boot` of the full kernel. The custom kernel
    /// omits initcalls that took 1 ms or more in that boot.
    #[arg(long, value_name = "DIR", required_if_eq("config", "custom"))]
    from: Option<PathBuf>,
    /// What is compiled, and how.
    #[command(flatten)]
    sources: Sources,
}

/// Fetches, lists or builds kernels.
///
/// # Errors
/// A package that vmeter cannot fetch; a list without any kernel; a build that fails.
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
            let kernel = interrupt.instead(fetched.map_err(host), "vmeter kept no files")?;
            output::line(&format!("{} {}", kernel.version, kernel.vmlinuz.display()))?;
        }
        Kernel::List => {
            let built = kernel_build::list_in(&cache).into_iter().map(|(kernel, _)| kernel);
            let kernels: Vec<_> = built.chain(list_in(&cache)).collect();
            if kernels.is_empty() {
                return Err(host("no kernel is cached: run `vmeter kernel fetch`"));
            }
            for kernel in kernels {
                output::line(&format!("{} {}", kernel.version, kernel.vmlinuz.display()))?;
            }
        }
        Kernel::Build(arguments) => built(arguments, cache, out)?,
        Kernel::Diet(arguments) => return slimmed(*arguments, out),
    }
    Ok(Status::Good)
}

fn built(arguments: Build, cache: PathBuf, out: &Output) -> anyhow::Result<()> {
    let Build { config, from, sources } = arguments;
    let options = BuildOptions {
        config,
        initcalls: from.as_deref().map_or_else(|| Ok(Vec::new()), initcalls)?,
        long_s: LONG_S,
        kept: Kept::new(),
        keep_objects: false,
        jobs: sources.jobs(),
        source: sources.source,
        cache,
    };
    let progress = bar(out.quiet, OBJECTS);
    let interrupt = Interrupt::install()?;
    let built = build(&options, &mut |step| show(&progress, &step, out.quiet)).map_err(host);
    progress.finish_and_clear();
    say(&interrupt.instead(built, KEPT)?, out)
}

/// How far make is.
const OBJECTS: &str = "{wide_bar} {pos}/{len} objects  {msg}";
/// What vmeter prints when the user interrupts a build.
const KEPT: &str = "vmeter keeps the compiled objects; the same command resumes the build";

/// Initcalls of a saved boot, by their mean time.
fn initcalls(dir: &std::path::Path) -> anyhow::Result<Vec<Initcall>> {
    diet::initcalls(&vmeter_lab::boot::result(&vmeter_session::Session::open(dir)?)?)
}

/// Builds a kernel without the options of slow initcalls, but with those that the guest needs.
fn slimmed(arguments: Diet, out: &Output) -> anyhow::Result<Status> {
    output::check_timeless(out, "kernel diet")?;
    let Diet { threshold, from, dry_run, sources, machine, runs } = arguments;
    let options = DietOptions {
        spec: machine.spec(Vec::new()),
        from,
        long_s: threshold.unwrap_or(LONG_S),
        jobs: sources.jobs(),
        source: sources.source,
        dry_run,
        runs: runs.options()?,
    };
    let interrupt = Interrupt::install()?;
    let progress = bar(out.quiet, OBJECTS);
    let mut boots = Bar::new(out.quiet);
    let result = diet::diet(&options, &mut Watch::new(&mut boots, &interrupt), &mut |step| {
        // The report has them all.
        if !matches!(step, Step::Cut(_)) {
            show(&progress, &step, out.quiet);
        }
    });
    progress.finish_and_clear();
    let result = interrupt.instead(result, KEPT)?;
    let report = DietReport { result: &result };
    output::print(&report, out)?;
    output::export(out, &report)?;
    Ok(Status::Good)
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
                    bar.set_message("compiled so far; the total is not known yet".to_owned());
                }
            }
        }
    }
}

/// The line of a slow initcall: its time, its option, and `left out` or why the option stays.
fn row(verdict: &Verdict) -> String {
    let (took, function) = (verdict.initcall.seconds * 1e3, &verdict.initcall.function);
    let option = verdict.option.as_deref().unwrap_or("-");
    let what = if verdict.dropped { "left out" } else { verdict.why.as_str() };
    let row = format!("{took:>8.1} ms  {function:<32} {option:<24} {what}");
    vmeter_render::text::neutralise(&row).to_string()
}

fn say(built: &Built, out: &Output) -> anyhow::Result<()> {
    let Built { kernel, record, cached, .. } = built;
    if !out.quiet {
        let size = Quantity::exact(record.image_bytes as f64, Unit::Bytes).inline();
        let took = brief_seconds(record.seconds);
        let there = if *cached { "already built: " } else { "" };
        eprintln!(
            "{there}{} kernel from {}: {} objects; compile time {took} ({}); \
                image of {size}; {} options built in",
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
    vmeter_render::quantity::plural(attempts.into(), "make run")
}
