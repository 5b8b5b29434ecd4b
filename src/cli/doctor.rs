//! `isocost doctor`.

use super::config::ConfigArgs;
use crate::{
    exit::{Failure, Reason},
    out,
};
use clap::Args;
use isocost_common::{
    broker, coordination,
    doctor::{Finding, Findings, Verdict},
    store::{self, StoreOptions},
};
use serde_json::json;

const AFTER_HELP: &str = "\
One line a check: ok, warning or problem, and what to do about it. Nothing is changed, except that exchanges and queues
that every role declares are declared.

Exit codes:
  0  no problem; there may be warnings
  1  at least one problem
  2  wrong arguments or configuration";

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct DoctorArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

pub(super) async fn run(args: &DoctorArgs) -> Result<(), Failure> {
    let config = args.config.load()?;
    config.validate_for_cluster().map_err(Failure::usage)?;
    let mut findings = about_this_program();
    let options = StoreOptions {
        max_connections: config.store.max_connections,
        ..StoreOptions::new(config.store.url.reveal())
    };
    // All at once: a service that is away costs its deadline only once.
    let (database, messages, coordination) = tokio::join!(
        store::doctor::examine(&options),
        broker::doctor::examine(&config),
        coordination::doctor::examine(&config.coordination)
    );
    findings.extend(database);
    findings.extend(messages);
    findings.extend(coordination);
    let count = |verdict| findings.iter().filter(|found| found.verdict == verdict).count();
    let (problems, warnings) = (count(Verdict::Problem), count(Verdict::Warning));
    if args.json {
        out::line(json!({ "problems": problems, "warnings": warnings, "findings": findings }))?;
    } else {
        print(&findings)?;
    }
    if problems == 0 {
        return Ok(());
    }
    let text = format!("{problems} problems, {warnings} warnings");
    Err(Failure::new(Reason::Failed, anyhow::anyhow!(text)))
}

fn about_this_program() -> Vec<Finding> {
    let mut findings = Findings::of("program");
    findings.ok("version", env!("CARGO_PKG_VERSION"));
    findings.ok("configuration", "every rule holds");
    findings.ok(
        "time zones",
        format!(
            "{}, compiled in: nothing on this machine is needed",
            chrono_tz::IANA_TZDB_VERSION
        ),
    );
    findings.finish()
}

fn print(findings: &[Finding]) -> Result<(), Failure> {
    for found in findings {
        out::line(format!(
            "{:8} {:13} {}: {}",
            found.verdict.word(),
            found.service,
            found.what,
            found.says
        ))?;
        if let Some(remedy) = &found.remedy {
            out::line(format!("{:22} → {remedy}", ""))?;
        }
    }
    Ok(())
}
