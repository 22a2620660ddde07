//! `zmove status`, `zmove stop` and `zmove drain`: the operator's view and control of the daemon on this host, through
//! the daemon's socket (`daemon/serve/control.rs`).

mod table;

use std::io::{IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, BufReader,
};
use tokio::net::UnixStream;
use zmove_daemon::TransferStatus;
use zmove_types::ByteCount;

use crate::args::{ControlArgs, DrainArgs, StatusArgs, StopArgs};
use crate::display::format::counted;
use crate::display::{output, terminal};
use crate::ownership::{self, Child};
use crate::settings::{self, Role};
use crate::value::control::{ANSWER_BYTES_MAX, Answer, DaemonStatus, REQUEST_BYTES_MAX, Request};
use crate::value::exit::{Exit, failure, usage_error};

/// Maximum time until a daemon's complete response has arrived.
const PATIENCE: Duration = Duration::from_secs(10);
/// Interval at which the status is refreshed.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// Clears the terminal and moves the cursor to its upper left corner.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Runs `zmove status`.
pub(crate) fn status(args: &StatusArgs) -> Result<Exit> {
    loop {
        let Answer::Status(status) = ask(&args.control, &Request::Status)? else {
            return unexpected_answer();
        };
        let clear = if args.watch && std::io::stdout().is_terminal() {
            CLEAR
        } else {
            ""
        };
        terminal::print(format_args!("{clear}{}", shown(&status, args.json)?));
        if !args.watch || output::has_failed() {
            return Ok(Exit::Done);
        }
        std::thread::sleep(WATCH_INTERVAL);
    }
}

fn shown(status: &DaemonStatus, json: bool) -> Result<String> {
    Ok(if json {
        serde_json::to_string(status)? + "\n"
    } else {
        table::of(status)
    })
}

/// Runs `zmove stop`.
pub(crate) fn stop(args: &StopArgs) -> Result<Exit> {
    for id in &args.ids {
        match ask(&args.control, &Request::Stop(id.clone()))? {
            Answer::Ended(ended) if ended.is_empty() => {
                return Err(usage_error(format!(
                    "no transfer on this host has the id {id}: see 'zmove status'"
                )));
            }
            Answer::Ended(ended) => ended.iter().for_each(report_ended),
            Answer::Ambiguous(found) => {
                let ids: Vec<_> = found.iter().map(|status| status.id.as_str()).collect();
                let text = format!("{id} matches {} transfers: {}", ids.len(), ids.join(", "));
                return Err(usage_error(text));
            }
            _ => return unexpected_answer(),
        }
    }
    Ok(Exit::Done)
}

/// Reports that a transfer is being stopped.
pub(crate) fn report_ended(TransferStatus { id, name, from, .. }: &TransferStatus) {
    terminal::say(format_args!(
        "stopped {id} of {name} at {from}; the same command there resumes it"
    ));
}

/// Runs `zmove drain`.
pub(crate) fn drain(args: &DrainArgs) -> Result<Exit> {
    let Answer::Draining(running) = ask(&args.control, &Request::Drain)? else {
        return unexpected_answer();
    };
    let under_way = counted(running as u64, "transfer");
    terminal::say(format_args!(
        "the daemon accepts no new transfers and exits after {under_way} in progress"
    ));
    while args.wait && ask(&args.control, &Request::Status).is_ok() {
        std::thread::sleep(WATCH_INTERVAL);
    }
    Ok(Exit::Done)
}

fn unexpected_answer<T>() -> Result<T> {
    bail!("the daemon is of another release, and its answer cannot be decoded: restart the daemon")
}

/// Sends a request to the daemon of this host.
///
/// # Errors
/// Returns an error if no daemon responds, or if the daemon is of another release.
pub(crate) fn ask(args: &ControlArgs, request: &Request) -> Result<Answer> {
    let places = match &args.socket {
        Some(socket) => vec![socket.clone()],
        None => places()?,
    };
    let mut failed = Vec::new();
    for place in places {
        match ask_at(&place, request)? {
            Ok(answer) => return Ok(answer),
            Err(error) => failed.push(format!("'{}': {error}", place.display())),
        }
    }
    let text = format!(
        "no daemon answers on this host ({}): is 'zmove serve' running? Only its user and root can connect to it (--socket)",
        failed.join("; ")
    );
    Err(failure(Exit::Connection, text))
}

/// Sends a request to the daemon at a socket. The inner error means that no daemon responds. Root connects only if no
/// other user can replace the socket. Otherwise, a process of the user who can replace it connects.
fn ask_at(socket: &Path, request: &Request) -> Result<Result<Answer, String>> {
    let socket = &std::path::absolute(socket)?;
    let directory = socket.parent().unwrap_or(socket);
    let user = ownership::other_owner(directory, "the socket of a daemon")?;
    let words = serde_json::to_string(request)? + "\n";
    let answered = within_patience(async {
        match user {
            Some(user) => ask_as(user, socket, &words).await,
            None => exchange(socket, &words).await,
        }
    });
    let line = match answered {
        Ok(Ok(line)) => parse_answer(&line).map(Ok),
        Ok(Err(nobody)) => Ok(Err(nobody)),
        Err(error) => Err(error),
    };
    let purpose = request.purpose();
    line.with_context(|| format!("ask the daemon at '{}' {purpose}", socket.display()))
}

/// Applies one deadline to the whole exchange with a daemon, whether this process or a child process connects.
fn within_patience<T>(asking: impl Future<Output = Result<T>>) -> Result<T> {
    let late = || {
        let text = format!("no answer within {} s", PATIENCE.as_secs());
        failure(Exit::Broken, text)
    };
    let answered = async { tokio::time::timeout(PATIENCE, asking).await };
    settings::block_on(1, async {
        answered.await.unwrap_or_else(|_late| Err(late()))
    })
}

/// Sends the request from a child process of the given user. The child is killed at the deadline, because that user may
/// have stopped it.
async fn ask_as(user: u32, socket: &Path, words: &str) -> Result<Result<String, String>> {
    let command = Child::new(user)?.arg("ask-daemon").arg(socket).0;
    let mut child = tokio::process::Command::from(command)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("start zmove as another user")?;
    let streams = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(mut input), Some(output), Some(errors)) = streams else {
        bail!("zmove as another user has no pipes");
    };
    let send = async move {
        // If the write fails, the child has exited. Its standard error then states the reason.
        let _ended = input.write_all(words.as_bytes()).await;
    };
    let (answer, told, ()) = tokio::join!(line_of(output), line_of(errors), send);
    let status = child
        .wait()
        .await
        .context("wait for zmove as another user")?;
    if status.success() {
        return answer.map(Ok);
    }
    let told = told?;
    let told = told.trim().trim_start_matches("zmove: ");
    match status.code() {
        Some(code) if code == Exit::Connection as i32 => Ok(Err(told.to_owned())),
        Some(code) if code == Exit::Broken as i32 => Err(failure(Exit::Broken, told)),
        _ if told.is_empty() => bail!("zmove as another user ended by {status}"),
        _ => bail!("{told}"),
    }
}

/// Runs `zmove ask-daemon`: forwards root's request as the daemon's user.
pub(crate) fn forward_request(socket: &Path) -> Result<Exit> {
    let mut words = String::new();
    std::io::stdin()
        .take(REQUEST_BYTES_MAX)
        .read_to_string(&mut words)?;
    let answered = within_patience(exchange(socket, &words))?;
    terminal::print(answered.map_err(|nobody| failure(Exit::Connection, nobody))?);
    Ok(Exit::Done)
}

/// Returns the paths at which a daemon's socket may exist on this host.
fn places() -> Result<Vec<PathBuf>> {
    let own = settings::control_socket(&settings::home(Role::Daemon)?);
    let is_chosen = std::env::var_os("ZMOVE_HOME").is_some();
    Ok(if is_chosen {
        vec![own]
    } else {
        vec![
            own,
            Path::new(settings::SERVICE_RUNTIME).join("control.sock"),
        ]
    })
}

/// Sends a line to a daemon and returns the response. The inner error means that no daemon listens at the socket.
async fn exchange(socket: &Path, words: &str) -> Result<Result<String, String>> {
    let mut stream = match UnixStream::connect(socket).await {
        Ok(stream) => stream,
        Err(error) => return Ok(Err(error.to_string())),
    };
    stream.write_all(words.as_bytes()).await?;
    line_of(stream).await.map(Ok)
}

/// Reads one line, or up to the end of the stream. Reads at most the maximum size of a response.
async fn line_of(stream: impl AsyncRead + Unpin) -> Result<String> {
    let mut line = Vec::new();
    let mut stream = BufReader::new(stream.take(ANSWER_BYTES_MAX + 1));
    stream.read_until(b'\n', &mut line).await?;
    if line.len() as u64 > ANSWER_BYTES_MAX {
        let text = format!("the answer is longer than {}", ByteCount(ANSWER_BYTES_MAX));
        return Err(failure(Exit::Broken, text));
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}

fn parse_answer(line: &str) -> Result<Answer> {
    match serde_json::from_str(line)? {
        Answer::Nonsense(why) => bail!("the daemon does not understand: {why}"),
        answer => Ok(answer),
    }
}
