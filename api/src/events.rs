//! `/openapi/events`: transitions as they happen, as server-sent events. The table is the source, so a client that
//! reconnects with `Last-Event-ID` misses nothing.

use crate::{
    access::{Authorized, Read},
    input::{Findings, QueryText},
    problem::Problem,
    state::ApiState,
};
use axum::{
    extract::State,
    http::HeaderMap,
    response::sse::{Event, KeepAlive, Sse},
};
use futures_util::{Stream, stream};
use isocost_common::{
    execution::ExecutionStatus,
    id::{AppId, ExecutionId, JobId},
    store::{
        StoreError,
        listing::{self, WatchedTransition},
    },
    time::EpochMillis,
};
use serde::Serialize;
use std::{
    collections::{BTreeMap, VecDeque, btree_map::Entry},
    convert::Infallible,
    time::Duration,
};
use tracing::warn;
use utoipa::ToSchema;

/// How often the table is looked at while nothing happens.
const POLL: Duration = Duration::from_millis(250);
/// Events read at once.
const BATCH: i64 = 500;
/// A number is given before its row is visible, so a row may appear behind a later one: what is this close to the
/// newest is looked at again.
const SETTLES_WITHIN: Duration = Duration::from_millis(1_000);

/// What an event says.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TransitionEvent)]
pub(crate) struct EventBody {
    /// The job.
    #[schema(value_type = String, format = Uuid)]
    job_id: JobId,
    /// The execution; absent for an event of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = Uuid)]
    execution_id: Option<ExecutionId>,
    /// Starts so far.
    attempt: u32,
    /// The state before.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<&'static str>,
    /// The state after.
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<&'static str>,
    /// The worker concerned.
    #[serde(skip_serializing_if = "Option::is_none")]
    worker_id: Option<String>,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    /// When.
    #[schema(value_type = String, format = DateTime)]
    at: EpochMillis,
}

impl From<WatchedTransition> for EventBody {
    fn from(seen: WatchedTransition) -> Self {
        Self {
            job_id: seen.job,
            execution_id: seen.execution,
            attempt: seen.attempt,
            from: seen.from.map(ExecutionStatus::name),
            to: seen.to.map(ExecutionStatus::name),
            worker_id: seen.worker,
            message: seen.message,
            at: seen.at,
        }
    }
}

/// Live transitions, from now on or after `Last-Event-ID`.
#[utoipa::path(
    get, path = "/openapi/events", operation_id = "streamEvents", tag = "events", security(("key" = ["read"])),
    params(("Last-Event-ID" = Option<String>, Header, description = "The `id` of the last event that was seen")),
    responses((status = 200, body = EventBody, content_type = "text/event-stream"), crate::routes::Problems)
)]
pub(crate) async fn stream(
    State(state): State<ApiState>,
    Authorized { caller, .. }: Authorized<Read>,
    headers: HeaderMap,
    query: QueryText,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    query.close()?;
    let after = match last_seen(&headers)? {
        Some(seq) => seq,
        None => listing::newest_transition(&mut *state.store().reader().await?).await?,
    };
    let feed = Feed {
        app: caller.app(),
        state,
        after,
        seen: BTreeMap::new(),
        ready: VecDeque::new(),
    };
    let events = stream::unfold(feed, |mut feed| async {
        let event = feed.next().await?;
        Some((Ok(event), feed))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(Duration::from_secs(15))))
}

/// The event that the client saw last. Passing over one that cannot be read would leave a gap that nobody notices.
fn last_seen(headers: &HeaderMap) -> Result<Option<i64>, Problem> {
    let Some(given) = headers.get("last-event-id") else {
        return Ok(None);
    };
    let seq: Option<i64> = given.to_str().ok().and_then(|id| id.trim().parse().ok());
    let mut findings = Findings::default();
    let seq = seq.filter(|seq| *seq >= 0);
    if seq.is_none() {
        let what = "the header Last-Event-ID must be the `id` of an event of this stream, a whole number; leave it out \
                    to begin with what happens next";
        findings.parameter("Last-Event-ID", "parameter.invalid", what);
    }
    findings.into_result(Some(seq))
}

/// One client's place in the table.
struct Feed {
    app: AppId,
    state: ApiState,
    /// Everything up to here was sent, and nothing can appear there any more.
    after: i64,
    /// What was sent or passed over beyond that, with the instant it was seen.
    seen: BTreeMap<i64, EpochMillis>,
    ready: VecDeque<WatchedTransition>,
}

impl Feed {
    /// The next event; none when the server is about to end, or the client has to come back because the database is
    /// away.
    async fn next(&mut self) -> Option<Event> {
        while self.ready.is_empty() {
            match self.look().await {
                Ok(found) if found => {}
                Ok(_) => {
                    let closing = self.state.closing();
                    if tokio::time::timeout(POLL, closing.cancelled()).await.is_ok() {
                        return None;
                    }
                }
                Err(error) => {
                    warn!(%error, "a stream of events ends; its client comes back with Last-Event-ID");
                    return None;
                }
            }
        }
        let seen = self.ready.pop_front()?;
        let id = seen.seq.to_string();
        Event::default()
            .id(id)
            .event("transition")
            .json_data(EventBody::from(seen))
            .ok()
    }

    /// True when something new was found.
    async fn look(&mut self) -> Result<bool, StoreError> {
        let now = self.state.store().now();
        self.forget_settled(now);
        let limit = BATCH + i64::try_from(self.seen.len()).unwrap_or(0);
        let mut connection = self.state.store().reader().await?;
        let newest = listing::newest_transition(&mut connection).await?;
        let found = listing::transitions_after(&mut connection, self.app, self.after, limit).await?;
        drop(connection);
        let drained = i64::try_from(found.len()).is_ok_and(|found| found < limit);
        for transition in found {
            if let Entry::Vacant(unseen) = self.seen.entry(transition.seq) {
                unseen.insert(now);
                self.ready.push_back(transition);
            }
        }
        // What other apps wrote up to here need not be passed over again.
        if drained && newest > self.after {
            self.seen.entry(newest).or_insert(now);
        }
        Ok(!self.ready.is_empty())
    }

    fn forget_settled(&mut self, now: EpochMillis) {
        while let Some(first) = self.seen.first_entry() {
            if now.since(*first.get()) < SETTLES_WITHIN {
                break;
            }
            self.after = *first.key();
            first.remove();
        }
    }
}
