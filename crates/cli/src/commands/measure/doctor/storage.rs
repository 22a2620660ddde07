//! Checks the storage of a directory.

use std::io;
use std::path::Path;

use zmove_disk::Mount;
use zmove_types::ByteCount;

use crate::commands::doctor::TransferRole;
use crate::commands::doctor::finding::{Finding, Remedy, Severity};
use crate::commands::doctor::root::Root;
use crate::display::terminal::{self, quoted};
use crate::silent_paths::SilentPaths;

/// The size of a file system, and the space available to users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DiskRoom {
    whole: ByteCount,
    free: ByteCount,
    /// Number of files that can still be created, or `None` if the file system has no such limit.
    files_free: Option<u64>,
}

/// Checks the storage of a directory.
pub(crate) fn judge(root: &Root, directory: &Path, part: TransferRole) -> Vec<Finding> {
    let typed = directory.to_owned();
    let answer = SilentPaths::find([&typed], terminal::warn)
        .roots
        .check(&typed);
    let resolved = answer.is_ok().then(|| typed.canonicalize().ok()).flatten();
    let whole = resolved.unwrap_or(typed);
    let room = match answer.and_then(|()| DiskRoom::of(&whole).map_err(io::Error::from)) {
        Ok(room) => room.judge(&whole, part),
        Err(error) => Finding::new(
            Severity::Bad,
            "disk",
            format!("'{}': {error}", whole.display()),
        ),
    };
    let mount = root
        .text("proc/self/mountinfo")
        .and_then(|text| Mount::containing(text.as_bytes(), &whole));
    let unknown = || Finding::unknown("file system", "/proc/self/mountinfo");
    vec![room, mount.as_ref().map_or_else(unknown, judge_mount)]
}

impl DiskRoom {
    fn of(directory: &Path) -> rustix::io::Result<Self> {
        let stat = rustix::fs::statvfs(directory)?;
        let bytes = |blocks: u64| ByteCount(blocks.saturating_mul(stat.f_frsize));
        let files_free = (stat.f_files > 0).then_some(stat.f_favail);
        Ok(Self {
            whole: bytes(stat.f_blocks),
            free: bytes(stat.f_bavail),
            files_free,
        })
    }

    fn judge(&self, directory: &Path, part: TransferRole) -> Finding {
        let Self {
            whole,
            free,
            files_free,
        } = self;
        let files = files_free.map_or(String::new(), |files| format!(", room for {files} files"));
        let text = format!(
            "{free} of {whole} free below '{}'{files}",
            directory.display()
        );
        let full = free.0 == 0 || *files_free == Some(0);
        let level = match part {
            TransferRole::Either if full => Severity::Bad,
            TransferRole::Either if free.0 < whole.0 / 20 => Severity::Note,
            TransferRole::Either | TransferRole::Sender => Severity::Ok,
        };
        Finding::new(level, "disk", text)
    }
}

/// Checks the properties of a mount that matter for transfers.
fn judge_mount(mount: &Mount) -> Finding {
    let Mount {
        point,
        kind,
        options,
        ..
    } = mount;
    let place = format!("{kind} at '{}'", point.display());
    if options.iter().any(|option| option == "ro") {
        return Finding::note(
            "file system",
            format!("{place} is mounted read-only: no files can be received there"),
        )
        .with_remedy(Remedy::command(format!(
            "mount -o remount,rw {}",
            quoted(point)
        )));
    }
    if kind == "tmpfs" {
        return Finding::note(
            "file system",
            format!("{place}: received files stay in memory"),
        );
    }
    Finding::ok("file system", place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::root::tests::Fake;

    fn mount(kind: &str, options: &[&str]) -> Mount {
        Mount {
            id: 1,
            device: "254:1".into(),
            root: "/".into(),
            point: "/data".into(),
            kind: kind.into(),
            source: String::new(),
            options: options.iter().map(|&option| option.to_owned()).collect(),
        }
    }

    #[test]
    fn each_trouble_of_a_mount_shows() {
        let cases = [
            ("xfs", &["rw", "relatime"][..], Severity::Ok, None),
            ("lustre", &["rw"], Severity::Ok, None),
            (
                "xfs",
                &["ro", "relatime"],
                Severity::Note,
                Some("mount -o remount,rw /data"),
            ),
            ("tmpfs", &["rw", "relatime"], Severity::Note, None),
        ];
        for (kind, options, level, mend) in cases {
            let finding = judge_mount(&mount(kind, options));
            let run = finding.mend.first().and_then(|mend| mend.run.as_deref());
            assert_eq!((finding.level, run), (level, mend), "{kind} {options:?}");
        }
    }

    #[test]
    fn little_room_is_told_and_none_is_bad() {
        let level = |free, files_free, part| {
            let room = DiskRoom {
                whole: ByteCount(1000),
                free: ByteCount(free),
                files_free,
            };
            room.judge(Path::new("/data"), part).level
        };
        assert_eq!(level(50, None, TransferRole::Either), Severity::Ok);
        assert_eq!(level(49, None, TransferRole::Either), Severity::Note);
        assert_eq!(level(0, None, TransferRole::Either), Severity::Bad);
        assert_eq!(level(500, Some(0), TransferRole::Either), Severity::Bad);
        assert_eq!(
            level(0, None, TransferRole::Sender),
            Severity::Ok,
            "who sends needs no room"
        );
    }

    #[test]
    fn facts_are_read() {
        let fake = Fake::of(&[(
            "proc/self/mountinfo",
            "1 0 0:1 / / rw,noatime - xfs none rw",
        )]);
        let [room, mount] = &judge(&fake.root(), fake.path(), TransferRole::Sender)[..] else {
            panic!("two")
        };
        assert!(room.text.contains(" free below '/"), "{room:?}");
        assert_eq!(
            (mount.level, mount.text.as_str()),
            (Severity::Ok, "xfs at '/'")
        );
        let unknown = &judge(&Fake::of(&[]).root(), fake.path(), TransferRole::Sender)[1];
        assert_eq!(
            (unknown.level, unknown.text.starts_with("unknown")),
            (Severity::Note, true)
        );
        let gone = &judge(
            &fake.root(),
            Path::new("/no/such/place"),
            TransferRole::Either,
        )[0];
        assert_eq!(
            (gone.level, gone.text.contains("No such file")),
            (Severity::Bad, true)
        );
    }
}
