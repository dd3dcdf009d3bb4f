//! Those with something against those without, in words.

use super::view::{LEAST_COUNT, LEAST_SHARE};
use super::View;
use crate::evidence::features::{Difference, Feature, Split};
use crate::evidence::groups::GroupId;
use crate::moment::Sym;
use crate::result::Link;
use vmeter_render::quantity::grouped;

/// Standard errors on either side of a difference, at 95 %.
const Z: f64 = 1.96;

impl View<'_> {
    /// What makes some instances longer than others, as a link; none if nothing surely does.
    pub fn contrast(&self, file: u16, split: &Split, instances: &str) -> Option<Link> {
        let told = split.contrast(LEAST_COUNT)?;
        (self.share(told.extra.0 as u64) >= LEAST_SHARE).then(|| self.told(file, &told, instances))
    }

    fn told(&self, file: u16, told: &Difference, instances: &str) -> Link {
        let Difference { with, without, extra: (extra, error), .. } = told;
        let [low, high] = [extra - Z * error, extra + Z * error].map(|ticks| ticks.max(0.0));
        let claim = format!(
            "{} of {} {instances} {}. The mean time is {} with this, and {} without it. In all, \
                this costs about {} (95 % CI: {} to {})",
            grouped(&with.count.to_string()),
            grouped(&(with.count + without.count).to_string()),
            self.feature(told.feature),
            self.time(with.mean()),
            self.time(without.mean()),
            self.time(*extra),
            self.time(low),
            self.time(high),
        );
        let figures = [
            ("with_ticks", with.mean()),
            ("without_ticks", without.mean()),
            ("extra_ticks", *extra),
            ("extra_low_ticks", low),
            ("extra_high_ticks", high),
        ];
        self.link(file, claim, (with.count, extra.max(0.0) as u64), &figures, &[])
    }

    /// What they have, as the rest of a sentence about them.
    fn feature(&self, feature: Feature) -> String {
        match feature {
            Feature::Work(work) => format!("have kworkers run {}", self.name(work)),
            Feature::OnCpu(function) => format!("have other CPUs run {}", self.name(function)),
            Feature::Call(call) => format!("have {} in them", self.name(call)),
            Feature::Lock(kind) => format!("wait for a {} of the kernel", kind.name()),
            Feature::Timer => "wait until a timer fires".into(),
            Feature::Irq(irq) => format!("wait for interrupt {}", self.name(irq)),
        }
    }

    /// Calls of threads of a name, by what makes some of them longer.
    pub fn contrast_of_calls(&self, file: u16, who: GroupId, call: Sym) -> Option<Link> {
        let calls = self.evidence.ledger.calls.get(&(who, call))?;
        self.contrast(file, &calls.split, &format!("calls of {}", self.name(call)))
    }

    /// Activations of threads of a name, from a wake-up to the next sleep.
    pub fn contrast_of_activations(&self, file: u16, who: GroupId) -> Option<Link> {
        let groups = &self.evidence.groups;
        let mut all = Split::default();
        let own = |tid: &crate::moment::Tid| groups.group_of(*tid) == Some(who);
        for (_, thread) in self.evidence.threads.iter().filter(|(tid, _)| own(tid)) {
            all.absorb(&thread.active.split);
        }
        let instances = format!("activations of {} (wake-up to next sleep)", self.threads(who));
        self.contrast(file, &all, &instances)
    }
}
