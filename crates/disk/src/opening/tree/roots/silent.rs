//! Roots that do not answer.
//!
//! **Invariant:** at most one thread for each root waits for its storage, however many sessions begin.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use zmove_types::{FileNumber, Lock};

use super::WritableRoot;
use crate::opening::unanswered::Unanswered;

/// Roots that did not answer when a process began, with the mount of each.
#[derive(Clone, Debug, Default)]
pub struct SilentRoots(Arc<BTreeMap<PathBuf, Unanswered>>);

impl SilentRoots {
    /// Checks that a root is not one of these.
    ///
    /// # Errors
    /// Returns an error that names the mount.
    pub fn check(&self, root: &Path) -> io::Result<()> {
        match self.0.get(root) {
            Some(unanswered) => Err(timed_out(unanswered.clone())),
            None => Ok(()),
        }
    }

    /// Returns the roots and their errors.
    pub fn iter(&self) -> impl Iterator<Item = (&Path, &Unanswered)> {
        self.0
            .iter()
            .map(|(path, unanswered)| (path.as_path(), unanswered))
    }

    /// Returns whether all roots answered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<(PathBuf, Unanswered)> for SilentRoots {
    fn from_iter<I: IntoIterator<Item = (PathBuf, Unanswered)>>(roots: I) -> Self {
        Self(Arc::new(roots.into_iter().collect()))
    }
}

/// Finds the device and inode numbers of roots in threads, because a root may not answer. Clones share the threads.
#[derive(Clone, Debug, Default)]
pub(super) struct RootLooks(Arc<Lock<HashMap<PathBuf, RootLook>>>);

/// The last look at a root.
#[derive(Debug, Default)]
struct RootLook {
    /// The result of a thread that has not ended.
    pending: Option<Receiver<Option<FileNumber>>>,
    /// The number at the last answer. `None` if the root could not be opened.
    number: Option<FileNumber>,
}

impl RootLooks {
    /// Returns the roots that can be opened. A root that does not answer within `limit` counts as the directory that it
    /// was at its last answer.
    ///
    /// # Errors
    /// Returns an error if a root does not answer and never did.
    pub(super) fn look(
        &self,
        roots: &[PathBuf],
        limit: Duration,
        number: impl Fn(&Path) -> Option<FileNumber> + Clone + Send + 'static,
    ) -> io::Result<Vec<WritableRoot>> {
        // Other sessions wait for this lock, but no longer than `limit`.
        let mut looks = self.0.lock();
        let begun: Vec<_> = roots
            .iter()
            .map(|root| {
                looks
                    .entry(root.clone())
                    .or_default()
                    .begin(root, number.clone())
            })
            .collect();
        let deadline = Instant::now() + limit;
        let mut found = Vec::new();
        for (root, is_begun) in roots.iter().zip(begun) {
            let look = looks.entry(root.clone()).or_default();
            if is_begun {
                look.wait(deadline);
            }
            match look.number {
                Some(number) => found.push(WritableRoot {
                    path: root.clone(),
                    number,
                }),
                None if look.pending.is_some() => return Err(silent(root, limit)),
                None => {}
            }
        }
        Ok(found)
    }
}

impl RootLook {
    /// Starts a thread, unless an earlier thread still waits. Returns whether a thread was started.
    fn begin(
        &mut self,
        root: &Path,
        number: impl Fn(&Path) -> Option<FileNumber> + Send + 'static,
    ) -> bool {
        let waits = |pending: &Receiver<_>| matches!(pending.try_recv(), Err(TryRecvError::Empty));
        if self.pending.as_ref().is_some_and(waits) {
            return false;
        }
        let (result, pending) = mpsc::sync_channel(1);
        let root = root.to_owned();
        let look = move || {
            // The caller may have stopped waiting.
            let _late = result.send(number(&root));
        };
        let thread = thread::Builder::new().name("root".into()).spawn(look);
        if thread.is_err() {
            // Without a thread, nobody knows whether the root answers.
            self.number = None;
        }
        self.pending = Some(pending);
        thread.is_ok()
    }

    fn wait(&mut self, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now());
        if let Some(Ok(number)) = self
            .pending
            .as_ref()
            .map(|pending| pending.recv_timeout(left))
        {
            self.number = number;
            self.pending = None;
        }
    }
}

/// Returns the error for a link that is not followed because a root does not answer.
pub(super) fn silent(root: &Path, waited: Duration) -> io::Error {
    let unanswered = Unanswered::at(Some(root), waited);
    let root = root.display();
    timed_out(format!(
        "no link is followed while the root '{root}', where a client may write, does not answer: {unanswered}"
    ))
}

fn timed_out(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMBER: FileNumber = FileNumber {
        device: 1,
        inode: 2,
    };

    #[test]
    fn one_thread_waits_for_a_silent_root_which_counts_as_it_last_answered() {
        let looks = RootLooks::default();
        let roots = ["/a".into(), "/silent".into()];
        let limit = Duration::from_millis(20);
        let answering = |_: &Path| Some(NUMBER);
        let stuck = || {
            let (answer, answered) = mpsc::channel::<()>();
            let answered = Arc::new(Lock::new(answered));
            let number = move |root: &Path| {
                if root.ends_with("silent") {
                    assert!(answered.lock().recv().is_err(), "nothing is ever sent");
                }
                Some(NUMBER)
            };
            (answer, number)
        };
        let (answer, number) = stuck();
        let error = looks.look(&roots, limit, number).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(error.to_string().contains("'/silent'"), "{error}");
        let not_again = |root: &Path| {
            assert!(!root.ends_with("silent"), "a second thread");
            Some(NUMBER)
        };
        let count = |looks: io::Result<Vec<WritableRoot>>| looks.map(|found| found.len());
        count(looks.look(&roots, limit, not_again)).unwrap_err();
        drop(answer);
        let patient = Duration::from_secs(60);
        while looks.look(&roots, patient, answering).is_err() {
            thread::yield_now();
        }
        let (_answer, number) = stuck();
        assert_eq!(count(looks.look(&roots, limit, number)).unwrap(), 2);
        assert_eq!(count(looks.look(&roots, patient, not_again)).unwrap(), 2);
    }
}
