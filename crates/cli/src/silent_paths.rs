//! Finds paths on file systems that never answer, before a command uses them.
//!
//! Not even SIGKILL ends some operations on such a path, and a thread in one keeps its process from ending.
//! **Invariant:** only a child process (`zmove look PATH...`), which is left behind, waits for a path that may not
//! answer. The child holds none of its parent's files and sockets.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use zmove_disk::{OwnPaths, RootGuard, Unanswered, access_path};
use zmove_jobs::THIS_PROGRAM;

use crate::ownership::close_inherited;
use crate::value::exit::Exit;

/// The paths that did not answer, with the mount of each.
#[derive(Debug, Default)]
pub(crate) struct SilentPaths(BTreeMap<PathBuf, Unanswered>);

impl SilentPaths {
    /// Accesses all paths at once. Returns those that do not answer within [`ANSWER_MAX`]. If the child cannot run, no
    /// path counts as silent.
    pub(crate) fn find<'a>(paths: impl IntoIterator<Item = &'a PathBuf>) -> Self {
        let mut waiting: BTreeMap<_, _> =
            paths.into_iter().map(|path| (path.clone(), None)).collect();
        if waiting.is_empty() {
            return Self::default();
        }
        let waited = start(waiting.keys()).and_then(|child| wait(child, &mut waiting));
        if waited.is_err() {
            return Self::default();
        }
        let silent = waiting.into_iter().map(|(path, last)| {
            let unanswered = Unanswered::at(last.as_deref(), ANSWER_MAX);
            (path, unanswered)
        });
        Self(silent.collect())
    }

    /// Checks that a path answered.
    ///
    /// # Errors
    /// Returns an error that names the mount if the path did not answer.
    pub(crate) fn check(&self, path: &Path) -> io::Result<()> {
        match self.0.get(path) {
            Some(unanswered) => Err(io::Error::new(io::ErrorKind::TimedOut, unanswered.clone())),
            None => Ok(()),
        }
    }

    /// Returns a message for each path that did not answer.
    pub(crate) fn faults(&self) -> impl Iterator<Item = String> {
        let fault = |(path, unanswered): (&PathBuf, &Unanswered)| {
            format!("the root '{}': {unanswered}", path.display())
        };
        self.0.iter().map(fault)
    }

    /// Creates the rule for opening roots. The rule looks at the roots `writable`, except at the silent ones. If there
    /// is a silent one, the rule allows no link at all, because a client could have created any link in it.
    pub(crate) fn guard(&self, writable: &[PathBuf], own: OwnPaths) -> RootGuard {
        let answering = writable.iter().filter(|root| !self.0.contains_key(*root));
        let mut guarded: Vec<_> = answering.cloned().collect();
        if guarded.len() < writable.len() {
            guarded.push("/".into());
        }
        RootGuard::new(guarded.into(), own)
    }
}

/// Starts the child that accesses the paths.
fn start<'a>(paths: impl Iterator<Item = &'a PathBuf>) -> io::Result<Child> {
    let mut command = Command::new(THIS_PROGRAM);
    command.args(["look", "--"]).args(paths);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command.spawn()
}

/// Waits until the child has accessed all paths, or the time limit passes. Removes the paths that answered, and sets
/// the last entry that was accessed for the other paths.
///
/// # Errors
/// Returns an error if the child ends too early.
fn wait(mut child: Child, waiting: &mut BTreeMap<PathBuf, Option<PathBuf>>) -> io::Result<()> {
    let paths: Vec<_> = waiting.keys().cloned().collect();
    let deadline = Instant::now() + ANSWER_MAX;
    let mut unread = Vec::new();
    let mut output = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    while !waiting.is_empty() && read_more(&mut output, &mut unread, deadline)? {
        while let Some(end) = unread.iter().position(|byte| *byte == 0) {
            let record: Vec<_> = unread.drain(..=end).collect();
            let Some((path, entry)) = parse(&record[..end], &paths) else {
                continue;
            };
            if entry.is_empty() {
                waiting.remove(path);
            } else if let Some(last) = waiting.get_mut(path) {
                *last = Some(PathBuf::from(entry));
            }
        }
    }
    if waiting.is_empty() {
        // The child ends on its own.
        let _status = child.wait();
    } else {
        // The child may never end, so it is not reaped.
        let _killed = child.kill();
    }
    Ok(())
}

/// Reads output of the child. Returns false if none arrives until the deadline.
///
/// # Errors
/// Returns the system's error, or an error at the end of the output.
fn read_more(
    output: &mut ChildStdout,
    unread: &mut Vec<u8>,
    deadline: Instant,
) -> io::Result<bool> {
    let left = deadline.saturating_duration_since(Instant::now());
    let left = Timespec::try_from(left).map_err(io::Error::other)?;
    match poll(&mut [PollFd::new(output, PollFlags::IN)], Some(&left)) {
        Ok(0) => return Ok(false),
        Err(Errno::INTR) => return Ok(true),
        ready => ready?,
    };
    let mut room = [0; READ_BYTES];
    let bytes = output.read(&mut room)?;
    if bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    unread.extend_from_slice(&room[..bytes]);
    Ok(true)
}

/// Parses `NUMBER ENTRY`. The entry is empty after the access to the path with that number.
fn parse<'a>(record: &'a [u8], paths: &'a [PathBuf]) -> Option<(&'a Path, &'a OsStr)> {
    let space = record.iter().position(|byte| *byte == b' ')?;
    let number: usize = std::str::from_utf8(&record[..space]).ok()?.parse().ok()?;
    let path = paths.get(number)?;
    Some((path, OsStr::from_bytes(&record[space + 1..])))
}

/// Runs `zmove look`: accesses each path in a thread, and reports each entry before its access.
///
/// # Errors
/// Returns an error if the descriptors of the parent cannot be closed.
pub(crate) fn look(paths: Vec<PathBuf>) -> Result<Exit> {
    close_inherited(0)?;
    let mut threads = Vec::new();
    for (number, path) in paths.into_iter().enumerate() {
        let path: Arc<Path> = path.into();
        let also = Arc::clone(&path);
        let thread = thread::Builder::new().stack_size(STACK_BYTES);
        match thread.spawn(move || access(number, &also)) {
            Ok(thread) => threads.push(thread),
            // No more threads are allowed.
            Err(_) => access(number, &path),
        }
    }
    for thread in threads {
        let _panicked = thread.join();
    }
    Ok(Exit::Done)
}

fn access(number: usize, path: &Path) {
    // An error is also an answer. The parent gets the same error when it uses the path.
    let _answer = access_path(path, |entry| report(number, entry.as_os_str()));
    report(number, OsStr::new(""));
}

fn report(number: usize, entry: &OsStr) {
    let record = [number.to_string().as_bytes(), b" ", entry.as_bytes(), b"\0"].concat();
    let mut output = io::stdout().lock();
    // If the parent has ended, nobody needs the report.
    let _parent_gone = output.write_all(&record).and_then(|()| output.flush());
}

/// Maximum time for the access to a path.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Stack of a thread that accesses a path, in bytes.
const STACK_BYTES: usize = 256 << 10;
const READ_BYTES: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn no_link_is_followed_while_a_writable_root_is_silent() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().canonicalize().unwrap().join(name);
        std::fs::create_dir(at("root")).unwrap();
        std::fs::create_dir(at("writable")).unwrap();
        symlink("root", at("link")).unwrap();
        let opens = |silent: &SilentPaths, root: &str| {
            let guard = silent.guard(&[at("writable")], OwnPaths::default());
            guard.open(&at(root)).is_ok()
        };
        let none = SilentPaths::default();
        assert!(opens(&none, "root") && opens(&none, "link"));
        let silent = BTreeMap::from([(at("writable"), Unanswered::at(None, ANSWER_MAX))]);
        let silent = SilentPaths(silent);
        assert!(opens(&silent, "root") && !opens(&silent, "link"));
    }
}
