//! What is to be removed, and what rules spare though it is at the target alone.
//!
//! **Invariant:** where there are rules, a directory goes with all below it only if all below it has been listed and none
//! of it is spared.

use std::collections::HashSet;
use std::sync::Arc;

use zmove_scan::{PathKind, Selection};
use zmove_types::{EntryForm, RelPath};
use zmove_wire::limits::KEEP_NAME_BYTES_MAX;
use zmove_wire::{KeptRange, ListedName};

/// What is to be removed from one directory.
pub(super) struct Doomed {
    pub(super) directory: RelPath,
    pub(super) names: Vec<(ListedName, EntryForm)>,
    /// The directory itself is doomed.
    inside: bool,
}

/// Gathers it.
pub(super) struct Doom {
    /// None without rules: nothing is spared then, and no doomed directory need be looked into.
    rules: Option<Arc<Selection>>,
    doomed: Vec<Doomed>,
    names: usize,
    /// Doomed directories that have not been looked into.
    unseen: Vec<RelPath>,
    /// Doomed directories in which something is spared, at any depth.
    spared: HashSet<RelPath>,
}

/// Names that wait for the end of the walk. Memory at worst: so many times 80 bytes and the name.
const DOOMED_NAMES_MAX: usize = 1 << 20;
/// Small questions keep both sides busy.
const UNSEEN_ASKED_MAX: usize = 1024;

impl Doom {
    pub(super) fn new(selection: Option<Arc<Selection>>) -> Self {
        let rules = selection.filter(|selection| selection.has_rules());
        Self { rules, doomed: Vec::new(), names: 0, unseen: Vec::new(), spared: HashSet::new() }
    }

    /// Whether no more should be added.
    pub(super) fn is_full(&self) -> bool {
        self.names >= DOOMED_NAMES_MAX
    }

    /// Adds an entry if no rule spares it, and if there is `room`; says whether there was. `inside` says that its directory is doomed.
    pub(super) fn add(
        &mut self,
        directory: &RelPath,
        (name, form): (ListedName, EntryForm),
        inside: bool,
        room: bool,
    ) -> bool {
        let Ok(path) = directory.join(&name.0) else { return true };
        if let Some(rules) = &self.rules {
            let is_directory = form == EntryForm::Directory;
            let kind = if is_directory { PathKind::Directory } else { PathKind::Other };
            if !rules.admits(&path, kind) {
                if inside {
                    self.spare(directory);
                }
                return true;
            }
            if is_directory {
                self.unseen.push(path);
            }
        }
        if !room {
            return false;
        }
        self.names += 1;
        match self.doomed.last_mut() {
            Some(doomed) if doomed.directory == *directory && doomed.inside == inside => {
                doomed.names.push((name, form));
            }
            _ => {
                let names = vec![(name, form)];
                self.doomed.push(Doomed { directory: directory.clone(), names, inside });
            }
        }
        true
    }

    /// A doomed directory stays, and those above it.
    pub(super) fn spare(&mut self, directory: &RelPath) {
        let mut next = Some(directory.clone());
        while let Some(directory) = next {
            next = directory.parent();
            if !self.spared.insert(directory) {
                return;
            }
        }
    }

    /// Questions about doomed directories that have not been looked into; none: all have been.
    pub(super) fn look_inside(&mut self) -> Option<Vec<KeptRange>> {
        let (mut ranges, mut bytes) = (Vec::new(), 0);
        while ranges.len() < UNSEEN_ASKED_MAX && bytes < KEEP_NAME_BYTES_MAX / 4 {
            let Some(directory) = self.unseen.pop() else { break };
            bytes += directory.as_bytes().len();
            ranges.push(KeptRange { directory, after: None, names: Vec::new(), open: true });
        }
        (!ranges.is_empty()).then_some(ranges)
    }

    /// Whether a doomed directory waits to be looked into.
    pub(super) fn has_unseen(&self) -> bool {
        !self.unseen.is_empty()
    }

    /// What goes, of all that has been added.
    pub(super) fn take(&mut self) -> Vec<Doomed> {
        self.names = 0;
        let mut doomed = std::mem::take(&mut self.doomed);
        let spared = std::mem::take(&mut self.spared);
        doomed.retain_mut(|doomed| {
            // it goes with its directory
            if doomed.inside && !spared.contains(&doomed.directory) {
                return false;
            }
            let directory = &doomed.directory;
            doomed.names.retain(|(name, form)| {
                *form != EntryForm::Directory
                    || directory.join(&name.0).is_ok_and(|path| !spared.contains(&path))
            });
            !doomed.names.is_empty()
        });
        doomed
    }
}

#[cfg(test)]
mod tests {
    use zmove_scan::{Effect, Rule};
    use zmove_types::Name;

    use super::*;

    fn doom(rules: &[&str]) -> Doom {
        let rules: Vec<_> =
            rules.iter().map(|rule| Rule::new(Effect::Exclude, rule.as_bytes()).unwrap()).collect();
        Doom::new(Some(Arc::new(Selection::new(&rules, 0..=9).unwrap())))
    }

    fn path(text: &str) -> RelPath {
        RelPath::from_bytes(text.as_bytes()).unwrap()
    }

    /// Adds a directory where the name ends in a slash.
    fn add(doom: &mut Doom, directory: &str, name: &str, inside: bool) {
        let form = if name.ends_with('/') { EntryForm::Directory } else { EntryForm::File };
        let name = ListedName(Name::from_bytes(name.trim_end_matches('/').as_bytes()).unwrap());
        assert!(doom.add(&path(directory), (name, form), inside, true));
    }

    fn taken(doom: &mut Doom) -> Vec<String> {
        let doomed = doom.take();
        let paths = doomed.iter().flat_map(|doomed| {
            doomed.names.iter().map(|(name, _)| doomed.directory.join(&name.0).unwrap().to_string())
        });
        paths.collect()
    }

    #[test]
    fn a_directory_with_something_spared_loses_the_rest() {
        let mut doom = doom(&["*.o"]);
        add(&mut doom, "d", "x.o", false);
        add(&mut doom, "d", "old/", false);
        add(&mut doom, "d", "other/", false);
        let asked: Vec<_> = doom.look_inside().unwrap().into_iter().map(|range| range.directory).collect();
        assert_eq!(asked, [path("d/other"), path("d/old")]);
        add(&mut doom, "d/old", "a/", true);
        add(&mut doom, "d/old", "b/", true);
        add(&mut doom, "d/other", "f", true);
        assert_eq!(doom.look_inside().unwrap().len(), 2);
        add(&mut doom, "d/old/a", "y.o", true);
        add(&mut doom, "d/old/a", "f", true);
        add(&mut doom, "d/old/b", "f", true);
        assert!(doom.look_inside().is_none());
        assert_eq!(taken(&mut doom), ["d/other", "d/old/b", "d/old/a/f"]);
    }

    #[test]
    fn sizes_spare_nothing() {
        let mut doom = doom(&[]);
        add(&mut doom, "d", "old/", false);
        assert!(!doom.has_unseen());
        assert_eq!(taken(&mut doom), ["d/old"]);
    }

    #[test]
    fn what_has_no_room_may_still_spare_a_directory() {
        let mut doom = doom(&["*.o"]);
        add(&mut doom, "d", "old/", false);
        let name = |text: &str| ListedName(Name::from_bytes(text.as_bytes()).unwrap());
        assert!(!doom.add(&path("d/old"), (name("a"), EntryForm::Directory), true, false));
        assert!(doom.add(&path("d/old/a"), (name("x.o"), EntryForm::File), true, false));
        assert!(taken(&mut doom).is_empty());
    }
}
