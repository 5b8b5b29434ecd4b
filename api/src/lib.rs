//! HTTP in, JSON out: submitting, reading and steering jobs, with an OpenAPI document that is made from this code. Jobs
//! submitted over AMQP come in through the same checks ([`amqp`]).
//!
//! This role owns what users may ask for: it validates, makes submissions durable and answers. It never places or runs
//! anything, and needs nothing but the database to accept a job; the broker only carries a nudge to the leader.

mod access;
mod amqp;
mod apps;
mod callbacks;
mod cron;
mod definition;
mod documents;
mod events;
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
mod settings;
mod state;
mod stats;
mod submitter;
mod waker;
mod workers;

pub use routes::{openapi, router};
pub use server::{Error, run, run_on};
pub use state::{ApiState, Background};
