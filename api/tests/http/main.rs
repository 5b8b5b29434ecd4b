//! The API over real HTTP, on each database. What a case promises is in its name.

mod served;
mod submission;
