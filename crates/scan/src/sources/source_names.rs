//! Lists all names in the source trees, directory by directory. A mirror keeps these names at the target.
//!
//! **Invariant:** a [`DirectoryNames`] contains every name of its directory, including names that the selection
//! excludes. Otherwise, the iterator returns an error. It does so if a directory cannot be read completely, or if a
//! root is not the directory that the first walk opened. After all listings, it also does so if a mount of the first
//! walk is missing. As in the walk, nothing below a root is opened through a symbolic link, and no excluded directory
//! is opened.

use std::ffi::CStr;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, StatxFlags, statx};
use zmove_disk::is_shared_job_name;
use zmove_types::{Name, RelPath};

use crate::config::{ScanConfig, ScanRoot};
use crate::directory::{Directory, SourceRoot};
use crate::error::{Operation, ScanError};
use crate::listing::Listing;
use crate::selection::PathKind;
use crate::sources::shared_parents::SharedParents;
use crate::sources::walk_record::{DirectoryChange, Mounts};

/// All names that the sources have for one directory of the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryNames {
    /// The path of the directory below the target.
    pub directory: RelPath,
    /// The names in byte order.
    pub names: Vec<Name>,
    /// Whether the names may differ from the names that the first walk found.
    pub changed: bool,
    /// An empty source directory that maps to this directory, if any.
    pub empty_source: Option<PathBuf>,
}

/// An iterator over the listings of all directories below some roots, parents first. Only the names of one directory
/// and the paths of pending directories are in memory.
#[derive(Debug)]
pub struct SourceNames {
    waiting: Vec<Result<PendingDirectory, ScanError>>,
    config: ScanConfig,
    /// The mounts of the first walk that this walk has not found yet.
    missing_mounts: Mounts,
    listing_buffer: Listing,
}

/// A directory of the target that has not been listed yet.
#[derive(Debug)]
struct PendingDirectory {
    /// The roots that map to the directory. Only the target itself can have several.
    roots: Vec<Arc<SourceRoot>>,
    /// The path of the directory below these roots.
    path: RelPath,
    /// Names that other roots add to this directory.
    added_names: Vec<Name>,
    /// Whether the directory may have been moved here since the first walk, alone or with a directory above it.
    moved: bool,
}

/// The contents of one directory.
#[derive(Default)]
struct DirectoryContents {
    names: Vec<Name>,
    directories: Vec<RelPath>,
    changed: bool,
    /// Whether the directory may have been moved here since the first walk, with everything below it.
    moved: bool,
}

impl SourceNames {
    /// Creates the listings of these roots. `config` is the configuration of the first walk, with its record. The first
    /// walk must have ended. Directories that the selection excludes, or that are on other file systems, are not
    /// listed. A root that is not a directory has no listing.
    #[must_use]
    pub fn of(roots: &[ScanRoot], config: ScanConfig) -> Self {
        let walk_record = config.walk_record.as_ref();
        let parents = SharedParents::default();
        let mut waiting = Vec::new();
        let mut tops = Vec::new();
        let mut names = Vec::new();
        for root in roots {
            names.extend(
                root.prefix
                    .components()
                    .next()
                    .and_then(|name| Name::from_bytes(name).ok()),
            );
            if !admits(&config, &root.prefix) {
                continue;
            }
            match open_root(&parents, root) {
                Ok(opened)
                    if walk_record.is_some_and(|walk| {
                        walk.is_replaced_root(&root.source, opened.as_ref())
                    }) =>
                {
                    waiting.push(Err(ScanError::RootReplaced {
                        path: root.source.clone(),
                    }));
                }
                Ok(None) => {}
                Ok(Some(opened)) if root.prefix.is_root() => tops.push(Arc::new(opened)),
                Ok(Some(opened)) => waiting.push(Ok(PendingDirectory::top(
                    vec![Arc::new(opened)],
                    Vec::new(),
                ))),
                Err(errno) => waiting.push(Err(root.failed(Operation::Open)(errno))),
            }
        }
        if !tops.is_empty() {
            waiting.push(Ok(PendingDirectory::top(tops, names)));
        }
        let missing_mounts = walk_record.map(|walk| walk.mounts()).unwrap_or_default();
        Self {
            waiting,
            config,
            missing_mounts,
            listing_buffer: Listing::default(),
        }
    }

    /// Lists one directory. Returns `None` if the directory is on a file system that the walk does not enter.
    fn list(&mut self, waiting: PendingDirectory) -> Result<Option<DirectoryNames>, ScanError> {
        let PendingDirectory {
            roots,
            path,
            added_names,
            moved,
        } = waiting;
        let mut listing = None;
        let mut names = added_names;
        let mut changed = moved;
        let mut empty_source = None;
        for root in &roots {
            let Some((directory, found)) = self.read(root, &path)? else {
                continue;
            };
            let below = |path| PendingDirectory {
                roots: vec![Arc::clone(root)],
                path,
                added_names: Vec::new(),
                moved: moved || found.moved,
            };
            self.waiting
                .extend(found.directories.into_iter().map(below).map(Ok));
            if path.is_root() && found.names.is_empty() {
                empty_source = Some(root.path().to_owned());
            }
            names.extend(found.names);
            changed |= found.changed;
            listing = Some(directory);
        }
        names.sort_unstable();
        names.dedup();
        Ok(listing.map(|directory| DirectoryNames {
            directory,
            names,
            changed,
            empty_source,
        }))
    }

    fn read(
        &mut self,
        root: &Arc<SourceRoot>,
        path: &RelPath,
    ) -> Result<Option<(RelPath, DirectoryContents)>, ScanError> {
        let failed = root.open_error(path);
        let directory = match Directory::open(root, path) {
            Err(_) if root.is_excluded_mount(path, self.config.file_systems) => return Ok(None),
            opened => opened.map_err(&failed)?,
        };
        let within = directory
            .is_within(self.config.file_systems)
            .map_err(&failed)?;
        let mut found = if within {
            self.read_names(&directory)?
        } else {
            DirectoryContents::default()
        };
        // The times are read after the names, so the times reflect every change that the names include.
        let status = directory.status().map_err(&failed)?;
        if let Some(mount) = status.mount(root) {
            self.missing_mounts.remove(&mount);
        }
        let walk_record = self.config.walk_record.as_ref();
        let change = walk_record.map_or(DirectoryChange::Nothing, |walk| walk.change(&status));
        found.changed = change != DirectoryChange::Nothing;
        // A root cannot have been moved here undetected, because its inode number was compared.
        found.moved = change == DirectoryChange::Replaced && !path.is_root();
        Ok(within.then(|| (directory.target_path().clone(), found)))
    }

    fn read_names(&mut self, directory: &Directory) -> Result<DirectoryContents, ScanError> {
        let mut found = DirectoryContents::default();
        directory.list(&mut self.listing_buffer, |entry| {
            found.add(
                directory,
                &self.config,
                entry.file_name(),
                entry.file_type(),
            )
        })?;
        Ok(found)
    }
}

impl PendingDirectory {
    /// Creates the entry for the top directory of some roots. `added_names` holds the names of other roots in it.
    fn top(roots: Vec<Arc<SourceRoot>>, added_names: Vec<Name>) -> Self {
        Self {
            roots,
            path: RelPath::root(),
            added_names,
            moved: false,
        }
    }
}

impl DirectoryContents {
    /// Adds an entry to the contents. Always returns `true`, so that the listing continues.
    fn add(
        &mut self,
        directory: &Directory,
        config: &ScanConfig,
        name: &CStr,
        kind: FileType,
    ) -> Result<bool, ScanError> {
        // Directories of shared jobs are never listed. A mirror does not remove them at the target either.
        if is_shared_job_name(name.to_bytes()) {
            return Ok(true);
        }
        let refused = |source| ScanError::Path {
            path: directory.full_path(),
            source,
        };
        let parsed = Name::from_bytes(name.to_bytes()).map_err(refused)?;
        directory.check_length(&parsed).map_err(refused)?;
        let kind = match kind {
            FileType::Unknown => {
                let stat = statx(
                    directory.fd(),
                    name,
                    AtFlags::SYMLINK_NOFOLLOW,
                    StatxFlags::TYPE,
                )
                .map_err(|errno| {
                    ScanError::listed(directory.display_path(&parsed), Operation::Stat, errno)
                })?;
                FileType::from_raw_mode(stat.stx_mode.into())
            }
            known => known,
        };
        if kind == FileType::Directory
            && admits(
                config,
                &directory.target_path().join(&parsed).map_err(refused)?,
            )
        {
            self.directories
                .push(directory.source_path().join(&parsed).map_err(refused)?);
        }
        self.names.push(parsed);
        Ok(true)
    }
}

impl Iterator for SourceNames {
    type Item = Result<DirectoryNames, ScanError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let Some(waiting) = self.waiting.pop() else {
                let path = self.missing_mounts.drain().map(|(_, path)| path).min()?;
                return Some(Err(ScanError::MountGone { path }));
            };
            if let Some(listed) = waiting.and_then(|waiting| self.list(waiting)).transpose() {
                return Some(listed);
            }
        }
    }
}

/// Returns whether the selection includes a directory.
fn admits(config: &ScanConfig, directory: &RelPath) -> bool {
    let selection = config.selection.as_ref();
    selection.is_none_or(|selection| selection.admits(directory, PathKind::Directory))
}

/// Opens a root. Returns `None` if it is not a directory.
fn open_root(parents: &SharedParents, root: &ScanRoot) -> rustix::io::Result<Option<SourceRoot>> {
    let Some(flags) = root.directory_flags()? else {
        return Ok(None);
    };
    Ok(Some(parents.open(root, Some(flags))?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selection::{Effect, Rule, Selection};
    use crate::sources::walk_record::WalkRecord;

    fn root(source: PathBuf, prefix: &str) -> ScanRoot {
        ScanRoot::new(source, RelPath::from_bytes(prefix.as_bytes()).unwrap())
    }

    fn listings(roots: &[ScanRoot], selection: Option<Arc<Selection>>) -> SourceNames {
        let config = ScanConfig {
            selection,
            walk_record: Some(Arc::new(WalkRecord::begin(Vec::new()))),
            ..ScanConfig::default()
        };
        SourceNames::of(roots, config)
    }

    fn listed(roots: &[ScanRoot], selection: Option<Arc<Selection>>) -> Vec<(String, Vec<String>)> {
        let shown = |listing: DirectoryNames| {
            let names = listing.names.iter().map(ToString::to_string).collect();
            (listing.directory.to_string(), names)
        };
        let mut all: Vec<_> = listings(roots, selection)
            .map(|listing| shown(listing.unwrap()))
            .collect();
        all.sort();
        all
    }

    #[test]
    fn what_several_roots_bring_to_one_directory_is_one_list() {
        let home = tempfile::tempdir().unwrap();
        for path in ["a/x", "a/d/f", "b/y", "c/z"] {
            let path = home.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        std::os::unix::fs::symlink("d", home.path().join("a/link")).unwrap();
        let at = |name: &str| home.path().join(name);
        let roots = [
            root(at("a/"), ""),
            root(at("b/"), ""),
            root(at("c"), "c"),
            root(at("a/x"), "x2"),
        ];
        let expected = [
            (".", &["c", "d", "link", "x", "x2", "y"][..]),
            ("c", &["z"]),
            ("d", &["f"]),
        ];
        let expected: Vec<_> = expected
            .iter()
            .map(|(path, names)| {
                (
                    (*path).to_owned(),
                    names.iter().map(|&name| name.to_owned()).collect(),
                )
            })
            .collect();
        assert_eq!(listed(&roots, None), expected);
    }

    #[test]
    fn what_cannot_be_listed_is_an_error_and_no_listing() {
        let home = tempfile::tempdir().unwrap();
        let roots = [
            root(home.path().join("gone/"), ""),
            root(home.path().join("other"), "o"),
        ];
        assert!(listings(&roots, None).all(|listing| listing.is_err()));
        assert_eq!(listings(&roots, None).count(), 2);
    }

    #[test]
    fn what_is_left_out_is_named_and_not_looked_into_but_for_jobs() {
        let home = tempfile::tempdir().unwrap();
        for path in [
            "a/skip/x",
            "a/d/skip",
            "skip/y",
            &format!("a/.zmove-job-{}/x", "7".repeat(32)),
        ] {
            let path = home.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let rules = [Rule::new(Effect::Exclude, b"skip").unwrap()];
        let selection = Some(Arc::new(Selection::new(&rules, 5..=9).unwrap()));
        let roots = [
            root(home.path().join("a/"), ""),
            root(home.path().join("skip"), "skip"),
        ];
        let expected = [(".", vec!["d", "skip"]), ("d", vec!["skip"])];
        let expected: Vec<_> = expected
            .into_iter()
            .map(|(path, names)| {
                (
                    path.to_owned(),
                    names.into_iter().map(str::to_owned).collect(),
                )
            })
            .collect();
        assert_eq!(listed(&roots, selection), expected);
    }
}
