//! The process of an attempt. Its standard input is the job's lock, and its standard output is a file of events. Lock
//! and file outlive the runner. The next runner can thus find out whether the process is alive and which events it has
//! printed.

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
use crate::place::{JobsDirectory, lock, make_directory, private_open_options};
use crate::program::THIS_PROGRAM;
use crate::store::Started;

/// A process that executes a job.
#[derive(Debug)]
pub(super) struct Process {
    /// `None` if an earlier runner has started the process.
    child: Option<Child>,
    pid: Option<Pid>,
    /// `None` if the kernel does not support pidfds, or the process was not found.
    pidfd: Option<OwnedFd>,
}

/// Whether a process is running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProcessStatus {
    Running,
    /// Ended with this exit code, if known.
    Ended(Option<i32>),
}

/// Takes a job's lock. Returns `None` while a process holds it.
pub(super) fn take_lock(place: &JobsDirectory, id: JobId) -> io::Result<Option<File>> {
    make_directory(&place.job(id))?;
    lock(&place.lock(id))
}

/// Starts the process of an attempt and passes it the job's lock. `words` are the program and arguments that precede
/// the job's own arguments.
pub(super) fn start(
    place: &JobsDirectory,
    id: JobId,
    lock: File,
    Started {
        attempt, run, work, ..
    }: &Started,
    words: &[OsString],
) -> io::Result<Process> {
    let _shown_no_more = std::fs::remove_file(place.events(id, attempt.saturating_sub(1)));
    let events = private_open_options()
        .write(true)
        .create(true)
        .truncate(true)
        .open(place.events(id, *attempt))?;
    let log = open_log(place, id)?;
    let mut command = command(work, words)?;
    // The process will detach from the runner's terminal by calling `setsid`. That call fails for the leader of a
    // process group, so the process is not made one.
    command
        .env(JOB_RUN, run)
        .stdin(lock)
        .stdout(events)
        .stderr(log);
    Ok(Process::of(command.spawn()?))
}

/// Starts a process that ends a copy between two other hosts. The copy was started by the job, and the process receives
/// the job's lock.
pub(super) fn start_to_end(
    place: &JobsDirectory,
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

fn open_log(place: &JobsDirectory, id: JobId) -> io::Result<File> {
    let log = place.log(id);
    let is_long = log.metadata().is_ok_and(|log| log.len() > LOG_BYTES_MAX);
    let log = private_open_options().append(true).create(true).open(log)?;
    if is_long {
        log.set_len(0)?;
    }
    Ok(log)
}

/// Returns the job's command with the directory and environment in which it was submitted.
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
    command.env_clear().envs(environment::passed_variables());
    // These variables must come from the submission of the job, not from the environment of the user who started the
    // runner.
    for name in SUBMITTER_VARIABLES {
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

    /// Finds the process that holds a job's lock and was started by an earlier runner.
    pub(super) fn adopt(place: &JobsDirectory, id: JobId) -> Self {
        let lock = place.lock(id);
        let pid = find_lock_holder(&lock);
        let pidfd = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        // The process may have ended before the pidfd was opened, and its pid may have been reused.
        let pid = pid.filter(|pid| has_lock_as_stdin(*pid, &lock));
        Self {
            child: None,
            pid,
            pidfd: pidfd.filter(|_| pid.is_some()),
        }
    }

    /// Returns whether the process has ended. An adopted process has ended when its lock is free.
    pub(super) fn check_status(
        &mut self,
        place: &JobsDirectory,
        id: JobId,
    ) -> io::Result<ProcessStatus> {
        match &mut self.child {
            Some(child) => Ok(child.try_wait()?.map_or(ProcessStatus::Running, |status| {
                ProcessStatus::Ended(status.code())
            })),
            None => Ok(take_lock(place, id)?
                .map_or(ProcessStatus::Running, |_free| ProcessStatus::Ended(None))),
        }
    }

    /// Returns the pidfd, which becomes readable when the process ends.
    pub(super) fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(OwnedFd::as_fd)
    }

    /// Returns whether `pid` is this process and the process is a child of the runner.
    pub(super) fn is_child(&self, pid: Pid) -> bool {
        self.child.is_some() && self.pid == Some(pid)
    }

    /// Sends a signal to the process if it is alive. Returns whether the process was found. If an adopted process was
    /// not found before, it is searched for again, because its standard input may not have been set at that time.
    pub(super) fn signal(&mut self, place: &JobsDirectory, id: JobId, signal: Signal) -> bool {
        if self.child.is_none() && self.pid.is_none() {
            *self = Self::adopt(place, id);
        }
        let sent = match (&self.child, &self.pidfd, self.pid) {
            (None, Some(pidfd), _) => pidfd_send_signal(pidfd, signal),
            // The pid cannot be reused: only this thread can reap the child.
            (Some(_), _, Some(pid)) => kill_process(pid, signal),
            (None, None, Some(pid)) if has_lock_as_stdin(pid, &place.lock(id)) => {
                kill_process(pid, signal)
            }
            _ => return false,
        };
        // A process that has ended needs no signal.
        matches!(sent, Ok(()) | Err(Errno::SRCH))
    }
}

/// Returns the process whose standard input is the lock file.
fn find_lock_holder(lock: &Path) -> Option<Pid> {
    let entries = std::fs::read_dir("/proc").ok()?.flatten();
    let pids = entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
    pids.into_iter().find(|pid| has_lock_as_stdin(*pid, lock))
}

fn has_lock_as_stdin(pid: Pid, lock: &Path) -> bool {
    let input = std::fs::metadata(format!("/proc/{}/fd/0", pid.as_raw_nonzero()));
    let lock = std::fs::metadata(lock);
    matches!((input, lock), (Ok(input), Ok(lock)) if (input.dev(), input.ino()) == (lock.dev(), lock.ino()))
}

/// Variables that locate a user's keys and programs. A job gets the values that they had at its submission. A variable
/// that was not set at that time is removed.
pub const SUBMITTER_VARIABLES: [&str; 5] =
    ["HOME", "KRB5CCNAME", "PATH", "SSH_AUTH_SOCK", "ZMOVE_HOME"];

/// The variable that makes a job's process end the copy with this id between two other hosts and do nothing else.
pub const COPY_TO_END: &str = "ZMOVE_JOB_COPY_TO_END";

/// The variable that contains the ID of the job's run, as 32 hexadecimal digits. All attempts of a job on one
/// machine have the same ID.
pub const JOB_RUN: &str = "ZMOVE_JOB_RUN";

/// The size above which a job's log is truncated at the start of an attempt, in bytes.
const LOG_BYTES_MAX: u64 = 16 << 20;

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    /// A runner that was killed just after a fork leaves a process that cannot be recognized as the job's process yet.
    /// A later runner must still be able to end it.
    #[test]
    fn a_process_that_was_not_found_is_looked_for_again() {
        let directory = tempfile::tempdir().unwrap();
        let (place, id) = (JobsDirectory::open(directory.path()).unwrap(), JobId(1));
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
