//! Finds paths on file systems that never answer, before a command uses them.
//!
//! Not even SIGKILL ends some operations on such a path, and a thread in one keeps its process from ending.
//! **Invariant:** only a child process (`zmove look PATH...`), which is left behind, waits for a path that may not
//! answer. The child holds none of its parent's files and sockets.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Display;
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use zmove_disk::{SilentRoots, Unanswered, access_path};
use zmove_jobs::THIS_PROGRAM;

use crate::ownership::close_inherited;
use crate::value::exit::Exit;

/// The paths that did not answer.
#[derive(Debug, Default)]
pub(crate) struct SilentPaths {
    pub(crate) roots: SilentRoots,
    /// The child that still waits for them.
    child: Option<Child>,
}

impl SilentPaths {
    /// Accesses all paths at once. Returns those that do not answer within [`ANSWER_MAX`]. If the child cannot run,
    /// calls `warn`, and no path counts as silent.
    pub(crate) fn find<'a>(
        paths: impl IntoIterator<Item = &'a PathBuf>,
        warn: impl FnOnce(String),
    ) -> Self {
        let mut waiting: BTreeMap<_, _> =
            paths.into_iter().map(|path| (path.clone(), None)).collect();
        if waiting.is_empty() {
            return Self::default();
        }
        let waited = start(waiting.keys()).and_then(|child| wait(child, &mut waiting));
        let child = match waited {
            Ok(child) => child,
            Err(error) => {
                warn(format!(
                    "this command may hang on storage that does not answer: find such storage ('zmove look'): {error}"
                ));
                return Self::default();
            }
        };
        let silent = waiting.into_iter().map(|(path, last)| {
            let unanswered = Unanswered::at(last.as_deref(), ANSWER_MAX);
            (path, unanswered)
        });
        Self {
            roots: silent.collect(),
            child,
        }
    }

    /// Returns a message for each path that did not answer.
    pub(crate) fn faults(&self) -> impl Iterator<Item = impl Display> {
        let fault = |(path, unanswered): (&Path, &Unanswered)| {
            format!("the root '{}': {unanswered}", path.display())
        };
        self.roots.iter().map(fault)
    }

    /// Starts a thread that reaps the child, which may take forever. A process that confines itself must call this
    /// afterwards, because a confinement does not apply to existing threads.
    pub(crate) fn reap_later(self) {
        if let Some(mut child) = self.child {
            let reap = move || drop(child.wait());
            // Without a thread, the child is reaped after this process ends.
            drop(thread::Builder::new().stack_size(STACK_BYTES).spawn(reap));
        }
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
/// the last entry that was accessed for the other paths. Returns the child if it still waits.
///
/// # Errors
/// Returns an error if the child ends too early.
fn wait(
    mut child: Child,
    waiting: &mut BTreeMap<PathBuf, Option<PathBuf>>,
) -> io::Result<Option<Child>> {
    let paths: Vec<_> = waiting.keys().cloned().collect();
    let deadline = Some(Instant::now() + ANSWER_MAX);
    let mut unread = Vec::new();
    let mut output = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    loop {
        match read_more(&mut output, &mut unread, deadline) {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) => {
                let status = child.wait()?;
                return Err(io::Error::new(error.kind(), format!("{error} ({status})")));
            }
        }
        for record in take_records(&mut unread) {
            let Some((path, entry)) = parse(&record, &paths) else {
                continue;
            };
            if entry.is_empty() {
                waiting.remove(path);
            } else if let Some(last) = waiting.get_mut(path) {
                *last = Some(PathBuf::from(entry));
            }
        }
        if waiting.is_empty() {
            // The child ends on its own.
            let _status = child.wait();
            return Ok(None);
        }
    }
    let _killed = child.kill();
    Ok(Some(child))
}

/// Reads output of the child. Returns false if none arrives until the deadline.
///
/// # Errors
/// Returns the system's error, or an error at the end of the output.
fn read_more(
    output: &mut ChildStdout,
    unread: &mut Vec<u8>,
    deadline: Option<Instant>,
) -> io::Result<bool> {
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let left = left.map(Timespec::try_from).transpose();
    let left = left.map_err(io::Error::other)?;
    match poll(&mut [PollFd::new(output, PollFlags::IN)], left.as_ref()) {
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

/// Removes the complete records from the output.
fn take_records(unread: &mut Vec<u8>) -> Vec<Vec<u8>> {
    let mut records: Vec<_> = unread
        .split(|byte| *byte == 0)
        .map(<[u8]>::to_vec)
        .collect();
    *unread = records.pop().unwrap_or_default();
    records
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
    let spawn = |work: Work| {
        let thread = thread::Builder::new().stack_size(STACK_BYTES);
        thread.spawn(work).map(drop)
    };
    access_all(paths, access, spawn);
    Ok(Exit::Done)
}

/// Accesses each path in a thread. If no more threads are allowed, waits until one has ended. Only if there is none at
/// all, this thread accesses a path.
fn access_all(
    paths: Vec<PathBuf>,
    access: fn(usize, &Path),
    mut spawn: impl FnMut(Work) -> io::Result<()>,
) {
    let (end, ended) = mpsc::channel();
    let mut running = 0_usize;
    for (number, path) in paths.into_iter().enumerate() {
        let path: Arc<Path> = path.into();
        loop {
            let path = Arc::clone(&path);
            let also = Arc::clone(&path);
            let end = end.clone();
            let work = Box::new(move || {
                access(number, &also);
                // The receiver is this function, which waits for all threads.
                let _sent = end.send(());
            });
            if spawn(work).is_ok() {
                running += 1;
                break;
            }
            if running == 0 {
                access(number, &path);
                break;
            }
            let _ended = ended.recv();
            running -= 1;
        }
    }
    for _ in 0..running {
        let _ended = ended.recv();
    }
}

type Work = Box<dyn FnOnce() + Send>;

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
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Only one thread is allowed at a time.
    #[test]
    fn a_path_without_a_thread_waits_for_another_thread() {
        static SEEN: Mutex<Vec<(usize, thread::ThreadId)>> = Mutex::new(Vec::new());
        static BUSY: AtomicBool = AtomicBool::new(false);
        let access: fn(usize, &Path) = |number, _| {
            SEEN.lock().unwrap().push((number, thread::current().id()));
            BUSY.store(false, Ordering::Relaxed);
        };
        let refused = || Err(io::ErrorKind::WouldBlock.into());
        let spawn = |work: Work| {
            if BUSY.swap(true, Ordering::Relaxed) {
                return refused();
            }
            thread::spawn(work);
            Ok(())
        };
        let here = thread::current().id();
        let seen = || std::mem::take(&mut *SEEN.lock().unwrap());
        access_all(vec!["/a".into(), "/b".into(), "/c".into()], access, spawn);
        let seen_first = seen();
        assert!(seen_first.iter().map(|(number, _)| *number).eq(0..3));
        assert!(seen_first.iter().all(|(_, thread)| *thread != here));
        access_all(vec!["/d".into()], access, |_| refused());
        assert_eq!(
            seen(),
            [(0, here)],
            "without any thread, nothing is skipped"
        );
    }
}
