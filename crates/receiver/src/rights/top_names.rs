//! Restricts the paths that a sender may use in the target by their first component (a "top name"). The restriction
//! applies if this side requested certain sources, or if the sender announced a single file. A sender may not write,
//! compare, list or remove any other path. If this side has requested a list of paths, complete paths are checked.
//!
//! A single file may get the name of the target. In that case, paths are relative to the directory that contains the
//! target. The user has not named that directory, so the sender may write only this file in it.
//!
//! No sender may use the directories of shared jobs, at any depth.
//!
//! **Invariant:** every path from a sender is checked against these names before anything is inspected or written.

use std::fmt;
use std::sync::Arc;

use zmove_disk::is_shared_job_name;
use zmove_types::{HashOnlySet, RelPath};
use zmove_wire::{
    Batch, BatchEntry, EntryGroup, Question, SourceKind, TargetShape, ToReceiver, WireError,
};

/// The names that a sender may use as the first component of a path in the target. Default: any name, and the target
/// itself.
#[derive(Clone, Default)]
pub struct TopNames {
    /// The requested names, or `None` if any name is allowed.
    wanted: Option<Arc<WantedNames>>,
    /// Whether the sender may set the mode and time of the target directory itself.
    itself: bool,
    /// Whether the sender may write only a single file. If so, directories and paths with several components are
    /// refused.
    single: bool,
}

/// A function that returns whether this side has requested a first component.
type IsAsked = dyn Fn(&[u8]) -> bool + Send + Sync;

/// The requested names.
enum WantedNames {
    /// All paths for whose first component this function returns true.
    Tops(Box<IsAsked>),
    /// Only the paths of a list.
    Listed(Arc<ListedPaths>),
}

/// The paths of a list and their parent directories, stored as hashes. A listed directory does not include its
/// contents.
#[derive(Debug, Default)]
pub struct ListedPaths {
    paths: HashOnlySet,
    itself: bool,
}

impl ListedPaths {
    /// Adds a path in the form in which a user may type it, for example with a trailing slash or with `.` components.
    pub fn add(&mut self, path: &[u8]) {
        let parts = path
            .split(|&byte| byte == b'/')
            .filter(|part| !matches!(*part, b"" | b"."));
        let mut way = Vec::with_capacity(path.len());
        for part in parts {
            if !way.is_empty() {
                way.push(b'/');
            }
            way.extend_from_slice(part);
            self.paths.insert(way.as_slice());
        }
        self.itself |= way.is_empty() && !path.is_empty();
    }

    fn has(&self, path: &[u8]) -> bool {
        self.paths.contains(path)
    }
}

impl WantedNames {
    fn has(&self, path: &RelPath) -> bool {
        match self {
            Self::Tops(wanted) => path.components().next().is_some_and(wanted),
            Self::Listed(paths) => paths.has(path.as_bytes()),
        }
    }

    fn has_top(&self, name: &[u8]) -> bool {
        match self {
            Self::Tops(wanted) => wanted(name),
            Self::Listed(paths) => paths.has(name),
        }
    }
}

impl TopNames {
    /// Allows only names for which `wanted` returns true. The target itself is not allowed.
    pub fn only(wanted: impl Fn(&[u8]) -> bool + Send + Sync + 'static) -> Self {
        let wanted = WantedNames::Tops(Box::new(wanted));
        Self {
            wanted: Some(Arc::new(wanted)),
            itself: false,
            single: false,
        }
    }

    /// Allows only the paths of a list.
    #[must_use]
    pub fn listed(paths: Arc<ListedPaths>) -> Self {
        Self {
            itself: paths.itself,
            wanted: Some(Arc::new(WantedNames::Listed(paths))),
            single: false,
        }
    }

    /// Restricts the names further, for a sender that has announced this shape of the target.
    #[must_use]
    pub(crate) fn of_shape(self, shape: &TargetShape) -> Self {
        let TargetShape::Single { name } = shape else {
            return self;
        };
        let name = name.clone();
        let others = self.wanted;
        let is_it = move |top: &[u8]| {
            top == name.as_bytes() && others.as_ref().is_none_or(|asked| asked.has_top(top))
        };
        Self {
            single: true,
            ..Self::only(is_it)
        }
    }

    /// Checks a path below the target.
    ///
    /// # Errors
    /// [`WireError::Unasked`] if the path was not requested, or [`WireError::OfSharedJob`] if it leads into the
    /// directory of a shared job.
    pub fn check(&self, path: &RelPath) -> Result<(), WireError> {
        check_reserved(path.components())?;
        let Some(wanted) = &self.wanted else {
            return Ok(());
        };
        asked(if path.is_root() {
            self.itself
        } else {
            wanted.has(path) && !(self.single && path.components().nth(1).is_some())
        })
    }

    /// Checks the path of a directory.
    fn check_directory(&self, path: &RelPath) -> Result<(), WireError> {
        if self.single {
            Err(WireError::Unasked)
        } else {
            self.check(path)
        }
    }

    /// Checks names in a directory. The caller must have checked that the directory does not belong to a shared job.
    fn check_in<'a>(
        &self,
        directory: &RelPath,
        names: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(), WireError> {
        if !directory.is_root() && self.wanted.is_some() {
            self.check_directory(directory)?;
        }
        names.into_iter().try_for_each(|name| {
            check_reserved([name])?;
            asked(match self.wanted.as_deref() {
                Some(wanted) if directory.is_root() => wanted.has_top(name),
                Some(WantedNames::Listed(paths)) => {
                    paths.has(&[directory.as_bytes(), b"/", name].concat())
                }
                Some(WantedNames::Tops(_)) | None => true,
            })
        })
    }

    /// Checks the entries of a batch.
    pub(crate) fn check_batch(&self, batch: &Batch) -> Result<(), WireError> {
        for group in &batch.groups {
            check_reserved(group.directory.components())?;
            for entry in &group.entries {
                match entry {
                    BatchEntry::Directory(..) if self.single => return Err(WireError::Unasked),
                    BatchEntry::Link(link) => self.check(&link.first)?,
                    _ => {}
                }
                match entry.name() {
                    Some(name) => self.check_in(&group.directory, [name.as_bytes()])?,
                    None => self.check_directory(&group.directory)?,
                }
            }
        }
        Ok(())
    }

    fn check_question(&self, question: &Question) -> Result<(), WireError> {
        match question {
            Question::Send(groups) | Question::Report(groups) => {
                groups.iter().try_for_each(|group| self.check_group(group))
            }
            Question::Hash(groups) => self.check(&groups.path),
            // Listing the target itself would reveal all of its names.
            Question::Extraneous(ranges)
                if self.wanted.is_some()
                    && ranges.iter().any(|range| range.directory.is_root()) =>
            {
                Err(WireError::Unasked)
            }
            Question::Extraneous(ranges) => ranges
                .iter()
                .try_for_each(|range| self.check_directory(&range.directory)),
        }
    }

    fn check_group(&self, group: &EntryGroup) -> Result<(), WireError> {
        check_reserved(group.directory.components())?;
        if group.itself.is_some() {
            self.check_directory(&group.directory)?;
        }
        for entry in &group.entries {
            if let SourceKind::Link { first, .. } = &entry.kind {
                self.check(first)?;
            }
        }
        self.check_in(
            &group.directory,
            group.entries.iter().map(|entry| entry.name.as_bytes()),
        )
    }

    /// Checks all paths and names in a message.
    pub(crate) fn check_message(&self, message: &ToReceiver) -> Result<(), WireError> {
        match message {
            ToReceiver::Request(request) => self.check_question(&request.question),
            ToReceiver::Remove(_) if self.single => Err(WireError::Unasked),
            ToReceiver::Remove(remove) => remove.groups.iter().try_for_each(|group| {
                check_reserved(group.directory.components())?;
                self.check_in(
                    &group.directory,
                    group.names.iter().map(|name| name.as_bytes()),
                )
            }),
            _ => Ok(()),
        }
    }
}

fn asked(is_wanted: bool) -> Result<(), WireError> {
    if is_wanted {
        Ok(())
    } else {
        Err(WireError::Unasked)
    }
}

/// Checks that a path does not lead into the directory of a shared job, because receivers trust the contents of that
/// directory.
fn check_reserved<'a>(names: impl IntoIterator<Item = &'a [u8]>) -> Result<(), WireError> {
    if names.into_iter().any(is_shared_job_name) {
        Err(WireError::OfSharedJob)
    } else {
        Ok(())
    }
}

impl fmt::Debug for TopNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.wanted.is_some() {
            "TopNames(only)"
        } else {
            "TopNames(any)"
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zmove_types::{Metadata, Name, Root, Special};
    use zmove_wire::{
        DirectoryGroup, FileEntry, FileGroups, LinkEntry, NameRange, Remove, RemoveGroup, Request,
        SourceEntry, SourceMetadata,
    };

    fn path(text: &str) -> RelPath {
        RelPath::from_bytes(text.as_bytes()).unwrap()
    }

    fn name(text: &str) -> Name {
        Name::from_bytes(text.as_bytes()).unwrap()
    }

    fn batch(directory: &str, entry: BatchEntry) -> Batch {
        Batch {
            groups: vec![DirectoryGroup {
                directory: path(directory),
                entries: vec![entry],
            }],
        }
    }

    fn listed(paths: &[&str]) -> TopNames {
        let mut listed = ListedPaths::default();
        paths.iter().for_each(|path| listed.add(path.as_bytes()));
        TopNames::listed(Arc::new(listed))
    }

    /// Parent directories of listed paths are allowed, but none of their other entries.
    #[test]
    fn only_listed_paths_and_directories_on_the_way_to_them_come() {
        let names = listed(&["a/b/f", "./d/", "x//y"]);
        for (directory, entry, comes) in [
            ("", "a", true),
            ("a", "b", true),
            ("a/b", "f", true),
            ("", "d", true),
            ("x", "y", true),
            ("a/b", "g", false),
            ("a", "f", false),
            ("d", "f", false),
            ("x", "z", false),
            ("", "f", false),
        ] {
            let entry = name(entry);
            let root = Root([0; 32]);
            let file = FileEntry {
                name: entry.clone(),
                metadata: Metadata::default(),
                bytes: 0,
                root,
                data: None,
            };
            let batch = batch(directory, BatchEntry::File(file));
            assert_eq!(names.check_batch(&batch).is_ok(), comes, "{batch:?}");
            let whole = path(directory).join(&entry).unwrap();
            assert_eq!(names.check(&whole).is_ok(), comes, "{whole}");
            let groups = vec![group(directory, entry, SourceKind::Directory)];
            let request = request(Question::Report(groups));
            assert_eq!(names.check_message(&request).is_ok(), comes, "{request:?}");
        }
        let itself = |directory| batch(directory, BatchEntry::Itself(Metadata::default()));
        let comes = ["d", "a/b", "a/b/f/g", "a/c", ""]
            .map(|directory| names.check_batch(&itself(directory)).is_ok());
        assert_eq!(comes, [true, true, false, false, false]);
    }

    /// A single file may get the name of the target. In that case, paths are relative to the parent of the target.
    #[test]
    fn of_a_single_file_nothing_comes_beside_it() {
        let shape = TargetShape::Single {
            name: name("asked"),
        };
        let groups = vec![RemoveGroup {
            directory: path(""),
            names: vec![name("asked")],
        }];
        let messages = [
            list("asked"),
            ToReceiver::Remove(Remove { remove: 0, groups }),
        ];
        let retouched = |text: &str| BatchEntry::Retouch(name(text), Metadata::default());
        for names in [TopNames::default(), listed(&["asked", "."])] {
            let single = names.of_shape(&shape);
            assert!(single.check(&path("asked")).is_ok());
            assert!(single.check_batch(&batch("", retouched("asked"))).is_ok());
            for other in ["", "other", "asked/x"] {
                assert!(single.check(&path(other)).is_err(), "{other:?}");
            }
            for batch in [
                batch("", retouched("other")),
                batch("asked", retouched("asked")),
                batch(
                    "",
                    BatchEntry::Directory(name("asked"), Metadata::default()),
                ),
                batch("", BatchEntry::Itself(Metadata::default())),
                batch("asked", BatchEntry::Itself(Metadata::default())),
            ] {
                assert!(single.check_batch(&batch).is_err(), "{batch:?}");
            }
            assert!(
                messages
                    .iter()
                    .all(|message| single.check_message(message).is_err())
            );
        }
        let elsewhere = TopNames::only(|name| name == b"x").of_shape(&shape);
        assert!(elsewhere.check(&path("asked")).is_err());
    }

    /// Returns an entry of each kind except directories, at the top of the target.
    fn at_the_top(text: &str) -> [Batch; 4] {
        let (name, metadata, root) = (|| name(text), Metadata::default, Root([0; 32]));
        let file = FileEntry {
            name: name(),
            metadata: metadata(),
            bytes: 0,
            root,
            data: None,
        };
        [
            batch("", BatchEntry::Symlink(name(), metadata(), (*b"to").into())),
            batch("", BatchEntry::Retouch(name(), metadata())),
            batch("", BatchEntry::Special(name(), metadata(), Special::Fifo)),
            batch("", BatchEntry::File(file)),
        ]
    }

    #[test]
    fn what_was_not_asked_for_is_refused_in_every_batch() {
        let asked = TopNames::only(|name| name == b"asked");
        let any = TopNames::default();
        let directory = |text: &str| BatchEntry::Directory(name(text), Metadata::default());
        let link = |first: &str| {
            let (metadata, first) = (Metadata::default(), path(first));
            BatchEntry::Link(LinkEntry {
                name: name("x"),
                metadata,
                bytes: 0,
                first,
            })
        };
        let batches = [
            (batch("", directory("asked")), true),
            (batch("asked/d", directory("other")), true),
            (batch("asked", link("asked/y")), true),
            (batch("", directory("other")), false),
            (batch("other", directory("asked")), false),
            (batch("", BatchEntry::Itself(Metadata::default())), false),
            (batch("asked", link("other")), false),
            (batch("", link("asked/y")), false),
        ];
        let fitting = at_the_top("asked").map(|batch| (batch, true));
        let others = at_the_top("other").map(|batch| (batch, false));
        for (batch, fits) in batches.into_iter().chain(fitting).chain(others) {
            assert_eq!(asked.check_batch(&batch).is_ok(), fits, "{batch:?}");
            assert_eq!(any.check_batch(&batch), Ok(()));
        }
    }

    fn request(question: Question) -> ToReceiver {
        ToReceiver::Request(Request {
            number: 0,
            question,
        })
    }

    fn group(directory: &str, name: Name, kind: SourceKind) -> EntryGroup {
        let metadata = SourceMetadata {
            metadata: Metadata::default(),
            xattrs: None,
        };
        EntryGroup {
            directory: path(directory),
            itself: None,
            entries: vec![SourceEntry {
                name,
                kind,
                metadata,
            }],
        }
    }

    fn send(directory: &str, file: &str) -> ToReceiver {
        let kind = SourceKind::File {
            bytes: 0,
            mark: None,
        };
        request(Question::Send(vec![group(directory, name(file), kind)]))
    }

    fn list(directory: &str) -> ToReceiver {
        request(Question::Extraneous(vec![NameRange {
            directory: path(directory),
            after: None,
            names: Vec::new(),
            open: true,
        }]))
    }

    fn remove(directory: &str, gone: &str) -> ToReceiver {
        let groups = vec![RemoveGroup {
            directory: path(directory),
            names: vec![name(gone)],
        }];
        ToReceiver::Remove(Remove { remove: 0, groups })
    }

    fn report(kind: SourceKind, text: &str) -> ToReceiver {
        request(Question::Report(vec![group("", name(text), kind)]))
    }

    fn another(first: &str) -> SourceKind {
        SourceKind::Link {
            bytes: 0,
            first: path(first),
        }
    }

    fn hash(text: &str) -> ToReceiver {
        request(Question::Hash(FileGroups {
            path: path(text),
            first: 0,
            count: 1,
        }))
    }

    #[test]
    fn what_was_not_asked_for_is_refused_in_every_message() {
        let asked = TopNames::only(|name| name == b"asked");
        let any = TopNames::default();
        let messages = [
            (report(SourceKind::Directory, "asked"), true),
            (report(another("asked/x"), "asked"), true),
            (hash("asked/x"), true),
            (report(SourceKind::Directory, "other"), false),
            (report(another("other"), "asked"), false),
            (hash("other"), false),
            (send("", "asked"), true),
            (send("asked", "x"), true),
            (list("asked"), true),
            (remove("asked", "x"), true),
            (send("", "x"), false),
            (send("x", "asked"), false),
            (list(""), false),
            (list("x"), false),
            (remove("", "x"), false),
            (remove("x", "asked"), false),
        ];
        for (message, fits) in messages {
            assert_eq!(asked.check_message(&message).is_ok(), fits, "{message:?}");
            assert_eq!(any.check_message(&message), Ok(()));
        }
    }

    /// A sender could use a link to a journal of the job to change the journal in place.
    #[test]
    fn nobody_names_the_directory_of_a_shared_job() {
        let any = TopNames::default();
        let job = ".zmove-job-00112233445566778899aabbccddeeff";
        let directory = |text| BatchEntry::Directory(name(text), Metadata::default());
        let link = |first: &str| {
            let (first, metadata) = (path(first), Metadata::default());
            BatchEntry::Link(LinkEntry {
                name: name("l"),
                metadata,
                bytes: 0,
                first,
            })
        };
        let (below, inner) = (format!("{job}/journal-1"), format!("d/{job}/x"));
        for named in [job, &inner, &below] {
            assert!(any.check(&path(named)).is_err());
            assert!(any.check_batch(&batch(named, directory("d"))).is_err());
            assert!(any.check_batch(&batch("", link(named))).is_err());
        }
        assert!(any.check_batch(&batch("d", directory(job))).is_err());
        assert!(any.check_message(&list(job)).is_err());
        for other in [".zmove-job-", ".zmove-job-7", &job[..42], &job[1..]] {
            assert_eq!(
                any.check_batch(&batch(other, directory(other))),
                Ok(()),
                "{other}"
            );
        }
    }
}
