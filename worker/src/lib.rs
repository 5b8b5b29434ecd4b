//! The worker: takes executions from its own queue, runs them in its handlers' bulkheads, and reports.
//!
//! A worker owns what it was given until it says otherwise or dies, and says so through one table ([`ownership`]). It
//! never touches the database: what it knows comes in messages, and what it did goes out in messages that are repeated
//! until the broker has them. It never runs on after its lease: then its handlers are stopped, and it goes on as a new
//! incarnation that holds nothing.
//!
//! This crate is also the library for programs that offer handlers of their own: see [`Worker`].

mod acks;
mod boot_clock;
mod builtin;
mod bulkhead;
mod consume;
mod context;
mod cpu;
mod database_clock;
mod error;
mod handler;
mod handler_log;
mod heartbeat;
mod incarnation;
mod job_error;
mod lease;
mod left_over;
mod life;
mod outbox;
pub mod ownership;
mod pool;
mod probe;
mod run;
mod run_control;
mod runtime;
mod start;
mod start_keys;
mod upkeep;
mod worker;

pub use context::JobContext;
pub use error::Error;
pub use job_error::JobError;
pub use run_control::Cancellation;
pub use worker::{DEFAULT_PORT, Worker, WorkerBuilder, WorkerPorts, run};
