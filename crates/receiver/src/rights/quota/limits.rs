//! Limits on the resources of this host that the clients of a daemon may use: in total, per key, and per transfer.
//!
//! `docs/REFERENCE.md` has the table. The limits on a single message or frame are in `zmove_wire::limits`.

use std::time::Duration;

use zmove_transport::GREETING_TIMEOUT;
use zmove_types::{ByteCount, GROUP_BYTES};
use zmove_wire::limits::{LANES_MAX, LANES_UNREQUESTED_MAX};

/// The limits of one daemon. A connection or transfer that exceeds a limit is queued, refused or closed, and the log
/// names the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of connections whose peer has not proved a key. A further connection waits, or replaces a
    /// connection from a network that exceeds its share. Default: 256. Each connection takes about 40 KiB, and up to 1
    /// MiB of kernel memory for unread data.
    pub unproven: usize,
    /// Time limit for a peer to prove its key, and then for its greeting. Default: [`GREETING_TIMEOUT`].
    pub unproven_time: Duration,
    /// Maximum number of connections of one key that do not belong to a transfer yet. Default: 512. Each connection
    /// takes about 40 KiB.
    pub waiting_per_identity: usize,
    /// Maximum number of concurrent transfers. Default: 64.
    pub transfers: usize,
    /// Maximum number of concurrent transfers of one key. Default: 32.
    pub transfers_per_identity: usize,
    /// Maximum number of queued transfers of one key. Further transfers are refused. Default: 256. Each queued transfer
    /// takes about 40 KiB.
    pub queued_per_identity: usize,
    /// Maximum number of lanes of all transfers together. Each lane uses a thread and, over TCP, a descriptor. A new
    /// transfer may use one eighth of the remaining lanes, but at least 8. Default: 4096.
    pub lanes: usize,
    /// Maximum number of lanes of all transfers of one key. Default: 1088, so that each of the key's transfers gets its
    /// share.
    pub lanes_per_identity: usize,
    /// Maximum number of lanes of one transfer, from 8 to 64. Default: 64.
    pub lanes_per_transfer: u16,
    /// Maximum size of the buffers of one transfer, at least 64 MiB. The number of lanes is limited so that 8 more
    /// buffers than lanes exist. Default: 288 MiB.
    pub memory_per_transfer: ByteCount,
    /// Maximum memory of the transfers of one key in addition to their buffers: messages and batches being processed,
    /// and directories and files remembered until the end. Default: 1 GiB.
    pub memory_per_identity: ByteCount,
    /// Maximum number of descriptors for large files and directories of the transfers of one key. Default: a quarter of
    /// the process's limit.
    pub files_per_identity: usize,
    /// Maximum number of threads that inspect the target for the transfers of one key. Beyond this limit, each transfer
    /// has one thread for comparing and one for removing. Default: 256.
    pub threads_per_identity: usize,
    /// Maximum number of journals of one key, including those of interrupted transfers. Default: 256.
    pub journals_per_identity: usize,
    /// Maximum total size of the journals of one key, checked when a journal is created. Each journal may use a quarter
    /// of this size. Default: 256 MiB.
    pub journal_bytes_per_identity: ByteCount,
}

/// The maximum number of lanes and buffers of one transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Portion {
    /// Maximum number of lanes.
    pub lanes: u16,
    /// Maximum number of buffers, each for one group.
    pub buffers: usize,
}

/// A new transfer may use 1/8 of the remaining lanes, so that some lanes are left for later transfers.
const SHARES: usize = 8;
/// Number of buffers for data that is queued for writers, in addition to one buffer for each lane.
pub(crate) const BUFFERS_BESIDE_LANES: usize = 8;

impl Default for Limits {
    fn default() -> Self {
        Self {
            unproven: 256,
            unproven_time: GREETING_TIMEOUT,
            waiting_per_identity: 512,
            transfers: 64,
            transfers_per_identity: 32,
            queued_per_identity: 256,
            lanes: 4096,
            lanes_per_identity: 1088,
            lanes_per_transfer: LANES_MAX,
            memory_per_transfer: ByteCount(288 << 20),
            memory_per_identity: ByteCount(1 << 30),
            files_per_identity: files_of_process() / FILE_SHARES,
            threads_per_identity: 256,
            journals_per_identity: 256,
            journal_bytes_per_identity: ByteCount(256 << 20),
        }
    }
}

/// By default, one key may use 1/4 of the process's descriptors.
const FILE_SHARES: usize = 4;

/// Returns the maximum number of descriptors that this process may open. The process raises this limit as far as
/// possible when it starts.
#[must_use]
pub fn files_of_process() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| {
        usize::try_from(limit).unwrap_or(usize::MAX)
    })
}

impl Limits {
    /// Returns these limits, lowered to fit the number of descriptors of this process. Also returns the name and value
    /// of each limit that was lowered. Half of the descriptors are reserved for connections. One key may use at most
    /// half of the reserved descriptors.
    #[must_use]
    pub fn within_process(self) -> (Self, Vec<(&'static str, usize)>) {
        self.within(files_of_process())
    }

    fn within(mut self, files: usize) -> (Self, Vec<(&'static str, usize)>) {
        let mut lowered = Vec::new();
        let mut lower = |name, limit: &mut usize, share: usize, least: usize| {
            let most = (files / share).max(least);
            if *limit > most {
                *limit = most;
                lowered.push((name, most));
            }
        };
        let lanes_min = usize::from(LANES_UNREQUESTED_MAX);
        lower("unproven", &mut self.unproven, 8, 1);
        // The lanes of a new transfer count toward this limit until they have sent their greetings.
        lower(
            "waiting_per_identity",
            &mut self.waiting_per_identity,
            16,
            lanes_min,
        );
        lower("queued_per_identity", &mut self.queued_per_identity, 16, 1);
        lower("lanes", &mut self.lanes, 4, lanes_min);
        lower(
            "lanes_per_identity",
            &mut self.lanes_per_identity,
            8,
            lanes_min,
        );
        (self, lowered)
    }

    /// Returns the maximum lanes and buffers of a transfer that begins while `lanes_left` lanes are left.
    #[must_use]
    pub fn portion(&self, lanes_left: usize) -> Portion {
        let least = LANES_UNREQUESTED_MAX;
        let buffers =
            usize::try_from(self.memory_per_transfer.0 / GROUP_BYTES).unwrap_or(usize::MAX);
        let buffers = buffers.max(usize::from(least) + BUFFERS_BESIDE_LANES);
        let by_memory = buffers - BUFFERS_BESIDE_LANES;
        let lanes = u16::try_from((lanes_left / SHARES).min(by_memory)).unwrap_or(u16::MAX);
        Portion {
            lanes: lanes.min(self.lanes_per_transfer).max(least),
            buffers,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_no_more_than_there_are_descriptors_for() {
        let usual = Limits::default();
        assert_eq!(usual.within(65_536), (usual, vec![]));
        let (few, lowered) = usual.within(1024);
        let per_identity = [
            ("waiting_per_identity", 64),
            ("queued_per_identity", 64),
            ("lanes_per_identity", 128),
        ];
        assert!(
            per_identity.iter().all(|limit| lowered.contains(limit)),
            "{lowered:?}"
        );
        assert_eq!(lowered.len(), per_identity.len() + 2);
        assert_eq!(
            (few.waiting_per_identity, few.lanes, few.transfers),
            (64, 256, usual.transfers)
        );
        let (fewest, _) = usual.within(64);
        let connections = fewest.unproven + fewest.waiting_per_identity + fewest.lanes;
        assert!(connections <= 32, "the other half is for files: {fewest:?}");
    }

    #[test]
    fn a_transfer_gets_a_share_of_what_is_left_and_a_buffer_for_each_lane() {
        let limits = Limits::default();
        assert_eq!(
            limits.portion(2048),
            Portion {
                lanes: 64,
                buffers: 72
            }
        );
        assert_eq!(
            limits.portion(160),
            Portion {
                lanes: 20,
                buffers: 72
            }
        );
        assert_eq!(
            limits.portion(9),
            Portion {
                lanes: 8,
                buffers: 72
            }
        );
        let small = Limits {
            memory_per_transfer: ByteCount(1),
            ..limits
        };
        assert_eq!(
            small.portion(2048),
            Portion {
                lanes: 8,
                buffers: 16
            }
        );
    }
}
