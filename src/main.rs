//! The `isocost` program: reads the command line, calls one function, and turns what it returns into one line of text
//! and an exit code. Everything that lasts happens in the roles' crates.

mod cli;
mod client;
mod demo;
mod exit;
mod out;
mod signals;

use clap::Parser;
use mimalloc::MiMalloc;
use std::process::ExitCode;

/// Rows and messages are many small allocations, and the embedded database makes its own: a quarter of the processor time
/// goes into them with the allocator of glibc (ADR 13).
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    // Before anything that may open a TLS connection: the libraries would otherwise look for a provider of their own.
    if rustls::crypto::ring::default_provider()
        .install_default()
        .is_err()
    {
        eprintln!("error: another TLS provider was installed first");
        return ExitCode::FAILURE;
    }
    // Wrong arguments end the process here, with exit code 2 and the usage.
    let command = cli::Cli::parse().command;
    match cli::run(command).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{}", failure.told());
            failure.code()
        }
    }
}
