//! Waiting for a condition, with a deadline that names it.

use anyhow::{Result, bail};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Distance of two looks.
const INTERVAL: Duration = Duration::from_millis(20);

/// Looks again and again until there is something to see.
///
/// # Errors
/// When the time is over, with what was waited for and what went wrong at the last look.
pub async fn eventually<T>(
    what: &str,
    within: Duration,
    mut look: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = Instant::now() + within;
    loop {
        let outcome = look().await;
        if let Ok(Some(found)) = outcome {
            return Ok(found);
        }
        if Instant::now() >= deadline {
            match outcome {
                Err(error) => bail!("not within {within:?}: {what}; at last: {error:#}"),
                Ok(_) => bail!("not within {within:?}: {what}"),
            }
        }
        sleep(INTERVAL).await;
    }
}

/// Looks for the whole of a time: something must not come to pass.
///
/// # Errors
/// As soon as it does, or a look fails.
pub async fn never<T: std::fmt::Debug>(
    what: &str,
    during: Duration,
    mut look: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<()> {
    let deadline = Instant::now() + during;
    while Instant::now() < deadline {
        if let Some(found) = look().await? {
            bail!("must not happen: {what}: {found:?}");
        }
        sleep(INTERVAL).await;
    }
    Ok(())
}
