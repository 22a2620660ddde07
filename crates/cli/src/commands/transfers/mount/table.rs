//! Reads the kernel's mount table, and encodes mounts as records that stay valid after a reboot.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::{Mode, OFlags};
use zmove_disk::{Mount as Line, unescape_mountinfo};
use zmove_types::Escaped;

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    pub(super) point: PathBuf,
    /// Type of the file system.
    pub(super) kind: OsString,
    /// ID of the file system. `None` if the file system has no ID that survives a reboot.
    pub(super) id: Option<String>,
}

impl Mount {
    /// Returns `KIND ID POINT`, escaped as in the kernel's table.
    pub(super) fn to_word(&self) -> Vec<u8> {
        let id = self.id.as_deref().unwrap_or("-");
        let words = [
            self.kind.as_bytes(),
            id.as_bytes(),
            self.point.as_os_str().as_bytes(),
        ];
        words.map(escaped).join(&b' ')
    }

    pub(super) fn from_word(word: &[u8]) -> Option<Self> {
        let mut words = word.split(|&byte| byte == b' ').map(unescape_mountinfo);
        let kind = OsString::from_vec(words.next()?);
        let id = String::from_utf8(words.next()?).ok()?;
        let point = OsString::from_vec(words.next()?).into();
        Some(Self {
            point,
            kind,
            id: Some(id).filter(|id| id != "-"),
        })
    }

    /// Returns whether both mounts have the same file system at the same mount point. An unknown ID matches any ID.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let are_known = self.id.is_some() && other.id.is_some();
        self.point == other.point && self.kind == other.kind && (!are_known || self.id == other.id)
    }

    /// Returns a description of the mount for messages.
    pub(super) fn shown(&self) -> String {
        format!(
            "'{}' ({})",
            Escaped::path(&self.point),
            Escaped(self.kind.as_bytes())
        )
    }
}

/// Returns the mount of a path, or of the directory in which the path will be created.
pub(super) fn mount_of(path: &Path) -> Result<Mount> {
    // Opening `.` triggers an automount. `O_PATH` needs no read permission.
    let open = |path: &Path| {
        rustix::fs::open(
            path.join("."),
            OFlags::PATH | OFlags::DIRECTORY,
            Mode::empty(),
        )
    };
    let directory = path.ancestors().find_map(|path| open(path).ok());
    let directory = directory.with_context(|| format!("open '{}'", Escaped::path(&path)))?;
    let line = Line::of(&table()?, directory, path);
    let line = line.with_context(|| format!("'{}' is on no mount", Escaped::path(&path)))?;
    Ok(of_line(&line))
}

/// Returns the reachable mounts below a directory. Leaves out file systems that contain no files of users.
pub(super) fn mounts_below(directory: &Path) -> Result<Vec<Mount>> {
    // If two mounts have the same mount point, the later mount hides the earlier one.
    let at_points: BTreeMap<_, _> = Line::all(&table()?)
        .map(|line| (line.point.clone(), line))
        .collect();
    let is_of_users = |line: &Line| {
        let is_below = |above: &&str| line.point.starts_with(above);
        let is_system = SYSTEM
            .iter()
            .any(|above| is_below(above) && !directory.starts_with(above));
        !is_system && !PSEUDO.contains(&&*line.kind)
    };
    let below = at_points.into_values().filter(|line| {
        line.point != directory && line.point.starts_with(directory) && is_of_users(line)
    });
    let mounts = below.map(|line| Ok((mount_of(&line.point)?, line.point)));
    let reached = mounts.filter_map(|found: Result<(Mount, PathBuf)>| match found {
        Ok((mount, point)) => (mount.point == point).then_some(Ok(mount)),
        Err(error) => Some(Err(error)),
    });
    reached.collect()
}

fn of_line(line: &Line) -> Mount {
    let of_itself = || {
        let status = rustix::fs::statvfs(&line.point).ok()?;
        (status.f_fsid != 0).then(|| format!("{:016x}", status.f_fsid))
    };
    let id = if WITH_LASTING_ID.contains(&&*line.kind) {
        of_itself()
    } else {
        device(&line.device).and_then(uuid)
    };
    Mount {
        point: line.point.clone(),
        kind: line.kind.clone().into(),
        id,
    }
}

fn table() -> Result<Vec<u8>> {
    std::fs::read("/proc/self/mountinfo").context("read '/proc/self/mountinfo'")
}

/// Parses the device number in `MAJOR:MINOR`. Returns `None` if the mount has no device.
fn device(text: &str) -> Option<u64> {
    let (major, minor) = text.split_once(':')?;
    let major = major.parse().ok().filter(|major| *major != 0)?;
    Some(rustix::fs::makedev(major, minor.parse().ok()?))
}

/// Returns the UUID that udev reports for the file system on a device.
fn uuid(device: u64) -> Option<String> {
    let entries = std::fs::read_dir("/dev/disk/by-uuid").ok()?.flatten();
    let mut names = entries.filter(|entry| {
        let found = std::fs::metadata(entry.path());
        found.is_ok_and(|found| found.rdev() == device)
    });
    names.next()?.file_name().into_string().ok()
}

/// Escapes bytes like the kernel does in its mount table. [`unescape_mountinfo`] reverses this.
fn escaped(bytes: &[u8]) -> Vec<u8> {
    let escape = |&byte: &u8| match byte {
        b' ' | b'\t' | b'\n' | b'\\' => format!("\\{byte:03o}").into_bytes(),
        plain => vec![plain],
    };
    bytes.iter().flat_map(escape).collect()
}

/// File systems that store the ID that `statvfs` returns. For other file systems, this ID may be a device number, a
/// random number, or 0.
const WITH_LASTING_ID: [&str; 5] = ["btrfs", "ext2", "ext3", "ext4", "zfs"];
/// File systems that hold no files of users.
const PSEUDO: [&str; 18] = [
    "autofs",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "nsfs",
    "proc",
    "pstore",
    "securityfs",
    "sysfs",
];
/// Directories in which the system mounts and unmounts file systems.
const SYSTEM: [&str; 4] = ["/dev", "/proc", "/run", "/sys"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_table_is_read() {
        let table =
            b"98 29 0:44 / /mnt/two\\040words rw shared:5 master:2 - nfs4 host:/x rw,vers=4.2\n\
            29 1 8:1 / / rw,relatime shared:1 - xfs /dev/sda1 rw";
        let lines: Vec<_> = Line::all(table).collect();
        assert_eq!((lines[0].id, device(&lines[0].device)), (98, None));
        let expected = Mount {
            point: "/mnt/two words".into(),
            kind: "nfs4".into(),
            id: None,
        };
        assert_eq!(of_line(&lines[0]), expected);
        assert_eq!(device(&lines[1].device), Some(rustix::fs::makedev(8, 1)));
    }

    #[test]
    fn a_mount_comes_back_from_its_word() {
        for (point, id) in [("/mnt/a b\n\\040", None), ("/", Some("0123"))] {
            let mount = Mount {
                point: point.into(),
                kind: "fuse.x".into(),
                id: id.map(str::to_owned),
            };
            let word = mount.to_word();
            assert!(!word.contains(&b'\n'));
            assert_eq!(Mount::from_word(&word), Some(mount));
        }
        assert_eq!(Mount::from_word(b"ext4 -"), None);
    }

    #[test]
    fn another_file_system_at_the_same_point_is_another_mount() {
        let mount = |kind: &str, id: Option<&str>| Mount {
            point: "/m".into(),
            kind: kind.into(),
            id: id.map(str::to_owned),
        };
        let wanted = mount("ext4", Some("1"));
        assert!(wanted.is_same(&wanted) && wanted.is_same(&mount("ext4", None)));
        assert!(!wanted.is_same(&mount("ext4", Some("2"))));
        assert!(!wanted.is_same(&mount("xfs", None)));
    }

    #[test]
    fn what_does_not_exist_yet_is_on_the_mount_of_its_directory() {
        assert_eq!(
            mount_of(Path::new("/proc/self/none/none")).unwrap().kind,
            "proc"
        );
        assert_eq!(
            mount_of(Path::new("/none/none")).unwrap().point,
            Path::new("/")
        );
    }
}
