//! Finds the requested sources beneath the roots of the key and expands globs in them.
//!
//! **Invariant:** for a key with roots, every source is opened relative to a root's descriptor without following links,
//! and globs match only entries beneath the roots. The number of names that are read and matched is bounded for all
//! sources together. The memory and the descriptors of the results are charged to the key, and the search shares CPU
//! time with the key's other work.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use zmove_disk::{PathCause, Roots, Task, Turn, list_directory, open_beneath};
use zmove_receiver::{Charge, Quota, choose_root, without_dots};
use zmove_scan::{ScanRoot, glob_matches, is_glob, means_contents};
use zmove_types::{Escaped, Name, RelPath};
use zmove_wire::limits::{FETCH_MATCHES_MAX, FETCH_SOURCE_BYTES_MAX};
use zmove_wire::{Refusal, RefusalCode, SourcePath, TargetShape};

use crate::access::refusals::denied;

/// The files that a peer may read.
#[derive(Clone, Debug)]
pub(crate) enum ReadAccess {
    /// All files that this process may read. Used for the user who started the process.
    Anywhere,
    /// Files beneath these roots. A relative source is relative to the first root.
    Beneath(Roots),
}

/// The sources that were found.
#[derive(Debug)]
pub(crate) struct FoundSources {
    pub(crate) roots: Vec<ScanRoot>,
    /// The shape of the target that results from the sources.
    pub(crate) shape: TargetShape,
    /// The sources that cannot be opened. Each item names a source and the reason.
    pub(crate) missing: Vec<String>,
    /// The reservations for the sources.
    pub(crate) held: Vec<Charge>,
}

/// A search for sources, with the resources of the key that the search may use.
struct Search<'a> {
    access: &'a ReadAccess,
    quota: &'a Quota,
    turn: Turn<'a>,
    /// The reservations for memory and for descriptors.
    memory: Charge,
    descriptors: Vec<Charge>,
    /// The opened roots of the key, and opened directories beneath them that hold sources.
    opened: HashMap<PathBuf, Arc<OwnedFd>>,
    /// Number of directory entries that were read, plus the number of entries that globs have matched.
    looked_at: usize,
    matched: usize,
}

/// The starting point of the search for a source.
enum SearchGround {
    /// A root of the key, with its path.
    Root(Arc<OwnedFd>, PathBuf),
    /// The file system as seen by this process.
    Own,
}

/// A source that exists.
struct Source {
    root: ScanRoot,
    /// The name at the target. `None` if the contents of the source are requested.
    top: Option<Name>,
    is_directory: bool,
    ground: Arc<SearchGround>,
    /// The path relative to `ground`.
    path: Vec<u8>,
}

/// The reason why a source cannot be sent.
enum Unusable {
    /// The source cannot be opened. Other sources are still sent.
    Missing(io::Error),
    /// The order is refused and nothing is sent.
    Refused(Refusal),
}

impl From<io::Error> for Unusable {
    fn from(error: io::Error) -> Self {
        Self::Missing(error)
    }
}

impl From<Refusal> for Unusable {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// The path of a requested source, relative to the starting point of the search. If the starting point is a root, the
/// path has no empty or single-dot components.
struct Wanted {
    ground: Arc<SearchGround>,
    /// The components, any of which may be a glob.
    path: Vec<u8>,
    /// Whether the contents of a directory are requested.
    contents: bool,
    /// The name that the contents of a whole root get at the target. Set only if the root was requested by that name.
    root_name: Option<Vec<u8>>,
}

/// Maximum number of directory entries that are read for one order.
const LOOKED_AT_MAX: usize = 4 << 20;
/// Memory that a path takes in addition to its bytes, in bytes. A source takes `SOURCE_BYTES` plus the memory of
/// `SOURCE_PATHS` copies of its path.
const PATH_BYTES: usize = 64;
const SOURCE_BYTES: usize = 512;
const SOURCE_PATHS: usize = 6;

impl FoundSources {
    /// Finds the requested sources. Stops with an error when `stopping` is set. May block on file I/O.
    ///
    /// # Errors
    /// Returns a refusal if no source exists, if a source lies outside the roots, if two sources would get the same
    /// name, or if they exceed the key's limits.
    pub(crate) fn find(
        asked: &[SourcePath],
        access: &ReadAccess,
        quota: &Quota,
        stopping: &AtomicBool,
    ) -> Result<Self, Refusal> {
        let mut search = Search {
            access,
            quota,
            turn: quota.turn(Task::Read, stopping),
            memory: quota.empty_charge(),
            descriptors: Vec::new(),
            opened: HashMap::new(),
            looked_at: 0,
            matched: 0,
        };
        let mut found = Vec::new();
        let mut missing = Vec::new();
        for SourcePath(path) in asked {
            if path.len() > FETCH_SOURCE_BYTES_MAX || path.contains(&0) {
                return Err(Refusal::new(
                    RefusalCode::Protocol,
                    "a source path is too long or contains a NUL byte",
                ));
            }
            let wanted = search.locate(path)?;
            for path in search.expand(&wanted)? {
                search.ask_for_turn()?;
                search.charge(SOURCE_BYTES + SOURCE_PATHS * path.len())?;
                match search.examine(&wanted, &path) {
                    Ok(source) => found.push(source),
                    Err(Unusable::Refused(refusal)) => return Err(refusal),
                    Err(Unusable::Missing(error)) => {
                        let path = wanted.ground.shown(&path);
                        let cause = PathCause {
                            error: &error,
                            path: &path,
                        };
                        missing.push(format!("open '{}': {cause}", Escaped::path(&path)));
                    }
                }
            }
        }
        search.refuse_same_names(&found)?;
        if found.is_empty() {
            let text = format!(
                "nothing to send: {}",
                missing.first().map_or("no source exists", |first| first)
            );
            return Err(Refusal::new(RefusalCode::Target, text));
        }
        let mut held = search.descriptors;
        held.push(search.memory);
        Ok(Self {
            shape: shape(&found),
            roots: found.into_iter().map(|source| source.root).collect(),
            missing: missing
                .into_iter()
                .map(|source| format!("sender: {source}"))
                .collect(),
            held,
        })
    }
}

impl Search<'_> {
    /// Waits until the key's other work allows this search to use more CPU time. Fails if the session has ended.
    fn ask_for_turn(&self) -> Result<(), Refusal> {
        if self.turn.is_over() {
            return Err(Refusal::new(RefusalCode::Stopping, "the session has ended"));
        }
        Ok(())
    }

    fn charge(&mut self, bytes: usize) -> Result<(), Refusal> {
        self.memory
            .grow(bytes)
            .map_err(|error| Refusal::new(RefusalCode::Full, error.to_string()))
    }

    fn charge_descriptor(&mut self) -> Result<(), Refusal> {
        let booked = self.quota.charge_descriptor().ok_or_else(|| {
            let text = "the sources are in more directories than this key may have open (limits.files_per_identity): \
                        request the directory above them, or try again later";
            Refusal::new(RefusalCode::Full, text)
        })?;
        self.descriptors.push(booked);
        Ok(())
    }

    /// Determines the ground and the path of a source, and whether its contents are requested.
    fn locate(&mut self, source: &[u8]) -> Result<Wanted, Refusal> {
        let contents = means_contents(source);
        let ReadAccess::Beneath(roots) = self.access else {
            let path = if source.is_empty() { b"." } else { source };
            return Ok(Wanted {
                ground: Arc::new(SearchGround::Own),
                path: path.to_vec(),
                contents,
                root_name: None,
            });
        };
        let (root, rest) = choose_root(source, roots.paths(), "read")?;
        let clean = RelPath::from_bytes(&without_dots(rest))
            .map_err(|error| denied(format!("source '{}': {error}", Escaped(source))))?;
        let last = source
            .rsplit(|&byte| byte == b'/')
            .next()
            .filter(|_| clean.is_root() && !contents);
        Ok(Wanted {
            ground: Arc::new(SearchGround::Root(
                self.open_root(roots, root)?,
                root.to_owned(),
            )),
            path: clean.as_bytes().to_vec(),
            contents: contents || clean.is_root(),
            root_name: last.map(<[u8]>::to_vec),
        })
    }

    /// Opens a root of the key. Each root is opened only once, even if several sources lie beneath it.
    fn open_root(&mut self, roots: &Roots, root: &Path) -> Result<Arc<OwnedFd>, Refusal> {
        if let Some(opened) = self.opened.get(root) {
            return Ok(Arc::clone(opened));
        }
        self.charge_descriptor()?;
        let tree = roots.open(root).map_err(|error| {
            let cause = PathCause {
                error: &error,
                path: root,
            };
            Refusal::new(
                RefusalCode::of_target(&error),
                format!("open root '{}': {cause}", Escaped::path(root)),
            )
        })?;
        let opened = tree.open_directory(&RelPath::root());
        let opened =
            opened.map_err(|error| Refusal::new(RefusalCode::Target, error.to_string()))?;
        self.opened.insert(root.to_owned(), Arc::clone(&opened));
        Ok(opened)
    }

    /// Opens the directory that holds a source beneath a root. Each directory is opened only once, even if it holds
    /// several sources.
    fn open_parent(
        &mut self,
        ground: &SearchGround,
        parent: &RelPath,
    ) -> Result<Arc<OwnedFd>, Unusable> {
        let SearchGround::Root(root, _) = ground else {
            return Err(Unusable::Missing(Errno::INVAL.into()));
        };
        if parent.is_root() {
            return Ok(Arc::clone(root));
        }
        let shown = ground.shown(parent.as_bytes());
        if let Some(opened) = self.opened.get(&shown) {
            return Ok(Arc::clone(opened));
        }
        self.charge_descriptor()?;
        let opened = open_beneath(root.as_fd(), parent, OFlags::PATH | OFlags::DIRECTORY);
        let opened = Arc::new(opened.map_err(io::Error::from)?);
        self.opened.insert(shown, Arc::clone(&opened));
        Ok(opened)
    }

    /// Returns the paths that match the globs in a source, without duplicates. Returns the path itself if it has no
    /// globs or nothing matches.
    fn expand(&mut self, wanted: &Wanted) -> Result<Vec<Vec<u8>>, Refusal> {
        if !is_glob(&wanted.path) {
            return Ok(vec![wanted.path.clone()]);
        }
        let absolute = wanted.path.starts_with(b"/");
        let mut paths = vec![if absolute { b"/".to_vec() } else { Vec::new() }];
        for part in wanted
            .path
            .split(|&byte| byte == b'/')
            .filter(|part| !part.is_empty())
        {
            let mut next = Vec::new();
            for path in paths {
                if !is_glob(part) {
                    next.push(join(&path, part));
                    continue;
                }
                let before = next.len();
                // As in a shell, a directory that cannot be listed has no matches.
                self.list(&wanted.ground, &path, |search, name| {
                    if glob_matches(part, name) {
                        search.count_match(&wanted.path, path.len() + name.len())?;
                        next.push(join(&path, name));
                    }
                    Ok(())
                })?;
                next[before..].sort_unstable();
            }
            paths = next;
        }
        let mut there = Vec::new();
        for path in paths {
            self.ask_for_turn()?;
            if wanted.ground.is_directory(&path, false).is_ok() {
                there.push(path);
            }
        }
        if there.is_empty() {
            there.push(wanted.path.clone());
        }
        Ok(there)
    }

    fn count_match(&mut self, glob: &[u8], bytes: usize) -> Result<(), Refusal> {
        self.matched += 1;
        if self.matched > FETCH_MATCHES_MAX {
            let text = format!(
                "'{}' and the sources before it match more than {FETCH_MATCHES_MAX} names",
                Escaped(glob)
            );
            return Err(denied(text));
        }
        self.charge(PATH_BYTES + bytes)
    }

    /// Calls `each` with every name in a directory. Calls it for no name if the directory cannot be opened, and stops
    /// at a read error.
    fn list(
        &mut self,
        ground: &SearchGround,
        path: &[u8],
        mut each: impl FnMut(&mut Self, &[u8]) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let entries = ground
            .open_directory(path)
            .and_then(|directory| Ok(list_directory(directory)?));
        for entry in entries.into_iter().flatten().map_while(Result::ok) {
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            self.ask_for_turn()?;
            self.looked_at += 1;
            if self.looked_at > LOOKED_AT_MAX {
                let text = format!(
                    "this host would have to read more than {LOOKED_AT_MAX} names to find the sources"
                );
                return Err(denied(text));
            }
            each(self, name)?;
        }
        Ok(())
    }

    fn examine(&mut self, wanted: &Wanted, path: &[u8]) -> Result<Source, Unusable> {
        let Wanted {
            ground,
            contents,
            root_name,
            ..
        } = wanted;
        let is_directory = ground.is_directory(path, *contents)?;
        if *contents && !is_directory {
            return Err(Unusable::Missing(Errno::NOTDIR.into()));
        }
        let mut shown = ground.shown(path);
        if *contents {
            shown.push("");
        }
        let name = path
            .rsplit(|&byte| byte == b'/')
            .next()
            .filter(|_| !contents)
            .or(root_name.as_deref());
        let (top, prefix) = top_of(name)?;
        let root = ScanRoot::new(shown, prefix);
        let root = match **ground {
            SearchGround::Own => root,
            SearchGround::Root(..) => {
                let (parent, below) = self.place_beneath(ground, path, is_directory)?;
                root.beneath(parent, below)
            }
        };
        Ok(Source {
            root,
            top,
            is_directory,
            ground: Arc::clone(ground),
            path: path.to_vec(),
        })
    }

    /// Opens the directory beneath a root that holds a source. Returns the directory and the path of the source in it.
    fn place_beneath(
        &mut self,
        ground: &SearchGround,
        path: &[u8],
        is_directory: bool,
    ) -> Result<(Arc<OwnedFd>, RelPath), Unusable> {
        let path = relative(path)?;
        if is_directory {
            // The later scan opens the directory itself, so another descriptor is charged for the scan.
            self.charge_descriptor()?;
        }
        let Some((parent, name)) = path.split() else {
            return Ok((self.open_parent(ground, &path)?, path));
        };
        let parent = self.open_parent(ground, &parent)?;
        let below = RelPath::root().join(&name).map_err(io::Error::other)?;
        Ok((parent, below))
    }

    /// Refuses sources that would create entries with the same name at the target. Otherwise chance would decide which
    /// of these sources the target gets.
    fn refuse_same_names(&mut self, found: &[Source]) -> Result<(), Refusal> {
        if found.len() < 2 {
            return Ok(());
        }
        let mut names = HashSet::new();
        for Source {
            top, ground, path, ..
        } in found
        {
            match top {
                Some(top) => self.note_name(&mut names, top.as_bytes())?,
                // If a directory cannot be listed, no names are added here. The later scan reports the error.
                None => self.list(ground, path, |search, name| {
                    search.note_name(&mut names, name)
                })?,
            }
        }
        Ok(())
    }

    fn note_name(&mut self, names: &mut HashSet<Vec<u8>>, name: &[u8]) -> Result<(), Refusal> {
        self.charge(PATH_BYTES + name.len())?;
        if !names.insert(name.to_vec()) {
            let text = format!(
                "two sources would both become '{}' at the target",
                Escaped(name)
            );
            return Err(Refusal::new(RefusalCode::Target, text));
        }
        if names.len() > FETCH_MATCHES_MAX {
            let text = "too many sources to check for duplicate names: request them one at a time";
            return Err(denied(text));
        }
        Ok(())
    }
}

impl SearchGround {
    fn shown(&self, path: &[u8]) -> PathBuf {
        let path = Path::new(std::ffi::OsStr::from_bytes(path));
        match self {
            Self::Root(_, root) => root.join(path),
            Self::Own => path.to_owned(),
        }
    }

    fn open_directory(&self, path: &[u8]) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match self {
            Self::Root(root, _) => Ok(open_beneath(root.as_fd(), &relative(path)?, flags)?),
            Self::Own => {
                let path = if path.is_empty() { b"." } else { path };
                Ok(rustix::fs::open(path, flags, Mode::empty())?)
            }
        }
    }

    fn is_directory(&self, path: &[u8], contents: bool) -> io::Result<bool> {
        let follow = if contents {
            OFlags::empty()
        } else {
            OFlags::NOFOLLOW
        };
        let opened = match self {
            Self::Root(root, _) => open_beneath(root.as_fd(), &relative(path)?, OFlags::PATH)?,
            Self::Own => {
                rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC | follow, Mode::empty())?
            }
        };
        let mode = rustix::fs::fstat(&opened)?.st_mode;
        Ok(FileType::from_raw_mode(mode) == FileType::Directory)
    }
}

/// Converts the name that a source gets at the target. Also returns the path of the source at the target, which is the
/// target itself if the source has no name.
fn top_of(name: Option<&[u8]>) -> io::Result<(Option<Name>, RelPath)> {
    let top = name
        .map(Name::from_bytes)
        .transpose()
        .map_err(io::Error::other)?;
    let prefix = match &top {
        Some(name) => RelPath::root().join(name).map_err(io::Error::other)?,
        None => RelPath::root(),
    };
    Ok((top, prefix))
}

fn relative(path: &[u8]) -> io::Result<RelPath> {
    RelPath::from_bytes(path).map_err(|_| Errno::INVAL.into())
}

fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    let separator: &[u8] = if path.is_empty() || path.ends_with(b"/") {
        b""
    } else {
        b"/"
    };
    [path, separator, name].concat()
}

fn shape(found: &[Source]) -> TargetShape {
    if let [
        Source {
            top: Some(name),
            is_directory: false,
            ..
        },
    ] = found
    {
        return TargetShape::Single { name: name.clone() };
    }
    let tops: Option<Vec<_>> = found.iter().map(|source| source.top.clone()).collect();
    TargetShape::Directory {
        tops: tops.unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use zmove_receiver::{Limits, Quotas};
    use zmove_transport::Fingerprint;

    fn find(root: &Path, sources: &[&str], quota: &Quota) -> Result<FoundSources, Refusal> {
        let asked: Vec<_> = sources
            .iter()
            .map(|path| SourcePath(path.as_bytes().to_vec()))
            .collect();
        FoundSources::find(
            &asked,
            &ReadAccess::Beneath(vec![root.to_owned()].into()),
            quota,
            &AtomicBool::new(false),
        )
    }

    fn ask(root: &Path, sources: &[&str]) -> Result<Vec<String>, Refusal> {
        let found = find(root, sources, &Quota::default())?;
        let mut shown: Vec<_> = found
            .roots
            .iter()
            .map(|found| {
                let path = found
                    .source
                    .strip_prefix(root)
                    .unwrap()
                    .display()
                    .to_string();
                format!("{path}→{}", found.prefix)
            })
            .collect();
        shown.extend(
            found
                .missing
                .iter()
                .map(|line| line.rsplit(": ").next().unwrap().to_owned()),
        );
        Ok(shown)
    }

    fn tree() -> tempfile::TempDir {
        let home = tempfile::tempdir().unwrap();
        for path in ["a/x.txt", "a/y.txt", "a/.hidden", "b/x.txt", "file"] {
            let path = home.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        symlink("/", home.path().join("out")).unwrap();
        home
    }

    #[test]
    fn sources_are_found_with_their_names_and_globs_match_names() {
        let home = tree();
        let ask = |sources: &[&str]| ask(home.path(), sources).unwrap();
        assert_eq!(ask(&["a"]), ["a→a"]);
        assert_eq!(ask(&["a/"]), ["a→."]);
        assert_eq!(ask(&["./a//x.txt"]), ["a/x.txt→x.txt"]);
        assert_eq!(ask(&["a/*.txt"]), ["a/x.txt→x.txt", "a/y.txt→y.txt"]);
        assert_eq!(ask(&["*/y.txt"]), ["a/y.txt→y.txt"]);
        assert_eq!(ask(&[""]), ["→."]);
        assert_eq!(ask(&["out"]), ["out→out"]);
        assert_eq!(ask(&["a", "none*"])[0], "a→a");
        assert_eq!(ask(&["a", "none"]).len(), 2);
        assert_eq!(ask(&[&format!("{}/b", home.path().display())]), ["b→b"]);
    }

    #[test]
    fn nothing_leads_out_of_the_root() {
        let home = tree();
        let refused = |sources: &[&str]| ask(home.path(), sources).unwrap_err();
        for source in ["..", "a/../../x", "/etc/passwd", "a/../file"] {
            assert_eq!(refused(&[source]).code, RefusalCode::Denied, "{source}");
        }
        for source in ["out/", "out/etc", "out/*", "out/etc/pass*"] {
            let refusal = refused(&[source]);
            assert_eq!(refusal.code, RefusalCode::Target, "{source}");
            // The text must not contain names of entries outside the root.
            assert!(
                refusal
                    .text
                    .contains(&format!("/{}'", source.trim_end_matches('/'))),
                "{refusal:?}"
            );
        }
    }

    #[test]
    fn two_sources_with_one_name_are_refused() {
        let home = tree();
        for sources in [
            &["*/x.txt"][..],
            &["a/", "b/"],
            &["a/x.txt", "b/"],
            &["[ab]/"],
        ] {
            let refusal = ask(home.path(), sources).unwrap_err();
            assert!(refusal.text.contains("'x.txt'"), "{refusal:?}");
        }
    }

    /// Returns the quota of a key with this limit on descriptors and the minimum amount of memory.
    fn quota(files_per_identity: usize) -> Quota {
        let memory_per_identity = zmove_types::ByteCount(64 << 20);
        let limits = Limits {
            files_per_identity,
            memory_per_identity,
            ..Limits::default()
        };
        Quotas::default().of(Fingerprint([1; 32]), &limits)
    }

    #[test]
    fn a_directory_of_which_many_entries_are_asked_for_is_opened_once() {
        let home = tree();
        let names: Vec<_> = (0..200).map(|number| format!("a/{number}")).collect();
        names
            .iter()
            .for_each(|name| std::fs::write(home.path().join(name), "").unwrap());
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let quota = quota(64);
        let found = find(home.path(), &names, &quota).unwrap();
        assert_eq!(found.roots.len(), 200);
        let left = std::iter::from_fn(|| quota.charge_descriptor());
        assert_eq!(
            left.collect::<Vec<_>>().len(),
            64 - 2,
            "the root and the directory"
        );
    }

    #[test]
    fn directories_that_stay_open_are_booked() {
        let home = tree();
        (0..70).for_each(|number| {
            std::fs::create_dir(home.path().join(format!("a/{number}"))).unwrap()
        });
        let quota = quota(64);
        let refusal = find(home.path(), &["a/[0-9]*"], &quota).unwrap_err();
        assert_eq!(refusal.code, RefusalCode::Full, "{refusal:?}");
        assert!(
            refusal.text.contains("limits.files_per_identity"),
            "{refusal:?}"
        );
        assert!(
            find(home.path(), &["a/[0-9]"], &quota).is_ok(),
            "all has been given back"
        );
    }

    #[test]
    fn names_are_bounded_and_booked_over_all_sources() {
        let home = tree();
        (0..300).for_each(|number| {
            std::fs::write(home.path().join(format!("b/{number}")), "").unwrap()
        });
        let quota = quota(64);
        let refusal = find(home.path(), &["b/*"; 300], &quota).unwrap_err();
        assert_eq!(refusal.code, RefusalCode::Denied);
        assert!(
            refusal.text.contains("match more than 65536 names"),
            "{refusal:?}"
        );
        let booked = quota.charge_memory(60 << 20).unwrap();
        let refusal = find(home.path(), &["b/*"; 100], &quota).unwrap_err();
        assert_eq!(refusal.code, RefusalCode::Full);
        assert!(
            refusal.text.contains("limits.memory_per_identity"),
            "{refusal:?}"
        );
        drop(booked);
        assert!(
            quota.charge_memory(64 << 20).is_ok(),
            "all has been given back"
        );
        // Names that match the glob but do not contain the last component.
        let _booked = quota.charge_memory(63 << 20).unwrap();
        assert_eq!(
            find(home.path(), &["b/*/none"; 200], &quota)
                .unwrap_err()
                .code,
            RefusalCode::Full
        );
    }

    #[test]
    fn a_search_ends_with_its_session() {
        let home = tree();
        let asked = [SourcePath(b"a/*".to_vec())];
        let access = ReadAccess::Beneath(vec![home.path().to_owned()].into());
        let refusal =
            FoundSources::find(&asked, &access, &Quota::default(), &AtomicBool::new(true))
                .unwrap_err();
        assert_eq!(refusal.code, RefusalCode::Stopping);
    }
}
