//! Locations of directories inside their file systems, independent of the path by which they were opened. A bind mount
//! makes part of a file system visible at a second path.

use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};

use crate::opening::proc::Mount;

/// A directory inside a file system, together with everything below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// The device number of the file system, `MAJOR:MINOR`. Empty if the kernel does not report mounts.
    pub device: String,
    /// The path of the region in its file system. If the kernel does not report mounts, an absolute path without
    /// symbolic links.
    pub root: PathBuf,
    /// The mount point of the region, relative to the path that was passed to [`find_all`](Self::find_all).
    pub below: PathBuf,
}

impl Region {
    /// Returns the regions at and below a path without symbolic links. The first region is that of the path itself. The
    /// mounts below it follow. `mounts` is the result of [`mounts`](crate::mounts).
    #[must_use]
    pub fn find_all(path: &Path, mounts: &[u8]) -> Vec<Self> {
        let opened = open(
            path,
            OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        );
        let mount = match opened {
            Ok(opened) => Mount::of(mounts, opened, path),
            Err(_) => Mount::containing(mounts, path),
        };
        let own = mount.and_then(|mount| {
            let root = mount.root.join(path.strip_prefix(&mount.point).ok()?);
            Some((mount.device, root))
        });
        let (device, root) = own.unwrap_or_else(|| (String::new(), path.to_owned()));
        let below = Mount::all(mounts).filter(|mount| mount.point != path);
        let below = below.filter_map(|mount| {
            let below = mount.point.strip_prefix(path).ok()?.to_owned();
            Some(Self {
                device: mount.device,
                root: mount.root,
                below,
            })
        });
        let own = Self {
            device,
            root,
            below: PathBuf::new(),
        };
        std::iter::once(own).chain(below).collect()
    }

    /// Returns the path of this region relative to `other`, if `other` contains it.
    #[must_use]
    pub fn position_in(&self, other: &Self) -> Option<&Path> {
        let same = self.device == other.device;
        self.root.strip_prefix(&other.root).ok().filter(|_| same)
    }

    /// Returns where two regions overlap, as two paths. Each path is relative to the path from which its region was
    /// found.
    #[must_use]
    pub fn overlap(&self, other: &Self) -> Option<(PathBuf, PathBuf)> {
        if let Some(position) = self.position_in(other) {
            return Some((self.below.clone(), other.below.join(position)));
        }
        let position = other.position_in(self)?;
        Some((self.below.join(position), other.below.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &[u8] = b"1 0 8:1 / / rw - ext4 a rw\n2 1 8:2 / /no-data rw - ext4 b rw\n\
        3 1 8:2 /a /no-bind rw - ext4 b rw\n4 2 8:3 / /no-data/c rw - ext4 c rw\n";

    fn meet(one: &str, two: &str) -> bool {
        let [one, two] = [one, two].map(|path| Region::find_all(Path::new(path), MOUNTS));
        let meets = |own: &Region| two.iter().any(|other| own.overlap(other).is_some());
        one.iter().any(meets)
    }

    #[test]
    fn a_bind_mount_shows_a_part_of_a_file_system_at_another_path() {
        assert!(meet("/no-data/a/x", "/no-bind/x/y") && meet("/no-bind", "/no-data"));
        assert!(!meet("/no-data/b", "/no-bind") && !meet("/no-other", "/no-bind"));
        assert!(meet("/no-data", "/no-data/c/d"), "what is mounted below");
        assert!(!meet("/no-bind", "/no-data/c"));
    }
}
