//! `isocost migrate`.

use super::config::ConfigArgs;
use crate::{exit::Failure, out};
use anyhow::Context;
use clap::Args;
use isocost_common::{
    error_chain::chain,
    store::{Store, StoreError, StoreOptions, apps, migrations},
};
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
/// Between two lines about a database that is not there, as long as the reason is the same.
const REMINDER: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
#[command(
    after_help = "Run it once before the roles of a new version start; several at a time wait for each other. The first \
                  run makes the first app, and shows its admin key and its webhook secret: they cannot be shown again."
)]
pub(crate) struct MigrateArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Write a new admin key to this file (mode 0600) instead of printing it, when one is made
    #[arg(long, value_name = "FILE")]
    admin_key_file: Option<PathBuf>,
    /// Write the first webhook secret to this file (mode 0600) instead of printing it, when one is made
    #[arg(long, value_name = "FILE")]
    webhook_secret_file: Option<PathBuf>,
}

pub(super) async fn run(args: &MigrateArgs) -> Result<(), Failure> {
    let config = args.config.load()?;
    let options = StoreOptions::new(config.store.url.reveal());
    let patience = Duration::from_millis(config.store.start_wait_ms);
    let store = connect(&options, patience)
        .await
        .context("connecting to the database; store.url or ISOCOST__STORE__URL says which")?;
    let outcome = migrate(&store, args).await;
    store.close().await;
    outcome
}

/// In a container the database may still be starting.
async fn connect(options: &StoreOptions, patience: Duration) -> Result<Store, StoreError> {
    let deadline = Instant::now() + patience;
    let mut told: Option<(String, Instant)> = None;
    loop {
        match Store::connect(options).await {
            Err(error) if error.is_transient() && Instant::now() < deadline => {
                let reason = chain(&error).to_string();
                if told
                    .as_ref()
                    .is_none_or(|(last, at)| *last != reason || at.elapsed() >= REMINDER)
                {
                    let left = deadline.saturating_duration_since(Instant::now());
                    eprintln!(
                        "waiting for the database, for {} s at most: {}",
                        left.as_secs(),
                        out::visible(&reason)
                    );
                    told = Some((reason, Instant::now()));
                }
                sleep(RETRY).await;
            }
            outcome => return outcome,
        }
    }
}

async fn migrate(store: &Store, args: &MigrateArgs) -> Result<(), Failure> {
    migrations::run(store).await.context("migrating the tables")?;
    out::line("the tables are up to date")?;
    let first = apps::ensure_first_app(store)
        .await
        .context("making the first app")?;
    let shown = [
        show_once("admin key", first.admin_key, args.admin_key_file.as_deref()),
        show_once(
            "webhook secret",
            first.webhook_secret,
            args.webhook_secret_file.as_deref(),
        ),
    ];
    // One that cannot be written must not take the other one along.
    shown.into_iter().collect()
}

/// Prints a secret that was just made, or writes it where only its owner can read it.
fn show_once(what: &str, secret: Option<String>, file: Option<&Path>) -> Result<(), Failure> {
    match (secret, file) {
        (None, _) => Ok(()),
        (Some(secret), None) => out::line(format!("{what}, shown only now: {secret}")),
        (Some(secret), Some(file)) => {
            write_secret(file, &secret)
                .with_context(|| format!("writing {}; the new {what} is {secret}", file.display()))?;
            out::line(format!("the {what} is in {}", file.display()))
        }
    }
}

fn write_secret(file: &Path, secret: &str) -> std::io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(file)?;
    writeln!(file, "{secret}")?;
    file.sync_all()
}
