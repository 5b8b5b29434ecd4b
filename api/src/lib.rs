//! HTTP in, JSON out: submitting, reading and steering jobs, with an OpenAPI document that is made from this code.
//!
//! This role owns what users may ask for: it validates, makes submissions durable and answers. It never places or runs
//! anything, and needs nothing but the database to accept a job; the broker only carries a nudge to the leader.

mod access;
mod cron;
mod definition;
mod documents;
mod exchange;
mod executions;
mod handler_directory;
mod health;
mod input;
mod jobs;
mod problem;
mod problem_pages;
mod routes;
pub mod schema;
mod server;
mod state;
mod submitter;
mod waker;

pub use routes::{openapi, router};
pub use server::{Error, run, run_on};
pub use state::{ApiState, Background};
