//! What every implementation of the coordination port promises. Each case runs on each implementation, with names of its
//! own.

mod heartbeats;
mod keys;
mod locks;
mod redis_alone;

use anyhow::{Context, Result};
use async_trait::async_trait;
use isocost_common::{
    config::{CoordinationConfig, Secret},
    coordination::{Coordination, memory::MemoryCoordination, redis::RedisCoordination},
};
use std::{sync::Arc, time::Duration};

/// One implementation, as the cases need it.
#[async_trait]
pub(crate) trait UnderTest: Send + Sync {
    /// A connection to the service, as another process would have.
    async fn connect(&self) -> Result<Arc<dyn Coordination>>;

    /// Makes the service forget what this test has told it, as after a flush.
    async fn forget(&self) -> Result<()>;
}

/// The in-process service.
struct MemoryUnderTest(Arc<MemoryCoordination>);

impl MemoryUnderTest {
    fn start() -> Self {
        Self(MemoryCoordination::new())
    }
}

#[async_trait]
impl UnderTest for MemoryUnderTest {
    async fn connect(&self) -> Result<Arc<dyn Coordination>> {
        Ok(Arc::clone(&self.0) as Arc<dyn Coordination>)
    }

    async fn forget(&self) -> Result<()> {
        self.0.flush();
        Ok(())
    }
}

/// A part of the Redis that all tests share: the keys under a prefix of this test's own.
struct RedisUnderTest {
    prefix: String,
}

impl RedisUnderTest {
    fn start() -> Self {
        Self {
            prefix: unique("redis"),
        }
    }
}

/// The Redis of the tests.
fn redis_url() -> Result<String> {
    const VARIABLE: &str = "ISOCOST_TEST_REDIS_URL";
    std::env::var(VARIABLE).with_context(|| format!("no Redis: start with ./test, or set {VARIABLE}"))
}

#[async_trait]
impl UnderTest for RedisUnderTest {
    async fn connect(&self) -> Result<Arc<dyn Coordination>> {
        let config = CoordinationConfig {
            url: Secret::new(&redis_url()?),
            prefix: self.prefix.clone(),
            // What is slow here is the machine, with all tests at once.
            command_timeout_ms: 10_000,
        };
        Ok(RedisCoordination::start(&config)?)
    }

    async fn forget(&self) -> Result<()> {
        let client = redis::Client::open(redis_url()?)?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        let script = "for _, key in ipairs(redis.call('KEYS', ARGV[1])) do redis.call('DEL', key) end";
        redis::cmd("EVAL")
            .arg(script)
            .arg(0)
            .arg(format!("{{{}}}:*", self.prefix))
            .query_async::<()>(&mut connection)
            .await?;
        Ok(())
    }
}

/// A name that no other test uses.
pub(crate) fn unique(name: &str) -> String {
    format!("contract.{name}.{}", uuid::Uuid::new_v4())
}

/// Longer than any test.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// Short, but long enough that what was just written is still there at the next call.
pub(crate) const SHORT: Duration = Duration::from_millis(200);

/// Makes a test of every case for every implementation.
macro_rules! contract {
    ($($module:ident { $($case:ident),+ $(,)? })+) => {
        contract!(@on memory, MemoryUnderTest::start(), $($module { $($case),+ })+);
        contract!(@on redis_server, RedisUnderTest::start(), $($module { $($case),+ })+);
    };
    (@on $implementation:ident, $start:expr, $($module:ident { $($case:ident),+ })+) => {
        mod $implementation {
            use super::*;
            $(mod $module {
                use super::*;
                $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() -> Result<()> {
                    crate::$module::$case(&$start).await
                })+
            })+
        }
    };
}

contract! {
    locks {
        a_lock_has_one_holder,
        a_released_lock_is_free,
        only_the_holder_releases,
        only_the_holder_renews,
        a_lock_runs_out_at_its_ttl,
        a_renewed_lock_outlives_its_first_ttl,
        an_expired_lock_is_neither_renewed_nor_released_by_its_old_holder,
        taking_it_again_with_the_same_token_is_refused,
        locks_with_other_names_are_independent,
        of_many_at_once_exactly_one_gets_it,
    }
    heartbeats {
        a_heartbeat_is_seen_with_its_payload_and_age,
        the_latest_heartbeat_of_an_incarnation_counts,
        a_heartbeat_runs_out,
        an_entombed_incarnation_is_fenced_and_unseen,
        a_tombstone_concerns_one_incarnation,
        a_tombstone_runs_out,
        a_service_that_forgot_says_so_and_goes_on,
    }
    keys {
        a_key_is_claimed_once,
        a_freed_key_can_be_claimed_again,
        a_key_runs_out,
        freeing_a_free_key_is_no_error,
        of_many_at_once_exactly_one_claims,
        it_answers,
    }
}
