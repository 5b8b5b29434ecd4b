//! The program from outside: one module a topic. `./test` runs those that load the machine (`big_tables`, `cluster`,
//! `crash_points`, `disorder`, `kill_loop`, `submit_many`) and those that measure time (`latency`) apart from the others,
//! by the names of their modules.

mod access;
mod big_tables;
mod cases;
mod checker;
mod client;
mod cluster;
mod concurrency;
mod crash;
mod crash_points;
mod disorder;
mod drain;
mod first_run;
mod idempotency;
mod kill_loop;
mod latency;
mod numbers;
mod schedules;
mod second_process;
mod steps;
mod storm;
mod submit_many;
mod texts;
mod throughput;
mod webhook;
