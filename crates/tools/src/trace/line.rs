//! The lines of a trace. Each line is a JSON object. A line is written ten times a second after the receiver has
//! accepted the transfer, and once at its end.
//!
//! - `seconds`: time since the command started.
//! - `bytes_read`, `bytes_handed_over`, `bytes_stored`: payload bytes since the start that were read and hashed, passed
//!   to lanes, and stored and verified according to the receipts that have arrived.
//! - `bytes_acked`, `segments_retransmitted`: counts of the kernel over all lanes, including TLS and headers. Null for
//!   a transfer within one process.
//! - `packs_waiting`, `frames_waiting`, `items_outstanding`: batches queued for the readers, frames queued for the
//!   lanes, and batches and groups without a receipt.
//! - `lanes`: open lanes.
//! - `from`, `to`, `at`, only in the first line: the hosts, and the time of the line in seconds since the Unix epoch.
//! - `limited_by`, only in the last line, which repeats the line before: the bottleneck of a successful transfer.

use serde::{Deserialize, Serialize};
use zmove_types::Sample;

/// The properties of the whole transfer, which only the first or the last line contains.
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

/// The progress of each stage at one time. The documentation of the module describes the keys.
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
