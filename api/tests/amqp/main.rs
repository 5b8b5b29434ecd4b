//! Jobs submitted over AMQP, on each broker and each database. What a case promises is in its name.

mod accepting;
mod examples;
mod refusing;
mod site;
mod waiting;

/// Makes tests of every case: each broker and each database is used.
macro_rules! cases {
    ($($case:ident),+ $(,)?) => {
        cases!(@on memory_sqlite, on_sqlite, memory, $($case),+);
        cases!(@on memory_mysql, on_mysql, memory, $($case),+);
        cases!(@on rabbit_mysql, on_mysql, rabbit, $($case),+);
    };
    (@on $module:ident, $store:ident, $line:ident, $($case:ident),+) => {
        mod $module {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() -> anyhow::Result<()> {
                isocost_common::test_support::TestStore::$store(async |store| {
                    let site = crate::site::Site::start(store, crate::site::Line::$line().await?).await?;
                    super::$case(&site).await?;
                    site.stop().await
                })
                .await
            })+
        }
    };
}
pub(crate) use cases;
