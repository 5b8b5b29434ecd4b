//! How fast the adapter is beside lapin alone, in the same run on the same broker. Ignored, for it measures:
//!
//! `cargo test --release -p isocost-common --test broker_contract -- --ignored --nocapture rabbitmq_speed`

use crate::under_test::{classic, declare, publication, shared_rabbit, shared_url};
use anyhow::{Context, Result, ensure};
use futures_util::{StreamExt, future::try_join_all};
use isocost_common::broker::{Broker, ConsumeOptions, Message, PublishOutcome, next_batch};
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties,
    options::{
        BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
    },
    types::FieldTable,
};
use std::time::{Duration, Instant};

const BODY: usize = 1_024;
const COUNT: usize = 40_960;
const WINDOWS: [usize; 2] = [64, 512];
const PREFETCH: u16 = 512;
const ACK_EVERY: usize = 64;

/// Messages a second.
fn rate(from: Instant) -> f64 {
    COUNT as f64 / from.elapsed().as_secs_f64()
}

fn body() -> String {
    "x".repeat(BODY - 2)
}

async fn adapter_publishes(broker: &dyn Broker, queue: &str, window: usize) -> Result<f64> {
    let sent = Message::json("speed", &body());
    let from = Instant::now();
    for _ in 0..COUNT / window {
        let outcomes = broker
            .publish(vec![publication("", queue, sent.clone()); window])
            .await;
        ensure!(
            outcomes
                .iter()
                .all(|outcome| *outcome == PublishOutcome::Confirmed)
        );
    }
    Ok(rate(from))
}

async fn lapin_publishes(channel: &Channel, queue: &str, window: usize) -> Result<f64> {
    let body = body();
    let properties = BasicProperties::default().with_delivery_mode(2);
    let options = BasicPublishOptions {
        mandatory: true,
        immediate: false,
    };
    let from = Instant::now();
    for _ in 0..COUNT / window {
        let sent = (0..window).map(|_| {
            channel.basic_publish(
                "".into(),
                queue.into(),
                options,
                body.as_bytes(),
                properties.clone(),
            )
        });
        let confirms = try_join_all(sent).await?;
        try_join_all(confirms).await?;
    }
    Ok(rate(from))
}

async fn adapter_consumes(broker: &dyn Broker, queue: &str) -> Result<f64> {
    let options = ConsumeOptions {
        prefetch: PREFETCH,
        exclusive: false,
    };
    let from = Instant::now();
    let mut consumer = broker.consume(queue, options).await?;
    let acker = consumer.acker();
    let mut received = 0;
    while received < COUNT {
        let batch = next_batch(&mut *consumer, ACK_EVERY, Duration::from_millis(5)).await?;
        received += batch.len();
        acker
            .ack(&batch.iter().map(|delivery| delivery.tag).collect::<Vec<_>>())
            .await;
    }
    Ok(rate(from))
}

async fn lapin_consumes(connection: &Connection, queue: &str) -> Result<f64> {
    let from = Instant::now();
    let channel = connection.create_channel().await?;
    channel.basic_qos(PREFETCH, BasicQosOptions::default()).await?;
    let options = BasicConsumeOptions::default();
    let mut consumer = channel
        .basic_consume(queue.into(), "".into(), options, FieldTable::default())
        .await?;
    for received in 1..=COUNT {
        let delivery = consumer.next().await.context("the consumer ended")??;
        if received.is_multiple_of(ACK_EVERY) {
            channel
                .basic_ack(delivery.delivery_tag, BasicAckOptions { multiple: true })
                .await?;
        }
    }
    Ok(rate(from))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it measures"]
async fn beside_lapin_alone() -> Result<()> {
    let broker = shared_rabbit()?;
    let connection = Connection::connect(&shared_url()?, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    for round in 1..=3 {
        for window in WINDOWS {
            let (ours, bare) = (classic("ours"), classic("bare"));
            declare(&*broker, &[&ours, &bare]).await?;
            let adapter = adapter_publishes(&*broker, &ours.name, window).await?;
            let lapin = lapin_publishes(&channel, &bare.name, window).await?;
            println!(
                "round {round}, window {window}: {adapter:.0}/s confirmed, lapin alone {lapin:.0}/s, {:.2} of it",
                adapter / lapin
            );
            let adapter = adapter_consumes(&*broker, &ours.name).await?;
            let lapin = lapin_consumes(&connection, &bare.name).await?;
            println!(
                "round {round}: {adapter:.0}/s consumed and acked, lapin alone {lapin:.0}/s, {:.2} of it",
                adapter / lapin
            );
            broker.delete_queue(&ours.name).await?;
            broker.delete_queue(&bare.name).await?;
        }
    }
    Ok(())
}
