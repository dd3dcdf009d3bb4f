//! Every model, on the real /dev/kvm, to its end.

use std::time::Duration;
use vmeter_device_models::{run, Access, Model, Options, Served, ACCESSES, COMMAND_PORT};
use vmeter_kvm_probe::probe;

#[test]
fn every_access_is_served_once() {
    match probe(Duration::from_secs(2)) {
        Ok(found) if found.ring3.is_native() => {}
        other => {
            println!("skipped: no KVM that runs ring 3 natively: {other:?}");
            return;
        }
    }
    const ROUNDS: u64 = 20;
    let commands = ACCESSES.iter().filter(|a| matches!(a, Access::Write(COMMAND_PORT))).count();
    let expected =
        Served { accesses: ROUNDS * ACCESSES.len() as u64, commands: ROUNDS * commands as u64 };
    for model in Model::ALL {
        for worker in [false, true] {
            let options = Options { rounds: ROUNDS, seed: 7, worker, ..Options::new(model) };
            let served = run(options).unwrap_or_else(|error| panic!("{model:?}: {error}"));
            assert_eq!(served, expected, "{model:?}, in a thread of its own: {worker}");
        }
        assert_eq!(Model::from_name(model.name()), Some(model));
    }
}
