// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Tests of routes, gates and commits, in one binary: each file of it is a module.

mod common;
mod kernels;

#[path = "commits.rs"]
mod commits;
#[path = "delivery.rs"]
mod delivery;
#[path = "devid.rs"]
mod devid;
#[path = "exchange.rs"]
mod exchange;
#[path = "fixed_routes.rs"]
mod fixed_routes;
#[path = "guest_faults.rs"]
mod guest_faults;
#[path = "loss.rs"]
mod loss;
#[path = "measure.rs"]
mod measure;
#[path = "model.rs"]
mod model;
#[path = "panics.rs"]
mod panics;
#[path = "random_guest.rs"]
mod random_guest;
#[path = "shared_gates.rs"]
mod shared_gates;
#[path = "signalled.rs"]
mod signalled;
#[path = "teardown.rs"]
mod teardown;
