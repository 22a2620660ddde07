//! The threads of one push. They are started while the push runs and joined at its end.

use std::io;
use std::thread::JoinHandle;

use tokio::sync::mpsc::UnboundedSender;
use zmove_transport::LaneError;

/// All threads that have been started and may still be running.
pub(crate) struct PushThreads {
    running: Vec<JoinHandle<()>>,
    broken: UnboundedSender<WorkerFailure>,
}

/// A report that a lane broke or that a thread panicked.
#[derive(Debug)]
pub(crate) struct WorkerFailure {
    pub(crate) lane: Option<usize>,
    pub(crate) error: LaneError,
}

impl PushThreads {
    /// Creates an empty set of threads. A panic in one of them is reported to `broken`.
    pub(crate) const fn new(broken: UnboundedSender<WorkerFailure>) -> Self {
        Self {
            running: Vec::new(),
            broken,
        }
    }

    pub(crate) fn spawn(
        &mut self,
        name: String,
        work: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        let guard = PanicGuard(self.broken.clone());
        let guarded = move || {
            let _guard = guard;
            work();
        };
        let thread = std::thread::Builder::new().name(name).spawn(guarded)?;
        self.running.push(thread);
        Ok(())
    }

    /// Drops the handles of threads that have ended. Lanes and readers start and end throughout a push.
    pub(crate) fn tidy(&mut self) {
        self.running.retain(|thread| !thread.is_finished());
    }

    /// Waits for all threads.
    pub(crate) fn join(self) {
        for thread in self.running {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

/// Ends the push when one of its threads panics. Otherwise the push would wait forever.
struct PanicGuard(UnboundedSender<WorkerFailure>);

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let source = io::Error::other("a thread of the sender panicked");
            let _session_over = self.0.send(WorkerFailure {
                lane: None,
                error: LaneError::Io { source },
            });
        }
    }
}
