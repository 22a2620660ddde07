//! The command hook: a program that reads the document of an event from its standard input.

use std::fs::File;
use std::io::{self, Seek as _, Write as _};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use serde::Deserialize;

use super::event::EventDocument;
use crate::environment;

/// The program and its arguments, which are not interpreted by a shell.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Hook {
    command: Vec<String>,
}

impl Hook {
    pub(super) fn is_empty(&self) -> bool {
        self.command.first().is_none_or(String::is_empty)
    }

    /// Runs the command with the event as its input. Exit code 0 means that the command has accepted the event.
    pub(super) fn send(&self, event: &EventDocument, timeout: Duration) -> Result<(), String> {
        let program = &self.command[0];
        match self.run(event, timeout) {
            Ok(Some(status)) if status.success() => Ok(()),
            Ok(Some(status)) => Err(format!("'{program}' failed: {status}")),
            Ok(None) => Err(format!(
                "'{program}' ran for more than {} s and was killed",
                timeout.as_secs()
            )),
            Err(error) => Err(format!("run '{program}': {error}")),
        }
    }

    /// Runs the command and returns its exit status, or `None` if it was killed at the timeout.
    fn run(&self, event: &EventDocument, timeout: Duration) -> io::Result<Option<ExitStatus>> {
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]).current_dir("/");
        command.env_clear().envs(environment::passed_variables());
        command.stdin(input(event)?).stdout(Stdio::null());
        // Processes that the command starts belong to the same process group, so the kill below ends them too.
        let mut child = command.process_group(0).spawn()?;
        let group = Pid::from_child(&child);
        let ended = wait(&mut child, timeout);
        if !matches!(ended, Ok(Some(_))) {
            let _gone = kill_process_group(group, Signal::KILL);
            child.wait()?;
        }
        ended
    }
}

/// Returns a file that contains the document. A write to a pipe would block if the command does not read its input.
fn input(event: &EventDocument) -> io::Result<File> {
    let mut file = File::from(memfd_create("event", MemfdFlags::CLOEXEC)?);
    writeln!(file, "{}", event.json)?;
    file.rewind()?;
    Ok(file)
}

/// Waits for a process to end. Returns `None` at the timeout.
fn wait(child: &mut Child, timeout: Duration) -> io::Result<Option<ExitStatus>> {
    let until = Instant::now() + timeout;
    let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        // A signal can interrupt the poll. The loop then waits for the remaining time.
        let _woken = poll(
            &mut [PollFd::new(&pidfd, PollFlags::IN)],
            Timespec::try_from(left).ok().as_ref(),
        );
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::OpenOptionsExt;

    use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};

    use super::super::event::tests::{document, document_with_message};
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(30);

    fn hook(command: &[&str]) -> Hook {
        let command = command.iter().map(ToString::to_string).collect();
        Hook { command }
    }

    fn run_script(script: &str, timeout: Duration) -> Result<(), String> {
        hook(&["/bin/sh", "-c", script]).send(&document(), timeout)
    }

    #[test]
    fn words_of_a_command_are_not_read_by_a_shell() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("$(date) x;y");
        let touch = hook(&["/usr/bin/touch", file.to_str().unwrap()]);
        assert_eq!(touch.send(&document(), TIMEOUT), Ok(()));
        let names: Vec<_> = std::fs::read_dir(directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["$(date) x;y"]);
    }

    #[test]
    fn a_command_reads_the_document_and_gets_no_other_variables() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let script = format!(
            "cat > '{}'; env > '{}'",
            path("input").display(),
            path("env").display()
        );
        assert_eq!(run_script(&script, TIMEOUT), Ok(()));
        let read = |name| std::fs::read_to_string(path(name)).unwrap();
        assert_eq!(read("input"), format!("{}\n", document().json));
        let text = read("env");
        let names = text
            .lines()
            .filter_map(|line| Some(line.split_once('=')?.0));
        let known: Vec<_> = environment::passed_variables()
            .map(|(name, _)| name.into_string().unwrap())
            .collect();
        // The shell sets these variables.
        let is_known = |name: &str| {
            ["PWD", "OLDPWD", "SHLVL", "_"].contains(&name) || known.contains(&name.to_owned())
        };
        assert_eq!(
            names.filter(|name| !is_known(name)).collect::<Vec<_>>(),
            [""; 0]
        );
    }

    /// The document is larger than the buffer of a pipe.
    #[test]
    fn a_command_that_reads_nothing_accepts_the_event() {
        let event = document_with_message(Some("x".repeat(1 << 20)));
        assert_eq!(hook(&["/bin/true"]).send(&event, TIMEOUT), Ok(()));
    }

    #[test]
    fn a_command_that_fails_has_not_accepted_the_event() {
        assert_eq!(
            run_script("exit 3", TIMEOUT),
            Err("'/bin/sh' failed: exit status: 3".into())
        );
        let why = hook(&["/nowhere/hook"])
            .send(&document(), TIMEOUT)
            .unwrap_err();
        assert!(
            why.starts_with("run '/nowhere/hook': No such file"),
            "{why}"
        );
    }

    #[test]
    fn a_command_that_hangs_is_killed_with_all_that_it_has_started() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("held");
        mknodat(CWD, &file, FileType::Fifo, Mode::RWXU, 0).unwrap();
        let held = std::fs::OpenOptions::new()
            .read(true)
            .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
            .open(&file)
            .unwrap();
        let script = format!(
            "exec 9> '{}'; echo begun >&9; sleep 600 & wait",
            file.display()
        );
        let has_begun = |seconds| {
            let result = run_script(&script, Duration::from_secs(seconds));
            let killed = format!("'/bin/sh' ran for more than {seconds} s and was killed");
            assert_eq!(result, Err(killed));
            let mut said = [0; 6];
            matches!((&held).read(&mut said), Ok(6)) && said == *b"begun\n"
        };
        // On a busy host, the shell may be killed before it has started.
        assert!([3, 10, 60].into_iter().any(has_begun));
        // The shell and the process that it has started hold the pipe open until they end.
        let within = Timespec::try_from(Duration::from_secs(60)).unwrap();
        let mut polled = [PollFd::new(&held, PollFlags::HUP)];
        let ready = poll(&mut polled, Some(&within)).unwrap();
        assert_eq!(ready, 1, "a process lives");
    }
}
