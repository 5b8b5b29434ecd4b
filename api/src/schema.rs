//! The shapes of requests as types: what the OpenAPI document shows of them. Requests themselves are read field by
//! field (see `definition`), so that everything wrong is named at once; a test keeps the two equal.

use isocost_common::raw_json::RawJson;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::{
    ToSchema,
    openapi::{Object, ObjectBuilder, Type},
};

macro_rules! trigger_types {
    ($($name:ident = $variant:ident, $schema:ident, $word:literal;)+) => {
        $(
            /// The discriminator of the trigger.
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
            #[serde(rename_all = "camelCase")]
            pub enum $name {
                /// The only value.
                $variant,
            }

            fn $schema() -> Object {
                ObjectBuilder::new()
                    .schema_type(Type::String)
                    .enum_values(Some([$word]))
                    .build()
            }
        )+
    };
}

trigger_types! {
    OnceType = Once, once_type, "once";
    CronType = Cron, cron_type, "cron";
    FixedRateType = FixedRate, fixed_rate_type, "fixedRate";
    FixedDelayType = FixedDelay, fixed_delay_type, "fixedDelay";
    ManualType = Manual, manual_type, "manual";
    AfterType = After, after_type, "after";
}

/// Fires once: at `at`, or `delayMs` after it was accepted, or at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({"type": "once", "delayMs": 5000}))]
pub struct OnceTrigger {
    /// `once`.
    #[serde(rename = "type")]
    #[schema(schema_with = once_type)]
    pub kind: OnceType,
    /// When. In the past it is due at once, which a warning says. Excludes `delayMs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub at: Option<String>,
    /// How long after the job was accepted. Excludes `at`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0)]
    pub delay_ms: Option<i64>,
}

/// Fires at the local times of a cron expression.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({"type": "cron", "expr": "0 0 2 * * ?", "timeZone": "Asia/Shanghai"}))]
pub struct CronTrigger {
    /// `cron`.
    #[serde(rename = "type")]
    #[schema(schema_with = cron_type)]
    pub kind: CronType,
    /// 6 or 7 fields (quartz), 5 fields (unix), or a macro such as `@daily`; at most 256 characters.
    #[schema(max_length = 256)]
    pub expr: String,
    /// IANA name. Default: the configured zone, else UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// `quartz` or `unix`. Default: by the number of fields.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dialect: Option<Dialect>,
}

/// Grammar of a cron expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum Dialect {
    /// second minute hour dayOfMonth month dayOfWeek [year]
    Quartz,
    /// minute hour dayOfMonth month dayOfWeek
    Unix,
}

/// Fires every `everyMs`, counted from `anchor`, however long a run takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({"type": "fixedRate", "everyMs": 5000}))]
pub struct FixedRateTrigger {
    /// `fixedRate`.
    #[serde(rename = "type")]
    #[schema(schema_with = fixed_rate_type)]
    pub kind: FixedRateType,
    /// Distance between two firings, at least 100 ms.
    #[schema(minimum = 100)]
    pub every_ms: i64,
    /// All firings are multiples of `everyMs` away from it. Default: `startAt`, else when the job was accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub anchor: Option<String>,
}

/// Fires `everyMs` after the last run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({"type": "fixedDelay", "everyMs": 60000}))]
pub struct FixedDelayTrigger {
    /// `fixedDelay`.
    #[serde(rename = "type")]
    #[schema(schema_with = fixed_delay_type)]
    pub kind: FixedDelayType,
    /// Pause after the end of a run, at least 100 ms.
    #[schema(minimum = 100)]
    pub every_ms: i64,
}

/// Fires only when asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({"type": "manual"}))]
pub struct ManualTrigger {
    /// `manual`.
    #[serde(rename = "type")]
    #[schema(schema_with = manual_type)]
    pub kind: ManualType,
}

/// Fires when another job has ended: whenever an execution of it ends as `on` says. A job that is cancelled before it
/// ever ran has ended without success.
///
/// When the other job is over (or deleted) and cannot end as wanted any more, this one ends too: COMPLETED when it has
/// fired, else CANCELLED with a `cancelReason`. A retry of the other job that ends as wanted makes it fire all the same.
/// A submission that could never fire is refused (`trigger.never-fires`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({"type": "after", "jobId": "01939c5e-7e2a-7000-8000-000000000000", "on": "success"}))]
pub struct AfterTrigger {
    /// `after`.
    #[serde(rename = "type")]
    #[schema(schema_with = after_type)]
    pub kind: AfterType,
    /// The job it follows.
    pub job_id: uuid::Uuid,
    /// Which endings count. Default `success`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on: Option<On>,
}

/// Which endings of a parent count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum On {
    /// It succeeded.
    Success,
    /// It ended without success.
    Failure,
    /// It ended.
    Any,
}

/// What makes a job fire. Default: once, now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
#[schema(discriminator(property_name = "type", mapping(
    ("once" = "#/components/schemas/OnceTrigger"),
    ("cron" = "#/components/schemas/CronTrigger"),
    ("fixedRate" = "#/components/schemas/FixedRateTrigger"),
    ("fixedDelay" = "#/components/schemas/FixedDelayTrigger"),
    ("manual" = "#/components/schemas/ManualTrigger"),
    ("after" = "#/components/schemas/AfterTrigger")
)))]
pub enum Trigger {
    /// Once.
    Once(OnceTrigger),
    /// By cron expression.
    Cron(CronTrigger),
    /// At an even rate.
    FixedRate(FixedRateTrigger),
    /// With an even pause.
    FixedDelay(FixedDelayTrigger),
    /// When asked.
    Manual(ManualTrigger),
    /// After another job.
    After(AfterTrigger),
}

/// Attempts and the pauses between them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Retry {
    /// Starts allowed in all. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 100)]
    pub max_attempts: Option<u32>,
    /// How the pause grows. Default `exponential`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff: Option<BackoffWord>,
    /// First pause. Default 1000.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0)]
    pub initial_ms: Option<i64>,
    /// Longest pause. Default 60000.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0)]
    pub max_ms: Option<i64>,
}

/// How the pause before the next attempt grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum BackoffWord {
    /// It does not.
    Fixed,
    /// It doubles.
    Exponential,
}

/// What happens to firings that were missed while nothing could fire them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MisfireRule {
    /// Default `fireOnce`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<MisfireWord>,
    /// Most firings that `catchUp` makes up for. Default 10.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1000)]
    pub max_catch_up: Option<u32>,
}

/// What to do about missed firings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum MisfireWord {
    /// One firing now stands for all.
    FireOnce,
    /// They are left out.
    Skip,
    /// Each is made up for.
    CatchUp,
}

/// What happens when a job fires while an earlier execution of it is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum ConcurrencyWord {
    /// Both run.
    Parallel,
    /// The later one waits.
    Serial,
    /// The later one is skipped, visibly.
    Discard,
}

/// A job to submit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({
    "clientRequestId": "settle-2026-11-30",
    "jobName": "nightly settlement",
    "jobHandler": "http",
    "params": {"url": "http://10.0.0.7/settle", "method": "POST"},
    "trigger": {"type": "cron", "expr": "0 0 2 * * ?", "timeZone": "Asia/Shanghai"},
    "startAt": "2026-12-01T00:00:00.000Z",
    "priority": 5,
    "timeoutMs": 600000,
    "startDeadlineMs": 3600000,
    "retry": {"maxAttempts": 3, "backoff": "exponential", "initialMs": 1000, "maxMs": 60000},
    "misfire": {"policy": "fireOnce", "maxCatchUp": 10},
    "concurrency": "serial",
    "shards": 1,
    "selector": {"zone": "a"},
    "concurrencyKey": "customer-17",
    "callbackUrl": "https://example.com/hooks/isocost",
    "labels": {"team": "billing"}
}))]
pub struct SubmitJob {
    /// Makes the submission idempotent within the app, by its exact bytes; at most 255 of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 255)]
    pub client_request_id: Option<String>,
    /// For people.
    #[schema(min_length = 1, max_length = 128)]
    pub job_name: String,
    /// What runs it.
    #[schema(pattern = "^[A-Za-z0-9._-]{1,255}$")]
    pub job_handler: String,
    /// Any JSON value; it reaches the handler byte for byte. Default `null`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub params: Option<RawJson>,
    /// What makes it fire. Default: once, now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trigger: Option<Trigger>,
    /// Short form of a cron trigger; excludes `trigger`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 256)]
    pub cron_expr: Option<String>,
    /// Zone of `cronExpr`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// Grammar of `cronExpr`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dialect: Option<Dialect>,
    /// No firing before this instant.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub start_at: Option<String>,
    /// No firing after this instant.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub end_at: Option<String>,
    /// Higher goes first. Default 5.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 9)]
    pub priority: Option<u8>,
    /// Run time allowed. Default 600000.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub timeout_ms: Option<i64>,
    /// Time from due to start, after which an execution expires. Default: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub start_deadline_ms: Option<i64>,
    /// Attempts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    /// Missed firings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub misfire: Option<MisfireRule>,
    /// Overlapping firings. Default `parallel`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<ConcurrencyWord>,
    /// Executions that a firing is split into. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1000)]
    pub shards: Option<u32>,
    /// Labels that a worker must carry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<BTreeMap<String, String>>,
    /// Executions of all jobs with this key take turns.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 128)]
    pub concurrency_key: Option<String>,
    /// Gets a webhook for every execution that ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 2048)]
    pub callback_url: Option<String>,
    /// For people and filters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
}

/// Jobs to submit, each judged alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SubmitBatch {
    /// 1 to 1,000 jobs. The array may also stand alone, without this object around it.
    #[schema(min_items = 1, max_items = 1000)]
    pub jobs: Vec<SubmitJob>,
}

/// Asks for a job to run now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({"params": {"day": "2026-11-30"}, "clientRequestId": "rerun-2026-11-30"}))]
pub struct TriggerRequest {
    /// In place of the params of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub params: Option<RawJson>,
    /// Makes the call idempotent within the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 200)]
    pub client_request_id: Option<String>,
}

/// Jobs to look at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({"jobIds": ["01939c5e-7e2a-7000-8000-000000000000"]}))]
pub struct StatusRequest {
    /// 1 to 1,000 ids.
    #[schema(min_items = 1, max_items = 1000)]
    pub job_ids: Vec<uuid::Uuid>,
}
