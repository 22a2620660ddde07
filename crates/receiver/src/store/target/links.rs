//! Hard links: another name for a file that this transfer has published or found equal, and files at the target that
//! have more names than their sources.
//!
//! A sender offers one name of each of its files, and names the others when that has been published. So two names that
//! are offered are two files, and where they lead to the same one at the target only the first may keep it: the other
//! is needed, and made anew. Names that are not offered do not count: whoever keeps older states of a tree as hard
//! links goes on with them.
//!
//! A link comes with size and time of its file. A first name that leads to another file, or to none since it has
//! failed, gets no other name, and the sender then sends the file itself.
//!
//! Symbolic links and special files come whole under each of their names, those that are not the first with the path of
//! that. Where it does not lead to the same, the name becomes one by itself.
//!
//! **Invariant:** nothing is set of an entry that was there and has other names: these may be anybody's.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::FileType;
use rustix::io::Errno;
use zmove_disk::{
    Descriptor, FileIdentity, Miss, Named, NonRegular, Wanted, hold_new, number_at,
    place_link_to_non_regular, place_special, place_symlink,
};
use zmove_types::{FileNumber, Kinds, Metadata, Name, Special};
use zmove_wire::Operation;

use crate::quota::{Booking, Quota};
use crate::store::failure::{Failure, failed_to};
use crate::store::target::keeper::At;
use crate::store::target::tree::{TargetTree, Xattrs};
use crate::sync::Lock;

/// The files with several names that offered names have been found to lead to. Each takes a few bytes, which are
/// booked, until the end of the transfer.
#[derive(Debug)]
pub(crate) struct Claims(Lock<State>);

#[derive(Debug)]
struct State {
    files: HashSet<FileNumber>,
    held: Booking,
}

/// The memory of a file in the set, with the set's spare room.
const FILE_BYTES: usize = 2 * size_of::<FileNumber>() + 2;

impl Claims {
    pub(crate) fn new(quota: &Quota) -> Self {
        Self(Lock::new(State { files: HashSet::new(), held: quota.book_nothing() }))
    }

    /// Whether a name leads to a file that another name has claimed; if not, it is this one's from now on. Where there
    /// is no room to remember it, it counts as another's.
    pub(crate) fn is_of_another(&self, directory: &OwnedFd, name: &Name, there: &FileIdentity) -> bool {
        if there.names < 2 {
            return false;
        }
        let Ok(number) = number_at(directory, name.as_os_str()) else { return true };
        let mut state = self.0.lock();
        if state.files.contains(&number) || state.held.grow(FILE_BYTES).is_err() {
            return true;
        }
        state.files.insert(number);
        false
    }
}

impl TargetTree {
    /// Has a name be that of a symbolic link or special file; what cannot be kept of it is counted. If it is not the
    /// first name, it leads to the same entry as that, in its directory, if it can.
    pub(crate) fn place_non_regular(
        &self,
        place: (&OwnedFd, &Name),
        (entry, metadata): (NonRegular<'_>, &Metadata),
        first: Option<io::Result<(Arc<OwnedFd>, Name)>>,
        at: At<'_>,
    ) -> Result<(), Failure> {
        let may_make = !matches!(entry, NonRegular::Special(special) if !self.rules.may_make(special));
        let Some(first) = first.filter(|_| may_make && self.rules.kinds.has_any(Kinds::LINKS)) else {
            if !self.stays(place, (entry, metadata), at) {
                self.make_non_regular(place, (entry, metadata), at)?;
            }
            return Ok(());
        };
        let linked = first.and_then(|(from, first)| {
            place_link_to_non_regular((&from, &first), place, entry, self.rules.replaces())
        });
        let error = match linked.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO)) {
            Ok(_) | Err(Errno::EXIST) => return Ok(()),
            Err(error) => error,
        };
        if self.make_non_regular(place, (entry, metadata), at)? {
            let misses = [Miss { kind: Kinds::LINKS, error }];
            self.keeper.note(&self.rules, &Wanted::default(), &misses, at);
        }
        Ok(())
    }

    /// Whether a name leads to such an entry already that has other names too and lacks nothing that it can get.
    fn stays(
        &self,
        (directory, name): (&OwnedFd, &Name),
        (entry, metadata): (NonRegular<'_>, &Metadata),
        at: At<'_>,
    ) -> bool {
        let Ok(there) = FileIdentity::at(directory, name) else { return false };
        if there.names < 2 || !entry.is_at(directory, name) || self.is_of_another(directory, name, &there) {
            return false;
        }
        let metadata = self.rules.of_file(metadata);
        let wanted = self.keeper.wanted(&self.rules, &metadata, None);
        let (mode, kinds) = match entry {
            // a link has no mode, and attributes that root sets alone
            NonRegular::Symlink(_) => (wanted.mode, Kinds::PRIVILEGED),
            NonRegular::Special(_) => (there.mode, Kinds::ANY_XATTR),
        };
        let is_owned = wanted.is_met(there.ids, wanted.mode);
        let stays = mode == wanted.mode
            && (is_owned || !wanted.may_own)
            && self.times.is_kept(directory, there.mtime, metadata.mtime)
            && Xattrs::Known.are_those_of(
                Named(directory.as_fd(), name),
                &metadata,
                self.rules.xattr_kinds().common(kinds),
            );
        if stays && !is_owned {
            self.keeper.note(&self.rules, &wanted, &wanted.missing_owners(there.ids), at);
        }
        stays
    }

    /// Makes a symbolic link or special file, or leaves one that is there and has no other name; returns whether there
    /// is one.
    fn make_non_regular(
        &self,
        place: (&OwnedFd, &Name),
        (entry, metadata): (NonRegular<'_>, &Metadata),
        at: At<'_>,
    ) -> Result<bool, Failure> {
        match entry {
            NonRegular::Symlink(target) => {
                let to = (target, metadata.mtime);
                let is_ours = place_symlink(place.0.as_fd(), place.1, to, self.rules.replaces())
                    .map_err(failed_to(Operation::Symlink))?;
                if is_ours {
                    self.own_link(place, metadata, at).map_err(failed_to(Operation::SetMetadata))?;
                }
                Ok(true)
            }
            NonRegular::Special(special) => {
                self.make_special(place, (special, metadata), at).map_err(failed_to(Operation::Create))
            }
        }
    }

    fn make_special(
        &self,
        (directory, name): (&OwnedFd, &Name),
        (special, metadata): (Special, &Metadata),
        at: At<'_>,
    ) -> io::Result<bool> {
        let metadata = self.rules.of_file(metadata);
        let wanted = self.keeper.wanted(&self.rules, &metadata, Some(metadata.mtime));
        let misses = if self.rules.may_make(special) {
            place_special(directory, name, (special, &wanted), self.rules.replaces())?
        } else {
            vec![Miss { kind: special.kind(), error: Errno::PERM }]
        };
        self.keeper.note(&self.rules, &wanted, &misses, at);
        Ok(!misses.iter().any(|miss| miss.kind == special.kind()))
    }

    /// Gives a link its owner, and the attributes that root sets; what it does not get is counted.
    fn own_link(
        &self,
        (directory, name): (&OwnedFd, &Name),
        metadata: &Metadata,
        at: At<'_>,
    ) -> io::Result<()> {
        // its time is set already
        let mtime = metadata.extra.as_ref().and_then(|extra| extra.atime).map(|_| metadata.mtime);
        let wanted = self.keeper.wanted(&self.rules, metadata, mtime);
        let wanted = Wanted { kinds: wanted.kinds.common(Kinds::PRIVILEGED), ..wanted };
        if metadata.extra.is_none() && wanted.kinds.is_empty() {
            return Ok(());
        }
        let link = hold_new(directory.as_fd(), name, FileType::Symlink)?;
        let misses = wanted.set(Descriptor::PathOnly(link.as_fd()))?;
        self.keeper.note(&self.rules, &wanted, &misses, at);
        Ok(())
    }
}
