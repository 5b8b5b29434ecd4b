//! `callback_delivery` and `callback_attempt`: the outbox of webhooks and its history. Settling writes it, the relay
//! works it off ([`attempts`]), the API shows it ([`listing`]).

pub mod attempts;
pub mod listing;

use super::{Connection, StoreError, placeholders, row_chunks, transitions::by_weight};
use crate::{
    config::RelayConfig,
    id::{AppId, DeliveryId, ExecutionId, JobId},
    time::EpochMillis,
    trace_parent::TraceParent,
};
use sqlx::AssertSqlSafe;
use std::time::Duration;

/// Where a delivery stands. The number is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeliveryStatus {
    /// Waits for its next attempt.
    Pending,
    /// An attempt is under way, under a lease.
    Delivering,
    /// The receiver answered 2xx.
    Delivered,
    /// Every attempt failed.
    Exhausted,
    /// It became too old before an attempt succeeded.
    Expired,
    /// The receiver answered 410: it wants no more.
    Gone,
}

impl DeliveryStatus {
    /// Every status, in the order of the codes.
    pub const ALL: [Self; 6] = [
        Self::Pending,
        Self::Delivering,
        Self::Delivered,
        Self::Exhausted,
        Self::Expired,
        Self::Gone,
    ];

    /// The number stored in the table.
    #[must_use]
    pub const fn code(self) -> i64 {
        self as i64
    }

    /// The status with this stored number.
    #[must_use]
    pub fn from_code(code: i64) -> Option<Self> {
        usize::try_from(code)
            .ok()
            .and_then(|index| Self::ALL.get(index).copied())
    }

    /// The word of the API.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Delivering => "DELIVERING",
            Self::Delivered => "DELIVERED",
            Self::Exhausted => "EXHAUSTED",
            Self::Expired => "EXPIRED",
            Self::Gone => "GONE",
        }
    }

    /// The status with this word of the API.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.name() == name)
    }

    /// True when no further attempt is planned.
    #[must_use]
    pub const fn is_ended(self) -> bool {
        !matches!(self, Self::Pending | Self::Delivering)
    }
}

/// A delivery to be written.
#[derive(Debug, Clone)]
pub struct NewDelivery {
    /// The `webhook-id` of every attempt.
    pub id: DeliveryId,
    /// Whose secrets sign it.
    pub app: AppId,
    /// The job.
    pub job: JobId,
    /// The execution it reports.
    pub execution: ExecutionId,
    /// Where it goes.
    pub url: String,
    /// The `type` of its body.
    pub event_type: &'static str,
    /// JSON, sent byte for byte.
    pub body: String,
    /// The trace of the job's submission.
    pub traceparent: Option<TraceParent>,
    /// When it was written, which is when it is due.
    pub created_at: EpochMillis,
}

/// Scheme, host and port of a callback URL: what the limit on concurrent requests counts by. A URL that cannot be read
/// is its own endpoint.
#[must_use]
pub fn endpoint_of(url: &str) -> String {
    let endpoint =
        url::Url::parse(url).map_or_else(|_| url.to_owned(), |parsed| parsed.origin().ascii_serialization());
    endpoint.chars().take(300).collect()
}

/// Age at which deliveries expire, until their first attempt sets what its relay is configured with.
fn default_expiry() -> Duration {
    Duration::from_millis(RelayConfig::default().expires_after_ms)
}

/// Writes deliveries that are due at once.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn insert_many(connection: &mut Connection, deliveries: &[NewDelivery]) -> Result<(), StoreError> {
    for part in by_weight(deliveries, |delivery| delivery.body.len()) {
        for chunk in row_chunks(part) {
            let sql = format!(
                "insert into callback_delivery (id, app_id, job_id, execution_id, url, endpoint, event_type, body, \
                 status, attempt, retry_from, next_attempt_at, created_at, expires_at, traceparent) values {}",
                placeholders(chunk.len(), 15)
            );
            let mut query = sqlx::query(AssertSqlSafe(sql));
            for delivery in chunk {
                query = query
                    .bind(delivery.id.to_string())
                    .bind(delivery.app.to_string())
                    .bind(delivery.job.to_string())
                    .bind(delivery.execution.to_string())
                    .bind(delivery.url.clone())
                    .bind(endpoint_of(&delivery.url))
                    .bind(delivery.event_type)
                    .bind(delivery.body.clone())
                    .bind(DeliveryStatus::Pending.code())
                    .bind(0_i64)
                    .bind(0_i64)
                    .bind(delivery.created_at.0)
                    .bind(delivery.created_at.0)
                    .bind((delivery.created_at + default_expiry()).0)
                    .bind(delivery.traceparent.as_ref().map(ToString::to_string));
            }
            query.execute(&mut *connection).await?;
        }
    }
    Ok(())
}
