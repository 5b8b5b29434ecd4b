//! What the store promises on each database. Every case runs on SQLite and on MariaDB or MySQL.

mod bulk;
mod claiming;
mod epoch;
mod errors;
mod owning;
mod placing;
mod rows;
mod schema;
mod slots;
mod submitting;
mod transactions;
