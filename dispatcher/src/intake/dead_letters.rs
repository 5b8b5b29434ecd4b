//! Reports that are given up: those that cannot be read, and those whose rows the database refuses for what they hold.
//! A report is never given up because the database cannot write at the moment, whatever it says.

use super::fold::Item;
use isocost_common::{
    broker::{Acker, Broker, Delivery, Message, Publication, PublishOutcome, topology::Names},
    execution::limit_text,
    store::{Store, StoreError, transitions},
};
use metrics::counter;
use tracing::error;

/// Header of dead letters: the reason in words.
const DETAIL: &str = "x-isocost-problem-detail";
/// Longest reason in a header.
const MOST_DETAIL: usize = 1_000;
/// Longest reason in a step.
const MOST_CAUSE: usize = 300;

/// Moves a message to the dead letters, with the reason in a header. It is acked once it is there.
pub(super) async fn bury(
    broker: &dyn Broker,
    names: &Names,
    delivery: &Delivery,
    why: &str,
    acker: &dyn Acker,
) {
    counter!("isocost_reports_dead_total").increment(1);
    error!(
        message.id = delivery.message.message_id,
        error = why,
        "a message of reports goes to the dead letters"
    );
    let publication = Publication {
        exchange: String::new(),
        routing_key: names.dead_results_queue(),
        mandatory: true,
        message: dead(&delivery.message, why),
    };
    match broker.publish(vec![publication]).await.first() {
        Some(PublishOutcome::Confirmed) => acker.ack(&[delivery.tag]).await,
        // The broker moves it, without a reason.
        _ => acker.dead_letter(delivery.tag).await,
    }
}

/// The property `user_id` would be refused: another user sends it now.
fn dead(message: &Message, why: &str) -> Message {
    let mut dead = Message {
        expiration_ms: None,
        user_id: None,
        ..message.clone()
    };
    let reason = limit_text(why, MOST_DETAIL).to_string();
    dead.headers.insert(DETAIL.into(), reason);
    dead
}

/// Notes on the execution that a report of it is given up.
pub(super) async fn note(store: &Store, item: &Item, cause: &str) -> Result<(), StoreError> {
    let now = store.now();
    let message = format!(
        "a report of its worker could not be taken in: {}",
        limit_text(cause, MOST_CAUSE)
    );
    store
        .transact(|| async {
            let mut tx = store.begin().await?;
            transitions::note(&mut tx, item.claim, &message, now).await?;
            tx.commit().await
        })
        .await
}
