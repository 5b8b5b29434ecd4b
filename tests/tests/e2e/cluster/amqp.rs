//! Jobs that come in over AMQP from the examples of `docs/amqp.md`, with the rights given there: one job for each
//! `message_id`, one run and one outcome, whatever restarts in the middle.

use super::{all_succeed, start_many};
use anyhow::{Context, Result, bail, ensure};
use isocost_tests::api::{Api, text};
use isocost_tests::cluster::{Cluster, Role};
use isocost_tests::jobs::LONG;
use isocost_tests::patience::eventually;
use reqwest::StatusCode;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;

const BY_PYTHON: usize = 2_000;
const BY_RUST: usize = 200;
/// Answers after which the API is killed, and the broker restarted. The producer has at most 500 jobs on their way, and
/// stands still soon after nobody reads what it prints: so more than half of the jobs are still to be sent.
const API_DIES_AFTER: usize = 200;
const BROKER_RESTARTS_AFTER: usize = 1_000;
const WITHIN: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread")]
async fn jobs_over_amqp_run_once_and_their_outcomes_arrive_whatever_restarts() -> Result<()> {
    let cluster = Cluster::new().await?;
    let _dispatchers = start_many(&cluster, Role::Dispatcher, "dispatcher", 2).await?;
    let _workers = start_many(&cluster, Role::LedgerWorker, "worker", 2).await?;
    let _relay = cluster.start(Role::Relay, "relay").await?;
    let mut api_process = cluster.start(Role::Api, "api").await?;
    let url = a_user_of_its_own(&cluster).await?;
    let api = an_app_of_that_name(&cluster.api(&api_process)?).await?;
    submissions_are(&api, "consuming").await?;

    let mut outcomes = follow(&url)?;
    outcomes.printed(1).await?;
    let from = Instant::now();
    let mut python = submit_py(&url)?;
    python.printed(API_DIES_AFTER).await?;
    api_process.kill().await?;
    let rust = submit_amqp(&url)?;
    api_process.restart().await?;
    let mut answers = answers_of_rust(&rust.end().await?)?;
    ensure!(answers.len() == BY_RUST, "{} answers", answers.len());

    python.printed(BROKER_RESTARTS_AFTER).await?;
    cluster.servers().rabbitmq.stop().await?;
    submissions_are(&api, "waiting").await?;
    cluster.servers().rabbitmq.restart().await?;
    answers.extend(answers_of_python(&python.end().await?)?);
    println!(
        "{} jobs over AMQP, with a killed API and a restarted broker: answered after {:.1?}",
        answers.len(),
        from.elapsed()
    );
    submissions_are(&api, "consuming").await?;
    one_job_for_each_message(&cluster, &api, &answers).await?;

    let ids: Vec<String> = answers.into_values().collect();
    all_succeed(&api, &ids, WITHIN).await?;
    ran_once(&cluster, ids.len())?;
    // It ends by itself, once it has seen as many executions as there are jobs.
    one_outcome_each(&outcomes.end().await?[1..], &ids)
}

/// What `docs/amqp.md` says for a user that submits jobs and follows its own outcomes; the URL it logs in with.
async fn a_user_of_its_own(cluster: &Cluster) -> Result<String> {
    let document = std::fs::read_to_string(repository().join("docs/amqp.md"))?;
    let commands: Vec<&str> = document
        .lines()
        .filter_map(|line| line.strip_prefix("rabbitmqctl "))
        .collect();
    ensure!(commands.len() == 3, "{commands:?}");
    let rabbitmq = &cluster.servers().rabbitmq;
    for command in commands {
        let words: Vec<&str> = command.split(' ').map(|word| word.trim_matches('\'')).collect();
        rabbitmq.ctl(&words).await?;
    }
    let url = rabbitmq.config().url;
    Ok(url.reveal().replace("guest:guest", "billing:secret"))
}

/// Makes the app `billing`; a client with a key of it.
async fn an_app_of_that_name(admin: &Api) -> Result<Api> {
    let app = admin.post("/openapi/apps", &json!({ "name": "billing" })).await?;
    let app = text(&app.success()?, "appId")?;
    let asked = json!({ "name": "reads", "scopes": ["read"] });
    let key = admin.post(&format!("/openapi/apps/{app}/keys"), &asked).await?;
    Api::new(admin.base(), &text(&key.success()?, "key")?)
}

/// The API is ready all the time, and says whether it takes in what comes over AMQP.
async fn submissions_are(api: &Api, expected: &str) -> Result<()> {
    eventually(&format!("submissions are {expected}"), LONG, async || {
        let health = api.get("/readyz").await?;
        assert_eq!(health.status, StatusCode::OK, "{}", health.text);
        let said = health.json();
        ensure!(said["submissions"] == expected, "{said}");
        Ok(Some(()))
    })
    .await
}

async fn one_job_for_each_message(
    cluster: &Cluster,
    api: &Api,
    answers: &BTreeMap<String, String>,
) -> Result<()> {
    let mut jobs = BTreeMap::new();
    let mut page = "/openapi/jobs?pageSize=500".to_owned();
    loop {
        let list = api.get(&page).await?.success()?;
        for job in list["items"].as_array().context("a list")? {
            let message = text(job, "clientRequestId")?;
            let twice = jobs.insert(message, text(job, "jobId")?);
            ensure!(twice.is_none(), "two jobs of one message: {job}");
        }
        let Some(next) = list["nextPageToken"].as_str() else {
            break;
        };
        page = format!("/openapi/jobs?pageSize=500&pageToken={next}");
    }
    let expected: BTreeSet<String> = (0..BY_PYTHON)
        .map(|number| format!("python-{number}"))
        .chain((0..BY_RUST).map(|number| format!("rust-{number}")))
        .collect();
    let found: BTreeSet<String> = jobs.keys().cloned().collect();
    assert_eq!(found, expected);
    assert_eq!(&jobs, answers, "an answer names another job");
    let queues = ["list_queues", "--quiet", "name", "messages"];
    let queues = cluster.servers().rabbitmq.ctl(&queues).await?;
    assert!(queues.contains("isocost.submissions.dead\t0\n"), "{queues}");
    Ok(())
}

fn ran_once(cluster: &Cluster, jobs: usize) -> Result<()> {
    let runs = cluster.ledger().runs()?;
    let again: Vec<_> = runs.iter().filter(|(_, attempts)| attempts.len() > 1).collect();
    assert_eq!((runs.len(), again.len()), (jobs, 0), "{again:?}");
    Ok(())
}

fn one_outcome_each(lines: &[String], jobs: &[String]) -> Result<()> {
    let mut seen = BTreeSet::new();
    for line in lines.iter().filter(|line| line.starts_with('{')) {
        let outcome: Value = serde_json::from_str(line)?;
        ensure!(
            outcome["key"] == "billing.ledger.SUCCEEDED" && outcome["type"] == "execution.succeeded",
            "{outcome}"
        );
        ensure!(seen.insert(text(&outcome, "jobId")?), "two outcomes: {outcome}");
    }
    assert_eq!(seen, jobs.iter().cloned().collect());
    Ok(())
}

/// The job by `message_id`. It is a replay when the API died between the commit and the answer.
fn answers_of_python(lines: &[String]) -> Result<BTreeMap<String, String>> {
    let answer = |line: &String| {
        let line: Value = serde_json::from_str(line)?;
        ensure!(line["status"] == 202 || line["status"] == 200, "{line}");
        Ok((text(&line, "id")?, text(&line["answer"], "jobId")?))
    };
    lines.iter().map(answer).collect()
}

fn answers_of_rust(lines: &[String]) -> Result<BTreeMap<String, String>> {
    let answer = |line: &String| {
        let words: Vec<&str> = line.splitn(3, ' ').collect();
        let [id, "202" | "200", body] = words[..] else {
            bail!("{line}");
        };
        Ok((id.to_owned(), text(&serde_json::from_str(body)?, "jobId")?))
    };
    lines.iter().map(answer).collect()
}

fn submit_py(url: &str) -> Result<Example> {
    let count = BY_PYTHON.to_string();
    let mut command = python("submit.py");
    command.args(["--url", url, "--handler", "ledger"]);
    command.args(["--count", &count, "--prefix", "python"]);
    Example::start(command)
}

fn submit_amqp(url: &str) -> Result<Example> {
    let mut command = Command::new(beside_this_test("examples/submit_amqp")?);
    command.args([url, &BY_RUST.to_string(), "rust", "isocost", "ledger"]);
    Example::start(command)
}

fn follow(url: &str) -> Result<Example> {
    let count = (BY_PYTHON + BY_RUST).to_string();
    let mut command = python("outcomes.py");
    command.args(["--url", url, "--queue", "billing-outcomes"]);
    command.args(["--pattern", "billing.#", "--count", &count]);
    Example::start(command)
}

fn python(script: &str) -> Command {
    let program = env::var("ISOCOST_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
    let mut command = Command::new(program);
    command.arg(repository().join("api/examples").join(script));
    command
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Tests lie in target/debug/deps, examples in target/debug/examples.
fn beside_this_test(name: &str) -> Result<PathBuf> {
    let test = env::current_exe()?;
    let folder = test.parent().and_then(Path::parent);
    Ok(folder.context("the test is in no target folder")?.join(name))
}

/// An example program that runs, and what it printed so far.
struct Example {
    child: Child,
    output: Lines<BufReader<ChildStdout>>,
    lines: Vec<String>,
    complaints: JoinHandle<String>,
}

impl Example {
    fn start(mut command: Command) -> Result<Self> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command
            .spawn()
            .with_context(|| format!("starting {command:?}; start the test with ./test"))?;
        let output = child.stdout.take().context("its output")?;
        let mut errors = child.stderr.take().context("its errors")?;
        Ok(Self {
            child,
            output: BufReader::new(output).lines(),
            lines: Vec::new(),
            complaints: tokio::spawn(async move {
                let mut text = Vec::new();
                let _ = errors.read_to_end(&mut text).await;
                String::from_utf8_lossy(&text).into_owned()
            }),
        })
    }

    /// Reads on until it has printed so many lines; false when it ended before.
    async fn read(&mut self, count: usize) -> Result<bool> {
        while self.lines.len() < count {
            match self.output.next_line().await? {
                Some(line) => self.lines.push(line),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    async fn printed(&mut self, count: usize) -> Result<()> {
        match timeout(WITHIN, self.read(count)).await {
            Ok(Ok(true)) => Ok(()),
            Ok(Err(error)) => Err(error),
            Ok(Ok(false)) => bail!("it ended: {}", (&mut self.complaints).await?),
            Err(_) => bail!("{} of {count} lines within {WITHIN:?}", self.lines.len()),
        }
    }

    /// Waits for its end, which must be a success, and returns all it printed.
    async fn end(mut self) -> Result<Vec<String>> {
        let ended = timeout(WITHIN, async {
            self.read(usize::MAX).await?;
            anyhow::Ok(self.child.wait().await?)
        });
        let Ok(status) = ended.await else {
            let printed = self.lines.len();
            self.child.kill().await?;
            bail!(
                "it goes on after {printed} lines and {WITHIN:?}: {}",
                self.complaints.await?
            );
        };
        let (status, complaints) = (status?, self.complaints.await?);
        ensure!(status.success(), "it ended with {status}: {complaints}");
        println!("{}", complaints.trim_end());
        Ok(self.lines)
    }
}
