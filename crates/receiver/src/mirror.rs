//! What is at the target alone: told when the sender says what stays, and removed when it says what goes.
//!
//! **Invariant:** nothing is removed that the sender has not named, nothing outside the target, and nothing through a link; nor
//! what a name that stays leads to under another spelling.

mod spared;

use std::collections::BinaryHeap;
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
pub(crate) use crate::mirror::spared::Spared;
use crate::publisher::publish_all;
use crate::store::{Context, Outcome};
use crate::tasks::Workers;

/// The questions of one transfer that are being answered.
#[derive(Debug)]
pub(crate) struct Mirror {
    keeps: usize,
    removes: usize,
    workers: Workers,
    spared: Arc<Spared>,
}

impl Mirror {
    pub(crate) fn new(account: &Account) -> Self {
        Self { keeps: 0, removes: 0, workers: Workers::new(account), spared: Arc::new(Spared::new(account)) }
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
        let spared = Arc::clone(&self.spared);
        self.workers.start_for(context, move |context| {
            let _until_it_is_answered = held;
            let answer = ToSender::Extra(extra(Some(&context.target.tree), &keep, &spared));
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
        let spared = Arc::clone(&self.spared);
        self.workers.start_for(context, move |context| {
            let _until_it_is_answered = held;
            // what goes may be all that is left of what is about to come under another name
            publish_all(context);
            let entries = remove_all(context, &remove, &spared);
            let answer = ToSender::Removed { remove: remove.remove, entries };
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

fn remove_all(context: &Context, remove: &Remove, spared: &Spared) -> u64 {
    let mut removed = 0;
    for group in &remove.groups {
        let stays = spared.among(&context.target.tree, &group.directory);
        let goes_on = |_: &&ListedName| !context.stopping.load(Ordering::Relaxed);
        let names = group.names.iter().take_while(goes_on).map(|name| &name.0);
        let names = names.filter(|name| !is_hidden(name.as_bytes()) && !stays(name));
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
pub(crate) fn extra(tree: Option<&Tree>, keep: &Keep, spared: &Spared) -> Extra {
    let mut answer = Extra { keep: keep.keep, ..Extra::default() };
    let mut name_bytes = 0;
    for (number, range) in (0..).zip(&keep.ranges) {
        let Some(tree) = tree else { break };
        let room = EXTRA_NAMES_MAX.saturating_sub(answer.names.len());
        let (names, more) = match first_extra(tree, range, room, spared) {
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
fn first_extra(
    tree: &Tree,
    range: &KeptRange,
    room: usize,
    spared: &Spared,
) -> io::Result<(Vec<Found>, bool)> {
    let directory = match tree.open_directory(&range.directory) {
        Ok(directory) => directory,
        Err(error) => {
            let absent =
                matches!(Errno::from_io_error(&error), Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP));
            return if absent { Ok((Vec::new(), false)) } else { Err(error) };
        }
    };
    let Listed { found, more, unlisted } = list(&directory, range, room, |_| false)?;
    let is_whole = range.after.is_none() && range.open;
    if is_whole && found.is_empty() {
        return Ok((found, more));
    }
    spared.look_for(&directory, &unlisted)?;
    if spared.is_empty() {
        return Ok((found, more));
    }
    let Listed { found, more, .. } = list(&directory, range, room, |name| spared.has(&directory, name))?;
    Ok((found, more))
}

/// What has been come upon in a directory.
struct Listed {
    found: Vec<Found>,
    more: bool,
    /// Names that stay and are not there, or not in this spelling.
    unlisted: Vec<Name>,
}

fn list(
    directory: &OwnedFd,
    range: &KeptRange,
    room: usize,
    stays: impl Fn(&Name) -> bool,
) -> io::Result<Listed> {
    let most = room.max(1);
    let (mut found, mut more) = (BinaryHeap::new(), false);
    let mut unlisted = vec![true; range.names.len()];
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let bytes = entry.file_name().to_bytes();
        // what has no name that can be told stays
        let Ok(name) = Name::from_bytes(bytes) else { continue };
        if let Ok(kept) = range.names.binary_search_by(|kept| kept.0.cmp(&name)) {
            unlisted[kept] = false;
        }
        if is_hidden(bytes) || !range.is_extra(&name) || stays(&name) {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => {
                let stat = rustix::fs::statat(directory, name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW);
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
    let unlisted = range.names.iter().zip(unlisted).filter(|(_, unlisted)| *unlisted);
    let unlisted = unlisted.map(|(name, _)| name.0.clone()).collect();
    Ok(Listed { found: found.into_sorted_vec(), more, unlisted })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

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
        let first = extra(Some(&tree), &keep(&["000001"], None), &Spared::default());
        assert_eq!((first.names.len(), first.names[0].name.clone()), (EXTRA_NAMES_MAX, name("000000")));
        let (range, last) = first.rest.unwrap();
        assert_eq!((range, &last), (0, &first.names.last().unwrap().name));
        let second = extra(Some(&tree), &keep(&[], Some(&last.0.to_string())), &Spared::default());
        assert_eq!((second.names.len(), second.rest), (9, None));
    }

    /// As a file system that knows no letter case looks names up.
    fn look_caseless(directory: &OwnedFd, name: &OsStr) -> Option<(u64, u64)> {
        let same = |entry: &rustix::fs::DirEntry| {
            let there = entry.file_name().to_string_lossy().to_lowercase();
            there == name.to_string_lossy().to_lowercase()
        };
        let entry = Dir::read_from(directory).unwrap().map(Result::unwrap).find(same)?;
        let stat = rustix::fs::statat(directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW).unwrap();
        Some((stat.st_dev, stat.st_ino))
    }

    fn caseless() -> Spared {
        Spared::by(look_caseless, &Account::default())
    }

    fn told(tree: &Tree, keep: &Keep, spared: &Spared) -> Vec<String> {
        let Extra { names, faults, .. } = extra(Some(tree), keep, spared);
        assert_eq!(faults, []);
        names.into_iter().map(|extra| extra.name.0.to_string()).collect()
    }

    #[test]
    fn what_stays_under_another_spelling_is_not_extra() {
        let home = tempfile::tempdir().unwrap();
        for name in ["Foo", "Отчёт", "Bar", "kept"] {
            std::fs::write(home.path().join(name), "x").unwrap();
        }
        let tree = Tree::open(home.path()).unwrap();
        let names = ["foo", "gone", "kept", "отчёт"];
        assert_eq!(told(&tree, &keep(&names, None), &caseless()), ["Bar"]);
        assert_eq!(told(&tree, &keep(&names, None), &Spared::default()), ["Bar", "Foo", "Отчёт"]);
    }

    /// Its entry has been told as extra by then, and is not removed.
    #[test]
    fn what_stays_may_be_named_in_a_later_range() {
        let home = tempfile::tempdir().unwrap();
        for name in ["Foo/f", "Foo/d/f", "Bar/f"] {
            let path = home.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "x").unwrap();
        }
        // a hard link on a file system that tells letters apart spares nothing
        std::fs::hard_link(home.path().join("Bar/f"), home.path().join("Bar/g")).unwrap();
        let tree = Tree::open(home.path()).unwrap();
        let spared = caseless();
        let mut first = keep(&["a"], None);
        first.ranges[0].open = false;
        assert_eq!(told(&tree, &first, &spared), ["Bar", "Foo"]);
        assert_eq!(told(&tree, &keep(&["foo"], Some("a")), &spared), [""; 0]);
        let stays = |path: &str, text: &str| {
            let path = RelPath::from_bytes(path.as_bytes()).unwrap();
            spared.among(&tree, &path)(&name(text).0)
        };
        assert!(stays("", "Foo") && stays("Foo", "f") && stays("Foo/d", "f"));
        assert!(!stays("", "Bar") && !stays("Bar", "f"));
    }

    /// As some network file systems are, which make up another number for each spelling.
    #[test]
    fn where_inodes_tell_nothing_nothing_is_extra() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("Foo"), "x").unwrap();
        let tree = Tree::open(home.path()).unwrap();
        let made_up = |directory: &OwnedFd, name: &OsStr| {
            let (device, inode) = look_caseless(directory, name)?;
            Some((device, inode + u64::from(name.as_encoded_bytes()[0].is_ascii_uppercase())))
        };
        let spared = Spared::by(made_up, &Account::default());
        let answer = extra(Some(&tree), &keep(&["foo"], None), &spared);
        assert_eq!((answer.names, answer.faults), (vec![], vec![(0, FaultCode::Os(76))]));
        assert!(spared.among(&tree, &RelPath::root())(&name("Foo").0));
    }

    #[test]
    fn a_target_that_is_not_there_has_nothing_else() {
        let told = extra(None, &keep(&["a"], None), &Spared::default());
        assert_eq!(told, Extra { keep: 7, ..Extra::default() });
    }
}
