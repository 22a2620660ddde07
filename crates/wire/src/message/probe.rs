//! The questions of a conversation that measures the path, and their answers.

use serde::{Deserialize, Serialize};

use super::fault::{FaultCode, Operation};
use super::list;

/// The moment at which a sample is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Moment {
    /// When the receiver reads the question.
    Now,
    /// When so many lanes have ended, counted over the whole probe.
    Ended(u32),
}

/// The progress of a probe, as its receiver has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sampled {
    /// The number of the question that this answers.
    pub sample: u64,
    /// The time of the sample, in microseconds since [`Opened`](super::Opened) was sent.
    pub clock_us: u64,
    /// The time at which the first frame was complete, on the same clock.
    pub first_us: Option<u64>,
    /// Bytes of filler that have come.
    pub bytes: u64,
    /// The CPU time of the receiver's whole process since [`Opened`](super::Opened) was sent, in microseconds.
    pub cpu_us: u64,
}

/// An order to sweep the target's storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepOrder {
    /// The most that may be written, in bytes; the receiver takes no more than
    /// [`SWEEP_BYTES_MAX`](crate::limits::SWEEP_BYTES_MAX).
    pub bytes: u64,
    /// The longest that the sweep may take, in milliseconds; the receiver takes no more than
    /// [`SWEEP_MILLIS_MAX`](crate::limits::SWEEP_MILLIS_MAX).
    pub millis: u64,
}

/// The result of a sweep of the target's storage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Swept {
    /// The results by file size, from the smallest to the largest.
    #[serde(deserialize_with = "list::at_most::<{ crate::limits::SWEEP_SIZES_MAX }, _, _>")]
    pub sizes: Vec<SweptSize>,
    /// Whether everything that was planned has been measured, if only in part.
    pub complete: bool,
    /// The operation that failed and the cause, if one did; there are no sizes then.
    pub fault: Option<(Operation, FaultCode)>,
}

/// The rates that files of one size have reached, in bytes per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweptSize {
    /// The size of each file, in bytes.
    pub file_bytes: u64,
    /// The rate of writing, with the flush.
    pub write: Option<u64>,
    /// The rate of reading, past the page cache where that could be helped.
    pub read: Option<u64>,
}
