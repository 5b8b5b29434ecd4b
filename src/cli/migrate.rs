//! `isocost migrate`.

use super::config::ConfigArgs;
use crate::{exit::Failure, out};
use anyhow::Context;
use isocost_common::store::{Store, StoreOptions, migrations};

pub(super) async fn run(args: &ConfigArgs) -> Result<(), Failure> {
    let config = args.load()?;
    let options = StoreOptions::new(config.store.url.reveal());
    let store = Store::connect(&options)
        .await
        .context("connecting to the database; store.url or ISOCOST__STORE__URL says which")?;
    let migrated = migrations::run(&store).await.context("migrating the tables");
    store.close().await;
    migrated?;
    out::line("the tables are up to date")
}
