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

/// In front of the configured filter, which overrides it. lapin logs every returned message as a warning, body and all,
/// and every refused look at a queue as an error; what matters of that our own broker client says.
const QUIET: &str = "lapin=off";

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
    let filter = EnvFilter::try_new(format!("{QUIET},{}", config.log)).map_err(TelemetryError::Filter)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configured_filter_overrides_what_is_quiet() {
        let shown = |log: &str| EnvFilter::try_new(format!("{QUIET},{log}")).map(|filter| filter.to_string());
        let has = |log: &str, directive: &str| {
            shown(log).is_ok_and(|text| text.split(',').any(|one| one == directive))
        };
        assert!(has("info", "lapin=off") && has("info", "info"));
        assert!(has("info,lapin=debug", "lapin=debug") && !has("info,lapin=debug", "lapin=off"));
        assert!(has("", "lapin=off"));
    }
}
