//! A command that tells: words, not a line for a shell, with the job's facts in its environment.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use serde::Deserialize;
use toml::Table;

use super::keys::{plain, timeout_seconds};
use super::message::Message;
use crate::environment;
use crate::store::Try;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Command {
    command: Vec<String>,
    #[serde(default = "timeout_seconds")]
    timeout_seconds: u64,
}

impl Command {
    pub(super) fn parse(table: Table) -> Result<Self, String> {
        let command: Self = table.try_into().map_err(|error| plain(&error))?;
        if command.command.first().is_none_or(String::is_empty) {
            return Err("no command".to_owned());
        }
        Ok(command)
    }

    pub(super) fn shown(&self) -> String {
        self.command[0].clone()
    }

    pub(super) fn tell(&self, message: &Message) -> Try {
        match self.run(message) {
            Ok(Some(status)) if status.success() => Try::Delivered,
            Ok(Some(status)) => Try::NotNow(format!("'{}' ended with {status}", self.shown())),
            Ok(None) => Try::NotNow(format!(
                "'{}' took more than {} s, and was killed",
                self.shown(),
                self.timeout_seconds
            )),
            Err(error) => Try::NotNow(format!("run '{}': {error}", self.shown())),
        }
    }

    /// Runs it; none if it took too long.
    fn run(&self, message: &Message) -> io::Result<Option<ExitStatus>> {
        let mut command = std::process::Command::new(&self.command[0]);
        command.args(&self.command[1..]).current_dir("/");
        command
            .env_clear()
            .envs(environment::handed_on())
            .envs(message.variables());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        // What it starts is in its group too, and ends with it.
        let mut child = command.process_group(0).spawn()?;
        let group = Pid::from_child(&child);
        let ended = wait(&mut child, Duration::from_secs(self.timeout_seconds));
        if !matches!(ended, Ok(Some(_))) {
            let _gone = kill_process_group(group, Signal::KILL);
            child.wait()?;
        }
        ended
    }
}

/// Waits for the end of a process; none if that takes too long.
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
        // A signal is a reason to look again.
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

    use rustix::fs::{CWD, FileType, Mode, OFlags, fcntl_setfl, mknodat};

    use super::super::message::tests::message;
    use super::*;

    fn shell(script: &str, timeout_seconds: u64) -> Try {
        let command = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
        Command {
            command,
            timeout_seconds,
        }
        .tell(&message())
    }

    #[test]
    fn words_of_a_command_are_not_read_by_a_shell() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("$(told) x;y");
        let touch = Command {
            command: ["/usr/bin/touch", file.to_str().unwrap()]
                .map(str::to_owned)
                .to_vec(),
            timeout_seconds: 30,
        };
        assert_eq!(touch.tell(&message()), Try::Delivered);
        let names: Vec<_> = std::fs::read_dir(directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["$(told) x;y"]);
    }

    #[test]
    fn a_command_has_the_facts_and_no_other_variables() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("told");
        let told = shell(&format!("env > '{}'", file.display()), 30);
        assert_eq!(told, Try::Delivered);
        let text = std::fs::read_to_string(file).unwrap();
        assert!(text.contains("ZMOVE_TELL_ID=abc-7\n"), "{text}");
        assert!(text.contains("ZMOVE_TELL_EVENT=done\n"), "{text}");
        // beside those of a shell
        let names = text
            .lines()
            .filter_map(|line| Some(line.split_once('=')?.0));
        let known: Vec<_> = environment::handed_on()
            .map(|(name, _)| name.into_string().unwrap())
            .collect();
        let is_known = |name: &str| {
            name.starts_with("ZMOVE_TELL_")
                || ["PWD", "OLDPWD", "SHLVL", "_"].contains(&name)
                || known.contains(&name.to_owned())
        };
        assert_eq!(
            names.filter(|name| !is_known(name)).collect::<Vec<_>>(),
            [""; 0]
        );
    }

    #[test]
    fn a_command_that_fails_has_not_told() {
        assert_eq!(
            shell("exit 3", 30),
            Try::NotNow("'/bin/sh' ended with exit status: 3".into())
        );
        let absent = Command {
            command: vec!["/nowhere/told".into()],
            timeout_seconds: 1,
        };
        let Try::NotNow(why) = absent.tell(&message()) else {
            panic!("it cannot tell")
        };
        assert!(
            why.starts_with("run '/nowhere/told': No such file"),
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
        let told = shell(
            &format!(
                "exec 9> '{}'; echo begun >&9; sleep 600 & wait",
                file.display()
            ),
            3,
        );
        assert_eq!(
            told,
            Try::NotNow("'/bin/sh' took more than 3 s, and was killed".into())
        );
        // The shell and the process that it has started hold the pipe open until they end.
        fcntl_setfl(&held, OFlags::empty()).unwrap();
        let is_held = || {
            let within = Timespec::try_from(Duration::from_secs(60)).unwrap();
            let mut polled = [PollFd::new(&held, PollFlags::HUP)];
            poll(&mut polled, Some(&within)).unwrap() == 0
        };
        assert!(!is_held(), "a process lives");
        let mut said = String::new();
        (&held).read_to_string(&mut said).unwrap();
        assert_eq!(said, "begun\n");
    }
}
