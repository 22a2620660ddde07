//! Answers requests that ask which files to send.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use zmove_disk::{FileIdentity, NameAt, Task, Turn};
use zmove_types::{Lock, Name, RelPath};
use zmove_wire::{
    Answer, Compare, Differences, EntryGroup, Held, Reply, SourceEntry, SourceKind, SourceMark,
    SourceMetadata, ToSender, Verdict,
};

use super::candidate::{DeltaCandidate, runs};
use super::{SourceFile, SourceXattrs};
use crate::resume::journal::SourceVersion;
use crate::session::requests::PendingRequest;
use crate::store::target::metadata_policy::EntryLocation;
use crate::store::target::tree::contents_root;
use crate::store::transfer::Transfer;

/// Answers which of these files the sender must send. Sends the verdicts first, and then the hashes of old versions.
pub(crate) fn answer(
    transfer: &Transfer,
    number: u64,
    groups: &[EntryGroup],
    open: PendingRequest,
) {
    let Comparison {
        verdicts,
        held,
        changed,
    } = compare_all(transfer, number, groups);
    for held in held {
        transfer.reports.send(ToSender::Held(held), None);
    }
    let mut open = Some(open);
    let reply = Reply {
        number,
        answer: Answer::Verdicts(verdicts),
    };
    let answers = open.take_if(|_| changed.is_empty());
    transfer.reports.send(ToSender::Reply(reply), answers);
    let mut changed = changed.into_iter().peekable();
    while let Some(candidate) = changed.next() {
        candidate.send_hashes(transfer, open.take_if(|_| changed.peek().is_none()));
    }
}

/// The answer to one request.
#[derive(Debug, Default)]
pub(crate) struct Comparison<'r> {
    pub(crate) verdicts: Vec<Verdict>,
    /// Groups of these files that earlier transfers have stored.
    pub(crate) held: Vec<Held>,
    /// Changed files whose old versions must be hashed.
    pub(crate) changed: Vec<DeltaCandidate<'r>>,
}

/// Compares all entries of one request. Uses several threads if the storage is slow. Entries that are not regular files
/// count as needed, and so do entries that were not examined because the session ended.
pub(crate) fn compare_all<'r>(
    transfer: &'r Transfer,
    number: u64,
    groups: &'r [EntryGroup],
) -> Comparison<'r> {
    let places = (0..).zip(groups);
    let entries =
        places.flat_map(|(place, group)| group.entries.iter().map(move |entry| (place, entry)));
    let mut verdicts = vec![Verdict::New; entries.clone().count()];
    let waiting = Lock::new((0..).zip(entries.zip(&mut verdicts)));
    let opened_last = Lock::new(None);
    let parts = transfer.run_parallel(Task::Read, "zmove-look", |turn| {
        let mut part = ComparedPart {
            transfer,
            request: number,
            held: Vec::new(),
            changed: Vec::new(),
        };
        let mut opened: Option<(usize, Option<Arc<OwnedFd>>)> = None;
        while !turn.is_over() {
            let Some((index, ((place, entry), verdict))) = waiting.lock().next() else {
                break;
            };
            turn.start_helper();
            let path = &groups[place].directory;
            let directory = match opened.take() {
                Some((last, directory)) if last == place => directory,
                _ => open_once(&mut opened_last.lock(), place, || {
                    let directory = transfer.target.tree.open_own_directory(path).ok()?;
                    transfer.enter(path, &directory).ok().map(|()| directory)
                }),
            };
            if let Some(directory) = &directory {
                let at = OpenedDirectory {
                    path,
                    opened: directory,
                };
                *verdict = part.compare(turn, index, at, entry);
            }
            opened = Some((place, directory));
        }
        part
    });
    let mut comparison = Comparison {
        verdicts,
        ..Comparison::default()
    };
    for part in parts {
        comparison.held.extend(part.held);
        comparison.changed.extend(part.changed);
    }
    comparison
}

/// Opens a directory that several threads inspect. The first thread opens the directory while the others wait.
fn open_once(
    last: &mut Option<(usize, Option<Arc<OwnedFd>>)>,
    place: usize,
    open: impl FnOnce() -> Option<Arc<OwnedFd>>,
) -> Option<Arc<OwnedFd>> {
    match last {
        Some((there, directory)) if *there == place => directory.clone(),
        _ => last.insert((place, open())).1.clone(),
    }
}

/// An open directory of the target.
#[derive(Clone, Copy)]
struct OpenedDirectory<'r, 'o> {
    path: &'r RelPath,
    opened: &'o Arc<OwnedFd>,
}

/// The results of one thread for a request.
struct ComparedPart<'r> {
    transfer: &'r Transfer,
    /// The number of the request.
    request: u64,
    held: Vec<Held>,
    changed: Vec<DeltaCandidate<'r>>,
}

impl<'r> ComparedPart<'r> {
    fn compare(
        &mut self,
        turn: &Turn<'_>,
        number: u32,
        directory: OpenedDirectory<'r, '_>,
        entry: &'r SourceEntry,
    ) -> Verdict {
        let SourceKind::File { bytes, mark } = entry.kind else {
            return Verdict::New;
        };
        let compared = compare(self.transfer, turn, directory, entry, bytes);
        let is_needed = matches!(
            compared,
            Verdict::New | Verdict::Replace(_) | Verdict::Contents(..)
        );
        let Some(SourceMark { inode, ctime }) = mark.filter(|_| is_needed) else {
            return compared;
        };
        // The turn is paused, because the search may wait for other threads that need turns.
        turn.pause();
        let source = SourceVersion {
            bytes,
            mtime: entry.metadata.metadata.mtime,
            ctime,
            inode,
        };
        self.look_for_more(number, directory, &entry.name, &source, compared)
    }

    /// Looks for data of a large file that need not be sent: groups that earlier transfers have stored, and groups of
    /// an old version.
    fn look_for_more(
        &mut self,
        number: u32,
        OpenedDirectory { path, opened }: OpenedDirectory<'r, '_>,
        name: &'r Name,
        source: &SourceVersion,
        compared: Verdict,
    ) -> Verdict {
        let Self {
            transfer, request, ..
        } = *self;
        let name = transfer.target.view.name(path, name);
        let Ok(final_path) = path.join(name) else {
            return compared;
        };
        let held = if transfer.target.will_change_in_place(opened, name) {
            // An existing file that is to be changed in place must not be replaced by a part of an earlier transfer.
            BTreeMap::new()
        } else {
            let until = || {
                let turn = transfer.turn(Task::Read);
                move || turn.is_over()
            };
            let parts = &transfer.parts;
            parts.claim(&final_path, opened, source, transfer.direct, until)
        };
        let left = runs(&held).map(|(first, cvs)| Held {
            request,
            file: number,
            first,
            cvs,
            end: false,
        });
        self.held.extend(left);
        let needed = !matches!(compared, Verdict::Contents(..)) || !held.is_empty();
        let delta = transfer.target.view.policy.rules.delta;
        if delta && needed && DeltaCandidate::has_large_version(opened, name, source.bytes) {
            self.changed.push(DeltaCandidate {
                request,
                file: number,
                directory: path,
                name,
                bytes: source.bytes,
                held: held.into_keys().collect(),
            });
            return Verdict::Delta;
        }
        if held.is_empty() {
            compared
        } else {
            Verdict::Resume
        }
    }
}

fn compare(
    transfer: &Transfer,
    turn: &Turn<'_>,
    OpenedDirectory { path, opened }: OpenedDirectory<'_, '_>,
    entry: &SourceEntry,
    bytes: u64,
) -> Verdict {
    let target = &transfer.target;
    let directory = &**opened;
    let name = target.view.name(path, &entry.name);
    let Ok(there) = FileIdentity::at(directory, name) else {
        return Verdict::New;
    };
    let SourceMetadata { metadata, xattrs } = &entry.metadata;
    if !there.regular {
        return if target.view.must_keep(directory, &there, metadata.mtime) {
            Verdict::Stays
        } else {
            Verdict::Replace(Differences::TYPE)
        };
    }
    let source = SourceFile {
        bytes,
        metadata,
        xattrs: SourceXattrs::Digest(xattrs.as_deref()),
    };
    // A file that cannot be remembered counts as different. If it counted as equal, the transfer could give the
    // source's time to a file that another program has modified in the meantime.
    let is_remembered = || target.compared.remember(directory, name, &there);
    let contents = |differences| {
        let root = is_remembered().then(|| {
            let place = (directory.as_fd(), name);
            contents_root(place, bytes, target.view.policy.rules.kinds, || {
                turn.is_over()
            })
        });
        let none = Verdict::Replace(Differences::CONTENTS);
        root.flatten()
            .map_or(none, |root| Verdict::Contents(differences, root))
    };
    let by_contents = target.view.policy.rules.compare == Compare::Checksum;
    let at = EntryLocation(path, Some(name));
    match target.compare(
        NameAt::new(directory, name),
        &there,
        source,
        by_contents.then_some(contents),
        at,
    ) {
        Verdict::Set(differences) if !is_remembered() => Verdict::Replace(differences),
        verdict => verdict,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{FileExt, PermissionsExt};
    use std::path::Path;

    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    use zmove_chunk::group_cv;
    use zmove_disk::LastingNames;
    use zmove_types::{
        Account, ExtraMetadata, FileId, GROUP_BYTES, GroupSpan, Metadata, MetadataKinds, Name,
        Timestamp,
    };
    use zmove_wire::FileHead;

    use crate::rights::grant::OwnerPermission;
    use crate::store::placer::tests::{
        transfer, transfer_of, transfer_with_one_place, without_a_standstill,
    };

    fn group(directory: &str, entry: SourceEntry) -> Vec<EntryGroup> {
        vec![EntryGroup {
            directory: RelPath::from_bytes(directory.as_bytes()).unwrap(),
            itself: None,
            entries: vec![entry],
        }]
    }

    fn file(name: &str, bytes: u64, metadata: Metadata) -> SourceEntry {
        SourceEntry {
            name: Name::from_bytes(name.as_bytes()).unwrap(),
            kind: SourceKind::File { bytes, mark: None },
            metadata: SourceMetadata {
                metadata,
                xattrs: None,
            },
        }
    }

    fn verdicts(transfer: &Transfer, groups: &[EntryGroup]) -> Vec<Verdict> {
        compare_all(transfer, 1, groups).verdicts
    }

    /// Runs `work` without the capabilities that let root enter any directory. Threads that `work` starts lack them
    /// too.
    fn as_an_ordinary_user<T: Send>(work: impl FnOnce() -> T + Send) -> T {
        let work = || {
            let mut own = capabilities(None).unwrap();
            own.effective
                .remove(CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH);
            set_capabilities(None, own).unwrap();
            work()
        };
        std::thread::scope(|scope| scope.spawn(work).join().unwrap())
    }

    #[test]
    fn a_file_in_a_directory_that_is_closed_to_its_owner_is_found() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("closed");
        std::fs::create_dir(&directory).unwrap();
        std::fs::write(directory.join("f"), "x").unwrap();
        let there = FileIdentity::at(
            std::fs::File::open(&directory).unwrap(),
            &file("f", 1, Metadata::default()).name,
        );
        let groups = group("closed", file("f", 1, there.unwrap().metadata()));
        std::fs::set_permissions(&directory, Permissions::from_mode(0o000)).unwrap();
        let transfer = transfer(home.path());
        let compared = as_an_ordinary_user(|| {
            assert!(
                std::fs::read_dir(&directory).is_err(),
                "the directory is closed"
            );
            verdicts(&transfer, &groups)
        });
        assert_eq!(compared, [Verdict::Same]);
    }

    /// Another user may have created the other link, so the existing file keeps its owner. Only a new file gets the
    /// owner of the source.
    #[test]
    fn a_file_with_other_names_that_is_to_get_another_owner_is_needed() {
        if !rustix::process::geteuid().is_root() {
            let required = std::env::var_os("ZMOVE_REQUIRE_LAB").is_some_and(|value| value == "1");
            assert!(!required, "ZMOVE_REQUIRE_LAB=1, but this is not root");
            return eprintln!("skipped: only root gives files away");
        }
        let others = Differences::OWNER.and(Differences::XATTRS);
        for (compare, xattrs, needed) in [
            (
                Compare::Checksum,
                None,
                Verdict::Replace(Differences::OWNER),
            ),
            (Compare::Quick, Some([1; 32]), Verdict::Replace(others)),
        ] {
            let home = tempfile::tempdir().unwrap();
            let place = home.path().join("f");
            std::fs::write(&place, "x").unwrap();
            std::fs::hard_link(&place, home.path().join("other")).unwrap();
            let directory = OwnedFd::from(std::fs::File::open(home.path()).unwrap());
            let name = file("f", 1, Metadata::default()).name;
            let there = FileIdentity::at(&directory, &name).unwrap();
            let owner = Some(Account {
                id: 5,
                name: "".into(),
            });
            let extra = Some(Arc::new(ExtraMetadata {
                owner,
                ..ExtraMetadata::default()
            }));
            let metadata = Metadata {
                extra,
                ..there.metadata()
            };
            let mut transfer = transfer(home.path());
            transfer.target.view.policy.rules.compare = compare;
            transfer.target.view.policy.rules.kinds = MetadataKinds::ALL;
            transfer.target.view.policy.rules.owning = OwnerPermission::Allowed;
            // A file that has just been changed cannot be remembered and would count as needed, so the test waits.
            while !transfer.target.compared.remember(&directory, &name, &there) {
                std::thread::yield_now();
            }
            let mut entry = file("f", 1, metadata);
            entry.metadata.xattrs = xattrs.map(Box::new);
            let groups = group("", entry);
            assert_eq!(verdicts(&transfer, &groups), [needed], "{compare:?}");
        }
    }

    /// Leaves a part of a large file with an unflushed group, as an interrupted transfer does.
    fn leave_a_part(home: &Path, journals: &Path) -> FileHead {
        let head = FileHead {
            path: RelPath::from_bytes(b"large").unwrap(),
            metadata: Metadata {
                mode: 0o600,
                mtime: Timestamp {
                    seconds: 5,
                    nanos: 6,
                },
                ..Metadata::default()
            },
            bytes: 5 * GROUP_BYTES,
            ctime: Timestamp::default(),
            inode: 7,
            data: None,
        };
        let earlier = transfer_of(1, home, Some(journals.to_owned()));
        let directory = earlier
            .target
            .tree
            .open_directory(&RelPath::root())
            .unwrap();
        let names = LastingNames::new("t");
        let part = earlier
            .parts
            .create(FileId(3), &head.path, &head, &directory, &names)
            .unwrap();
        part.file().set_len(head.bytes).unwrap();
        let span = GroupSpan::of(head.bytes, 0).unwrap();
        let bytes = vec![7; span.len as usize];
        part.file().write_all_at(&bytes, 0).unwrap();
        earlier
            .parts
            .written(FileId(3), 0, group_cv(0, &bytes))
            .unwrap();
        earlier
            .parts
            .left(FileId(3), &FileIdentity::of(part.file()).unwrap());
        head
    }

    #[test]
    fn a_comparing_thread_yields_its_place_to_those_that_read_parts_back() {
        let (home, journals) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let head = leave_a_part(home.path(), journals.path());
        let transfer = transfer_with_one_place(2, home.path(), Some(journals.path().to_owned()));
        let mark = Some(SourceMark {
            inode: head.inode,
            ctime: head.ctime,
        });
        let mut entry = file("large", head.bytes, head.metadata);
        entry.kind = SourceKind::File {
            bytes: head.bytes,
            mark,
        };
        let groups = group("", entry);
        let compared = without_a_standstill(&transfer, || verdicts(&transfer, &groups));
        assert_eq!(compared, [Verdict::Resume]);
    }
}
