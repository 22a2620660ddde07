//! The directories of a transfer whose mode and time are set at the end of the transfer, deepest first, when nothing
//! more is added to them.
//!
//! All directories, including a new target, are created with mode 0700, for three reasons. Nobody else can read a
//! directory that is private at the source. Entries can be added to a directory that will be read-only. Each directory
//! has the time of its source in the end. If a new target has received no mode by the end, it gets the mode of any new
//! directory. Directories above the target, and a target that cannot receive a mode, have the usual mode from the
//! start.
//!
//! There may be millions of directories, and a peer may name one path in thousands of entries. Paths are therefore
//! shared instead of copied, and their memory is charged to the quota.

use std::collections::HashSet;
use std::sync::Arc;

use zmove_types::{ExtraMetadata, Metadata, Name, RelPath};
use zmove_wire::WireError;

use crate::rights::quota::{Charge, Quota};
use zmove_types::Lock;

/// The remembered directories, shared by all writers.
#[derive(Debug)]
pub(crate) struct Directories(Lock<State>);

#[derive(Debug)]
struct State {
    directories: Vec<Remembered>,
    /// Extra metadata of the last directory that had extra metadata. Further directories may share it, and it is
    /// charged only once.
    last_extra: Option<Arc<ExtraMetadata>>,
    /// Addresses of the paths that are kept here. The batches that named these paths also hold references to them for a
    /// while.
    paths: HashSet<usize>,
    held: Charge,
}

/// One directory with its mode and time.
#[derive(Debug)]
pub(crate) struct Remembered {
    /// The path of the directory, or of its parent if `name` is set.
    pub(crate) path: Arc<RelPath>,
    pub(crate) name: Option<Name>,
    /// Number of components of the directory's path below the target root.
    pub(crate) depth: usize,
    pub(crate) metadata: Metadata,
}

/// Memory in bytes for one directory in the list, without its path and name. Covers the allocator's overhead and the
/// spare capacity of a growing list.
const OVERHEAD_BYTES: usize = 2 * size_of::<Remembered>();
/// Memory in bytes for one path in the set of paths, including the set's spare capacity.
const ADDRESS_BYTES: usize = 4 * size_of::<usize>();

impl Directories {
    pub(crate) fn new(quota: &Quota) -> Self {
        Self(Lock::new(State {
            directories: Vec::new(),
            paths: HashSet::new(),
            last_extra: None,
            held: quota.empty_charge(),
        }))
    }

    /// Remembers the directory at `path`, or its child `name` if given.
    ///
    /// # Errors
    /// Returns an error if the directories would use more memory than the key allows.
    pub(crate) fn remember(
        &self,
        path: &Arc<RelPath>,
        name: Option<&Name>,
        metadata: Metadata,
    ) -> Result<(), WireError> {
        let name_bytes = name.map_or(0, |name| name.as_bytes().len());
        let mut state = self.0.lock();
        let State {
            directories,
            paths,
            last_extra,
            held,
        } = &mut *state;
        let address = Arc::as_ptr(path).addr();
        let path_bytes = if paths.contains(&address) {
            0
        } else {
            ADDRESS_BYTES + path.as_bytes().len()
        };
        let is_shared = last_extra
            .as_ref()
            .zip(metadata.extra.as_ref())
            .is_some_and(|(one, other)| Arc::ptr_eq(one, other));
        let extra_bytes = if is_shared { 0 } else { metadata.extra_bytes() };
        held.grow(OVERHEAD_BYTES + path_bytes + name_bytes + extra_bytes)?;
        paths.insert(address);
        if metadata.extra.is_some() {
            last_extra.clone_from(&metadata.extra);
        }
        // A batch may name a path of thousands of components thousands of times. Use the depth of the previous
        // directory if it has the same path.
        let same = directories
            .last()
            .filter(|last| Arc::ptr_eq(&last.path, path));
        let above = same.map_or_else(
            || path.depth(),
            |last| last.depth - usize::from(last.name.is_some()),
        );
        let depth = above + usize::from(name.is_some());
        directories.push(Remembered {
            path: Arc::clone(path),
            name: name.cloned(),
            depth,
            metadata,
        });
        Ok(())
    }

    /// Charges additional memory that is used for remembered directories.
    ///
    /// # Errors
    /// Returns an error if the directories would use more memory than the key allows.
    pub(crate) fn charge(&self, bytes: usize) -> Result<(), WireError> {
        self.0.lock().held.grow(bytes)
    }

    /// Takes all directories and releases their memory charge.
    pub(crate) fn take(&self) -> Vec<Remembered> {
        let mut state = self.0.lock();
        state.paths.clear();
        state.last_extra = None;
        state.held.clear();
        std::mem::take(&mut state.directories)
    }

    /// Takes all directories, deepest first, so that the metadata of each directory is set before that of its parents.
    pub(crate) fn take_bottom_up(&self) -> Vec<Remembered> {
        let mut state = self.0.lock();
        let mut directories = std::mem::take(&mut state.directories);
        state.paths.clear();
        drop(state);
        directories.sort_by_key(|directory| std::cmp::Reverse(directory.depth));
        directories
    }
}

impl Remembered {
    /// Returns the path of the directory.
    pub(crate) fn path(&self) -> RelPath {
        let path = || self.path.join(self.name.as_ref()?).ok();
        path().unwrap_or_else(|| RelPath::clone(&self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_named_a_thousand_times_is_kept_once() {
        let limits = crate::Limits {
            memory_per_identity: zmove_types::ByteCount(1 << 20),
            ..Default::default()
        };
        let quotas = crate::rights::quota::Quotas::default();
        let quota = quotas.of(zmove_transport::Fingerprint([1; 32]), &limits);
        let directories = Directories::new(&quota);
        let path = Arc::new(RelPath::from_bytes(&["a"; 30_000].join("/").into_bytes()).unwrap());
        for _ in 0..2048 {
            directories
                .remember(&path, None, Metadata::default())
                .unwrap();
        }
        let mut more = 0;
        loop {
            let its_own = Arc::new(RelPath::clone(&path));
            // The batch that named the path, and a run of that batch, also hold references to the path.
            let _others = [Arc::clone(&its_own), Arc::clone(&its_own)];
            if directories
                .remember(&its_own, None, Metadata::default())
                .is_err()
            {
                break;
            }
            more += 1;
        }
        assert!((8..17).contains(&more), "{more} of their own");
        drop(directories);
        drop(quota.charge_memory(1 << 20).unwrap());
    }

    #[test]
    fn attributes_of_directories_are_booked_once() {
        let limits = crate::Limits {
            memory_per_identity: zmove_types::ByteCount(1 << 20),
            ..Default::default()
        };
        let quota = crate::rights::quota::Quotas::default()
            .of(zmove_transport::Fingerprint([1; 32]), &limits);
        let directories = Directories::new(&quota);
        let path = Arc::new(RelPath::from_bytes(b"d").unwrap());
        let xattr = zmove_types::Xattr {
            name: b"user.a"[..].into(),
            value: [7; 60_000].into(),
        };
        let with_attributes = || {
            let extra = ExtraMetadata {
                xattrs: vec![xattr.clone(); 5],
                ..ExtraMetadata::default()
            };
            Metadata {
                extra: Some(Arc::new(extra)),
                ..Metadata::default()
            }
        };
        let shared = with_attributes();
        for _ in 0..9 {
            directories.remember(&path, None, shared.clone()).unwrap();
        }
        directories
            .remember(&path, None, with_attributes())
            .unwrap();
        directories
            .remember(&path, None, with_attributes())
            .unwrap();
        assert!(
            directories
                .remember(&path, None, with_attributes())
                .is_err()
        );
    }

    #[test]
    fn the_deepest_come_first() {
        let directories = Directories::new(&Quota::default());
        let path = |text: &str| Arc::new(RelPath::from_bytes(text.as_bytes()).unwrap());
        let name = Name::from_bytes(b"c").unwrap();
        directories
            .remember(&path("a"), None, Metadata::default())
            .unwrap();
        directories
            .remember(&path("a/b"), Some(&name), Metadata::default())
            .unwrap();
        directories
            .remember(&path("a/b"), None, Metadata::default())
            .unwrap();
        let paths: Vec<_> = directories
            .take_bottom_up()
            .iter()
            .map(|directory| directory.path().to_string())
            .collect();
        assert_eq!(paths, ["a/b/c", "a/b", "a"]);
    }
}
