//! The result of [`super::Stats`], in the units of an export.

use super::kernel::Kernel;
use super::slices::{Batch, Slicer};
use super::table::{Cell, Table};
use super::Stats;
use crate::format::{EventReader, Losses, Tick};
use crate::names::{port, svm_exit, vmx_exit, DeviceMap};
use crate::ops::{NameId, BETWEEN_TRIES};
use crate::peers::Peers;
use crate::walk::vcpu::{VcpuId, DOMAIN_RUNSTATES, WAYS};
use crate::walk::xen::{Vcpu, Xen, IDLE_DOMAIN};
use crate::walk::{State, Thread};
use std::collections::BTreeMap;

/// Counts and times of one thing. Times are absent where no end was ever seen.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Row {
    /// What: a port's or device's usual name, a reason, a call.
    pub name: String,
    /// Port number.
    pub port: Option<u32>,
    /// Guest-physical address.
    pub address: Option<u64>,
    /// MSR.
    pub msr: Option<u32>,
    /// `read` or `write`.
    pub direction: Option<&'static str>,
    /// How often.
    pub count: u64,
    /// How many of them could be timed.
    pub timed: u64,
    /// How many could not because events were lost or overwritten in between.
    pub cut: u64,
    /// Sum of the times, s.
    pub total_s: Option<f64>,
    /// Mean, s.
    pub mean_s: Option<f64>,
    /// Mean, cycles, where the trace counts cycles.
    pub mean_cycles: Option<f64>,
    /// Median, s, within 1.6 %.
    pub median_s: Option<f64>,
    /// 99th percentile, s, within 1.6 %.
    pub p99_s: Option<f64>,
    /// Longest, s.
    pub max_s: Option<f64>,
    /// Share of the vCPUs' time, 0 to 1. Of rows that are not a vCPU's alone (system
    /// calls, interrupts, work): share of the trace's duration, which threads that
    /// wait at the same time can together exceed.
    pub share: Option<f64>,
    /// Mean over the median of the other rows' means in the same table and direction.
    pub ratio_to_peers: Option<f64>,
    /// The device that serves it, where the VMM said (`info mtree -f`).
    pub device: Option<String>,
    /// Histogram of the times: (ticks, how many), ascending.
    pub times: Vec<(f64, u32)>,
    /// The row by slices of [`Report::slice_s`].
    pub batches: Vec<Batch>,
}

/// What one thread did with its time. Absent where the events can't tell.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ThreadTimes {
    /// Thread id; for Xen `d1v0`.
    pub thread: String,
    /// Name.
    pub name: String,
    /// True for a vCPU.
    pub vcpu: bool,
    /// On a CPU, s: all of the four below, where they can be told apart.
    pub running_s: Option<f64>,
    /// In the guest, s.
    pub guest_s: Option<f64>,
    /// In KVM, s.
    pub kvm_s: Option<f64>,
    /// In other kernel work, s.
    pub kernel_s: Option<f64>,
    /// In user space, s.
    pub user_s: Option<f64>,
    /// Runnable without a CPU, s.
    pub runnable_s: Option<f64>,
    /// Asleep, s.
    pub blocked_s: Option<f64>,
    /// Not known, because events are missing, s.
    pub unknown_s: Option<f64>,
}

/// Runstates of a Xen vCPU, or of a domain's vCPUs together.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Runstates {
    /// Domain.
    pub domain: u16,
    /// vCPU; none for the domain as a whole.
    pub vcpu: Option<u16>,
    /// Rows by runstate.
    pub rows: Vec<Row>,
    /// How it became runnable: woken or preempted.
    pub runnable: Vec<Row>,
}

/// Statistics of a trace.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// Format of the trace.
    pub format: &'static str,
    /// Clock of its stamps.
    pub clock: String,
    /// Cycles a second that seconds rest on, where the trace counts cycles.
    pub cpu_hz: Option<f64>,
    /// Events read.
    pub events: u64,
    /// Events lost or overwritten, as far as they were counted.
    pub lost_events: u64,
    /// What is missing.
    pub losses: Losses,
    /// First to last stamp, s.
    pub duration_s: Option<f64>,
    /// Seconds in a tick of the clock, where it measures time.
    pub tick_s: Option<f64>,
    /// Length of the slices of [`Row::batches`], s.
    pub slice_s: Option<f64>,
    /// Sum of the vCPUs' time that shares rest on, s.
    pub vcpu_time_s: Option<f64>,
    /// Shares of accesses and exits are of the guest vCPUs' recorded time, not of the trace's duration.
    pub shares_of_vcpus: bool,
    /// Events by name.
    pub counts: BTreeMap<String, u64>,
    /// Ports.
    pub ports: Vec<Row>,
    /// MMIO addresses.
    pub mmio: Vec<Row>,
    /// Model-specific registers.
    pub msrs: Vec<Row>,
    /// VMEXIT reasons.
    pub exits: Vec<Row>,
    /// KVM's exits to user space.
    pub userspace_exits: Vec<Row>,
    /// Hypercalls.
    pub hypercalls: Vec<Row>,
    /// System calls.
    pub syscalls: Vec<Row>,
    /// ioctl requests.
    pub ioctls: Vec<Row>,
    /// Interrupts.
    pub irqs: Vec<Row>,
    /// Local interrupts other than IPIs.
    pub vectors: Vec<Row>,
    /// Inter-processor interrupts received.
    pub ipis: Vec<Row>,
    /// Inter-processor interrupts sent.
    pub ipi_sends: Vec<Row>,
    /// Work functions.
    pub works: Vec<Row>,
    /// Threads, vCPUs first, then by time on a CPU.
    pub threads: Vec<ThreadTimes>,
    /// Runstates of Xen's domains and vCPUs.
    pub runstates: Vec<Runstates>,
}

impl Report {
    /// The tables with a name each, in reading order.
    pub fn tables(&self) -> [(&'static str, &Vec<Row>); 13] {
        [
            ("ports", &self.ports),
            ("mmio", &self.mmio),
            ("msrs", &self.msrs),
            ("exits", &self.exits),
            ("userspace_exits", &self.userspace_exits),
            ("hypercalls", &self.hypercalls),
            ("syscalls", &self.syscalls),
            ("ioctls", &self.ioctls),
            ("irqs", &self.irqs),
            ("vectors", &self.vectors),
            ("ipis", &self.ipis),
            ("ipi_sends", &self.ipi_sends),
            ("works", &self.works),
        ]
    }

    /// Says which devices serve the ports and addresses.
    pub fn name_devices(&mut self, map: &DeviceMap) {
        for row in &mut self.ports {
            row.device = row.port.and_then(|port| map.port(port)).map(str::to_string);
        }
        for row in &mut self.mmio {
            row.device = row.address.and_then(|at| map.address(at)).map(str::to_string);
        }
    }
}

/// How ticks become seconds.
struct Scale {
    slicer: Slicer,
    seconds: Option<f64>,
    cycles: bool,
    /// Ticks that shares are of.
    whole: f64,
}

impl Scale {
    fn of(&self, ticks: f64) -> Option<f64> {
        self.seconds.map(|s| ticks * s)
    }

    fn row(&self, cell: &Cell) -> Row {
        let time = &cell.time;
        let any = |v: Option<f64>| v.and_then(|ticks| self.of(ticks));
        let total = (time.count() > 0).then_some(time.total() as f64);
        Row {
            count: cell.count,
            timed: time.count(),
            cut: cell.cut,
            total_s: any(total),
            mean_s: any(time.mean()),
            mean_cycles: time.mean().filter(|_| self.cycles),
            median_s: any(time.quantile(0.5)),
            p99_s: any(time.quantile(0.99)),
            max_s: any(total.map(|_| time.max() as f64)),
            share: total.filter(|_| self.whole > 0.0).map(|t| t / self.whole),
            times: time.buckets().collect(),
            batches: cell.slices.batches(&self.slicer),
            ..Row::default()
        }
    }

    fn table(&self, table: &Table, head: impl Fn(u64) -> Row) -> Vec<Row> {
        let mut rows: Vec<Row> = table
            .sorted()
            .into_iter()
            .map(|(key, cell)| {
                let head = head(key);
                Row {
                    name: head.name,
                    port: head.port,
                    address: head.address,
                    msr: head.msr,
                    direction: head.direction,
                    ..self.row(cell)
                }
            })
            .collect();
        if table.rest().count > 0 {
            rows.push(Row { name: "(others)".into(), ..self.row(table.rest()) });
        }
        compare_to_peers(&mut rows);
        rows
    }
}

/// Sets each row's ratio: its mean over the median of the other means.
fn compare_to_peers(rows: &mut [Row]) {
    let mean = |r: &Row| r.mean_cycles.or(r.mean_s);
    for direction in [None, Some("read"), Some("write")] {
        let same = |r: &Row| r.direction == direction;
        let peers = Peers::of(rows.iter().filter(|r| same(r)).filter_map(mean));
        for row in rows.iter_mut().filter(|r| same(r)) {
            let Some(own) = mean(row) else { continue };
            let typical = peers.typical(own).filter(|median| *median > 0.0);
            row.ratio_to_peers = typical.map(|median| own / median);
        }
    }
}

fn ports(scale: &Scale, table: &Table) -> Vec<Row> {
    scale.table(table, |key| Row {
        name: port((key >> 1) as u32).into(),
        port: Some((key >> 1) as u32),
        direction: Some(direction(key & 1 != 0)),
        ..Row::default()
    })
}

fn direction(write: bool) -> &'static str {
    if write {
        "write"
    } else {
        "read"
    }
}

fn msrs(scale: &Scale, table: &Table) -> Vec<Row> {
    scale.table(table, |key| Row {
        name: format!("{:#x}", key >> 1),
        msr: Some((key >> 1) as u32),
        direction: Some(direction(key & 1 != 0)),
        ..Row::default()
    })
}

fn mmio(scale: &Scale, reads: &Table, writes: &Table) -> Vec<Row> {
    let mut rows = Vec::new();
    for (table, write) in [(reads, false), (writes, true)] {
        rows.extend(scale.table(table, |address| Row {
            name: format!("{address:#x}"),
            address: Some(address),
            direction: Some(direction(write)),
            ..Row::default()
        }));
    }
    rows.sort_by_key(|r| (r.address, r.direction));
    rows
}

pub(super) fn build(stats: &Stats, reader: &dyn EventReader, cpu_hz: Option<f64>) -> Report {
    let info = reader.info();
    let losses = reader.losses().clone();
    let span = stats.span();
    let vcpu_ticks = vcpu_ticks(&stats.kernel);
    let scale = Scale {
        slicer: stats.slicer,
        seconds: match info.clock.tick {
            Tick::Nanosecond => Some(1e-9),
            Tick::Cycle => cpu_hz.filter(|hz| *hz > 0.0).map(|hz| 1.0 / hz),
            Tick::Order => None,
        },
        cycles: info.clock.tick == Tick::Cycle,
        whole: if vcpu_ticks > 0.0 { vcpu_ticks } else { span },
    };
    let mut counts = BTreeMap::new();
    for (name, count) in stats.kinds.iter().filter(|(_, count)| *count > 0) {
        *counts.entry(name.clone()).or_insert(0) += count;
    }
    let mut report = Report {
        format: info.format,
        clock: info.clock.name.clone(),
        cpu_hz: cpu_hz.filter(|_| scale.cycles),
        events: stats.events,
        lost_events: losses.lost_events.saturating_add(losses.overwritten),
        losses,
        duration_s: scale.of(span),
        tick_s: scale.seconds,
        slice_s: scale.of(stats.slicer.length() as f64),
        vcpu_time_s: scale.of(vcpu_ticks).filter(|s| *s > 0.0),
        shares_of_vcpus: vcpu_ticks > 0.0,
        counts,
        ..Report::default()
    };
    if stats.kernel.walk.xen.is_empty() {
        fill_kernel(&mut report, stats, reader, &scale);
    } else {
        fill_xen(&mut report, stats, &scale);
    }
    report
}

fn vcpu_ticks(kernel: &Kernel) -> f64 {
    let threads = kernel.walk.threads.iter().filter(|t| t.is_vcpu);
    let linux: f64 = threads.flat_map(|t| t.times.iter().skip(1)).map(|&ticks| ticks as f64).sum();
    let xen = &kernel.walk.xen;
    let guests = xen.domains().flat_map(|domain| xen.vcpus(domain)).filter(|(_, v)| v.exits() > 0);
    let runstates = |id: VcpuId| kernel.tables.vcpus.get(&id).map(|(runstates, _)| runstates);
    linux + guests.filter_map(|(id, _)| runstates(id)).map(all_ticks).sum::<f64>()
}

/// The time of all rows.
fn all_ticks(table: &Table) -> f64 {
    table.sorted().iter().map(|(_, cell)| cell.time.total() as f64).sum()
}

fn fill_kernel(report: &mut Report, stats: &Stats, reader: &dyn EventReader, scale: &Scale) {
    let tables = &stats.kernel.tables;
    let by_name = |scale: &Scale, table: &Table| {
        let mut rows = scale.table(table, |key| Row {
            name: stats.decoder.names().name(NameId(key as u32)).to_string(),
            ..Row::default()
        });
        rows.sort_by(|a, b| a.name.cmp(&b.name).then(b.count.cmp(&a.count)));
        rows
    };
    let of_trace = Scale { whole: stats.span(), ..*scale };
    let (named, shared) = (|t| by_name(scale, t), |t| by_name(&of_trace, t));
    report.ports = ports(scale, &tables.ports);
    report.mmio = mmio(scale, &tables.mmio_reads, &tables.mmio_writes);
    report.msrs = msrs(scale, &tables.msrs);
    report.exits = named(&tables.exits);
    report.userspace_exits = named(&tables.userspace_exits);
    report.hypercalls = named(&tables.hypercalls);
    report.syscalls = shared(&tables.syscalls);
    report.ioctls = shared(&tables.ioctls);
    // What futex is called for, and naps between tries of a call, are parts of other calls.
    let is_ioctl = |name: &str| !name.starts_with("futex(") && !name.contains(BETWEEN_TRIES);
    report.ioctls.retain(|row| is_ioctl(&row.name));
    report.irqs = shared(&tables.irqs);
    report.vectors = shared(&tables.vectors);
    report.ipis = shared(&tables.ipis);
    report.ipi_sends = shared(&tables.ipi_sends);
    report.works = shared(&tables.works);
    let mut threads: Vec<&Thread> = stats.kernel.walk.threads.iter().collect();
    threads.sort_by_key(|t| (!t.is_vcpu, std::cmp::Reverse(on_cpu(t)), t.tid));
    report.threads = threads.iter().map(|t| thread_times(t, stats, reader, scale)).collect();
}

/// Ticks that a thread had a CPU.
fn on_cpu(thread: &Thread) -> u64 {
    let states = [State::Guest, State::Kvm, State::Kernel, State::User];
    states.iter().fold(0, |sum: u64, &state| sum.saturating_add(thread.times[state as usize]))
}

fn thread_times(
    thread: &Thread,
    stats: &Stats,
    reader: &dyn EventReader,
    scale: &Scale,
) -> ThreadTimes {
    let seen = stats.kernel.walk.seen;
    let time = |state: State, known: bool| {
        let ticks = thread.times[state as usize] as f64;
        scale.of(ticks).filter(|_| known || ticks > 0.0)
    };
    let layers = seen.syscalls || seen.kvm_exits;
    let name = thread.name.as_deref().or_else(|| reader.thread_name(thread.tid));
    ThreadTimes {
        thread: thread.tid.to_string(),
        name: name.unwrap_or_default().to_string(),
        vcpu: thread.is_vcpu,
        running_s: scale.of(on_cpu(thread) as f64).filter(|_| seen.switches),
        guest_s: time(State::Guest, seen.kvm_exits && thread.is_vcpu),
        kvm_s: time(State::Kvm, thread.is_vcpu),
        kernel_s: time(State::Kernel, seen.syscalls),
        user_s: time(State::User, layers).filter(|_| layers),
        runnable_s: time(State::Runnable, seen.switches),
        blocked_s: time(State::Blocked, seen.switches),
        unknown_s: time(State::Unknown, false),
    }
}

fn fill_xen(report: &mut Report, stats: &Stats, scale: &Scale) {
    let (xen, tables) = (&stats.kernel.walk.xen, &stats.kernel.tables);
    let svm = xen.is_svm();
    let exit = |key: u64| {
        let reason = key as u32;
        let name = if svm { svm_exit(reason) } else { vmx_exit(reason).map(str::to_string) };
        let name = name.unwrap_or_else(|| format!("exit {reason:#x}"));
        Row { name, ..Row::default() }
    };
    report.ports = ports(scale, &tables.ports);
    report.mmio = mmio(scale, &tables.mmio_reads, &tables.mmio_writes);
    report.msrs = msrs(scale, &tables.msrs);
    report.exits = scale.table(&tables.exits, exit);
    report.hypercalls = scale.table(&tables.hypercalls, |key| Row {
        name: stats.decoder.names().name(NameId(key as u32)).to_string(),
        ..Row::default()
    });
    let none = Default::default();
    for domain in xen.domains() {
        let common = tables.domains.get(&domain);
        let state = |state: u64| named(DOMAIN_RUNSTATES[state as usize]);
        let own = |table: &Table| Scale { whole: all_ticks(table), ..*scale };
        let rows = common.map(|common| own(common).table(common, state)).unwrap_or_default();
        report.runstates.push(Runstates { domain, rows, ..Runstates::default() });
        for ((_, number), vcpu) in xen.vcpus(domain) {
            let (runstates, ways) = tables.vcpus.get(&(domain, number)).unwrap_or(&none);
            let of_vcpu = own(runstates);
            report.runstates.push(Runstates {
                domain,
                vcpu: Some(number),
                rows: of_vcpu.table(runstates, |state| named(Xen::runstate_name(state))),
                runnable: of_vcpu.table(ways, |way| named(WAYS[way as usize])),
            });
            if domain != IDLE_DOMAIN {
                report.threads.push(xen_times((domain, number), vcpu, runstates, scale));
            }
        }
    }
}

fn named(name: &str) -> Row {
    Row { name: name.to_string(), ..Row::default() }
}

fn xen_times(
    (domain, number): VcpuId,
    vcpu: &Vcpu,
    runstates: &Table,
    scale: &Scale,
) -> ThreadTimes {
    let time = |states: &[u64]| {
        let rows = runstates.sorted();
        let cells = rows.iter().filter(|(state, _)| states.contains(state));
        scale.of(cells.map(|(_, cell)| cell.time.total()).sum::<u128>() as f64)
    };
    ThreadTimes {
        thread: format!("d{domain}v{number}"),
        vcpu: vcpu.exits() > 0,
        running_s: time(&[0]),
        runnable_s: time(&[1]),
        blocked_s: time(&[2, 3]),
        ..ThreadTimes::default()
    }
}
