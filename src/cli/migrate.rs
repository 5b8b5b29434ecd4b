//! `isocost migrate`.

use super::config::ConfigArgs;
use crate::{exit::Failure, out};
use anyhow::Context;
use clap::Args;
use isocost_common::store::{Store, StoreError, StoreOptions, apps, migrations};
use std::{
    fs::OpenOptions,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::time::{Instant, sleep};

/// Between two attempts to reach the database.
const RETRY: Duration = Duration::from_millis(500);

#[derive(Debug, Args)]
#[command(
    after_help = "Run it once before the roles of a new version start; several at a time wait for each other. The first \
                  run makes the first app, and shows its admin key: it cannot be shown again."
)]
pub(crate) struct MigrateArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Write a new admin key to this file (mode 0600) instead of printing it, when one is made
    #[arg(long, value_name = "FILE")]
    admin_key_file: Option<PathBuf>,
}

pub(super) async fn run(args: &MigrateArgs) -> Result<(), Failure> {
    let config = args.config.load()?;
    let options = StoreOptions::new(config.store.url.reveal());
    let patience = Duration::from_millis(config.store.start_wait_ms);
    let store = connect(&options, patience)
        .await
        .context("connecting to the database; store.url or ISOCOST__STORE__URL says which")?;
    let outcome = migrate(&store, args.admin_key_file.as_deref()).await;
    store.close().await;
    outcome
}

/// In a container the database may still be starting.
async fn connect(options: &StoreOptions, patience: Duration) -> Result<Store, StoreError> {
    let deadline = Instant::now() + patience;
    loop {
        match Store::connect(options).await {
            Err(error) if error.is_transient() && Instant::now() < deadline => {
                eprintln!("the database does not answer yet; waiting");
                sleep(RETRY).await;
            }
            outcome => return outcome,
        }
    }
}

async fn migrate(store: &Store, key_file: Option<&Path>) -> Result<(), Failure> {
    migrations::run(store).await.context("migrating the tables")?;
    out::line("the tables are up to date")?;
    let first = apps::ensure_first_app(store)
        .await
        .context("making the first app")?;
    match (first.admin_key, key_file) {
        (None, _) => Ok(()),
        (Some(key), None) => out::line(format!("admin key, shown only now: {key}")),
        (Some(key), Some(file)) => {
            write_key(file, &key)
                .with_context(|| format!("writing {}; the new admin key is {key}", file.display()))?;
            out::line(format!("the admin key is in {}", file.display()))
        }
    }
}

fn write_key(file: &Path, key: &str) -> std::io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(file)?;
    writeln!(file, "{key}")?;
    file.sync_all()
}
