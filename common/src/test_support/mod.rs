//! For tests, of this crate and of the roles: a database of its own for each test, rows to start from, a network that
//! breaks at the test's word, waiting with a deadline. Compiled only with the feature `test-support`.
//!
//! ```text
//! async fn a_paused_job_does_not_fire(store: &TestStore) -> anyhow::Result<()> { … }
//!
//! isocost_common::store_tests! { a_paused_job_does_not_fire }
//! ```
//! makes two tests of it, `sqlite::a_paused_job_does_not_fire` and `mysql::a_paused_job_does_not_fire`. The crate that
//! says so needs `tokio` (with `macros`) and `anyhow` among its dev-dependencies.

mod freezing;
pub mod given;
mod mariadb_server;
pub mod proxy;
pub mod rabbitmq_server;
mod redis_server;
mod server;
mod test_store;

pub use freezing::freeze;
pub use mariadb_server::MariadbServer;
pub use redis_server::RedisServer;
pub use test_store::TestStore;

use std::time::Duration;
use tokio::time::Instant;

/// How often [`eventually`] looks.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Waits until `look` finds something, and returns it.
///
/// # Errors
/// That `what` did not come to pass before the deadline; or the first error of `look`.
pub async fn eventually<T>(
    what: &str,
    within: Duration,
    mut look: impl AsyncFnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let deadline = Instant::now() + within;
    loop {
        if let Some(found) = look().await? {
            return Ok(found);
        }
        anyhow::ensure!(Instant::now() < deadline, "not within {within:?}: {what}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Makes two tests of every named case, one on SQLite and one on MariaDB or MySQL, each with a database of its own. A
/// case is an `async fn(&TestStore) -> anyhow::Result<()>` in the same module.
#[macro_export]
macro_rules! store_tests {
    ($($case:ident),+ $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() -> anyhow::Result<()> {
                $crate::test_support::TestStore::on_sqlite(super::$case).await
            })+
        }
        mod mysql {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() -> anyhow::Result<()> {
                $crate::test_support::TestStore::on_mysql(super::$case).await
            })+
        }
    };
}
