//! Separates other users' processes from the terminal at which root started a command. A process with access to that
//! terminal can insert input for root's shell (TIOCSTI).
//!
//! If root has a terminal, the process that becomes another user is a child in a separate session. Its parent stays in
//! the foreground, copies the child's output to the terminal, and forwards signals. **Invariant:** a process that
//! becomes another user has no controlling terminal, and no descriptor of one.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, IsTerminal, PipeReader, Read as _, Write as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpid, getppid, kill_process,
    set_parent_process_death_signal, setsid, waitid,
};
use tokio::task::{JoinHandle, spawn_blocking};
use zmove_jobs::THIS_PROGRAM;

use crate::display::output;
use crate::display::terminal::Printable;
use crate::settings;
use crate::value::exit::{Exit, failure};
use zmove_far::EndSignals;

/// If this process has a terminal, runs the same command in a child without a terminal, and returns the child's exit
/// code. Returns `None` if this process has no terminal, or if it is that child.
///
/// # Errors
/// Returns an error if the child cannot be started or was killed.
pub(crate) fn run_apart(parent: Option<u32>) -> Result<Option<u8>> {
    if parent.is_some() || !has_terminal()? {
        return Ok(None);
    }
    let mut words = std::env::args_os();
    let mut command = Command::new(THIS_PROGRAM);
    if let Some(name) = words.next() {
        command.arg0(name);
    }
    command
        .args(words)
        .arg("--apart-from")
        .arg(getpid().to_string())
        .stdin(Stdio::null());
    // The sockets that the service manager passed to this process now belong to the child.
    if std::env::var("LISTEN_PID").is_ok_and(|pid| pid == getpid().to_string()) {
        command.env_remove("LISTEN_PID");
    }
    run(command).map(Some)
}

/// Runs a child of root without a terminal, and returns its exit code.
///
/// # Errors
/// Returns an error if the child cannot be started or was killed.
pub(super) fn run(command: Command) -> Result<u8> {
    let status = settings::block_on(1, relay(command))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.with_context(|| format!("zmove as another user ended by {status}"))
}

/// Leaves the parent's session, and thereby its terminal.
///
/// # Errors
/// Returns an error if this process leads a process group, which may have other members.
pub(super) fn leave() -> Result<()> {
    if has_controlling_terminal()? {
        setsid().context("leave the terminal (only commands of root start this)")?;
    }
    Ok(())
}

/// Makes the kernel kill this process when its parent exits. The user sees and stops only the parent.
///
/// # Errors
/// Returns the system's error, or an error if the parent has already exited.
pub(crate) fn end_with(parent: u32) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("end with the parent")?;
    let is_alive = getppid().is_some_and(|pid| pid.as_raw_nonzero().get().unsigned_abs() == parent);
    ensure!(
        is_alive,
        "the process {parent}, which keeps the terminal, has ended"
    );
    Ok(())
}

/// Checks that this process has no terminal.
///
/// # Errors
/// Returns an error if this process has a terminal.
pub(super) fn require_no_terminal() -> Result<()> {
    ensure!(
        !has_controlling_terminal()?,
        "become another user: this process still has a controlling terminal"
    );
    let descriptors = Path::new("/proc/self/fd");
    for entry in fs::read_dir(descriptors).context("list the descriptors of this process")? {
        let name = entry
            .context("list the descriptors of this process")?
            .file_name();
        if is_terminal(&descriptors.join(&name)) {
            let number = name.display();
            bail!(
                "become another user: descriptor {number} is a terminal, through which that user could type into it; \
                 close it ({number}>&-)"
            );
        }
    }
    Ok(())
}

fn has_terminal() -> Result<bool> {
    let streams = [
        io::stdin().is_terminal(),
        io::stdout().is_terminal(),
        io::stderr().is_terminal(),
    ];
    Ok(streams.contains(&true) || has_controlling_terminal()?)
}

fn has_controlling_terminal() -> Result<bool> {
    let stat = fs::read_to_string("/proc/self/stat").context("look for the terminal")?;
    let device = controlling_terminal(&stat).context("read /proc/self/stat")?;
    Ok(device != "0")
}

/// Returns the number of the controlling terminal from the text of `/proc/PID/stat`. The program's name in this text
/// may contain any character.
fn controlling_terminal(stat: &str) -> Option<&str> {
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(4)
}

/// Returns whether a descriptor of this process refers to a terminal. The function opens the file of the descriptor
/// again, because a descriptor cannot be borrowed by number. A device that cannot be opened counts as a terminal. For
/// example, `/dev/tty` cannot be opened after the process has left its terminal.
fn is_terminal(descriptor: &Path) -> bool {
    let is_device = fs::metadata(descriptor).is_ok_and(|found| found.file_type().is_char_device());
    let flags = OFlags::NOCTTY | OFlags::NONBLOCK;
    let open = || {
        File::options()
            .read(true)
            .custom_flags(flags.bits().cast_signed())
            .open(descriptor)
    };
    is_device && !open().is_ok_and(|opened| !opened.is_terminal())
}

async fn relay(mut command: Command) -> Result<ExitStatus> {
    if io::stdin().is_terminal() {
        command.stdin(Stdio::null());
    }
    let mut copies = Vec::new();
    if io::stdout().is_terminal() {
        let (output, input) = io::pipe().context("make a pipe")?;
        command.stdout(input);
        copies.push(copy(output, |text| output::write(text)));
    }
    if io::stderr().is_terminal() {
        let (output, input) = io::pipe().context("make a pipe")?;
        command.stderr(input);
        copies.push(copy(output, |text| {
            // The result is ignored, because the terminal may no longer exist.
            let _gone = io::stderr().write_all(text.as_bytes());
        }));
    }
    let mut signals = EndSignals::listen_for_child().context("handle signals")?;
    let mut command = tokio::process::Command::from(command);
    let mut child = command
        .spawn()
        .with_context(|| format!("start zmove as another user ({THIS_PROGRAM})"))?;
    // After this drop, only the child holds the write ends of the pipes.
    drop(command);
    let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    let mut stopped = spawn_blocking(move || pid.is_some_and(is_stopped));
    let status = loop {
        tokio::select! {
            status = child.wait() => break status.context("wait for zmove as another user")?,
            Ok(true) = &mut stopped => {
                child.kill().await.context("kill zmove as another user")?;
                let text = "zmove as another user was stopped by a signal (by that user or root) and was killed";
                return Err(failure(Exit::Broken, text));
            }
            signal = signals.next_to_pass() => {
                // If the child has exited, it needs no signal, so the error is ignored.
                let _ended = pid.map(|pid| kill_process(pid, signal));
            }
        }
    };
    // A process that the child has started may still hold a pipe open.
    let copied = futures_util::future::join_all(copies);
    let _held_open = tokio::time::timeout(LAST_WORDS, copied).await;
    Ok(status)
}

/// Waits until a child stops or exits. Returns whether it stopped. The child's user may stop the child, and root would
/// then wait for it forever. The child is not reaped.
fn is_stopped(child: Pid) -> bool {
    let events = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    loop {
        match waitid(WaitId::Pid(child), events) {
            Err(Errno::INTR) => {}
            event => return matches!(event, Ok(Some(event)) if event.stopped()),
        }
    }
}

/// Copies text from a pipe to a terminal. The copy runs on a separate thread, because writing to the terminal may
/// block.
fn copy(output: PipeReader, show: impl FnMut(&str) + Send + 'static) -> JoinHandle<()> {
    spawn_blocking(move || copy_lines(output, show))
}

/// Copies lines. Escapes characters that could control the terminal.
fn copy_lines(output: impl io::Read, mut show: impl FnMut(&str)) {
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = output
            .by_ref()
            .take(LINE_BYTES_MAX)
            .read_until(b'\n', &mut line);
        if !matches!(read, Ok(1..)) {
            return;
        }
        let text = String::from_utf8_lossy(&line);
        let (text, end) = text
            .strip_suffix('\n')
            .map_or((&*text, ""), |text| (text, "\n"));
        show(&format!("{}{end}", Printable(text)));
    }
}

/// Maximum length of a line that is copied at once, in bytes. A longer line is split.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// Maximum time to copy the last output of a child that has exited.
const LAST_WORDS: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_terminal_is_read_behind_any_name_of_a_program() {
        for name in ["zmove", "a b", ") R 1 2 3 4 ("] {
            let stat = format!("7 ({name}) S 1 7 7 34816 7 4194560 95");
            assert_eq!(controlling_terminal(&stat), Some("34816"), "{name}");
        }
        assert_eq!(controlling_terminal("7 (zmove) S 1 7"), None);
    }

    #[test]
    fn output_of_another_user_cannot_command_the_terminal() {
        let mut shown = String::new();
        copy_lines(&b"one\n\x1b[6n two\r\n\xc2\x9b \xff\nend"[..], |text| {
            shown += text
        });
        assert_eq!(shown, "one\n\\u{1b}[6n two\\r\n\\u{9b} \u{fffd}\nend");
    }

    #[test]
    fn a_line_without_end_is_copied_in_parts() {
        let mut parts = Vec::new();
        let line = vec![b'x'; 150 << 10];
        copy_lines(&line[..], |text| parts.push(text.len()));
        assert_eq!(parts, [64 << 10, 64 << 10, 22 << 10]);
    }
}
