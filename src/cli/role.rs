//! `isocost api`, `dispatcher`, `relay`, `worker`, and `isocost run` for several of them in one process.

use super::config::ConfigArgs;
use crate::{exit::Failure, signals};
use clap::{Args, ValueEnum};
use isocost::cluster::{self, Role};
use isocost_common::config::Config;
use std::{collections::BTreeSet, net::SocketAddr};

const AFTER_HELP: &str = "\
Values come from the defaults, then the file, then the environment (ISOCOST__SECTION__KEY), then these flags.
SIGTERM and SIGINT finish what is in hand; a second one ends the process at once.

Exit codes:
  0    stopped as told
  1    could not start, or ended by itself; the last line says why
  2    wrong arguments or configuration
  130  told twice to stop";

/// Flags of every role.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct RoleArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Address for metrics and health, or `off` [telemetry.listen]
    #[arg(long, value_name = "ADDRESS")]
    telemetry_listen: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ApiArgs {
    #[command(flatten)]
    role: RoleArgs,
    /// Address and port of the API [api.listen]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
}

#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    #[command(flatten)]
    role: RoleArgs,
    /// Its stable name [worker.id]
    #[arg(long, value_name = "NAME")]
    id: Option<String>,
    /// Address on which the leader asks whether it lives [worker.listen]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// What this process does
    #[arg(required = true, value_name = "ROLE")]
    roles: Vec<RoleName>,
    #[command(flatten)]
    role: RoleArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum RoleName {
    Api,
    Dispatcher,
    Relay,
    Worker,
}

impl RoleArgs {
    fn load(self) -> Result<Config, Failure> {
        let mut config = self.config.load()?;
        if let Some(listen) = self.telemetry_listen {
            config.telemetry.listen = listen;
        }
        Ok(config)
    }

    /// A role without flags of its own.
    pub(super) async fn run(self, role: Role) -> Result<(), Failure> {
        run(&BTreeSet::from([role]), self.load()?).await
    }
}

impl ApiArgs {
    pub(super) async fn run(self) -> Result<(), Failure> {
        let mut config = self.role.load()?;
        if let Some(listen) = self.listen {
            config.api.listen = listen.to_string();
        }
        run(&BTreeSet::from([Role::Api]), config).await
    }
}

impl WorkerArgs {
    pub(super) async fn run(self) -> Result<(), Failure> {
        let mut config = self.role.load()?;
        if let Some(id) = self.id {
            config.worker.id = id;
        }
        if let Some(listen) = self.listen {
            config.worker.listen = listen.to_string();
        }
        run(&BTreeSet::from([Role::Worker]), config).await
    }
}

impl RunArgs {
    pub(super) async fn run(self) -> Result<(), Failure> {
        let roles = self.roles.iter().map(|role| match role {
            RoleName::Api => Role::Api,
            RoleName::Dispatcher => Role::Dispatcher,
            RoleName::Relay => Role::Relay,
            RoleName::Worker => Role::Worker,
        });
        run(&roles.collect(), self.role.load()?).await
    }
}

async fn run(roles: &BTreeSet<Role>, config: Config) -> Result<(), Failure> {
    config.validate_for_cluster().map_err(Failure::usage)?;
    signals::until_told_to_stop(async |stop| Ok(cluster::run(roles, config, stop).await?)).await?;
    Ok(())
}
