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
    id::{AppId, ExecutionId},
    store::{
        StoreError, apps,
        outcomes::{self, OutcomeRow},
    },
    time::EpochMillis,
    trace_parent::TRACEPARENT,
};
use metrics::{counter, gauge};
use std::{collections::HashMap, time::Duration};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

/// Outcomes published together. A result has at most 256 KiB by default, so the largest batch stays below 64 MiB.
const BATCH: u32 = 256;
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
                let claimed = outcomes::claim(&mut tx, now, now + LEASE, BATCH).await?;
                tx.commit().await?;
                Ok(claimed)
            })
            .await?;
        if !claimed.is_empty() {
            reach(CrashPoint::OutcomeClaimed);
        }
        show_age(now, claimed.first().map(|outcome| outcome.created_at));
        self.know_apps(&claimed).await?;
        let pass = self.publish(claimed).await?;
        self.more = matches!(pass, Pass::Full);
        Ok(pass)
    }

    async fn publish(&self, claimed: Vec<OutcomeRow>) -> Result<Pass, StoreError> {
        let full = claimed.len() >= BATCH as usize;
        let ids: Vec<_> = claimed.iter().map(|outcome| outcome.execution).collect();
        let publications = claimed.into_iter().map(|outcome| self.publication(outcome));
        let answers = self.ports.broker.publish(publications.collect()).await;
        if !ids.is_empty() {
            reach(CrashPoint::OutcomePublished);
        }
        let (mut done, mut refused, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
        for (id, answer) in ids.into_iter().zip(answers) {
            match answer {
                // Returned cannot be, since it is not mandatory; and nobody who wants it is nobody to wait for.
                PublishOutcome::Confirmed | PublishOutcome::Returned => done.push(id),
                PublishOutcome::Nacked => refused.push(id),
                PublishOutcome::Unknown => unknown.push(id),
            }
        }
        counter!("isocost_outcomes_published_total").increment(done.len() as u64);
        if !refused.is_empty() {
            warn!(
                outcomes = refused.len(),
                "the broker refuses outcomes: a queue bound to the exchange of outcomes is full"
            );
        }
        let now = self.ports.store.now();
        self.write(&done, None).await?;
        self.write(&refused, Some(now + REFUSED_AGAIN)).await?;
        self.write(&unknown, Some(now)).await?;
        Ok(match (unknown.is_empty(), full) {
            (false, _) => Pass::Stuck,
            (true, true) => Pass::Full,
            (true, false) => Pass::Some,
        })
    }

    /// Deletes outcomes, or makes them due again, trying for as long as the database is away: what is published and not
    /// deleted is published again.
    async fn write(&self, ids: &[ExecutionId], due_at: Option<EpochMillis>) -> Result<(), StoreError> {
        if ids.is_empty() {
            return Ok(());
        }
        let store = &self.ports.store;
        let mut pauses = patient();
        loop {
            let written = store
                .transact(|| async {
                    let mut tx = store.begin().await?;
                    match due_at {
                        None => outcomes::delete(&mut tx, ids).await?,
                        Some(at) => outcomes::postpone(&mut tx, ids, at).await?,
                    }
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

    async fn know_apps(&mut self, claimed: &[OutcomeRow]) -> Result<(), StoreError> {
        if claimed.iter().all(|outcome| self.apps.contains_key(&outcome.app)) {
            return Ok(());
        }
        let listed = apps::list(&mut *self.ports.store.reader().await?).await?;
        self.apps.extend(listed.into_iter().map(|app| (app.id, app.name)));
        for outcome in claimed {
            // Not asked for again in each batch.
            self.apps
                .entry(outcome.app)
                .or_insert_with(|| outcome.app.to_string());
        }
        Ok(())
    }

    fn publication(&self, outcome: OutcomeRow) -> Publication {
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
                body: outcome.body.into(),
            },
        }
    }
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
