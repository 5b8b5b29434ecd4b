//! The dispatcher: one of its processes leads. The leader finds due jobs, places their executions on workers at equal
//! cost, publishes them, and takes work back from workers that are proven dead. Every dispatcher process takes in what
//! workers report.
//!
//! It never runs a handler, and it never answers a request of a user: those belong to `worker` and `api`.

mod balancer;
mod cost;
pub mod intake;
mod misfire;
mod subscription;
#[cfg(test)]
mod testing;
