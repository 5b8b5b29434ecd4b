//! The program from outside: one module a topic. `./test` runs `kill_loop` and `submit_many` (slow) and `latency`
//! (measures time) apart from the others, by the names of their modules.

mod cases;
mod concurrency;
mod crash;
mod drain;
mod first_run;
mod idempotency;
mod kill_loop;
mod latency;
mod numbers;
mod schedules;
mod second_process;
mod steps;
mod submit_many;
mod texts;
mod webhook;
