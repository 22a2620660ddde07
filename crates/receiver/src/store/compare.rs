//! Which of the offered files are needed.
//!
//! Equal means: a regular file of the same size and, by default, the time that the target's file system makes of the
//! source's modification time; with `--checksum` the same BLAKE3, which the sender decides after it has been told ours. An
//! equal file whose mode differs gets the right one here. With `--update` and `--ignore-existing` a file may stay whatever it
//! holds.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use zmove_disk::{FileIdentity, is_beyond_range, is_held_everywhere};
use zmove_types::{Cv, Metadata, Name, RelPath, Timestamp};
use zmove_wire::{Compare, Held, Offer, OfferedFile, Open, Overwrite, Verdict};

use crate::resume::journal::SourceIdentity;
use crate::store::context::Context;
use crate::store::large_files::delta::{Candidate, runs};
use crate::store::target::existing::contents_root;

/// What is said of one offer.
#[derive(Debug, Default)]
pub(crate) struct Judgement {
    pub(crate) verdicts: Vec<Verdict>,
    /// What earlier transfers have left of its files.
    pub(crate) held: Vec<Held>,
    /// Files that have changed, whose old versions are still to be looked at.
    pub(crate) changed: Vec<Candidate>,
}

/// Judges one offer; what is not looked at when the session has ended counts as needed.
pub(crate) fn judge_all(context: &Context, open: &Open, offer: &Offer) -> Judgement {
    let mut judgement = Judgement::default();
    for group in &offer.groups {
        let directory = context.target.tree.open_directory(&group.directory).ok();
        for file in &group.files {
            let looked_in = directory.as_ref().filter(|_| !context.stopping.load(Ordering::Relaxed));
            let verdict = looked_in.map_or(Verdict::Need, |opened| {
                match judge(context, open.compare, opened, &group.directory, file) {
                    judged @ (Verdict::Need | Verdict::Compare(_)) if file.source.is_some() => judgement
                        .look_for_more(
                            context,
                            (open.delta, offer.offer),
                            opened,
                            &group.directory,
                            file,
                            judged,
                        ),
                    verdict => verdict,
                }
            });
            judgement.verdicts.push(verdict);
        }
    }
    judgement
}

impl Judgement {
    /// A large file is needed, or perhaps: but perhaps not all of it.
    fn look_for_more(
        &mut self,
        context: &Context,
        (delta, offer): (bool, u64),
        directory: &Arc<OwnedFd>,
        path: &RelPath,
        file: &OfferedFile,
        judged: Verdict,
    ) -> Verdict {
        let name = context.target.name(path, &file.name);
        let number = u32::try_from(self.verdicts.len()).expect("offers are bounded");
        let Ok(final_path) = path.join(name) else { return judged };
        let held = if context.is_for_change_in_place(directory, name) {
            // a part would take its place
            BTreeMap::new()
        } else {
            claim(context, directory, &final_path, file)
        };
        let left = runs(&held).map(|(first, cvs)| Held { offer, file: number, first, cvs, end: false });
        self.held.extend(left);
        let needed = judged == Verdict::Need || !held.is_empty();
        if delta && needed && Candidate::is_there(directory, name, file.bytes) {
            let (path, held) = (final_path, held.into_keys().collect());
            self.changed.push(Candidate { offer, file: number, path, bytes: file.bytes, held });
            return Verdict::Delta;
        }
        if held.is_empty() { judged } else { Verdict::Resume }
    }
}

/// What an earlier transfer has left of a large file.
fn claim(
    context: &Context,
    directory: &Arc<OwnedFd>,
    path: &RelPath,
    file: &OfferedFile,
) -> BTreeMap<u32, Cv> {
    let Some(mark) = file.source else { return BTreeMap::new() };
    let ctime = Timestamp { seconds: mark.ctime_seconds, nanos: mark.ctime_nanos };
    let source = SourceIdentity { bytes: file.bytes, mtime: mtime_of(file), ctime, inode: mark.inode };
    context.parts.claim(path, directory, &source, context.direct, || {
        let turn = context.account.turn(&context.stopping);
        move || turn.is_over()
    })
}

fn judge(
    context: &Context,
    compare: Compare,
    opened: &Arc<OwnedFd>,
    path: &RelPath,
    file: &OfferedFile,
) -> Verdict {
    let name = context.target.name(path, &file.name);
    let Ok(there) = FileIdentity::at(opened, name) else { return Verdict::Need };
    if stays(context.overwrite, &there, || context.times.kept(opened, mtime_of(file))) {
        return Verdict::Skip;
    }
    if !there.regular || there.bytes != file.bytes {
        return Verdict::Need;
    }
    match compare {
        Compare::Checksum => {
            let turn = context.account.turn(&context.stopping);
            contents_root(opened.as_fd(), name, || turn.is_over()).map_or(Verdict::Need, Verdict::Compare)
        }
        Compare::Quick => {
            let metadata =
                context.set_ids.of_file(Metadata { mode: file.mode & 0o7777, mtime: mtime_of(file) });
            if context.keep(opened, name, &there, &metadata) { Verdict::Skip } else { Verdict::Need }
        }
    }
}

impl Context {
    /// Whether what is there stays, because it may not be replaced or is a file of that size and time.
    pub(crate) fn is_kept(&self, directory: &OwnedFd, name: &Name, bytes: u64, metadata: &Metadata) -> bool {
        FileIdentity::at(directory, name).is_ok_and(|there| {
            stays(self.overwrite, &there, || self.times.kept(directory, metadata.mtime))
                || there.regular && there.bytes == bytes && self.keep(directory, name, &there, metadata)
        })
    }

    /// Contents of that time stay; the mode is put right. Where that fails, sending the file again will say why.
    fn keep(&self, directory: &OwnedFd, name: &Name, there: &FileIdentity, metadata: &Metadata) -> bool {
        let kept = self.times.is_kept(directory, there.mtime, metadata.mtime)
            && (there.mode == metadata.mode || self.retouch(directory, name, metadata).is_ok());
        if kept {
            self.count_beyond_range(metadata.mtime, || Ok(*there));
        }
        kept
    }

    /// Counts a file whose time the file system does not have. To be called when the file has got its time.
    pub(crate) fn count_beyond_range(
        &self,
        wanted: Timestamp,
        there: impl FnOnce() -> io::Result<FileIdentity>,
    ) {
        if !is_held_everywhere(wanted) && there().is_ok_and(|there| is_beyond_range(there.mtime, wanted)) {
            self.times_beyond_range.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Whether what is there may not be replaced by a file that will have the time `kept`, whatever it holds.
pub(crate) fn stays(overwrite: Overwrite, there: &FileIdentity, kept: impl FnOnce() -> Timestamp) -> bool {
    match overwrite {
        Overwrite::Differing => false,
        Overwrite::Older => there.regular && there.mtime > kept(),
        Overwrite::Nothing => true,
    }
}

fn mtime_of(file: &OfferedFile) -> Timestamp {
    Timestamp { seconds: file.mtime_seconds, nanos: file.mtime_nanos }
}
