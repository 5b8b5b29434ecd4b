//! The services alone, doing the least that a job would need of them.

use anyhow::{Result, ensure};
use futures_util::StreamExt;
use isocost_tests::cluster::Servers;
use lapin::{
    BasicProperties, Connection, ConnectionProperties,
    options::{
        BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
        QueueDeclareOptions, QueueDeleteOptions,
    },
    types::{AMQPValue, FieldTable},
};
use sqlx::{AssertSqlSafe, Connection as _, MySqlConnection};
use std::time::Instant;

const ROWS: usize = 10_000;
const ROWS_A_COMMIT: usize = 500;
const MESSAGES: usize = 10_000;
const WINDOW: usize = 512;
const BODY: usize = 512;

/// Rows of 200 bytes that are inserted, and updated twice by key, 500 a transaction, on one connection: rows a second.
pub(crate) async fn database(servers: &Servers) -> Result<f64> {
    let mut connection = MySqlConnection::connect(&servers.mariadb.options().url).await?;
    sqlx::query("drop table if exists bare")
        .execute(&mut connection)
        .await?;
    sqlx::query("create table bare (id bigint primary key, status int, at bigint, text varchar(255), key (status, at))")
        .execute(&mut connection)
        .await?;
    let values = vec!["(?, 0, 0, ?)"; ROWS_A_COMMIT].join(",");
    let insert = format!("insert into bare values {values}");
    let text = "x".repeat(200);
    let begin = Instant::now();
    for first in (0..ROWS).step_by(ROWS_A_COMMIT) {
        let mut query = sqlx::query(AssertSqlSafe(insert.as_str()));
        for id in first..first + ROWS_A_COMMIT {
            query = query.bind(i64::try_from(id)?).bind(text.as_str());
        }
        query.execute(&mut connection).await?;
        for status in 1..=2 {
            sqlx::query("update bare set status = ?, at = at + 1 where id >= ? and id < ?")
                .bind(status)
                .bind(i64::try_from(first)?)
                .bind(i64::try_from(first + ROWS_A_COMMIT)?)
                .execute(&mut connection)
                .await?;
        }
    }
    let rate = ROWS as f64 / begin.elapsed().as_secs_f64();
    sqlx::query("drop table bare").execute(&mut connection).await?;
    connection.close().await?;
    Ok(rate)
}

/// Messages of half a kilobyte, one a job, published with confirms to a quorum queue in windows of 512, then consumed
/// and acked: messages a second.
pub(crate) async fn broker(servers: &Servers) -> Result<f64> {
    let url = servers.rabbitmq.config().url;
    let connection = Connection::connect(url.reveal(), ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    let durable = QueueDeclareOptions {
        durable: true,
        ..QueueDeclareOptions::default()
    };
    channel.queue_declare("bare".into(), durable, arguments).await?;
    let body = vec![b'x'; BODY];
    let properties = BasicProperties::default().with_delivery_mode(2);
    let begin = Instant::now();
    let mut open = Vec::with_capacity(WINDOW);
    for sent in 1..=MESSAGES {
        let confirm = channel
            .basic_publish(
                "".into(),
                "bare".into(),
                BasicPublishOptions::default(),
                &body,
                properties.clone(),
            )
            .await?;
        open.push(confirm);
        if open.len() == WINDOW || sent == MESSAGES {
            for confirm in open.drain(..) {
                ensure!(confirm.await?.is_ack(), "the broker refuses messages");
            }
        }
    }
    channel.basic_qos(512, BasicQosOptions::default()).await?;
    let mut consumer = channel
        .basic_consume(
            "bare".into(),
            "".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        )
        .await?;
    for received in 1..=MESSAGES {
        let Some(delivery) = consumer.next().await else {
            anyhow::bail!("the consumer ended");
        };
        let tag = delivery?.delivery_tag;
        if received % 64 == 0 || received == MESSAGES {
            channel.basic_ack(tag, BasicAckOptions { multiple: true }).await?;
        }
    }
    let rate = MESSAGES as f64 / begin.elapsed().as_secs_f64();
    channel
        .queue_delete("bare".into(), QueueDeleteOptions::default())
        .await?;
    connection.close(200, "done".into()).await?;
    Ok(rate)
}
