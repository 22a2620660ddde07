//! The phases of a job.

/// The phase of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum JobPhase {
    /// The job is not known to have started at the target.
    #[default]
    Beginning,
    /// The job has started at the target.
    Begun,
    /// All work is done, and the queue knows that the job is over.
    Over,
    /// The movers of the head have ended their sessions, or the time limit for ending them has passed. No further mover
    /// will connect to a receiver.
    Left,
}
