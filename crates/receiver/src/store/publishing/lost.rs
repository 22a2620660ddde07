//! What is lost of staging directories: the entries that cannot get their names, since somebody else has put something
//! in the place of their directory, each reported once when all that can has its name.

use std::collections::HashMap;
use std::iter::successors;

use zmove_types::{Name, RelPath};
use zmove_wire::{Fault, FaultCode};

use crate::store::failure::FaultCause;

/// What has not come to its final place, with all below it, because a staging directory could not become its directory:
/// by the path of the directory that it should be in. A path for each entry would take gigabytes.
#[derive(Debug, Default)]
pub(crate) struct Lost(HashMap<RelPath, LostNames>);

/// The losses of one directory.
type LostNames = HashMap<Name, FaultCause>;

/// What is lost in one directory.
pub(crate) struct LostIn<'a> {
    /// Why the directory itself is not where it should be.
    with_directory: Option<FaultCause>,
    names: Option<&'a mut LostNames>,
}

impl Lost {
    /// Notes why the entry at a path below the directory `above` is not there, or that directory itself. An entry that
    /// could not be moved into its directory may be lost once more with what stood there, which could not be moved with
    /// the directory above.
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

    /// Why a file is not at its path.
    pub(crate) fn take(&mut self, path: &RelPath) -> Option<FaultCause> {
        let (directory, name) = path.split()?;
        self.in_directory(&directory).take(&name)
    }

    /// What is lost in one directory.
    pub(crate) fn in_directory(&mut self, directory: &RelPath) -> LostIn<'_> {
        LostIn {
            with_directory: self.with(directory),
            names: self.0.get_mut(directory),
        }
    }

    /// Why a directory is not where it should be, and so nothing in it.
    fn with(&self, directory: &RelPath) -> Option<FaultCause> {
        successors(Some(directory.clone()), RelPath::parent)
            .take_while(|_| !self.0.is_empty())
            .find_map(|above| self.of(&above))
    }

    fn of(&self, path: &RelPath) -> Option<FaultCause> {
        let (directory, name) = path.split()?;
        self.0.get(&directory)?.get(&name).copied()
    }

    /// The faults that are left: those of directories and links.
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

impl LostIn<'_> {
    /// Why a file is not there.
    pub(crate) fn take(&mut self, name: &Name) -> Option<FaultCause> {
        let lost = self.names.as_mut().and_then(|names| names.remove(name));
        lost.or(self.with_directory)
    }
}

fn beneath(path: &RelPath, below: &RelPath) -> RelPath {
    let whole = [path.as_bytes(), below.as_bytes()].join(&b'/');
    // An entry whose path would be too long is lost with the whole directory.
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
        let mut lost = Lost::default();
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
            let mut lost = Lost::default();
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
