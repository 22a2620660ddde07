//! The entries that are to be removed, and those that rules spare though they are at the target alone.
//!
//! The selection is applied to each name before it is doomed. Where there are rules, doomed directories are looked into
//! as others are, by a `Keep` without names, and a directory in which something is spared loses only the rest.
//! Directories that rules leave out of the push are not listed on the second walk either: all below them is spared.
//!
//! With `--max-delete` doomed directories are looked into as well, so that what is in them counts. Each directory
//! stands in the list before what is in it, and the list is cut from its beginning; so what is removed with a directory
//! has been counted.
//!
//! **Invariant:** where there are rules, or all removals are to be counted, a directory is removed with all below it
//! only if all below it has been listed and none of it is spared. Entries of a directory whose source has changed stay,
//! with all below them.

use std::collections::HashSet;
use std::sync::Arc;

use zmove_scan::{PathKind, Selection};
use zmove_types::{EntryForm, RelPath};
use zmove_wire::limits::KEEP_NAME_BYTES_MAX;
use zmove_wire::{KeptRange, ListedName};

/// The kind of directory in which an entry was found that is at the target alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whereabouts {
    /// A directory whose source is as it was when the push began.
    Source,
    ChangedSource,
    /// A directory that is doomed itself.
    Doomed,
}

/// Entries to be removed from one directory.
pub(super) struct Doomed {
    pub(super) directory: RelPath,
    pub(super) names: Vec<(ListedName, EntryForm)>,
    /// Whether the directory itself is doomed.
    inside: bool,
    /// Whether all of these stay, since the source has changed.
    kept: bool,
}

/// The entries to be removed.
pub(super) struct Taken {
    pub(super) doomed: Vec<Doomed>,
    /// The number of entries to be removed, with those below a removed directory, as far as it has been examined.
    pub(super) entries: u64,
    /// The number of entries that stay because they exceed the number that may be removed.
    pub(super) spared: u64,
    /// The number of entries that stay because the source has changed, without those that would go with their
    /// directory.
    pub(super) kept: u64,
}

/// Gathers the entries to be removed.
pub(super) struct Doom {
    /// The rules; without them nothing is spared by its name.
    rules: Option<Arc<Selection>>,
    /// Whether entries in doomed directories count. If not, and without rules, these need not be looked into.
    counted: bool,
    /// The entries, each directory before what is in it.
    doomed: Vec<Doomed>,
    names: usize,
    path_bytes: usize,
    /// Doomed directories that have not been looked into.
    unseen: Vec<RelPath>,
    /// Doomed directories in which something is spared, at any depth.
    spared: HashSet<RelPath>,
    /// Directories that are or will be looked into, and that stay because the source has changed.
    kept: HashSet<RelPath>,
}

/// The most names that wait for the end of the walk. Memory at worst: 80 bytes each, and the bytes of paths.
const DOOMED_NAMES_MAX: usize = 1 << 20;
/// The most bytes of these names, and of their directories' paths.
const DOOMED_PATH_BYTES_MAX: usize = 256 << 20;
/// The most directories in one question: small questions keep both sides busy.
const UNSEEN_ASKED_MAX: usize = 1024;

impl Doom {
    pub(super) fn new(selection: Option<Arc<Selection>>, counted: bool) -> Self {
        let rules = selection.filter(|selection| selection.has_rules());
        let spared = HashSet::new();
        let kept = HashSet::new();
        Self { rules, counted, doomed: Vec::new(), names: 0, path_bytes: 0, unseen: Vec::new(), spared, kept }
    }

    /// Whether no more should be added.
    pub(super) fn is_full(&self) -> bool {
        self.names >= DOOMED_NAMES_MAX || self.path_bytes >= DOOMED_PATH_BYTES_MAX
    }

    /// Adds an entry if no rule spares it, and if there is `room`; returns whether there was.
    pub(super) fn add(
        &mut self,
        directory: &RelPath,
        (name, form): (ListedName, EntryForm),
        whereabouts: Whereabouts,
        room: bool,
    ) -> bool {
        let inside = whereabouts == Whereabouts::Doomed;
        let kept = whereabouts == Whereabouts::ChangedSource || inside && self.kept.contains(directory);
        let Ok(path) = directory.join(&name.0) else { return true };
        let is_directory = form == EntryForm::Directory;
        if let Some(rules) = &self.rules {
            let kind = if is_directory { PathKind::Directory } else { PathKind::Other };
            if !rules.admits(&path, kind) {
                if inside {
                    self.spare(directory);
                }
                return true;
            }
        }
        if !room {
            // The entry would go with its directory, uncounted or not looked into.
            if inside {
                self.spare(directory);
            }
            return false;
        }
        self.names += 1;
        self.path_bytes += name.0.as_bytes().len();
        if is_directory && (self.rules.is_some() || self.counted) {
            self.path_bytes += path.as_bytes().len();
            if kept {
                self.kept.insert(path.clone());
            }
            self.unseen.push(path);
        }
        match self.doomed.last_mut() {
            Some(doomed)
                if doomed.directory == *directory && doomed.inside == inside && doomed.kept == kept =>
            {
                doomed.names.push((name, form));
            }
            _ => {
                self.path_bytes += directory.as_bytes().len();
                let names = vec![(name, form)];
                self.doomed.push(Doomed { directory: directory.clone(), names, inside, kept });
            }
        }
        true
    }

    /// Notes that a doomed directory stays, and so those above it.
    pub(super) fn spare(&mut self, directory: &RelPath) {
        let mut next = Some(directory.clone());
        while let Some(directory) = next {
            next = directory.parent();
            if !self.spared.insert(directory) {
                return;
            }
        }
    }

    /// Questions about doomed directories that have not been looked into; `None` where all have been.
    pub(super) fn look_inside(&mut self) -> Option<Vec<KeptRange>> {
        let mut ranges = Vec::new();
        let mut bytes = 0;
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

    /// Takes the entries to be removed, of all that have been added: those in a directory before it, while there is
    /// `room`.
    pub(super) fn take(&mut self, room: u64) -> Taken {
        self.names = 0;
        self.path_bytes = 0;
        self.kept.clear();
        let mut doomed = std::mem::take(&mut self.doomed);
        let mut stays = std::mem::take(&mut self.spared);
        for Doomed { directory, names, .. } in &mut doomed {
            names.retain(|(name, form)| {
                *form != EntryForm::Directory
                    || directory.join(&name.0).is_ok_and(|path| !stays.contains(&path))
            });
        }
        let is_top =
            |doomed: &Doomed, stays: &HashSet<RelPath>| !doomed.inside || stays.contains(&doomed.directory);
        let of_changed = doomed.extract_if(.., |doomed| doomed.kept);
        let kept =
            of_changed.filter(|doomed| is_top(doomed, &stays)).map(|doomed| doomed.names.len() as u64).sum();
        let entries = doomed.iter().map(|doomed| doomed.names.len() as u64).sum::<u64>();
        let spared = entries.saturating_sub(room);
        let mut surplus = usize::try_from(spared).unwrap_or(usize::MAX);
        for Doomed { directory, names, .. } in &mut doomed {
            let first = names.drain(..surplus.min(names.len()));
            surplus -= first.len();
            stays.extend(first.filter_map(|(name, _)| directory.join(&name.0).ok()));
        }
        // The rest goes with its directory.
        doomed.retain(|doomed| !doomed.names.is_empty() && is_top(doomed, &stays));
        Taken { doomed, entries: entries - spared, spared, kept }
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
        Doom::new(Some(Arc::new(Selection::new(&rules, 0..=9).unwrap())), false)
    }

    fn path(text: &str) -> RelPath {
        RelPath::from_bytes(text.as_bytes()).unwrap()
    }

    /// Adds an entry; a directory where the name ends in a slash.
    fn add(doom: &mut Doom, directory: &str, name: &str, inside: bool) {
        let form = if name.ends_with('/') { EntryForm::Directory } else { EntryForm::File };
        let name = ListedName(Name::from_bytes(name.trim_end_matches('/').as_bytes()).unwrap());
        let whereabouts = if inside { Whereabouts::Doomed } else { Whereabouts::Source };
        assert!(doom.add(&path(directory), (name, form), whereabouts, true));
    }

    fn taken(doom: &mut Doom) -> Vec<String> {
        paths(&doom.take(u64::MAX).doomed)
    }

    fn paths(doomed: &[Doomed]) -> Vec<String> {
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
    fn no_more_goes_than_there_is_room_for_and_what_is_in_a_directory_first() {
        let expected: [&[&str]; 7] = [
            &[],
            &["d/old/a/g"],
            &["d/old/a/f", "d/old/a/g"],
            &["d/old/a"],
            &["d/old"],
            &["d/x", "d/old"],
            &["d/x", "d/old"],
        ];
        for (room, expected) in (0..).zip(expected) {
            let mut doom = Doom::new(None, true);
            add(&mut doom, "d", "x", false);
            add(&mut doom, "d", "old/", false);
            assert_eq!(doom.look_inside().unwrap().len(), 1);
            add(&mut doom, "d/old", "a/", true);
            assert_eq!(doom.look_inside().unwrap().len(), 1);
            add(&mut doom, "d/old/a", "f", true);
            add(&mut doom, "d/old/a", "g", true);
            let Taken { doomed, entries, spared, .. } = doom.take(room);
            assert_eq!(paths(&doomed), expected, "{room}");
            assert_eq!((entries, spared), (room.min(5), 5 - room.min(5)));
        }
    }

    #[test]
    fn a_directory_of_which_not_all_was_counted_stays() {
        let mut doom = Doom::new(None, true);
        add(&mut doom, "d", "old/", false);
        assert_eq!(doom.look_inside().unwrap().len(), 1);
        add(&mut doom, "d/old", "f", true);
        let name = ListedName(Name::from_bytes(b"g").unwrap());
        assert!(!doom.add(&path("d/old"), (name, EntryForm::File), Whereabouts::Doomed, false));
        let Taken { doomed, entries, spared, .. } = doom.take(u64::MAX);
        assert_eq!((paths(&doomed), entries, spared), (vec!["d/old/f".to_owned()], 1, 0));
    }

    #[test]
    fn what_lies_where_the_source_has_changed_stays_and_counts_as_it_would_go() {
        let mut doom = doom(&["*.o"]);
        add(&mut doom, "d", "f", false);
        let changed = |doom: &mut Doom, text: &str| {
            let form = if text.ends_with('/') { EntryForm::Directory } else { EntryForm::File };
            let name = ListedName(Name::from_bytes(text.trim_end_matches('/').as_bytes()).unwrap());
            assert!(doom.add(&path("e"), (name, form), Whereabouts::ChangedSource, true));
        };
        ["g", "h.o", "old/", "other/"].into_iter().for_each(|name| changed(&mut doom, name));
        assert_eq!(doom.look_inside().unwrap().len(), 2);
        add(&mut doom, "e/old", "x.o", true);
        add(&mut doom, "e/old", "y", true);
        add(&mut doom, "e/other", "z", true);
        // The limit counts only entries that are removed.
        let Taken { doomed, entries, spared, kept } = doom.take(1);
        // These are g, old/y and other.
        assert_eq!((paths(&doomed), entries, spared, kept), (vec!["d/f".to_owned()], 1, 0, 3));
    }

    #[test]
    fn what_has_no_room_may_still_spare_a_directory() {
        let mut doom = doom(&["*.o"]);
        add(&mut doom, "d", "old/", false);
        let name = |text: &str| ListedName(Name::from_bytes(text.as_bytes()).unwrap());
        assert!(!doom.add(&path("d/old"), (name("a"), EntryForm::Directory), Whereabouts::Doomed, false));
        assert!(doom.add(&path("d/old/a"), (name("x.o"), EntryForm::File), Whereabouts::Doomed, false));
        assert!(taken(&mut doom).is_empty());
    }
}
