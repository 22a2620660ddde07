//! Why work cannot be had, or told of.

/// Why work cannot be had, or told of.
#[derive(Debug, thiserror::Error)]
pub enum WorkError {
    /// What the queue holds is no work item of this job.
    #[error("read a work item: {0}")]
    Item(#[from] postcard::Error),
    /// A work item that makes no sense.
    #[error("read a work item: {0}")]
    Nonsense(&'static str),
    /// The job has ended, or another epoch of it has begun.
    #[error("the job has ended, or has been begun anew by another head")]
    Over,
    /// The queue cannot be reached, or has refused.
    #[error("{operation}: {source}")]
    Queue {
        /// What was asked of the queue.
        operation: &'static str,
        /// Why it was not done.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}
