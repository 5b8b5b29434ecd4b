-- When a leader was last at work, for telling users why nothing is started. A row of its own: the fencing row is held
-- shared by everything a leader does.

create table leader_presence (
    id int not null primary key,
    seen_at bigint not null
);
insert into leader_presence (id, seen_at) values (1, 0);
