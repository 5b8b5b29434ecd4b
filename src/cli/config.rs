//! `isocost config`, and reading the configuration for the other commands.

use crate::{exit::Failure, out};
use anyhow::Context;
use clap::Args;
use isocost_common::config::{self, Config};
use std::{env, path::PathBuf};

/// Where the configuration comes from, besides the environment.
#[derive(Debug, Args)]
#[command(
    after_help = "Values come from the defaults, then the file, then the environment (ISOCOST__SECTION__KEY)."
)]
pub(crate) struct ConfigArgs {
    /// A TOML file
    #[arg(long, value_name = "FILE", env = "ISOCOST_CONFIG")]
    config: Option<PathBuf>,
}

impl ConfigArgs {
    /// Defaults, file and environment, checked.
    ///
    /// # Errors
    /// [`Failure`] for wrong usage, naming the file, variable or key.
    pub(crate) fn load(&self) -> Result<Config, Failure> {
        config::load(self.config.as_deref(), env::vars()).map_err(Failure::usage)
    }
}

pub(super) fn run(args: &ConfigArgs) -> Result<(), Failure> {
    let text = toml::to_string(&args.load()?).context("writing the configuration as TOML")?;
    out::line(text.trim_end())
}
