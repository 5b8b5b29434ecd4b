//! Submits jobs over AMQP with lapin and prints one line for each answer: correlation id, status, body.
//!
//! ```text
//! cargo run -p isocost-api --example submit_amqp -- amqp://billing:secret@127.0.0.1:5672/%2f 3
//! ```
//! Arguments: URL, number of jobs (1), first part of their ids (a new one), namespace (`isocost`), handler (`noop`). The
//! jobs belong to the app that is named like the RabbitMQ user of the URL.

use anyhow::{Context, Result, ensure};
use futures_util::{StreamExt, future::try_join_all};
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties,
    message::Delivery,
    options::{BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable},
    uri::AMQPUri,
};
use serde_json::json;
use std::time::Duration;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
const PERSISTENT: u8 = 2;

#[tokio::main]
async fn main() -> Result<()> {
    // One provider for TLS, which amqps:// URLs need.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().context("give the URL of the broker")?;
    let count: usize = arguments.next().map_or(Ok(1), |text| text.parse())?;
    let prefix = arguments
        .next()
        .unwrap_or_else(|| format!("example-{}", uuid::Uuid::new_v4()));
    let namespace = arguments.next().unwrap_or_else(|| "isocost".into());
    let handler = arguments.next().unwrap_or_else(|| "noop".into());
    let user = url
        .parse::<AMQPUri>()
        .map_err(anyhow::Error::msg)?
        .authority
        .userinfo
        .username;

    let connection = Connection::connect(&url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let replies = channel
        .queue_declare("".into(), QueueDeclareOptions::exclusive(), FieldTable::default())
        .await?;
    let mut answers = channel
        .basic_consume(
            replies.name().clone(),
            "".into(),
            BasicConsumeOptions {
                no_ack: true,
                ..BasicConsumeOptions::default()
            },
            FieldTable::default(),
        )
        .await?;

    let producer = Producer {
        channel,
        namespace,
        handler,
        user,
        reply_to: replies.name().to_string(),
    };
    // All are on their way before the first confirm is waited for.
    let ids: Vec<_> = (0..count).map(|number| format!("{prefix}-{number}")).collect();
    try_join_all(ids.iter().map(|id| producer.publish(id))).await?;
    for _ in 0..count {
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, answers.next())
            .await
            .context("no answer: publish the same again, under the same message_id it stays one job")?
            .context("the consumer ended")??;
        print(&answer);
    }
    connection.close(200, "done".into()).await?;
    Ok(())
}

struct Producer {
    channel: Channel,
    namespace: String,
    handler: String,
    user: String,
    reply_to: String,
}

impl Producer {
    /// Publishes a job and waits until the broker has it.
    async fn publish(&self, id: &str) -> Result<()> {
        let body = json!({"jobName": id, "jobHandler": self.handler, "params": {"from": "submit_amqp"}});
        let properties = BasicProperties::default()
            .with_content_type("application/json".into())
            .with_delivery_mode(PERSISTENT)
            .with_message_id(id.into())
            .with_correlation_id(id.into())
            .with_reply_to(self.reply_to.as_str().into())
            .with_user_id(self.user.as_str().into());
        let confirmation = self
            .channel
            .basic_publish(
                format!("{}.submissions", self.namespace).into(),
                "".into(),
                BasicPublishOptions {
                    mandatory: true,
                    ..BasicPublishOptions::default()
                },
                body.to_string().as_bytes(),
                properties,
            )
            .await?
            .await?;
        ensure!(
            confirmation.is_ack() && confirmation.take_message().is_none(),
            "the broker did not take {id}: does the scheduler use another namespace?"
        );
        Ok(())
    }
}

fn print(answer: &Delivery) {
    let properties = &answer.properties;
    let id = properties.correlation_id().as_ref().map_or("", |id| id.as_str());
    let status = properties
        .headers()
        .as_ref()
        .and_then(|headers| headers.inner().get("x-isocost-status"))
        .map_or_else(String::new, |status| match status {
            AMQPValue::LongString(status) => status.to_string(),
            other => format!("{other:?}"),
        });
    println!("{id} {status} {}", String::from_utf8_lossy(&answer.data));
}
