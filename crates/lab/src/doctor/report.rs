//! `vmeter doctor`: what this host can measure.

use super::json;
use vmeter_model::result::{Check, CheckName, CheckStatus, DoctorResult, Envelope};
use vmeter_render::document::{Block, Detail, Document, Fact, Notice, NoticeKind};
use vmeter_render::exported::Of;
use vmeter_render::{Field, Records, Report};

/// A [`DoctorResult`] with how much to show of it.
#[derive(Debug)]
pub struct DoctorReport<'a> {
    /// The result.
    pub result: &'a DoctorResult,
    /// `-v`: with the details.
    pub verbose: bool,
}

impl DoctorReport<'_> {
    fn fact(&self, check: &Check) -> Fact {
        let note = if self.verbose { check.detail.as_str() } else { "" };
        let value = match check.status {
            CheckStatus::Good => check.found.clone(),
            status => format!("{status}: {}", check.found),
        };
        Fact::new(shown(check.name), value, note)
    }
}

/// A check as the screen names it: the exports keep their words.
fn shown(name: CheckName) -> &'static str {
    match name {
        CheckName::Leavings => "leftovers",
        CheckName::Kernels => "cached kernels",
        name => name.word(),
    }
}

impl Report for DoctorReport<'_> {
    fn envelope(&self) -> &Envelope {
        &self.result.envelope
    }

    fn body(&self) -> Box<dyn erased_serde::Serialize + '_> {
        Box::new(json::Body::of(self.result))
    }

    fn document(&self, _detail: Detail) -> Document {
        let bad = self.result.checks.iter().filter(|c| c.status != CheckStatus::Good);
        let answer = match bad.clone().count() {
            0 => "Everything that vmeter measures can be measured here.".to_owned(),
            n => format!("{n} of {} checks need a look.", self.result.checks.len()),
        };
        let facts = self.result.checks.iter().map(|check| self.fact(check)).collect();
        let notices = bad
            .filter(|check| !check.mend.is_empty())
            .map(|c| Notice::new(NoticeKind::Note, format!("{}: {}", shown(c.name), c.mend)))
            .collect();
        Document {
            title: "vmeter doctor".into(),
            answer,
            blocks: vec![Block::Facts(facts), Block::Notices(notices)],
        }
    }

    fn records(&self) -> Records {
        Records::of(
            &self.result.checks,
            [
                ("check", |check| Field::text(check.name.word())),
                ("status", |check| Field::text(check.status.word())),
                ("found", |check| Field::text(&check.found)),
                ("mend", |check| Field::text(&check.mend)),
            ],
        )
    }
}
