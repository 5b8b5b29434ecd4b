//! Publishes the outcomes of executions to the topic exchange of outcomes, at least once: claimed in the table, confirmed
//! by the broker, then deleted. A crash in between leaves the claim to run out, and the outcome is published again under
//! the same `message_id`.

use isocost_common::{
    Ports,
    broker::{
        BrokerHealth, Message, MessageHeaders, Publication, PublishOutcome, SCHEMA_VERSION,
        SCHEMA_VERSION_HEADER,
        subscription::{patient, pause},
        topology::Names,
    },
    crash_point::{CrashPoint, reach},
    error_chain::chain,
    execution::ExecutionStatus,
    id::{AppId, OutcomeBatchId},
    store::{
        StoreError, Tx, apps,
        outcomes::{self, Outcome, OutcomeBatch},
    },
    time::EpochMillis,
    trace_parent::TRACEPARENT,
};
use metrics::{counter, gauge};
use std::{collections::HashMap, time::Duration};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

/// Batches published together; a batch has at most a megabyte, or one outcome.
const BATCHES: u32 = 16;
/// How long a claim lasts: well above the longest that the broker may take to confirm.
const LEASE: Duration = Duration::from_secs(60);
/// When an outcome is tried again that the broker refused: a queue bound for it is full and says so.
const REFUSED_AGAIN: Duration = Duration::from_secs(5);
/// Waited after a batch that was not full, so that the next one has more in it.
const LINGER: Duration = Duration::from_millis(20);
/// Longest pause between two looks at an empty table.
const IDLE: Duration = Duration::from_millis(250);
/// Longest routing key of AMQP, in bytes.
const LONGEST_KEY: usize = 255;

/// What one pass came to.
enum Pass {
    /// There is probably more.
    Full,
    /// Something was published.
    Some,
    /// Nothing was there.
    Nothing,
    /// The broker takes nothing now.
    Stuck,
}

/// Publishes until `shutdown`; the batch in hand is completed first.
pub(super) async fn run(ports: Ports, names: Names, shutdown: CancellationToken) {
    let mut publisher = Publisher {
        ports,
        exchange: names.outcomes_exchange(),
        apps: HashMap::new(),
        more: false,
        shutdown: shutdown.clone(),
    };
    let mut pauses = patient();
    let mut idle = LINGER;
    loop {
        let wait = match publisher.pass().await {
            Ok(Pass::Full) => Duration::ZERO,
            Ok(Pass::Some) => LINGER,
            Ok(Pass::Nothing) => {
                idle = (idle * 2).min(IDLE);
                idle
            }
            Ok(Pass::Stuck) => pauses.next().unwrap_or_default(),
            Err(failure) => {
                warn!(error = %chain(&failure), "publishing outcomes later");
                pauses.next().unwrap_or_default()
            }
        };
        if wait <= LINGER {
            (pauses, idle) = (patient(), LINGER);
        }
        if !pause(&shutdown, wait).await {
            return;
        }
    }
}

struct Publisher {
    ports: Ports,
    exchange: String,
    /// Names of apps never change.
    apps: HashMap<AppId, String>,
    /// The last batch was full, so there is no need to look whether something is there.
    more: bool,
    shutdown: CancellationToken,
}

impl Publisher {
    async fn pass(&mut self) -> Result<Pass, StoreError> {
        let store = &self.ports.store;
        let now = store.now();
        if !std::mem::take(&mut self.more) {
            let oldest = outcomes::oldest_due(&mut *store.reader().await?, now).await?;
            show_age(now, oldest);
            if oldest.is_none() {
                return Ok(Pass::Nothing);
            }
        }
        if *self.ports.broker.health().borrow() != BrokerHealth::Ready {
            return Ok(Pass::Stuck);
        }
        let claimed = store
            .transact(|| async {
                let mut tx = store.begin().await?;
                let claimed = outcomes::claim(&mut tx, now, now + LEASE, BATCHES).await?;
                tx.commit().await?;
                Ok(claimed)
            })
            .await?;
        if !claimed.is_empty() {
            reach(CrashPoint::OutcomeClaimed);
        }
        let ends = claimed.iter().flat_map(|batch| &batch.outcomes);
        show_age(now, ends.map(|outcome| outcome.created_at).min());
        self.know_apps(&claimed).await?;
        let pass = self.publish(claimed).await?;
        self.more = matches!(pass, Pass::Full);
        Ok(pass)
    }

    async fn publish(&self, claimed: Vec<OutcomeBatch>) -> Result<Pass, StoreError> {
        let full = claimed.len() >= BATCHES as usize;
        let publications: Vec<_> = claimed
            .iter()
            .flat_map(|batch| &batch.outcomes)
            .map(|outcome| self.publication(outcome))
            .collect();
        let all = publications.len();
        let mut answers = self.ports.broker.publish(publications).await.into_iter();
        if all > 0 {
            reach(CrashPoint::OutcomePublished);
        }
        let (mut done, mut rests) = (Vec::new(), Vec::new());
        let (mut refused, mut unknown) = (0, 0);
        for OutcomeBatch { id, outcomes } in claimed {
            let mut rest = Vec::new();
            for (outcome, answer) in outcomes.into_iter().zip(&mut answers) {
                match answer {
                    // Returned cannot be, since it is not mandatory; and nobody who wants it is nobody to wait for.
                    PublishOutcome::Confirmed | PublishOutcome::Returned => continue,
                    PublishOutcome::Nacked => refused += 1,
                    PublishOutcome::Unknown => unknown += 1,
                }
                rest.push(outcome);
            }
            if rest.is_empty() {
                done.push(id);
            } else {
                rests.push(OutcomeBatch { id, outcomes: rest });
            }
        }
        counter!("isocost_outcomes_published_total").increment((all - refused - unknown) as u64);
        if refused > 0 {
            warn!(
                outcomes = refused,
                "the broker refuses outcomes: a queue bound to the exchange of outcomes is full"
            );
        }
        let pause = if unknown > 0 {
            Duration::ZERO
        } else {
            REFUSED_AGAIN
        };
        self.note(&done, &rests, self.ports.store.now() + pause).await?;
        Ok(match (unknown, full) {
            (0, true) => Pass::Full,
            (0, false) => Pass::Some,
            _ => Pass::Stuck,
        })
    }

    /// Deletes what is published and makes the rest due again, trying for as long as the database is away: what is published
    /// and not deleted is published again.
    async fn note(
        &self,
        done: &[OutcomeBatchId],
        rests: &[OutcomeBatch],
        due_at: EpochMillis,
    ) -> Result<(), StoreError> {
        if done.is_empty() && rests.is_empty() {
            return Ok(());
        }
        let store = &self.ports.store;
        let mut pauses = patient();
        loop {
            let written = store
                .transact(|| async {
                    let mut tx = store.begin().await?;
                    write(&mut tx, done, rests, due_at).await?;
                    tx.commit().await
                })
                .await;
            match written {
                Err(failure) if failure.is_transient() => {
                    debug!(error = %chain(&failure), "noting published outcomes again");
                }
                other => return other,
            }
            if !pause(&self.shutdown, pauses.next().unwrap_or_default()).await {
                return Ok(());
            }
        }
    }

    async fn know_apps(&mut self, claimed: &[OutcomeBatch]) -> Result<(), StoreError> {
        let unknown: Vec<AppId> = claimed
            .iter()
            .flat_map(|batch| &batch.outcomes)
            .map(|outcome| outcome.app)
            .filter(|app| !self.apps.contains_key(app))
            .collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let listed = apps::list(&mut *self.ports.store.reader().await?).await?;
        self.apps.extend(listed.into_iter().map(|app| (app.id, app.name)));
        for app in unknown {
            // Not asked for again in each batch.
            self.apps.entry(app).or_insert_with(|| app.to_string());
        }
        Ok(())
    }

    fn publication(&self, outcome: &Outcome) -> Publication {
        let app = self.apps.get(&outcome.app).map_or("", String::as_str);
        let mut headers = MessageHeaders::from([(SCHEMA_VERSION_HEADER.into(), SCHEMA_VERSION.to_string())]);
        if let Some(parent) = &outcome.traceparent {
            headers.insert(TRACEPARENT.into(), parent.to_string());
        }
        Publication {
            exchange: self.exchange.clone(),
            routing_key: routing_key(app, &outcome.handler, outcome.status),
            // Nobody has to listen.
            mandatory: false,
            message: Message {
                message_id: outcome.execution.to_string(),
                kind: outcome.status.outcome_type().to_owned(),
                timestamp: outcome.created_at,
                priority: 0,
                expiration_ms: None,
                reply_to: None,
                correlation_id: None,
                user_id: None,
                headers,
                content_type: None,
                body: outcome.body.as_str().to_owned().into(),
            },
        }
    }
}

async fn write(
    tx: &mut Tx,
    done: &[OutcomeBatchId],
    rests: &[OutcomeBatch],
    due_at: EpochMillis,
) -> Result<(), StoreError> {
    outcomes::delete(tx, done).await?;
    for rest in rests {
        outcomes::postpone(tx, rest, due_at).await?;
    }
    Ok(())
}

fn show_age(now: EpochMillis, oldest: Option<EpochMillis>) {
    let age = oldest.map_or(Duration::ZERO, |ended_at| now.since(ended_at));
    gauge!("isocost_outcomes_backlog_age_seconds").set(age.as_secs_f64());
}

/// `<app>.<handler>.<status>`. Dots in the names stay: they make words of their own, so that `#` reaches over them. What
/// is too long for AMQP is cut at the end of the handler, then of the app; the body has the whole names.
fn routing_key(app: &str, handler: &str, status: ExecutionStatus) -> String {
    let status = status.api_name();
    let room = LONGEST_KEY - status.len() - 2;
    let app = &app[..app.floor_char_boundary(room.min(app.len()))];
    let handler = &handler[..handler.floor_char_boundary((room - app.len()).min(handler.len()))];
    format!("{app}.{handler}.{status}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_routing_key_names_app_handler_and_status_and_fits() {
        let key = |app: &str, handler: &str| routing_key(app, handler, ExecutionStatus::TimedOut);
        assert_eq!(key("billing", "report.daily"), "billing.report.daily.TIMED_OUT");
        assert_eq!(key("billing", &"h".repeat(255)).len(), LONGEST_KEY);
        let wide = key(&"€".repeat(128), &"h".repeat(255));
        assert!(
            wide.len() <= LONGEST_KEY && wide.ends_with(".TIMED_OUT"),
            "{wide}"
        );
    }
}
