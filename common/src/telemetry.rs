//! Logs and metrics of a process.

use crate::config::TelemetryConfig;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use std::io::{self, IsTerminal};
use tracing_subscriber::EnvFilter;

/// Upper bounds of every histogram whose unit is the second: 1 ms to 10 min.
const SECONDS: [f64; 18] = [
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
    600.0,
];

/// Telemetry could not be started.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter does not parse.
    #[error("telemetry.log is not a log filter such as `info` or `info,sqlx=warn`")]
    Filter(#[source] tracing_subscriber::filter::ParseError),
    /// The metrics recorder cannot be installed.
    #[error("installing the metrics recorder")]
    Recorder(#[source] metrics_exporter_prometheus::BuildError),
}

/// Starts logging to standard error and recording metrics. Call once a process; a second call keeps the first's.
///
/// # Errors
/// [`TelemetryError`] when the configuration cannot be used.
pub fn start(config: &TelemetryConfig) -> Result<PrometheusHandle, TelemetryError> {
    let filter = EnvFilter::try_new(&config.log).map_err(TelemetryError::Filter)?;
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr);
    // An error here means that logging was started before: in tests, by an earlier one of the same process.
    let _ = if config.log_json {
        logs.json().try_init()
    } else {
        logs.with_target(false).try_init()
    };
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &SECONDS)
        .map_err(TelemetryError::Recorder)?
        .build_recorder();
    let handle = recorder.handle();
    let _ = metrics::set_global_recorder(recorder);
    Ok(handle)
}
