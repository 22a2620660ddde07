//! The entries that are to be removed, and those that rules spare though they are at the target alone.
//!
//! The selection is applied to each name before it counts as extraneous. Where there are rules, extraneous directories
//! are looked into as others are, by a request without names, and a directory in which something is spared loses only
//! the rest. Directories that rules leave out of the push are not listed on the second walk either: all below them is
//! spared.
//!
//! With `--max-delete`, and in a preview, extraneous directories are looked into as well, so that what is in them
//! counts. Each directory stands in the list before what is in it, and the list is cut from its beginning; so what is
//! removed with a directory has been counted.
//!
//! **Invariant:** where there are rules, or all removals are to be counted, a directory is removed with all below it
//! only if all below it has been listed and none of it is spared. Entries of a directory whose source has changed stay,
//! with all below them.

use std::collections::HashSet;
use std::sync::Arc;

use zmove_scan::{PathKind, Selection};
use zmove_types::{EntryForm, Name, RelPath};
use zmove_wire::NameRange;
use zmove_wire::limits::LISTED_NAME_BYTES_MAX;

/// The kind of directory in which an entry was found that is at the target alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whereabouts {
    /// A directory whose source is as it was when the push began.
    Source,
    ChangedSource,
    /// A directory that is extraneous itself.
    Extraneous,
}

/// Entries to be removed from one directory.
pub(super) struct ExtraneousEntries {
    pub(super) directory: RelPath,
    pub(super) names: Vec<(Name, EntryForm)>,
    /// Whether the directory itself is extraneous.
    inside: bool,
    /// Whether all of these stay, since the source has changed.
    kept: bool,
}

/// The entries to be removed.
pub(super) struct TakenEntries {
    pub(super) extraneous: Vec<ExtraneousEntries>,
    /// The number of entries to be removed, with those below a removed directory, as far as it has been examined.
    pub(super) entries: u64,
    /// The number of entries that stay because they exceed the number that may be removed.
    pub(super) spared: u64,
    /// The number of entries that stay because the source has changed, without those that would go with their
    /// directory.
    pub(super) kept: u64,
}

/// Gathers the entries to be removed.
#[derive(Default)]
pub(super) struct ExtraneousList {
    /// The rules; without them nothing is spared by its name.
    rules: Option<Arc<Selection>>,
    /// Whether entries in extraneous directories count. If not, and without rules, these need not be looked into.
    counted: bool,
    /// The entries, each directory before what is in it.
    extraneous: Vec<ExtraneousEntries>,
    names: usize,
    path_bytes: usize,
    /// Extraneous directories that have not been looked into.
    unseen: Vec<RelPath>,
    /// Extraneous directories in which something is spared, at any depth.
    spared: HashSet<RelPath>,
    /// Directories that are or will be looked into, and that stay because the source has changed.
    kept: HashSet<RelPath>,
}

/// The most names that wait for the end of the walk. Memory at worst: 80 bytes each, and the bytes of paths.
const PENDING_NAMES_MAX: usize = 1 << 20;
/// The most bytes of these names, and of their directories' paths.
const PENDING_PATH_BYTES_MAX: usize = 256 << 20;
/// The most directories in one question: small questions keep both sides busy.
const UNSEEN_ASKED_MAX: usize = 1024;

impl ExtraneousList {
    pub(super) fn new(selection: Option<Arc<Selection>>, counted: bool) -> Self {
        Self {
            rules: selection.filter(|selection| selection.has_rules()),
            counted,
            ..Self::default()
        }
    }

    /// The number of entries that have been added.
    pub(super) fn names(&self) -> usize {
        self.names
    }

    /// Whether no more should be added.
    pub(super) fn is_full(&self) -> bool {
        self.names >= PENDING_NAMES_MAX || self.path_bytes >= PENDING_PATH_BYTES_MAX
    }

    /// Adds an entry if no rule spares it, and if there is `room`; returns whether there was.
    pub(super) fn add(
        &mut self,
        directory: &RelPath,
        name: Name,
        form: EntryForm,
        whereabouts: Whereabouts,
        room: bool,
    ) -> bool {
        let inside = whereabouts == Whereabouts::Extraneous;
        let kept =
            whereabouts == Whereabouts::ChangedSource || inside && self.kept.contains(directory);
        let Ok(path) = directory.join(&name) else {
            return true;
        };
        let is_directory = form == EntryForm::Directory;
        if let Some(rules) = &self.rules {
            let kind = if is_directory {
                PathKind::Directory
            } else {
                PathKind::Other
            };
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
        self.path_bytes += name.as_bytes().len();
        if is_directory && (self.rules.is_some() || self.counted) {
            self.path_bytes += path.as_bytes().len();
            if kept {
                self.kept.insert(path.clone());
            }
            self.unseen.push(path);
        }
        match self.extraneous.last_mut() {
            Some(extraneous)
                if extraneous.directory == *directory
                    && extraneous.inside == inside
                    && extraneous.kept == kept =>
            {
                extraneous.names.push((name, form));
            }
            _ => {
                self.path_bytes += directory.as_bytes().len();
                let names = vec![(name, form)];
                self.extraneous.push(ExtraneousEntries {
                    directory: directory.clone(),
                    names,
                    inside,
                    kept,
                });
            }
        }
        true
    }

    /// Notes that an extraneous directory stays, and so those above it.
    pub(super) fn spare(&mut self, directory: &RelPath) {
        let mut next = Some(directory.clone());
        while let Some(directory) = next {
            next = directory.parent();
            if !self.spared.insert(directory) {
                return;
            }
        }
    }

    /// Questions about extraneous directories that have not been looked into; `None` where all have been.
    pub(super) fn look_inside(&mut self) -> Option<Vec<NameRange>> {
        let mut ranges = Vec::new();
        let mut bytes = 0;
        while ranges.len() < UNSEEN_ASKED_MAX && bytes < LISTED_NAME_BYTES_MAX / 4 {
            let Some(directory) = self.unseen.pop() else {
                break;
            };
            bytes += directory.as_bytes().len();
            ranges.push(NameRange {
                directory,
                after: None,
                names: Vec::new(),
                open: true,
            });
        }
        (!ranges.is_empty()).then_some(ranges)
    }

    /// Whether an extraneous directory waits to be looked into.
    pub(super) fn has_unseen(&self) -> bool {
        !self.unseen.is_empty()
    }

    /// Takes the entries to be removed, of all that have been added: those in a directory before it, while there is
    /// `room`.
    pub(super) fn take(&mut self, room: u64) -> TakenEntries {
        self.names = 0;
        self.path_bytes = 0;
        self.kept.clear();
        let mut extraneous = std::mem::take(&mut self.extraneous);
        let mut stays = std::mem::take(&mut self.spared);
        for ExtraneousEntries {
            directory, names, ..
        } in &mut extraneous
        {
            names.retain(|(name, form)| {
                *form != EntryForm::Directory
                    || directory
                        .join(name)
                        .is_ok_and(|path| !stays.contains(&path))
            });
        }
        let is_top = |extraneous: &ExtraneousEntries, stays: &HashSet<RelPath>| {
            !extraneous.inside || stays.contains(&extraneous.directory)
        };
        let of_changed = extraneous.extract_if(.., |extraneous| extraneous.kept);
        let kept = of_changed
            .filter(|extraneous| is_top(extraneous, &stays))
            .map(|extraneous| extraneous.names.len() as u64)
            .sum();
        let entries = extraneous
            .iter()
            .map(|extraneous| extraneous.names.len() as u64)
            .sum::<u64>();
        let spared = entries.saturating_sub(room);
        let mut surplus = usize::try_from(spared).unwrap_or(usize::MAX);
        for ExtraneousEntries {
            directory, names, ..
        } in &mut extraneous
        {
            let first = names.drain(..surplus.min(names.len()));
            surplus -= first.len();
            stays.extend(first.filter_map(|(name, _)| directory.join(&name).ok()));
        }
        // The rest goes with its directory.
        extraneous.retain(|extraneous| !extraneous.names.is_empty() && is_top(extraneous, &stays));
        TakenEntries {
            extraneous,
            entries: entries - spared,
            spared,
            kept,
        }
    }
}

#[cfg(test)]
mod tests {
    use zmove_scan::{Effect, Rule};

    use super::*;

    fn extraneous(rules: &[&str]) -> ExtraneousList {
        let rules: Vec<_> = rules
            .iter()
            .map(|rule| Rule::new(Effect::Exclude, rule.as_bytes()).unwrap())
            .collect();
        ExtraneousList::new(
            Some(Arc::new(Selection::new(&rules, 0..=9).unwrap())),
            false,
        )
    }

    fn path(text: &str) -> RelPath {
        RelPath::from_bytes(text.as_bytes()).unwrap()
    }

    /// Adds an entry; a directory where the name ends in a slash.
    fn add(extraneous: &mut ExtraneousList, directory: &str, name: &str, inside: bool) {
        let form = if name.ends_with('/') {
            EntryForm::Directory
        } else {
            EntryForm::File
        };
        let name = Name::from_bytes(name.trim_end_matches('/').as_bytes()).unwrap();
        let whereabouts = if inside {
            Whereabouts::Extraneous
        } else {
            Whereabouts::Source
        };
        assert!(extraneous.add(&path(directory), name, form, whereabouts, true));
    }

    fn taken(extraneous: &mut ExtraneousList) -> Vec<String> {
        paths(&extraneous.take(u64::MAX).extraneous)
    }

    fn paths(extraneous: &[ExtraneousEntries]) -> Vec<String> {
        let paths = extraneous.iter().flat_map(|extraneous| {
            extraneous
                .names
                .iter()
                .map(|(name, _)| extraneous.directory.join(name).unwrap().to_string())
        });
        paths.collect()
    }

    #[test]
    fn a_directory_with_something_spared_loses_the_rest() {
        let mut extraneous = extraneous(&["*.o"]);
        add(&mut extraneous, "d", "x.o", false);
        add(&mut extraneous, "d", "old/", false);
        add(&mut extraneous, "d", "other/", false);
        let asked: Vec<_> = extraneous
            .look_inside()
            .unwrap()
            .into_iter()
            .map(|range| range.directory)
            .collect();
        assert_eq!(asked, [path("d/other"), path("d/old")]);
        add(&mut extraneous, "d/old", "a/", true);
        add(&mut extraneous, "d/old", "b/", true);
        add(&mut extraneous, "d/other", "f", true);
        assert_eq!(extraneous.look_inside().unwrap().len(), 2);
        add(&mut extraneous, "d/old/a", "y.o", true);
        add(&mut extraneous, "d/old/a", "f", true);
        add(&mut extraneous, "d/old/b", "f", true);
        assert!(extraneous.look_inside().is_none());
        assert_eq!(taken(&mut extraneous), ["d/other", "d/old/b", "d/old/a/f"]);
    }

    #[test]
    fn sizes_spare_nothing() {
        let mut extraneous = extraneous(&[]);
        add(&mut extraneous, "d", "old/", false);
        assert!(!extraneous.has_unseen());
        assert_eq!(taken(&mut extraneous), ["d/old"]);
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
            let mut extraneous = ExtraneousList::new(None, true);
            add(&mut extraneous, "d", "x", false);
            add(&mut extraneous, "d", "old/", false);
            assert_eq!(extraneous.look_inside().unwrap().len(), 1);
            add(&mut extraneous, "d/old", "a/", true);
            assert_eq!(extraneous.look_inside().unwrap().len(), 1);
            add(&mut extraneous, "d/old/a", "f", true);
            add(&mut extraneous, "d/old/a", "g", true);
            let TakenEntries {
                extraneous,
                entries,
                spared,
                ..
            } = extraneous.take(room);
            assert_eq!(paths(&extraneous), expected, "{room}");
            assert_eq!((entries, spared), (room.min(5), 5 - room.min(5)));
        }
    }

    #[test]
    fn a_directory_of_which_not_all_was_counted_stays() {
        let mut extraneous = ExtraneousList::new(None, true);
        add(&mut extraneous, "d", "old/", false);
        assert_eq!(extraneous.look_inside().unwrap().len(), 1);
        add(&mut extraneous, "d/old", "f", true);
        let name = Name::from_bytes(b"g").unwrap();
        assert!(!extraneous.add(
            &path("d/old"),
            name,
            EntryForm::File,
            Whereabouts::Extraneous,
            false
        ));
        let TakenEntries {
            extraneous,
            entries,
            spared,
            ..
        } = extraneous.take(u64::MAX);
        assert_eq!(
            (paths(&extraneous), entries, spared),
            (vec!["d/old/f".to_owned()], 1, 0)
        );
    }

    #[test]
    fn what_lies_where_the_source_has_changed_stays_and_counts_as_it_would_go() {
        let mut extraneous = extraneous(&["*.o"]);
        add(&mut extraneous, "d", "f", false);
        let changed = |extraneous: &mut ExtraneousList, text: &str| {
            let form = if text.ends_with('/') {
                EntryForm::Directory
            } else {
                EntryForm::File
            };
            let name = Name::from_bytes(text.trim_end_matches('/').as_bytes()).unwrap();
            assert!(extraneous.add(&path("e"), name, form, Whereabouts::ChangedSource, true));
        };
        ["g", "h.o", "old/", "other/"]
            .into_iter()
            .for_each(|name| changed(&mut extraneous, name));
        assert_eq!(extraneous.look_inside().unwrap().len(), 2);
        add(&mut extraneous, "e/old", "x.o", true);
        add(&mut extraneous, "e/old", "y", true);
        add(&mut extraneous, "e/other", "z", true);
        // The limit counts only entries that are removed.
        let TakenEntries {
            extraneous,
            entries,
            spared,
            kept,
        } = extraneous.take(1);
        // These are g, old/y and other.
        assert_eq!(
            (paths(&extraneous), entries, spared, kept),
            (vec!["d/f".to_owned()], 1, 0, 3)
        );
    }

    #[test]
    fn what_has_no_room_may_still_spare_a_directory() {
        let mut extraneous = extraneous(&["*.o"]);
        add(&mut extraneous, "d", "old/", false);
        let name = |text: &str| Name::from_bytes(text.as_bytes()).unwrap();
        assert!(!extraneous.add(
            &path("d/old"),
            name("a"),
            EntryForm::Directory,
            Whereabouts::Extraneous,
            false
        ));
        assert!(extraneous.add(
            &path("d/old/a"),
            name("x.o"),
            EntryForm::File,
            Whereabouts::Extraneous,
            false
        ));
        assert!(taken(&mut extraneous).is_empty());
    }
}
