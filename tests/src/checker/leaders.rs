//! I5: leaders follow each other, and no older one writes any more.

use super::{Breaches, Invariant::I5, index::Index, tables::status};

pub(super) fn check(index: &Index<'_>, breaches: &mut Breaches) {
    in_the_order_of_writing(index, breaches);
    within_their_terms(index, breaches);
}

/// Every write of a leader holds the row of its epoch, and takes its number in the log while it does: so the numbers of
/// older epochs are all smaller, by whatever clock. The row of an execution knows the epoch of its last handover.
fn in_the_order_of_writing(index: &Index<'_>, breaches: &mut Breaches) {
    let mut newest = 0;
    for step in &index.record.tables.log {
        let Some(id) = step
            .execution_id
            .as_deref()
            .filter(|_| step.to_status == Some(status::DISPATCHED))
        else {
            continue;
        };
        let Some(execution) = index
            .executions
            .get(id)
            .filter(|row| row.dispatch_seq == step.dispatch_seq)
        else {
            continue;
        };
        let Some(epoch) = execution.epoch else {
            breaches.add(I5, format!("execution {id} was handed over in no epoch"));
            continue;
        };
        breaches.require(epoch >= newest, I5, || {
            format!("epoch {epoch} handed over execution {id} after epoch {newest} had begun to write")
        });
        newest = newest.max(epoch);
    }
    let current = index.record.tables.epochs.first().map_or(0, |row| row.epoch);
    breaches.require(newest <= current, I5, || {
        format!("epoch {newest} wrote, and the newest is {current}")
    });
}

/// By the clock: nothing is handed over before its epoch began, nor after the next one did.
fn within_their_terms(index: &Index<'_>, breaches: &mut Breaches) {
    let clock = index.record.terms.clock_ms;
    let taken = |epoch: i64| {
        let mut seen = index.record.terms_of_office.iter();
        seen.find(|term| term.epoch == epoch).map(|term| term.taken_at)
    };
    for execution in &index.record.tables.executions {
        let (Some(epoch), Some(at)) = (execution.epoch, execution.dispatched_at) else {
            continue;
        };
        let early = taken(epoch).is_some_and(|taken_at| at < taken_at - clock);
        breaches.require(!early, I5, || {
            format!(
                "execution {} was handed over at {at}, before its epoch {epoch} began",
                execution.id
            )
        });
        // `taken_at` is read before the epoch's transaction waits for that of the old leader.
        let next = taken(epoch + 1).map(|taken_at| taken_at + clock + index.record.terms.slack_ms);
        breaches.require(next.is_none_or(|next| at <= next), I5, || {
            format!(
                "execution {} was handed over at {at} by epoch {epoch}, whose term was over",
                execution.id
            )
        });
    }
}
