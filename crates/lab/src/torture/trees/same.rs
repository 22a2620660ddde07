//! Checks that the target equals the source in every byte and field: type, size, contents, holes, mode, time in
//! nanoseconds, owner, extended attributes, hard links, and the targets of symbolic links. Also finds files that zmove
//! left behind.

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::metadata::xattrs;
use super::plant::data_ranges;
use super::versions::Version;
use crate::data::trees::{metadata, names};
use crate::torture::watch::is_hidden;

/// Describes all differences. The paths in `extra` may exist in the target but not in the source.
pub(crate) fn differences(source: &Path, target: &Path, extra: &[PathBuf]) -> Result<Vec<String>> {
    let mut comparison = Comparison {
        source,
        target,
        extra,
        block: vec![0; BLOCK_BYTES],
        inodes: Default::default(),
        found: Vec::new(),
    };
    comparison.entry(Path::new(""))?;
    Ok(comparison.found)
}

/// Returns the hidden names anywhere below a directory, which need not exist.
pub(crate) fn hidden_names(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    if root.exists() {
        add_hidden_names(root, &mut found)?;
    }
    Ok(found)
}

fn add_hidden_names(directory: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for name in names(directory)? {
        let path = directory.join(&name);
        if is_hidden(&name) {
            found.push(path);
        } else if metadata(&path)?.is_dir() {
            add_hidden_names(&path, found)?;
        }
    }
    Ok(())
}

struct Comparison<'a> {
    source: &'a Path,
    target: &'a Path,
    extra: &'a [PathBuf],
    block: Vec<u8>,
    /// The first name of each inode in the source and in the target.
    inodes: [HashMap<(u64, u64), PathBuf>; 2],
    found: Vec<String>,
}

impl Comparison<'_> {
    fn entry(&mut self, path: &Path) -> Result<()> {
        let (from, to) = (self.source.join(path), self.target.join(path));
        let (expected, there) = (metadata(&from)?, metadata(&to)?);
        if expected.file_type() != there.file_type() {
            self.found.push(format!("{path:?} is of another type"));
            return Ok(());
        }
        if expected.is_symlink() {
            self.field(path, "target", &read_link(&from)?, &read_link(&to)?);
        } else {
            self.field(
                path,
                "mode",
                &(expected.mode() & 0o7777),
                &(there.mode() & 0o7777),
            );
        }
        let owners = |metadata: &Metadata| (metadata.uid(), metadata.gid());
        self.field(path, "owner", &owners(&expected), &owners(&there));
        self.field(path, "attributes", &xattrs(&from)?, &xattrs(&to)?);
        let modified = |metadata: &Metadata| (metadata.mtime(), metadata.mtime_nsec());
        self.field(path, "time", &modified(&expected), &modified(&there));
        if expected.is_dir() {
            return self.directory(path, &from, &to);
        }
        self.links(path, &expected, &there);
        if !expected.is_file() {
            self.field(path, "device", &expected.rdev(), &there.rdev());
            return Ok(());
        }
        let versions = [self.version(&from)?, self.version(&to)?];
        self.field(path, "contents", &versions[0], &versions[1]);
        let holes = [ranges(&from)?, ranges(&to)?];
        self.field(path, "data", &holes[0], &holes[1]);
        Ok(())
    }

    /// Checks that the first name of this file in one tree is also its first name in the other.
    fn links(&mut self, path: &Path, expected: &Metadata, there: &Metadata) {
        let mut firsts = [PathBuf::new(), PathBuf::new()];
        for ((names, metadata), first) in self
            .inodes
            .iter_mut()
            .zip([expected, there])
            .zip(&mut firsts)
        {
            let key = (metadata.dev(), metadata.ino());
            first.clone_from(names.entry(key).or_insert_with(|| path.to_owned()));
        }
        self.field(path, "first name", &firsts[0], &firsts[1]);
    }

    fn directory(&mut self, path: &Path, from: &Path, to: &Path) -> Result<()> {
        let (expected, there) = (names(from)?, names(to)?);
        for name in &expected {
            if there.contains(name) {
                self.entry(&path.join(name))?;
            } else {
                self.found.push(format!("{:?} is missing", path.join(name)));
            }
        }
        for name in there.difference(&expected).filter(|name| !is_hidden(name)) {
            if !self.extra.contains(&path.join(name)) {
                self.found
                    .push(format!("{:?} is not in the source", path.join(name)));
            }
        }
        Ok(())
    }

    fn field<T: PartialEq + std::fmt::Debug>(
        &mut self,
        path: &Path,
        what: &str,
        expected: &T,
        there: &T,
    ) {
        if expected != there {
            self.found.push(format!(
                "{path:?}: {what} is {there:?} and not {expected:?}"
            ));
        }
    }

    fn version(&mut self, path: &Path) -> Result<Version> {
        let failed = || format!("failed to read {}", path.display());
        let mut file = File::open(path).with_context(failed)?;
        Version::of_file(&mut file, &mut self.block).with_context(failed)
    }
}

fn ranges(path: &Path) -> Result<Vec<Range<u64>>> {
    let failed = || format!("failed to look for holes of {}", path.display());
    let file = File::open(path).with_context(failed)?;
    data_ranges(&file).with_context(failed)
}

fn read_link(path: &Path) -> Result<PathBuf> {
    fs::read_link(path).with_context(|| format!("failed to read the link {}", path.display()))
}

const BLOCK_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::torture::trees::plant::{Moment, set_mode};

    const THEN: Moment = Moment {
        seconds: 1_000_000_000,
        nanos: 7,
    };

    fn tree() -> tempfile::TempDir {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join("d")).unwrap();
        fs::write(place.path().join("d/f"), "contents").unwrap();
        symlink("f", place.path().join("d/l")).unwrap();
        for path in ["d/f", "d/l", "d", ""] {
            THEN.set(&place.path().join(path)).unwrap();
        }
        place
    }

    fn found(change: impl FnOnce(&Path)) -> String {
        let (source, target) = (tree(), tree());
        change(target.path());
        for path in ["d", ""] {
            THEN.set(&target.path().join(path)).unwrap();
        }
        differences(source.path(), target.path(), &["d/extra".into()])
            .unwrap()
            .join("; ")
    }

    #[test]
    fn equal_trees_do_not_differ_whatever_else_is_allowed() {
        assert_eq!(found(|_| ()), "");
        assert_eq!(
            found(|target| fs::write(target.join("d/extra"), "").unwrap()),
            ""
        );
    }

    #[test]
    fn every_field_counts() {
        let nanosecond_later = |target: &Path| {
            let later = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 8);
            File::open(target.join("d/f"))
                .unwrap()
                .set_modified(later)
                .unwrap();
        };
        assert!(found(nanosecond_later).contains("time"));
        assert!(found(|target| set_mode(&target.join("d/f"), 0o606).unwrap()).contains("mode"));
        assert!(found(|target| set_mode(target, 0o707).unwrap()).contains("mode"));
        assert!(
            found(|target| Moment { nanos: 8, ..THEN }
                .set(&target.join("d/l"))
                .unwrap())
            .contains("time")
        );
        let another_byte = |target: &Path| {
            fs::write(target.join("d/f"), "Contents").unwrap();
            THEN.set(&target.join("d/f")).unwrap();
        };
        assert!(found(another_byte).contains("contents"));
        assert!(found(|target| fs::remove_file(target.join("d/f")).unwrap()).contains("missing"));
        assert!(
            found(|target| fs::write(target.join("d/g"), "").unwrap())
                .contains("not in the source")
        );
    }

    #[test]
    fn what_else_a_file_has_counts_too() {
        let linked = |target: &Path| {
            fs::remove_file(target.join("d/f")).unwrap();
            fs::write(target.join("first"), "contents").unwrap();
            fs::hard_link(target.join("first"), target.join("d/f")).unwrap();
            THEN.set(&target.join("d/f")).unwrap();
        };
        assert_eq!(
            found(linked),
            "\"first\" is not in the source",
            "one name in the source is no group"
        );
        let (source, target) = (tree(), tree());
        for (root, first) in [(&source, "d/f"), (&target, "d/g")] {
            fs::write(root.path().join("d/g"), "contents").unwrap();
            fs::hard_link(root.path().join(first), root.path().join("d/h")).unwrap();
        }
        let differ =
            |source: &Path, target: &Path| differences(source, target, &[]).unwrap().join("; ");
        assert!(
            differ(source.path(), target.path())
                .contains("\"d/h\": first name is \"d/g\" and not \"d/f\"")
        );
        let apart = |target: &Path| {
            symlink("f", target.join("d/another")).unwrap();
            THEN.set(&target.join("d/another")).unwrap();
        };
        let (source, target) = (tree(), tree());
        fs::hard_link(source.path().join("d/l"), source.path().join("d/another")).unwrap();
        apart(target.path());
        for root in [&source, &target] {
            THEN.set(&root.path().join("d")).unwrap();
        }
        assert_eq!(
            differ(source.path(), target.path()),
            "\"d/l\": first name is \"d/l\" and not \"d/another\""
        );
        let features = super::super::metadata::Features::of(source.path()).unwrap();
        let required = std::env::var_os("ZMOVE_REQUIRE_LAB").is_some_and(|value| value == "1");
        assert!(!required || features.xattrs && features.privileged);
        if features.xattrs {
            let set = |target: &Path| {
                rustix::fs::setxattr(
                    target.join("d/f"),
                    "user.a",
                    b"x",
                    rustix::fs::XattrFlags::empty(),
                )
                .unwrap();
            };
            assert!(found(set).contains("attributes"));
        }
        if features.privileged {
            let give = |target: &Path| {
                std::os::unix::fs::chown(target.join("d/f"), Some(7), None).unwrap()
            };
            assert!(found(give).contains("owner"));
        }
    }

    #[test]
    fn another_type_or_another_link_counts() {
        let another = |target: &Path| {
            fs::remove_file(target.join("d/l")).unwrap();
            symlink("g", target.join("d/l")).unwrap();
        };
        assert!(found(another).contains("target"));
        let file = |target: &Path| {
            fs::remove_file(target.join("d/l")).unwrap();
            fs::write(target.join("d/l"), "contents").unwrap();
        };
        assert!(found(file).contains("type"));
    }

    #[test]
    fn hidden_names_are_found_at_any_depth() {
        let target = tree();
        fs::write(target.path().join("d/.zmove-1-2"), "").unwrap();
        assert_eq!(
            hidden_names(target.path()).unwrap(),
            [target.path().join("d/.zmove-1-2")]
        );
        assert!(
            hidden_names(&target.path().join("nowhere"))
                .unwrap()
                .is_empty()
        );
    }
}
