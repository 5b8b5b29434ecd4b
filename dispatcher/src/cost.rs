//! What runs of a handler cost on a worker, over the last five minutes, and how deep that lets us queue behind its slots.

use std::time::Duration;
use tokio::time::Instant;

const SLICES: usize = 5;
const SLICE: Duration = Duration::from_secs(60);
/// Four buckets an octave: a percentile is off by 19 % at most. The last bucket begins at 3.9 hours.
const BUCKETS: usize = 96;
const BUCKETS_PER_OCTAVE: f64 = 4.0;

/// Runs to have seen before anything is queued behind busy slots.
const ENOUGH_SAMPLES: u64 = 20;
/// Work that may wait at a worker for a slot, in milliseconds of its handler's time.
const QUEUED_WORK_MS: f64 = 100.0;
/// Most executions queued behind the slots of one handler of one worker.
const MOST_EXTRA: f64 = 64.0;
/// Unless they are no more than this much work, in milliseconds: runs that cost nothing queue deeper, so that the database
/// is kept busy while their reports travel (ADR 13).
const CHEAP_WORK_MS: f64 = 25.0;
/// Most of those.
const MOST_CHEAP_EXTRA: f64 = 512.0;
/// A run this many times longer than the mean makes queueing behind busy slots a gamble.
const UNEVEN: f64 = 20.0;

#[derive(Debug, Clone, Copy, Default)]
struct Slice {
    samples: u64,
    sum_ms: f64,
    largest_ms: f64,
}

/// Run times of the last five minutes.
#[derive(Debug)]
pub(crate) struct CostWindow {
    started: Instant,
    /// Number of the newest slice since `started`.
    newest: u64,
    slices: [Slice; SLICES],
    histograms: Box<[[u32; BUCKETS]; SLICES]>,
}

/// A look at a [`CostWindow`].
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct CostSummary {
    pub(crate) samples: u64,
    pub(crate) mean_ms: f64,
    pub(crate) p90_ms: f64,
    pub(crate) largest_ms: f64,
}

impl CostWindow {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            started: now,
            newest: 0,
            slices: [Slice::default(); SLICES],
            histograms: Box::new([[0; BUCKETS]; SLICES]),
        }
    }

    /// Adds one run.
    pub(crate) fn record(&mut self, now: Instant, cost_ms: i64) {
        self.turn_to(now);
        let index = slice_index(self.newest);
        let cost = cost_ms.max(0) as f64;
        let slice = &mut self.slices[index];
        slice.samples += 1;
        slice.sum_ms += cost;
        slice.largest_ms = slice.largest_ms.max(cost);
        self.histograms[index][bucket(cost)] += 1;
    }

    /// What the runs of the window were like.
    pub(crate) fn summary(&mut self, now: Instant) -> CostSummary {
        self.turn_to(now);
        let samples: u64 = self.slices.iter().map(|slice| slice.samples).sum();
        if samples == 0 {
            return CostSummary::default();
        }
        let sum: f64 = self.slices.iter().map(|slice| slice.sum_ms).sum();
        CostSummary {
            samples,
            mean_ms: sum / samples as f64,
            p90_ms: self.percentile(samples - samples / 10),
            largest_ms: self
                .slices
                .iter()
                .map(|slice| slice.largest_ms)
                .fold(0.0, f64::max),
        }
    }

    fn percentile(&self, rank: u64) -> f64 {
        let mut seen = 0;
        for bucket in 0..BUCKETS {
            seen += self
                .histograms
                .iter()
                .map(|slice| u64::from(slice[bucket]))
                .sum::<u64>();
            if seen >= rank {
                return upper_bound(bucket);
            }
        }
        upper_bound(BUCKETS - 1)
    }

    /// Empties the slices that have left the window.
    fn turn_to(&mut self, now: Instant) {
        let current = now.duration_since(self.started).as_secs() / SLICE.as_secs();
        let turns = current.saturating_sub(self.newest).min(SLICES as u64);
        for turn in 0..turns {
            let index = slice_index(current - turn);
            self.slices[index] = Slice::default();
            self.histograms[index] = [0; BUCKETS];
        }
        self.newest = self.newest.max(current);
    }
}

fn slice_index(number: u64) -> usize {
    (number % SLICES as u64) as usize
}

fn bucket(cost_ms: f64) -> usize {
    if cost_ms < 1.0 {
        return 0;
    }
    ((cost_ms.log2() * BUCKETS_PER_OCTAVE) as usize + 1).min(BUCKETS - 1)
}

fn upper_bound(bucket: usize) -> f64 {
    if bucket == 0 {
        0.0
    } else {
        (bucket as f64 / BUCKETS_PER_OCTAVE).exp2()
    }
}

impl CostSummary {
    /// The summary when a run is known to have gone on for so long already: a long run counts before it has ended.
    pub(crate) fn or_running_for(self, age_ms: f64) -> Self {
        Self {
            largest_ms: self.largest_ms.max(age_ms),
            ..self
        }
    }

    /// How many executions may be queued behind `slots` slots, so that at most 100 ms of work waits for them.
    ///
    /// Without samples none. Where runs are very uneven none either, for a slot that is busy may be so for long; a
    /// largest run below 100 ms harms nobody and does not count as uneven.
    pub(crate) fn extra(&self, slots: u32) -> u32 {
        let uneven = self.largest_ms > UNEVEN * self.mean_ms && self.largest_ms > QUEUED_WORK_MS;
        if self.samples < ENOUGH_SAMPLES || uneven {
            return 0;
        }
        let typical = self.mean_ms.max(self.p90_ms);
        let runs_in = |work_ms: f64| work_ms * f64::from(slots) / typical;
        let extra = runs_in(QUEUED_WORK_MS).min(MOST_EXTRA);
        extra.max(runs_in(CHEAP_WORK_MS).min(MOST_CHEAP_EXTRA)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(costs: &[i64]) -> (CostWindow, Instant) {
        let now = Instant::now();
        let mut window = CostWindow::new(now);
        for cost in costs {
            window.record(now, *cost);
        }
        (window, now)
    }

    fn summary(costs: &[i64]) -> CostSummary {
        let (mut window, now) = window(costs);
        window.summary(now)
    }

    #[test]
    fn nothing_is_queued_behind_slots_before_twenty_runs_were_seen() {
        assert_eq!(summary(&[1; 19]).extra(8), 0);
        assert_eq!(summary(&[3; 20]).extra(8), 64);
    }

    #[test]
    fn the_queue_holds_a_hundred_milliseconds_of_work() {
        // 50 ms runs on 8 slots: 100 × 8 / 50 = 16; the bucket's upper bound rounds that down.
        let extra = summary(&[50; 100]).extra(8);
        assert!((13..=16).contains(&extra), "{extra}");
        assert_eq!(summary(&[60_000; 100]).extra(8), 0);
    }

    #[test]
    fn nothing_queues_behind_busy_slots_where_a_long_run_may_sit_in_them() {
        let mut costs = vec![5; 99];
        costs.push(5_000);
        assert_eq!(summary(&costs).extra(8), 0);
    }

    #[test]
    fn a_hiccup_of_a_few_milliseconds_does_not_make_runs_uneven() {
        let mut costs = vec![0; 999];
        costs.push(30);
        assert_eq!(summary(&costs).extra(8), 512);
    }

    #[test]
    fn runs_that_cost_nothing_queue_deeper() {
        let extra = summary(&[1; 100]).extra(8);
        assert!((160..=200).contains(&extra), "{extra}");
        assert_eq!(summary(&[0; 100]).extra(64), 512);
    }

    #[test]
    fn the_ninetieth_percentile_is_off_by_a_fifth_at_most() {
        let costs: Vec<i64> = (1..=1_000).collect();
        let p90 = summary(&costs).p90_ms;
        assert!((900.0..=1_080.0).contains(&p90), "{p90}");
    }

    #[test]
    fn runs_older_than_five_minutes_are_forgotten() {
        let (mut window, start) = window(&[1_000; 50]);
        let later = start + Duration::from_secs(299);
        window.record(later, 1);
        assert_eq!(window.summary(later).samples, 51);
        assert_eq!(window.summary(start + Duration::from_secs(301)).samples, 1);
        assert_eq!(window.summary(start + Duration::from_secs(3_600)).samples, 0);
    }
}
