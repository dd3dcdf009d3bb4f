//! The end of a migration: is the guest there, what were the figures, is it the same?

use crate::data::{MigrateOutcome, Migration};
use crate::error::MigrateError;
use crate::figures;
use crate::run::{Ended, Pair, BEFORE, SOON};
use crate::side::Side;
use crate::verify::verify;
use vmeter_model::time::seconds;
use vmeter_model::Ns;

/// How long it is heard after it was migrated.
const AFTER: Ns = 200_000_000;
/// Heartbeats that show that a guest runs.
const ALIVE: usize = 20;

impl Pair<'_> {
    /// Hears the guest on, makes figures, compares memories.
    pub(crate) fn finish(mut self, mut ended: Ended) -> Result<Migration, MigrateError> {
        if ended.outcome == MigrateOutcome::Completed
            && !self.goes_on(Side::Destination, self.start)
        {
            ended.outcome = MigrateOutcome::Failed;
            ended.reason = self.not_heard();
        }
        if (self.task.interrupted)() {
            return Err(MigrateError::Interrupted);
        }
        let completed = ended.outcome == MigrateOutcome::Completed;
        let source_runs_on = (!completed).then(|| {
            let running = self.source.qmp.status().is_ok_and(|status| status == "running");
            running && self.goes_on(Side::Source, ended.at)
        });
        if completed {
            self.take_resume();
        }
        let mut run = self.figures(&ended);
        run.source_runs_on = source_runs_on;
        if completed {
            let Self { source, destination, heart, task, .. } = &mut self;
            match verify(source, destination, heart, || (task.interrupted)()) {
                Ok(verification) => run.verification = Some(verification),
                Err(_) if (task.interrupted)() => return Err(MigrateError::Interrupted),
                Err(error) => run.reason = format!("the memories were not compared: {error}"),
            }
        }
        Ok(run)
    }

    /// Why a guest that has arrived is not heard.
    fn not_heard(&mut self) -> String {
        let what = "QEMU reports that the migration completed, but the guest at the destination \
            sends no heartbeat";
        match self.destination.process.ended() {
            Some(status) => {
                format!("{what}: its QEMU ended ({status}){}", self.destination.process.said())
            }
            None => format!("{what} within {} s", SOON.as_secs()),
        }
    }

    /// Whether the guest is heard at a side for a while after `from`.
    fn goes_on(&mut self, side: Side, from: Ns) -> bool {
        let Self { source, destination, heart, task, .. } = self;
        let vm = if side == Side::Source { source } else { destination };
        let gone = || vm.process.ended().is_some() || (task.interrupted)();
        let heard = heart.wait(SOON, gone, |heard| {
            let beats = figures::between(heard.of(side), from, Ns::MAX);
            let length = beats.last()?.at - beats.first()?.at;
            (beats.len() >= ALIVE && length >= AFTER).then_some(())
        });
        heard.is_some()
    }

    fn take_resume(&mut self) {
        let said = self.destination.qmp.announcements().unwrap_or_default();
        let resume = said.iter().find(|said| said.name == "RESUME");
        self.resumed = resume.map(|said| said.realtime_ns - self.realtime_offset);
    }

    fn figures(&mut self, ended: &Ended) -> Migration {
        let start = self.start;
        let completed = ended.outcome == MigrateOutcome::Completed;
        let ms = |ms: u64| ms as f64 / 1e3;
        let total_s = if completed { ms(self.info.total_time) } else { seconds(ended.at - start) };
        let end = start + (total_s * 1e9) as Ns;
        let mut run = Migration::empty(ended.outcome, ended.reason.clone());
        let tsc_hz = self.task.tsc_hz;
        self.heart.look(|heard| {
            let (source, destination) = (heard.of(Side::Source), heard.of(Side::Destination));
            let before = figures::between(source, start - BEFORE, start);
            let during = figures::between(source, start, end);
            run.dirty_pages_per_s_before = figures::dirty_rate(before).unwrap_or(0.0);
            run.dirty_pages_per_s = figures::dirty_rate(during).unwrap_or(0.0);
            run.longest_gap_before_s = figures::stalls(during).0;
            run.destination_ran = !destination.is_empty();
            if completed {
                let gap = figures::gap(source, destination, tsc_hz);
                run.guest_gap_s = gap.map(|gap| gap.host_s);
                run.guest_clock_gap_s = gap.map(|gap| gap.guest_s);
                (run.longest_gap_after_s, run.lost_after_s) = figures::stalls(destination);
            }
            let last = self.info.ram.downtime_bytes;
            let span = (start, end);
            run.rounds = figures::rounds(&self.passes, &self.samples, source, span, last);
        });
        run.total_s = total_s;
        run.setup_s = ms(self.info.setup_time);
        run.downtime_s = completed.then(|| ms(self.info.downtime));
        run.stopped_s = self.stopped.zip(self.resumed).map(|(stop, resume)| seconds(resume - stop));
        // A migration that was given up has no figures any more.
        let sent = self.samples.iter().map(|sample| sample.transferred_bytes);
        run.transferred_bytes = sent.max().unwrap_or(0).max(self.info.ram.transferred);
        // While the guest stands still the limit is lifted.
        let sending = total_s - run.setup_s - run.downtime_s.unwrap_or(0.0);
        let sent = run.transferred_bytes.saturating_sub(self.info.ram.downtime_bytes);
        if sending > 0.0 {
            run.bandwidth_bytes_per_s = sent as f64 / sending;
        }
        let throttles = self.samples.iter().map(|sample| sample.throttle_percent);
        run.throttle_percent = throttles.max().unwrap_or(0);
        run.samples = figures::thinned(std::mem::take(&mut self.samples));
        run
    }
}
