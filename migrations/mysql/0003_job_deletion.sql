-- Jobs that are to be deleted once nothing of them is open (deleted_at is null), and for a while those that were: their
-- client request ids are not free yet.
create table job_deletion (
    job_id varchar(36) not null primary key,
    app_id varchar(36) not null,
    api_key_id varchar(36) not null,
    client_request_hash varchar(64),
    content_hash varchar(64) not null,
    requested_at bigint not null,
    deleted_at bigint
) engine = InnoDB default character set utf8mb4 collate utf8mb4_bin;
create unique index uq_deleted_request on job_deletion (app_id, client_request_hash);
create index idx_deletion_at on job_deletion (deleted_at);
