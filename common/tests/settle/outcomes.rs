//! The outcome of every execution is written by the transaction that ends it.

use crate::given::*;
use isocost_common::{
    execution::{ExecutionStatus, Outcome},
    store::{
        Store,
        executions::{self, ExecutionRow},
        outcomes::{self, Outcome as Written},
        settle::{Ended, settle},
    },
    time::EpochMillis,
};

/// What is in the outbox, taken with a claim that is undone.
async fn written(store: &Store) -> anyhow::Result<Vec<Written>> {
    let mut tx = store.begin().await?;
    let far = EpochMillis(END.0 + 1_000_000);
    let batches = outcomes::claim(&mut tx, far, far, 1_000).await?;
    Ok(batches.into_iter().flat_map(|batch| batch.outcomes).collect())
}

fn terminal(job: &isocost_common::store::jobs::JobRow, status: ExecutionStatus) -> ExecutionRow {
    ExecutionRow {
        status,
        scheduled_time: EpochMillis(PLANNED.0 + status.code()),
        finished_at: Some(END),
        ..dispatched(job)
    }
}

#[tokio::test]
async fn every_end_is_written_once_and_skipped_ones_too() -> anyhow::Result<()> {
    on_each_store(async |store| {
        let store = store.clone().recording_outcomes(true);
        let job = one_shot();
        let ends = [
            ExecutionStatus::Succeeded,
            ExecutionStatus::Failed,
            ExecutionStatus::TimedOut,
            ExecutionStatus::Cancelled,
            ExecutionStatus::Lost,
            ExecutionStatus::Expired,
            ExecutionStatus::Skipped,
        ];
        let rows = ends.map(|status| terminal(&job, status));
        insert(&store, std::slice::from_ref(&job), &rows).await?;
        let ended = rows.clone().map(|row| Ended {
            row,
            held_slot: false,
        });
        let mut tx = store.begin().await?;
        settle(&mut tx, &ended).await?;
        tx.commit().await?;
        let mut found = written(&store).await?;
        found.sort_by_key(|outcome| outcome.status.code());
        for (outcome, row) in found.iter().zip(&rows) {
            assert_eq!(
                (outcome.execution, outcome.app, outcome.status),
                (row.id, job.app, row.status)
            );
            assert_eq!((outcome.handler.as_str(), outcome.created_at), ("noop", END));
            let body: serde_json::Value = serde_json::from_str(outcome.body.as_str())?;
            assert_eq!(body["type"], row.status.outcome_type());
            assert_eq!(body["data"]["status"], row.status.api_name());
            assert_eq!(body["data"]["executionId"], row.id.to_string());
        }
        assert_eq!(found.len(), rows.len());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_outcome_is_the_body_of_the_webhook_and_shares_its_transaction() -> anyhow::Result<()> {
    on_each_store(async |store| {
        let store = store.clone().recording_outcomes(true);
        let mut job = one_shot();
        job.callback_url = Some("https://example.com/hook".into());
        let row = dispatched(&job);
        insert(&store, std::slice::from_ref(&job), std::slice::from_ref(&row)).await?;
        let ended = Ended {
            row: ExecutionRow {
                status: ExecutionStatus::Succeeded,
                finished_at: Some(END),
                ..row.clone()
            },
            held_slot: false,
        };
        let mut tx = store.begin().await?;
        settle(&mut tx, std::slice::from_ref(&ended)).await?;
        drop(tx);
        assert_eq!(written(&store).await?, [], "its transaction was rolled back");
        let outcome = Outcome::Succeeded {
            result: isocost_common::raw_json::RawJson::parse("123456789012345678901234567890".into())?,
        };
        finish(&store, &[(&row, outcome)]).await?;
        let found = written(&store).await?;
        let mut reader = store.reader().await?;
        let webhook: String = sqlx::query_scalar("select body from callback_delivery")
            .fetch_one(&mut *reader)
            .await?;
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].body.as_str(), webhook);
        assert!(webhook.contains("123456789012345678901234567890"));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_retry_and_a_store_that_was_not_told_write_no_outcome() -> anyhow::Result<()> {
    on_each_store(async |store| {
        let job = one_shot();
        let (quiet, retried) = (
            dispatched(&job),
            ExecutionRow {
                scheduled_time: END,
                max_attempts: 2,
                ..dispatched(&job)
            },
        );
        insert(
            store,
            std::slice::from_ref(&job),
            &[quiet.clone(), retried.clone()],
        )
        .await?;
        finish(store, &[(&quiet, success())]).await?;
        let recording = store.clone().recording_outcomes(true);
        let failed = Outcome::Failed {
            error: isocost_common::execution::ExecutionError::new("handler.failed", "no"),
            retryable: true,
            retry_after_ms: None,
        };
        finish(&recording, &[(&retried, failed)]).await?;
        let mut reader = store.reader().await?;
        let row = executions::get(&mut reader, retried.id).await?.expect("stored");
        assert_eq!(row.status, ExecutionStatus::Scheduled);
        drop(reader);
        assert_eq!(written(store).await?, []);
        Ok(())
    })
    .await
}
