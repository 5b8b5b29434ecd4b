-- What a job costs the database is, above all, the entries of indexes that its steps move. Many outcomes share a row of
-- the outbox; indexes that nothing reads are dropped; and two hold no status any more, so that most rows, which have
-- neither slot nor deadline, never move in them. (No release has the table that goes.)

create table outcome_batch (
    id varchar(36) not null primary key,
    outcomes text not null,
    created_at bigint not null,
    due_at bigint not null
);
create index idx_outcome_batch_due on outcome_batch (due_at);

insert into outcome_batch (id, outcomes, created_at, due_at)
select execution_id,
       '[{"execution":"' || execution_id || '","app":"' || app_id || '","handler":' || json_quote(handler) || ',"status":' || status ||
              ',"traceparent":' || coalesce(json_quote(traceparent), 'null') || ',"created_at":' || created_at || ',"body":' || body || '}]',
       created_at, due_at
  from outcome_outbox;
drop table outcome_outbox;

drop index idx_execution_incarnation;
drop index idx_job_log_at;

-- Executions that have ended or do not wait any more hold neither.
update job_execution set slot_key = null, start_deadline_at = null where status in (5, 6, 7, 8, 9, 10, 11);
update job_execution set start_deadline_at = null where status in (0, 1, 2) and attempt > interruptions;
drop index idx_execution_slot;
create index idx_execution_slot on job_execution (slot_key, rank_time);
drop index idx_execution_deadline;
create index idx_execution_deadline on job_execution (start_deadline_at);
