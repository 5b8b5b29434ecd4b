//! The API over real HTTP, on each database. What a case promises is in its name.

mod access;
mod document;
mod faults;
mod nudging;
mod protocol;
mod reading;
mod served;
mod steering;
mod submission;
mod validation;
