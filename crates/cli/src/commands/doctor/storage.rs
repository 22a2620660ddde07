//! The storage below a directory.

use std::path::{Path, PathBuf};

use zmove_disk::Mount;
use zmove_types::ByteCount;

use crate::commands::doctor::Part;
use crate::commands::doctor::finding::{Finding, Level, Mend};
use crate::commands::doctor::root::Root;
use crate::display::terminal::quoted;

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

impl Storage {
    pub(crate) fn gather(root: &Root, directory: &Path) -> Self {
        let found = directory.canonicalize();
        let whole = found.as_deref().unwrap_or(directory);
        let room = match &found {
            Ok(directory) => Room::of(directory).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let mount = root.text("proc/self/mountinfo").and_then(|text| Mount::around(text.as_bytes(), whole));
        Self { directory: whole.into(), room, mount }
    }

    pub(crate) fn judge(&self, part: Part) -> Vec<Finding> {
        let mut findings = vec![self.judge_room(part)];
        findings.push(match &self.mount {
            Some(mount) => judge_mount(mount),
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
        let level = match part {
            Part::Either if full => Level::Bad,
            Part::Either if free.0 < whole.0 / 20 => Level::Note,
            Part::Either | Part::Sender => Level::Ok,
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

/// What of a mount matters to a mover.
fn judge_mount(mount: &Mount) -> Finding {
    let Mount { point, kind, options, .. } = mount;
    let has = |option: &str| options.iter().any(|word| word == option);
    let place = format!("{kind} at '{}'", point.display());
    if has("ro") {
        return Finding::note(
            "file system",
            format!("{place} is mounted read-only: nothing can be received there"),
        )
        .mended_by(Mend::command(format!("mount -o remount,rw {}", quoted(point))));
    }
    if !has("noatime") && !has("relatime") && LOCAL_KINDS.contains(&kind.as_str()) {
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

/// File systems of this host's own disks, which write access times as they are told.
const LOCAL_KINDS: [&str; 5] = ["ext4", "ext3", "xfs", "btrfs", "f2fs"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::root::tests::Fake;

    fn storage(kind: &str, options: &[&str]) -> Storage {
        let options = options.iter().map(|&option| option.to_owned()).collect();
        Storage {
            directory: "/data".into(),
            room: Ok(Room { whole: ByteCount(100 << 30), free: ByteCount(50 << 30), files_free: Some(1000) }),
            mount: Some(Mount {
                id: 1,
                device: "254:1".into(),
                root: "/".into(),
                point: "/data".into(),
                kind: kind.into(),
                source: String::new(),
                options,
            }),
        }
    }

    fn levels(storage: &Storage) -> [Level; 2] {
        let findings = storage.judge(Part::Either);
        [findings[0].level, findings[1].level]
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
