//! What is at the target alone: told when the sender says what stays, and removed when it says what goes.
//!
//! **Invariant:** nothing is removed that the sender has not named, nothing outside the target, and nothing through a link.

use std::collections::BinaryHeap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{AtFlags, Dir, FileType};
use rustix::io::Errno;
use zmove_disk::{Tree, is_hidden, remove_entries};
use zmove_types::Name;
use zmove_wire::limits::{
    EXTRA_NAME_BYTES_MAX, EXTRA_NAMES_MAX, KEEPS_OUTSTANDING_MAX, REMOVES_OUTSTANDING_MAX,
};
use zmove_wire::{
    Extra, ExtraName, Extraneous, Fault, FaultCode, Keep, KeptRange, ListedName, Operation, Remove, ToSender,
    WireError,
};

use crate::account::{Account, Held};
use crate::error::SessionError;
use crate::publisher::publish_all;
use crate::store::{Context, Outcome};
use crate::tasks::Workers;

/// The questions of one transfer that are being answered.
#[derive(Debug)]
pub(crate) struct Mirror {
    keeps: usize,
    removes: usize,
    workers: Workers,
}

impl Mirror {
    pub(crate) fn new(account: &Account) -> Self {
        Self { keeps: 0, removes: 0, workers: Workers::new(account) }
    }

    /// Takes the names that stay; the answer comes as an outcome.
    pub(crate) fn keep(
        &mut self,
        context: &Arc<Context>,
        allowed: Extraneous,
        (keep, held): (Keep, Held),
    ) -> Result<(), SessionError> {
        keep.check()?;
        self.keeps += 1;
        if allowed == Extraneous::Stays || self.keeps > KEEPS_OUTSTANDING_MAX {
            return Err(WireError::OutOfOrder { what: "a list of names that stay" }.into());
        }
        self.workers.start_for(context, move |context| {
            let _until_it_is_answered = held;
            let answer = ToSender::Extra(extra(Some(&context.target.tree), &keep));
            context.tell(Outcome::Mirror(answer));
        })
    }

    /// Takes the names that go; the answer comes as an outcome.
    pub(crate) fn remove(
        &mut self,
        context: &Arc<Context>,
        allowed: Extraneous,
        (remove, held): (Remove, Held),
    ) -> Result<(), SessionError> {
        remove.check()?;
        self.removes += 1;
        if allowed == Extraneous::Stays || self.removes > REMOVES_OUTSTANDING_MAX {
            return Err(WireError::OutOfOrder { what: "a list of names that go" }.into());
        }
        self.workers.start_for(context, move |context| {
            let _until_it_is_answered = held;
            // what goes may be all that is left of what is about to come under another name
            publish_all(context);
            let answer = ToSender::Removed { remove: remove.remove, entries: remove_all(context, &remove) };
            context.tell(Outcome::Mirror(answer));
        })
    }

    /// An answer is on its way.
    pub(crate) fn answered(&mut self, answer: &ToSender) {
        match answer {
            ToSender::Removed { .. } => self.removes -= 1,
            _ => self.keeps -= 1,
        }
    }

    /// Waits until nothing is at work any more: what a session removes is gone before the next one begins.
    pub(crate) async fn end(self) {
        self.workers.end().await;
    }

    /// Whether nothing is being answered.
    pub(crate) fn is_idle(&self) -> bool {
        self.keeps == 0 && self.removes == 0
    }
}

fn remove_all(context: &Context, remove: &Remove) -> u64 {
    let mut removed = 0;
    for group in &remove.groups {
        let goes_on = |_: &&ListedName| !context.stopping.load(Ordering::Relaxed);
        let names = group.names.iter().take_while(goes_on).map(|name| &name.0);
        let names = names.filter(|name| !is_hidden(name.as_bytes()));
        removed += remove_entries(&context.target.tree, &group.directory, names, |path, error| {
            let reserved = path.file_name().is_some_and(|name| is_hidden(name.as_bytes()));
            let code = match error.kind() {
                _ if reserved => FaultCode::Reserved,
                io::ErrorKind::CrossesDevices => FaultCode::Mounted,
                _ => FaultCode::os(&error),
            };
            context.tell(Outcome::Fault(Fault { path, operation: Operation::Delete, code }));
        });
    }
    removed
}

/// What else is in the directories where names stay; nothing where the target is not there.
pub(crate) fn extra(tree: Option<&Tree>, keep: &Keep) -> Extra {
    let mut answer = Extra { keep: keep.keep, ..Extra::default() };
    let mut name_bytes = 0;
    for (number, range) in (0..).zip(&keep.ranges) {
        let Some(tree) = tree else { break };
        let room = EXTRA_NAMES_MAX.saturating_sub(answer.names.len());
        let (names, more) = match first_extra(tree, range, room) {
            Ok(found) => found,
            Err(error) => {
                answer.faults.push((number, FaultCode::os(&error)));
                continue;
            }
        };
        let mut told = range.after.clone();
        for (name, directory) in names {
            if name_bytes >= EXTRA_NAME_BYTES_MAX {
                answer.rest = told.map(|name| (number, name));
                return answer;
            }
            name_bytes += name.0.as_bytes().len();
            told = Some(name.clone());
            answer.names.push(ExtraName { range: number, name, directory });
        }
        if more {
            answer.rest = told.map(|name| (number, name));
            return answer;
        }
    }
    answer
}

/// A name, and whether it is a directory.
type Found = (ListedName, bool);

/// The first names of a range that do not stay, so many and one more at most; and whether there are others.
fn first_extra(tree: &Tree, range: &KeptRange, room: usize) -> io::Result<(Vec<Found>, bool)> {
    let directory = match tree.open_directory(&range.directory) {
        Ok(directory) => directory,
        Err(error) => {
            let absent =
                matches!(Errno::from_io_error(&error), Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP));
            return if absent { Ok((Vec::new(), false)) } else { Err(error) };
        }
    };
    let most = room.max(1);
    let (mut found, mut more) = (BinaryHeap::new(), false);
    for entry in Dir::read_from(&directory)? {
        let entry = entry?;
        let bytes = entry.file_name().to_bytes();
        if matches!(bytes, b"." | b"..") || is_hidden(bytes) {
            continue;
        }
        // what has no name that can be told stays
        let Ok(name) = Name::from_bytes(bytes) else { continue };
        if !range.is_extra(&name) || stays_by_another_spelling(&directory, &name, range) {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => {
                let stat = rustix::fs::statat(&directory, name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW);
                stat.map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode))
            }
            known => known,
        };
        found.push((ListedName(name), kind == FileType::Directory));
        if found.len() > most {
            found.pop();
            more = true;
        }
    }
    Ok((found.into_sorted_vec(), more))
}

/// Whether a name that stays may lead to this entry too, on a file system for which upper and lower case are the same. Where
/// that name may be in another range it is taken to be.
fn stays_by_another_spelling(directory: &OwnedFd, name: &Name, range: &KeptRange) -> bool {
    let text = |name: &Name| String::from_utf8_lossy(name.as_bytes()).into_owned();
    let swap_case =
        |c: char| if c.is_ascii_lowercase() { c.to_ascii_uppercase() } else { c.to_ascii_lowercase() };
    let swapped: String = text(name).chars().map(swap_case).collect();
    if swapped.as_bytes() == name.as_bytes() {
        return false;
    }
    let entry = |name: &OsStr| rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).ok();
    let inode = |name: &OsStr| entry(name).map(|stat| (stat.st_dev, stat.st_ino));
    let other = inode(OsStr::new(&swapped));
    if other.is_none() || other != inode(name.as_os_str()) {
        return false;
    }
    let is_whole = range.after.is_none() && range.open;
    let same_letters = |kept: &ListedName| text(&kept.0).to_lowercase() == text(name).to_lowercase();
    !is_whole || range.names.iter().any(same_letters)
}

#[cfg(test)]
mod tests {
    use super::*;
    use zmove_types::RelPath;

    fn name(text: &str) -> ListedName {
        ListedName(Name::from_bytes(text.as_bytes()).unwrap())
    }

    fn keep(names: &[&str], after: Option<&str>) -> Keep {
        let names = names.iter().map(|text| name(text)).collect();
        let range = KeptRange { directory: RelPath::root(), after: after.map(name), names, open: true };
        Keep { keep: 7, ranges: vec![range] }
    }

    #[test]
    fn a_long_answer_goes_on_where_it_ended() {
        let home = tempfile::tempdir().unwrap();
        let count = EXTRA_NAMES_MAX + 10;
        (0..count).for_each(|number| {
            std::fs::File::create(home.path().join(format!("{number:06}"))).unwrap();
        });
        std::fs::create_dir(home.path().join(".zmove-x")).unwrap();
        let tree = Tree::open(home.path()).unwrap();
        let first = extra(Some(&tree), &keep(&["000001"], None));
        assert_eq!((first.names.len(), first.names[0].name.clone()), (EXTRA_NAMES_MAX, name("000000")));
        let (range, last) = first.rest.unwrap();
        assert_eq!((range, &last), (0, &first.names.last().unwrap().name));
        let second = extra(Some(&tree), &keep(&[], Some(&last.0.to_string())));
        assert_eq!((second.names.len(), second.rest), (9, None));
    }

    /// Two names of one file look as one name in two spellings does on a file system that knows no case.
    #[test]
    fn what_stays_under_another_spelling_is_not_extra() {
        let home = tempfile::tempdir().unwrap();
        for (one, other) in [("Foo", "fOO"), ("Bar", "bAR")] {
            std::fs::write(home.path().join(one), "x").unwrap();
            std::fs::hard_link(home.path().join(one), home.path().join(other)).unwrap();
        }
        let tree = Tree::open(home.path()).unwrap();
        let told = |keep: Keep| -> Vec<_> {
            let names = extra(Some(&tree), &keep).names.into_iter();
            names.map(|extra| extra.name.0.to_string()).collect()
        };
        assert_eq!(told(keep(&["foo"], None)), ["Bar", "bAR"]);
        // the name that stays may be in the range before
        assert_eq!(told(keep(&["foo"], Some("A"))), [""; 0]);
    }

    #[test]
    fn a_target_that_is_not_there_has_nothing_else() {
        assert_eq!(extra(None, &keep(&["a"], None)), Extra { keep: 7, ..Extra::default() });
    }
}
