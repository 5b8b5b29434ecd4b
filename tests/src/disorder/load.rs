//! The load: jobs of every kind, each asked for until it is acknowledged, and what came of asking.

use super::{Plan, now_ms};
use crate::{
    api::{Answer, Api, text},
    checker::{Cancel, Submission},
    jobs::with,
};
use anyhow::{Context, Result, bail, ensure};
use chrono::{DateTime, SecondsFormat};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

/// Batches a second.
const BATCHES_PER_SECOND: u32 = 4;
/// A request that is not answered by then is asked again, and its connection is dropped.
const PATIENCE: Duration = Duration::from_secs(4);
const ASK_AGAIN: Duration = Duration::from_millis(250);
/// Nothing that is broken stays so as long as this.
const GIVE_UP: Duration = Duration::from_secs(180);
/// Recurring jobs begin this long after they are made.
const AHEAD_MS: i64 = 2_000;
/// Every so manieth batch is asked for once more after it was acknowledged.
const REPEAT_EVERY: usize = 8;

/// What was asked for and acknowledged.
#[derive(Default)]
pub(super) struct Load {
    pub(super) submissions: Vec<Submission>,
    pub(super) cancels: Vec<Cancel>,
}

impl Load {
    fn add(&mut self, more: Self) {
        self.submissions.extend(more.submissions);
        self.cancels.extend(more.cancels);
    }
}

/// Loads the APIs until there is enough; then waits for what was asked for.
pub(super) async fn run(apis: Vec<Api>, plan: Plan, hook: String, enough: CancellationToken) -> Result<Load> {
    let asker = Arc::new(Asker { apis, hook });
    let mut random = StdRng::seed_from_u64(plan.seed ^ 0x6c6f_6164);
    let mut asked: JoinSet<Result<Load>> = JoinSet::new();
    // Recurring jobs end with the time that was planned, so that it is known what they owe.
    let end = now_ms() + i64::try_from(plan.during.as_millis())?;
    for copy in 0..plan.recurring {
        asked.spawn(
            Arc::clone(&asker).ask_for(recurring(&mut random, copy, plan.during, end, &asker.hook), false),
        );
    }
    let mut tick = interval(Duration::from_secs(1) / BATCHES_PER_SECOND);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let size = plan.jobs_per_second.div_ceil(BATCHES_PER_SECOND);
    let mut load = Load::default();
    for batch in 0.. {
        tokio::select! {
            () = enough.cancelled() => break,
            _ = tick.tick() => {}
        }
        let jobs = (0..size)
            .map(|number| one_shot(&mut random, &format!("{batch}-{number}"), &asker.hook))
            .collect();
        asked.spawn(Arc::clone(&asker).ask_for(jobs, batch % REPEAT_EVERY == 0));
        while let Some(done) = asked.try_join_next() {
            load.add(done??);
        }
    }
    while let Some(done) = asked.join_next().await {
        load.add(done??);
    }
    Ok(load)
}

/// A job to ask for, and when to cancel it again.
struct Wish {
    body: Value,
    cancel_after: Option<Duration>,
}

fn job(request: &str, hook: Option<&str>, params: Value) -> Value {
    let mut body = json!({
        "clientRequestId": request,
        "jobName": request,
        "jobHandler": "ledger",
        "retry": { "maxAttempts": 30, "backoff": "fixed", "initialMs": 100, "maxMs": 100 },
    });
    body["params"] = params;
    if let Some(hook) = hook {
        body["callbackUrl"] = json!(hook);
    }
    body
}

fn one_shot(random: &mut StdRng, request: &str, hook: &str) -> Wish {
    let hook = random.random_bool(0.3).then_some(hook);
    let brief = random.random_range(0..100);
    let delayed = json!({ "trigger": { "type": "once", "delayMs": random.random_range(100..3_000) } });
    let mut cancel_after = None;
    let body = match random.random_range(0..100) {
        0..50 => job(request, hook, json!({ "ms": brief })),
        50..65 => with(job(request, hook, json!({ "ms": brief })), delayed),
        65..80 => job(
            request,
            hook,
            json!({ "ms": brief, "fails": random.random_range(1..3) }),
        ),
        80..84 => with(
            job(request, hook, json!({ "ms": brief, "fails": 1_000 })),
            json!({ "retry": { "maxAttempts": 2, "backoff": "fixed", "initialMs": 300, "maxMs": 300 } }),
        ),
        84..94 => job(request, hook, json!({ "ms": random.random_range(1_000..8_000) })),
        94..97 => {
            cancel_after = Some(Duration::from_millis(random.random_range(50..2_000)));
            with(job(request, hook, json!({ "ms": brief })), delayed)
        }
        _ => {
            cancel_after = Some(Duration::from_millis(random.random_range(50..4_000)));
            job(request, hook, json!({ "ms": random.random_range(2_000..8_000) }))
        }
    };
    Wish { body, cancel_after }
}

/// One of each recurring kind, until `end`.
fn recurring(random: &mut StdRng, copy: u32, during: Duration, end: i64, hook: &str) -> Vec<Wish> {
    let triggers = [
        json!({ "type": "cron", "expr": "* * * * * ?" }),
        json!({ "type": "cron", "expr": "* * * * * ?" }),
        json!({ "type": "cron", "expr": "*/2 * * * * ?" }),
        json!({ "type": "cron", "expr": "3/5 * * * * ?" }),
        json!({ "type": "cron", "expr": "1,7,12,19,26,31,38,44,50,57 * * * * ?" }),
        json!({ "type": "fixedRate", "everyMs": 700 }),
        json!({ "type": "fixedRate", "everyMs": 1_300 }),
        json!({ "type": "fixedRate", "everyMs": 900 }),
        json!({ "type": "fixedDelay", "everyMs": 400 }),
        json!({ "type": "fixedDelay", "everyMs": 1_000 }),
    ];
    let misfires = [
        json!({ "policy": "fireOnce" }),
        json!({ "policy": "skip" }),
        json!({ "policy": "catchUp", "maxCatchUp": 3 }),
        json!({ "policy": "catchUp", "maxCatchUp": 1_000 }),
    ];
    let start = now_ms() + AHEAD_MS;
    let mut wishes = Vec::with_capacity(triggers.len());
    for (number, trigger) in triggers.into_iter().enumerate() {
        let hook = random.random_bool(0.2).then_some(hook);
        let params = json!({ "ms": random.random_range(0..80) });
        let fields = json!({
            "trigger": trigger,
            "startAt": rfc3339(start),
            "endAt": rfc3339(end),
            "misfire": misfires[random.random_range(0..misfires.len())],
            "concurrency": if random.random_bool(0.5) { "serial" } else { "parallel" },
        });
        // One of them ends early.
        let cancelled = number == 1;
        wishes.push(Wish {
            body: with(job(&format!("recurring-{copy}-{number}"), hook, params), fields),
            cancel_after: cancelled.then(|| during.mul_f64(random.random_range(0.5..0.8))),
        });
    }
    wishes
}

fn rfc3339(ms: i64) -> String {
    DateTime::from_timestamp_millis(ms)
        .unwrap_or_default()
        .to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// Asks until it is answered.
struct Asker {
    apis: Vec<Api>,
    hook: String,
}

impl Asker {
    /// Submits jobs in one batch, and cancels those that are to be cancelled.
    async fn ask_for(self: Arc<Self>, wishes: Vec<Wish>, twice: bool) -> Result<Load> {
        let asked_at = now_ms();
        let bodies: Vec<&Value> = wishes.iter().map(|wish| &wish.body).collect();
        let first = self.submit(&bodies).await?;
        let second = if twice {
            self.submit(&bodies).await?
        } else {
            Vec::new()
        };
        let mut load = Load::default();
        let mut cancelling = JoinSet::new();
        for (place, (wish, (job, acked_at))) in wishes.into_iter().zip(first).enumerate() {
            if let Some(after) = wish.cancel_after {
                cancelling.spawn(Arc::clone(&self).cancel(job.clone(), after));
            }
            let mut jobs = vec![job];
            jobs.extend(second.get(place).map(|(job, _)| job.clone()));
            load.submissions.push(Submission {
                request: text(&wish.body, "clientRequestId")?,
                body: wish.body,
                asked_at,
                acked_at,
                jobs,
            });
        }
        while let Some(cancelled) = cancelling.join_next().await {
            load.cancels.push(cancelled??);
        }
        Ok(load)
    }

    /// The job of each, and when it was acknowledged.
    async fn submit(&self, bodies: &[&Value]) -> Result<Vec<(String, i64)>> {
        let mut accepted: Vec<Option<(String, i64)>> = vec![None; bodies.len()];
        let since = Instant::now();
        loop {
            let open: Vec<usize> = (0..bodies.len())
                .filter(|place| accepted[*place].is_none())
                .collect();
            if open.is_empty() {
                return Ok(accepted.into_iter().flatten().collect());
            }
            ensure!(
                since.elapsed() < GIVE_UP,
                "a submission was not accepted within {GIVE_UP:?}"
            );
            let body: Value = open.iter().map(|place| bodies[*place].clone()).collect();
            let answer = self.call("/openapi/jobs/batch", Some(&body)).await;
            let acked_at = now_ms();
            if let Some(answer) = answer {
                take_in(&answer, &open, acked_at, &mut accepted)?;
            } else {
                sleep(ASK_AGAIN).await;
            }
        }
    }

    async fn cancel(self: Arc<Self>, job: String, after: Duration) -> Result<Cancel> {
        sleep(after).await;
        let (asked_at, since) = (now_ms(), Instant::now());
        loop {
            ensure!(
                since.elapsed() < GIVE_UP,
                "a cancel was not accepted within {GIVE_UP:?}"
            );
            let Some(answer) = self.call(&format!("/openapi/jobs/{job}/cancel"), None).await else {
                sleep(ASK_AGAIN).await;
                continue;
            };
            // It had ended by itself, or by a cancel whose answer was lost.
            let was_over = answer.status == StatusCode::CONFLICT;
            ensure!(
                was_over || answer.status.is_success(),
                "cancelling {job}: {}",
                answer.text
            );
            return Ok(Cancel {
                job,
                asked_at,
                acked_at: now_ms(),
            });
        }
    }

    /// One attempt, at either API. None when there was no answer, or one that says: later.
    async fn call(&self, path: &str, body: Option<&Value>) -> Option<Answer> {
        let api = &self.apis[rand::random_range(0..self.apis.len())];
        let call = api.call(Method::POST, path, body.map(Value::to_string));
        let answer = timeout(PATIENCE, call).await.ok()?.ok()?;
        let later = answer.status.is_server_error() || answer.status == StatusCode::TOO_MANY_REQUESTS;
        (!later).then_some(answer)
    }
}

/// Items that were accepted; those that are to come later stay open.
fn take_in(
    answer: &Answer,
    open: &[usize],
    acked_at: i64,
    accepted: &mut [Option<(String, i64)>],
) -> Result<()> {
    ensure!(answer.status.is_success(), "a batch was refused: {}", answer.text);
    let said = answer.json();
    let results = said["results"].as_array().context("no results")?;
    ensure!(
        results.len() == open.len(),
        "{} results for {} jobs",
        results.len(),
        open.len()
    );
    for (result, place) in results.iter().zip(open) {
        match result["status"].as_i64() {
            Some(200..300) => accepted[*place] = Some((text(&result["job"], "jobId")?, acked_at)),
            Some(429 | 500..600) => {}
            _ => bail!("a job was refused: {result}"),
        }
    }
    Ok(())
}
