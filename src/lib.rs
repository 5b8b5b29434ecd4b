//! Isocost put together: [`standalone`] runs every role in one process on an embedded database, for a first look and for
//! small sites; [`cluster`] runs one role, or several, of a cluster.
//!
//! The `isocost` binary is a thin command line over this; a program with handlers of its own embeds it:
//! see [`standalone::Standalone`].

pub mod cluster;
mod error;
mod running;
pub mod standalone;

pub use error::Error;
