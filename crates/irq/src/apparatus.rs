//! What runs are carried out with: VMs without devices ([`Bench`]), or devices.

use crate::anatomy;
use crate::bench::{run_once, Bench};
use crate::config::Found;
use crate::data::Data;
use crate::error::IrqError;
use crate::plan::{IrqPlanned, Purpose};
use crate::together;
use std::path::Path;

/// What is measured with: VMs, or devices.
pub(crate) trait Apparatus {
    /// What was found of the host.
    fn found(&self) -> Found;

    /// Carries out a run; files that belong to it go to `dir`.
    ///
    /// # Errors
    /// What this host can't do.
    fn carry_out(&self, planned: &IrqPlanned, dir: &Path) -> Result<Data, IrqError>;
}

impl Apparatus for Bench<'_> {
    fn found(&self) -> Found {
        let options = self.options;
        Found {
            gsi_limit: self.limit.gsis,
            free_routes: self.limit.free,
            vfs: options.vfs,
            vectors: options.vectors,
            cpus: self.placement.cpus.as_slice().to_vec(),
            strategies: options.strategies.iter().map(|s| (*s).into()).collect(),
            left_out: Vec::new(),
        }
    }

    fn carry_out(&self, planned: &IrqPlanned, dir: &Path) -> Result<Data, IrqError> {
        let options = self.options;
        let strategy = options.strategies.get(planned.strategy).copied();
        let strategy = strategy.ok_or_else(|| planned.is_unknown())?;
        let all = options.vfs * options.vectors;
        Ok(match planned.purpose {
            Purpose::Delivery => Data::Delivered(run_once(self, strategy, all, || ())?.deliver()?),
            Purpose::Round { .. } => Data::Enabled(self.sample(strategy, all)?),
            Purpose::Together { vms } => Data::Together(together::run(self, strategy, vms)?),
            Purpose::Growth { vectors } => Data::Enabled(self.sample(strategy, vectors)?),
            Purpose::Limit { vectors } => Data::Repeated(self.samples(strategy, vectors)?),
            Purpose::Trace => anatomy::record(self, strategy, dir)?,
        })
    }
}
