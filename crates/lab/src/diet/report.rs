//! `vmeter kernel diet`: what is changed of the kernel, and what it gains.

use super::DietResult;
use crate::verdict::sentence;
use serde::Serialize;
use vmeter_appliance::kernel_build::Verdict;
use vmeter_base::shell;
use vmeter_model::result::Envelope;
use vmeter_render::document::{Block, Detail, Document, Fact, Notice, NoticeKind};
use vmeter_render::quantity::{compact_seconds, plural, Quantity, Unit};
use vmeter_render::table::{Cell, Column, Table};
use vmeter_render::{Field, Records, Report};

/// Rows on a screen.
const GLANCE: usize = 20;

/// A [`DietResult`] to be written.
#[derive(Debug)]
pub struct DietReport<'a> {
    /// The result.
    pub result: &'a DietResult,
}

#[derive(Serialize)]
struct Row<'a> {
    initcall: &'a str,
    seconds: f64,
    option: Option<&'a str>,
    changed: bool,
    why: &'a str,
}

#[derive(Serialize)]
struct Kept<'a> {
    option: &'a str,
    why: &'a str,
}

#[derive(Serialize)]
struct Body<'a> {
    threshold_s: f64,
    initcalls_s: f64,
    mapped_s: f64,
    initcalls: Vec<Row<'a>>,
    changes: Vec<String>,
    put_back: Vec<Kept<'a>>,
    builds: u32,
    kernel: Option<String>,
    ratio: Option<f64>,
    ratio_ci95: Option<[f64; 2]>,
    measured_in: &'a str,
    compared_in: Option<&'a str>,
}

impl<'a> Row<'a> {
    fn of(verdict: &'a Verdict) -> Self {
        Row {
            initcall: &verdict.initcall.function,
            seconds: verdict.initcall.seconds,
            option: verdict.option.as_deref(),
            changed: verdict.dropped,
            why: &verdict.why,
        }
    }
}

impl<'a> DietReport<'a> {
    fn long(&self) -> &'a [Verdict] {
        self.result.cut.long(self.result.long_s)
    }

    fn answer(&self) -> String {
        let changes = plural(self.result.cut.changes.len() as u64, "option");
        let compared = self.result.compared.iter().flat_map(|bench| &bench.comparisons);
        let compared: Vec<String> = compared.map(sentence).collect();
        match (&self.result.built, compared.is_empty()) {
            (Some(_), false) => {
                format!("{} The kernel diet changes {changes}.", compared.join(" "))
            }
            (Some(_), true) => format!("The guest boots a kernel with {changes} changed."),
            (None, _) if self.result.cut.changes.is_empty() => {
                "vmeter found no option to change: each initcall is short, needed, or part of \
                    every kernel."
                    .to_owned()
            }
            (None, _) => format!("vmeter would change {changes}. It built no kernel (--dry-run)."),
        }
    }

    fn facts(&self) -> Vec<Fact> {
        let (all, mapped) = self.result.cut.seconds();
        let seconds = |dropped: bool| -> f64 {
            let these = self.result.cut.verdicts.iter().filter(|v| v.dropped == dropped);
            these.map(|verdict| verdict.initcall.seconds).sum()
        };
        let mut facts = vec![
            Fact::new(
                "initcalls",
                compact_seconds(all),
                format!(
                    "{:.0} % of this time is in initcalls whose kernel option vmeter knows",
                    100.0 * mapped / all.max(f64::MIN_POSITIVE)
                ),
            ),
            Fact::new(
                "changed",
                compact_seconds(seconds(true)),
                "time of the initcalls whose kernel options vmeter changes",
            ),
        ];
        if let Some(built) = &self.result.built {
            let size = Quantity::exact(built.record.image_bytes as f64, Unit::Bytes).inline();
            let builds = plural(self.result.builds.into(), "build");
            let path = |path: &std::path::Path| shell::join(&[path.display().to_string()]);
            facts.push(Fact::new(
                "kernel",
                path(&built.kernel.vmlinuz),
                format!("{size}; {builds}"),
            ));
            let fragment = built.kernel.vmlinuz.with_file_name("fragment");
            facts.push(Fact::new("fragment", path(&fragment), "for merge_config.sh"));
        }
        facts.push(Fact::new("measured in", &self.result.measured_in, ""));
        if let Some(bench) = &self.result.compared {
            facts.push(Fact::new("compared in", &bench.saved_in, ""));
        }
        facts
    }

    fn table(&self, detail: Detail) -> Table {
        let mut table = Table::new(vec![
            Column::text("initcall", 0),
            Column::number("took", 0),
            Column::text("option", 0),
            Column { shrinks_to: Some(12), ..Column::text("what", 0) },
        ]);
        let most = if detail == Detail::Glance { GLANCE } else { usize::MAX };
        for verdict in self.long().iter().take(most) {
            let what = if verdict.dropped { "changed" } else { verdict.why.as_str() };
            table.row(vec![
                Cell::Name(verdict.initcall.function.clone()),
                Cell::Quantity(Quantity::exact(verdict.initcall.seconds, Unit::Seconds)),
                Cell::Text(verdict.option.clone().unwrap_or_else(|| "-".into())),
                Cell::Text(what.into()),
            ]);
        }
        table
    }

    fn notices(&self, detail: Detail) -> Vec<Notice> {
        let note = |text| Notice::new(NoticeKind::Note, text);
        let back = self.result.put_back.iter();
        let mut notices: Vec<Notice> = back
            .map(|back| note(format!("{} stays: without it, {}", back.option, back.why)))
            .collect();
        let more = self.long().len().saturating_sub(GLANCE);
        if detail == Detail::Glance && more > 0 {
            notices.push(note(format!(
                "`--export-markdown -` also prints the other {more} initcalls"
            )));
        }
        let is_own = |option: &str| {
            let dropped = self.result.cut.verdicts.iter().filter(|verdict| verdict.dropped);
            dropped.filter_map(|verdict| verdict.option.as_deref()).any(|own| own == option)
        };
        let changes = self.result.cut.changes.iter().map(|change| change.option.as_str());
        let above: Vec<&str> = changes.filter(|option| !is_own(option)).collect();
        if !above.is_empty() {
            let above = above.join(", ");
            notices.push(note(format!(
                "{above}: also changed, because each of them selects an \
                option that the diet changes"
            )));
        }
        notices
    }
}

impl Report for DietReport<'_> {
    fn envelope(&self) -> &Envelope {
        &self.result.envelope
    }

    fn body(&self) -> Box<dyn erased_serde::Serialize + '_> {
        let (initcalls_s, mapped_s) = self.result.cut.seconds();
        let comparison = self.result.compared.as_ref().and_then(|bench| bench.comparisons.first());
        Box::new(Body {
            threshold_s: self.result.long_s,
            initcalls_s,
            mapped_s,
            initcalls: self.result.cut.verdicts.iter().map(Row::of).collect(),
            changes: self.result.cut.changes.iter().map(|c| c.line().trim().to_owned()).collect(),
            put_back: self
                .result
                .put_back
                .iter()
                .map(|back| Kept { option: &back.option, why: &back.why })
                .collect(),
            builds: self.result.builds,
            kernel: self.result.built.as_ref().map(|b| b.kernel.vmlinuz.display().to_string()),
            ratio: comparison.map(|c| c.ratio.mean),
            ratio_ci95: comparison.map(|c| c.ratio.ci95),
            measured_in: &self.result.measured_in,
            compared_in: self.result.compared.as_ref().map(|bench| bench.saved_in.as_str()),
        })
    }

    fn document(&self, detail: Detail) -> Document {
        Document {
            title: "vmeter kernel diet".into(),
            answer: self.answer(),
            blocks: vec![
                Block::Table(self.table(detail)),
                Block::Facts(self.facts()),
                Block::Notices(self.notices(detail)),
            ],
        }
    }

    fn records(&self) -> Records {
        Records::of(
            &self.result.cut.verdicts,
            [
                ("initcall", |verdict| Field::text(&verdict.initcall.function)),
                ("seconds", |verdict| Field::number(Some(verdict.initcall.seconds))),
                ("option", |verdict| Field::text(verdict.option.as_deref().unwrap_or_default())),
                ("changed", |verdict| Field::text(if verdict.dropped { "yes" } else { "no" })),
                ("why", |verdict| Field::text(&verdict.why)),
            ],
        )
    }
}
