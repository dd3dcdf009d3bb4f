//! Runs one model: something to record and to explain.

use clap::Parser;
use std::process::ExitCode;
use vmeter_device_models::{run, Model, Options};

/// A VMM whose disk is slow in a known way.
#[derive(Debug, Parser)]
struct Arguments {
    /// What is wrong with the disk.
    model: Model,
    /// How many times the guest accesses all its ports; 0 means a number that suits the model.
    #[arg(long, default_value_t = 0)]
    rounds: u64,
    /// Seed of the random delay of every access.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Carry out the commands in a separate thread.
    #[arg(long)]
    worker: bool,
}

fn main() -> ExitCode {
    let Arguments { model, rounds, seed, worker } = Arguments::parse();
    match run(Options { model, rounds, seed, worker }) {
        Ok(served) => {
            println!("{} port accesses, {} commands", served.accesses, served.commands);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("vmeter-device-models: {error}");
            ExitCode::from(3)
        }
    }
}
