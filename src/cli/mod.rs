//! The commands and their arguments.

mod config;
mod cron;
mod doctor;
mod job;
mod migrate;
mod openapi;
mod role;
mod standalone;

use crate::exit::{EXIT_CODES, Failure};
use clap::{Parser, Subcommand};
use isocost::cluster::Role;

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
    /// Serve the REST API of a cluster
    Api(Box<role::ApiArgs>),
    /// Find due jobs, place them on workers, take in their results
    Dispatcher(Box<role::RoleArgs>),
    /// Deliver callbacks
    Relay(Box<role::RoleArgs>),
    /// Run jobs with the built-in handlers
    Worker(Box<role::WorkerArgs>),
    /// Run several roles of a cluster in one process
    Run(Box<role::RunArgs>),
    /// Check every service that a cluster needs, and say what to do
    Doctor(Box<doctor::DoctorArgs>),
    /// Submit jobs to a server, look at them and steer them
    Job(Box<job::JobArgs>),
    /// Show when a cron expression fires
    Cron(cron::CronArgs),
    /// Print the OpenAPI document of the REST API
    Openapi,
    /// Bring the tables of a database up to date
    Migrate(migrate::MigrateArgs),
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
        Command::Api(args) => args.run().await,
        Command::Dispatcher(args) => args.run(Role::Dispatcher).await,
        Command::Relay(args) => args.run(Role::Relay).await,
        Command::Worker(args) => args.run().await,
        Command::Run(args) => args.run().await,
        Command::Doctor(args) => doctor::run(&args).await,
        Command::Job(args) => job::run(*args).await,
        Command::Cron(args) => cron::run(&args),
        Command::Openapi => openapi::run(),
        Command::Migrate(args) => migrate::run(&args).await,
        Command::Config(args) => config::run(&args),
    }
}
