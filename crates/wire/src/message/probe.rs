//! The questions of a conversation that measures the path, and their answers.

use serde::{Deserialize, Serialize};

use super::fault::{FaultCode, Operation};
use super::list;

/// When a sample is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Moment {
    /// When the question is read.
    Now,
    /// When so many lanes, over the whole probe, have come to their end.
    Ended(u32),
}

/// How far a probe is, as its receiver has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sampled {
    /// Which question this answers.
    pub sample: u64,
    /// When it was taken, in microseconds since [`Opened`](super::Opened) was said.
    pub clock_us: u64,
    /// When the first frame was whole, on the same clock.
    pub first_us: Option<u64>,
    /// Bytes of filler that have come.
    pub bytes: u64,
    /// The receiver's CPU time for the whole process since then, in microseconds.
    pub cpu_us: u64,
}

/// The storage at the target is to be swept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepOrder {
    /// The most that may be written, in bytes; the receiver takes no more than
    /// [`SWEEP_BYTES_MAX`](crate::limits::SWEEP_BYTES_MAX).
    pub bytes: u64,
    /// How long it may take, in milliseconds; the receiver takes no more than
    /// [`SWEEP_MILLIS_MAX`](crate::limits::SWEEP_MILLIS_MAX).
    pub millis: u64,
}

/// What the storage at the target gives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Swept {
    /// From the smallest files to the largest.
    #[serde(deserialize_with = "list::at_most::<{ crate::limits::SWEEP_SIZES_MAX }, _, _>")]
    pub sizes: Vec<SweptSize>,
    /// Whether everything that was planned has been measured, if only in part.
    pub complete: bool,
    /// What was tried and why it failed, if it did; there are no sizes then.
    pub fault: Option<(Operation, FaultCode)>,
}

/// What files of one size have shown, in bytes per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweptSize {
    /// The size.
    pub file_bytes: u64,
    /// Written, with the flush.
    pub write: Option<u64>,
    /// Read, not from the page cache where that could be helped.
    pub read: Option<u64>,
}
