//! How far a job is.

/// How far a job is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum JobPhase {
    /// The job is not known to have begun at the target.
    #[default]
    Beginning,
    /// The job has begun at the target.
    Begun,
    /// All work has ended, and the queue knows that the job is over.
    Over,
    /// The movers of the head have ended their sessions, or taken too long to: none comes to a receiver any more.
    Left,
}
