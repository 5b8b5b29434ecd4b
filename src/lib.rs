//! Isocost in one process: every role on an embedded database, for a first look and for small sites.
//!
//! The `isocost` binary is a thin command line over this; a program with handlers of its own embeds it:
//! see [`standalone::Standalone`].

pub mod standalone;
