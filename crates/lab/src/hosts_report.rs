//! What several hosts did to the runs of one session.

use vmeter_model::shard::HostEffect;
use vmeter_render::document::{Block, Document};
use vmeter_render::table::{Cell, Column, Table};

/// A table of the hosts' factors; nothing where one host carried out all.
pub(crate) fn blocks(hosts: &[HostEffect], document: &mut Document) {
    if hosts.is_empty() {
        return;
    }
    let note = "a host's factor [with its 95 % interval] is its time divided by the time of the \
            average host; in the tables above, vmeter divided the time of each run by the factor \
            of the host that made it";
    document.heading("Hosts", note);
    document.push(Block::Table(table(hosts)));
}

fn table(hosts: &[HostEffect]) -> Table {
    let mut table = Table::new(vec![
        Column::name("host"),
        Column::number("runs", 0),
        Column::text("factor", 0),
        Column::text("CPU", 2),
    ]);
    for host in hosts {
        let factor = match (host.factor, host.factor_ci95) {
            (Some(factor), Some([low, high])) => format!("{factor:.4} [{low:.4}, {high:.4}]"),
            (Some(factor), None) => format!("{factor:.4}"),
            (None, _) => "not known".to_owned(),
        };
        table.row(vec![
            Cell::Name(host.name.clone()),
            Cell::Text(host.runs.to_string()),
            Cell::Text(factor),
            Cell::Name(host.cpu_model.clone()),
        ]);
    }
    table
}
