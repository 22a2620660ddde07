//! The limits on what the senders of a daemon may take of this host: together, each, and with one transfer.
//!
//! `docs/REFERENCE.md` has the table. What one message or frame may hold is not here but in `zmove_wire::limits`.

use std::time::Duration;

use zmove_transport::GREETING_TIMEOUT;
use zmove_types::{ByteCount, GROUP_BYTES};
use zmove_wire::limits::{LANES_MAX, LANES_UNASKED_MAX};

/// The limits of one daemon. What exceeds one waits in the queue, is refused, or is closed; the log names the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections that have not proved a key. One more queues, or has one closed of a network above its share.
    /// Default: 256; each takes some 40 KiB, and up to 1 MiB of the kernel's memory for what has not been read.
    pub unproven: usize,
    /// How long a peer may take to prove its key, and again to greet. Default: [`GREETING_TIMEOUT`].
    pub unproven_time: Duration,
    /// Connections of one key that belong to no transfer yet. Default: 512; each takes some 40 KiB.
    pub waiting_per_identity: usize,
    /// Transfers at once. Default: 64.
    pub transfers: usize,
    /// Transfers of one key at once. Default: 32.
    pub transfers_per_identity: usize,
    /// Transfers of one key that wait in the queue for their turn; the next is refused. Default: 256; each takes
    /// some 40 KiB.
    pub queued_per_identity: usize,
    /// Lanes of all transfers together; each is a thread and, over TCP, a descriptor. A transfer is promised an eighth
    /// of what is left, 8 at least. Default: 4096.
    pub lanes: usize,
    /// Lanes of all transfers of one key. Default: 1088, with which as many transfers as a key may have get their
    /// share.
    pub lanes_per_identity: usize,
    /// Lanes of one transfer, 8 to 64. Default: 64.
    pub lanes_per_transfer: u16,
    /// Buffers of one transfer, 64 MiB at least; it gets no more lanes than have a buffer each, with 8 to
    /// spare. Default: 288 MiB.
    pub memory_per_transfer: ByteCount,
    /// Memory of the transfers of one key beside their buffers: messages and batches that are at work, and what is
    /// remembered of directories and files to the end. Default: 1 GiB.
    pub memory_per_identity: ByteCount,
    /// Descriptors of the large files and directories that the transfers of one key have open. Default: a
    /// quarter of what the process may have.
    pub files_per_identity: usize,
    /// Threads that look at the target for the transfers of one key; beyond that a transfer gets one for comparing and
    /// one for removing. Default: 256.
    pub threads_per_identity: usize,
    /// Journals of one key, those of transfers that were broken off among them. Default: 256.
    pub journals_per_identity: usize,
    /// Bytes of all journals of one key when another one begins; each may take a quarter of them. Default: 256 MiB.
    pub journal_bytes_per_identity: ByteCount,
}

/// The lanes and buffers that one transfer may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Portion {
    /// The most lanes.
    pub lanes: u16,
    /// The most buffers of one group each.
    pub buffers: usize,
}

/// A transfer gets one part in so many of the lanes that are left, so that later ones get some.
const SHARES: usize = 8;
/// Buffers that wait for writers while each lane holds one.
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

/// One key may have one part in so many of the process's descriptors.
const FILE_SHARES: usize = 4;

/// The number of descriptors that this process may have; when it began it raised the limit as far as it could.
#[must_use]
pub fn files_of_process() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| {
        usize::try_from(limit).unwrap_or(usize::MAX)
    })
}

impl Limits {
    /// These limits, lowered to what this process has descriptors for, and the name and value of each lowered one. Half
    /// of the descriptors are for connections, and of these one key may have half at most.
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
        let lanes_min = usize::from(LANES_UNASKED_MAX);
        lower("unproven", &mut self.unproven, 8, 1);
        // All lanes of one transfer belong to none until they have greeted.
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

    /// The portion of a transfer that begins while so many lanes are left.
    #[must_use]
    pub fn portion(&self, lanes_left: usize) -> Portion {
        let least = LANES_UNASKED_MAX;
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
