//! `vmeter kernel diet`: a kernel without the options whose initcalls took long in a measured
//! boot, as far as the guest still reaches its ready point.
//!
//! Which options can go is [`vmeter_appliance::kernel_build`]'s to find. Here the guest boots each
//! kernel that was built. If it does not reach its ready point, a binary search over the changes
//! finds the one that it cannot do without; that one stays, and the rest is tried again. All
//! builds share their objects, so that a step compiles only what it changes.

mod guilty;
mod report;

pub use report::DietReport;

use crate::bench::{bench, BenchOptions};
use crate::boot::{boot, BootOptions};
use crate::phrases::outcome_text;
use anyhow::Result;
use guilty::Search;
use std::path::{Path, PathBuf};
use vmeter_appliance::kernel_build::{
    self, build, BuildOptions, Built, Config, Cut, Initcall, Kept, Step,
};
use vmeter_model::result::{BenchResult, BootResult, Envelope};
use vmeter_model::run::{Fault, Outcome};
use vmeter_model::{Identity, Kind, MachineSpec};
use vmeter_session::failure::{host, usage};
use vmeter_session::{cache_dir, envelope, RunOptions, Session, Watch};

/// Boots from which the times of initcalls are taken.
const MEASURED: u32 = 3;

/// What to put on a diet.
#[derive(Debug, Clone)]
pub struct DietOptions {
    /// The machine that has to boot.
    pub spec: MachineSpec,
    /// A saved boot of the full kernel; boots of this machine, if absent.
    pub from: Option<PathBuf>,
    /// How long an initcall takes at least that is worth a change, s.
    pub long_s: f64,
    /// Kernel sources, or Debian's if absent.
    pub source: Option<PathBuf>,
    /// Compilers at once.
    pub jobs: usize,
    /// Only say what would be changed.
    pub dry_run: bool,
    /// How the last measurement, full kernel against diet, is repeated.
    pub runs: RunOptions,
}

/// A change that was taken back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PutBack {
    /// The option.
    pub option: String,
    /// What the guest did without it, in words.
    pub why: String,
}

/// What came of it.
#[derive(Debug, Clone)]
pub struct DietResult {
    /// Head.
    pub envelope: Envelope,
    /// What is changed, and what is not.
    pub cut: Cut,
    /// `--threshold`, s.
    pub long_s: f64,
    /// What was taken back, in order.
    pub put_back: Vec<PutBack>,
    /// The kernel; none of a dry run.
    pub built: Option<Built>,
    /// Kernels that were built or taken from the cache.
    pub builds: u32,
    /// Full kernel against diet.
    pub compared: Option<BenchResult>,
    /// The boots that the initcalls were measured in.
    pub measured_in: String,
}

/// Finds what can go, builds, boots and measures.
///
/// # Errors
/// A machine that is not valid; a boot without times of initcalls; a build that fails; a guest
/// that does not boot with Debian's options built in either; an interruption.
pub fn diet(
    options: &DietOptions,
    watch: &mut Watch<'_>,
    progress: &mut dyn FnMut(Step),
) -> Result<DietResult> {
    if !options.spec.command.is_empty() {
        return Err(usage(
            "kernel diet needs a machine described by options, because it replaces the machine's \
                kernel: use --machine, --memory and so on instead of a command line after --",
        ));
    }
    if options.runs.resume.is_some() || options.runs.shard.is_some() {
        return Err(usage(
            "kernel diet has no session to resume or to split: give the same command again, and \
                vmeter reuses the finished kernels in the cache",
        ));
    }
    let full = match &options.from {
        Some(dir) => crate::boot::result(&Session::open(dir)?)?,
        None => boot_once(options, None, MEASURED, watch)?,
    };
    let mut this = Diet {
        options,
        build: BuildOptions {
            config: Config::Custom,
            initcalls: initcalls(&full)?,
            long_s: options.long_s,
            kept: Kept::new(),
            keep_objects: true,
            source: options.source.clone(),
            jobs: options.jobs,
            cache: cache_dir()?,
        },
        builds: 0,
        put_back: Vec::new(),
    };
    let mut result = DietResult {
        envelope: envelope::envelope_now("kernel diet"),
        cut: kernel_build::plan(&this.build, progress).map_err(host)?,
        long_s: options.long_s,
        put_back: Vec::new(),
        built: None,
        builds: 0,
        compared: None,
        measured_in: full.saved_in,
    };
    if options.dry_run || result.cut.changes.is_empty() {
        return Ok(result);
    }
    let built = this.bootable(&result.cut, watch, progress)?;
    let fragment = built.kernel.vmlinuz.with_file_name("fragment");
    std::fs::write(&fragment, built.cut.fragment()).map_err(host)?;
    result.compared = Some(this.compared(&built.kernel.vmlinuz, watch)?);
    result.cut = built.cut.clone();
    (result.put_back, result.builds, result.built) = (this.put_back, this.builds, Some(built));
    Ok(result)
}

/// Initcalls of a measured boot, by their mean time.
///
/// # Errors
/// Class usage: the boot has none.
pub fn initcalls(boot: &BootResult) -> Result<Vec<Initcall>> {
    let found: Vec<Initcall> = boot
        .activities
        .iter()
        .filter_map(|activity| {
            let of = Identity::of(&activity.name);
            let is_built_in = of.kind == Kind::Initcall && !of.name.contains(' ');
            is_built_in
                .then(|| Initcall { function: of.name.into(), seconds: activity.estimate.mean })
        })
        .collect();
    if found.is_empty() {
        return Err(usage(format!(
            "{}: this session has no times of initcalls; boot Debian's kernel with `vmeter boot \
                --save DIR`, and pass that DIR to --from",
            boot.saved_in
        )));
    }
    Ok(found)
}

fn boot_once(
    options: &DietOptions,
    kernel: Option<&Path>,
    runs: u32,
    watch: &mut Watch<'_>,
) -> Result<BootResult> {
    let mut spec = options.spec.clone();
    spec.kernel = kernel.map(Path::to_owned).or(spec.kernel);
    let boots = BootOptions {
        spec,
        watch: None,
        overhead: false,
        baseline: None,
        detect: None,
        concurrency: Vec::new(),
        runs: RunOptions { warmup: Some(0), runs: Some(runs), save: None, ..options.runs.clone() },
    };
    Ok(boot(&boots, watch)?.1)
}

/// The way to a kernel that boots.
struct Diet<'a> {
    options: &'a DietOptions,
    build: BuildOptions,
    builds: u32,
    put_back: Vec<PutBack>,
}

impl Diet<'_> {
    /// Takes changes back until the guest reaches its ready point.
    fn bootable(
        &mut self,
        cut: &Cut,
        watch: &mut Watch<'_>,
        progress: &mut dyn FnMut(Step),
    ) -> Result<Built> {
        let mut cut = cut.clone();
        loop {
            let changed: Vec<String> = cut.changes.iter().map(|c| c.option.clone()).collect();
            let mut search = Search::new(changed.len());
            while let Some(first) = search.next() {
                let (built, failed) = self.tried(&changed[first..], watch, progress)?;
                match failed {
                    None if first == changed.len() => return Ok(built),
                    failed => search.note(first, failed),
                }
            }
            let (guilty, why) = search.found();
            let Some(option) = guilty.map(|at| &changed[at]) else {
                return Err(host(format!(
                    "the guest does not boot even with Debian's options built in: {why}"
                )));
            };
            progress(Step::Begin(format!("{option} stays: {why}")));
            self.build.kept.insert(option.clone(), format!("without it, {why}"));
            self.put_back.push(PutBack { option: option.clone(), why });
            cut = kernel_build::plan(&self.build, progress).map_err(host)?;
        }
    }

    /// A kernel that keeps these options too, and what went wrong in its boot, if anything.
    fn tried(
        &mut self,
        kept: &[String],
        watch: &mut Watch<'_>,
        progress: &mut dyn FnMut(Step),
    ) -> Result<(Built, Option<String>)> {
        let mut options = self.build.clone();
        options.kept.extend(kept.iter().map(|option| (option.clone(), "for a test".to_owned())));
        let built = watch.interrupt.instead(
            build(&options, progress).map_err(host),
            "vmeter keeps the compiled objects; the same command resumes the build",
        )?;
        self.builds += 1;
        let booted = boot_once(self.options, Some(&built.kernel.vmlinuz), 1, watch)?;
        let failed =
            booted.runs.iter().map(|run| &run.record.outcome).find(|o| **o != Outcome::Done);
        let failed = match failed {
            Some(outcome) if outcome.fault() == Some(Fault::Guest) => outcome_text(outcome),
            Some(outcome) => {
                let what = outcome_text(outcome).unwrap_or_default();
                return Err(host(format!("the VMM failed, so the kernel is not tested: {what}")));
            }
            None => None,
        };
        Ok((built, failed))
    }

    /// The machine with both kernels.
    fn compared(&self, kernel: &Path, watch: &mut Watch<'_>) -> Result<BenchResult> {
        let full = self.options.spec.clone();
        let diet = MachineSpec { kernel: Some(kernel.to_owned()), ..full.clone() };
        let options = BenchOptions {
            machines: vec![("full".into(), full), ("diet".into(), diet)],
            detect: None,
            concurrency: Vec::new(),
            runs: self.options.runs.clone(),
        };
        Ok(bench(&options, watch)?.1)
    }
}
