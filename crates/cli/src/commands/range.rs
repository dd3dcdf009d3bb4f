//! `vmeter range`.

use crate::options::{ruled, word, FailIfSlower, Machine, Many, Runs, SavedGate};
use crate::output;
use crate::output::Output;
use crate::progress::Bar;
use crate::status::Status;
use clap::Args;
use std::path::PathBuf;
use vmeter_lab::range::gate::gates;
use vmeter_lab::range::{range, RangeOptions};
use vmeter_lab::slurm;
use vmeter_lab::Shown;
use vmeter_model::range as model;
use vmeter_model::run::WatchLevel;
use vmeter_session::RunOptions;
use vmeter_session::{Interrupt, Session, Views, Watch};

/// `vmeter range`.
#[derive(Debug, Args)]
pub struct Range {
    /// The commits to measure: A, and all later commits up to B along first parents.
    #[arg(value_name = "A..B", required_unless_present = "resume")]
    pub range: Option<String>,
    /// The git repository. vmeter only reads it.
    #[arg(long, value_name = "DIR", required_unless_present = "resume")]
    pub repo: Option<PathBuf>,
    /// Shell command that builds a commit. vmeter runs it in a separate checkout (default: build
    /// nothing).
    #[arg(long, value_name = "CMD")]
    pub build: Option<String>,
    /// Shell command to measure instead of a boot. vmeter runs it in the commit's checkout
    /// (default: boot a machine).
    #[arg(long, value_name = "CMD")]
    pub run: Option<String>,
    /// Search for the first commit that changed the time, instead of measuring every commit.
    #[arg(long)]
    pub bisect: bool,
    /// The metric to compare (default: wall).
    #[arg(long, value_parser = word::<model::Metric>())]
    pub metric: Option<model::Metric>,
    /// With --bisect: stop when one of the commits has at least probability P of being the one that
    /// made the change (default: 0.97).
    #[arg(long, value_name = "P")]
    pub confidence: Option<f64>,
    /// With --bisect: stop without a verdict after N runs (default: 500).
    #[arg(long, value_name = "N")]
    pub max_boots: Option<usize>,
    /// With --bisect: vmeter runs the first and the last commit at least N times each before it may
    /// conclude that nothing changed (default: 30).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(4..=100_000))]
    pub end_runs: Option<u32>,
    /// Number of builds of each commit (default: 1). Several builds separate the effect of memory
    /// layout from the effect of the commit. Each build has its own checkout path. The build
    /// command finds the build's number in the variable VMETER_BUILD (1, 2, …).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=9))]
    pub builds: Option<u32>,
    /// With --bisect: boot the range's first commit just before or just after each sample. These
    /// boots correct for changes of the host's speed. The option doubles the number of boots.
    #[arg(long, requires = "bisect")]
    pub reference: bool,
    /// Run each commit often enough to detect a change of PCT percent. With --bisect:
    /// smallest change to search for.
    #[arg(long, value_name = "PCT", conflicts_with = "runs", value_parser = crate::options::positive)]
    pub detect: Option<f64>,
    /// Skip the extra runs that locate each change and estimate its size.
    #[arg(long, conflicts_with = "bisect")]
    pub no_place: bool,
    /// Before each build, remove files from the checkout that are not in the commit.
    #[arg(long)]
    pub clean: bool,
    /// The gate, which fails if a change makes the runs too slow.
    #[command(flatten)]
    pub gate: FailIfSlower,
    /// The machine. In the machine's options, {worktree} is the folder of the commit's checkout, as
    /// in --kernel {worktree}/bzImage.
    #[command(flatten)]
    pub machine: Machine,
    /// How often.
    #[command(flatten)]
    pub runs: Runs,
    /// Where.
    #[command(flatten)]
    pub many: Many,
    /// How much of each boot to record (default: light; with --run, none).
    #[arg(long, value_name = "LEVEL", value_parser = word::<WatchLevel>())]
    pub watch: Option<WatchLevel>,
    /// Command line of your own VMM. vmeter replaces {worktree} by the commit's checkout.
    #[arg(last = true, value_name = "VMM ARGS")]
    pub command: Vec<String>,
}

/// Measures or searches a range, then shows and exports the result.
///
/// # Errors
/// As [`vmeter_lab::range::range`]; an export that cannot be written.
pub fn run(arguments: Range, out: &Output) -> anyhow::Result<Status> {
    output::check_timeless(out, "range")?;
    let options = RangeOptions {
        repo: arguments.repo,
        range: arguments.range,
        build: arguments.build,
        run: arguments.run,
        spec: arguments.machine.spec(arguments.command),
        bisect: arguments.bisect,
        clean: arguments.clean,
        metric: arguments.metric,
        confidence: arguments.confidence,
        max_boots: arguments.max_boots,
        end_runs: arguments.end_runs.map(|n| n as usize),
        builds: arguments.builds,
        reference: arguments.reference,
        detect: arguments.detect,
        no_place: arguments.no_place,
        watch: arguments.watch,
        runs: RunOptions {
            shard: arguments.many.shard,
            gate: arguments.gate.kept(None),
            ..arguments.runs.options()?
        },
    };
    let interrupt = Interrupt::install()?;
    let mut bar = Bar::new(out.quiet);
    let result = measure(&options, arguments.many, &mut Watch::new(&mut bar, &interrupt))?;
    let limit = SavedGate::of(options.runs.resume.as_deref()).limit(arguments.gate);
    let gates = limit.map_or_else(Vec::new, |limit| gates(&result, &limit));
    let status = output::done(&Shown(result), &Views::default(), out)?;
    Ok(ruled(status, &gates))
}

fn measure(
    options: &RangeOptions,
    many: Many,
    watch: &mut Watch<'_>,
) -> anyhow::Result<model::RangeResult> {
    let merged = match (&options.runs.resume, many.on) {
        (Some(dir), _) if slurm::is_underway(dir) => {
            slurm::resume(dir, many.mixed_hosts, options.runs.trust, watch)?
        }
        (None, Some(_)) => slurm::range(options, &many.cluster()?, watch)?,
        _ => return range(options, watch),
    };
    vmeter_lab::range::result(&Session::open(&merged.session.dir)?)
}
