//! `vmeter migrate`.

use crate::options::{word, Machine, Runs};
use crate::output;
use crate::output::Output;
use crate::progress::Bar;
use crate::status::Status;
use clap::Args;
use vmeter_lab::sweep::parameters::Parameter;
use vmeter_migrate::{migrate, MigrateOptions, Side};
use vmeter_model::sweep::Settings;
use vmeter_session::{Interrupt, Views, Watch};

/// `vmeter migrate`.
#[derive(Debug, Args)]
pub struct Migrate {
    /// Rates at which the guest writes to its working set, MB/s. vmeter measures migrations at each
    /// rate (default: 0,50,200).
    #[arg(long, value_name = "MBPS", value_delimiter = ',')]
    dirty_rate: Vec<String>,
    /// Limit of the bandwidth of the migration, MB/s; 0 means no limit (default: 134, as in QEMU).
    #[arg(long, value_name = "MBPS")]
    bandwidth: Option<String>,
    /// Longest downtime allowed, ms (default: 300, as in QEMU).
    #[arg(long, value_name = "MS")]
    downtime_limit: Option<String>,
    /// Size of the working set, the memory that the guest writes repeatedly, MiB (default: half of
    /// the guest's memory).
    #[arg(long, value_name = "MIB")]
    working_set: Option<String>,
    /// Send only the changed parts of a page (QEMU's xbzrle). MIB is the size of the cache
    /// (default: off).
    #[arg(long, value_name = "MIB", num_args = 0..=1, default_missing_value = "on")]
    xbzrle: Option<String>,
    /// Send pages on CHANNELS connections (QEMU's multifd) (default: off).
    #[arg(long, value_name = "CHANNELS")]
    multifd: Option<String>,
    /// Compress pages in THREADS threads; QEMU up to 9.0 only (default: off).
    #[arg(long, value_name = "THREADS")]
    compress: Option<String>,
    /// Slow the guest down until the migration converges (QEMU's auto-converge).
    #[arg(long)]
    auto_converge: bool,
    /// After the first round, run the guest at the destination and send the remaining pages on demand.
    #[arg(long)]
    postcopy: bool,
    /// Measure each value of a setting, e.g. bandwidth=50,100 or auto-converge=off,on. Settings are
    /// the options above, and resident (MiB that contain data), written-bytes (bytes that the guest
    /// changes in each page), multifd-compression, memory, smp, machine and pcie-root-ports.
    #[arg(short = 'L', long = "list", value_name = "NAME=A,B,…")]
    list: Vec<String>,
    /// Measure each value of a setting from A to B, both included, in steps of STEP (default: 1),
    /// e.g. dirty-rate=0..200:50.
    #[arg(short = 'P', long = "range", value_name = "NAME=A..B[:STEP]")]
    range: Vec<String>,
    /// Kill one of the two QEMUs during the migration, and report whether the guest survives
    /// (default: neither).
    #[arg(long, value_name = "SIDE", value_parser = word::<Side>())]
    kill: Option<Side>,
    /// The machine. QEMU loads vmeter's own guest in place of the firmware.
    #[command(flatten)]
    machine: Machine,
    /// How often.
    #[command(flatten)]
    runs: Runs,
    /// Command line of your own QEMU.
    #[arg(last = true, value_name = "VMM ARGS")]
    command: Vec<String>,
}

impl Migrate {
    /// The settings that are the same at every point.
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

    /// What is varied, `--dirty-rate` first.
    fn varied(&self) -> anyhow::Result<Vec<(String, Vec<String>)>> {
        let lists = self.list.iter().map(|text| Parameter::list(text));
        let ranges = self.range.iter().map(|text| Parameter::range(text));
        let rates = Some(("dirty-rate".to_owned(), self.dirty_rate.clone()));
        let mut varied: Vec<_> = rates.into_iter().filter(|(_, rates)| !rates.is_empty()).collect();
        for parameter in lists.chain(ranges) {
            let parameter = parameter?;
            varied.push((parameter.name, parameter.values));
        }
        Ok(varied)
    }
}

/// Migrates, shows and exports.
///
/// # Errors
/// As [`vmeter_migrate::migrate`]; an export that cannot be written.
pub fn run(arguments: Migrate, out: &Output) -> anyhow::Result<Status> {
    output::check_timeless(out, "migrate")?;
    let options = MigrateOptions {
        fixed: arguments.fixed(),
        varied: arguments.varied()?,
        kill: arguments.kill,
        spec: arguments.machine.spec(arguments.command),
        runs: arguments.runs.options()?,
    };
    let interrupt = Interrupt::install()?;
    let mut bar = Bar::new(out.quiet);
    let result = migrate(&options, &mut Watch::new(&mut bar, &interrupt))?;
    output::done(&result, &Views::default(), out)
}
