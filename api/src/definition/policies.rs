use crate::input::{Findings, MAX_DURATION_MS, Object};
use isocost_common::job::{Backoff, ConcurrencyPolicy, Misfire, MisfirePolicy, RetryPolicy};

/// Words of `retry.backoff`.
pub(super) const BACKOFFS: [(&str, Backoff); 2] =
    [("fixed", Backoff::Fixed), ("exponential", Backoff::Exponential)];
/// Words of `misfire.policy`.
pub(super) const MISFIRES: [(&str, MisfirePolicy); 3] = [
    ("fireOnce", MisfirePolicy::FireOnce),
    ("skip", MisfirePolicy::Skip),
    ("catchUp", MisfirePolicy::CatchUp),
];
/// Words of `concurrency`.
pub(super) const CONCURRENCIES: [(&str, ConcurrencyPolicy); 3] = [
    ("parallel", ConcurrencyPolicy::Parallel),
    ("serial", ConcurrencyPolicy::Serial),
    ("discard", ConcurrencyPolicy::Discard),
];

pub(super) fn retry(object: &mut Object<'_>, findings: &mut Findings) -> RetryPolicy {
    let default = RetryPolicy::default();
    let Some(mut fields) = object
        .take("retry")
        .and_then(|value| Object::open(&value, findings))
    else {
        return default;
    };
    let initial_ms = fields
        .take("initialMs")
        .map(|value| value.integer(0..=MAX_DURATION_MS, findings));
    let mut integer = |name, range, findings: &mut Findings| {
        fields.take(name).and_then(|value| value.integer(range, findings))
    };
    let max_attempts = integer("maxAttempts", 1..=100, findings);
    let max_ms = integer("maxMs", 0..=MAX_DURATION_MS, findings);
    let backoff = fields
        .take("backoff")
        .and_then(|value| value.choice(&BACKOFFS, findings));
    let initial_is_wrong = initial_ms == Some(None);
    let initial_or_default = initial_ms.flatten().unwrap_or(default.initial_ms);
    if !initial_is_wrong && max_ms.is_some_and(|max| max < initial_or_default) {
        let what = format!("maxMs must be at least initialMs ({initial_or_default})");
        findings.push(fields.error_at("maxMs", "retry.max-below-initial", what));
    }
    fields.close(findings);
    RetryPolicy {
        max_attempts: max_attempts
            .and_then(|attempts| u32::try_from(attempts).ok())
            .unwrap_or(default.max_attempts),
        backoff: backoff.unwrap_or(default.backoff),
        initial_ms: initial_or_default,
        max_ms: max_ms.unwrap_or(default.max_ms.max(initial_or_default)),
    }
}

pub(super) fn misfire(object: &mut Object<'_>, findings: &mut Findings) -> Misfire {
    let default = Misfire::default();
    let Some(mut fields) = object
        .take("misfire")
        .and_then(|value| Object::open(&value, findings))
    else {
        return default;
    };
    let policy = fields
        .take("policy")
        .and_then(|value| value.choice(&MISFIRES, findings));
    let max_catch_up = fields
        .take("maxCatchUp")
        .and_then(|value| value.integer(1..=1_000, findings));
    fields.close(findings);
    Misfire {
        policy: policy.unwrap_or(default.policy),
        max_catch_up: max_catch_up
            .and_then(|most| u32::try_from(most).ok())
            .unwrap_or(default.max_catch_up),
    }
}

pub(super) fn concurrency(object: &mut Object<'_>, findings: &mut Findings) -> ConcurrencyPolicy {
    object
        .take("concurrency")
        .and_then(|value| value.choice(&CONCURRENCIES, findings))
        .unwrap_or_default()
}
