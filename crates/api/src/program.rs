//! Runs `zmove` for requests. Jobs are submitted and transfers planned with the command line that a user would type, so
//! that they are checked and refused in the same way.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::Stdio;
use std::time::Duration;

use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};
use tokio::process::{Child, Command};
use utoipa::ToSchema;

use crate::options;
use crate::problem::Problem;
use crate::state::Api;

/// The transfer to submit, as for `zmove submit`. `include` overrides `exclude`.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(default)]
pub(crate) struct Submission {
    /// The sources: absolute paths on this host, or `HOST:PATH`. `dir` creates the directory `dir` at the target, and
    /// `dir/` copies only its contents.
    #[schema(min_items = 1, required)]
    sources: Vec<String>,
    /// The target: `HOST:PATH`, `USER@HOST:PATH` (over ssh), or an absolute path of a directory on this host.
    #[schema(required)]
    target: String,
    /// Options of the transfer and of the job, with underscores in their names as in `submission_id`.
    #[serde(flatten)]
    #[schema(ignore)]
    options: BTreeMap<String, Value>,
}

impl Submission {
    fn words(&self, command: &[&str], options: Vec<String>) -> Result<Vec<OsString>, Problem> {
        if self.sources.is_empty() {
            return Err(Problem::bad("no source given"));
        }
        let paths = self.sources.iter().chain([&self.target]);
        for path in paths.clone() {
            let is_remote = path
                .split('/')
                .next()
                .is_some_and(|head| head.contains(':'));
            if !is_remote && !path.starts_with('/') {
                let text =
                    format!("'{path}' is neither an absolute path on this host nor HOST:PATH");
                return Err(Problem::bad(text));
            }
        }
        // There is no user who could be asked about an unknown host key.
        let words = command
            .iter()
            .copied()
            .chain(["--strict"])
            .map(str::to_owned)
            .chain(options);
        // The arguments after this are not options, even if they start with a dash.
        let words: Vec<_> = words
            .chain(["--".to_owned()])
            .chain(paths.cloned())
            .collect();
        if words.iter().any(|word| word.contains('\0')) {
            return Err(Problem::bad("an argument contains a NUL byte"));
        }
        Ok(words.into_iter().map(OsString::from).collect())
    }

    /// Submits the transfer as a job and returns the job's number. The submission completes even if the client
    /// disconnects.
    pub(crate) async fn submit(&self, api: &Api) -> Result<i64, Problem> {
        let options = options::words(&api.host.options, &self.options, |_| true)?;
        let words = self.words(&["submit", "--json"], options)?;
        let api = api.clone();
        let ran = tokio::spawn(async move { run(&api, words, SUBMIT_TIME_MAX).await });
        let ran = ran.await.map_err(|_| {
            Problem::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the job was not submitted",
            )
        })?;
        let last = ran?.last;
        let id = last.as_ref().and_then(|last| last["job"].as_i64());
        id.ok_or_else(|| {
            Problem::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the job was not submitted",
            )
        })
    }

    /// Returns what the transfer would do.
    pub(crate) async fn plan(&self, api: &Api) -> Result<Plan, Problem> {
        let options = options::words(&api.host.options, &self.options, |option| {
            !option.is_job_option
        })?;
        let words = self.words(&["copy", "--dry-run", "--json"], options)?;
        let ProcessOutput { last, sample } = run(api, words, PLAN_TIME_MAX).await?;
        let summary = last.unwrap_or_default();
        let number = |name: &str| summary[name].as_u64().unwrap_or_default();
        Ok(Plan {
            added: number("added"),
            changed: number("changed"),
            removed: number("removed"),
            files: number("files"),
            bytes: number("bytes"),
            sample,
        })
    }
}

/// A preview of a transfer.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct Plan {
    /// Entries that are missing at the target.
    added: u64,
    /// Entries that differ at the target.
    changed: u64,
    /// Entries that would be removed from the target.
    removed: u64,
    /// Files that would be sent.
    files: u64,
    /// Bytes that would be sent.
    bytes: u64,
    /// The first of the affected entries, at most 200.
    sample: Vec<Change>,
}

/// A change that a transfer would make.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Change {
    /// `added`, `changed` or `removed`.
    event: String,
    /// The path of the entry below the target.
    path: String,
    /// The reason why the entry counts as changed.
    why: Option<String>,
}

/// The events that a process has printed.
#[derive(Default)]
struct ProcessOutput {
    last: Option<Value>,
    sample: Vec<Change>,
}

/// Runs this program with `words` as arguments. Returns the events that it printed, or an error if it failed.
async fn run(
    api: &Api,
    words: Vec<OsString>,
    time_max: Duration,
) -> Result<ProcessOutput, Problem> {
    let _room = api
        .processes
        .acquire()
        .await
        .expect("the semaphore is never closed");
    let mut command = Command::new(&api.host.program);
    command
        .args(words)
        .current_dir("/")
        .env("ZMOVE_JOBS", api.place.path())
        .kill_on_drop(true);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let fail = |error| {
        Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("run zmove: {error}"),
        )
    };
    let child = command.spawn().map_err(fail)?;
    let late = || {
        Problem::new(
            StatusCode::GATEWAY_TIMEOUT,
            format!("zmove did not finish within {} s", time_max.as_secs()),
        )
    };
    tokio::time::timeout(time_max, wait_for_output(child))
        .await
        .map_err(|_| late())?
        .map_err(fail)?
}

async fn wait_for_output(mut child: Child) -> std::io::Result<Result<ProcessOutput, Problem>> {
    let stdout = child.stdout.take().expect("a pipe was asked for");
    let stderr = child.stderr.take().expect("a pipe was asked for");
    let (ran, stderr_text) = tokio::join!(read_events(stdout), read_words(stderr));
    let status = child.wait().await?;
    if status.success() {
        return Ok(Ok(ran));
    }
    let message = ran
        .last
        .as_ref()
        .and_then(|last| last["message"].as_str())
        .map(str::to_owned);
    let error = message.unwrap_or_else(|| reason(&stderr_text).to_owned());
    let problem = Problem {
        exit: status.code(),
        ..Problem::bad(error)
    };
    Ok(Err(problem))
}

/// Returns the error message of a command, without its prefix and the reference to the help.
fn reason(stderr_text: &str) -> &str {
    let stderr_text = stderr_text
        .split("\n\nFor more information")
        .next()
        .unwrap_or_default()
        .trim();
    ["error: ", "zmove: "]
        .iter()
        .find_map(|head| stderr_text.strip_prefix(head))
        .unwrap_or(stderr_text)
}

/// Reads all events. Keeps the first changes and the last other event.
async fn read_events(stdout: impl AsyncRead + Unpin) -> ProcessOutput {
    let mut ran = ProcessOutput::default();
    let mut reader = BufReader::new(stdout);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = (&mut reader)
            .take(LINE_BYTES_MAX)
            .read_until(b'\n', &mut line)
            .await;
        if !matches!(read, Ok(bytes) if bytes > 0) {
            return ran;
        }
        let Ok(event) = serde_json::from_slice::<Value>(&line) else {
            continue;
        };
        if matches!(
            event["event"].as_str(),
            Some("added" | "changed" | "removed")
        ) {
            let change = if ran.sample.len() < SAMPLE_MAX {
                Change::deserialize(&event).ok()
            } else {
                None
            };
            ran.sample.extend(change);
        } else {
            ran.last = Some(event);
        }
    }
}

/// Reads the standard error stream to its end and keeps the first `WORDS_BYTES_MAX` bytes.
async fn read_words(mut stderr: impl AsyncRead + Unpin) -> String {
    let mut words = Vec::new();
    let _best_effort = (&mut stderr)
        .take(WORDS_BYTES_MAX)
        .read_to_end(&mut words)
        .await;
    // The process would block if the rest were not read.
    let _rest = tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await;
    String::from_utf8_lossy(&words).into_owned()
}

const SUBMIT_TIME_MAX: Duration = Duration::from_secs(30);
const PLAN_TIME_MAX: Duration = Duration::from_secs(120);
/// Maximum number of entries in a plan.
const SAMPLE_MAX: usize = 200;
/// Maximum length of an event, in bytes.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of bytes to keep of a process's standard error.
const WORDS_BYTES_MAX: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn words(submission: &Submission) -> Result<String, String> {
        let words = submission
            .words(&["submit"], Vec::new())
            .map_err(|problem| problem.error)?;
        Ok(words
            .iter()
            .map(|word| word.to_str().unwrap())
            .collect::<Vec<_>>()
            .join(" "))
    }

    #[test]
    fn no_path_of_a_client_becomes_an_option() {
        let submission = Submission {
            sources: vec!["--delete:x".into(), "/a".into()],
            target: "-h:/b".into(),
            ..Submission::default()
        };
        assert_eq!(
            words(&submission),
            Ok("submit --strict -- --delete:x /a -h:/b".to_owned())
        );
    }

    #[test]
    fn a_command_s_reason_is_told_without_its_advice() {
        assert_eq!(
            reason("error: invalid value\n\nFor more information, try '--help'.\n"),
            "invalid value"
        );
        assert_eq!(reason("zmove: no key\n"), "no key");
    }

    #[test]
    fn paths_without_a_beginning_are_refused() {
        for (source, target) in [
            ("a", "h:b"),
            ("/a", "b"),
            ("", "h:b"),
            ("--rsh", "/b"),
            ("./h:b", "/b"),
        ] {
            let (sources, target) = (vec![source.to_owned()], target.to_owned());
            let refused = words(&Submission {
                sources,
                target,
                ..Submission::default()
            })
            .unwrap_err();
            assert!(refused.contains("neither"), "{refused}");
        }
        assert_eq!(
            words(&Submission::default()),
            Err("no source given".to_owned())
        );
    }
}
