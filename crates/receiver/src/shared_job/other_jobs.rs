//! Handles shared jobs of other runs at the target of a session, above it, or below it.
//!
//! If such a job is alive, the session runs concurrently with it. The job's head (the node that leads it) may have been
//! killed. Its receivers may then continue for some seconds and could replace files of this session with old contents.
//! So the session compares and publishes nothing in a directory until it knows whether each job in that directory is
//! alive or dead ([`WatchedJob`]). It removes the remains of dead jobs. For jobs of other users, it waits at most 50 s
//! in total, because their heartbeats cannot be trusted.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use tokio::sync::mpsc::UnboundedSender;
use zmove_disk::{
    DEAD_AFTER, Lease, Liveness, SharedJobDirectory, Tree, WatchedJob, remove_abandoned,
};
use zmove_types::{Lock, RelPath, SharedJobId};

/// The jobs of other runs that a session finds.
#[derive(Debug)]
pub(crate) struct OtherJobs {
    /// The job to which the session belongs, if any.
    own: Option<SharedJobId>,
    lease: Lease,
    /// The jobs for which the session need not wait any more.
    settled: Lock<HashSet<SharedJobId>>,
    /// Channel for messages to the sender that explain why the session waits.
    notices: Option<UnboundedSender<String>>,
    has_notified: AtomicBool,
    /// Whether all waits were ended.
    is_over: Arc<AtomicBool>,
    began: Instant,
}

/// A job of another run, with the directory that contains the job's directory.
pub(crate) type FoundJob = (Arc<OwnedFd>, SharedJobId);

/// Interval at which a job of unclear state is checked.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_millis(250);

impl OtherJobs {
    pub(crate) fn new(
        own: Option<SharedJobId>,
        lease: &Lease,
        notices: Option<UnboundedSender<String>>,
    ) -> Self {
        Self {
            own,
            lease: lease.clone(),
            settled: Lock::default(),
            notices,
            has_notified: AtomicBool::new(false),
            is_over: Arc::default(),
            began: Instant::now(),
        }
    }

    /// Returns the flag that ends all waits when it is set.
    pub(crate) fn over_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_over)
    }

    /// Returns whether the session has ended or all waits were ended.
    pub(crate) fn is_over(&self) -> bool {
        self.lease.has_ended() || self.is_over.load(Ordering::Relaxed)
    }

    /// Reports the reason for waiting to the sender.
    pub(crate) fn notify(&self, text: String) {
        if let Some(notices) = &self.notices {
            let _nobody_hears_it_any_more = notices.send(text);
        }
    }

    /// Ends all waits.
    pub(crate) fn stop(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Removes the entries of dead processes in `directory`, which is at `path` in `tree`. Then waits for the jobs of
    /// other runs in this directory, and returns the dead ones. Call this function before any entry of the directory is
    /// compared or published.
    ///
    /// # Errors
    /// Returns an I/O error if the directory cannot be listed, and `ECONNABORTED` if the session has ended.
    pub(crate) fn enter(
        &self,
        tree: &Tree,
        path: &RelPath,
        directory: &Arc<OwnedFd>,
    ) -> io::Result<Vec<FoundJob>> {
        let jobs = ignore_denied(remove_abandoned(tree, path, directory.as_fd()))?;
        let found = jobs.into_iter().map(|job| (Arc::clone(directory), job));
        self.wait_for(found.collect())
    }

    /// Waits until each of these jobs is known to be alive or dead. Returns the dead jobs.
    ///
    /// # Errors
    /// Returns an I/O error if a job cannot be checked, and `ECONNABORTED` if the session has ended.
    pub(crate) fn wait_for(&self, found: Vec<FoundJob>) -> io::Result<Vec<FoundJob>> {
        let mut dead = Vec::new();
        let mut watched: Vec<_> = found
            .into_iter()
            .filter(|(_, job)| Some(*job) != self.own && !self.settled.lock().contains(job))
            .filter_map(|(parent, job)| {
                let job = WatchedJob::begin(parent.as_fd(), job, self.began)?;
                Some((job, parent))
            })
            .collect();
        loop {
            for (job, parent) in std::mem::take(&mut watched) {
                self.check_not_over()?;
                watched.extend(self.check_again(job, parent, &mut dead)?);
            }
            let Some((job, _)) = watched.first() else {
                return Ok(dead);
            };
            self.check_not_over()?;
            if !self.has_notified.swap(true, Ordering::Relaxed) {
                self.notify(wait_notice(job.job()));
            }
            self.lease
                .watch_slow_call(|| std::thread::sleep(CHECK_INTERVAL));
        }
    }

    /// Removes the remains of dead jobs, except entries of another user. The session will not wait for these jobs
    /// again.
    pub(crate) fn end(&self, dead: Vec<FoundJob>) {
        for (parent, job) in dead {
            let _best_effort = SharedJobDirectory::end_dead(&self.lease, &parent, job);
        }
    }

    fn check_not_over(&self) -> io::Result<()> {
        if self.is_over() {
            return Err(Errno::CONNABORTED.into());
        }
        Ok(())
    }

    /// Checks the state of a job again. Returns the job if its state is still unclear.
    fn check_again(
        &self,
        mut job: WatchedJob,
        parent: Arc<OwnedFd>,
        dead: &mut Vec<FoundJob>,
    ) -> io::Result<Option<(WatchedJob, Arc<OwnedFd>)>> {
        match job.check(parent.as_fd())? {
            Liveness::Unclear => return Ok(Some((job, parent))),
            Liveness::Gone => return Ok(None),
            Liveness::Foreign => {
                SharedJobDirectory::remove_empty(&self.lease, &parent, job.job());
            }
            Liveness::Alive => {}
            Liveness::Dead => dead.push((parent, job.job())),
        }
        self.settled.lock().insert(job.job());
        Ok(None)
    }
}

/// Returns the jobs in a directory. Returns none if access is denied, because the session may still open entries of
/// such a directory by name.
pub(crate) fn ignore_denied(jobs: io::Result<Vec<SharedJobId>>) -> io::Result<Vec<SharedJobId>> {
    match jobs {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(Vec::new()),
        jobs => jobs,
    }
}

fn wait_notice(job: SharedJobId) -> String {
    format!(
        "another push to several receivers uses '.zmove-job-{job}' at the target, above it or below it; the receiver \
         checks for up to {} s whether that push is running",
        DEAD_AFTER.as_secs()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc::unbounded_channel;
    use zmove_disk::list_shared_jobs;
    use zmove_types::Beginning;

    const JOB: SharedJobId = SharedJobId([7; 16]);

    fn place() -> (tempfile::TempDir, Arc<OwnedFd>) {
        let home = tempfile::tempdir().unwrap();
        let root = Tree::open(home.path()).unwrap();
        let root = root.open_directory(&RelPath::root()).unwrap();
        drop(SharedJobDirectory::open(&root, JOB, Beginning::Allowed).unwrap());
        (home, root)
    }

    #[test]
    fn a_session_does_not_wait_for_its_own_job() {
        let (_home, root) = place();
        let others = OtherJobs::new(Some(JOB), &Lease::constant(), None);
        others.wait_for(vec![(root, JOB)]).unwrap();
    }

    #[test]
    fn a_session_that_waits_says_so_once_and_waits_no_longer_than_it_lasts() {
        let (_home, root) = place();
        let (notices, mut tells) = unbounded_channel();
        let lease = Lease::timed(Arc::new(|| 1), |_| {}, None);
        let others = OtherJobs::new(None, &lease, Some(notices));
        let found = || vec![(Arc::clone(&root), JOB)];
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| others.wait_for(found()));
            assert!(tells.blocking_recv().unwrap().contains(&JOB.to_string()));
            lease.end();
            let ended = waits.join().unwrap().unwrap_err();
            assert_eq!(Errno::from_io_error(&ended), Some(Errno::CONNABORTED));
        });
        assert!(others.wait_for(found()).is_err());
        assert!(tells.try_recv().is_err());
        assert_eq!(list_shared_jobs(root.as_fd()).unwrap(), [JOB]);
    }

    /// The source and target of a local push are in one process, whose lease never ends.
    #[test]
    fn a_session_that_is_stopped_waits_no_longer() {
        let (_home, root) = place();
        let (notices, mut tells) = unbounded_channel();
        let others = OtherJobs::new(None, &Lease::constant(), Some(notices));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| others.wait_for(vec![(Arc::clone(&root), JOB)]));
            tells.blocking_recv().unwrap();
            others.stop();
            assert!(waits.join().unwrap().is_err());
        });
    }

    #[test]
    fn a_job_whose_directory_goes_is_waited_for_no_longer() {
        let (_home, root) = place();
        let (notices, mut tells) = unbounded_channel();
        let others = OtherJobs::new(None, &Lease::constant(), Some(notices));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| others.wait_for(vec![(Arc::clone(&root), JOB)]));
            tells.blocking_recv().unwrap();
            SharedJobDirectory::end_dead(&Lease::constant(), &root, JOB).unwrap();
            waits.join().unwrap().unwrap();
        });
    }
}
