//! What the store promises on each database. Every case runs on SQLite and on MariaDB or MySQL.

mod bulk;
mod claiming;
mod costs;
mod epoch;
mod errors;
mod owning;
mod placing;
mod rows;
mod schema;
mod server;
mod silence;
mod slots;
mod submitting;
mod transactions;
