//! The commands and their arguments.

mod config;
mod cron;
mod job;
mod migrate;
mod openapi;
mod standalone;

use crate::exit::{EXIT_CODES, Failure};
use clap::{Parser, Subcommand};

/// A distributed job scheduler that places every job on the worker with the lowest load.
#[derive(Debug, Parser)]
#[command(name = "isocost", version, after_help = EXIT_CODES, propagate_version = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run everything in this process, on an embedded database
    Standalone(standalone::StandaloneArgs),
    /// Submit jobs to a server, look at them and steer them
    Job(Box<job::JobArgs>),
    /// Show when a cron expression fires
    Cron(cron::CronArgs),
    /// Print the OpenAPI document of the REST API
    Openapi,
    /// Bring the tables of a database up to date
    Migrate(config::ConfigArgs),
    /// Print the configuration in force, secrets hidden
    Config(config::ConfigArgs),
}

/// Runs one command to its end.
///
/// # Errors
/// [`Failure`] with the exit code that fits.
pub(crate) async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Standalone(args) => standalone::run(args).await,
        Command::Job(args) => job::run(*args).await,
        Command::Cron(args) => cron::run(&args),
        Command::Openapi => openapi::run(),
        Command::Migrate(args) => migrate::run(&args).await,
        Command::Config(args) => config::run(&args),
    }
}
