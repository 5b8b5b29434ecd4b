use chrono_tz::{TZ_VARIANTS, Tz};

use super::error::ScheduleError;
use crate::spelling::edit_distance;

/// Longer than any IANA name; beyond it no name is worth comparing with.
const LONGEST_NAME: usize = 64;

/// Reads an IANA name such as `Asia/Shanghai`, in its exact spelling.
///
/// # Errors
/// [`ScheduleError::UnknownTimeZone`] with the nearest known name, if one is near. Another case counts as wrong:
/// the name is passed on to databases and clients that know only the exact one.
pub fn parse_time_zone(name: &str) -> Result<Tz, ScheduleError> {
    name.parse().map_err(|_| ScheduleError::UnknownTimeZone {
        name: name.chars().take(LONGEST_NAME).collect(),
        nearest: nearest_zone(name),
    })
}

fn nearest_zone(name: &str) -> Option<&'static str> {
    let wanted = name.trim().to_lowercase().replace(' ', "_");
    let length = wanted.chars().count();
    if !(3..=LONGEST_NAME).contains(&length) {
        return None;
    }
    // A bare city is the most common slip, and is far from the full name by count of edits.
    let city = format!("/{wanted}");
    // Not those with a sign: `Etc/GMT+8` lies 8 hours west, the opposite of what `GMT+8` means to most.
    let names = || {
        let names = TZ_VARIANTS.iter().map(|zone| zone.name());
        names.filter(|name| !name.contains(['+', '-']) || !name.contains("GMT"))
    };
    let same_but_for_case = names().find(|zone| zone.to_lowercase() == wanted);
    let same_city = || names().find(|zone| zone.to_lowercase().ends_with(&city));
    if let Some(zone) = same_but_for_case.or_else(same_city) {
        return Some(zone);
    }
    names()
        .map(|zone| (edit_distance(&wanted, &zone.to_lowercase()), zone))
        .min()
        .filter(|(distance, _)| *distance <= length / 4)
        .map(|(_, zone)| zone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_zone_is_refused_with_the_nearest_name() {
        for (wrong, suggestion) in [
            ("Asia/Shanghia", Some("Asia/Shanghai")),
            ("asia/shanghai", Some("Asia/Shanghai")),
            ("America/New York", Some("America/New_York")),
            ("Shanghai", Some("Asia/Shanghai")),
            ("utc", Some("UTC")),
            ("Europe/Berlim", Some("Europe/Berlin")),
            ("Mars/Olympus", None),
            ("GMT+8", None),
            ("", None),
            (" ", None),
        ] {
            let error = parse_time_zone(wrong).expect_err(wrong);
            let ScheduleError::UnknownTimeZone { nearest, .. } = &error else {
                panic!("{wrong}: {error}");
            };
            assert_eq!(*nearest, suggestion, "{wrong}");
            assert_eq!(error.code(), "cron.unknown-time-zone");
            assert_eq!(error.field(), Some("timeZone"));
        }
        assert!(parse_time_zone(&"é".repeat(10_000)).is_err());
    }
}
