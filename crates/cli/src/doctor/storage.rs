//! The storage below a directory.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use zmove_types::ByteCount;

use crate::doctor::Part;
use crate::doctor::finding::{Finding, Level, Mend};
use crate::doctor::root::Root;
use crate::terminal::quoted;

/// What is known of the storage below a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Storage {
    pub(crate) directory: PathBuf,
    pub(crate) room: Result<Room, String>,
    pub(crate) mount: Option<Mount>,
}

/// The size of a file system and what is left of it for users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) whole: ByteCount,
    pub(crate) free: ByteCount,
    /// Files that may still be made; `None` where the file system does not count them.
    pub(crate) files_free: Option<u64>,
}

/// What is mounted there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    pub(crate) point: PathBuf,
    /// For example `xfs`.
    pub(crate) kind: String,
    pub(crate) options: Vec<String>,
}

impl Storage {
    pub(crate) fn gather(root: &Root, directory: &Path) -> Self {
        let found = directory.canonicalize();
        let whole = found.as_deref().unwrap_or(directory);
        let room = match &found {
            Ok(directory) => Room::of(directory).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let mount = root.text("proc/self/mountinfo").and_then(|text| mount_of(&text, whole));
        Self { directory: whole.into(), room, mount }
    }

    pub(crate) fn judge(&self, part: Part) -> Vec<Finding> {
        let mut findings = vec![self.judge_room(part)];
        findings.push(match &self.mount {
            Some(mount) => mount.judge(),
            None => Finding::unknown("file system", "/proc/self/mountinfo"),
        });
        findings
    }

    fn judge_room(&self, part: Part) -> Finding {
        let directory = self.directory.display();
        let Room { whole, free, files_free } = match &self.room {
            Ok(room) => *room,
            Err(error) => return Finding::new(Level::Bad, "disk", format!("'{directory}': {error}")),
        };
        let files = files_free.map_or(String::new(), |files| format!(", room for {files} files"));
        let text = format!("{free} of {whole} free below '{directory}'{files}");
        let full = free.0 == 0 || files_free == Some(0);
        let level = if part == Part::Sender {
            Level::Ok
        } else if full {
            Level::Bad
        } else if free.0 < whole.0 / 20 {
            Level::Note
        } else {
            Level::Ok
        };
        Finding::new(level, "disk", text)
    }
}

impl Room {
    fn of(directory: &Path) -> rustix::io::Result<Self> {
        let stat = rustix::fs::statvfs(directory)?;
        let bytes = |blocks: u64| ByteCount(blocks.saturating_mul(stat.f_frsize));
        let files_free = (stat.f_files > 0).then_some(stat.f_favail);
        Ok(Self { whole: bytes(stat.f_blocks), free: bytes(stat.f_bavail), files_free })
    }
}

impl Mount {
    fn judge(&self) -> Finding {
        let Self { point, kind, .. } = self;
        let place = format!("{kind} at '{}'", point.display());
        if self.has("ro") {
            return Finding::note(
                "file system",
                format!("{place} is mounted read-only: nothing can be received there"),
            )
            .mended_by(Mend::command(format!("mount -o remount,rw {}", quoted(point))));
        }
        if !self.has("noatime") && !self.has("relatime") && LOCAL_KINDS.contains(&kind.as_str()) {
            return Finding::note(
                "file system",
                format!("{place}: each file that is read gets a new access time"),
            )
            .mended_by(Mend::command(format!("mount -o remount,noatime {}", quoted(point))));
        }
        if kind == "tmpfs" {
            return Finding::note("file system", format!("{place}: what is received stays in memory"));
        }
        Finding::ok("file system", place)
    }

    fn has(&self, option: &str) -> bool {
        self.options.iter().any(|word| word == option)
    }
}

/// The mount that a path without links lies in: the innermost, and of several on top of each other the last.
fn mount_of(mountinfo: &str, path: &Path) -> Option<Mount> {
    let mounts = mountinfo.lines().filter_map(parse_mount);
    mounts.filter(|mount| path.starts_with(&mount.point)).max_by_key(|mount| mount.point.components().count())
}

/// A line of `/proc/self/mountinfo`, as proc(5) describes it.
fn parse_mount(line: &str) -> Option<Mount> {
    let (fields, rest) = line.split_once(" - ")?;
    let mut fields = fields.split(' ').skip(4);
    let point = unescape(fields.next()?);
    let options = fields.next()?.split(',').map(str::to_owned).collect();
    let mut rest = rest.split(' ');
    Some(Mount { point, kind: rest.next()?.to_owned(), options })
}

/// Spaces and the like are written as a backslash and three octal digits.
fn unescape(text: &str) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, others)) = rest.split_first() {
        let digits = others.get(..3).filter(|_| first == b'\\');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &others[3..];
            }
            None => {
                bytes.push(first);
                rest = others;
            }
        }
    }
    PathBuf::from(std::ffi::OsStr::from_bytes(&bytes))
}

/// File systems of this host's own disks, which write access times as they are told.
const LOCAL_KINDS: [&str; 5] = ["ext4", "ext3", "xfs", "btrfs", "f2fs"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::root::fake::Fake;

    const MOUNTS: &str = "\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 22 0:35 / /data rw,noatime - xfs /dev/vdb rw
41 40 0:36 / /data/my\\040disk ro,relatime shared:9 master:1 - nfs4 far:/x rw
42 22 0:37 / /data rw - xfs /dev/vdc rw";

    fn storage(kind: &str, options: &[&str]) -> Storage {
        let options = options.iter().map(|&option| option.to_owned()).collect();
        Storage {
            directory: "/data".into(),
            room: Ok(Room { whole: ByteCount(100 << 30), free: ByteCount(50 << 30), files_free: Some(1000) }),
            mount: Some(Mount { point: "/data".into(), kind: kind.into(), options }),
        }
    }

    fn levels(storage: &Storage) -> [Level; 2] {
        let findings = storage.judge(Part::Either);
        [findings[0].level, findings[1].level]
    }

    #[test]
    fn the_innermost_and_last_mount_counts() {
        let at = |path: &str| mount_of(MOUNTS, Path::new(path)).unwrap();
        assert_eq!(at("/home").point, Path::new("/"));
        assert_eq!((at("/data/x").kind.as_str(), at("/data/x").options), ("xfs", vec!["rw".to_owned()]));
        assert_eq!(at("/data/my disk/x").kind, "nfs4");
        assert_eq!(at("/database").kind, "ext4");
        assert_eq!(mount_of("what is this", Path::new("/")), None);
    }

    #[test]
    fn each_trouble_of_a_mount_shows() {
        let cases = [
            ("xfs", &["rw", "relatime"][..], Level::Ok, None),
            ("lustre", &["rw"], Level::Ok, None),
            ("xfs", &["rw"], Level::Note, Some("mount -o remount,noatime /data")),
            ("xfs", &["ro", "relatime"], Level::Note, Some("mount -o remount,rw /data")),
            ("tmpfs", &["rw", "relatime"], Level::Note, None),
        ];
        for (kind, options, level, mend) in cases {
            let finding = &storage(kind, options).judge(Part::Either)[1];
            let run = finding.mend.first().and_then(|mend| mend.run.as_deref());
            assert_eq!((finding.level, run), (level, mend), "{kind} {options:?}");
        }
        let unknown = Storage { mount: None, ..storage("xfs", &[]) };
        assert_eq!(levels(&unknown), [Level::Ok, Level::Note]);
    }

    #[test]
    fn little_room_is_told_and_none_is_bad() {
        let with = |free, files_free| {
            let room = Room { whole: ByteCount(1000), free: ByteCount(free), files_free };
            levels(&Storage { room: Ok(room), ..storage("xfs", &["noatime"]) })[0]
        };
        assert_eq!(with(50, None), Level::Ok);
        assert_eq!(with(49, None), Level::Note);
        assert_eq!(with(0, None), Level::Bad);
        assert_eq!(with(500, Some(0)), Level::Bad);
        let full = Room { whole: ByteCount(1000), free: ByteCount(0), files_free: None };
        let full = Storage { room: Ok(full), ..storage("xfs", &["noatime"]) };
        assert_eq!(full.judge(Part::Sender)[0].level, Level::Ok, "who sends needs no room");
        let gone = Storage { room: Err("No such file or directory".into()), ..storage("xfs", &["noatime"]) };
        assert_eq!(levels(&gone)[0], Level::Bad);
    }

    #[test]
    fn facts_are_read() {
        let fake = Fake::of(&[("proc/self/mountinfo", "1 0 0:1 / / rw,noatime - xfs none rw")]);
        let storage = Storage::gather(&fake.root(), fake.path());
        assert!(storage.room.is_ok_and(|room| room.whole.0 > 0));
        assert_eq!(storage.mount.unwrap().kind, "xfs");
        let gone = Storage::gather(&fake.root(), Path::new("/no/such/place"));
        assert!(gone.room.is_err_and(|error| error.contains("No such file")));
    }
}
