//! `isocost standalone`.

use super::config::ConfigArgs;
use crate::{demo, exit::Failure, signals};
use anyhow::Context;
use clap::Args;
use isocost::standalone::{Standalone, Started};
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

#[derive(Debug, Args)]
pub(crate) struct StandaloneArgs {
    /// Address and port of the API; default: `api.listen` of the configuration, 127.0.0.1:8080
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Folder of the database and the admin key; created when missing
    #[arg(long, value_name = "FOLDER", default_value = "./isocost-data")]
    data: PathBuf,
    /// Submit a few sample jobs and show what happens to them; the one that repeats is the same at every start
    #[arg(long)]
    demo: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

pub(super) async fn run(args: StandaloneArgs) -> Result<(), Failure> {
    let config = args.config.load()?;
    let listen = match args.listen {
        Some(listen) => listen,
        None => config.api.listen.parse().context("reading api.listen")?,
    };
    let site = Standalone::new(config, &args.data, listen);
    let data = args.data;
    signals::until_told_to_stop(async |stop| {
        let (sender, started) = oneshot::channel();
        let demo = args.demo.then(|| tokio::spawn(run_demo(started, stop.clone())));
        site.run(stop, |started| {
            print_first_lines(&started, &data);
            // Nobody receives it without --demo.
            let _ = sender.send(started);
        })
        .await?;
        if let Some(demo) = demo {
            demo.await.context("the demo panicked")?;
        }
        Ok(())
    })
    .await?;
    Ok(())
}

async fn run_demo(started: oneshot::Receiver<Started>, stop: CancellationToken) {
    let Ok(started) = started.await else { return };
    if let Err(error) = demo::run(&started, stop).await {
        eprintln!("the demo stopped, everything else goes on: {error:#}");
    }
}

/// What somebody needs who sees this for the first time. Scripts may rely on the labels.
fn print_first_lines(started: &Started, data: &Path) {
    let Started {
        url, admin_key_file, ..
    } = started;
    let key_file = admin_key_file.display();
    let version = env!("CARGO_PKG_VERSION");
    println!(
        "Isocost {version} runs in this process, its data in {}",
        data.display()
    );
    println!("  API            {url}");
    println!("  documentation  {url}/docs");
    if started.key_is_new {
        println!(
            "  admin key      {} (shown once; also in {key_file})",
            started.admin_key
        );
    } else {
        println!("  admin key      in {key_file}");
    }
    if let Some(secret) = &started.webhook_secret {
        println!("  webhook secret {secret} (shown once; signs the callbacks)");
    }
    if started.key_file_was_open {
        println!(
            "  that file was open to other users of this machine; its mode is 0600 again. If somebody may have read the \
             key, delete the file and start again: that makes a new key and revokes this one"
        );
    }
    if started.loopback_callbacks {
        println!(
            "  callbacks to loopback addresses are allowed, because this process listens on loopback only"
        );
    }
    println!("Submit a job, then look at it:");
    println!(
        "  curl -sS {url}/openapi/jobs -H \"Authorization: Bearer $(cat '{key_file}')\" \
         -H 'Content-Type: application/json' \
         -d '{{\"jobName\": \"hello\", \"jobHandler\": \"echo\", \"params\": {{\"hello\": \"world\"}}}}'"
    );
    println!("  curl -sS {url}/openapi/jobs -H \"Authorization: Bearer $(cat '{key_file}')\"");
}
