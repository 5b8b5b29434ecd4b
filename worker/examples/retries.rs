//! What a handler's error means: try again by the job's policy, try again not before, or give up.
//!
//! `cargo run -p isocost-worker --example retries`

mod in_process;

use isocost_worker::{JobContext, JobError};
use serde::Deserialize;
use serde_json::json;
use std::{collections::BTreeMap, time::Duration};

#[derive(Deserialize)]
struct Payment {
    account: String,
    cents: i64,
}

/// A bank that is out of reach at first, then busy, then answers.
async fn charge(job: JobContext) -> Result<BTreeMap<&'static str, i64>, JobError> {
    let payment: Payment = job.params()?;
    if payment.cents <= 0 {
        return Err(JobError::fatal("an amount must be positive").with_code("payment.amount"));
    }
    job.progress(10, format!("calling the bank of {}", payment.account))
        .await;
    match job.attempt() {
        // Any error becomes a failed attempt that the job's policy repeats.
        1 => Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused))?,
        2 => {
            job.warn("the bank asks for patience").await;
            Err(JobError::retry_after(
                Duration::from_millis(300),
                "the bank is busy",
            ))
        }
        attempt => {
            job.progress(100, format!("charged in attempt {attempt}")).await;
            Ok(BTreeMap::from([("charged", payment.cents)]))
        }
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    for cents in [1_250, -1] {
        let params = json!({"account": "DE-17", "cents": cents});
        in_process::run(|worker| worker.handler("charge", charge), "charge", params, 5).await?;
    }
    Ok(())
}
