//! The lines of a trace: one JSON object each, ten times a second from when the receiver lets the transfer begin, and
//! one at the end.
//!
//! - `seconds`: since the command started.
//! - `bytes_read`, `bytes_handed_over`, `bytes_stored`: payload from the start that was read and hashed;
//!   given to lanes; stored and verified, as far as receipts are here.
//! - `bytes_acked`, `segments_retransmitted`: the kernel's counts over all lanes, with TLS and heads; null within one
//!   process.
//! - `packs_waiting`, `frames_waiting`, `items_outstanding`: batches before the readers, frames before the
//!   lanes, batches and groups without a receipt.
//! - `lanes`: lanes that are up.
//! - `from`, `to`, `at`, in the first line alone: the hosts, and when it was written, in seconds since 1970.
//! - `limited_by`, in the last line alone, which repeats the one before: what limited the transfer that has ended well.

use serde::{Deserialize, Serialize};
use zmove_types::Sample;

/// The properties of the whole transfer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct About {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) from: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) to: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) at: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) limited_by: Option<String>,
}

/// The progress of each stage at one moment. The keys are described at the head of this module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct TraceLine {
    pub(super) seconds: f64,
    pub(super) bytes_read: u64,
    pub(super) bytes_handed_over: u64,
    pub(super) bytes_acked: Option<u64>,
    pub(super) bytes_stored: u64,
    pub(super) packs_waiting: usize,
    pub(super) frames_waiting: usize,
    pub(super) items_outstanding: usize,
    pub(super) lanes: usize,
    pub(super) segments_retransmitted: Option<u64>,
}

impl From<&Sample> for TraceLine {
    fn from(sample: &Sample) -> Self {
        Self {
            seconds: sample.elapsed.as_secs_f64(),
            bytes_read: sample.bytes_read,
            bytes_handed_over: sample.bytes_handed_over,
            bytes_acked: sample.bytes_acked,
            bytes_stored: sample.bytes_stored,
            packs_waiting: sample.packs_waiting,
            frames_waiting: sample.frames_waiting,
            items_outstanding: sample.items_outstanding,
            lanes: sample.lanes,
            segments_retransmitted: sample.segments_retransmitted,
        }
    }
}
