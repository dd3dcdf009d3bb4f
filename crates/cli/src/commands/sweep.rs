//! `vmeter sweep`.

use crate::options::{word, Machine, Many, Runs};
use crate::output;
use crate::output::Output;
use crate::progress::Bar;
use crate::status::Status;
use clap::Args;
use vmeter_lab::slurm;
use vmeter_lab::sweep::parameters::Parameter;
use vmeter_lab::sweep::{sweep, SweepOptions};
use vmeter_lab::Shown;
use vmeter_model::run::WatchLevel;
use vmeter_session::RunOptions;
use vmeter_session::{Answer, Interrupt, Views, Watch};

/// `vmeter sweep`.
#[derive(Debug, Args)]
pub struct Sweep {
    /// Measure each value of a machine option or of a {NAME} placeholder, e.g. smp=1,2,4.
    #[arg(short = 'L', long = "list", value_name = "NAME=A,B,…")]
    pub list: Vec<String>,
    /// Measure each value from A to B, both included, in steps of STEP (default: 1), e.g.
    /// pcie-root-ports=0..6 or memory=256..1024:256.
    #[arg(short = 'P', long = "range", value_name = "NAME=A..B[:STEP]")]
    pub range: Vec<String>,
    /// On how many hosts.
    #[command(flatten)]
    pub many: Many,
    /// The machine to vary. In the machine's options, {NAME} stands for the value of the
    /// parameter NAME.
    #[command(flatten)]
    pub machine: Machine,
    /// How often.
    #[command(flatten)]
    pub runs: Runs,
    /// How much of each boot to record (default: light).
    #[arg(long, value_name = "LEVEL", value_parser = word::<WatchLevel>())]
    pub watch: Option<WatchLevel>,
    /// Command line of your own VMM. vmeter replaces each {NAME} by the parameter's value.
    #[arg(last = true, value_name = "VMM ARGS")]
    pub command: Vec<String>,
}

/// Measures every point in turn, shows and exports how the costs grow.
///
/// # Errors
/// As [`vmeter_lab::sweep::sweep`]; an export that cannot be written.
pub fn run(arguments: Sweep, out: &Output) -> anyhow::Result<Status> {
    output::check_timeless(out, "sweep")?;
    let lists = arguments.list.iter().map(|text| Parameter::list(text));
    let ranges = arguments.range.iter().map(|text| Parameter::range(text));
    let options = SweepOptions {
        parameters: lists.chain(ranges).collect::<anyhow::Result<_>>()?,
        spec: arguments.machine.spec(arguments.command),
        watch: arguments.watch,
        runs: RunOptions { shard: arguments.many.shard, ..arguments.runs.options()? },
    };
    let interrupt = Interrupt::install()?;
    let mut bar = Bar::new(out.quiet);
    let answer = measure(&options, arguments.many, &mut Watch::new(&mut bar, &interrupt))?;
    output::done(answer.as_ref(), &Views::default(), out)
}

fn measure(
    options: &SweepOptions,
    many: Many,
    watch: &mut Watch<'_>,
) -> anyhow::Result<Box<dyn Answer>> {
    match (&options.runs.resume, many.on) {
        (Some(dir), _) if slurm::is_underway(dir) => {
            slurm::resume(dir, many.mixed_hosts, options.runs.trust, watch)?.answer()
        }
        (None, Some(_)) => slurm::sweep(options, &many.cluster()?, watch)?.answer(),
        _ => Ok(Box::new(Shown(sweep(options, watch)?))),
    }
}
