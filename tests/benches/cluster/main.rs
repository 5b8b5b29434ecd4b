//! Figures of a cluster on this machine: private servers with durable settings, and real processes of every role.
//!
//! `./test bench` builds and runs all of them, `./test bench throughput` one. Figures of different runs on a shared
//! machine do not compare; what stands beside a figure was measured in the same run.

mod bare;
mod latency;
mod overload;
mod round_trips;
mod seed;
mod stage;
mod storm;
mod submission;
mod throughput;

use anyhow::{Result, bail};
use std::env;

const BENCHES: [&str; 6] = ["throughput", "submission", "latency", "storm", "seed", "overload"];

#[tokio::main]
async fn main() -> Result<()> {
    // Cargo adds an option of its own.
    let wanted: Vec<String> = env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    if let Some(unknown) = wanted.iter().find(|name| !BENCHES.contains(&name.as_str())) {
        bail!("there is no bench `{unknown}`; there are {}", BENCHES.join(", "));
    }
    for bench in BENCHES {
        if !wanted.is_empty() && !wanted.iter().any(|name| name == bench) {
            continue;
        }
        println!("== {bench}");
        match bench {
            "throughput" => throughput::run().await?,
            "submission" => submission::run().await?,
            "latency" => latency::run().await?,
            "storm" => storm::run().await?,
            "overload" => overload::run().await?,
            _ => seed::run().await?,
        }
    }
    Ok(())
}
