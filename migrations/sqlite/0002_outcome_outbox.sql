-- Outcomes of executions on their way to the exchange of outcomes: written by the transaction that ends an execution,
-- deleted once the broker has confirmed the message. A claim moves due_at into the future.

create table outcome_outbox (
    execution_id varchar(36) not null primary key,
    app_id varchar(36) not null,
    handler varchar(255) not null,
    status int not null,
    body text not null,
    created_at bigint not null,
    due_at bigint not null
);
create index idx_outcome_due on outcome_outbox (due_at);
