//! How idle the processor is, as the balancer wants to know it: of the whole machine, or, in a container with a limit,
//! of the share it may use.

use std::{fs, path::Path, time::Instant};
use sysinfo::System;

const CGROUP: &str = "/sys/fs/cgroup";

/// Measures between two calls; the first call has little to go by and says so with a high figure.
pub(crate) struct CpuMeter {
    source: Source,
}

enum Source {
    Machine(Box<System>),
    Cgroup {
        /// Processors' worth of time it may use.
        share: f64,
        used_micros: u64,
        at: Instant,
    },
}

impl CpuMeter {
    /// Takes the first sample.
    pub(crate) fn start() -> Self {
        let limited = fs::read_to_string(Path::new(CGROUP).join("cpu.max"))
            .ok()
            .and_then(|text| parse_share(&text))
            .zip(read_used_micros());
        let source = match limited {
            Some((share, used_micros)) => Source::Cgroup {
                share,
                used_micros,
                at: Instant::now(),
            },
            None => {
                let mut system = System::new();
                system.refresh_cpu_usage();
                Source::Machine(Box::new(system))
            }
        };
        Self { source }
    }

    /// Idle since the last call, 0 to 100.
    pub(crate) fn idle_percent(&mut self) -> u8 {
        match &mut self.source {
            Source::Machine(system) => {
                system.refresh_cpu_usage();
                idle(f64::from(system.global_cpu_usage()) / 100.0)
            }
            Source::Cgroup {
                share,
                used_micros,
                at,
            } => {
                let now = Instant::now();
                let used_now = read_used_micros().unwrap_or(*used_micros);
                let used = used_now.saturating_sub(*used_micros) as f64;
                let allowed = now.duration_since(*at).as_micros() as f64 * *share;
                (*used_micros, *at) = (used_now, now);
                idle(if allowed > 0.0 { used / allowed } else { 0.0 })
            }
        }
    }
}

fn idle(busy: f64) -> u8 {
    // In range after the clamp, so the cast cuts only the fraction.
    (100.0 - busy.clamp(0.0, 1.0) * 100.0).round() as u8
}

/// `cpu.max`: quota and period in microseconds; none for `max`, which is no limit.
fn parse_share(text: &str) -> Option<f64> {
    let (quota, period) = text.trim().split_once(' ')?;
    let (quota, period): (f64, f64) = (quota.parse().ok()?, period.parse().ok()?);
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

fn read_used_micros() -> Option<u64> {
    parse_used_micros(&fs::read_to_string(Path::new(CGROUP).join("cpu.stat")).ok()?)
}

fn parse_used_micros(text: &str) -> Option<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix("usage_usec "))
        .and_then(|micros| micros.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_is_measured_by_its_own_share() {
        assert_eq!(parse_share("150000 100000\n"), Some(1.5));
        assert_eq!(parse_share("max 100000\n"), None);
        assert_eq!(parse_used_micros("usage_usec 12345\nuser_usec 1\n"), Some(12_345));
    }

    #[test]
    fn idle_stays_between_0_and_100() {
        assert_eq!([idle(-0.5), idle(0.25), idle(7.0)], [100, 75, 0]);
    }

    #[test]
    fn this_machine_can_be_measured() {
        let mut meter = CpuMeter::start();
        assert!(meter.idle_percent() <= 100);
    }
}
