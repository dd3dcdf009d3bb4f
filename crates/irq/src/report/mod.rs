//! `vmeter irq`: what MSI-X vectors cost to set up, as the table of the patch that
//! docs/IRQ.md cites.

mod json;

use crate::result::{IrqAnatomy, IrqCurve, IrqFit, IrqResult, IrqRow, IrqSetup, IrqTotal, Order};
use crate::strategy::IrqStrategy;
use vmeter_model::result::Envelope;
use vmeter_render::document::{closing_notices, Block, Detail, Document, Fact, Node, Outline};
use vmeter_render::exported::Of;
use vmeter_render::quantity::{compact_seconds, grouped, p_value, percent, plural, ratio_interval};
use vmeter_render::table::{Cell, Column, Table};
use vmeter_render::tone::Tone;
use vmeter_render::{Field, Records, Report};

/// Rows of the table by VF at a glance.
const GLANCE: usize = 16;

/// From this factor on, a traced run took another time than the untraced runs.
const UNLIKE: f64 = 1.5;

/// From this factor on between the time measured and the fit's, the fit does not hold there.
const OFF: f64 = 2.0;

/// An [`IrqResult`] to be written.
#[derive(Debug)]
pub struct IrqReport<'a> {
    /// The result.
    pub result: &'a IrqResult,
}

impl<'a> IrqReport<'a> {
    /// The result.
    pub fn new(result: &'a IrqResult) -> Self {
        IrqReport { result }
    }

    fn fit(&self, strategy: IrqStrategy) -> Option<&IrqFit> {
        self.result.fit.iter().find(|fit| fit.strategy == strategy)
    }

    fn total(&self, strategy: IrqStrategy) -> Option<&IrqTotal> {
        self.result.totals.iter().find(|total| total.strategy == strategy)
    }

    /// The fastest against its baseline, and how both grow.
    fn answer(&self) -> String {
        let totals = &self.result.totals;
        let fastest = totals
            .iter()
            .filter_map(|total| Some((total, total.ratio?, total.ratio_to?)))
            .max_by(|a, b| a.1.mean.total_cmp(&b.1.mean));
        let IrqSetup { vfs, vectors, .. } = self.result.setup;
        if totals.is_empty() {
            return "No measured run is finished yet.".into();
        }
        let Some((total, ratio, baseline)) = fastest else {
            let times = totals.iter().map(|total| {
                format!(
                    "{} takes {} for {vfs} VFs x {vectors} vectors.",
                    total.strategy,
                    time(total)
                )
            });
            return times.collect::<Vec<_>>().join(" ");
        };
        let slowest = self.total(baseline).map(time);
        let mut text = format!(
            "For {vfs} VFs x {vectors} vectors, {} takes {} and {baseline} takes {} (medians). \
                Within a round, {baseline} takes {} times as long as {} (Hodges-Lehmann).",
            total.strategy,
            time(total),
            slowest.unwrap_or_default(),
            ratio_interval(&ratio),
            total.strategy,
        );
        if let (Some(own), Some(other)) = (self.fit(total.strategy), self.fit(baseline)) {
            let (own, other) = (growth(own), growth(other));
            let most = grouped(&self.most_fitted().to_string());
            text += &match own == other {
                true => format!(
                    " Up to {most} vectors, the time of each of the two strategies grows {own} \
                    with the number n of vectors."
                ),
                false => format!(
                    " Up to {most} vectors, the time of {} grows {own} with the number n of \
                     vectors, and the time of {baseline} grows {other}.",
                    total.strategy
                ),
            };
        }
        text
    }

    fn facts(&self) -> Vec<Fact> {
        let setup = &self.result.setup;
        let vectors = setup.vfs * setup.vectors;
        let busy = match setup.busy_cpus {
            0 => "none from vmeter (--busy-cpus)".into(),
            n => format!("{} keeping CPUs busy", plural(n as u64, "thread")),
        };
        let running = match setup.running_vcpus {
            0 => "none".into(),
            n => n.to_string(),
        };
        let load = [busy, format!("{running} of {} vCPUs runs", setup.vcpus)];
        let devices = format!("{} VFs x {} vectors = {vectors}", setup.vfs, setup.vectors);
        let mut facts = vec![Fact::new("devices", devices, self.result.setup.devices.join(" "))];
        if setup.gsi_limit > 0 {
            let limit = format!("{} routes a VM", setup.gsi_limit);
            facts.push(Fact::new("host's limit", limit, "KVM_CAP_IRQ_ROUTING"));
        }
        facts.push(Fact::new("load", load.join(", "), ""));
        facts.push(Fact::new("delivered", delivered(&self.result.totals), ""));
        let held = self.result.totals.iter().filter_map(|total| total.delivery?.held).min();
        if let Some(held) = held {
            let note = "number of vfio-msix lines in /proc/interrupts; if strategies \
                have different numbers, the smallest one";
            facts.push(Fact::new("held at once", format!("{held} interrupts"), note));
        }
        facts
    }

    /// What the figures of the strategies are.
    fn strategies_note(&self) -> String {
        let mut note =
            String::from("medians; speedup: Hodges-Lehmann over paired rounds [95 % CI]");
        if self.result.totals.iter().any(|total| total.prepared.median > 0.0) {
            note += "; reserved: prepares all routes first, then edits them; total and speedup \
                exclude the time to prepare";
        }
        note
    }

    /// The table of that patch: a row a VF, a column a strategy.
    fn by_vf(&self, detail: Detail) -> Table {
        let mut columns = vec![Column::number("VF", 0), Column::number("irqfds", 1)];
        columns.extend(self.result.totals.iter().map(|t| Column::number(t.strategy.word(), 0)));
        let mut table = Table::new(columns);
        let vfs = self.result.rows.last().map_or(0, |row| row.vf);
        let step = if detail == Detail::Full { 1 } else { vfs.div_ceil(GLANCE).max(1) };
        for rows in self.result.rows.chunk_by(|a, b| a.vf == b.vf) {
            let Some(IrqRow { vf, irqfds_assigned, .. }) = rows.first() else { continue };
            if vf % step != 0 && *vf != vfs {
                continue;
            }
            let mut cells =
                vec![Cell::Text(vf.to_string()), Cell::Text(irqfds_assigned.to_string())];
            let value =
                |row: &IrqRow| Cell::Text(self.milliseconds(row.strategy, row.milliseconds));
            cells.extend(rows.iter().map(value));
            table.row(cells);
        }
        let mut cells = vec![Cell::Text("all".into()), Cell::Empty];
        let total = |t: &IrqTotal| Cell::Text(self.milliseconds(t.strategy, t.milliseconds));
        cells.extend(self.result.totals.iter().map(total));
        table.total_row(cells);
        table
    }

    /// With as many decimals as the column's total needs.
    fn milliseconds(&self, strategy: IrqStrategy, value: f64) -> String {
        let decimals = match self.total(strategy).map_or(0.0, |t| t.milliseconds) {
            t if t >= 1000.0 => 0,
            t if t >= 100.0 => 1,
            t if t >= 10.0 => 2,
            _ => 3,
        };
        format!("{value:.decimals$}")
    }

    fn totals(&self) -> Table {
        let with_devices = !self.result.setup.devices.is_empty();
        let mut table = Table::new(vec![
            Column::text("strategy", 0),
            Column::number("total", 0),
            Column::number(if with_devices { "SET_IRQS" } else { "prepare" }, 2),
            Column::number("commits", 1),
            Column::number("CPU time", 2),
            Column::text("speedup", 0),
            Column::text("over", 1),
            Column::number("runs", 3),
        ]);
        for total in &self.result.totals {
            let ahead = match (total.set_irqs, total.prepared.median) {
                (Some(calls), _) => Cell::Text(calls.to_string()),
                (None, s) if s > 0.0 => Cell::Text(compact_seconds(s)),
                _ => Cell::Empty,
            };
            let text = |text: Option<String>| text.map_or(Cell::Empty, Cell::Text);
            table.row(vec![
                Cell::Name(total.strategy.to_string()),
                Cell::Text(time(total)),
                ahead,
                Cell::Text(total.commits.to_string()),
                Cell::Text(compact_seconds(total.cpu.median)),
                text(total.ratio.as_ref().map(ratio_interval)),
                text(total.ratio_to.map(|other| other.to_string())),
                Cell::Text(total.estimate.n.to_string()),
            ]);
        }
        table
    }

    /// The largest number of vectors that the fits rest on.
    fn most_fitted(&self) -> usize {
        let points = self.result.fit.iter().flat_map(|fit| &fit.points);
        points.map(|point| point.vectors).max().unwrap_or(0)
    }

    /// Two rows a strategy: the time, and of it the committing thread's CPU time.
    fn growth(&self) -> Table {
        let at = self.result.fit.iter().find_map(|fit| fit.at_limit.as_ref());
        let title = |what: &str| match at {
            Some(at) => format!("{what} {}", grouped(&at.vectors.to_string())),
            None => what.to_owned(),
        };
        let mut table = Table::new(vec![
            Column::text("strategy", 0),
            Column::text("", 0),
            Column::text("growth", 0),
            Column::number("p", 1),
            Column::number("ΔAICc", 1),
            Column::number("n² share", 1).meaning(
                "share of the growth that the parabola's n² term explains; shown only if the \
                 growth is superlinear",
            ),
            Column::number(&title("fit at"), 0)
                .meaning("the fit's value at the largest number of vectors that was measured"),
            Column::number("measured", 0).meaning("the shortest time there"),
        ]);
        for fit in &self.result.fit {
            let at = fit.at_limit.as_ref();
            let seconds = |s: f64| Cell::Text(compact_seconds(s.max(0.0)));
            let predicted = at.map_or(Cell::Empty, |at| seconds(at.predicted_s));
            let measured = at.and_then(|at| at.measured).map_or(Cell::Empty, |m| seconds(m.min));
            let mut cells = vec![Cell::Name(fit.strategy.to_string()), Cell::Text("time".into())];
            cells.extend(evidence(&fit.time));
            cells.extend([predicted, measured]);
            table.row(cells);
            let mut cells = vec![Cell::Empty, Cell::Text("CPU time".into())];
            cells.extend(evidence(&fit.cpu));
            table.toned_row(Tone::Muted, cells);
        }
        table
    }

    /// The strategies whose time at the largest number of vectors is not what the fit predicts.
    fn beyond_the_fit(&self) -> Option<String> {
        let off = |fit: &&IrqFit| {
            let at = fit.at_limit.as_ref();
            at.and_then(|at| Some(at.measured?.min / at.predicted_s.max(f64::MIN_POSITIVE)))
                .is_some_and(|times| !(1.0 / OFF..=OFF).contains(&times))
        };
        let fits = self.result.fit.iter();
        let off: Vec<&str> = fits.filter(off).map(|fit| fit.strategy.word()).collect();
        let at = self.result.fit.iter().find_map(|fit| fit.at_limit.as_ref())?;
        (!off.is_empty()).then(|| {
            format!(
                "For {}, the measured time at {} vectors differs from the fit by more than a \
                    factor of {OFF}. Either the time grows differently beyond the numbers of \
                    vectors that the fit used, or other programs delayed this measurement.",
                off.join(", "),
                grouped(&at.vectors.to_string())
            )
        })
    }

    /// A row a strategy and number of VMs.
    fn together(&self) -> Table {
        let mut table = Table::new(vec![
            Column::number("VMs", 0),
            Column::text("strategy", 0),
            Column::number("p50", 0),
            Column::number("p99", 0),
            Column::number("all done", 1),
            Column::number("samples", 2),
        ]);
        for row in &self.result.together {
            table.row(vec![
                Cell::Text(row.vms.to_string()),
                Cell::Name(row.strategy.to_string()),
                Cell::Text(compact_seconds(row.p50_s)),
                Cell::Text(compact_seconds(row.p99_s)),
                Cell::Text(compact_seconds(row.all_s)),
                Cell::Text(row.samples_s.len().to_string()),
            ]);
        }
        table
    }

    /// Parts of the commits as rows, a column a strategy.
    fn anatomy(&self) -> Table {
        let anatomy = &self.result.anatomy;
        let mut columns = vec![Column::text("", 0)];
        // Four fit a narrow screen beside the names of the parts.
        let priority = |n: usize| u8::from(n >= 4);
        let named = anatomy.iter().enumerate();
        columns.extend(named.map(|(n, a)| Column::number(a.strategy.word(), priority(n))));
        let mut table = Table::new(columns);
        let line = |name: &str, value: &dyn Fn(&IrqAnatomy) -> Option<String>| {
            let values = anatomy.iter().map(|a| value(a).map_or(Cell::Empty, Cell::Text));
            std::iter::once(Cell::Text(name.into())).chain(values).collect::<Vec<_>>()
        };
        let seconds = |s: f64| Some(compact_seconds(s));
        table.row(line("KVM_IRQFD", &|a| match a.irqfd_s {
            s if s > 0.0 => seconds(s),
            _ => Some("-".into()),
        }));
        table.row(line("KVM_SET_GSI_ROUTING", &|a| seconds(a.commit_s)));
        table.row(line("all, untraced median", &|a| self.total(a.strategy).map(time)));
        table.row(line("commits", &|a| Some(a.commits.to_string())));
        for name in part_names(anatomy) {
            let share = |a: &IrqAnatomy| {
                let part = a.parts.iter().find(|part| part.name == name)?;
                Some(percent(part.share))
            };
            table.row(line(&format!("  {name}"), &share));
        }
        table
    }

    /// What limits an anatomy whose traced run took another time than the untraced runs.
    fn unlike(&self, anatomy: &IrqAnatomy) -> String {
        let untraced = self.total(anatomy.strategy).map_or(0.0, |total| total.milliseconds / 1e3);
        let traced = anatomy.irqfd_s + anatomy.commit_s;
        if untraced <= 0.0 || (1.0 / UNLIKE..=UNLIKE).contains(&(traced / untraced)) {
            return String::new();
        }
        format!(
            "the traced run took {}, the median untraced run {}: the parts above are of the traced \
                run only",
            compact_seconds(traced),
            compact_seconds(untraced)
        )
    }

    fn inside(&self, detail: Detail, document: &mut Document) {
        let anatomy = &self.result.anatomy;
        let Some(first) = anatomy.first() else { return };
        // A strategy that reserves the routes assigns its irqfds before.
        let before = match anatomy.iter().any(|a| a.irqfd_s <= 0.0) {
            true => "; -: part of prepare",
            false => "",
        };
        document.heading(
            "Inside the commits",
            format!(
                "from one traced run of each strategy; tracing adds time, and it can also save \
                time, because it keeps CPUs from going idle; 100 % is the whole time that \
                KVM_SET_GSI_ROUTING took{before}"
            ),
        );
        document.push(Block::Table(self.anatomy()));
        let cause = |a: &IrqAnatomy| Fact::new(a.strategy.word(), &a.cause, self.unlike(a));
        document.push(Block::Facts(anatomy.iter().map(cause).collect()));
        let shown =
            if detail == Detail::Full { anatomy.as_slice() } else { std::slice::from_ref(first) };
        for anatomy in shown {
            document.push(Block::Outline(chain(anatomy)));
        }
    }
}

fn evidence(curve: &IrqCurve) -> [Cell; 4] {
    let difference = curve.aicc_linear.zip(curve.aicc_quadratic).map(|(l, q)| l - q);
    [
        Cell::Text(adjective(curve.order).into()),
        Cell::Text(p_value(curve.p_value)),
        difference.map_or(Cell::Empty, |d| Cell::Text(format!("{d:+.1}"))),
        match curve.order {
            Order::Quadratic => Cell::Text(percent(curve.quadratic_share)),
            _ => Cell::Text("-".into()),
        },
    ]
}

/// Names of all parts, those of most time in the first strategy first.
fn part_names(anatomy: &[IrqAnatomy]) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for part in anatomy.iter().flat_map(|a| &a.parts) {
        if part.share >= 5e-4 && !names.contains(&part.name.as_str()) {
            names.push(&part.name);
        }
    }
    names
}

fn chain(anatomy: &IrqAnatomy) -> Outline {
    let node = |step: &crate::result::IrqStep| Node {
        name: step.what.clone(),
        figures: format!("+{}", compact_seconds(step.at_s)),
        ..Node::default()
    };
    let root = Node {
        name: format!("{}, the commit of median duration", anatomy.strategy),
        tone: Tone::Strong,
        children: anatomy.chain.iter().map(node).collect(),
        ..Node::default()
    };
    Outline {
        legend: "The steps of one commit. The number after \"+\" is the time since the ioctl \
            began. \"until then\": the thread that ran on this CPU before."
            .into(),
        roots: vec![root],
    }
}

/// The curve that was chosen, in the JSON.
fn model(order: Order) -> &'static str {
    match order {
        Order::Linear => "linear",
        Order::Quadratic => "quadratic",
    }
}

/// What that says: a parabola is chosen for whatever bends upwards, so it does not say by which
/// law.
fn adjective(order: Order) -> &'static str {
    match order {
        Order::Linear => "linear",
        Order::Quadratic => "superlinear",
    }
}

fn adverb(curve: &IrqCurve) -> String {
    match (curve.order, curve.exponent) {
        (Order::Linear, _) => "linearly".into(),
        (Order::Quadratic, Some(k)) => format!("superlinearly, about as n^{k:.2}"),
        (Order::Quadratic, None) => "superlinearly".into(),
    }
}

fn growth(fit: &IrqFit) -> String {
    let [time, cpu] = [&fit.time, &fit.cpu].map(adverb);
    if time == cpu {
        time
    } else {
        format!("{time} (its CPU time {cpu})")
    }
}

fn time(total: &IrqTotal) -> String {
    compact_seconds(total.milliseconds / 1e3)
}

fn delivered(totals: &[IrqTotal]) -> String {
    let deliveries = || totals.iter().filter_map(|total| total.delivery);
    let [raised, arrived, stray] = [
        deliveries().map(|d| d.raised).sum::<usize>(),
        deliveries().map(|d| d.arrived).sum(),
        deliveries().map(|d| d.stray).sum(),
    ];
    match (raised, stray) {
        (0, _) => "not checked".into(),
        (n, 0) if n == arrived => {
            format!(
                "all {n} interrupts arrived; vmeter raised one on every vector with every \
                strategy"
            )
        }
        _ => format!(
            "{arrived} of {raised} raised interrupts arrived; {stray} arrived at a \
            vector where none was raised"
        ),
    }
}

impl Report for IrqReport<'_> {
    fn envelope(&self) -> &Envelope {
        &self.result.envelope
    }

    fn body(&self) -> Box<dyn erased_serde::Serialize + '_> {
        Box::new(json::Body::of(self.result))
    }

    fn document(&self, detail: Detail) -> Document {
        let result = self.result;
        let mut document =
            Document { title: "vmeter irq".into(), answer: self.answer(), blocks: Vec::new() };
        document.push(Block::Facts(self.facts()));
        let note = format!(
            "ms, medians of {} runs; the rows need not add up to \"all\"; if one \
             commit covers all VFs, its time is in the row of the last VF",
            result.setup.runs
        );
        document.heading("By VF", note);
        document.push(Block::Table(self.by_vf(detail)));
        document.heading("Strategies", self.strategies_note());
        document.push(Block::Table(self.totals()));
        if !result.fit.is_empty() {
            let points = result.fit.iter().map(|fit| fit.points.len()).max().unwrap_or(0);
            let counts = plural(points as u64, "vector count");
            let most = grouped(&self.most_fitted().to_string());
            let note =
                format!("{counts}, up to {most} vectors: fit to the shortest time at each count");
            document.heading("Growth", note);
            document.push(Block::Table(self.growth()));
            let method = "The growth is superlinear if an F test rejects the straight line \
                          (p < 0.01), AICc prefers a parabola (ΔAICc above 0), and the \
                          parabola's n² term explains at least 10 % of the growth.";
            document.push(Block::Paragraph(method.into()));
            document.blocks.extend(self.beyond_the_fit().map(Block::Paragraph));
        }
        if !result.together.is_empty() {
            let note = "time that each VM takes; all VMs start together, each on a thread of its \
                own";
            document.heading("VMs at once", note);
            document.push(Block::Table(self.together()));
        }
        self.inside(detail, &mut document);
        document.push(Block::Notices(closing_notices(&result.warnings, &result.hints, "")));
        document
    }

    fn records(&self) -> Records {
        Records::of(
            &self.result.rows,
            [
                ("vf", |row| Field::number(Some(row.vf))),
                ("irqfds_assigned", |row| Field::number(Some(row.irqfds_assigned))),
                ("strategy", |row| Field::text(row.strategy.word())),
                ("milliseconds", |row| Field::number(Some(row.milliseconds))),
                ("mean_s", |row| Field::number(Some(row.estimate.mean))),
                ("ci95_low_s", |row| Field::number(Some(row.estimate.ci95[0]))),
                ("ci95_high_s", |row| Field::number(Some(row.estimate.ci95[1]))),
                ("min_s", |row| Field::number(Some(row.estimate.min))),
                ("max_s", |row| Field::number(Some(row.estimate.max))),
                ("n", |row| Field::number(Some(row.estimate.n))),
            ],
        )
    }
}
