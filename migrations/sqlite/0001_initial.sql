-- The tables of Isocost. The same tables stand in ../mysql; keep the two equal column by column.
-- Types: BIGINT, INT, VARCHAR, TEXT, BLOB only. Instants: milliseconds since the Unix epoch, UTC, by the database's
-- clock. Ids: UUIDv7 as text. Codes of states and policies: see common/src/execution and common/src/job.

create table app (
    id varchar(36) not null primary key,
    name varchar(128) not null unique,
    rate_limit_per_second int,
    max_pending_jobs bigint,
    max_running_executions bigint,
    created_at bigint not null
);

create table api_key (
    id varchar(36) not null primary key,
    app_id varchar(36) not null,
    name varchar(128) not null,
    secret_sha256 varchar(64) not null unique,
    scopes varchar(255) not null,
    created_at bigint not null,
    expires_at bigint,
    revoked_at bigint
);
create index idx_api_key_app on api_key (app_id);

create table webhook_secret (
    id varchar(36) not null primary key,
    app_id varchar(36) not null,
    secret varchar(255) not null,
    created_at bigint not null,
    retired_at bigint
);
create index idx_webhook_secret_app on webhook_secret (app_id);

create table job_info (
    id varchar(36) not null primary key,
    app_id varchar(36) not null,
    name varchar(512) not null,
    handler varchar(255) not null,
    params text not null,
    trigger_type int not null,
    trigger_spec text not null,
    parent_job_id varchar(36),
    start_at bigint,
    end_at bigint,
    next_trigger_time bigint,
    status int not null,
    invalid_reason text,
    version bigint not null,
    definition_version bigint not null,
    client_request_id varchar(1024),
    client_request_hash varchar(64),
    content_hash varchar(64) not null,
    callback_url varchar(2048),
    priority int not null,
    timeout_ms bigint not null,
    start_deadline_ms bigint,
    retry_max_attempts int not null,
    retry_backoff int not null,
    retry_initial_ms bigint not null,
    retry_max_ms bigint not null,
    misfire_policy int not null,
    misfire_max_catch_up int not null,
    concurrency_policy int not null,
    concurrency_key varchar(255),
    shards int not null,
    selector text,
    labels text,
    class_key varchar(64) not null,
    created_at bigint not null,
    updated_at bigint not null
);
create index idx_status_next_time on job_info (status, next_trigger_time);
create unique index uq_client_request on job_info (app_id, client_request_hash);
create index idx_job_app on job_info (app_id, id);
create index idx_job_app_status on job_info (app_id, status, id);
create index idx_job_handler on job_info (app_id, handler, id);
create index idx_job_name on job_info (app_id, name, id);
create index idx_job_parent on job_info (parent_job_id);

create table job_label (
    job_id varchar(36) not null,
    label_key varchar(128) not null,
    label_value varchar(255) not null,
    primary key (job_id, label_key)
);
create index idx_label on job_label (label_key, label_value, job_id);

create table job_execution (
    id varchar(36) not null primary key,
    job_id varchar(36) not null,
    app_id varchar(36) not null,
    handler varchar(255) not null,
    scheduled_time bigint not null,
    shard int not null,
    trigger_key varchar(255) not null,
    trigger_kind int not null,
    status int not null,
    not_before bigint not null,
    class_key varchar(64) not null,
    rank_time bigint not null,
    attempt int not null,
    interruptions int not null,
    max_attempts int not null,
    dispatch_seq bigint not null,
    worker_id varchar(100),
    incarnation varchar(36),
    epoch bigint,
    not_after bigint,
    slot_key varchar(255),
    params text,
    created_at bigint not null,
    due_at bigint,
    dispatched_at bigint,
    started_at bigint,
    finished_at bigint,
    start_deadline_at bigint,
    timeout_ms bigint not null,
    cancel_requested_at bigint,
    progress_percent int,
    progress_message varchar(1024),
    result text,
    error_code varchar(64),
    error_message text
);
create unique index uq_execution on job_execution (job_id, trigger_key, scheduled_time, shard);
create index idx_execution_due on job_execution (status, not_before);
create index idx_execution_class on job_execution (status, class_key, rank_time, id);
create index idx_execution_incarnation on job_execution (incarnation, status);
create index idx_execution_slot on job_execution (slot_key, status, rank_time);
create index idx_execution_job on job_execution (job_id, id);
create index idx_execution_app on job_execution (app_id, id);
create index idx_execution_app_status on job_execution (app_id, status, id);
create index idx_execution_deadline on job_execution (status, start_deadline_at);
create index idx_execution_finished on job_execution (finished_at);

create table job_log (
    seq integer not null primary key autoincrement,
    job_id varchar(36) not null,
    execution_id varchar(36),
    attempt int not null,
    dispatch_seq bigint not null,
    from_status int,
    to_status int,
    worker_id varchar(100),
    message varchar(1024),
    at bigint not null
);
create index idx_job_log_execution on job_log (execution_id, seq);
create index idx_job_log_job on job_log (job_id, seq);
create index idx_job_log_at on job_log (at);

create table execution_log_line (
    seq integer not null primary key autoincrement,
    execution_id varchar(36) not null,
    attempt int not null,
    line int not null,
    at bigint not null,
    level int not null,
    message text not null
);
create index idx_log_line on execution_log_line (execution_id, seq);
create unique index uq_log_line on execution_log_line (execution_id, attempt, line);

create table worker_node (
    worker_id varchar(100) not null,
    incarnation varchar(36) not null,
    host varchar(255) not null,
    port int not null,
    handlers text not null,
    labels text not null,
    capacity int not null,
    status int not null,
    drain_requested int not null,
    active_count int not null,
    cpu_idle_percent int not null,
    mean_cost_ms bigint not null,
    registered_at bigint not null,
    last_heartbeat bigint not null,
    ended_at bigint,
    primary key (worker_id, incarnation)
);
create unique index uq_worker_incarnation on worker_node (incarnation);
create index idx_worker_status on worker_node (status, last_heartbeat);

create table concurrency_slot (
    slot_key varchar(255) not null primary key,
    holders int not null,
    slot_limit int not null
);

create table callback_delivery (
    id varchar(36) not null primary key,
    app_id varchar(36) not null,
    job_id varchar(36) not null,
    execution_id varchar(36) not null,
    url varchar(2048) not null,
    endpoint varchar(300) not null,
    event_type varchar(64) not null,
    body text not null,
    status int not null,
    attempt int not null,
    retry_from int not null,
    next_attempt_at bigint not null,
    leased_until bigint,
    created_at bigint not null,
    expires_at bigint not null,
    finished_at bigint,
    last_status_code int,
    last_error varchar(1024)
);
create index idx_callback_due on callback_delivery (status, next_attempt_at);
create index idx_callback_endpoint on callback_delivery (status, endpoint, next_attempt_at);
create index idx_callback_execution on callback_delivery (execution_id);
create index idx_callback_job on callback_delivery (job_id, id);
create index idx_callback_app on callback_delivery (app_id, status, id);

create table callback_attempt (
    delivery_id varchar(36) not null,
    attempt int not null,
    started_at bigint not null,
    finished_at bigint,
    status_code int,
    error varchar(1024),
    response_body text,
    primary key (delivery_id, attempt)
);

create table leader_epoch (
    id int not null primary key,
    epoch bigint not null,
    holder varchar(255) not null,
    taken_at bigint not null
);
insert into leader_epoch (id, epoch, holder, taken_at) values (1, 0, '', 0);

create table setting (
    name varchar(128) not null primary key,
    value text not null,
    updated_at bigint not null
);

create table audit (
    seq integer not null primary key autoincrement,
    at bigint not null,
    app_id varchar(36),
    api_key_id varchar(36),
    action varchar(64) not null,
    object varchar(255) not null,
    detail text
);
create index idx_audit_at on audit (at);
