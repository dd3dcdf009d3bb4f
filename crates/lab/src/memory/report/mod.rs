//! `vmeter memory` as a document.

mod json;

use super::moments::Stage;
use super::result::{MachineMemory, MemoryResult, Moment, Sample, VmmFigures};
use vmeter_base::shell;
use vmeter_model::result::Envelope;
use vmeter_model::ResolvedOption;
use vmeter_record::sources::vmm_memory::Part;
use vmeter_render::document::{closing_notices, Block, Detail, Document, Fact};
use vmeter_render::exported::Of;
use vmeter_render::quantity::{Quantity, Unit};
use vmeter_render::table::{Cell, Column, Table};
use vmeter_render::{Field, Records, Report};

/// A [`MemoryResult`] to be written.
#[derive(Debug)]
pub struct MemoryReport<'a> {
    result: &'a MemoryResult,
}

impl<'a> MemoryReport<'a> {
    /// The result.
    pub fn new(result: &'a MemoryResult) -> Self {
        MemoryReport { result }
    }

    /// One sentence a machine, of its last moment.
    fn answer(&self) -> String {
        let sentences = self.result.machines.iter().map(|machine| {
            let Some((moment, sample)) = machine.last().and_then(|m| Some((m, m.middle()?))) else {
                return format!(
                    "No run of {} reached the point where vmeter measures memory.",
                    machine.label
                );
            };
            let guest = sample.guest.as_ref().map(|guest| {
                format!(
                    "its guest uses {} and has {} in buffers and caches; ",
                    bytes(guest.used_bytes),
                    bytes(guest.buff_cache_bytes)
                )
            });
            let vmm = sample.vmm.as_ref().map(|vmm| {
                format!(
                    "the VMM has RSS {} (PSS {}), peak RSS {}",
                    bytes(vmm.rss_bytes),
                    bytes(vmm.pss_bytes),
                    bytes(vmm.peak_rss_bytes)
                )
            });
            format!(
                "{}{}: {}{}.",
                machine.label,
                self.when(moment.stage),
                guest.unwrap_or_default(),
                vmm.unwrap_or_else(|| "vmeter could not read the VMM's memory use".into())
            )
        });
        sentences.collect::<Vec<_>>().join(" ")
    }

    fn when(&self, stage: Stage) -> String {
        match stage {
            Stage::Ready => ", at its ready point".into(),
            Stage::Read => format!(", after reading {} MiB", self.result.read_mib),
            Stage::End => String::new(),
        }
    }

    /// A row for each machine and moment with a look.
    fn rows(&self) -> impl Iterator<Item = (&'a MachineMemory, &'a Moment, &'a Sample)> {
        self.result.machines.iter().flat_map(|machine| {
            let looks = machine.moments.iter();
            looks.filter_map(move |moment| Some((machine, moment, moment.middle()?)))
        })
    }

    fn guest_table(&self) -> Table {
        let mut table = Table::new(vec![
            Column::name("machine"),
            Column::text("when", 0),
            Column::number("total", 2),
            Column::number("used", 0),
            Column::number("free", 1),
            Column::number("shared", 1),
            Column::number("buff/cache", 0),
            Column::number("available", 1),
        ]);
        for (machine, moment, sample) in self.rows() {
            let Some(guest) = &sample.guest else { continue };
            table.row(vec![
                Cell::Name(machine.label.clone()),
                Cell::Text(moment.stage.word().into()),
                cell(guest.total_bytes),
                cell(guest.used_bytes),
                cell(guest.free_bytes),
                cell(guest.shared_bytes),
                cell(guest.buff_cache_bytes),
                cell(guest.available_bytes),
            ]);
        }
        table
    }

    fn vmm_table(&self) -> Table {
        let mut table = Table::new(vec![
            Column::name("machine"),
            Column::text("when", 0),
            Column::number("peak RSS", 0),
            Column::number("RSS", 0),
            Column::number("PSS", 0),
            Column::number("min RSS", 1).meaning("over all runs"),
            Column::number("max RSS", 1).meaning("over all runs"),
            Column::number("runs", 2),
        ]);
        for (machine, moment, sample) in self.rows() {
            let Some(vmm) = &sample.vmm else { continue };
            let all = || moment.samples.iter().filter_map(|s| Some(s.vmm.as_ref()?.rss_bytes));
            table.row(vec![
                Cell::Name(machine.label.clone()),
                Cell::Text(moment.stage.word().into()),
                cell(vmm.peak_rss_bytes),
                cell(vmm.rss_bytes),
                cell(vmm.pss_bytes),
                cell(all().min().unwrap_or(0)),
                cell(all().max().unwrap_or(0)),
                Cell::Text(moment.samples.len().to_string()),
            ]);
        }
        table
    }

    /// What RSS consists of: a part a row, a machine and moment a column.
    fn parts_table(&self) -> Table {
        let looks: Vec<(&MachineMemory, &Moment, &VmmFigures)> =
            self.rows().filter_map(|(a, b, sample)| Some((a, b, sample.vmm.as_ref()?))).collect();
        let mut columns = vec![Column::name("part")];
        columns.extend(looks.iter().enumerate().map(|(at, (machine, moment, _))| {
            let title = format!("{} {}", machine.label, moment.stage.word());
            Column::number(title.trim_end_matches(" end"), u8::try_from(at).unwrap_or(u8::MAX))
        }));
        let mut table = Table::new(columns);
        for part in Part::ALL {
            let of: Vec<u64> = looks.iter().map(|(.., vmm)| vmm.part(*part)).collect();
            if of.iter().all(|bytes| *bytes == 0) {
                continue;
            }
            let name = Cell::Text(part.word().replace('-', " "));
            table.row(std::iter::once(name).chain(of.into_iter().map(cell)).collect());
        }
        table
    }

    fn facts(&self) -> Vec<Fact> {
        let mut facts = vec![
            Fact::new("command", shell::join(&self.result.envelope.argv), ""),
            Fact::new("started at", &self.result.envelope.started_at, ""),
            Fact::new("host", crate::phrases::host_line(&self.result.envelope.host), ""),
        ];
        for machine in &self.result.machines {
            for moment in &machine.moments {
                let (label, of) = (&moment.machine.label, &moment.machine);
                facts.push(Fact::new(label, shell::join(&of.argv), "as executed"));
                if Some(moment) != machine.moments.first() {
                    continue;
                }
                for ResolvedOption { what, value, note } in &of.chosen {
                    facts.push(Fact::new(format!("{label}: {what}"), value, note));
                }
                facts.extend(
                    of.provenance
                        .iter()
                        .map(|(what, version)| Fact::new(format!("{label}: {what}"), version, "")),
                );
            }
        }
        facts
    }
}

fn bytes(bytes: u64) -> String {
    Quantity::exact(bytes as f64, Unit::Bytes).inline()
}

fn cell(bytes: u64) -> Cell {
    Cell::Quantity(Quantity::exact(bytes as f64, Unit::Bytes))
}

impl Report for MemoryReport<'_> {
    fn envelope(&self) -> &Envelope {
        &self.result.envelope
    }

    fn body(&self) -> Box<dyn erased_serde::Serialize + '_> {
        Box::new(json::Body::of(self.result))
    }

    fn document(&self, detail: Detail) -> Document {
        let title = "vmeter memory".into();
        let mut document = Document { title, answer: self.answer(), blocks: Vec::new() };
        let samples = self.rows().map(|(_, moment, _)| moment.samples.len()).max().unwrap_or(0);
        let of = match samples {
            0 | 1 => "each row is one boot".to_owned(),
            n => {
                format!("each row has {n} boots of its own, and shows the one with the median RSS")
            }
        };
        let guests = self.guest_table();
        if !guests.rows.is_empty() {
            let note = format!(
                "like the output of free(1): used is total - available, so used overlaps \
                    buff/cache; {of}"
            );
            document.heading("In the guest", note);
            document.push(Block::Table(guests));
        }
        let vmms = self.vmm_table();
        if !vmms.rows.is_empty() {
            let note = format!("measured on the host; {of}");
            document.heading("VMM process", note);
            document.push(Block::Table(vmms));
            document.heading(
                "What the VMM's RSS consists of",
                "from /proc/PID/smaps; boot files: files of kernel, initrd and firmware that the VMM \
                    has mapped",
            );
            document.push(Block::Table(self.parts_table()));
        }
        if detail == Detail::Full {
            document.push(Block::Folded {
                summary: "Provenance".into(),
                blocks: vec![Block::Facts(self.facts())],
            });
        }
        let MemoryResult { warnings, hints, saved_in, .. } = self.result;
        document.push(Block::Notices(closing_notices(warnings, hints, saved_in)));
        document
    }

    fn records(&self) -> Records {
        let header = vec![
            "machine",
            "moment",
            "run",
            "total_bytes",
            "used_bytes",
            "free_bytes",
            "shared_bytes",
            "buff_cache_bytes",
            "available_bytes",
            "peak_rss_bytes",
            "rss_bytes",
            "pss_bytes",
        ];
        let mut records = Records { header, rows: Vec::new() };
        for machine in &self.result.machines {
            for moment in &machine.moments {
                for sample in &moment.samples {
                    records.rows.push(record(machine, moment, sample));
                }
            }
        }
        records
    }
}

fn record(machine: &MachineMemory, moment: &Moment, sample: &Sample) -> Vec<Field> {
    let guest = sample.guest.as_ref();
    let vmm = sample.vmm.as_ref();
    vec![
        Field::text(&machine.label),
        Field::text(moment.stage.word()),
        Field::number(Some(sample.run)),
        Field::number(guest.map(|g| g.total_bytes)),
        Field::number(guest.map(|g| g.used_bytes)),
        Field::number(guest.map(|g| g.free_bytes)),
        Field::number(guest.map(|g| g.shared_bytes)),
        Field::number(guest.map(|g| g.buff_cache_bytes)),
        Field::number(guest.map(|g| g.available_bytes)),
        Field::number(vmm.map(|v| v.peak_rss_bytes)),
        Field::number(vmm.map(|v| v.rss_bytes)),
        Field::number(vmm.map(|v| v.pss_bytes)),
    ]
}
