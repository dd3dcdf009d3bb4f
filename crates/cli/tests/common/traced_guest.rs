//! Whether a guest of the ring that KVM runs natively can be traced here.

use std::path::Path;
use std::time::Duration;
use vmeter_kvm_probe::probe;
use vmeter_tracefs::Tracefs;

/// Where tracefs keeps its instances.
pub const INSTANCES: &str = "/sys/kernel/tracing/instances";

/// True where such a guest runs and this user may trace it.
pub fn possible() -> bool {
    match probe(Duration::from_secs(2)) {
        Ok(found) if found.ring3.is_native() => {}
        Ok(found) => {
            println!("skipped: ring 3 is {}", found.ring3);
            return false;
        }
        Err(error) => {
            println!("skipped: {error}");
            return false;
        }
    }
    if !Tracefs::same_processes() {
        println!("skipped: {}", vmeter_tracefs::Error::OtherProcesses);
        return false;
    }
    let traced = Path::new("/sys/kernel/tracing/events/kvm/kvm_pio/format").exists();
    let may = std::fs::read_dir(INSTANCES).is_ok();
    if !traced || !may {
        println!("skipped: tracefs with KVM's events is not to be used here (root, and mounted)");
    }
    traced && may
}
