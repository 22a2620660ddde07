//! Tests which files are removed with a journal, and which are kept.

use super::*;
use std::os::unix::fs::{MetadataExt, symlink};
use std::time::{Duration, SystemTime};

const ALL: CleanRule = CleanRule {
    older_than: Duration::ZERO,
    unreachable: Unreachable::Keep,
    mode: CleanMode::Remove,
    roots: None,
};

/// A target with one part file, and the directory with the journal that lists it.
struct Scene {
    home: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let scene = Self {
            home: tempfile::tempdir().unwrap(),
        };
        fs::create_dir_all(scene.target().join("sub")).unwrap();
        fs::write(scene.part_file(), "half").unwrap();
        scene
    }

    fn target(&self) -> PathBuf {
        self.home.path().join("target")
    }

    fn part_file(&self) -> PathBuf {
        self.target().join("sub").join(part_name("x"))
    }

    fn journals(&self) -> PathBuf {
        self.home.path().join("journal")
    }

    fn begin(&self, transfer: u8) -> Begin {
        let stat = self.target().metadata().unwrap();
        let target = self.target().into_os_string().into_encoded_bytes();
        Begin {
            target,
            device: stat.dev(),
            inode: stat.ino(),
            ..begin(transfer)
        }
    }

    /// Returns the part with its current inode and birth time.
    fn part(&self) -> PartFile {
        let stat = self.part_file().metadata().unwrap();
        let born = birth_of(fs::File::open(self.part_file()).unwrap());
        PartFile {
            inode: stat.ino(),
            born,
            ..part("x", 9)
        }
    }

    /// Writes a journal that lists only `part`.
    fn journal(&self, part: &PartFile) -> Journal {
        let journal = Journal::create(&self.journals(), &self.begin(1)).unwrap();
        journal.record_part(1, part).unwrap();
        journal
    }

    /// Cleans up the only journal.
    fn clean(&self, rule: &CleanRule) -> Cleaned {
        let mut cleaned = clean(&self.journals(), rule).unwrap();
        assert_eq!(cleaned.len(), 1);
        cleaned.remove(0)
    }

    fn journals_left(&self) -> usize {
        list(&self.journals()).unwrap().len()
    }
}

#[test]
fn a_part_goes_with_its_journal_and_nothing_else_does() {
    let scene = Scene::new();
    drop(scene.journal(&scene.part()));
    fs::write(scene.target().join("sub/x"), "old").unwrap();
    let cleaned = scene.clean(&CleanRule {
        mode: CleanMode::DryRun,
        ..ALL
    });
    assert!(
        matches!(
            (&cleaned.parts[..], &cleaned.removed),
            ([PartFate::Removed], Ok(true))
        ),
        "{cleaned:?}"
    );
    assert!(scene.part_file().exists() && scene.journals_left() == 1);
    let cleaned = scene.clean(&ALL);
    assert!(
        matches!(
            (&cleaned.parts[..], &cleaned.removed),
            ([PartFate::Removed], Ok(true))
        ),
        "{cleaned:?}"
    );
    assert!(!scene.part_file().exists() && scene.target().join("sub/x").exists());
    assert_eq!(scene.journals_left(), 0);
}

#[test]
fn a_part_that_is_gone_keeps_no_journal() {
    let scene = Scene::new();
    drop(scene.journal(&scene.part()));
    fs::remove_dir_all(scene.target().join("sub")).unwrap();
    let cleaned = scene.clean(&ALL);
    assert!(
        matches!(
            (&cleaned.parts[..], &cleaned.removed),
            ([PartFate::Gone], Ok(true))
        ),
        "{cleaned:?}"
    );
}

#[test]
fn another_file_of_that_name_is_left() {
    let scene = Scene::new();
    let part = scene.part();
    let path = scene.target().join("sub").join(part_name("link"));
    symlink(part_name("x"), &path).unwrap();
    let link = path.symlink_metadata().unwrap().ino();
    let name = Name::from_bytes(part_name("link").as_bytes()).unwrap();
    let replaced = [
        PartFile {
            part: name.clone(),
            inode: link,
            born: Timestamp::default(),
            ..part.clone()
        },
        PartFile {
            inode: part.inode + 1,
            ..part.clone()
        },
        PartFile {
            born: Timestamp {
                seconds: 1,
                nanos: 1,
            },
            ..part.clone()
        },
        PartFile { part: name, ..part },
    ];
    for part in replaced {
        drop(scene.journal(&part));
        let cleaned = scene.clean(&ALL);
        let fate = (&cleaned.parts[..], &cleaned.removed);
        assert!(
            matches!(fate, ([PartFate::Replaced], Ok(true))),
            "{cleaned:?}"
        );
        assert!(scene.part_file().exists());
    }
}

#[test]
fn a_link_on_the_way_is_not_followed() {
    let scene = Scene::new();
    drop(scene.journal(&scene.part()));
    let moved = scene.home.path().join("moved");
    fs::rename(scene.target().join("sub"), &moved).unwrap();
    symlink(&moved, scene.target().join("sub")).unwrap();
    let cleaned = scene.clean(&ALL);
    assert!(
        !matches!(cleaned.parts[..], [PartFate::Removed]),
        "{cleaned:?}"
    );
    assert!(moved.join(part_name("x")).exists());
}

#[test]
fn the_journal_of_a_target_that_is_not_there_now_is_kept_unless_it_is_to_go() {
    for empty_in_its_place in [false, true] {
        let scene = Scene::new();
        drop(scene.journal(&scene.part()));
        let away = scene.home.path().join("away");
        fs::rename(scene.target(), &away).unwrap();
        if empty_in_its_place {
            fs::create_dir(scene.target()).unwrap();
        }
        let cleaned = scene.clean(&ALL);
        let unreachable = matches!(
            cleaned.parts[..],
            [PartFate::Failed(_) | PartFate::Elsewhere]
        );
        assert!(
            unreachable && matches!(cleaned.removed, Ok(false)),
            "{cleaned:?}"
        );
        assert_eq!(scene.journals_left(), 1);
        let cleaned = scene.clean(&CleanRule {
            unreachable: Unreachable::Remove,
            ..ALL
        });
        assert!(matches!(cleaned.removed, Ok(true)), "{cleaned:?}");
        assert!(scene.journals_left() == 0 && away.join("sub").join(part_name("x")).exists());
    }
}

#[test]
fn what_is_young_or_in_use_is_not_touched() {
    let scene = Scene::new();
    let journal = scene.journal(&scene.part());
    assert!(clean(&scene.journals(), &ALL).unwrap().is_empty());
    drop(journal);
    let hour = CleanRule {
        older_than: Duration::from_secs(3600),
        ..ALL
    };
    assert!(clean(&scene.journals(), &hour).unwrap().is_empty());
    let path = list(&scene.journals()).unwrap().remove(0).path;
    let at = |time| {
        fs::File::options()
            .append(true)
            .open(&path)
            .unwrap()
            .set_modified(time)
            .unwrap()
    };
    // A wrong clock has given the journal a time in the future.
    at(SystemTime::now() + Duration::from_secs(7200));
    assert!(clean(&scene.journals(), &hour).unwrap().is_empty());
    let dry_run = CleanRule {
        mode: CleanMode::DryRun,
        ..ALL
    };
    assert!(
        matches!(scene.clean(&dry_run).removed, Ok(true)),
        "of any age"
    );
    at(SystemTime::now() - Duration::from_secs(7200));
    assert!(matches!(scene.clean(&hour).removed, Ok(true)));
}

#[test]
fn a_part_that_a_running_transfer_has_taken_over_is_left() {
    let scene = Scene::new();
    let part = scene.part();
    drop(scene.journal(&part));
    let running = Journal::create(&scene.journals(), &scene.begin(2)).unwrap();
    running.record_part(7, &part).unwrap();
    let cleaned = scene.clean(&ALL);
    assert!(
        matches!(
            (&cleaned.parts[..], &cleaned.removed),
            ([PartFate::InUse], Ok(true))
        ),
        "{cleaned:?}"
    );
    assert!(scene.part_file().exists());
    running.remove().unwrap();
}

#[test]
fn a_damaged_journal_goes_alone() {
    let scene = Scene::new();
    drop(scene.journal(&scene.part()));
    let path = list(&scene.journals()).unwrap().remove(0).path;
    fs::write(&path, "nonsense").unwrap();
    let dry = scene.clean(&CleanRule {
        mode: CleanMode::DryRun,
        ..ALL
    });
    assert!(
        matches!(
            (&dry.contents, &dry.removed),
            (Err(JournalError::Damaged), Ok(true))
        ),
        "{dry:?}"
    );
    assert!(path.exists());
    let cleaned = scene.clean(&ALL);
    assert!(
        cleaned.parts.is_empty() && matches!(cleaned.removed, Ok(true)),
        "{cleaned:?}"
    );
    assert!(!path.exists() && scene.part_file().exists());
}

/// The journal was written before a reboot, and device numbers may have changed since.
#[test]
fn after_a_reboot_a_part_is_known_by_its_birth() {
    let scene = Scene::new();
    fs::create_dir(scene.journals()).unwrap();
    let path = path_of(&scene.journals(), &scene.begin(1));
    for (renumbered, born, removed) in [
        (true, false, false),
        (true, true, true),
        (false, false, true),
    ] {
        fs::write(scene.part_file(), "half").unwrap();
        let mut begin = scene.begin(1);
        begin.device += u64::from(renumbered);
        let mut part = scene.part();
        if !born {
            part.born = Timestamp::default();
        } else if part.born == Timestamp::default() {
            continue; // this file system stores no time of birth
        }
        let records = [Record::Begin(begin, BootId([1; 16])), Record::Part(1, part)];
        fs::write(
            &path,
            records.map(|record| record.encode().unwrap()).concat(),
        )
        .unwrap();
        let cleaned = scene.clean(&ALL);
        assert_eq!(!scene.part_file().exists(), removed, "{cleaned:?}");
        assert_eq!(!path.exists(), removed, "{cleaned:?}");
    }
}

/// A journal is an ordinary file, so a user with write access can enter any name.
#[test]
fn a_name_that_no_part_has_is_left() {
    for name in [
        "shadow",
        ".zmove-0123456789ab",
        ".zmove-0123456789AB-0",
        ".zmove-x",
    ] {
        let scene = Scene::new();
        let path = scene.target().join("sub").join(name);
        fs::hard_link(scene.part_file(), &path).unwrap();
        drop(scene.journal(&PartFile {
            part: Name::from_bytes(name.as_bytes()).unwrap(),
            ..scene.part()
        }));
        let cleaned = scene.clean(&ALL);
        assert!(
            matches!(cleaned.parts[..], [PartFate::Foreign]),
            "{cleaned:?}"
        );
        assert!(path.exists());
    }
}

#[test]
fn a_target_below_none_of_the_roots_is_left() {
    for (root, is_removed) in [
        ("target", true),
        ("", true),
        ("targe", false),
        ("link", false),
    ] {
        let scene = Scene::new();
        symlink("target", scene.home.path().join("link")).unwrap();
        drop(scene.journal(&scene.part()));
        let cleaned = scene.clean(&CleanRule {
            roots: Some(vec![
                scene.home.path().join("none"),
                scene.home.path().join(root),
            ]),
            ..ALL
        });
        assert_eq!(
            matches!(cleaned.parts[..], [PartFate::Removed]),
            is_removed,
            "{cleaned:?}"
        );
        assert_eq!(
            matches!(cleaned.parts[..], [PartFate::Outside]),
            !is_removed,
            "{cleaned:?}"
        );
        assert_eq!(
            (scene.part_file().exists(), scene.journals_left()),
            (!is_removed, usize::from(!is_removed))
        );
    }
}
