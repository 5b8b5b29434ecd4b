//! What the store promises on each database. Every case runs on SQLite and on MariaDB or MySQL.

mod bulk;
mod epoch;
mod errors;
mod leading;
mod rows;
mod schema;
mod slots;
mod submitting;
mod transactions;
