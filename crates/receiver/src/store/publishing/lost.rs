//! Entries of staging directories that could not be renamed into place, because another process has created an entry
//! with the name of their directory. Each lost entry is reported once, after all other entries have their final names.

use std::collections::HashMap;
use std::iter::successors;

use zmove_types::{Name, RelPath};
use zmove_wire::{Fault, FaultCode};

use crate::store::failure::FaultCause;

/// The entries that are not at their final paths, by the path of their parent directory. A lost directory implies that
/// everything below it is lost too. Storing a full path for each entry would take gigabytes.
#[derive(Debug, Default)]
pub(crate) struct LostEntries(HashMap<RelPath, LostNames>);

/// The lost entries of one directory, by name.
type LostNames = HashMap<Name, FaultCause>;

/// A view of the lost entries in one directory.
pub(crate) struct LostInDirectory<'a> {
    /// Fault of the directory itself or of its nearest lost parent, if any.
    with_directory: Option<FaultCause>,
    names: Option<&'a mut LostNames>,
}

impl LostEntries {
    /// Records the fault of the entry at the path `below` inside the directory `above`. If `below` is the root, records
    /// the fault of `above` itself.
    ///
    /// An entry may be recorded twice: first because an entry with its name exists in the directory, and again because
    /// that directory could not be moved. The second fault replaces the first.
    pub(crate) fn insert(&mut self, above: &RelPath, below: &RelPath, fault: FaultCause) {
        let path = beneath(above, below);
        if let Some((directory, name)) = path.split() {
            let lost = self.0.entry(directory).or_default();
            let known = lost.entry(name).or_insert(fault);
            if known.code == FaultCode::AlreadyThere {
                *known = fault;
            }
        }
    }

    /// Returns the fault that prevented the file from being at its path, or `None` if it is at its path. Removes the
    /// fault that was recorded for the file itself.
    pub(crate) fn take(&mut self, path: &RelPath) -> Option<FaultCause> {
        let (directory, name) = path.split()?;
        self.in_directory(&directory).take(&name)
    }

    /// Returns the lost entries of one directory.
    pub(crate) fn in_directory(&mut self, directory: &RelPath) -> LostInDirectory<'_> {
        LostInDirectory {
            with_directory: self.nearest_fault(directory),
            names: self.0.get_mut(directory),
        }
    }

    /// Returns the fault of a directory or of its nearest lost parent. The fault applies to all entries of the
    /// directory.
    fn nearest_fault(&self, directory: &RelPath) -> Option<FaultCause> {
        successors(Some(directory.clone()), RelPath::parent)
            .take_while(|_| !self.0.is_empty())
            .find_map(|above| self.fault_at(&above))
    }

    fn fault_at(&self, path: &RelPath) -> Option<FaultCause> {
        let (directory, name) = path.split()?;
        self.0.get(&directory)?.get(&name).copied()
    }

    /// Returns the remaining faults. If the faults of all files were taken, these are the faults of directories and
    /// links.
    pub(crate) fn rest(self) -> impl Iterator<Item = Fault> {
        self.0.into_iter().flat_map(|(directory, lost)| {
            let lost = lost
                .into_iter()
                .filter(|(_, cause)| cause.code != FaultCode::AlreadyThere);
            lost.map(move |(name, cause)| {
                cause.at(directory.join(&name).unwrap_or_else(|_| directory.clone()))
            })
        })
    }
}

impl LostInDirectory<'_> {
    /// Returns the fault because of which a file is missing, or `None` if it is at its path. Removes the fault that was
    /// recorded for the file itself.
    pub(crate) fn take(&mut self, name: &Name) -> Option<FaultCause> {
        let lost = self.names.as_mut().and_then(|names| names.remove(name));
        lost.or(self.with_directory)
    }
}

fn beneath(path: &RelPath, below: &RelPath) -> RelPath {
    let whole = [path.as_bytes(), below.as_bytes()].join(&b'/');
    // If the path of an entry is too long, the whole directory is recorded as lost.
    if below.is_root() {
        path.clone()
    } else {
        RelPath::from_bytes(&whole).unwrap_or_else(|_| path.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zmove_wire::Operation;

    #[test]
    fn what_is_lost_in_one_directory_has_the_path_of_that_once() {
        let above = RelPath::from_bytes(b"staged").unwrap();
        let deep = RelPath::from_bytes(&["d"; 30_000].join("/").into_bytes()).unwrap();
        let path = |number: usize| {
            deep.join(&Name::from_bytes(number.to_string().as_bytes()).unwrap())
                .unwrap()
        };
        let fault = FaultCause::new(Operation::Rename, FaultCode::Incomplete);
        let mut lost = LostEntries::default();
        (0..1000).for_each(|number| lost.insert(&above, &path(number), fault));
        let kept = lost.0.iter().map(|(directory, names)| {
            let names = names.keys().map(|name| name.as_bytes().len());
            directory.as_bytes().len() + names.sum::<usize>()
        });
        assert!(kept.sum::<usize>() < deep.as_bytes().len() + 3100);
        let seventh = beneath(&above, &path(7));
        assert_eq!(lost.take(&beneath(&above, &deep)), None);
        assert_eq!(
            [lost.take(&seventh), lost.take(&seventh)],
            [Some(fault), None]
        );
        lost.insert(&above, &RelPath::root(), fault);
        assert_eq!(lost.take(&seventh), Some(fault), "the directory is lost");
        assert_eq!(lost.take(&deep), None);
    }

    #[test]
    fn a_file_that_is_lost_in_two_staging_directories_is_told_once() {
        let path = |text: &str| RelPath::from_bytes(text.as_bytes()).unwrap();
        let fault = FaultCause::new(Operation::Rename, FaultCode::Incomplete);
        let there = FaultCause::new(Operation::Create, FaultCode::AlreadyThere);
        for [inner, outer] in [[there, fault], [fault, there], [fault, fault]] {
            let mut lost = LostEntries::default();
            lost.insert(&path("a/b"), &path("f"), inner);
            lost.insert(&path("a"), &path("b/f"), outer);
            lost.insert(&path("a"), &path("b/link"), fault);
            assert_eq!(lost.take(&path("a/b/f")), Some(fault));
            assert_eq!(lost.take(&path("a/b/f")), None);
            let rest = Fault {
                path: path("a/b/link"),
                operation: fault.operation,
                code: fault.code,
            };
            assert_eq!(lost.rest().collect::<Vec<_>>(), [rest]);
        }
    }
}
