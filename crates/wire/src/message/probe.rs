//! The requests of a session that measures the path, and their answers.

use serde::{Deserialize, Serialize};

use super::fault::{FaultCode, Operation};
use super::list;

/// The time at which a sample is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SampleTime {
    /// When the receiver handles the request.
    Now,
    /// After this number of lanes have ended since the probe began.
    Ended(u32),
}

/// The progress of a probe as counted by its receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sampled {
    /// The number of the request that this answers.
    pub sample: u64,
    /// The time of the sample, in microseconds since [`Opened`](super::Opened) was sent.
    pub clock_us: u64,
    /// The time at which the first frame was received completely, in microseconds since [`Opened`](super::Opened) was
    /// sent. `None` if no frame was received completely.
    pub first_us: Option<u64>,
    /// Bytes of filler received.
    pub bytes: u64,
    /// CPU time of the receiver's process since [`Opened`](super::Opened) was sent, in microseconds.
    pub cpu_us: u64,
}

/// An order to sweep the target's storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepOrder {
    /// Maximum number of bytes to write. The receiver refuses more than
    /// [`SWEEP_BYTES_MAX`](crate::limits::SWEEP_BYTES_MAX).
    pub bytes: u64,
    /// Maximum duration of the sweep, in milliseconds. The receiver refuses more than
    /// [`SWEEP_MILLIS_MAX`](crate::limits::SWEEP_MILLIS_MAX).
    pub millis: u64,
}

/// The result of a sweep of the target's storage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Swept {
    /// The results by file size, from the smallest to the largest.
    #[serde(deserialize_with = "list::at_most::<{ crate::limits::SWEEP_SIZES_MAX }, _, _>")]
    pub sizes: Vec<SweptSize>,
    /// Whether all planned measurements were made, at least partially.
    pub complete: bool,
    /// The operation that failed and the cause, or `None` if the sweep succeeded. `sizes` is empty after a failure.
    pub fault: Option<(Operation, FaultCode)>,
}

/// The rates reached with files of one size, in bytes per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweptSize {
    /// The size of each file, in bytes.
    pub file_bytes: u64,
    /// The rate of writing, including the flush.
    pub write: Option<u64>,
    /// The rate of reading, bypassing the page cache if possible.
    pub read: Option<u64>,
}
