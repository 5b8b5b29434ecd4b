//! A whole minute of ten times as many submissions as can be stored; all that is accepted then runs.

use crate::stage::Stage;
use anyhow::Result;
use isocost_tests::{
    jobs::once,
    overload::{offer, sustainable},
    patience::eventually,
};
use std::time::{Duration, Instant};

const AT_EASE_FOR: Duration = Duration::from_secs(5);
const OVERLOADED_FOR: Duration = Duration::from_secs(60);
const TIMES: f64 = 10.0;
const ALL_DONE: Duration = Duration::from_secs(1_200);

pub(crate) async fn run() -> Result<()> {
    let stage = Stage::with(1, 2).await?;
    let job = once("noop");
    let (taken, rate) = sustainable(&stage.api, &job, AT_EASE_FOR).await?;
    let offered = offer(&stage.api, &job, rate * TIMES, OVERLOADED_FOR).await?;
    println!(
        "{rate:.0} jobs/s at ease; then {} requests of 1,000 within {OVERLOADED_FOR:?}: {} refused, the slowest refusal \
         after {:.1?}, the slowest answer after {:.1?}",
        offered.requests, offered.refused, offered.slowest_refusal, offered.slowest
    );
    let from = Instant::now();
    stage.api.submit(&job).await?;
    println!("the next submission was answered after {:.0?}", from.elapsed());
    let accepted = (taken.ids.len() + offered.ids.len() + 1) as f64;
    eventually("all that was accepted has run", ALL_DONE, async || {
        Ok((stage.finished().await? >= accepted).then_some(()))
    })
    .await?;
    println!("{accepted:.0} jobs had run {:.0?} later", from.elapsed());
    for process in &stage.processes {
        println!("a process took at most {} MiB", process.peak_memory()? >> 20);
    }
    stage.stop().await
}
