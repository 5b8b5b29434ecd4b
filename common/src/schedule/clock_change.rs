//! From local times to instants, with the rule for clock changes.
//!
//! A *fixed time* (minute and hour are numbers, lists or ranges) fires exactly once a day it names: one that a clock
//! put forward skips fires at the first instant after the gap, and several of them there collapse into one; one that
//! a clock put back repeats fires in the first pass.
//!
//! An *interval* (minute or hour is `*` or has a step) follows the wall clock: nothing fires for times that do not
//! exist, and both passes of a repeated time fire, so no real interval is skipped.

use chrono::{DateTime, MappedLocalTime, NaiveDateTime, SubsecRound, TimeDelta, TimeZone};
use chrono_tz::{GapInfo, Tz};

use super::calendar::Calendar;

/// Which half of the rule applies to an expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClockRule {
    FixedTime,
    FollowsWallClock,
}

/// The first firing strictly after `after`.
pub(super) fn next_instant(
    calendar: &Calendar,
    rule: ClockRule,
    after: DateTime<Tz>,
) -> Option<DateTime<Tz>> {
    match rule {
        ClockRule::FixedTime => next_fixed_time(calendar, after),
        ClockRule::FollowsWallClock => next_on_wall_clock(calendar, after),
    }
}

/// Later local times never map to earlier instants under this rule, so the first match that lies after is the answer.
fn next_fixed_time(calendar: &Calendar, after: DateTime<Tz>) -> Option<DateTime<Tz>> {
    let zone = after.timezone();
    let mut local = calendar.first_after(after.naive_local())?;
    loop {
        local = match zone.from_local_datetime(&local) {
            MappedLocalTime::Single(instant) if instant > after => return Some(instant),
            MappedLocalTime::Single(_) => calendar.first_after(local)?,
            MappedLocalTime::Ambiguous(first, _) if first > after => return Some(first),
            // `after` lies in the second pass, and the rest of it was done in the first.
            MappedLocalTime::Ambiguous(first, second) => {
                let change = clock_change_between(first, second);
                let length = second - first;
                calendar.first_from(change.naive_local().checked_add_signed(length)?)?
            }
            MappedLocalTime::None => match end_of_gap(zone, local) {
                Some(end) if end > after => return Some(end),
                Some(end) => calendar.first_from(end.naive_local())?,
                None => calendar.first_after(local)?,
            },
        };
    }
}

/// Walks on from the local time of `after`; from a first pass, also from the start of the second.
fn next_on_wall_clock(calendar: &Calendar, after: DateTime<Tz>) -> Option<DateTime<Tz>> {
    let zone = after.timezone();
    // Clocks change at whole seconds, and the search for the change goes by seconds.
    let local = after.naive_local().trunc_subsecs(0);
    let earliest = after + TimeDelta::milliseconds(1);
    let onward = walk(calendar, calendar.first_after(local), earliest);
    let MappedLocalTime::Ambiguous(first, second) = zone.from_local_datetime(&local) else {
        return onward;
    };
    if after >= second {
        return onward;
    }
    let change = clock_change_between(first, second);
    if onward.is_some_and(|instant| instant < change) {
        return onward;
    }
    let second_pass = walk(calendar, calendar.first_from(change.naive_local()), change);
    [onward, second_pass].into_iter().flatten().min()
}

/// The first instant not before `earliest` that shows `local` or a later match on the clock.
fn walk(
    calendar: &Calendar,
    mut local: Option<NaiveDateTime>,
    earliest: DateTime<Tz>,
) -> Option<DateTime<Tz>> {
    let zone = earliest.timezone();
    loop {
        let shown = local?;
        local = match zone.from_local_datetime(&shown) {
            MappedLocalTime::Single(instant) if instant >= earliest => return Some(instant),
            MappedLocalTime::Ambiguous(first, _) if first >= earliest => return Some(first),
            MappedLocalTime::Ambiguous(_, second) if second >= earliest => return Some(second),
            MappedLocalTime::Single(_) | MappedLocalTime::Ambiguous(..) => calendar.first_after(shown),
            // Jumping matters: a gap can swallow 3,600 matches a year of an every-second job.
            MappedLocalTime::None => match end_of_gap(zone, shown) {
                Some(end) => calendar.first_from(end.naive_local()),
                None => calendar.first_after(shown),
            },
        };
    }
}

/// The first instant after the gap around `local`; `None` only if a second change follows on its heels.
fn end_of_gap(zone: Tz, local: NaiveDateTime) -> Option<DateTime<Tz>> {
    GapInfo::new(&local, &zone)?.end
}

/// The first instant of the second pass, given one local time, of whole seconds, in both passes.
fn clock_change_between(first: DateTime<Tz>, second: DateTime<Tz>) -> DateTime<Tz> {
    let new_offset = second.naive_local() - second.naive_utc();
    let (mut before, mut change) = (first, second);
    // By seconds; 17 rounds for a clock put back by a whole day.
    while change - before > TimeDelta::seconds(1) {
        let middle = before + TimeDelta::seconds((change - before).num_seconds() / 2);
        if middle.naive_local() - middle.naive_utc() == new_offset {
            change = middle;
        } else {
            before = middle;
        }
    }
    change
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::schedule::normalise::normalise;

    const MINUTE_MS: i64 = 60_000;

    /// The two sentences at the head of this file, by trying every minute.
    fn by_trying(calendar: &Calendar, rule: ClockRule, from: DateTime<Tz>, minutes: i64) -> BTreeSet<i64> {
        let zone = from.timezone();
        let matches = |local: NaiveDateTime| calendar.first_from(local) == Some(local);
        let instants = (1..=minutes).map(|minute| from + TimeDelta::minutes(minute));
        match rule {
            ClockRule::FollowsWallClock => instants
                .filter(|instant| matches(instant.naive_local()))
                .map(|instant| instant.timestamp_millis())
                .collect(),
            ClockRule::FixedTime => {
                let first = from.naive_local() - TimeDelta::days(2);
                (0..minutes + 3 * 24 * 60)
                    .map(|minute| first + TimeDelta::minutes(minute))
                    .filter(|local| matches(*local))
                    .filter_map(|local| {
                        // Past a gap, the first later minute that exists.
                        (0..)
                            .map(|minute| zone.from_local_datetime(&(local + TimeDelta::minutes(minute))))
                            .find_map(MappedLocalTime::earliest)
                    })
                    .map(|instant| instant.timestamp_millis())
                    .filter(|at| (1..=minutes * MINUTE_MS).contains(&(at - from.timestamp_millis())))
                    .collect()
            }
        }
    }

    #[test]
    fn every_start_around_a_clock_change_agrees_with_trying_every_minute() {
        let changes = [
            ("America/New_York", "2024-03-10T00:00:00Z"),
            ("America/New_York", "2024-11-03T00:00:00Z"),
            ("Australia/Lord_Howe", "2024-10-05T10:00:00Z"),
            ("Australia/Lord_Howe", "2024-04-06T10:00:00Z"),
            ("America/Sao_Paulo", "2018-11-03T20:00:00Z"),
            ("America/Sao_Paulo", "2018-02-17T20:00:00Z"),
            // A whole day that never was, 23 hours that came twice, and shifts by two hours.
            ("Pacific/Apia", "2011-12-30T03:00:00Z"),
            ("Pacific/Kwajalein", "1969-09-30T02:00:00Z"),
            ("Pacific/Kwajalein", "1993-08-21T02:00:00Z"),
            ("Antarctica/Troll", "2024-03-30T20:00:00Z"),
            ("Antarctica/Troll", "2024-10-26T20:00:00Z"),
        ];
        let expressions = [
            "0 * * * *",
            "*/7 * * * *",
            "*/20 1,2,23 * * *",
            "5 */2 * * *",
            "30 0-3 * * *",
            "0,59 1,2,23 * * *",
            "15 2 * * *",
            "0 0 * * *",
            "45 23 30 * *",
        ];
        for (zone, from) in changes {
            let zone: Tz = zone.parse().expect("a known zone");
            let from = DateTime::parse_from_rfc3339(from)
                .expect("an instant")
                .with_timezone(&zone);
            for expression in expressions {
                let (_, fields) = normalise(expression, None).expect(expression);
                let calendar = Calendar::new(&fields).expect(expression);
                let rule = if fields.minute.open || fields.hour.open {
                    ClockRule::FollowsWallClock
                } else {
                    ClockRule::FixedTime
                };
                let expected = by_trying(&calendar, rule, from, 40 * 60);
                for start in (0..20 * 60).step_by(7) {
                    let after = from + TimeDelta::minutes(start) + TimeDelta::milliseconds(start % 2 * 500);
                    let next = next_instant(&calendar, rule, after).map(|at| at.timestamp_millis());
                    let tried = expected.range(after.timestamp_millis() + 1..).next().copied();
                    if tried.is_some() {
                        assert_eq!(next, tried, "{expression} in {zone} after {after}");
                    }
                }
            }
        }
    }
}
