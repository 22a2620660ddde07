//! The kinds of metadata that each file system is known to store.
//!
//! Some file systems (vfat, ntfs-3g, bindfs) report success when a mode, owner, attribute or time is set, but ignore
//! the value. So each value is read back after it is set, until the file system has stored a new value of that kind
//! once. On a file system that ignores values, every value is read back, and each ignored value is counted as a
//! failure.

use std::collections::HashMap;

use zmove_types::{Lock, MetadataKinds};

/// The proven kinds, by device number of the file system.
#[derive(Debug, Default)]
pub struct ProvenKinds(Lock<HashMap<u64, MetadataKinds>>);

impl ProvenKinds {
    /// Returns the kinds that the file system on this device is known to store.
    pub(crate) fn of(&self, device: u64) -> MetadataKinds {
        self.0
            .lock()
            .get(&device)
            .copied()
            .unwrap_or(MetadataKinds::NONE)
    }

    /// Records that the file system on this device stores these kinds.
    pub(crate) fn prove(&self, device: u64, kinds: MetadataKinds) {
        let mut known = self.0.lock();
        let proven = known.entry(device).or_default();
        *proven = proven.and(kinds);
    }
}
