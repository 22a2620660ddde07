//! What is lost of staging directories: the entries that cannot get their names, since somebody else has put something
//! in the place of their directory, each reported once when all that can has its name.

use std::collections::HashMap;

use zmove_types::{Name, RelPath};
use zmove_wire::{Fault, FaultCode};

use crate::store::failure::FaultCause;
use crate::store::publishing::publisher::{below, covers};

/// What has not come to its final place, with all below it, because a staging directory could not become its directory:
/// by the path of that.
#[derive(Debug, Default)]
pub(crate) struct Lost(HashMap<RelPath, Below>);

/// What is lost of one staging directory: by the directory that it was in, and by its name there, which the staging
/// directory itself does not have. A path for each would take gigabytes.
#[derive(Debug, Default)]
pub(crate) struct Below(HashMap<RelPath, LostNames>);

/// The losses of one directory, by name.
type LostNames = HashMap<Box<[u8]>, FaultCause>;

/// What is lost in one directory.
pub(crate) struct LostIn<'a> {
    /// Why the directory itself is not where it should be.
    with_directory: Option<FaultCause>,
    around: Vec<(RelPath, &'a mut Below)>,
}

impl Below {
    pub(crate) fn insert(&mut self, path: &RelPath, fault: FaultCause) {
        let (directory, name) = split(path.as_bytes());
        if !self.0.contains_key(directory) {
            self.0
                .insert(path.parent().unwrap_or_else(RelPath::root), HashMap::new());
        }
        self.0
            .get_mut(directory)
            .map(|lost| lost.insert(name.into(), fault));
    }

    fn get(&self, path: &[u8]) -> Option<FaultCause> {
        let (directory, name) = split(path);
        self.0.get(directory)?.get(name).copied()
    }

    pub(crate) fn remove(&mut self, path: &RelPath) -> Option<FaultCause> {
        let (directory, name) = split(path.as_bytes());
        self.0.get_mut(directory)?.remove(name)
    }
}

/// The directory of a path, and its name there.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let slash = path.iter().rposition(|&byte| byte == b'/');
    slash.map_or((&[], path), |slash| (&path[..slash], &path[slash + 1..]))
}

impl Lost {
    /// What is lost of the staging directory of that path.
    pub(crate) fn of(&mut self, path: &RelPath) -> &mut Below {
        self.0.entry(path.clone()).or_default()
    }

    /// Why a file is not at its path.
    pub(crate) fn take(&mut self, path: &RelPath) -> Option<FaultCause> {
        self.in_directory(&path.parent()?).take(&path.file_name()?)
    }

    /// What is lost in one directory.
    pub(crate) fn in_directory(&mut self, directory: &RelPath) -> LostIn<'_> {
        LostIn {
            with_directory: self.with(directory),
            around: self.around(directory),
        }
    }

    /// Why a directory is not where it should be, and so nothing in it.
    fn with(&mut self, directory: &RelPath) -> Option<FaultCause> {
        let why =
            |(rest, lost): (RelPath, &mut Below)| rest.lineage().find_map(|above| lost.get(above));
        self.around(directory).into_iter().find_map(why)
    }

    /// The losses of the staging directories that cover a path, each with the rest of the path below it.
    fn around(&mut self, path: &RelPath) -> Vec<(RelPath, &mut Below)> {
        let covering = self.0.iter_mut().filter(|(staged, _)| covers(staged, path));
        covering
            .map(|(staged, lost)| (below(path, staged), lost))
            .collect()
    }

    /// The faults that are left: those of directories and links.
    pub(crate) fn rest(self) -> impl Iterator<Item = Fault> {
        let directories = self.0.into_iter().flat_map(|(staged, Below(lost))| {
            lost.into_iter()
                .map(move |(directory, lost)| (beneath(&staged, &directory), lost))
        });
        directories.flat_map(|(above, lost)| {
            let lost = lost
                .into_iter()
                .filter(|(_, cause)| cause.code != FaultCode::AlreadyThere);
            lost.map(move |(name, cause)| {
                // the staging directory itself has none
                let name = Name::from_bytes(&name).ok();
                let path = name
                    .and_then(|name| above.join(&name).ok())
                    .unwrap_or_else(|| above.clone());
                cause.at(path)
            })
        })
    }
}

impl LostIn<'_> {
    /// Why a file is not there. Where it is lost by itself, all entries of that are removed: one that could not be
    /// moved into its directory may have one more for what stood there, which could not be moved with the directory
    /// above.
    pub(crate) fn take(&mut self, name: &Name) -> Option<FaultCause> {
        let each = self
            .around
            .iter_mut()
            .filter_map(|(rest, lost)| lost.remove(&rest.join(name).ok()?));
        each.max_by_key(|cause| cause.code != FaultCode::AlreadyThere)
            .or(self.with_directory)
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
        let deep = RelPath::from_bytes(&["d"; 30_000].join("/").into_bytes()).unwrap();
        let path = |number: usize| {
            deep.join(&Name::from_bytes(number.to_string().as_bytes()).unwrap())
                .unwrap()
        };
        let fault = FaultCause::new(Operation::Rename, FaultCode::Incomplete);
        let mut lost = Below::default();
        (0..1000).for_each(|number| lost.insert(&path(number), fault));
        let kept = lost.0.iter().map(|(directory, names)| {
            directory.as_bytes().len() + names.keys().map(|name| name.len()).sum::<usize>()
        });
        assert!(kept.sum::<usize>() < deep.as_bytes().len() + 3000);
        assert_eq!(
            (lost.get(deep.as_bytes()), lost.get(path(7).as_bytes())),
            (None, Some(fault))
        );
        assert_eq!(
            (lost.remove(&path(7)), lost.remove(&path(7))),
            (Some(fault), None)
        );
        lost.insert(&RelPath::root(), fault);
        assert_eq!((lost.get(b""), lost.get(b"d")), (Some(fault), None));
    }

    #[test]
    fn a_file_that_is_lost_in_two_staging_directories_is_told_once() {
        let path = |text: &str| RelPath::from_bytes(text.as_bytes()).unwrap();
        let fault = FaultCause::new(Operation::Rename, FaultCode::Incomplete);
        let there = FaultCause::new(Operation::Create, FaultCode::AlreadyThere);
        for [inner, outer] in [[there, fault], [fault, there], [fault, fault]] {
            let mut lost = Lost::default();
            lost.of(&path("a/b")).insert(&path("f"), inner);
            lost.of(&path("a")).insert(&path("b/f"), outer);
            lost.of(&path("a")).insert(&path("b/link"), fault);
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
