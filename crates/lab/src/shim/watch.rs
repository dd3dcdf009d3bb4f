//! The watcher that a shim leaves beside its VMM.

use super::{records, Shim};
use crate::boots::{BootRequest, Booter, Boots};
use crate::look::until_of;
use crate::next;
use anyhow::Result;
use std::path::{Path, PathBuf};
use std::time::Duration;
use vmeter_machine::launch::next::Executed;
use vmeter_machine::launch::shim::executed;
use vmeter_model::run::{Origin, PlannedRun, SessionMachine, SessionRecord, WatchLevel};
use vmeter_model::{MachineSpec, RunRecord};
use vmeter_record::look::name_in;
use vmeter_record::look::next::{follow_from_exec, Following};
use vmeter_record::ready::Until;
use vmeter_session::failure::{class, failure, host, Class};
use vmeter_session::{begin, execute, record, RunOptions, Watch};

/// Follows the VMM that the shim in `file` has become, and saves what there is to tell.
///
/// # Errors
/// Class host: one that can't be recorded, which is noted beside the records. Class answer: it ran no kernel.
pub fn watch(file: &Path, pid: i32, started: u64, watch: &mut Watch<'_>) -> Result<()> {
    give_way();
    let shim = Shim::of(Some(file))?;
    let Some(executed) = executed(pid, started) else { return Ok(()) };
    let recorded = save(&shim, &executed, watch);
    match &recorded {
        Ok(()) => records::note(&shim, None),
        Err(error) if matches!(class(error), Class::Answer | Class::Interrupted) => {}
        Err(error) => records::note(&shim, Some(&format!("{error:#}"))),
    }
    recorded
}

/// It shares the VMM's cgroup: where memory runs out there, it goes before the VMM. `ps` shows what it is.
fn give_way() {
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    let _ = std::fs::write("/proc/self/comm", "vmeter-shim");
}

fn save(shim: &Shim, executed: &Executed, watch: &mut Watch<'_>) -> Result<()> {
    let until = shim.config.until.as_deref().map(until_of).transpose()?;
    let argv = executed.argv.iter().map(|word| word.to_string_lossy().into_owned());
    let argv: Vec<String> = argv.collect();
    let label = name_in(&argv).map_or_else(|| shim.name(), str::to_owned);
    let spec = MachineSpec { until: shim.config.until.clone(), ..MachineSpec::default() };
    let machine = SessionMachine { label, spec, argv, ..Default::default() };
    let planned = PlannedRun { machine: 0, warmup: false, watch: WatchLevel::Light };
    let mut options = RunOptions { argv: vmeter_base::argv(), ..RunOptions::default() };
    let record = SessionRecord {
        machines: vec![machine],
        plan: vec![planned],
        ..record(next::KIND, &options)
    };
    let cache = records::cache(shim)?;
    options.save = Some(records::begin(shim, &record.started_at, executed.pid)?);
    let session = begin(record, &options, watch)?;
    let follows = Follows { executed, until, cache };
    execute(&session, &mut Boots(&follows), watch).inspect_err(|_| session.abandon())
}

struct Follows<'a> {
    executed: &'a Executed,
    until: Option<Until>,
    cache: PathBuf,
}

impl Booter for Follows<'_> {
    fn boot(&self, request: &BootRequest<'_>) -> Result<RunRecord> {
        let followed = follow_from_exec(&Following {
            executed: self.executed,
            origin: Origin::Shim,
            dir: request.dir,
            cache: &self.cache,
            label: request.machine.label.clone(),
            until: self.until.clone(),
            timeout: Duration::from_secs(next::TIMEOUT_S.into()),
            interrupted: &|| request.interrupt.is_raised(),
        });
        let followed = followed.map_err(host)?;
        match followed.has_kernel {
            true => Ok(RunRecord { index: request.index, ..followed.run }),
            false => Err(failure(Class::Answer, "the VMM ran no kernel")),
        }
    }

    fn can_repeat(&self) -> bool {
        false
    }
}
