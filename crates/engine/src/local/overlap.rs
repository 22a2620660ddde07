//! Checks whether a push on this host would write into its own sources or remove them. The check runs before the push
//! starts, and again after all data is sent and before anything is removed.
//!
//! Directories are compared by identity rather than by name: by device and inode of each directory and its ancestors,
//! and by their position in the file system (`/proc/self/mountinfo`). A bind mount of a source, of a part of it, or of
//! a parent directory is therefore recognized as the same directory.
//!
//! A target in a directory that the rules of the push exclude is accepted, because the push neither reads nor mirrors
//! that directory.
//!
//! **Invariant:** if the kernel does not report mounts, canonical paths are compared.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use zmove_disk::{Region, mounts};
use zmove_scan::{FileSystems, PathKind, ScanRoot, Selection};
use zmove_sender::RemovalGuard;
use zmove_types::RelPath;

use crate::error::OverlapError;

/// The sources and the target of a push, for comparison.
#[derive(Debug)]
pub struct OverlapCheck {
    sources: Vec<ScanRoot>,
    target: PathBuf,
    file_systems: FileSystems,
    selection: Option<Arc<Selection>>,
}

/// A directory or file, and the mounts below it.
#[derive(Debug)]
struct PathExtent {
    path: PathBuf,
    /// Device and inode of the path and of each directory above it, up to the root directory.
    ancestors: Vec<(u64, u64)>,
    /// The parts of file systems at and below the path. The first one contains the path itself.
    regions: Vec<Region>,
}

impl OverlapCheck {
    /// Creates a check of the sources of a push against its target. `file_systems` states which file systems the push
    /// scans, and `selection` is its selection of entries.
    #[must_use]
    pub const fn new(
        sources: Vec<ScanRoot>,
        target: PathBuf,
        file_systems: FileSystems,
        selection: Option<Arc<Selection>>,
    ) -> Self {
        Self {
            sources,
            target,
            file_systems,
            selection,
        }
    }

    /// Refuses a target inside a source, because copying a tree into itself would never end. The rules may exclude the
    /// target or a directory above it.
    ///
    /// # Errors
    /// The target is inside a source, or a part of a source is mounted inside the target.
    pub fn refuse_target_inside(&self) -> Result<(), OverlapError> {
        let mounts = mounts();
        let Some((existing, missing)) = existing_ancestor(&self.target) else {
            return Ok(());
        };
        let Some(target) = PathExtent::of(&existing, &mounts) else {
            return Ok(());
        };
        for (source, ground) in self.source_extents(&mounts) {
            // A tree may be copied into its own parent directory.
            let mut places = target.positions_in(&ground);
            let inside = !places.is_empty() || target.is_inside(&ground, self.file_systems);
            places.extend(target.path.strip_prefix(&ground.path).map(Path::to_owned));
            let is_read = |place: &PathBuf| !self.is_excluded(source, &place.join(&missing));
            let is_read = places.is_empty() || places.iter().any(is_read);
            if is_directory(source) && inside && is_read {
                return Err(OverlapError::TargetInside {
                    source_path: source.source.clone(),
                });
            }
        }
        self.refuse_mounted_inside(&mounts)
    }

    /// Refuses a mount below the target if the mount shows part of a source. Other parts of the sources would be
    /// written into it.
    fn refuse_mounted_inside(&self, mounts: &[u8]) -> Result<(), OverlapError> {
        let source_extents = self.source_extents(mounts);
        for (source, ground) in &source_extents {
            let Some(place) = self.target_extent(source, mounts) else {
                continue;
            };
            for mounted in &place.regions[1..] {
                let point = place.path.join(&mounted.below);
                let is_own = |(_, other): &&(&ScanRoot, PathExtent)| {
                    other.regions.iter().any(|region| {
                        let position = mounted
                            .position_in(region)
                            .map(|position| region.below.join(position));
                        position.is_some_and(|position| {
                            !std::ptr::eq(ground, other) || position != mounted.below
                        })
                    })
                };
                let reached = ground.path.join(&mounted.below).symlink_metadata().is_ok();
                if let Some((own, _)) = source_extents.iter().find(is_own).filter(|_| reached) {
                    return Err(OverlapError::MountedInside {
                        point,
                        source_path: own.source.clone(),
                    });
                }
            }
        }
        Ok(())
    }

    /// Returns whether the rules exclude the directory `place` of a source.
    fn is_excluded(&self, source: &ScanRoot, place: &Path) -> bool {
        let path: PathBuf = source.prefix.as_path().join(place).components().collect();
        let path = RelPath::from_bytes(path.as_os_str().as_bytes());
        let rules = self.selection.as_ref().zip(path.ok());
        rules.is_some_and(|(rules, path)| !rules.admits(&path, PathKind::Directory))
    }

    /// Returns the extent of the path to which a source is pushed, if that path exists.
    fn target_extent(&self, source: &ScanRoot, mounts: &[u8]) -> Option<PathExtent> {
        PathExtent::of(
            &self
                .target
                .join(source.prefix.as_path())
                .canonicalize()
                .ok()?,
            mounts,
        )
    }

    /// Returns the existing sources, each with the directories and mounts that belong to it.
    fn source_extents(&self, mounts: &[u8]) -> Vec<(&ScanRoot, PathExtent)> {
        let ground = |source: &ScanRoot| {
            let mut ground = PathExtent::of(&source.source.canonicalize().ok()?, mounts)?;
            if self.file_systems == FileSystems::OfRoot {
                let device = ground.regions[0].device.clone();
                ground.regions.retain(|region| region.device == device);
            }
            Some(ground)
        };
        self.sources
            .iter()
            .filter_map(|source| Some((source, ground(source)?)))
            .collect()
    }
}

impl RemovalGuard for OverlapCheck {
    /// Returns an objection if a source lies in a directory that will become a mirror of a source. The removal of extra
    /// entries would remove it.
    fn objection(&self) -> Option<String> {
        let mounts = mounts();
        let source_extents = self.source_extents(&mounts);
        for (mirrored, ground) in source_extents
            .iter()
            .filter(|(source, _)| is_directory(source))
        {
            let Some(place) = self.target_extent(mirrored, &mounts) else {
                continue;
            };
            for (source, whole) in &source_extents {
                let itself = std::ptr::eq(ground, whole);
                let same_inode = itself && whole.ancestors.first() == place.ancestors.first();
                let lies = whole.is_inside(&place, FileSystems::All) && !same_inode;
                let meets = |(ours, theirs): (PathBuf, PathBuf)| {
                    let is_excluded =
                        theirs.as_os_str().is_empty() && self.is_excluded(source, &ours);
                    !is_excluded && (!itself || ours != theirs)
                };
                let pairs = || {
                    whole
                        .regions
                        .iter()
                        .flat_map(|one| place.regions.iter().map(move |two| (one, two)))
                };
                if lies || pairs().any(|(one, two)| one.overlap(two).is_some_and(meets)) {
                    let source = source.source.display();
                    let place = place.path.display();
                    return Some(format!(
                        "the source '{source}' lies in '{place}', where --delete would remove it"
                    ));
                }
            }
        }
        None
    }
}

impl PathExtent {
    /// Returns the extent of a canonical path.
    fn of(path: &Path, mounts: &[u8]) -> Option<Self> {
        let identity = |path: &Path| {
            fs::symlink_metadata(path)
                .map(|there| (there.dev(), there.ino()))
                .ok()
        };
        let ancestors: Vec<_> = path.ancestors().map_while(identity).collect();
        let regions = Region::find_all(path, mounts);
        (!ancestors.is_empty()).then(|| Self {
            path: path.to_owned(),
            ancestors,
            regions,
        })
    }

    /// Returns the paths below the other path at which this path is also mounted.
    fn positions_in(&self, other: &Self) -> Vec<PathBuf> {
        let positions = other.regions.iter().filter_map(|region| {
            let position = self.regions[0].position_in(region)?;
            Some(region.below.join(position))
        });
        positions.collect()
    }

    /// Returns whether this path is the other path or lies below it.
    fn is_inside(&self, other: &Self, file_systems: FileSystems) -> bool {
        let near = |(device, _): &&(u64, u64)| {
            file_systems == FileSystems::All
                || Some(*device) == self.ancestors.first().map(|own| own.0)
        };
        let top = other.ancestors.first();
        self.ancestors
            .iter()
            .take_while(near)
            .any(|above| Some(above) == top)
    }
}

/// Returns whether a source is a directory. A symbolic link to a directory is not, unless its path ends with a slash.
fn is_directory(source: &ScanRoot) -> bool {
    source
        .source
        .symlink_metadata()
        .is_ok_and(|there| there.is_dir())
}

/// Returns the longest existing path at or above a path, without symbolic links, and the rest of the path.
fn existing_ancestor(path: &Path) -> Option<(PathBuf, PathBuf)> {
    let absolute = std::path::absolute(path).ok()?;
    absolute.ancestors().find_map(|ancestor| {
        let rest = absolute.strip_prefix(ancestor).ok()?.to_owned();
        Some((ancestor.canonicalize().ok()?, rest))
    })
}
