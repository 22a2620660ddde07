//! Tests of a transfer that resumes from the temporary file of a changed file while the old version still exists.

use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::comparison::entries::send::compare_all;
use crate::resume::journal::SourceVersion;
use crate::store::large_files::LargeFile;
use crate::store::large_files::tests::cpu_time;
use crate::store::placer::tests::transfer_of;
use crate::store::transfer::Transfer;
use zmove_chunk::group_cv;
use zmove_types::{BytesByOrigin, FileId, Metadata, Timestamp};
use zmove_wire::{EntryGroup, SourceEntry, SourceKind, SourceMark, SourceMetadata, Verdict};

const GROUPS: u32 = 4;
const BYTES: u64 = GROUPS as u64 * GROUP_BYTES;

/// A target with an old version of a file, and a directory for journals.
struct World {
    home: tempfile::TempDir,
    source: SourceVersion,
}

impl World {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("target")).unwrap();
        let mtime = Timestamp {
            seconds: 5,
            nanos: 6,
        };
        let source = SourceVersion {
            bytes: BYTES,
            mtime,
            ctime: mtime,
            inode: 7,
        };
        let world = Self { home, source };
        world.write_old(&[1, 2, 3, 4]);
        world
    }

    fn old(&self) -> PathBuf {
        self.home.path().join("target/large")
    }

    /// Writes the old version. Group `i` consists of the repeated byte `groups[i]`.
    fn write_old(&self, groups: &[u8]) {
        let contents: Vec<_> = groups.iter().flat_map(|byte| block(*byte)).collect();
        std::fs::write(self.old(), contents).unwrap();
    }

    fn transfer(&self, number: u8) -> Transfer {
        let journals = Some(self.home.path().join("journal"));
        let mut transfer = transfer_of(number, &self.home.path().join("target"), journals);
        transfer.target.view.policy.rules.delta = true;
        transfer
    }

    /// Runs a transfer that is interrupted after it has received `groups`. Also writes the groups in `besides`, without
    /// recording them in the journal.
    fn break_off(&self, groups: &[(u32, u8)], besides: &[(u32, u8)]) {
        let transfer = self.transfer(1);
        let directory = transfer
            .target
            .tree
            .open_directory(&RelPath::root())
            .unwrap();
        let (path, head) = (path(), self.head());
        let part = transfer.parts.create(
            FileId(3),
            &path,
            &head,
            &directory,
            &transfer.target.part_names,
        );
        let mut part = part.unwrap();
        part.reserve(BYTES, None, Direct::Off).unwrap();
        for (index, byte) in groups.iter().chain(besides) {
            part.file()
                .write_all_at(&block(*byte), span(*index).offset())
                .unwrap();
        }
        for (index, byte) in groups {
            transfer
                .parts
                .written(FileId(3), *index, cv(*index, *byte))
                .unwrap();
        }
    }

    fn head(&self) -> FileHead {
        let SourceVersion {
            bytes,
            mtime,
            ctime,
            inode,
        } = self.source;
        let metadata = Metadata::new(0o600, mtime);
        FileHead {
            path: path(),
            metadata,
            bytes,
            ctime,
            inode,
            data: None,
        }
    }

    fn request(&self) -> Vec<EntryGroup> {
        self.request_of(self.source.bytes)
    }

    /// Returns a request about the file that claims a size of `bytes` bytes.
    fn request_of(&self, bytes: u64) -> Vec<EntryGroup> {
        let SourceVersion {
            mtime,
            ctime,
            inode,
            ..
        } = self.source;
        let mark = Some(SourceMark { inode, ctime });
        let file = SourceEntry {
            name: path().file_name().unwrap(),
            kind: SourceKind::File { bytes, mark },
            metadata: SourceMetadata {
                metadata: Metadata::new(0o600, mtime),
                xattrs: None,
            },
        };
        vec![EntryGroup {
            directory: RelPath::root(),
            itself: None,
            entries: vec![file],
        }]
    }

    /// Offers and declares the file. Returns the file and the groups that the receiver already has.
    fn declare(&self, transfer: &Transfer) -> (Arc<LargeFile>, Vec<u32>) {
        let groups = self.request();
        let comparison = compare_all(transfer, 9, &groups);
        assert_eq!(comparison.verdicts, [Verdict::Delta]);
        let groups = comparison
            .held
            .iter()
            .flat_map(|held| (held.first..).zip(&held.cvs));
        let held = groups.map(|(index, _)| index).collect();
        comparison
            .changed
            .into_iter()
            .for_each(|candidate| candidate.send_hashes(transfer, Some(Arc::default())));
        let old_version = |_: &FileHead| transfer.old_versions.take(&path());
        let prior = |head: &FileHead| {
            let prior = transfer.parts.resume(FileId(8), &path(), head)?;
            Some((prior, BytesByOrigin::default()))
        };
        transfer
            .files
            .declare(FileId(8), self.head(), old_version, prior)
            .unwrap();
        (transfer.files.find(FileId(8)).unwrap().unwrap(), held)
    }
}

/// Copies a group of the old version into the new file. Returns `None` if no hash value was sent for the group.
fn copy_group(transfer: &Transfer, file: &LargeFile, index: u32) -> Option<bool> {
    let old_version = file.old_version.as_ref().unwrap();
    let cv = old_version.cv(index)?;
    let part = file.staged(|| Err("begun anew")).unwrap();
    let open_old = || transfer.target.open_old_at(&path());
    Some(
        old_version
            .copy_group(
                &transfer.old_versions,
                open_old,
                &file.head,
                &part,
                span(index),
                cv,
            )
            .unwrap(),
    )
}

fn group_of_part(file: &LargeFile, index: u32) -> Vec<u8> {
    let mut bytes = block(0);
    let part = file.staged(|| Err("begun anew")).unwrap();
    part.file()
        .read_exact_at(&mut bytes, span(index).offset())
        .unwrap();
    bytes
}

fn path() -> RelPath {
    RelPath::from_bytes(b"large").unwrap()
}

fn span(index: u32) -> GroupSpan {
    GroupSpan::of(BYTES, index).unwrap()
}

fn block(byte: u8) -> Vec<u8> {
    vec![byte; BUFFER_BYTES]
}

fn cv(index: u32, byte: u8) -> Cv {
    group_cv(index, &block(byte))
}

#[test]
fn what_the_part_does_not_have_is_looked_for_in_the_old_version() {
    let world = World::new();
    world.break_off(&[(1, 12)], &[]);
    let transfer = world.transfer(2);
    let (file, held) = world.declare(&transfer);
    assert_eq!(held, [1]);
    let told = [0, 1, 2, 3].map(|index| file.old_version.as_ref().unwrap().cv(index));
    assert_eq!(told, [Some(cv(0, 1)), None, Some(cv(2, 3)), Some(cv(3, 4))]);
    assert_eq!(
        [0, 1, 2, 3].map(|index| copy_group(&transfer, &file, index)),
        [Some(true), None, Some(true), Some(true)]
    );
    assert_eq!(
        [0, 1, 2, 3].map(|index| group_of_part(&file, index)),
        [1, 12, 3, 4].map(block)
    );
}

#[test]
fn of_an_old_version_that_is_replaced_or_gone_only_what_is_still_there_is_kept() {
    for replace in [
        |world: &World| world.write_old(&[5, 6, 7, 4]),
        |world: &World| {
            std::fs::remove_file(world.old()).unwrap();
        },
    ] {
        let world = World::new();
        // The part (temporary file) contains the second group, but its journal does not. The group may come from a
        // clone, or from a write that was not recorded.
        world.break_off(&[(1, 12)], &[(2, 3)]);
        let transfer = world.transfer(2);
        let (file, _) = world.declare(&transfer);
        replace(&world);
        let there = world.old().exists();
        assert_eq!(
            [0, 2, 3].map(|index| copy_group(&transfer, &file, index)),
            [Some(false), Some(true), Some(there)]
        );
    }
}

#[test]
fn a_complete_part_still_asks_for_its_last_group() {
    let world = World::new();
    world.break_off(&[(0, 1), (1, 12), (2, 3), (3, 14)], &[]);
    let transfer = world.transfer(2);
    let (file, held) = world.declare(&transfer);
    assert_eq!(held, [0, 1, 2]);
    assert_eq!(
        [0, 1, 2, 3].map(|index| file.old_version.as_ref().unwrap().cv(index)),
        [None, None, None, Some(cv(3, 4))]
    );
}

#[test]
fn a_part_alone_goes_on_as_what_it_is() {
    let world = World::new();
    world.break_off(&[(1, 12)], &[]);
    std::fs::remove_file(world.old()).unwrap();
    let groups = world.request();
    let transfer = world.transfer(2);
    let comparison = compare_all(&transfer, 9, &groups);
    assert_eq!(
        (comparison.verdicts, comparison.changed.len()),
        (vec![Verdict::Resume], 0)
    );
    world.write_old(&[1, 2, 3, 4]);
    // The transfer ends here, so that the next transfer can take over its journals.
    drop(transfer);
    let mut never = world.transfer(3);
    never.target.view.policy.rules.delta = false;
    let comparison = compare_all(&never, 9, &groups);
    assert_eq!(
        (comparison.verdicts, comparison.changed.len()),
        (vec![Verdict::Resume], 0)
    );
}

#[test]
fn groups_that_are_holes_in_the_old_version_are_not_looked_at() {
    let old = tempfile::tempfile().unwrap();
    old.set_len(BYTES).unwrap();
    for offset in [5, 1 << 20, 2 * GROUP_BYTES + 8192, 3 * GROUP_BYTES - 1] {
        old.write_all_at(&[1; 2], offset).unwrap();
    }
    let groups = |bytes| {
        groups_with_data(&old, bytes)
            .map(|span| (span.index, span.len))
            .collect::<Vec<_>>()
    };
    let whole = u32::try_from(GROUP_BYTES).unwrap();
    assert_eq!(groups(BYTES), [(0, whole), (2, whole), (3, whole)]);
    assert_eq!(groups(2 * GROUP_BYTES + 7), [(0, whole), (2, 7)]);
    assert_eq!(groups(GROUP_BYTES), [(0, whole)]);
}

/// The request claims a much larger size than that of the file.
#[test]
fn a_request_of_four_thousand_million_groups_costs_what_is_there() {
    let world = World::new();
    let old = File::create(world.old()).unwrap();
    old.set_len(BYTES).unwrap();
    old.write_all_at(&block(1), 0).unwrap();
    let transfer = world.transfer(2);
    let groups = world.request_of(u64::from(u32::MAX) * GROUP_BYTES);
    let comparison = compare_all(&transfer, 9, &groups);
    let began = cpu_time();
    comparison
        .changed
        .into_iter()
        .for_each(|candidate| candidate.send_hashes(&transfer, Some(Arc::default())));
    assert!(
        cpu_time() - began < Duration::from_secs(1),
        "{:?}",
        cpu_time() - began
    );
    let old_version = transfer.old_versions.take(&path()).unwrap();
    assert_eq!(
        [0, 1, 2].map(|index| old_version.cv(index)),
        [Some(cv(0, 1)), None, None]
    );
}
