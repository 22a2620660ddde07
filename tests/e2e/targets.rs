//! Existing entries at the target and how a push treats them.

pub(crate) mod bad_targets;
pub(crate) mod changing_mirror;
pub(crate) mod clean;
pub(crate) mod delete;
pub(crate) mod delta;
pub(crate) mod faults;
pub(crate) mod full_disk;
pub(crate) mod giving_way;
pub(crate) mod inplace;
pub(crate) mod manifest;
pub(crate) mod media;
pub(crate) mod overwrite;
pub(crate) mod resync;
pub(crate) mod storage;
