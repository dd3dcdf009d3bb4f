//! Runs one model: something to record and to explain.

use clap::Parser;
use std::process::ExitCode;
use vmeter_device_models::{run, Model, Options};

/// A VMM whose disk is slow in a known way.
#[derive(Debug, Parser)]
struct Arguments {
    /// What is wrong with it.
    model: Model,
    /// Times that the guest goes through its ports; 0: what suits the model.
    #[arg(long, default_value_t = 0)]
    rounds: u64,
    /// Of the jitter.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Commands are done by a thread of their own.
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
