//! The comparison of offered files with those at the target, to find which are needed.
//!
//! Equal means: a regular file of the same size and, by default, the time that the target's file system makes of the
//! source's modification time; with `--checksum` the same BLAKE3, which the sender compares with its own. An equal file
//! whose mode differs gets the right one here.
//!
//! With `--update` and `--ignore-existing` a file may stay whatever it holds. The receiver obeys both: here, where
//! guessed files come, where links and directories are placed, and once more when a name is given.

mod candidate;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use zmove_disk::{FileIdentity, Task, Turn};
use zmove_types::{Cv, RelPath};
use zmove_wire::{Compare, Held, Offer, OfferedFile, SourceMark, Verdict};

use self::candidate::{Candidate, runs};
use crate::resume::journal::SourceVersion;
use crate::store::target::keeper::At;
use crate::store::target::tree::{Found, Xattrs, contents_root};
use crate::store::transfer::Transfer;
use zmove_types::Lock;

/// The answer to one offer.
#[derive(Debug, Default)]
pub(crate) struct Comparison<'o> {
    pub(crate) verdicts: Vec<Verdict>,
    /// The groups that earlier transfers have left of its files.
    pub(crate) held: Vec<Held>,
    /// Files that have changed, whose old versions are still to be hashed.
    pub(crate) changed: Vec<Candidate<'o>>,
}

/// Judges all files of one offer, by several threads where storage answers late; those not yet examined when the
/// session ends count as needed.
pub(crate) fn compare_all<'o>(transfer: &'o Transfer, offer: &'o Offer) -> Comparison<'o> {
    let groups = (0..).zip(&offer.groups);
    let files = groups.flat_map(|(place, group)| group.files.iter().map(move |file| (place, file)));
    let mut verdicts = vec![Verdict::Need; files.clone().count()];
    let waiting = Lock::new((0..).zip(files.zip(&mut verdicts)));
    let opened_last = Lock::new(None);
    let parts = transfer.side_by_side((Task::Look, "zmove-look"), |turn| {
        let mut part = Part::default();
        let mut opened: Option<(usize, Option<Arc<OwnedFd>>)> = None;
        while !turn.is_over() {
            let Some((number, ((place, file), verdict))) = waiting.lock().next() else {
                break;
            };
            turn.get_help();
            let path = &offer.groups[place].directory;
            let directory = match opened.take() {
                Some((last, directory)) if last == place => directory,
                _ => open_once(&mut opened_last.lock(), place, || {
                    let directory = transfer.target.tree.open_own_directory(path).ok()?;
                    transfer.enter(path, &directory).ok().map(|()| directory)
                }),
            };
            if let Some(directory) = &directory {
                *verdict = part.compare(
                    transfer,
                    turn,
                    (offer.offer, number),
                    (directory, path),
                    file,
                );
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

/// Opens a directory into which other threads look as well: all but the first wait for it.
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

/// The findings of one thread about an offer.
#[derive(Default)]
struct Part<'o> {
    held: Vec<Held>,
    changed: Vec<Candidate<'o>>,
}

impl<'o> Part<'o> {
    fn compare(
        &mut self,
        transfer: &'o Transfer,
        turn: &Turn<'_>,
        (offer, number): (u64, u32),
        place: (&Arc<OwnedFd>, &'o RelPath),
        file: &'o OfferedFile,
    ) -> Verdict {
        match compare(transfer, turn, place, file) {
            compared @ (Verdict::Need | Verdict::Compare(_)) if file.source.is_some() => {
                // Give up the core: this may wait for threads with turns of their own.
                turn.pause();
                self.look_for_more(transfer, (offer, number), place, file, compared)
            }
            verdict => verdict,
        }
    }

    /// Looks for what need not be sent of a large file that is, or may be, needed: earlier parts, an old version.
    fn look_for_more(
        &mut self,
        transfer: &'o Transfer,
        (offer, number): (u64, u32),
        (directory, path): (&Arc<OwnedFd>, &'o RelPath),
        file: &'o OfferedFile,
        compared: Verdict,
    ) -> Verdict {
        let name = transfer.target.name(path, &file.name);
        let Ok(final_path) = path.join(name) else {
            return compared;
        };
        let held = if transfer.target.is_for_change_in_place(directory, name) {
            // A part would take the place of the file that is to be changed.
            BTreeMap::new()
        } else {
            claim(transfer, directory, &final_path, file)
        };
        let left = runs(&held).map(|(first, cvs)| Held {
            offer,
            file: number,
            first,
            cvs,
            end: false,
        });
        self.held.extend(left);
        let needed = compared == Verdict::Need || !held.is_empty();
        if transfer.target.rules.delta && needed && Candidate::is_there(directory, name, file.bytes)
        {
            self.changed.push(Candidate {
                offer,
                file: number,
                directory: path,
                name,
                bytes: file.bytes,
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

/// The groups that an earlier transfer has left of a large file.
fn claim(
    transfer: &Transfer,
    directory: &Arc<OwnedFd>,
    path: &RelPath,
    file: &OfferedFile,
) -> BTreeMap<u32, Cv> {
    let Some(SourceMark { inode, ctime }) = file.source else {
        return BTreeMap::new();
    };
    let source = SourceVersion {
        bytes: file.bytes,
        mtime: file.metadata.mtime,
        ctime,
        inode,
    };
    transfer
        .parts
        .claim(path, directory, &source, transfer.direct, || {
            let turn = transfer.turn(Task::Look);
            move || turn.is_over()
        })
}

fn compare(
    transfer: &Transfer,
    turn: &Turn<'_>,
    (opened, path): (&Arc<OwnedFd>, &RelPath),
    file: &OfferedFile,
) -> Verdict {
    let target = &transfer.target;
    let name = target.name(path, &file.name);
    let Ok(there) = FileIdentity::at(opened, name) else {
        return Verdict::Need;
    };
    if target.spares(opened, &there, file.metadata.mtime) {
        return Verdict::Skip;
    }
    if !there.regular || there.bytes != file.bytes {
        return Verdict::Need;
    }
    match target.rules.compare {
        // A file that is not remembered could get the source's time with what somebody else has written since.
        Compare::Checksum
            if target.keeps_its_owner(&there, &file.metadata)
                || target.is_of_another(opened, name, &there)
                || !target.compared.remember(opened, name, &there) =>
        {
            Verdict::Need
        }
        Compare::Checksum => {
            let root = contents_root(
                (opened.as_fd(), name),
                file.bytes,
                target.rules.kinds,
                || turn.is_over(),
            );
            root.map_or(Verdict::Need, Verdict::Compare)
        }
        Compare::Quick => {
            let metadata = target.rules.of_existing_file(&file.metadata, &there);
            let wanted = (&*metadata, Xattrs::Digest(file.xattrs.as_deref()));
            match target.compare_metadata((opened, name), &there, wanted, At(path, Some(name))) {
                Found::Same => Verdict::Skip,
                Found::DiffersBeside if target.keeps_its_owner(&there, &metadata) => Verdict::Need,
                // what is not remembered could get the source's time with what somebody else has written since
                Found::DiffersBeside if target.compared.remember(opened, name, &there) => {
                    Verdict::Retouch
                }
                Found::DiffersBeside | Found::Differs => Verdict::Need,
            }
        }
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
        Account, Extra, FileId, GROUP_BYTES, GroupSpan, Kinds, Metadata, Name, Timestamp,
    };
    use zmove_wire::{FileHead, OfferedGroup};

    use crate::grant::Owning;
    use crate::store::placer::tests::{
        transfer, transfer_of, transfer_with_one_place, without_a_standstill,
    };

    fn offer(directory: &str, file: OfferedFile) -> Offer {
        let directory = RelPath::from_bytes(directory.as_bytes()).unwrap();
        Offer {
            offer: 1,
            groups: vec![OfferedGroup {
                directory,
                files: vec![file],
            }],
        }
    }

    fn named(name: &str, metadata: Metadata) -> OfferedFile {
        OfferedFile {
            name: Name::from_bytes(name.as_bytes()).unwrap(),
            bytes: 1,
            metadata,
            source: None,
            xattrs: None,
        }
    }

    /// Root may look into any directory: it is to be as anybody else, for this thread and those that it starts.
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
            &named("f", Metadata::default()).name,
        );
        let offer = offer("closed", named("f", there.unwrap().metadata()));
        std::fs::set_permissions(&directory, Permissions::from_mode(0o000)).unwrap();
        let transfer = transfer(home.path());
        let compared = as_an_ordinary_user(|| {
            assert!(
                std::fs::read_dir(&directory).is_err(),
                "the directory is closed"
            );
            compare_all(&transfer, &offer)
        });
        assert_eq!(compared.verdicts, [Verdict::Skip]);
    }

    /// Somebody else may have made the other name: the file keeps its owner, and only a new one gets that of the
    /// source.
    #[test]
    fn a_file_with_other_names_that_is_to_get_another_owner_is_needed() {
        if !rustix::process::geteuid().is_root() {
            let required = std::env::var_os("ZMOVE_REQUIRE_LAB").is_some_and(|value| value == "1");
            assert!(!required, "ZMOVE_REQUIRE_LAB=1, but this is not root");
            return eprintln!("skipped: only root gives files away");
        }
        for (compare, xattrs) in [(Compare::Checksum, None), (Compare::Quick, Some([1; 32]))] {
            let home = tempfile::tempdir().unwrap();
            let place = home.path().join("f");
            std::fs::write(&place, "x").unwrap();
            std::fs::hard_link(&place, home.path().join("other")).unwrap();
            let directory = OwnedFd::from(std::fs::File::open(home.path()).unwrap());
            let name = named("f", Metadata::default()).name;
            let there = FileIdentity::at(&directory, &name).unwrap();
            let owner = Some(Account {
                id: 5,
                name: "".into(),
            });
            let extra = Some(Arc::new(Extra {
                owner,
                ..Extra::default()
            }));
            let metadata = Metadata {
                extra,
                ..there.metadata()
            };
            let mut transfer = transfer(home.path());
            transfer.target.rules.compare = compare;
            transfer.target.rules.kinds = Kinds::ALL;
            transfer.target.rules.owning = Owning::Allowed;
            // one that was changed just now is needed anyway
            while !transfer.target.compared.remember(&directory, &name, &there) {
                std::thread::yield_now();
            }
            let offer = offer(
                "",
                OfferedFile {
                    xattrs: xattrs.map(Box::new),
                    ..named("f", metadata)
                },
            );
            assert_eq!(
                compare_all(&transfer, &offer).verdicts,
                [Verdict::Need],
                "{compare:?}"
            );
        }
    }

    /// What an earlier transfer has left of a large file that it has not flushed.
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
            .create(FileId(3), (&head.path, &head), &directory, &names)
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
    fn who_looks_gives_its_place_to_those_who_read_back_what_is_left() {
        let (home, journals) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let head = leave_a_part(home.path(), journals.path());
        let transfer = transfer_with_one_place(2, home.path(), Some(journals.path().to_owned()));
        let source = Some(SourceMark {
            inode: head.inode,
            ctime: head.ctime,
        });
        let offer = offer(
            "",
            OfferedFile {
                bytes: head.bytes,
                source,
                ..named("large", head.metadata)
            },
        );
        let compared = without_a_standstill(&transfer, || compare_all(&transfer, &offer));
        assert_eq!(compared.verdicts, [Verdict::Resume]);
    }
}
