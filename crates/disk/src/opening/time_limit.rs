//! A time limit for operations on a path. A file system may never respond, for example if the server of an NFS or FUSE
//! mount is gone. Some of these operations cannot be ended even by SIGKILL. After the time limit, their threads are
//! abandoned.

use std::error::Error;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use crate::opening::dead_mount::write_dead_mount;
use crate::opening::proc::{Mount, mounts};
use crate::opening::tree::trusted_path::{LINKS_MAX, path_parts};

/// An operation on a path did not end within its time limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unanswered {
    /// The mount that does not respond. `None` if every mount on the path responds by now.
    pub mount: Option<Box<Mount>>,
    /// The time limit.
    pub waited: Duration,
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no answer within {} s", self.waited.as_secs())?;
        self.mount
            .iter()
            .try_for_each(|mount| write_dead_mount(f, mount))
    }
}

impl Error for Unanswered {}

/// Runs an operation on `path` in a thread and waits for its result. After the time limit, the thread is abandoned and
/// may end later.
///
/// # Errors
/// Returns an error if the operation does not end in time. The inner error is that of the operation.
pub fn answer_within<T: Send + 'static>(
    limit: Duration,
    path: &Path,
    operation: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<io::Result<T>, Unanswered> {
    let (result_in, result) = mpsc::channel();
    let run = move || {
        // After the time limit, the result has no receiver.
        let _late = result_in.send(operation());
    };
    if let Err(error) = thread::Builder::new().name(THREAD.into()).spawn(run) {
        return Ok(Err(error));
    }
    match result.recv_timeout(limit) {
        Ok(result) => Ok(result),
        Err(RecvTimeoutError::Disconnected) => Ok(Err(io::Error::other("the thread panicked"))),
        Err(RecvTimeoutError::Timeout) => Err(Unanswered {
            mount: find_silent_mount(path).map(Box::new),
            waited: limit,
        }),
    }
}

/// Returns the mount on a path that does not respond.
fn find_silent_mount(path: &Path) -> Option<Mount> {
    let path = std::path::absolute(path).ok()?;
    let (steps_in, steps) = mpsc::channel();
    let follow = move || follow(&path, &steps_in);
    thread::Builder::new()
        .name(THREAD.into())
        .spawn(follow)
        .ok()?;
    let mut last = None;
    loop {
        match steps.recv_timeout(STEP_MAX) {
            Ok(step) => last = Some(step),
            Err(RecvTimeoutError::Timeout) => return Mount::containing(&mounts(), &last?),
            Err(RecvTimeoutError::Disconnected) => return None,
        }
    }
}

/// Accesses each directory on a path and the entry at its end. Sends each path to `steps` before the access.
fn follow(path: &Path, steps: &Sender<PathBuf>) {
    let mut here = PathBuf::from("/");
    let mut rest = path_parts(path);
    let mut links_left = LINKS_MAX;
    while let Some(name) = rest.pop() {
        if name == ".." {
            here.pop();
            continue;
        }
        let next = here.join(name);
        let _no_listener = steps.send(next.clone());
        match fs::read_link(&next) {
            Ok(target) if links_left > 0 => {
                links_left -= 1;
                if target.is_absolute() {
                    here = PathBuf::from("/");
                }
                rest.extend(path_parts(&target));
            }
            _ => here = next,
        }
    }
    // The result is ignored, because only the response time matters.
    let _answer = fs::read_dir(&here);
}

/// Maximum time to access one directory while searching for the mount that does not respond.
const STEP_MAX: Duration = Duration::from_secs(1);
const THREAD: &str = "zmove-answer";

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(50);

    #[test]
    fn an_operation_that_does_not_end_is_left_behind() {
        let home = tempfile::tempdir().unwrap();
        let (end, wait) = mpsc::channel::<()>();
        let hangs = move || wait.recv().map_err(io::Error::other);
        let error = answer_within(LIMIT, home.path(), hangs).unwrap_err();
        assert_eq!(error.mount, None, "the directory itself answers");
        assert_eq!(error.to_string(), "no answer within 0 s");
        drop(end);
        let open = || fs::read_dir("/none").map(drop);
        let answer = answer_within(Duration::from_secs(60), Path::new("/none"), open).unwrap();
        assert_eq!(answer.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn each_step_of_a_path_is_reported_before_it_is_accessed() {
        let home = tempfile::tempdir().unwrap();
        let real = home.path().canonicalize().unwrap();
        let at = |name: &str| real.join(name);
        fs::create_dir_all(at("a/b")).unwrap();
        symlink("../a", at("a/up")).unwrap();
        symlink("round", at("round")).unwrap();
        let last = |path: PathBuf| {
            let (steps_in, steps) = mpsc::channel();
            follow(&path, &steps_in);
            drop(steps_in);
            steps.iter().last()
        };
        assert_eq!(last(at("a/up/b")), Some(at("a/b")));
        assert_eq!(last(at("round")), Some(at("round")));
        assert_eq!(last(at("none/x")), Some(at("none/x")));
    }
}
