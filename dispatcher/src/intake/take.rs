//! One transaction over the reports of a batch, and what it leaves to be announced.

use super::{
    decide::{Decision, decide_all},
    fold::{Folded, Item, fold},
};
use isocost_common::{
    crash_point::{CrashPoint, reach},
    execution::Claim,
    id::ExecutionId,
    message::Settled,
    store::{
        Store, StoreError, Tx,
        transitions::{self, Applied, Change},
    },
    time::EpochMillis,
};
use std::collections::BTreeMap;

/// What a batch changed; for use after the commit.
#[derive(Default)]
pub(super) struct Taken {
    /// For the leader.
    pub(super) settled: Vec<Settled>,
    /// Callbacks and what is due.
    pub(super) applied: Applied,
    /// For the metrics: the changes that ended an attempt.
    pub(super) runs: Vec<Run>,
    /// Handovers about which nothing new was said.
    pub(super) stale: usize,
}

/// One attempt that ended.
pub(super) struct Run {
    /// The state it left the execution in.
    pub(super) settled: Settled,
    /// Milliseconds from due to the end, when it is terminal.
    pub(super) end_to_end_ms: Option<i64>,
}

/// Takes reports in. The same reports again change nothing.
pub(super) async fn take_in(store: &Store, items: &[Item]) -> Result<Taken, StoreError> {
    let folded = fold(items);
    let mut ids: Vec<ExecutionId> = folded.keys().map(|claim| claim.execution).collect();
    ids.dedup();
    let now = store.now();
    store
        .transact(|| async {
            let mut tx = store.begin().await?;
            let done = take_in_transaction(&mut tx, &folded, &ids, now).await?;
            reach(CrashPoint::IntakeUncommitted);
            tx.commit().await?;
            Ok(done)
        })
        .await
}

async fn take_in_transaction(
    tx: &mut Tx,
    folded: &BTreeMap<Claim, Folded>,
    ids: &[ExecutionId],
    now: EpochMillis,
) -> Result<Taken, StoreError> {
    let mut decisions = decide_all(transitions::lock(tx, ids).await?, folded, now);
    schedule_retries(tx, &mut decisions, folded, now).await?;
    let (changes, settled): (Vec<Change>, Vec<Settled>) = decisions
        .into_iter()
        .map(|decision| (decision.change, decision.settled))
        .unzip();
    let applied = transitions::apply(tx, &changes).await?;
    let runs = changes
        .iter()
        .zip(&settled)
        .filter(|(change, settled)| settled.cost_ms.is_some() || change.step.to.is_terminal())
        .map(|(change, settled)| Run {
            settled: settled.clone(),
            end_to_end_ms: change.step.to.is_terminal().then(|| {
                let due = change.before.due_at.unwrap_or(change.before.created_at);
                change.at.0 - due.0
            }),
        })
        .collect();
    Ok(Taken {
        stale: folded.len() - settled.len(),
        settled,
        applied,
        runs,
    })
}

async fn schedule_retries(
    tx: &mut Tx,
    decisions: &mut [Decision],
    folded: &BTreeMap<Claim, Folded>,
    now: EpochMillis,
) -> Result<(), StoreError> {
    let mut jobs: Vec<_> = decisions.iter().filter_map(Decision::retries).collect();
    if jobs.is_empty() {
        return Ok(());
    }
    jobs.sort_unstable();
    jobs.dedup();
    let policies = transitions::retry_policies(tx, &jobs).await?;
    for decision in decisions {
        if decision.retries().is_some() {
            let said = &folded[&decision.change.before.claim()];
            decision.schedule_retry(said, &policies, now, rand::random());
        }
    }
    Ok(())
}
