//! Many cron jobs that fire in one instant.

use crate::stage::Stage;
use anyhow::{Result, ensure};
use isocost_tests::{
    figures::{lateness_of, percentile},
    jobs::fires_together,
};
use std::time::Duration;

/// Time to submit everything before the instant.
const AHEAD: Duration = Duration::from_secs(20);

pub(crate) async fn run() -> Result<()> {
    let stage = Stage::with(1, 2).await?;
    for count in [1_000, 10_000] {
        let at = chrono::Utc::now() + AHEAD;
        let late = lateness_of(&stage.api, count, &fires_together("noop", at)).await?;
        ensure!(percentile(&late, 0.0) >= 0, "one fired before its instant");
        println!(
            "{count} cron jobs in one instant → handler started: p50 {} ms, p99 {} ms",
            percentile(&late, 0.5),
            percentile(&late, 0.99)
        );
    }
    stage.stop().await
}
