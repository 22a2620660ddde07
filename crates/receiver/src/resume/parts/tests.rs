//! Tests of interrupted transfers, and of the groups that the next transfer holds.

use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use super::*;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use std::fs::File;
use zmove_types::{GROUP_BYTES, Metadata, Timestamp};

use crate::resume::journal::tests::pretend_reboot;

const BYTES: u64 = 5 * GROUP_BYTES + 9;

/// A target, a directory for journals, and the large file to transfer.
struct World {
    home: tempfile::TempDir,
    /// The path of the target.
    place: PathBuf,
    tree: Tree,
    head: FileHead,
}

impl World {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("target")).unwrap();
        let tree = Tree::open(&home.path().join("target")).unwrap();
        let path = RelPath::from_bytes(b"large").unwrap();
        let metadata = Metadata::new(
            0o600,
            Timestamp {
                seconds: 5,
                nanos: 6,
            },
        );
        let ctime = Timestamp::default();
        let head = FileHead {
            path,
            metadata,
            bytes: BYTES,
            ctime,
            inode: 7,
            data: None,
        };
        let place = home.path().join("target");
        Self {
            home,
            place,
            tree,
            head,
        }
    }

    fn parts(&self, transfer: u8) -> PartStore {
        let journals = Some(self.home.path().join("journal"));
        PartStore::new(
            journals,
            TransferId([transfer; 16]),
            "owner".to_owned(),
            &self.tree,
            &Quota::default(),
        )
    }

    fn journal_of(&self, transfer: u8) -> PathBuf {
        let transfer = TransferId([transfer; 16]).to_string();
        let mut journals = std::fs::read_dir(self.home.path().join("journal"))
            .unwrap()
            .map(Result::unwrap);
        let found =
            journals.find(|journal| journal.file_name().to_string_lossy().starts_with(&transfer));
        found.unwrap().path()
    }

    fn directory(&self) -> Arc<OwnedFd> {
        Tree::open(&self.place)
            .unwrap()
            .open_directory(&RelPath::root())
            .unwrap()
    }

    /// Runs a transfer that writes these groups and is then interrupted. The first `flushed` groups are flushed.
    fn break_off(&self, groups: &[u32], flushed: usize) {
        self.break_off_as(1, groups, flushed);
    }

    fn break_off_as(&self, transfer: u8, groups: &[u32], flushed: usize) {
        let parts = self.parts(transfer);
        let part = self.write(&parts, groups, flushed);
        parts.left(FileId(3), &FileIdentity::of(part.file()).unwrap());
        assert_eq!(parts.trouble(), None);
    }

    /// Writes these groups to a new part. The first `flushed` groups are flushed.
    fn write(&self, parts: &PartStore, groups: &[u32], flushed: usize) -> Staged {
        let path = &self.head.path;
        let names = LastingNames::new("t");
        let mut part = parts
            .create(FileId(3), path, &self.head, &self.directory(), &names)
            .unwrap();
        part.reserve(BYTES, None, Direct::Off).unwrap();
        for (number, &index) in groups.iter().enumerate() {
            if number == flushed {
                parts.flushed(parts.mark().unwrap());
            }
            let (span, bytes) = group(index);
            part.file().write_all_at(&bytes, span.offset()).unwrap();
            parts
                .written(FileId(3), index, group_cv(index, &bytes))
                .unwrap();
        }
        if flushed >= groups.len() {
            parts.flushed(parts.mark().unwrap());
        }
        part
    }

    fn damage(&self, index: u32) {
        let entries = std::fs::read_dir(&self.place).unwrap();
        for entry in entries.map(|entry| entry.unwrap().path()) {
            let file = File::options().write(true).open(entry).unwrap();
            file.write_all_at(b"?", group(index).0.offset()).unwrap();
        }
    }

    fn reboot(&self) {
        let journals = std::fs::read_dir(self.home.path().join("journal")).unwrap();
        journals.for_each(|journal| pretend_reboot(&journal.unwrap().path()));
    }

    /// Publishes the file in another way, with a later change time than that of all parts.
    fn overtake(&self) {
        let changed = |path: PathBuf| {
            let stat = path.metadata().unwrap();
            (stat.ctime(), stat.ctime_nsec())
        };
        let entries = std::fs::read_dir(&self.place)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let parts = entries
            .filter(|path| !path.ends_with("large"))
            .map(changed)
            .max();
        loop {
            std::fs::write(self.place.join("large"), "new").unwrap();
            if Some(changed(self.place.join("large"))) > parts {
                return;
            }
        }
    }

    /// Returns the groups of the file that the next transfer holds.
    fn claim(&self, parts: &PartStore, source: &SourceVersion) -> Vec<u32> {
        let path = &self.head.path;
        let held = parts.claim(path, &self.directory(), source, Direct::Off, || || false);
        held.iter()
            .for_each(|(index, cv)| assert_eq!(*cv, group_cv(*index, &group(*index).1)));
        held.into_keys().collect()
    }

    fn source(&self) -> SourceVersion {
        source_of(&self.head)
    }
}

fn group(index: u32) -> (GroupSpan, Vec<u8>) {
    let span = GroupSpan::of(BYTES, index).unwrap();
    (
        span,
        vec![u8::try_from(index).unwrap() + 1; span.len as usize],
    )
}

/// A part may have begun as a copy of an old version, with data where the new version has holes.
#[test]
fn what_a_part_holds_where_the_file_has_holes_becomes_zeros() {
    let world = World::new();
    world.break_off(&[0, 4], 2);
    world.damage(1);
    let parts = world.parts(2);
    assert_eq!(world.claim(&parts, &world.source()), [0, 4]);
    let ranges = [0..GROUP_BYTES, 2 * GROUP_BYTES..BYTES];
    let data = zmove_types::DataRanges::new(BYTES, ranges.to_vec()).map(Arc::new);
    let head = FileHead {
        data,
        ..world.head.clone()
    };
    let prior = parts.resume(FileId(8), &world.head.path, &head).unwrap();
    let mut bytes = group(1).1;
    prior
        .staged
        .file()
        .read_exact_at(&mut bytes, GROUP_BYTES)
        .unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0));
}

#[test]
fn what_was_written_is_held_and_goes_on() {
    let world = World::new();
    world.break_off(&[4, 0, 5], 1);
    let parts = world.parts(2);
    assert!(parts.has_earlier());
    assert_eq!(world.claim(&parts, &world.source()), [0, 4, 5]);
    let prior = parts
        .resume(FileId(8), &world.head.path, &world.head)
        .unwrap();
    assert_eq!(
        prior
            .groups
            .iter()
            .map(|(index, _)| *index)
            .collect::<Vec<_>>(),
        [0, 4, 5]
    );
    drop((prior, parts));
    let again = world.parts(3);
    assert_eq!(
        world.claim(&again, &world.source()),
        [0, 4, 5],
        "the next one has taken it over"
    );
}

impl World {
    /// Returns the groups that count as held without being read back.
    fn trusted(&self, parts: &PartStore) -> Vec<u32> {
        let path = &self.head.path;
        let held = parts.claim(path, &self.directory(), &self.source(), Direct::Off, || {
            || true
        });
        held.into_keys().collect()
    }
}

#[test]
fn what_was_flushed_and_nobody_has_touched_since_is_not_read() {
    let world = World::new();
    world.break_off(&[0, 1, 2], 2);
    assert_eq!(world.trusted(&world.parts(2)), [0, 1]);
}

/// The part is changed immediately, so its change time is hardly later than that of the journal.
#[test]
fn what_somebody_has_changed_is_read_again() {
    let world = World::new();
    world.break_off(&[0, 1, 2], 3);
    world.damage(1);
    assert_eq!(world.claim(&world.parts(2), &world.source()), [0, 2]);
}

#[test]
fn what_a_killed_receiver_has_left_is_read_again() {
    let world = World::new();
    world.break_off(&[0, 1], 2);
    let parts = world.parts(2);
    assert_eq!(world.claim(&parts, &world.source()), [0, 1]);
    drop(
        parts
            .resume(FileId(8), &world.head.path, &world.head)
            .unwrap(),
    );
    // The receiver is killed here, before it can record the state of the part.
    drop(parts);
    assert_eq!(world.trusted(&world.parts(3)), [] as [u32; 0]);
}

#[test]
fn the_last_group_is_always_sent_again() {
    let world = World::new();
    world.break_off(&[0, 1, 2, 3, 4, 5], 9);
    assert_eq!(
        world.claim(&world.parts(2), &world.source()),
        [0, 1, 2, 3, 4]
    );
}

/// Groups are also lost without a reboot if the device is disconnected and reconnected. No timestamp shows the loss.
#[test]
fn what_was_not_flushed_is_read_again_with_a_reboot_and_without() {
    for reboots in [true, false] {
        let world = World::new();
        let parts = world.parts(1);
        let part = world.write(&parts, &[0, 1, 2, 3], 2);
        world.damage(3);
        parts.left(FileId(3), &FileIdentity::of(part.file()).unwrap());
        drop((part, parts));
        if reboots {
            world.reboot();
        }
        assert_eq!(world.trusted(&world.parts(2)), [0, 1]);
        assert_eq!(world.claim(&world.parts(3), &world.source()), [0, 1, 2]);
    }
}

#[test]
fn what_lies_on_another_file_system_is_not_flushed_with_the_target() {
    let Ok(place) = tempfile::tempdir_in("/dev/shm") else {
        return eprintln!("skipped: no /dev/shm");
    };
    let world = World {
        place: place.path().to_owned(),
        ..World::new()
    };
    let device = |fd: &OwnedFd| rustix::fs::fstat(fd).unwrap().st_dev;
    if device(&world.directory()) == device(&world.tree.open_directory(&RelPath::root()).unwrap()) {
        return eprintln!("skipped: one file system");
    }
    world.break_off(&[0, 1], 9);
    assert_eq!(world.trusted(&world.parts(2)), [] as [u32; 0]);
    let parts = world.parts(3);
    assert_eq!(world.claim(&parts, &world.source()), [0, 1]);
    let prior = parts
        .resume(FileId(8), &world.head.path, &world.head)
        .unwrap();
    parts.flushed(parts.mark().unwrap());
    // The loss of data does not change any timestamp.
    world.damage(1);
    parts.left(FileId(8), &FileIdentity::of(prior.staged.file()).unwrap());
    drop((prior, parts));
    world.reboot();
    assert_eq!(world.claim(&world.parts(4), &world.source()), [0]);
}

#[test]
fn after_a_flush_that_failed_nothing_more_counts_as_flushed() {
    let world = World::new();
    world.break_off(&[0, 1], 1);
    let parts = world.parts(2);
    assert_eq!(world.claim(&parts, &world.source()), [0, 1]);
    let prior = parts
        .resume(FileId(8), &world.head.path, &world.head)
        .unwrap();
    parts.flush_failed();
    // The kernel reports the error only once. Later flushes cover only the remaining data.
    parts
        .mark()
        .into_iter()
        .for_each(|mark| parts.flushed(mark));
    // The loss of data by the failed flush does not change any timestamp.
    world.damage(1);
    parts.left(FileId(8), &FileIdentity::of(prior.staged.file()).unwrap());
    drop((prior, parts));
    world.reboot();
    assert_eq!(world.claim(&world.parts(3), &world.source()), [0]);
}

#[test]
fn a_part_that_was_never_given_its_size_goes() {
    let world = World::new();
    let parts = world.parts(1);
    let names = LastingNames::new("t");
    drop(
        parts
            .create(
                FileId(3),
                &world.head.path,
                &world.head,
                &world.directory(),
                &names,
            )
            .unwrap(),
    );
    drop(parts);
    assert_eq!(
        world.claim(&world.parts(2), &world.source()),
        [] as [u32; 0]
    );
    assert_eq!(std::fs::read_dir(&world.place).unwrap().count(), 0);
}

#[test]
fn of_two_journals_with_the_same_part_the_later_one_tells() {
    let world = World::new();
    world.break_off(&[0], 1);
    let journal = world.journal_of(1);
    // The process was killed after it had taken over the part, but before it could record that in the earlier journal.
    let left = std::fs::read(&journal).unwrap();
    let parts = world.parts(0);
    assert_eq!(world.claim(&parts, &world.source()), [0]);
    let prior = parts
        .resume(FileId(8), &world.head.path, &world.head)
        .unwrap();
    let (span, bytes) = group(1);
    prior
        .staged
        .file()
        .write_all_at(&bytes, span.offset())
        .unwrap();
    parts.written(FileId(8), 1, group_cv(1, &bytes)).unwrap();
    drop((prior, parts));
    std::fs::write(&journal, left).unwrap();
    let written = std::fs::metadata(&journal).unwrap().modified().unwrap();
    let later = written + Duration::from_millis(500);
    let newest = world.journal_of(0);
    File::options()
        .write(true)
        .open(newest)
        .unwrap()
        .set_modified(later)
        .unwrap();
    let parts = world.parts(3);
    assert_eq!(world.claim(&parts, &world.source()), [0, 1]);
    drop(
        parts
            .resume(FileId(9), &world.head.path, &world.head)
            .unwrap(),
    );
    parts.ended(FileId(9));
    parts.finish();
    assert_eq!(
        std::fs::read_dir(world.home.path().join("journal"))
            .unwrap()
            .count(),
        0
    );
}

#[test]
fn another_source_is_not_held_and_its_part_goes() {
    let world = World::new();
    world.break_off(&[0, 1], 0);
    let other = SourceVersion {
        inode: 8,
        ..world.source()
    };
    let parts = world.parts(2);
    assert_eq!(world.claim(&parts, &other), [] as [u32; 0]);
    assert_eq!(
        std::fs::read_dir(world.home.path().join("target"))
            .unwrap()
            .count(),
        0
    );
    parts.finish();
    assert_eq!(
        std::fs::read_dir(world.home.path().join("journal"))
            .unwrap()
            .count(),
        0
    );
}

/// For example, a file system may have become read-only. A part that no journal lists would be kept forever.
#[test]
fn a_part_that_cannot_be_removed_stays_in_the_journal() {
    for can_be_removed in [true, false] {
        let world = World::new();
        let parts = world.parts(1);
        let names = LastingNames::new("t");
        let part = parts
            .create(
                FileId(1),
                &world.head.path,
                &world.head,
                &world.directory(),
                &names,
            )
            .unwrap();
        let hidden = world.place.join(part.hidden_name().unwrap().as_os_str());
        if !can_be_removed {
            std::fs::rename(&hidden, world.place.join("aside")).unwrap();
            std::fs::create_dir(&hidden).unwrap();
        }
        parts.remove(FileId(1), &part);
        drop(part);
        assert_eq!(hidden.exists(), !can_be_removed);
        parts.ended(FileId(1));
        parts.finish();
        drop(parts);
        assert_eq!(world.parts(2).has_earlier(), !can_be_removed);
    }
}

#[test]
fn a_part_that_a_transfer_writes_is_no_other_s() {
    let world = World::new();
    world.break_off(&[0, 1], 0);
    let first = world.parts(2);
    assert_eq!(world.claim(&first, &world.source()), [0, 1]);
    assert!(!world.parts(3).has_earlier());
}

#[test]
fn a_part_whose_file_came_in_another_way_goes() {
    let world = World::new();
    let target = world.home.path().join("target");
    std::fs::write(target.join("large"), "old").unwrap();
    world.break_off(&[0, 1], 0);
    let parts = world.parts(2);
    parts.drop_overtaken(&world.tree);
    assert!(parts.has_earlier(), "what stands there is older");
    std::fs::remove_file(target.join("large")).unwrap();
    parts.drop_overtaken(&world.tree);
    assert!(parts.has_earlier(), "nothing stands there");
    world.overtake();
    parts.drop_overtaken(&world.tree);
    assert!(!parts.has_earlier());
    assert_eq!(std::fs::read_dir(target).unwrap().count(), 1);
}

#[test]
fn of_two_parts_of_a_file_that_came_in_another_way_neither_stays() {
    let world = World::new();
    world.break_off_as(1, &[0, 1], 0);
    world.break_off_as(2, &[0], 0);
    let target = world.home.path().join("target");
    assert_eq!(std::fs::read_dir(&target).unwrap().count(), 2);
    world.overtake();
    let parts = world.parts(3);
    parts.drop_overtaken(&world.tree);
    parts.finish();
    assert_eq!(std::fs::read_dir(target).unwrap().count(), 1);
    assert_eq!(
        std::fs::read_dir(world.home.path().join("journal"))
            .unwrap()
            .count(),
        0
    );
}

#[test]
fn small_ones_are_not_journalled() {
    let world = World::new();
    let head = FileHead {
        bytes: JOURNALLED_BYTES_MIN - 1,
        ..world.head.clone()
    };
    let names = LastingNames::new("t");
    let parts = world.parts(1);
    drop(
        parts
            .create(FileId(1), &head.path, &head, &world.directory(), &names)
            .unwrap(),
    );
    assert_eq!(
        std::fs::read_dir(world.home.path()).unwrap().count(),
        1,
        "only the target"
    );
}

/// Otherwise, if the process was killed in between, the part would be kept forever: no journal would list it, and its
/// name does not identify its creator.
#[test]
fn a_part_gets_the_name_that_lasts_after_its_journal_tells_of_it() {
    let world = World::new();
    let parts = world.parts(1);
    assert!(parts.journal().is_some());
    let watch = inotify::init(CreateFlags::NONBLOCK).unwrap();
    let wanted = WatchFlags::CREATE | WatchFlags::MODIFY | WatchFlags::MOVED_TO;
    let journals = inotify::add_watch(&watch, world.home.path().join("journal"), wanted).unwrap();
    let target = inotify::add_watch(&watch, &world.place, wanted).unwrap();
    let names = LastingNames::new("t");
    let _part = parts
        .create(
            FileId(3),
            &world.head.path,
            &world.head,
            &world.directory(),
            &names,
        )
        .unwrap();
    let mut room = [std::mem::MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(&watch, &mut room);
    let events: Vec<_> =
        std::iter::from_fn(|| reader.next().ok().map(|event| (event.wd(), event.events())))
            .collect();
    assert_eq!(
        events,
        [
            (target, ReadFlags::CREATE),
            (journals, ReadFlags::MODIFY),
            (target, ReadFlags::MOVED_TO)
        ]
    );
}
