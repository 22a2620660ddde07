//! The process of an attempt. It holds its job's lock as its standard input, and prints its events into a file: both
//! outlive the runner, so that another one finds whether it lives, and which events it has printed.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

use crate::environment;
use crate::job::{JobId, JobWork};
use crate::place::{Place, lock, make_directory, private};
use crate::program::THIS_PROGRAM;
use crate::store::Started;

/// A process that does a job.
#[derive(Debug)]
pub(super) struct Process {
    /// `None` where an earlier runner has started it.
    child: Option<Child>,
    pid: Option<Pid>,
    /// `None` where the kernel has none, or the process could not be found.
    pidfd: Option<OwnedFd>,
}

/// Whether a process has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Lives,
    /// With this exit code, if it is known.
    Ended(Option<i32>),
}

/// Takes a job's lock; none while a process holds it.
pub(super) fn take_lock(place: &Place, id: JobId) -> io::Result<Option<File>> {
    make_directory(&place.job(id))?;
    lock(&place.lock(id))
}

/// Starts the process of an attempt, which gets the job's lock. `words` are the program and what stands before the
/// job's own words.
pub(super) fn start(
    place: &Place,
    id: JobId,
    lock: File,
    Started { attempt, work, .. }: &Started,
    words: &[OsString],
) -> io::Result<Process> {
    let _shown_no_more = std::fs::remove_file(place.events(id, attempt.saturating_sub(1)));
    let events = private()
        .write(true)
        .create(true)
        .truncate(true)
        .open(place.events(id, *attempt))?;
    let log = open_log(place, id)?;
    let mut command = command(work, words)?;
    // It leaves the runner's terminal by itself, which a leader of a group could not.
    command.stdin(lock).stdout(events).stderr(log);
    Ok(Process::of(command.spawn()?))
}

/// Starts a process that ends a copy between two other hosts which a job has begun; it gets the job's lock.
pub(super) fn start_to_end(
    place: &Place,
    id: JobId,
    lock: File,
    work: &JobWork,
    copy: &str,
    words: &[OsString],
) -> io::Result<Process> {
    let log = open_log(place, id)?;
    let mut command = command(work, words)?;
    command
        .env(COPY_TO_END, copy)
        .stdin(lock)
        .stdout(log.try_clone()?)
        .stderr(log);
    Ok(Process::of(command.spawn()?))
}

fn open_log(place: &Place, id: JobId) -> io::Result<File> {
    let log = place.log(id);
    let is_long = log.metadata().is_ok_and(|log| log.len() > LOG_BYTES_MAX);
    let log = private().append(true).create(true).open(log)?;
    if is_long {
        log.set_len(0)?;
    }
    Ok(log)
}

/// The program with a job's words, where and with what they mean what they did when they were typed.
fn command(work: &JobWork, words: &[OsString]) -> io::Result<Command> {
    let own = work.environment.0.iter().filter_map(|variable| {
        let at = variable.as_bytes().iter().position(|&byte| byte == b'=')?;
        let (name, value) = variable.as_bytes().split_at(at);
        Some((
            OsString::from_vec(name.to_vec()),
            OsString::from_vec(value[1..].to_vec()),
        ))
    });
    let (program, first) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    if program == THIS_PROGRAM {
        command.arg0("zmove");
    }
    command.env_clear().envs(environment::handed_on());
    // What is the submitter's own is not whoever's has started the runner.
    for name in OF_THE_SUBMITTER {
        command.env_remove(name);
    }
    command
        .args(first)
        .args(&work.arguments.0)
        .envs(own)
        .current_dir(&work.directory);
    Ok(command)
}

impl Process {
    fn of(child: Child) -> Self {
        let pid = Pid::from_child(&child);
        Self {
            child: Some(child),
            pid: Some(pid),
            pidfd: pidfd_open(pid, PidfdFlags::empty()).ok(),
        }
    }

    /// The process that holds a job's lock, which an earlier runner has started.
    pub(super) fn adopt(place: &Place, id: JobId) -> Self {
        let lock = place.lock(id);
        let pid = holder(&lock);
        let pidfd = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        // The number may have become another's before it was opened.
        let pid = pid.filter(|pid| holds(*pid, &lock));
        Self {
            child: None,
            pid,
            pidfd: pidfd.filter(|_| pid.is_some()),
        }
    }

    /// Whether it has ended. One that is not ours has when its lock is free.
    pub(super) fn life(&mut self, place: &Place, id: JobId) -> io::Result<Life> {
        match &mut self.child {
            Some(child) => Ok(child
                .try_wait()?
                .map_or(Life::Lives, |status| Life::Ended(status.code()))),
            None => Ok(take_lock(place, id)?.map_or(Life::Lives, |_free| Life::Ended(None))),
        }
    }

    /// What is readable at its end.
    pub(super) fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(OwnedFd::as_fd)
    }

    /// Whether it is this child of the runner.
    pub(super) fn is_child(&self, pid: Pid) -> bool {
        self.child.is_some() && self.pid == Some(pid)
    }

    /// Sends it a signal, if it lives; returns whether it was found. One that was not when it was adopted is looked for
    /// again: it may not have had its lock as its standard input yet.
    pub(super) fn signal(&mut self, place: &Place, id: JobId, signal: Signal) -> bool {
        if self.child.is_none() && self.pid.is_none() {
            *self = Self::adopt(place, id);
        }
        let sent = match (&self.child, &self.pidfd, self.pid) {
            (None, Some(pidfd), _) => pidfd_send_signal(pidfd, signal),
            // Nobody but this thread takes its number away, by waiting for it.
            (Some(_), _, Some(pid)) => kill_process(pid, signal),
            (None, None, Some(pid)) if holds(pid, &place.lock(id)) => kill_process(pid, signal),
            _ => return false,
        };
        // What has ended needs no signal.
        matches!(sent, Ok(()) | Err(Errno::SRCH))
    }
}

/// The process whose standard input a lock is.
fn holder(lock: &Path) -> Option<Pid> {
    let entries = std::fs::read_dir("/proc").ok()?.flatten();
    let pids = entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
    pids.into_iter().find(|pid| holds(*pid, lock))
}

fn holds(pid: Pid, lock: &Path) -> bool {
    let input = std::fs::metadata(format!("/proc/{}/fd/0", pid.as_raw_nonzero()));
    let lock = std::fs::metadata(lock);
    matches!((input, lock), (Ok(input), Ok(lock)) if (input.dev(), input.ino()) == (lock.dev(), lock.ino()))
}

/// Variables by which a process finds a user's keys and programs: a job has those of its submission, or none.
pub const OF_THE_SUBMITTER: [&str; 5] =
    ["HOME", "KRB5CCNAME", "PATH", "SSH_AUTH_SOCK", "ZMOVE_HOME"];

/// The variable by which a job's process is asked to end the copy of this id between two other hosts, and nothing else.
pub const COPY_TO_END: &str = "ZMOVE_JOB_COPY_TO_END";

/// The length from which on a job's log is begun anew with an attempt.
const LOG_BYTES_MAX: u64 = 16 << 20;

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    /// A runner that was killed between a fork and what follows it leaves a process that does not look like the job's
    /// yet; a later one has to be able to end it all the same.
    #[test]
    fn a_process_that_was_not_found_is_looked_for_again() {
        let directory = tempfile::tempdir().unwrap();
        let (place, id) = (Place::open(directory.path()).unwrap(), JobId(1));
        let lock = take_lock(&place, id).unwrap().unwrap();
        let mut process = Process::adopt(&place, id);
        assert!(
            !process.signal(&place, id, Signal::TERM),
            "nobody has it as standard input"
        );
        let mut child = Command::new("sleep")
            .arg("600")
            .stdin(lock)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        assert!(process.signal(&place, id, Signal::TERM));
        assert!(!child.wait().unwrap().success());
    }
}
