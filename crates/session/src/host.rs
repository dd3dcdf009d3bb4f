//! What the numbers were measured on.

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;

/// The host, for the head of every export.
pub fn describe() -> BTreeMap<String, Value> {
    let mut host = BTreeMap::new();
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    host.insert("hostname".into(), name.trim().into());
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        cpuinfo
            .lines()
            .find(|line| line.starts_with(name))
            .and_then(|line| line.split_once(": "))
            .map(|(_, value)| value.trim().to_owned())
    };
    host.insert("cpu_model".into(), field("model name").unwrap_or_default().into());
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    host.insert("cpus".into(), cpus.into());
    let flags = field("flags").unwrap_or_default();
    let has = |flag: &str| flags.split(' ').any(|f| f == flag);
    host.insert("virtualised".into(), has("hypervisor").into());
    host.insert("constant_tsc".into(), has("constant_tsc").into());
    host.insert("memory_bytes".into(), memory_bytes().into());
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    host.insert("kernel".into(), release.trim().into());
    let governor = fs::read_to_string("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").ok();
    host.insert("cpufreq_governor".into(), governor.map(|g| g.trim().to_owned()).into());
    host
}

fn memory_bytes() -> u64 {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok())
        .map_or(0, |kib| kib * 1024)
}

/// CPU time stolen from this host's CPUs since it booted, s (`/proc/stat`, column
/// `steal`; proc(5)). 0 where the host is not a guest itself.
pub fn steal_s() -> f64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks: f64 = stat
        .lines()
        .next()
        .and_then(|line| line.split_ascii_whitespace().nth(8))
        .and_then(|column| column.parse().ok())
        .unwrap_or(0.0);
    ticks / rustix::param::clock_ticks_per_second() as f64
}

/// Time in which at least one task waited for a CPU since the host booted, s
/// (`/proc/pressure/cpu`, `some`, Linux's Documentation/accounting/psi.rst); none where the
/// kernel does not count it.
pub fn cpu_pressure_s() -> Option<f64> {
    pressure(&fs::read_to_string("/proc/pressure/cpu").ok()?)
}

fn pressure(text: &str) -> Option<f64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let total = some.split_ascii_whitespace().find_map(|word| word.strip_prefix("total="))?;
    Some(total.parse::<u64>().ok()? as f64 / 1e6)
}

/// Steps of [`probe_s`]: some 7 ms of a CPU that is free.
const PROBE_STEPS: u64 = 5_000_000;

/// What a fixed piece of work takes now, s of wall time: longer on a host that is busy or whose
/// clock is slow.
pub fn probe_s() -> f64 {
    let begin = std::time::Instant::now();
    let mut x = 1_u64;
    for i in 0..PROBE_STEPS {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(i);
    }
    std::hint::black_box(x);
    begin.elapsed().as_secs_f64()
}

/// Now, RFC 3339 in UTC, to the second.
pub fn now() -> String {
    rfc3339(std::time::SystemTime::now())
}

/// The last second that has four digits for its year, s since the epoch.
const END_OF_9999: u64 = 253_402_300_799;

/// A clock that is set before 1970, or after 9999, is at that end: humantime panics there.
fn rfc3339(time: std::time::SystemTime) -> String {
    let epoch = std::time::UNIX_EPOCH;
    let since = time.duration_since(epoch).unwrap_or_default();
    let since = since.min(std::time::Duration::from_secs(END_OF_9999));
    humantime::format_rfc3339_seconds(epoch + since).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_clock_is_so_wrong_that_it_has_no_time() {
        use std::time::{Duration, UNIX_EPOCH};
        let at = |s: u64| rfc3339(UNIX_EPOCH + Duration::from_secs(s));
        assert_eq!(rfc3339(UNIX_EPOCH - Duration::from_secs(86_400)), "1970-01-01T00:00:00Z");
        assert_eq!(at(1_790_000_000), "2026-09-21T14:13:20Z");
        assert_eq!((at(END_OF_9999), at(1 << 40)), (at(1 << 41), "9999-12-31T23:59:59Z".into()));
    }

    #[test]
    fn pressure_is_the_time_that_some_task_waited() {
        let text = "some avg10=0.00 avg60=9.64 avg300=34.27 total=32849631345\n\
                    full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        assert_eq!(pressure(text), Some(32_849.631_345));
        assert_eq!((pressure("full total=7"), pressure("some total=x")), (None, None));
        assert!(probe_s() > 0.0);
    }
}
