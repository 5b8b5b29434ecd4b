//! What a run asks of the services, by their own counts.

use crate::stage::Stage;
use anyhow::{Context, Result};
use sqlx::{Connection, MySqlConnection, Row};

/// Counts since the start of the servers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RoundTrips {
    sql: f64,
    amqp: f64,
    redis: f64,
}

impl RoundTrips {
    pub(crate) async fn so_far(stage: &Stage) -> Result<Self> {
        let servers = stage.cluster.servers();
        let mut database = MySqlConnection::connect(&servers.mariadb.options().url).await?;
        let questions: String = sqlx::query("show global status like 'Questions'")
            .fetch_one(&mut database)
            .await?
            .try_get(1)?;
        let client = redis::Client::open(servers.redis.config().url.reveal())?;
        let mut redis = client.get_multiplexed_async_connection().await?;
        let said: String = redis::cmd("INFO").arg("stats").query_async(&mut redis).await?;
        let commands = said
            .lines()
            .find_map(|line| line.strip_prefix("total_commands_processed:"))
            .context("Redis counts its commands")?;
        Ok(Self {
            sql: questions.parse()?,
            amqp: stage.metric("isocost_broker_publications_total").await?,
            redis: commands.trim().parse()?,
        })
    }

    /// What was asked between two looks, for each thousand of `jobs`.
    pub(crate) fn since(self, before: Self, jobs: usize) -> String {
        let each = |now: f64, then: f64| (now - then) * 1_000.0 / jobs as f64;
        format!(
            "for 1,000 jobs: {:.0} SQL statements, {:.0} AMQP messages, {:.0} Redis commands",
            each(self.sql, before.sql),
            each(self.amqp, before.amqp),
            each(self.redis, before.redis)
        )
    }
}
