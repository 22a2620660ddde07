//! The entries to remove, and the entries that exist only at the target but are spared by rules.
//!
//! The selection is applied to each name before it counts as extraneous. If there are rules, extraneous directories are
//! listed like others, by a request without names. A directory in which an entry is spared loses only its other
//! entries. Directories that rules exclude from the push are not listed on the second walk either, so everything below
//! them is spared.
//!
//! With `--max-delete`, and in a preview, extraneous directories are also listed, so that their entries count. Each
//! directory precedes its contents in the list, and the list is cut from its beginning. All entries that are removed
//! with a directory have therefore been counted.
//!
//! **Invariant:** if there are rules, or if all removals are counted, a directory is removed with everything below it
//! only if all of that has been listed and none of it is spared. Entries of a directory whose source has changed stay,
//! with everything below them.

use std::collections::HashSet;
use std::sync::Arc;

use zmove_scan::{PathKind, Selection};
use zmove_types::{EntryForm, Name, RelPath};
use zmove_wire::NameRange;
use zmove_wire::limits::LISTED_NAME_BYTES_MAX;

/// The kind of directory in which an extraneous entry was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DirectoryKind {
    /// A directory whose source is unchanged since the push began.
    Source,
    ChangedSource,
    /// A directory that is itself extraneous.
    Extraneous,
}

/// Entries to remove from one directory.
pub(super) struct ExtraneousEntries {
    pub(super) directory: RelPath,
    pub(super) names: Vec<(Name, EntryForm)>,
    /// Whether the directory itself exists only at the target.
    inside: bool,
    /// Whether all entries in `names` stay because the source of the directory has changed.
    kept: bool,
}

/// The entries to remove.
pub(super) struct TakenEntries {
    pub(super) extraneous: Vec<ExtraneousEntries>,
    /// Number of entries to remove. Entries below a removed directory are included if they have been listed.
    pub(super) entries: u64,
    /// Number of entries that stay because they exceed the maximum number of removals.
    pub(super) spared: u64,
    /// Number of entries that stay because the source has changed. Entries below another kept entry are not included.
    pub(super) kept: u64,
}

/// Collects the entries to remove.
#[derive(Default)]
pub(super) struct ExtraneousList {
    /// The rules. Without rules, no entry is spared because of its name.
    rules: Option<Arc<Selection>>,
    /// Whether entries in extraneous directories are counted. If they are not counted and there are no rules, these
    /// directories are not listed.
    counted: bool,
    /// The entries, with each directory before its contents.
    extraneous: Vec<ExtraneousEntries>,
    names: usize,
    path_bytes: usize,
    /// Extraneous directories that have not been listed.
    unlisted: Vec<RelPath>,
    /// Extraneous directories in which an entry is spared, at any depth.
    spared: HashSet<RelPath>,
    /// Directories that stay because the source has changed. Each has been listed or will be.
    kept: HashSet<RelPath>,
}

/// Maximum number of names held until the end of the walk. Maximum memory: 80 bytes per name, plus the bytes of the
/// paths.
const PENDING_NAMES_MAX: usize = 1 << 20;
/// Maximum total length of these names and of the paths of their directories, in bytes.
const PENDING_PATH_BYTES_MAX: usize = 256 << 20;
/// Maximum number of directories in one request. Small requests keep both sides busy.
const UNSEEN_ASKED_MAX: usize = 1024;

impl ExtraneousList {
    pub(super) fn new(selection: Option<Arc<Selection>>, counted: bool) -> Self {
        Self {
            rules: selection.filter(|selection| selection.has_rules()),
            counted,
            ..Self::default()
        }
    }

    /// Returns the number of entries that have been added.
    pub(super) fn names(&self) -> usize {
        self.names
    }

    /// Returns whether the limit of names is reached, so that no more entries should be added.
    pub(super) fn is_full(&self) -> bool {
        self.names >= PENDING_NAMES_MAX || self.path_bytes >= PENDING_PATH_BYTES_MAX
    }

    /// Adds an entry unless a rule spares it. `room` states whether the list has room for an entry. Returns `false` if
    /// the entry was not added for lack of room.
    pub(super) fn add(
        &mut self,
        directory: &RelPath,
        name: Name,
        form: EntryForm,
        directory_kind: DirectoryKind,
        room: bool,
    ) -> bool {
        let inside = directory_kind == DirectoryKind::Extraneous;
        let kept = directory_kind == DirectoryKind::ChangedSource
            || inside && self.kept.contains(directory);
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
            // Otherwise the entry would be removed with its directory without having been counted or listed.
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
            self.unlisted.push(path);
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

    /// Records that an extraneous directory stays, and therefore its parent directories too.
    pub(super) fn spare(&mut self, directory: &RelPath) {
        let mut next = Some(directory.clone());
        while let Some(directory) = next {
            next = directory.parent();
            if !self.spared.insert(directory) {
                return;
            }
        }
    }

    /// Returns requests for extraneous directories that have not been listed, or `None` if all have been.
    pub(super) fn next_unlisted(&mut self) -> Option<Vec<NameRange>> {
        let mut ranges = Vec::new();
        let mut bytes = 0;
        while ranges.len() < UNSEEN_ASKED_MAX && bytes < LISTED_NAME_BYTES_MAX / 4 {
            let Some(directory) = self.unlisted.pop() else {
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

    /// Returns whether an extraneous directory is waiting to be listed.
    pub(super) fn has_unlisted(&self) -> bool {
        !self.unlisted.is_empty()
    }

    /// Takes up to `room` of the entries to remove. The contents of a directory are taken before the directory.
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
        // The remaining entries are removed together with their directory.
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

    /// Adds an entry. It is a directory if the name ends in a slash.
    fn add(extraneous: &mut ExtraneousList, directory: &str, name: &str, inside: bool) {
        let form = if name.ends_with('/') {
            EntryForm::Directory
        } else {
            EntryForm::File
        };
        let name = Name::from_bytes(name.trim_end_matches('/').as_bytes()).unwrap();
        let directory_kind = if inside {
            DirectoryKind::Extraneous
        } else {
            DirectoryKind::Source
        };
        assert!(extraneous.add(&path(directory), name, form, directory_kind, true));
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
            .next_unlisted()
            .unwrap()
            .into_iter()
            .map(|range| range.directory)
            .collect();
        assert_eq!(asked, [path("d/other"), path("d/old")]);
        add(&mut extraneous, "d/old", "a/", true);
        add(&mut extraneous, "d/old", "b/", true);
        add(&mut extraneous, "d/other", "f", true);
        assert_eq!(extraneous.next_unlisted().unwrap().len(), 2);
        add(&mut extraneous, "d/old/a", "y.o", true);
        add(&mut extraneous, "d/old/a", "f", true);
        add(&mut extraneous, "d/old/b", "f", true);
        assert!(extraneous.next_unlisted().is_none());
        assert_eq!(taken(&mut extraneous), ["d/other", "d/old/b", "d/old/a/f"]);
    }

    #[test]
    fn sizes_spare_nothing() {
        let mut extraneous = extraneous(&[]);
        add(&mut extraneous, "d", "old/", false);
        assert!(!extraneous.has_unlisted());
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
            assert_eq!(extraneous.next_unlisted().unwrap().len(), 1);
            add(&mut extraneous, "d/old", "a/", true);
            assert_eq!(extraneous.next_unlisted().unwrap().len(), 1);
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
        assert_eq!(extraneous.next_unlisted().unwrap().len(), 1);
        add(&mut extraneous, "d/old", "f", true);
        let name = Name::from_bytes(b"g").unwrap();
        assert!(!extraneous.add(
            &path("d/old"),
            name,
            EntryForm::File,
            DirectoryKind::Extraneous,
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
            assert!(extraneous.add(&path("e"), name, form, DirectoryKind::ChangedSource, true));
        };
        ["g", "h.o", "old/", "other/"]
            .into_iter()
            .for_each(|name| changed(&mut extraneous, name));
        assert_eq!(extraneous.next_unlisted().unwrap().len(), 2);
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
        // The kept entries are g, old/y and other.
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
            DirectoryKind::Extraneous,
            false
        ));
        assert!(extraneous.add(
            &path("d/old/a"),
            name("x.o"),
            EntryForm::File,
            DirectoryKind::Extraneous,
            false
        ));
        assert!(taken(&mut extraneous).is_empty());
    }
}
