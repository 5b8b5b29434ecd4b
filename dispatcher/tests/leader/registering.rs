use crate::worker::ScriptedWorker;
use crate::world::{SOON, World};
use isocost_common::{
    store::Dialect,
    test_support::{TestStore, eventually},
};

/// One that cannot be registered beats beside one that can: only that one is given work.
async fn only_the_other_one_works(world: &World, mut unfit: ScriptedWorker) -> anyhow::Result<()> {
    let dispatcher = world.start_dispatcher();
    let mut fit = ScriptedWorker::start(world, "fit", "noop", 5).await?;
    let rows = eventually("a worker is registered", SOON, async || {
        unfit.beat().await?;
        fit.beat().await?;
        let rows = world.count("select count(*) from worker_node").await?;
        Ok((rows > 0).then_some(rows))
    })
    .await?;
    assert_eq!(rows, 1, "only one can be registered");
    world.submit(&world.due_jobs("noop", 5)).await?;
    fit.next_many(5).await?;
    unfit.gets_nothing().await?;
    dispatcher.stop().await
}

async fn a_heartbeat_that_no_row_can_hold_is_refused_alone(store: &TestStore) -> anyhow::Result<()> {
    let world = World::with_long_leases(store);
    let mut unfit = ScriptedWorker::start(&world, "unfit", "noop", 5).await?;
    unfit.host = "h".repeat(300);
    only_the_other_one_works(&world, unfit).await
}

async fn a_row_that_the_database_refuses_holds_nobody_up(store: &TestStore) -> anyhow::Result<()> {
    let world = World::with_long_leases(store);
    let narrow = match store.dialect() {
        Dialect::Sqlite => {
            "create trigger narrow before insert on worker_node when length(new.host) > 20
             begin select raise(abort, 'too long'); end"
        }
        Dialect::MySql => "alter table worker_node modify host varchar(20) not null",
    };
    world.execute(narrow, &[]).await?;
    let mut unfit = ScriptedWorker::start(&world, "unfit", "noop", 5).await?;
    unfit.host = "h".repeat(30);
    only_the_other_one_works(&world, unfit).await
}

isocost_common::store_tests! {
    a_heartbeat_that_no_row_can_hold_is_refused_alone,
    a_row_that_the_database_refuses_holds_nobody_up,
}
