//! Starts the real program and looks at it from outside: its first lines, its REST API, the webhooks it sends, the
//! ledger its jobs leave, and, where a case asks for it, its database while it is stopped.
//!
//! Nothing here or in the tests knows the program's inside. Every test has its own data folder and port, so that all
//! of them run at once.

pub mod api;
pub mod bounds;
pub mod broker_side;
pub mod checker;
pub mod cluster;
pub mod database;
pub mod disorder;
pub mod figures;
pub mod jobs;
pub mod ledger;
pub mod ledger_handler;
pub mod overload;
pub mod patience;
pub mod port;
pub mod receiver;
pub mod signature;
pub mod site;
pub mod steps;
