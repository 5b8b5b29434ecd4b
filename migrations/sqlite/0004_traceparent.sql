-- The W3C trace context of a submission, carried to its callbacks and outcomes.

alter table job_info add column traceparent varchar(64);
alter table callback_delivery add column traceparent varchar(64);
alter table outcome_outbox add column traceparent varchar(64);
