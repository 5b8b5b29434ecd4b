//! Reading a [`Config`] from its sources.

use super::Config;
use crate::crash_point;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// First part of the names of environment variables that set configuration keys.
const ENV_PREFIX: &str = "ISOCOST__";

/// The configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("reading the configuration file {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not TOML.
    #[error("the configuration file {path} is not valid TOML: {message}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where and why.
        message: String,
    },
    /// An environment variable does not name a key.
    #[error("the environment variable {0} must look like ISOCOST__SECTION__KEY")]
    Variable(String),
    /// An unknown key, or a value of the wrong type.
    #[error("configuration: {0}")]
    Shape(String),
    /// A value that cannot work.
    #[error("configuration: {key} {remedy}")]
    Invalid {
        /// Section and key.
        key: &'static str,
        /// What would work.
        remedy: &'static str,
    },
}

/// Reads the file, if one is given, lays the environment over it and checks the result.
///
/// # Errors
/// [`ConfigError`], naming the file, variable or key.
pub fn load(
    file: Option<&Path>,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<Config, ConfigError> {
    let mut table = match file {
        None => Table::new(),
        Some(path) => {
            let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
                path: path.into(),
                source,
            })?;
            text.parse::<Table>().map_err(|error| ConfigError::Syntax {
                path: path.into(),
                message: error.to_string().trim_end().to_owned(),
            })?
        }
    };
    for (name, text) in environment {
        crash_point::arm(&name, &text)?;
        if let Some(path) = name.strip_prefix(ENV_PREFIX) {
            set(&mut table, path, &text).ok_or(ConfigError::Variable(name.clone()))?;
        }
    }
    let config: Config = Value::Table(table)
        .try_into()
        .map_err(|error: toml::de::Error| ConfigError::Shape(error.to_string().trim_end().to_owned()))?;
    config.validate()?;
    Ok(config)
}

/// Sets `SECTION__KEY`. A value that reads as TOML (a number, a truth value, a list) is one; the rest is text.
fn set(table: &mut Table, path: &str, text: &str) -> Option<()> {
    let mut parts: Vec<String> = path.split("__").map(str::to_lowercase).collect();
    if parts.len() < 2 || parts.iter().any(String::is_empty) {
        return None;
    }
    let key = parts.pop()?;
    let mut section = table;
    for part in parts {
        section = section
            .entry(part)
            .or_insert_with(|| Value::Table(Table::new()))
            .as_table_mut()?;
    }
    let value = format!("v = {text}")
        .parse::<Table>()
        .ok()
        .and_then(|mut parsed| parsed.remove("v"));
    section.insert(key, value.unwrap_or_else(|| Value::String(text.to_owned())));
    Some(())
}

/// The first rule that does not hold, as an error.
pub(super) fn check(rules: &[(bool, &'static str, &'static str)]) -> Result<(), ConfigError> {
    match rules.iter().find(|(holds, ..)| !holds) {
        Some((_, key, remedy)) => Err(ConfigError::Invalid { key, remedy }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    }

    fn load_text(text: &str, variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), text).expect("written");
        load(Some(file.path()), env(variables))
    }

    #[test]
    fn the_environment_goes_over_the_file() {
        let config = load_text(
            "[api]\nlisten = \"127.0.0.1:1\"\n[leases]\nheartbeat_ms = 2000\n",
            &[("ISOCOST__API__LISTEN", "127.0.0.1:2"), ("HOME", "/")],
        )
        .expect("valid");
        assert_eq!(config.api.listen, "127.0.0.1:2");
        assert_eq!(config.leases.heartbeat_ms, 2_000);
    }

    #[test]
    fn an_unknown_key_is_named() {
        let error = load_text("[api]\nlisen = \"127.0.0.1:1\"\n", &[])
            .expect_err("refused")
            .to_string();
        assert!(error.contains("lisen"), "{error}");
    }

    #[test]
    fn a_value_that_cannot_work_is_named_with_a_remedy() {
        for (key, value, told) in [
            (
                "ISOCOST__LEASES__DEAD_AFTER_MS",
                "12000",
                "leases.dead_after_ms must be greater than leases.worker_exit_ms",
            ),
            (
                "ISOCOST__LEASES__LOCK_TTL_MS",
                "1500",
                "coordination.command_timeout_ms must be at most half of leases.lock_ttl_ms",
            ),
        ] {
            let error = load(None, env(&[(key, value)])).expect_err("refused").to_string();
            assert!(error.contains(told), "{error}");
        }
    }

    #[test]
    fn wh03_bad_time_limits_are_refused() {
        for bad in ["0", "-1", "abc", "3600000"] {
            let result = load(None, env(&[("ISOCOST__RELAY__TIMEOUT_MS", bad)]));
            assert!(result.is_err(), "{bad} was accepted");
        }
    }

    #[test]
    fn secrets_do_not_show() {
        let config = load(
            None,
            env(&[("ISOCOST__STORE__URL", "mysql://me:hunter2@db:3306/x")]),
        )
        .expect("valid");
        let shown = format!("{config:?}{}", toml::to_string(&config).expect("serialises"));
        assert!(!shown.contains("hunter2"), "{shown}");
        assert!(shown.contains("@db:3306/x"));
    }

    #[test]
    fn the_defaults_are_valid() {
        Config::default().validate().expect("valid");
    }
}
