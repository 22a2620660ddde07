//! The comparison of offered files with those at the target, to find which are needed.
//!
//! Equal means: a regular file of the same size and, by default, the time that the target's file system makes of the
//! source's modification time; with `--checksum` the same BLAKE3, which the sender compares with its own. An equal file
//! whose mode differs gets the right one here.
//!
//! With `--update` and `--ignore-existing` a file may stay whatever it holds. The receiver obeys both: here, where
//! guessed files come, where links and directories are placed, and once more when a name is given.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use zmove_disk::{FileIdentity, Task, Turn};
use zmove_types::{Cv, RelPath};
use zmove_wire::{Compare, Held, Offer, OfferedFile, SourceMark, Verdict};

use crate::resume::journal::SourceIdentity;
use crate::sharing::Lock;
use crate::store::large_files::delta::{Candidate, runs};
use crate::store::target::keeper::At;
use crate::store::target::tree::{Found, Xattrs, contents_root};
use crate::store::transfer::Transfer;

/// The answer to one offer.
#[derive(Debug, Default)]
pub(crate) struct Judgement {
    pub(crate) verdicts: Vec<Verdict>,
    /// The groups that earlier transfers have left of its files.
    pub(crate) held: Vec<Held>,
    /// Files that have changed, whose old versions are still to be hashed.
    pub(crate) changed: Vec<Candidate>,
}

/// Judges all files of one offer, by several threads where storage answers late; those not yet examined when the
/// session ends count as needed.
pub(crate) fn judge_all(transfer: &Transfer, offer: &Offer) -> Judgement {
    let groups = (0..).zip(&offer.groups);
    let files = groups.flat_map(|(place, group)| group.files.iter().map(move |file| (place, file)));
    let mut verdicts = vec![Verdict::Need; files.clone().count()];
    let waiting = Lock::new((0..).zip(files.zip(&mut verdicts)));
    let opened_last = Lock::new(None);
    let parts = transfer.side_by_side((Task::Look, "zmove-look"), |turn| {
        let mut part = Part::default();
        let mut opened: Option<(usize, Option<Arc<OwnedFd>>)> = None;
        while !turn.is_over() {
            let Some((number, ((place, file), verdict))) = waiting.lock().next() else { break };
            turn.get_help();
            let path = &offer.groups[place].directory;
            let directory = match opened.take() {
                Some((last, directory)) if last == place => directory,
                _ => open_once(&mut opened_last.lock(), place, || {
                    transfer.target.tree.open_own_directory(path).ok()
                }),
            };
            if let Some(directory) = &directory {
                *verdict = part.judge(transfer, turn, (offer.offer, number), (directory, path), file);
            }
            opened = Some((place, directory));
        }
        part
    });
    let mut judgement = Judgement { verdicts, ..Judgement::default() };
    for part in parts {
        judgement.held.extend(part.held);
        judgement.changed.extend(part.changed);
    }
    judgement
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

/// What one thread has found of an offer.
#[derive(Default)]
struct Part {
    held: Vec<Held>,
    changed: Vec<Candidate>,
}

impl Part {
    fn judge(
        &mut self,
        transfer: &Transfer,
        turn: &Turn<'_>,
        (offer, number): (u64, u32),
        place: (&Arc<OwnedFd>, &RelPath),
        file: &OfferedFile,
    ) -> Verdict {
        match judge(transfer, turn, place, file) {
            judged @ (Verdict::Need | Verdict::Compare(_)) if file.source.is_some() => {
                // Give up the core: this may wait for threads with turns of their own.
                turn.pause();
                self.look_for_more(transfer, (offer, number), place, file, judged)
            }
            verdict => verdict,
        }
    }

    /// Looks for what need not be sent of a large file that is, or may be, needed: earlier parts, an old version.
    fn look_for_more(
        &mut self,
        transfer: &Transfer,
        (offer, number): (u64, u32),
        (directory, path): (&Arc<OwnedFd>, &RelPath),
        file: &OfferedFile,
        judged: Verdict,
    ) -> Verdict {
        let name = transfer.target.name(path, &file.name);
        let Ok(final_path) = path.join(name) else { return judged };
        let held = if transfer.target.is_for_change_in_place(directory, name) {
            // A part would take the place of the file that is to be changed.
            BTreeMap::new()
        } else {
            claim(transfer, directory, &final_path, file)
        };
        let left = runs(&held).map(|(first, cvs)| Held { offer, file: number, first, cvs, end: false });
        self.held.extend(left);
        let needed = judged == Verdict::Need || !held.is_empty();
        if transfer.target.rules.delta && needed && Candidate::is_there(directory, name, file.bytes) {
            let (path, held) = (final_path, held.into_keys().collect());
            self.changed.push(Candidate { offer, file: number, path, bytes: file.bytes, held });
            return Verdict::Delta;
        }
        if held.is_empty() { judged } else { Verdict::Resume }
    }
}

/// The groups that an earlier transfer has left of a large file.
fn claim(
    transfer: &Transfer,
    directory: &Arc<OwnedFd>,
    path: &RelPath,
    file: &OfferedFile,
) -> BTreeMap<u32, Cv> {
    let Some(SourceMark { inode, ctime }) = file.source else { return BTreeMap::new() };
    let source = SourceIdentity { bytes: file.bytes, mtime: file.metadata.mtime, ctime, inode };
    transfer.parts.claim(path, directory, &source, transfer.direct, || {
        let turn = transfer.turn(Task::Look);
        move || turn.is_over()
    })
}

fn judge(
    transfer: &Transfer,
    turn: &Turn<'_>,
    (opened, path): (&Arc<OwnedFd>, &RelPath),
    file: &OfferedFile,
) -> Verdict {
    let target = &transfer.target;
    let name = target.name(path, &file.name);
    let Ok(there) = FileIdentity::at(opened, name) else { return Verdict::Need };
    if target.spares(opened, &there, file.metadata.mtime) {
        return Verdict::Skip;
    }
    if !there.regular || there.bytes != file.bytes {
        return Verdict::Need;
    }
    match target.rules.compare {
        // A file that is not remembered could get the source's time with what somebody else has written since.
        Compare::Checksum if !target.judged.remember(opened, name, &there) => Verdict::Need,
        Compare::Checksum => {
            contents_root(opened.as_fd(), name, || turn.is_over()).map_or(Verdict::Need, Verdict::Compare)
        }
        Compare::Quick => {
            let metadata = target.rules.of_file(&file.metadata);
            let wanted = (&*metadata, Xattrs::Digest(file.xattrs.as_deref()));
            match target.hold_against((opened, name), &there, wanted, At(path, Some(name))) {
                Found::Same => Verdict::Skip,
                // what is not remembered could get the source's time with what somebody else has written since
                Found::DiffersBeside if target.judged.remember(opened, name, &there) => Verdict::Retouch,
                Found::DiffersBeside | Found::Differs => Verdict::Need,
            }
        }
    }
}
