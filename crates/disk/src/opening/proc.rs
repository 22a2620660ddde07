//! Facts about this host that the kernel reports in `/proc` (proc(5)): the boot ID and the mounts.

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, StatxFlags};

use crate::metadata::entry::xattrs::descriptor_path;

/// Returns the kernel's boot ID, or `None` if it cannot be read. A service whose `/proc` shows only processes
/// (`ProcSubset=pid`) cannot read it.
#[must_use]
pub fn boot_id() -> Option<u128> {
    read_id("/proc/sys/kernel/random/boot_id")
}

/// Reads a 128-bit number from a file with 32 hexadecimal digits, with or without dashes.
pub(crate) fn read_id(path: &str) -> Option<u128> {
    parse_id(std::fs::read_to_string(path).ok()?.trim_end())
}

fn parse_id(text: &str) -> Option<u128> {
    u128::from_str_radix(&text.replace('-', ""), 16).ok()
}

/// One line of `mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The mount ID, which statx(2) reports as `stx_mnt_id`.
    pub id: u64,
    /// The device number of the file system, `MAJOR:MINOR`.
    pub device: String,
    /// The directory of the file system that is mounted. This is `/`, except for bind mounts.
    pub root: PathBuf,
    /// The mount point.
    pub point: PathBuf,
    /// The file system's type, for example `xfs`.
    pub kind: String,
    /// The mounted device, or a name that the file system chooses.
    pub source: String,
    /// The mount options, as for mount(8), for example `ro` and `noatime`.
    pub options: Vec<String>,
}

impl Mount {
    /// Parses text in the format of `/proc/self/mountinfo` and returns the mounts in file order. Skips malformed lines.
    pub fn all(mountinfo: &[u8]) -> impl Iterator<Item = Self> {
        mountinfo
            .split(|byte| *byte == b'\n')
            .filter_map(Self::parse)
    }

    /// Returns the mount that contains an open file. If the kernel does not report the mount ID (before Linux 5.8),
    /// finds the mount by `path`, which must be a path of the file without symbolic links.
    #[must_use]
    pub fn of(mountinfo: &[u8], file: impl AsFd, path: &Path) -> Option<Self> {
        Self::of_open_file(mountinfo, file).or_else(|| Self::containing(mountinfo, path))
    }

    /// Returns the mount that contains an open file, or `None` if the kernel does not report the mount ID.
    pub(crate) fn of_open_file(mountinfo: &[u8], file: impl AsFd) -> Option<Self> {
        let stat = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).ok()?;
        let is_reported = stat.stx_mask & StatxFlags::MNT_ID.bits() != 0;
        Self::all(mountinfo).find(|mount| is_reported && mount.id == stat.stx_mnt_id)
    }

    /// Returns the innermost mount that contains a path without symbolic links. If several mounts have the same mount
    /// point, returns the last one.
    #[must_use]
    pub fn containing(mountinfo: &[u8], path: &Path) -> Option<Self> {
        let around = Self::all(mountinfo).filter(|mount| path.starts_with(&mount.point));
        around.max_by_key(|mount| mount.point.components().count())
    }

    /// Parses a line of the form `ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [OPTIONAL...] - KIND SOURCE OPTIONS`.
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ');
        let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
        let device = shown(fields.nth(1)?);
        let mut path = || {
            Some(PathBuf::from(OsString::from_vec(unescape_mountinfo(
                fields.next()?,
            ))))
        };
        let root = path()?;
        let point = path()?;
        let options = shown(fields.next()?)
            .split(',')
            .map(str::to_owned)
            .collect();
        fields.find(|field| *field == b"-")?;
        let kind = shown(fields.next()?);
        let source = shown(fields.next()?);
        Some(Self {
            id,
            device,
            root,
            point,
            kind,
            source,
            options,
        })
    }
}

/// Returns the mounts of this process (`/proc/self/mountinfo`), or an empty text if the file cannot be read.
#[must_use]
pub fn mounts() -> Vec<u8> {
    std::fs::read("/proc/self/mountinfo").unwrap_or_default()
}

/// Returns whether a file system is mounted on an entry. Works even if the mount is dead, because this function does
/// not access the entry.
pub fn is_mount_point(directory: impl AsFd, name: &OsStr) -> bool {
    let path = std::fs::read_link(descriptor_path(directory.as_fd()));
    path.is_ok_and(|path| {
        let path = path.join(name);
        Mount::all(&mounts()).any(|mount| mount.point == path)
    })
}

fn shown(field: &[u8]) -> String {
    String::from_utf8_lossy(&unescape_mountinfo(field)).into_owned()
}

/// Decodes a field of `mountinfo`. The kernel writes blanks and backslashes as a backslash and three octal digits.
#[must_use]
pub fn unescape_mountinfo(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let digits = after
            .get(..3)
            .filter(|_| *first == b'\\')
            .and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &[u8] = b"22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
        40 22 0:35 / /data rw,noatime - xfs /dev/vdb rw\n\
        41 40 0:36 / /data/my\\040disk ro,relatime shared:9 master:1 - nfs4 far:/export\\134x rw,vers=4.2\n\
        42 22 0:37 /x\\040y /data rw - xfs /dev/vdc rw\nbroken\n";

    #[test]
    fn a_mount_is_found_by_the_open_file_or_by_the_path() {
        let file = tempfile::tempfile().unwrap();
        let Some(id) = Mount::of_open_file(&mounts(), &file).map(|mount| mount.id) else {
            return eprintln!("skipped: this kernel does not number mounts");
        };
        let path = Path::new("/database");
        let elsewhere = format!("{id} 22 0:99 / /elsewhere rw - xfs /dev/vdd rw\n");
        let with_it = [elsewhere.as_bytes(), MOUNTS].concat();
        let point = |mounts: &[u8]| Mount::of(mounts, &file, path).unwrap().point;
        assert_eq!(point(&with_it), Path::new("/elsewhere"));
        let other = format!("{} 1 0:1 / / rw - tmpfs tmpfs rw\n", id + 1);
        assert_eq!(point(other.as_bytes()), Path::new("/"));
        assert_eq!(Mount::of(b"", &file, path), None);
    }

    #[test]
    fn the_innermost_and_last_mount_counts() {
        let at = |path: &str| Mount::containing(MOUNTS, Path::new(path)).unwrap();
        assert_eq!(at("/home").point, Path::new("/"));
        let hiding = at("/data/x");
        assert_eq!(
            (hiding.id, hiding.options),
            (42, vec!["rw".to_owned()]),
            "what is mounted last hides the other"
        );
        assert_eq!(
            (hiding.device.as_str(), hiding.root.as_path()),
            ("0:37", Path::new("/x y"))
        );
        let inner = at("/data/my disk/x");
        assert_eq!(
            (inner.kind.as_str(), inner.source.as_str()),
            ("nfs4", "far:/export\\x")
        );
        assert_eq!(inner.options, ["ro", "relatime"]);
        assert_eq!(at("/database").kind, "ext4");
        assert_eq!(Mount::containing(b"what is this", Path::new("/")), None);
    }

    #[test]
    fn every_line_that_makes_sense_is_a_mount() {
        assert_eq!(
            Mount::all(MOUNTS).map(|mount| mount.id).collect::<Vec<_>>(),
            [22, 40, 41, 42]
        );
    }

    #[test]
    fn digits_are_read_over_their_dashes() {
        let number = 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef;
        assert_eq!(
            parse_id("01234567-89ab-cdef-0123-456789abcdef"),
            Some(number)
        );
        for other in ["", "-", "x", "101234567-89ab-cdef-0123-456789abcdef"] {
            assert_eq!(parse_id(other), None, "{other}");
        }
    }
}
