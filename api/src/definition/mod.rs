//! A job as a user describes it: read, checked whole, and turned into a row. Submission, validation and patch all come
//! through here, so they agree on what is right.

mod callback_url;
mod policies;
mod text;
mod trigger;

pub(crate) use text::text_of;

use crate::{
    input::{Findings, MAX_DURATION_MS, Object, Value},
    problem::Problem,
};
use isocost_common::{
    egress::EgressPolicy,
    id::{AppId, JobId},
    job::{
        ConcurrencyPolicy, DEFAULT_PRIORITY, DEFAULT_TIMEOUT_MS, JobStatus, MAX_PRIORITY, Misfire,
        RetryPolicy, Selector, Trigger, Window,
    },
    raw_json::RawJson,
    store::jobs::JobRow,
    time::EpochMillis,
};
use serde::Serialize;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Longest client request id, in bytes.
pub(crate) const MAX_KEY_BYTES: usize = 255;
/// Most executions that one firing is split into.
const MAX_SHARDS: i64 = 1_000;
/// Most labels or selector entries of a job.
const MAX_LABELS: usize = 32;

/// Something legal that may not be meant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Warning {
    /// A stable word for programs.
    #[schema(value_type = String, example = "handler.not-offered")]
    pub code: &'static str,
    /// What may go wrong and what to do.
    pub message: String,
}

/// What reading a definition depends on besides its text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules<'a> {
    /// The instant of acceptance.
    pub now: EpochMillis,
    /// It takes the place of one that was accepted: what was right then, and is left alone, may be over now.
    pub revises: bool,
    /// Time zone of cron triggers that name none.
    pub default_time_zone: &'a str,
    /// Largest params, in bytes.
    pub max_params_bytes: usize,
    /// Where callbacks may go.
    pub egress: &'a EgressPolicy,
}

/// A checked description of a job.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Definition {
    /// The idempotency key of the body.
    pub client_request_id: Option<String>,
    /// For people.
    pub name: String,
    /// What runs it.
    pub handler: String,
    params: RawJson,
    /// What makes it fire.
    pub trigger: Trigger,
    window: Window,
    /// Its first firing.
    pub first_firing: Option<EpochMillis>,
    priority: u8,
    timeout_ms: i64,
    start_deadline_ms: Option<i64>,
    retry: RetryPolicy,
    misfire: Misfire,
    concurrency: ConcurrencyPolicy,
    concurrency_key: Option<String>,
    shards: u32,
    selector: Selector,
    labels: BTreeMap<String, String>,
    callback_url: Option<String>,
    /// What may not be meant.
    pub warnings: Vec<Warning>,
}

impl Definition {
    /// Reads a body.
    ///
    /// # Errors
    /// [`Problem`] 400 with everything that is wrong.
    pub(crate) fn read(body: &RawValue, rules: Rules<'_>) -> Result<Self, Problem> {
        let mut findings = Findings::default();
        let definition = Self::read_with(body, rules, &mut findings);
        findings.into_result(definition)
    }

    /// Reads a body, beside other findings. A field that is absent has its default. One that is wrong has been recorded,
    /// so what stands for it is not used.
    pub(crate) fn read_with(body: &RawValue, rules: Rules<'_>, findings: &mut Findings) -> Option<Self> {
        let mut object = Object::of_body(body, findings)?;
        let client_request_id = object
            .take("clientRequestId")
            .and_then(|value| read_key(&value, findings));
        let name = object
            .require("jobName", findings)
            .and_then(|value| value.line(1..=128, findings));
        let handler = object
            .require("jobHandler", findings)
            .and_then(|value| read_handler(&value, findings));
        let params = match object.take("params") {
            Some(value) => read_params(&value, rules.max_params_bytes, findings),
            None => Some(RawJson::null()),
        };
        let window = read_window(&mut object, rules, findings);
        let mut warnings = Vec::new();
        let planned = trigger::read(&mut object, window, rules, &mut warnings, findings);
        let priority = optional_integer(&mut object, "priority", 0..=i64::from(MAX_PRIORITY), findings);
        let timeout_ms = optional_integer(&mut object, "timeoutMs", 1..=MAX_DURATION_MS, findings);
        let start_deadline_ms =
            optional_integer(&mut object, "startDeadlineMs", 1..=MAX_DURATION_MS, findings);
        let retry = policies::retry(&mut object, findings);
        let misfire = policies::misfire(&mut object, findings);
        let concurrency = policies::concurrency(&mut object, findings);
        let concurrency_key = object
            .take("concurrencyKey")
            .and_then(|value| value.line(1..=128, findings));
        let shards = optional_integer(&mut object, "shards", 1..=MAX_SHARDS, findings);
        let selector = read_labels(&mut object, "selector", findings);
        let labels = read_labels(&mut object, "labels", findings);
        let callback_url = object
            .take("callbackUrl")
            .and_then(|value| callback_url::read(&value, rules.egress, findings));
        object.close(findings);
        let (trigger, first_firing) = planned?;
        warnings.extend(trigger::in_past(
            &trigger,
            first_firing,
            start_deadline_ms,
            rules.now,
        ));
        Some(Self {
            client_request_id,
            name: name?,
            handler: handler?,
            params: params?,
            trigger,
            window: window?,
            first_firing,
            priority: priority
                .and_then(|p| u8::try_from(p).ok())
                .unwrap_or(DEFAULT_PRIORITY),
            timeout_ms: timeout_ms.unwrap_or(DEFAULT_TIMEOUT_MS),
            start_deadline_ms,
            retry,
            misfire,
            concurrency,
            concurrency_key,
            shards: shards.and_then(|shards| u32::try_from(shards).ok()).unwrap_or(1),
            selector,
            labels,
            callback_url,
            warnings,
        })
    }

    /// The row of a new job.
    #[must_use]
    pub(crate) fn into_row(self, app: AppId, content_hash: String, now: EpochMillis) -> JobRow {
        JobRow {
            id: JobId::generate(),
            app,
            name: self.name,
            handler: self.handler,
            params: self.params,
            trigger: self.trigger,
            start_at: self.window.start_at,
            end_at: self.window.end_at,
            next_trigger_time: self.first_firing,
            status: JobStatus::Waiting,
            invalid_reason: None,
            version: 1,
            definition_version: 1,
            client_request_id: self.client_request_id,
            content_hash,
            callback_url: self.callback_url,
            priority: self.priority,
            timeout_ms: self.timeout_ms,
            start_deadline_ms: self.start_deadline_ms,
            retry: self.retry,
            misfire: self.misfire,
            concurrency: self.concurrency,
            concurrency_key: self.concurrency_key,
            shards: self.shards,
            selector: self.selector,
            labels: self.labels,
            traceparent: None,
            created_at: now,
            updated_at: now,
        }
    }

    /// The row of a job that gets this description in place of its own. What was planned stays planned, unless the
    /// trigger or the window changed.
    #[must_use]
    pub(crate) fn revise(self, job: &JobRow, now: EpochMillis) -> JobRow {
        let replanned = self.trigger != job.trigger
            || self.window.start_at != job.start_at
            || self.window.end_at != job.end_at;
        let (next_trigger_time, status) = match (replanned, job.status) {
            (true, JobStatus::Invalid) => (self.first_firing, JobStatus::Waiting),
            (true, status) => (self.first_firing, status),
            (false, status) => (job.next_trigger_time, status),
        };
        JobRow {
            id: job.id,
            next_trigger_time,
            status,
            invalid_reason: if status == JobStatus::Invalid {
                job.invalid_reason.clone()
            } else {
                None
            },
            version: job.version + 1,
            definition_version: job.definition_version + 1,
            client_request_id: job.client_request_id.clone(),
            traceparent: job.traceparent.clone(),
            created_at: job.created_at,
            ..self.into_row(job.app, job.content_hash.clone(), now)
        }
    }
}

/// The key under which a submission is made at most once. Its length counts in bytes, since its bytes are compared.
pub(crate) fn read_key(value: &Value<'_>, findings: &mut Findings) -> Option<String> {
    let key = value.line(1..=MAX_KEY_BYTES, findings)?;
    if key.len() > MAX_KEY_BYTES {
        let what = format!("must have at most {MAX_KEY_BYTES} bytes, and has {}", key.len());
        findings.push(value.error("text.length", &what));
        return None;
    }
    Some(key)
}

fn read_handler(value: &Value<'_>, findings: &mut Findings) -> Option<String> {
    let handler = value.line(1..=255, findings)?;
    let valid = handler
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'));
    if !valid {
        findings.push(value.error(
            "handler.bad-name",
            "may have only the characters A-Z a-z 0-9 . _ -",
        ));
        return None;
    }
    Some(handler)
}

/// Any JSON value; kept byte for byte.
pub(crate) fn read_params(value: &Value<'_>, most: usize, findings: &mut Findings) -> Option<RawJson> {
    let text = value.raw().get();
    if text.len() > most {
        let what = format!(
            "may have at most {most} bytes (api.max_params_bytes), and have {}",
            text.len()
        );
        findings.push(value.error("params.too-large", &what));
        return None;
    }
    RawJson::parse(text.to_owned()).ok()
}

/// None when something is wrong with it: what fires in it is then not judged, so that one fault is told once.
fn read_window(object: &mut Object<'_>, rules: Rules<'_>, findings: &mut Findings) -> Option<Window> {
    let mut instant = |name| match object.take(name) {
        Some(value) => value.instant(findings).map(Some),
        None => Some(None),
    };
    let (start_at, end_at) = (instant("startAt"), instant("endAt"));
    let window = Window {
        start_at: start_at?,
        end_at: end_at?,
    };
    let (code, what) = match (window.start_at, window.end_at) {
        (Some(start), Some(end)) if end < start => {
            ("window.backwards", "endAt must not be before startAt".to_owned())
        }
        (_, Some(end)) if !rules.revises && end <= rules.now => {
            let what = format!("endAt must be in the future; now it is {}", rules.now);
            ("window.over", what)
        }
        _ => return Some(window),
    };
    findings.push(object.error_at("endAt", code, what));
    None
}

fn optional_integer(
    object: &mut Object<'_>,
    name: &'static str,
    range: std::ops::RangeInclusive<i64>,
    findings: &mut Findings,
) -> Option<i64> {
    object.take(name)?.integer(range, findings)
}

/// Short texts by name.
fn read_labels(
    object: &mut Object<'_>,
    name: &'static str,
    findings: &mut Findings,
) -> BTreeMap<String, String> {
    let Some(value) = object.take(name) else {
        return BTreeMap::new();
    };
    let Some(labels) = Object::open(&value, findings) else {
        return BTreeMap::new();
    };
    let mut read = BTreeMap::new();
    for (key, label) in labels.into_members() {
        let valid_key = (1..=128).contains(&key.chars().count())
            && !key.contains(':')
            && !key.chars().any(char::is_control)
            // MySQL passes over trailing blanks when it compares: `a` and `a ` would be one key.
            && !key.ends_with(' ');
        if !valid_key {
            let what = "must have keys of 1 to 128 characters, without `:`, control characters and a blank at the end";
            findings.push(value.error("label.bad-key", what));
        }
        if let Some(text) = label.line(0..=255, findings) {
            read.insert(key, text);
        }
    }
    if read.len() > MAX_LABELS {
        findings.push(value.error(
            "label.too-many",
            &format!("may have at most {MAX_LABELS} entries"),
        ));
    }
    read
}
