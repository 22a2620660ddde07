//! `zmove status`, `zmove stop` and `zmove drain`: what the operator of a daemon's host sees and does, over the
//! daemon's socket (`commands/serve/control.rs`).

mod table;

use std::io::{BufRead as _, BufReader, IsTerminal as _, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use zmove_daemon::TransferStatus;

use crate::args::{ControlArgs, DrainArgs, StatusArgs, StopArgs};
use crate::display::format::counted;
use crate::display::{output, terminal};
use crate::ownership::{self, Child};
use crate::settings::{self, Role};
use crate::value::control::{Answer, REQUEST_BYTES_MAX, Request, Status};
use crate::value::exit::{Exit, failure, usage_error};

/// How long a daemon may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often a status is shown anew.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// Clears a terminal and puts the cursor to its upper left corner.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Runs `zmove status`.
pub(crate) fn status(args: &StatusArgs) -> Result<Exit> {
    loop {
        let Answer::Status(status) = ask(&args.control, &Request::Status)? else {
            return no_sense();
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

fn shown(status: &Status, json: bool) -> Result<String> {
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
                    "no transfer here has the id {id}: see 'zmove status'"
                )));
            }
            Answer::Ended(ended) => ended.iter().for_each(tell_ended),
            Answer::Ambiguous(found) => {
                let ids: Vec<_> = found.iter().map(|status| status.id.as_str()).collect();
                let text = format!("{id} fits {} transfers: {}", ids.len(), ids.join(", "));
                return Err(usage_error(text));
            }
            _ => return no_sense(),
        }
    }
    Ok(Exit::Done)
}

/// Says which transfer is being ended.
pub(crate) fn tell_ended(TransferStatus { id, name, from, .. }: &TransferStatus) {
    terminal::say(format_args!(
        "stopped {id} of {name} at {from}; the same command there goes on where it was"
    ));
}

/// Runs `zmove drain`.
pub(crate) fn drain(args: &DrainArgs) -> Result<Exit> {
    let Answer::Draining(running) = ask(&args.control, &Request::Drain)? else {
        return no_sense();
    };
    let under_way = counted(running as u64, "transfer");
    terminal::say(format_args!(
        "the daemon takes no new transfers, and ends after {under_way} under way"
    ));
    while args.wait && ask(&args.control, &Request::Status).is_ok() {
        std::thread::sleep(WATCH_INTERVAL);
    }
    Ok(Exit::Done)
}

fn no_sense<T>() -> Result<T> {
    bail!("the daemon is of another release, and gives no answer that is understood here")
}

/// Asks the daemon of this host.
///
/// # Errors
/// None answers, or it is of another release.
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
        "no daemon answers here ({}); only its own user and root can ask it (--socket)",
        failed.join("; ")
    );
    Err(failure(Exit::Connection, text))
}

/// Asks the daemon at a socket; the inner error says that none answers there. Root connects only where nobody else can
/// change the socket's name, and otherwise has the user connect who can.
fn ask_at(socket: &Path, request: &Request) -> Result<Result<Answer, String>> {
    let socket = &std::path::absolute(socket)?;
    let directory = socket.parent().unwrap_or(socket);
    if let Some(user) = ownership::other_owner(directory, "the socket of a daemon")? {
        return ask_as(user, socket, request);
    }
    match UnixStream::connect(socket) {
        Ok(stream) => converse(stream, request)
            .with_context(|| format!("ask '{}'", socket.display()))
            .map(Ok),
        Err(error) => Ok(Err(error.to_string())),
    }
}

/// Has a process of that user ask.
fn ask_as(user: u32, socket: &Path, request: &Request) -> Result<Result<Answer, String>> {
    let mut command = Child::new(user)?.arg("ask-daemon").arg(socket).0;
    let piped = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = piped.spawn().context("start zmove as another user")?;
    let words = serde_json::to_string(request)? + "\n";
    // A process that has ended says why.
    let _ended = child
        .stdin
        .take()
        .map(|mut input| input.write_all(words.as_bytes()));
    let output = child
        .wait_with_output()
        .context("wait for zmove as another user")?;
    if output.status.success() {
        return understood(&String::from_utf8_lossy(&output.stdout)).map(Ok);
    }
    let told = String::from_utf8_lossy(&output.stderr);
    Ok(Err(told.trim().trim_start_matches("zmove: ").to_owned()))
}

/// Runs `zmove ask-daemon`: passes on what root asks, as the daemon's user.
pub(crate) fn pass_on(socket: &Path) -> Result<Exit> {
    let mut words = String::new();
    std::io::stdin()
        .take(REQUEST_BYTES_MAX)
        .read_to_string(&mut words)?;
    let stream = UnixStream::connect(socket)
        .map_err(|error| failure(Exit::Connection, error.to_string()))?;
    terminal::print(exchange(stream, &words)?);
    Ok(Exit::Done)
}

/// Where a daemon of this host may have its socket.
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

fn converse(stream: UnixStream, request: &Request) -> Result<Answer> {
    understood(&exchange(
        stream,
        &(serde_json::to_string(request)? + "\n"),
    )?)
}

/// Sends a line, and returns the answer.
fn exchange(mut stream: UnixStream, request: &str) -> Result<String> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(request.as_bytes())?;
    let mut line = String::new();
    // a daemon answers in one line, and closes
    BufReader::new(stream).take(u64::MAX).read_line(&mut line)?;
    Ok(line)
}

fn understood(line: &str) -> Result<Answer> {
    match serde_json::from_str(line)? {
        Answer::Nonsense(why) => bail!("the daemon does not understand: {why}"),
        answer => Ok(answer),
    }
}
