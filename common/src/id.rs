//! Identifiers as types, so that two of them cannot be swapped in a call.
//!
//! Generated ids are `UUIDv7`: they sort by creation time, which keeps inserts at the end of every index.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};
use uuid::Uuid;

/// The text is not a UUID.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a UUID")]
pub struct InvalidId(pub String);

macro_rules! uuid_id {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            /// A new id, later in sort order than every id made before it on this machine.
            #[must_use]
            pub fn generate() -> Self {
                Self(Uuid::now_v7())
            }

            /// The id as a UUID.
            #[must_use]
            pub const fn as_uuid(self) -> Uuid {
                self.0
            }

            /// The id with this value.
            #[must_use]
            pub const fn from_uuid(uuid: Uuid) -> Self {
                Self(uuid)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.hyphenated().fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Uuid::try_parse(text).map(Self).map_err(|_| InvalidId(text.chars().take(64).collect()))
            }
        }
    };
}

uuid_id! {
    /// Identifies an app: the tenant that owns keys, jobs, quotas and webhook secrets.
    AppId
}
uuid_id! {
    /// Identifies an API key; the secret part is never stored.
    ApiKeyId
}
uuid_id! {
    /// Identifies a job: the definition, not one of its executions.
    JobId
}
uuid_id! {
    /// Identifies an execution: one firing of one job.
    ExecutionId
}
uuid_id! {
    /// Identifies one life of a worker process, or of it after a fencing.
    IncarnationId
}
uuid_id! {
    /// Identifies a webhook delivery; it is the `webhook-id` header of every attempt.
    DeliveryId
}
uuid_id! {
    /// Identifies outcomes that wait together for their exchange.
    OutcomeBatchId
}
uuid_id! {
    /// Identifies a message on the broker.
    MessageId
}

/// The stable name of a worker, the same across restarts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WorkerId(String);

impl WorkerId {
    /// Characters a worker name may have: they end up in queue names and metric labels.
    ///
    /// # Errors
    /// [`InvalidWorkerId`] unless the name is 1 to 100 characters of `A-Z a-z 0-9 . _ -`.
    pub fn parse(name: &str) -> Result<Self, InvalidWorkerId> {
        let valid = (1..=100).contains(&name.len())
            && name
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
        if valid {
            Ok(Self(name.to_owned()))
        } else {
            Err(InvalidWorkerId(name.chars().take(120).collect()))
        }
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The text cannot name a worker.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("worker id `{0}` must be 1 to 100 characters of A-Z a-z 0-9 . _ -")]
pub struct InvalidWorkerId(pub String);
