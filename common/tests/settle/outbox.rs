//! The outbox: one attempt at a time is claimed, and what came of it is kept.

use crate::given::*;
use isocost_common::{
    id::{AppId, DeliveryId, ExecutionId, JobId},
    message::CallbackTicket,
    store::{
        Store,
        callbacks::{
            self, DeliveryStatus, NewDelivery,
            attempts::{self, AttemptRecord, Series, Waiting},
            listing::{self, DeliveryFilter, DeliveryRow, Redelivery},
        },
        job_log,
    },
    time::EpochMillis,
};
use std::{collections::HashSet, time::Duration};

const ENDPOINT: &str = "https://example.com";

async fn write(store: &Store, count: usize) -> anyhow::Result<Vec<CallbackTicket>> {
    let deliveries: Vec<_> = (0..count)
        .map(|_| NewDelivery {
            id: DeliveryId::generate(),
            app: AppId::generate(),
            job: JobId::generate(),
            execution: ExecutionId::generate(),
            url: format!("{ENDPOINT}/hook"),
            event_type: "execution.failed",
            body: "{}".into(),
            traceparent: None,
            created_at: END,
        })
        .collect();
    let mut tx = store.begin().await?;
    callbacks::insert_many(&mut tx, &deliveries).await?;
    tx.commit().await?;
    Ok(deliveries
        .iter()
        .map(|delivery| CallbackTicket {
            delivery: delivery.id,
            attempt: 1,
        })
        .collect())
}

async fn waiting(store: &Store, tickets: &[CallbackTicket]) -> anyhow::Result<Vec<Waiting>> {
    let mut reader = store.reader().await?;
    Ok(attempts::of_tickets(&mut reader, tickets).await?)
}

async fn claim(
    store: &Store,
    waiting: &[Waiting],
    until: EpochMillis,
) -> anyhow::Result<HashSet<DeliveryId>> {
    let mut tx = store.begin().await?;
    let claimed = attempts::claim(&mut tx, waiting, until).await?;
    tx.commit().await?;
    Ok(claimed)
}

fn record_of(delivery: &Waiting, status: DeliveryStatus) -> AttemptRecord {
    AttemptRecord {
        delivery: delivery.id,
        job: delivery.job,
        execution: delivery.execution,
        attempt: delivery.attempt + 1,
        started_at: END,
        finished_at: END,
        status_code: Some(500),
        error: Some("HTTP 500".into()),
        response_body: Some("no".into()),
        status,
        next_attempt_at: END + Duration::from_secs(5),
        step: "callback attempt 1 failed: HTTP 500".into(),
    }
}

async fn record(store: &Store, records: &[AttemptRecord]) -> anyhow::Result<()> {
    let mut tx = store.begin().await?;
    attempts::record(&mut tx, records).await?;
    Ok(tx.commit().await?)
}

async fn listed(store: &Store, filter: &DeliveryFilter) -> anyhow::Result<Vec<DeliveryRow>> {
    let mut reader = store.reader().await?;
    Ok(listing::list(&mut reader, filter, 100).await?)
}

#[tokio::test]
async fn a_delivery_is_claimed_once_and_a_spent_ticket_finds_nothing() -> anyhow::Result<()> {
    on_each_store(async |store| {
        let tickets = write(store, 3).await?;
        let found = waiting(store, &tickets).await?;
        assert_eq!(found.len(), 3);
        assert_eq!(claim(store, &found[..2], END).await?.len(), 2);
        let claimed = claim(store, &found, END).await?;
        assert_eq!(claimed, HashSet::from([found[2].id]));
        assert!(waiting(store, &tickets).await?.is_empty());
        record(store, &[record_of(&found[0], DeliveryStatus::Pending)]).await?;
        assert!(
            waiting(store, &tickets).await?.is_empty(),
            "the ticket of attempt 1 is spent"
        );
        let second = CallbackTicket {
            attempt: 2,
            ..tickets[0]
        };
        assert_eq!(waiting(store, &[second]).await?.len(), 1);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn what_came_of_an_attempt_is_kept_and_shown() -> anyhow::Result<()> {
    on_each_store(async |store| {
        let tickets = write(store, 2).await?;
        let found = waiting(store, &tickets).await?;
        claim(store, &found, END).await?;
        let delivered = AttemptRecord {
            status: DeliveryStatus::Delivered,
            status_code: Some(200),
            error: None,
            ..record_of(&found[1], DeliveryStatus::Delivered)
        };
        record(store, &[record_of(&found[0], DeliveryStatus::Pending), delivered]).await?;
        let failed = DeliveryFilter {
            job: Some(found[0].job),
            app: Some(found[0].app),
            execution: Some(found[0].execution),
            status: Some(DeliveryStatus::Pending),
            before: None,
        };
        let shown = listed(store, &failed).await?;
        assert_eq!(shown.len(), 1);
        assert_eq!(
            (shown[0].attempt, shown[0].last_status_code, shown[0].finished_at),
            (1, Some(500), None)
        );
        assert_eq!(shown[0].next_attempt_at, END + Duration::from_secs(5));
        let mut reader = store.reader().await?;
        let of_both = listing::attempts_of(&mut reader, &[found[0].id, found[1].id]).await?;
        assert_eq!(of_both[&found[0].id][0].error.as_deref(), Some("HTTP 500"));
        assert_eq!(of_both[&found[1].id][0].status_code, Some(200));
        let steps = job_log::of_execution(&mut reader, found[0].execution).await?;
        assert_eq!(steps.len(), 1);
        drop(reader);
        let page = listed(store, &DeliveryFilter::default()).await?;
        let older = DeliveryFilter {
            before: Some(page[0].id),
            ..DeliveryFilter::default()
        };
        assert_eq!(listed(store, &older).await?, page[1..]);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn what_was_not_begun_is_given_back_uncounted_and_what_was_cut_short_is_counted() -> anyhow::Result<()>
{
    on_each_store(async |store| {
        let tickets = write(store, 2).await?;
        let found = waiting(store, &tickets).await?;
        claim(store, &found, END).await?;
        let mut tx = store.begin().await?;
        attempts::release(&mut tx, &found[..1]).await?;
        tx.commit().await?;
        assert_eq!(waiting(store, &tickets).await?, found[..1]);

        let later = EpochMillis(END.0 + 1);
        let mut reader = store.reader().await?;
        assert!(!attempts::any_expired_lease(&mut reader, END).await?);
        assert!(attempts::any_expired_lease(&mut reader, later).await?);
        drop(reader);
        let mut tx = store.begin().await?;
        assert_eq!(attempts::recover_expired_leases(&mut tx, later, 10).await?, 1);
        tx.commit().await?;
        let again = CallbackTicket {
            attempt: 2,
            ..tickets[1]
        };
        assert_eq!(waiting(store, &[again]).await?.len(), 1);
        // The relay that had it comes back too late: its record finds nothing.
        record(store, &[record_of(&found[1], DeliveryStatus::Delivered)]).await?;
        assert_eq!(waiting(store, &[again]).await?.len(), 1);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn due_deliveries_are_found_by_endpoint_and_series() -> anyhow::Result<()> {
    on_each_store(async |store| {
        let tickets = write(store, 2).await?;
        let found = waiting(store, &tickets).await?;
        claim(store, &found[..1], END).await?;
        record(store, &[record_of(&found[0], DeliveryStatus::Pending)]).await?;
        let mut reader = store.reader().await?;
        let overdue = attempts::overdue_endpoints(&mut reader, EpochMillis(END.0 + 1), 10).await?;
        assert_eq!(overdue, [ENDPOINT]);
        assert!(
            attempts::overdue_endpoints(&mut reader, END, 10)
                .await?
                .is_empty()
        );
        let due = async |series, reader: &mut isocost_common::store::Connection, now| {
            attempts::due_at_endpoint(reader, ENDPOINT, series, now, 10).await
        };
        assert_eq!(due(Series::NotBegun, &mut reader, END).await?, found[1..]);
        assert!(due(Series::Begun, &mut reader, END).await?.is_empty());
        let later = END + Duration::from_secs(5);
        assert_eq!(due(Series::Begun, &mut reader, later).await?.len(), 1);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn only_what_was_tried_expires_and_what_ended_is_delivered_again() -> anyhow::Result<()> {
    on_each_store(async |store| {
        let tickets = write(store, 2).await?;
        let found = waiting(store, &tickets).await?;
        claim(store, &found[..1], END).await?;
        record(store, &[record_of(&found[0], DeliveryStatus::Pending)]).await?;
        let much_later = END + Duration::from_secs(100 * 3_600);
        let mut tx = store.begin().await?;
        assert_eq!(attempts::expire_overdue(&mut tx, much_later).await?, 1);
        tx.commit().await?;

        let all = Redelivery::Range {
            from: END,
            to: much_later,
        };
        let mut tx = store.begin().await?;
        let of_others = listing::redeliver(&mut tx, Some(AppId::generate()), &all, much_later).await?;
        assert!(of_others.is_empty());
        let again = listing::redeliver(&mut tx, Some(found[0].app), &all, much_later).await?;
        tx.commit().await?;
        let expected = CallbackTicket {
            delivery: found[0].id,
            attempt: 2,
        };
        assert_eq!(again, [expected]);
        let restarted = waiting(store, &again).await?;
        assert_eq!((restarted[0].attempt, restarted[0].retry_from), (1, 1));
        let mut tx = store.begin().await?;
        let one = Redelivery::One(found[1].id);
        assert!(
            listing::redeliver(&mut tx, None, &one, much_later)
                .await?
                .is_empty(),
            "it has not ended"
        );
        Ok(())
    })
    .await
}
