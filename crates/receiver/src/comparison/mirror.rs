//! Entries that exist only at the target. The receiver reports them when the sender lists the names of the source, and
//! removes them on a `Remove` request.
//!
//! **Invariant:** only names in such a request are removed. No entry is removed outside the target or through a link,
//! or if a source name refers to it under another spelling. The number of removals stays within the budget of the run.

pub(crate) mod aliased;
mod work_budget;

use std::collections::BinaryHeap;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::FileType;
use rustix::io::Errno;
use zmove_disk::{Task, Tree, is_hidden, list_directory, remove_entries_within, stat_at};
use zmove_types::{ALLOCATION_BYTES, Name, RelPath};
use zmove_wire::limits::{EXTRANEOUS_NAME_BYTES_MAX, EXTRANEOUS_NAMES_MAX};
use zmove_wire::{ExtraneousName, ExtraneousNames, Fault, FaultCode, NameRange, Operation, Remove};

use crate::comparison::mirror::aliased::AliasedEntries;
pub(crate) use crate::comparison::mirror::work_budget::WorkBudget;
use crate::store::publishing::publish_all;
use crate::store::reports::ThreadReport;
use crate::store::transfer::Transfer;

/// Removes the listed names. Returns the number of entries removed.
pub(crate) fn remove_all(transfer: &Transfer, remove: &Remove) -> u64 {
    // Stored files are published first. A removed entry may be needed to publish an entry in another directory.
    publish_all(transfer);
    let mut removed = 0;
    let budget = &*transfer.removals;
    let turn = transfer.turn(Task::Write);
    let has_ended = || turn.is_over();
    for group in remove.groups.iter().take_while(|_| !has_ended()) {
        let stays = transfer
            .aliased
            .among(&transfer.target.tree, &group.directory, has_ended);
        let names = group.names.iter().take_while(|_| !has_ended());
        let names = names.filter(|name| !is_hidden(name.as_bytes()) && !stays(name));
        let failed = |path: RelPath, error: io::Error| {
            let reserved = path
                .file_name()
                .is_some_and(|name| is_hidden(name.as_bytes()));
            let code = match error.kind() {
                io::ErrorKind::QuotaExceeded if budget.left() == 0 => FaultCode::RemovedEnough,
                _ if reserved => FaultCode::Reserved,
                io::ErrorKind::CrossesDevices => FaultCode::Mounted,
                _ => FaultCode::os(&error),
            };
            transfer.reports.report(ThreadReport::Fault(Fault {
                path,
                operation: Operation::Delete,
                code,
            }));
        };
        let tree = &transfer.target.tree;
        removed += remove_entries_within(budget, has_ended, tree, &group.directory, names, failed);
    }
    removed
}

/// Returns the entries in these ranges that do not exist at the source. Returns none if the target does not exist.
///
/// The memory for the names is reserved. If the reservation fails, the directory counts as one that cannot be listed.
/// If the session ends first, the answer is incomplete.
pub(crate) fn extraneous(
    tree: Option<&Tree>,
    ranges: &[NameRange],
    aliased: &AliasedEntries,
    budget: &mut WorkBudget<'_>,
) -> ExtraneousNames {
    extraneous_within(AnswerRoom::WHOLE, tree, ranges, aliased, budget)
}

fn extraneous_within(
    whole: AnswerRoom,
    tree: Option<&Tree>,
    ranges: &[NameRange],
    aliased: &AliasedEntries,
    budget: &mut WorkBudget<'_>,
) -> ExtraneousNames {
    let mut answer = ExtraneousNames::default();
    let mut name_bytes = 0;
    for (number, range) in (0..).zip(ranges) {
        let Some(tree) = tree.filter(|_| !budget.is_over()) else {
            break;
        };
        let room = AnswerRoom {
            names: whole.names.saturating_sub(answer.names.len()),
            name_bytes: whole.name_bytes.saturating_sub(name_bytes),
        };
        let charged = budget.charged();
        let ExtraNames { names, more, .. } = match first_extra(tree, range, room, aliased, budget) {
            Ok(found) => found,
            Err(error) => {
                budget.shrink_to(charged);
                answer.faults.push((number, FaultCode::os(&error)));
                continue;
            }
        };
        let mut told = range.after.clone();
        let mut names = names.into_sorted_vec();
        names.dedup(); // some file systems list a name twice
        for (name, directory) in names {
            if name_bytes >= whole.name_bytes {
                answer.rest = told.map(|name| (number, name));
                return answer;
            }
            name_bytes += name.as_bytes().len();
            told = Some(name.clone());
            answer.names.push(ExtraneousName {
                range: number,
                name,
                directory,
            });
        }
        if more {
            answer.rest = told.map(|name| (number, name));
            return answer;
        }
    }
    answer
}

/// The space left in an answer.
#[derive(Clone, Copy)]
struct AnswerRoom {
    names: usize,
    name_bytes: usize,
}

impl AnswerRoom {
    /// The space in an empty answer.
    const WHOLE: Self = Self {
        names: EXTRANEOUS_NAMES_MAX,
        name_bytes: EXTRANEOUS_NAME_BYTES_MAX,
    };
}

/// The first names in a range that do not exist at the source. The flag says whether the name belongs to a directory.
#[derive(Default)]
struct ExtraNames {
    names: BinaryHeap<(Name, bool)>,
    name_bytes: usize,
    /// Whether the range contains more such names.
    more: bool,
}

impl ExtraNames {
    /// Adds a name. If the answer has no space for all names, drops the last names, but keeps at least one.
    fn take(
        &mut self,
        name: Name,
        directory: bool,
        room: AnswerRoom,
        budget: &mut WorkBudget<'_>,
    ) -> io::Result<()> {
        budget.grow(name_takes(&name))?;
        self.name_bytes += name.as_bytes().len();
        self.names.push((name, directory));
        while self.names.len() > room.names.max(1) || self.has_bytes_over(room.name_bytes) {
            let Some((last, _)) = self.names.pop() else {
                break;
            };
            budget.shrink(name_takes(&last));
            self.name_bytes -= last.as_bytes().len();
            self.more = true;
        }
        Ok(())
    }

    /// Returns whether the names without the last one already fill `room`. The last name may exceed it.
    fn has_bytes_over(&self, room: usize) -> bool {
        let last = self
            .names
            .peek()
            .map_or(0, |(last, _)| last.as_bytes().len());
        self.names.len() > 1 && self.name_bytes - last >= room
    }
}

/// Memory used by a name in an answer and by its copy in [`ExtraNames`], including the allocator's overhead.
fn name_takes(name: &Name) -> usize {
    size_of::<ExtraneousName>()
        + size_of::<(Name, bool)>()
        + ALLOCATION_BYTES
        + name.as_bytes().len()
}

fn first_extra(
    tree: &Tree,
    range: &NameRange,
    room: AnswerRoom,
    aliased: &AliasedEntries,
    budget: &mut WorkBudget<'_>,
) -> io::Result<ExtraNames> {
    let directory = match tree.open_directory(&range.directory) {
        Ok(directory) => directory,
        Err(error) => {
            let absent = matches!(
                Errno::from_io_error(&error),
                Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP)
            );
            return if absent {
                Ok(ExtraNames::default())
            } else {
                Err(error)
            };
        }
    };
    // One flag for each name of the source, each of one byte. A flag is cleared when the listing contains the name in
    // the same spelling.
    budget.grow(range.names.len())?;
    let mut unlisted = vec![true; range.names.len()];
    let charged = budget.charged();
    let mut found = list(&directory, range, room, budget, &mut unlisted, |_| false)?;
    let is_whole = range.after.is_none() && range.open;
    if !is_whole || !found.names.is_empty() {
        let names = range
            .names
            .iter()
            .zip(&unlisted)
            .filter(|(_, unlisted)| **unlisted);
        aliased.look_for(&directory, names.map(|(name, _)| name), budget)?;
        if !aliased.is_empty() {
            drop(found);
            budget.shrink_to(charged);
            let stays = |name: &Name| aliased.has(&directory, name);
            found = list(&directory, range, room, budget, &mut unlisted, stays)?;
        }
    }
    drop(unlisted);
    budget.shrink(range.names.len());
    Ok(found)
}

fn list(
    directory: &OwnedFd,
    range: &NameRange,
    room: AnswerRoom,
    budget: &mut WorkBudget<'_>,
    unlisted: &mut [bool],
    stays: impl Fn(&Name) -> bool,
) -> io::Result<ExtraNames> {
    let mut found = ExtraNames::default();
    for entry in list_directory(directory)? {
        budget.count_entry()?;
        let entry = entry?;
        let bytes = entry.file_name().to_bytes();
        // If a name cannot be sent to the sender, its entry is kept.
        let Ok(name) = Name::from_bytes(bytes) else {
            continue;
        };
        if let Ok(kept) = range.names.binary_search_by(|kept| kept.cmp(&name)) {
            unlisted[kept] = false;
        }
        if is_hidden(bytes) || !range.is_extra(&name) || stays(&name) {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => {
                let stat = stat_at(directory, &name);
                stat.map_or(FileType::Unknown, |stat| {
                    FileType::from_raw_mode(stat.st_mode)
                })
            }
            known => known,
        };
        found.take(name, kind == FileType::Directory, room, budget)?;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::rights::quota::{Charge, Quota};
    use zmove_disk::{StorageThreads, number_at};
    use zmove_types::{FileNumber, RelPath};

    fn no_spared() -> AliasedEntries {
        AliasedEntries::new(&Quota::default())
    }

    fn name(text: &str) -> Name {
        Name::from_bytes(text.as_bytes()).unwrap()
    }

    fn names_of(names: &[&str], after: Option<&str>) -> [NameRange; 1] {
        let names = names.iter().map(|text| name(text)).collect();
        [NameRange {
            directory: RelPath::root(),
            after: after.map(name),
            names,
            open: true,
        }]
    }

    fn extra(
        tree: Option<&Tree>,
        ranges: &[NameRange],
        aliased: &AliasedEntries,
    ) -> ExtraneousNames {
        extra_on(&mut Quota::default().empty_charge(), tree, ranges, aliased)
    }

    /// Returns the answer for a session that has not ended.
    fn extra_on(
        held: &mut Charge,
        tree: Option<&Tree>,
        ranges: &[NameRange],
        aliased: &AliasedEntries,
    ) -> ExtraneousNames {
        with_budget(held, |budget| extraneous(tree, ranges, aliased, budget))
    }

    fn with_budget<T>(held: &mut Charge, work: impl FnOnce(&mut WorkBudget<'_>) -> T) -> T {
        let (threads, stopping) = (StorageThreads::limited_to_cores(), AtomicBool::new(false));
        work(&mut WorkBudget::new(
            threads.turn(Task::Read, &stopping),
            held,
        ))
    }

    /// Returns an answer that has less space than in a session.
    fn extra_within(
        room: AnswerRoom,
        held: &mut Charge,
        tree: &Tree,
        ranges: &[NameRange],
    ) -> ExtraneousNames {
        with_budget(held, |budget| {
            extraneous_within(room, Some(tree), ranges, &no_spared(), budget)
        })
    }

    /// The memory of the answer is limited to that of the names in it.
    #[test]
    fn what_an_answer_takes_is_bounded_and_booked() {
        let home = tempfile::tempdir().unwrap();
        let room = AnswerRoom {
            name_bytes: 10_000,
            ..AnswerRoom::WHOLE
        };
        let count = room.name_bytes / 250 + 5;
        for number in 0..count {
            std::fs::File::create(home.path().join(format!("{number:0250}"))).unwrap();
        }
        let tree = Tree::open(home.path()).unwrap();
        let quota = Quota::default();
        let mut held = quota.empty_charge();
        let mut told = extra_within(room, &mut held, &tree, &names_of(&[], None));
        let takes: usize = told.names.iter().map(|extra| name_takes(&extra.name)).sum();
        assert_eq!(held.amount(), takes);
        assert!(takes < 2 * room.name_bytes);
        let (_, last) = told.rest.unwrap();
        let after = names_of(&[], Some(&last.to_string()));
        let rest = extra_within(room, &mut quota.empty_charge(), &tree, &after);
        told.names.extend(rest.names);
        assert_eq!((told.names.len(), rest.rest), (count, None));
        assert!(told.names.is_sorted_by(|one, next| one.name < next.name));
    }

    /// Only a few entries are read until the thread notices the end of the session.
    #[test]
    fn nothing_is_listed_for_a_session_that_has_ended() {
        let home = tempfile::tempdir().unwrap();
        for number in 0..1000 {
            std::fs::File::create(home.path().join(format!("{number}"))).unwrap();
        }
        let tree = Tree::open(home.path()).unwrap();
        let (threads, stopping) = (StorageThreads::limited_to_cores(), AtomicBool::new(false));
        let mut held = Quota::default().empty_charge();
        let mut budget = WorkBudget::new(threads.turn(Task::Read, &stopping), &mut held);
        let directory = tree.open_directory(&RelPath::root()).unwrap();
        let mut look = || {
            let NameRange { names, .. } = &names_of(&["a"], None)[0];
            let room = AnswerRoom {
                names: 2000,
                name_bytes: 20_000,
            };
            let looked = std::cell::Cell::new(0);
            let listed = list(
                &directory,
                &names_of(&[], None)[0],
                room,
                &mut budget,
                &mut [],
                |_| {
                    looked.set(looked.get() + 1);
                    false
                },
            );
            let error = |error| Errno::from_io_error(&error);
            let many: Vec<_> = std::iter::repeat_n(&names[0], 1000).collect();
            let found = no_spared().look_for(&directory, many.into_iter(), &mut budget);
            (
                looked.get(),
                listed.map(drop).map_err(error),
                found.map_err(error),
            )
        };
        assert_eq!(look(), (1000, Ok(()), Ok(())));
        stopping.store(true, Ordering::Relaxed);
        let (looked, listed, found) = look();
        assert_eq!(
            (listed, found),
            (Err(Some(Errno::CANCELED)), Err(Some(Errno::CANCELED)))
        );
        assert!(looked < 256, "{looked}");
        let told = extraneous(Some(&tree), &names_of(&[], None), &no_spared(), &mut budget);
        assert_eq!(told, ExtraneousNames::default());
    }

    #[test]
    fn names_for_which_there_is_no_room_are_a_directory_that_cannot_be_listed() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("a"), "x").unwrap();
        let limits = crate::Limits {
            memory_per_identity: zmove_types::ByteCount(10),
            ..crate::Limits::default()
        };
        let quota = crate::rights::quota::Quotas::default()
            .of(zmove_transport::Fingerprint([1; 32]), &limits);
        let mut held = quota.empty_charge();
        let tree = Tree::open(home.path()).unwrap();
        let told = extra_on(&mut held, Some(&tree), &names_of(&[], None), &no_spared());
        assert_eq!(told.faults, [(0, FaultCode::os(&Errno::NOMEM.into()))]);
        assert_eq!(
            (told.names, held.amount(), quota.memory_held()),
            (vec![], 0, 0)
        );
    }

    #[test]
    fn a_long_answer_goes_on_where_it_ended() {
        let home = tempfile::tempdir().unwrap();
        let room = AnswerRoom {
            names: 50,
            ..AnswerRoom::WHOLE
        };
        (0..60).for_each(|number| {
            std::fs::File::create(home.path().join(format!("{number:06}"))).unwrap();
        });
        std::fs::create_dir(home.path().join(".zmove-x")).unwrap();
        let tree = Tree::open(home.path()).unwrap();
        let answer = |ranges: &[NameRange]| {
            let mut held = Quota::default().empty_charge();
            extra_within(room, &mut held, &tree, ranges)
        };
        let first = answer(&names_of(&["000001"], None));
        assert_eq!(
            (first.names.len(), first.names[0].name.clone()),
            (50, name("000000"))
        );
        let (range, last) = first.rest.unwrap();
        assert_eq!((range, &last), (0, &first.names.last().unwrap().name));
        let second = answer(&names_of(&[], Some(&last.to_string())));
        assert_eq!((second.names.len(), second.rest), (9, None));
    }

    /// Looks up a name as on a file system that ignores letter case.
    fn look_caseless(directory: &OwnedFd, name: &OsStr) -> Option<FileNumber> {
        let same = |entry: &rustix::fs::DirEntry| {
            let there = entry.file_name().to_string_lossy().to_lowercase();
            there == name.to_string_lossy().to_lowercase()
        };
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
        // The directory may be open with `O_PATH`, so it is reopened for reading.
        let readable =
            rustix::fs::openat(directory, ".", flags, rustix::fs::Mode::empty()).unwrap();
        let entry = rustix::fs::Dir::new(readable)
            .unwrap()
            .map(Result::unwrap)
            .find(same)?;
        number_at(directory, OsStr::from_bytes(entry.file_name().to_bytes())).ok()
    }

    fn caseless() -> AliasedEntries {
        AliasedEntries::by(look_caseless, &Quota::default())
    }

    fn told(tree: &Tree, ranges: &[NameRange], aliased: &AliasedEntries) -> Vec<String> {
        let ExtraneousNames { names, faults, .. } = extra(Some(tree), ranges, aliased);
        assert_eq!(faults, []);
        names
            .into_iter()
            .map(|extra| extra.name.to_string())
            .collect()
    }

    #[test]
    fn what_stays_under_another_spelling_is_not_extra() {
        let home = tempfile::tempdir().unwrap();
        for name in ["Foo", "Отчёт", "Bar", "kept"] {
            std::fs::write(home.path().join(name), "x").unwrap();
        }
        let tree = Tree::open(home.path()).unwrap();
        let names = ["foo", "gone", "kept", "отчёт"];
        assert_eq!(told(&tree, &names_of(&names, None), &caseless()), ["Bar"]);
        assert_eq!(
            told(&tree, &names_of(&names, None), &no_spared()),
            ["Bar", "Foo", "Отчёт"]
        );
    }

    /// One name out of a thousand is looked up. Its memory is reserved and then released.
    #[test]
    fn what_is_looked_for_is_booked_and_may_be_too_much() {
        let home = tempfile::tempdir().unwrap();
        for number in 0..1000 {
            std::fs::write(home.path().join(format!("Foo{number}")), "x").unwrap();
        }
        let tree = Tree::open(home.path()).unwrap();
        let asked = names_of(&["foo7", "gone"], None);
        let quota = |bytes| {
            let limits = crate::Limits {
                memory_per_identity: zmove_types::ByteCount(bytes),
                ..crate::Limits::default()
            };
            crate::rights::quota::Quotas::default()
                .of(zmove_transport::Fingerprint([1; 32]), &limits)
        };
        let look = |found: usize| {
            let quota = quota((2 + found * aliased::FOUND_BYTES) as u64);
            let aliased = AliasedEntries::by(look_caseless, &quota);
            let mut held = quota.charge_memory(2).unwrap();
            let directory = tree.open_directory(&RelPath::root()).unwrap();
            let names = asked[0].names.iter();
            let looked = with_budget(&mut held, |budget| {
                aliased.look_for(&directory, names, budget)
            });
            looked
                .map(|()| held.amount())
                .map_err(|error| Errno::from_io_error(&error))
        };
        assert_eq!((look(0), look(1)), (Err(Some(Errno::NOMEM)), Ok(2)));
        let quota = quota(1 << 20);
        let mut held = quota.empty_charge();
        let aliased = AliasedEntries::by(look_caseless, &Quota::default());
        let told = extra_on(&mut held, Some(&tree), &asked, &aliased);
        let takes: usize = told.names.iter().map(|extra| name_takes(&extra.name)).sum();
        assert_eq!((told.names.len(), held.amount()), (999, takes));
    }

    /// An earlier answer has reported the entry as extra, but it must not be removed.
    #[test]
    fn what_stays_may_be_named_in_a_later_range() {
        let home = tempfile::tempdir().unwrap();
        for name in ["Foo/f", "Foo/d/f", "Bar/f"] {
            let path = home.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "x").unwrap();
        }
        // On a file system that distinguishes letter case, a hard link does not protect an entry.
        std::fs::hard_link(home.path().join("Bar/f"), home.path().join("Bar/g")).unwrap();
        let tree = Tree::open(home.path()).unwrap();
        let aliased = caseless();
        let mut first = names_of(&["a"], None);
        first[0].open = false;
        assert_eq!(told(&tree, &first, &aliased), ["Bar", "Foo"]);
        assert_eq!(
            told(&tree, &names_of(&["foo"], Some("a")), &aliased),
            [""; 0]
        );
        let stays = |path: &str, text: &str| {
            let path = RelPath::from_bytes(path.as_bytes()).unwrap();
            aliased.among(&tree, &path, || false)(&name(text))
        };
        assert!(stays("", "Foo") && stays("Foo", "f") && stays("Foo/d", "f"));
        assert!(!stays("", "Bar") && !stays("Bar", "f"));
    }

    #[test]
    fn each_directory_down_to_what_goes_is_opened_once_and_only_until_the_session_ends() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("Foo"), "x").unwrap();
        let tree = Tree::open(home.path()).unwrap();
        let deep = RelPath::from_bytes(&["d"; 1_000].join("/").into_bytes()).unwrap();
        tree.ensure_directory(&deep).unwrap();
        let aliased = caseless();
        assert_eq!(
            told(&tree, &names_of(&["d", "foo"], None), &aliased),
            [""; 0]
        );
        let stays = |most: usize| {
            let asked = std::cell::Cell::new(0);
            let has_ended = || asked.replace(asked.get() + 1) >= most;
            let stays = aliased.among(&tree, &deep, has_ended)(&name("f"));
            (stays, asked.get())
        };
        assert_eq!(
            [stays(usize::MAX), stays(10)],
            [(false, 1 + 1_000), (true, 11)]
        );
    }

    /// Some network file systems use a different inode number for each spelling.
    #[test]
    fn where_inodes_tell_nothing_nothing_is_extra() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("Foo"), "x").unwrap();
        let tree = Tree::open(home.path()).unwrap();
        let made_up = |directory: &OwnedFd, name: &OsStr| {
            let mut number = look_caseless(directory, name)?;
            number.inode += u64::from(name.as_encoded_bytes()[0].is_ascii_uppercase());
            Some(number)
        };
        let aliased = AliasedEntries::by(made_up, &Quota::default());
        let answer = extra(Some(&tree), &names_of(&["foo"], None), &aliased);
        assert_eq!(
            (answer.names, answer.faults),
            (vec![], vec![(0, FaultCode::Os(76))])
        );
        assert!(aliased.among(&tree, &RelPath::root(), || false)(&name(
            "Foo"
        )));
    }

    #[test]
    fn a_target_that_is_not_there_has_nothing_else() {
        let told = extra(None, &names_of(&["a"], None), &no_spared());
        assert_eq!(told, ExtraneousNames::default());
    }
}
