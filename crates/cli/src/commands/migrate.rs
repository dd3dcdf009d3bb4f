//! `vmeter migrate`.

use crate::options::{Machine, Runs};
use crate::output;
use crate::output::Output;
use crate::progress;
use crate::Status;
use clap::{Args, ValueEnum};
use std::time::Duration;
use vmeter_lab::sweep::parameters::Parameter;
use vmeter_migrate::parameters::{points, Knobs};
use vmeter_migrate::{MigrateError, Options, Side, Watcher, INTERRUPTED};
use vmeter_model::migrate::{MigrateOutcome, MigrateResult, MigrateRun};
use vmeter_model::sweep::Settings;
use vmeter_report::MigrateReport;
use vmeter_session::envelope::envelope_now;
use vmeter_session::failure::{failure, host, usage, Class};
use vmeter_session::Interrupt;

/// Measured migrations of each setting.
const RUNS: u32 = 3;
/// A migration that is not done by then is given up, s.
const TIMEOUT_S: u32 = 60;

/// `vmeter migrate`.
#[derive(Debug, Args)]
pub struct Migrate {
    /// Rates at which the guest dirties its working set, MB/s.
    #[arg(long, value_name = "MBPS", value_delimiter = ',', default_value = "0,50,200")]
    dirty_rate: Vec<String>,
    /// Limit of the bandwidth, MB/s, 0 for none (default: QEMU's own, 134).
    #[arg(long, value_name = "MBPS")]
    bandwidth: Option<String>,
    /// Longest downtime that is allowed, ms (default: QEMU's own, 300).
    #[arg(long, value_name = "MS")]
    downtime_limit: Option<String>,
    /// Memory that is dirtied in turn, for ever, MiB (default: half of the guest's).
    #[arg(long, value_name = "MIB")]
    working_set: Option<String>,
    /// Send only what changed of a page (QEMU's xbzrle): the cache's size, MiB.
    #[arg(long, value_name = "MIB", num_args = 0..=1, default_missing_value = "on")]
    xbzrle: Option<String>,
    /// Send on several connections (QEMU's multifd).
    #[arg(long, value_name = "CHANNELS")]
    multifd: Option<String>,
    /// Compress pages in so many threads (QEMU up to 9.0).
    #[arg(long, value_name = "THREADS")]
    compress: Option<String>,
    /// Throttle the guest until it converges.
    #[arg(long)]
    auto_converge: bool,
    /// After the first round run the guest at the destination; pages follow.
    #[arg(long)]
    postcopy: bool,
    /// Vary a setting over a list: bandwidth=50,100, auto-converge=off,on. Settings: the
    /// options above, resident (MiB with data), written-bytes (of each page),
    /// multifd-compression, memory, smp, machine, pcie-root-ports.
    #[arg(short = 'L', long = "list", value_name = "NAME=A,B,…")]
    list: Vec<String>,
    /// Vary it over a range, both ends included: dirty-rate=0..200:50.
    #[arg(short = 'P', long = "range", value_name = "NAME=A..B[:STEP]")]
    range: Vec<String>,
    /// Kill one side in the middle, and see what is left.
    #[arg(long, value_name = "SIDE")]
    kill: Option<Victim>,
    /// The machine; its firmware is the guest, which is vmeter's own.
    #[command(flatten)]
    machine: Machine,
    /// How often.
    #[command(flatten)]
    runs: Runs,
    /// A QEMU command line of your own.
    #[arg(last = true, value_name = "VMM ARGS")]
    command: Vec<String>,
}

/// Who dies.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Victim {
    /// Where the guest is.
    Source,
    /// Where it goes.
    Destination,
}

impl Migrate {
    /// What is set for every point.
    fn fixed(&self) -> Settings {
        let given = [
            ("bandwidth", &self.bandwidth),
            ("downtime-limit", &self.downtime_limit),
            ("working-set", &self.working_set),
            ("xbzrle", &self.xbzrle),
            ("multifd", &self.multifd),
            ("compress", &self.compress),
        ];
        let given = given.into_iter().filter_map(|(name, value)| Some((name, value.clone()?)));
        let switches = [("auto-converge", self.auto_converge), ("postcopy", self.postcopy)];
        let switches = switches.into_iter().filter(|(_, on)| *on);
        let switches = switches.map(|(name, _)| (name, "on".to_owned()));
        given.chain(switches).map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// What is varied, the dirty rate first unless it is among the lists.
    fn swept(&self) -> anyhow::Result<Vec<(String, Vec<String>)>> {
        let lists = self.list.iter().map(|text| Parameter::list(text));
        let ranges = self.range.iter().map(|text| Parameter::range(text));
        let given: Vec<Parameter> = lists.chain(ranges).collect::<anyhow::Result<_>>()?;
        let mut swept = Vec::new();
        if !given.iter().any(|parameter| parameter.name == "dirty-rate") {
            swept.push(("dirty-rate".to_owned(), self.dirty_rate.clone()));
        }
        swept.extend(given.into_iter().map(|parameter| (parameter.name, parameter.values)));
        Ok(swept)
    }
}

/// Says what is going on, on a terminal, and hears Ctrl-C.
struct News {
    bar: indicatif::ProgressBar,
    interrupt: Interrupt,
    prepare: Option<String>,
}

impl News {
    fn new(quiet: bool, interrupt: Interrupt, prepare: Option<String>) -> Self {
        let bar = progress::bar(quiet, "{prefix} {wide_bar} {pos}/{len} migrations  {msg}");
        News { bar, interrupt, prepare }
    }
}

impl Watcher for News {
    fn begin(&mut self, runs: usize) {
        self.bar.set_length(runs as u64);
    }

    fn before(&mut self, label: &str) -> Result<(), MigrateError> {
        self.bar.set_prefix(label.to_owned());
        let Some(command) = &self.prepare else { return Ok(()) };
        let status = std::process::Command::new("sh")
            .args(["-c", command])
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .status();
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(MigrateError::Usage(format!("--prepare {command:?}: {status}"))),
            Err(error) => Err(MigrateError::Host(format!("cannot run sh: {error}"))),
        }
    }

    fn done(&mut self, _: &str, run: &MigrateRun) {
        self.bar.set_message(format!("last {:.1} s", run.total_s));
        self.bar.inc(1);
    }

    fn is_interrupted(&self) -> bool {
        self.interrupt.is_raised()
    }
}

fn classified(error: MigrateError) -> anyhow::Error {
    match &error {
        MigrateError::Usage(_) | MigrateError::Machine(_) => usage(error),
        MigrateError::Interrupted => failure(Class::Interrupted, error),
        _ => host(error),
    }
}

/// Migrates, shows and exports.
///
/// # Errors
/// A question that makes no sense, and what this host can't do; an interrupted
/// measurement, once what was finished is shown.
pub fn run(arguments: Migrate, out: &Output) -> anyhow::Result<Status> {
    output::check(out)?;
    let fixed = arguments.fixed();
    let swept = arguments.swept()?;
    let kill = arguments.kill.map(|victim| match victim {
        Victim::Source => Side::Source,
        Victim::Destination => Side::Destination,
    });
    let spec = arguments.machine.spec(arguments.command);
    let timeout = Duration::from_secs(spec.timeout_s.unwrap_or(TIMEOUT_S).into());
    let runs = arguments.runs.options();
    let options = Options {
        points: points(&Knobs::new(spec), &fixed, &swept).map_err(classified)?,
        runs: runs.runs.unwrap_or(RUNS) as usize,
        warmup: runs.warmups() as usize,
        seed: runs.order(),
        timeout,
        pin: runs.pinned()?,
        kill,
        resume: runs.resume.is_some(),
        save: runs.resume.or(runs.save),
        cache: vmeter_session::cache_dir(),
    };
    let interrupt = Interrupt::install()?;
    let mut news = News::new(out.quiet, interrupt, runs.prepare);
    let mut head = envelope_now("migrate");
    let guest = "vmeter's own, in the firmware's place";
    head.provenance.insert("guest".to_owned(), guest.to_owned());
    let result = vmeter_migrate::measure(&options, head, &mut news);
    news.bar.finish_and_clear();
    let result = result.map_err(classified)?;
    let report = MigrateReport::new(&result);
    output::print(&report, out)?;
    output::export(out, &report)?;
    match result.warnings.first().filter(|text| text.starts_with(INTERRUPTED)) {
        Some(text) => Err(failure(Class::Interrupted, text)),
        None if is_bad(&result, kill) => Ok(Status::Bad),
        None => Ok(Status::Good),
    }
}

/// A migration that did not arrive, or arrived with other memory. Where a side was killed:
/// a guest that is not where it should be.
fn is_bad(result: &MigrateResult, kill: Option<Side>) -> bool {
    let as_it_should = |run: &MigrateRun| match kill {
        None => run.outcome == MigrateOutcome::Completed,
        Some(Side::Destination) => {
            run.outcome == MigrateOutcome::DestinationDied && run.source_runs_on == Some(true)
        }
        Some(Side::Source) => run.outcome == MigrateOutcome::SourceDied && !run.destination_ran,
    };
    let differs = |run: &MigrateRun| run.verification.as_ref().is_some_and(|v| !v.equal);
    result.runs.iter().any(|run| !as_it_should(run) || differs(run))
}
