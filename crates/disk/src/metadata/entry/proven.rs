//! The kinds of metadata that each file system has shown to keep.
//!
//! Some file systems report success when a mode, an owner, an attribute or a time is set, and ignore it (vfat,
//! ntfs-3g, bindfs). So each value is read back after it was set, until the file system has kept one value of that kind
//! that it did not have before. A file system that keeps none is read each time, and each missing value is counted.

use std::collections::HashMap;

use zmove_types::{Kinds, Lock};

/// The kinds that are proven, by file system.
#[derive(Debug, Default)]
pub struct ProvenKinds(Lock<HashMap<u64, Kinds>>);

impl ProvenKinds {
    /// The kinds that the file system on this device has shown to keep.
    pub(crate) fn of(&self, device: u64) -> Kinds {
        self.0.lock().get(&device).copied().unwrap_or(Kinds::NONE)
    }

    /// Notes that the file system on this device has kept these kinds.
    pub(crate) fn prove(&self, device: u64, kinds: Kinds) {
        let mut known = self.0.lock();
        let proven = known.entry(device).or_default();
        *proven = proven.and(kinds);
    }
}
