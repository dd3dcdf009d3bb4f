//! `vmeter irq`.

use crate::options::{listed, word, Runs};
use crate::output;
use crate::output::Output;
use crate::progress::Bar;
use crate::status::Status;
use clap::Args;
use serde::Serialize;
use serde_json::Value;
use vmeter_irq::vfio::{Address, VfioOptions, VfioStrategy};
use vmeter_irq::{measure, Config, FitRange, IrqOptions, Options, Strategy};
use vmeter_session::failure::usage;
use vmeter_session::{Interrupt, Views, Watch};

/// `vmeter irq`. Its serialised form has the options that the user gave, under the names that the
/// fields of [`Config`] have on disk.
#[derive(Debug, Args, Serialize)]
#[command(mut_arg("pin", |arg| arg.help(PIN)), mut_arg("runs", |arg| arg.help(RUNS)))]
pub struct Irq {
    /// Number of devices (virtual functions, VFs) (default: 8).
    #[arg(long, value_name = "N", conflicts_with = "vfio")]
    vfs: Option<usize>,
    /// MSI-X vectors of each device (default: 65; with --vfio, all vectors of the device).
    #[arg(long, value_name = "N")]
    vectors: Option<usize>,
    /// Number of vCPUs that the vectors are distributed over (default: 8).
    #[arg(long, value_name = "N")]
    vcpus: Option<usize>,
    /// Number of host threads that keep the host's CPUs busy during the measurement (default: 0).
    #[arg(long, value_name = "N", value_parser = at_most(1024))]
    busy_cpus: Option<usize>,
    /// Number of vCPUs that run guest code during the measurement (default: 0).
    #[arg(long, value_name = "N")]
    running_vcpus: Option<usize>,
    /// Strategies to compare, or all. Without --vfio: per_vector, per_device, per_vm, reserved,
    /// reserved_per_vm (default: the first four). With --vfio: growing, adding, at_once,
    /// vm_per_vector, vm_per_device, vm_per_vm (default: all).
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    strategy: Vec<String>,
    /// Measure how the set-up time grows with the number of vectors. RANGE says how far: one of
    /// the words below (default: limit).
    #[arg(long, value_name = "RANGE", conflicts_with = "vfio", value_parser = word::<FitRange>())]
    fit: Option<FitRange>,
    /// Skip the traced runs, which show where the time of a commit goes.
    #[arg(long, conflicts_with = "vfio")]
    no_trace: bool,
    /// For each N in LIST, e.g. 1,8,32, also set up the vectors of N VMs at once, and show p50 and
    /// p99 of the VMs' set-up times (default: none).
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with = "vfio")]
    vms: Vec<usize>,
    /// PCI addresses of real devices that are bound to vfio-pci (default: none; vmeter then sets
    /// up the vectors of devices that exist only as GSI routes).
    #[arg(long, value_name = "BDF", num_args = 1.., value_delimiter = ',')]
    vfio: Vec<String>,
    /// How often.
    #[command(flatten)]
    #[serde(skip)]
    runs: Runs,
}

const PIN: &str = "CPUs of the thread that commits routes, e.g. 1,4-7 (default: all except the \
    boot CPU, which runs the callback of the SRCU grace period)";
const RUNS: &str = "Measured runs of each strategy (default: 10, or 3 if --vfio is given)";

/// A number up to `most`.
fn at_most(most: u64) -> impl clap::builder::TypedValueParser<Value = usize> {
    use clap::builder::TypedValueParser;
    clap::value_parser!(u64).range(0..=most).map(|n| n as usize)
}

/// Measures, shows and exports.
///
/// # Errors
/// As [`measure`]; an export that cannot be written.
pub fn run(arguments: Irq, out: &Output) -> anyhow::Result<Status> {
    output::check_timeless(out, "irq")?;
    let asked = arguments.asked()?;
    let given = arguments.given(&asked)?;
    let options = IrqOptions { asked, given, runs: arguments.runs.options()? };
    let interrupt = Interrupt::install()?;
    let mut bar = Bar::new(out.quiet);
    let result = measure(&options, &mut Watch::new(&mut bar, &interrupt))?;
    output::done(&result, &Views::default(), out)
}

impl Irq {
    fn asked(&self) -> anyhow::Result<Config> {
        let vcpus = self.vcpus.unwrap_or(8);
        let busy_cpus = self.busy_cpus.unwrap_or(0);
        let running_vcpus = self.running_vcpus.unwrap_or(0);
        let runs = |default| self.runs.runs.unwrap_or(default) as usize;
        let warmup = self.runs.warmup.unwrap_or(1) as usize;
        if self.vfio.is_empty() {
            return Ok(Config::Vm(Options {
                vfs: self.vfs.unwrap_or(8),
                vectors: self.vectors.unwrap_or(65),
                vcpus,
                busy_cpus,
                running_vcpus,
                strategies: listed("--strategy", &self.strategy, &Strategy::ALL)?
                    .unwrap_or_else(|| Strategy::ALL[..4].to_vec()),
                runs: runs(10),
                warmup,
                fit: self.fit.unwrap_or_default(),
                no_trace: self.no_trace,
                vms: self.vms.clone(),
            }));
        }
        let devices = self.vfio.iter().map(|text| Address::parse(text));
        Ok(Config::Vfio(VfioOptions {
            devices: devices.collect::<Result<Vec<_>, _>>().map_err(usage)?,
            vectors: self.vectors,
            vcpus,
            busy_cpus,
            running_vcpus,
            strategies: listed("--strategy", &self.strategy, VfioStrategy::ALL)?
                .unwrap_or_default(),
            runs: runs(3),
            warmup,
        }))
    }

    /// The fields of `asked` whose options the user gave.
    fn given(&self, asked: &Config) -> anyhow::Result<Value> {
        let typed = serde_json::to_value((self, self.runs.runs, self.runs.warmup))?;
        let mut resolved = serde_json::to_value(asked)?;
        if let Some(fields) = resolved.as_object_mut() {
            fields.retain(|name, _| match name.as_str() {
                "runs" => !is_absent(&typed[1]),
                "warmup" => !is_absent(&typed[2]),
                _ => !is_absent(&typed[0][name]),
            });
        }
        Ok(resolved)
    }
}

fn is_absent(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(values) => values.is_empty(),
        Value::Bool(true) | Value::Number(_) | Value::String(_) | Value::Object(_) => false,
    }
}
