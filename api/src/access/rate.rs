use crate::problem::{Kind, Problem};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use isocost_common::id::AppId;
use parking_lot::Mutex;
use std::collections::HashMap;
use tokio::time::Instant;

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// Requests of each app, counted in this process: a bucket that holds one second's worth and fills evenly.
#[derive(Default)]
pub(crate) struct RateLimits {
    buckets: Mutex<HashMap<AppId, Bucket>>,
}

struct Bucket {
    tokens: f64,
    filled_at: Instant,
}

/// What the limit says about one request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Decision {
    limit: Option<u32>,
    left: f64,
    permitted: bool,
}

impl RateLimits {
    /// Counts one request of `app`, which may make `limit` a second.
    pub(crate) fn take(&self, app: AppId, limit: Option<u32>) -> Decision {
        let Some(per_second) = limit else {
            return Decision {
                limit,
                left: 0.0,
                permitted: true,
            };
        };
        let now = Instant::now();
        let full = f64::from(per_second);
        let mut buckets = self.buckets.lock();
        let bucket = buckets.entry(app).or_insert(Bucket {
            tokens: full,
            filled_at: now,
        });
        let gained = now.duration_since(bucket.filled_at).as_secs_f64() * full;
        bucket.tokens = (bucket.tokens + gained).min(full);
        bucket.filled_at = now;
        let permitted = bucket.tokens >= 1.0;
        if permitted {
            bucket.tokens -= 1.0;
        }
        Decision {
            limit,
            left: bucket.tokens,
            permitted,
        }
    }
}

impl Decision {
    /// # Errors
    /// [`Problem`] 429 when the request is over the limit.
    pub(crate) fn permitted(self) -> Result<(), Problem> {
        if self.permitted {
            return Ok(());
        }
        let limit = self.limit.unwrap_or_default();
        let problem = Problem::new(
            Kind::TooManyRequests,
            "rate.exceeded",
            format!("the app may make {limit} requests a second; slow down or ask the operator for more"),
        );
        let [(policy_name, policy), (left_name, left)] = self.texts();
        Err(problem
            .retry_after(1)
            .with_header(policy_name, &policy)
            .with_header(left_name, &left))
    }

    /// Tells the client how much is left.
    pub(crate) fn describe(self, headers: &mut HeaderMap) {
        if self.limit.is_none() {
            return;
        }
        for (name, text) in self.texts() {
            if let Ok(value) = HeaderValue::from_str(&text) {
                headers.insert(name, value);
            }
        }
    }

    fn texts(self) -> [(HeaderName, String); 2] {
        let limit = self.limit.unwrap_or_default();
        [
            (RATE_LIMIT_POLICY, format!(r#""app";q={limit};w=1"#)),
            (RATE_LIMIT, format!(r#""app";r={};t=1"#, self.left.floor())),
        ]
    }
}
