//! Compares two trees: names, types, modes, contents, and targets of symbolic links.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use anyhow::{Context, Result};

/// Whether a copy must have the modes of its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Modes {
    Compared,
    Ignored,
}

/// Describes the first difference, or returns `None` if the trees are the same. The modes of the roots are ignored.
pub(crate) fn difference(source: &Path, target: &Path, modes: Modes) -> Result<Option<String>> {
    let blocks = Blocks {
        source: vec![0; BLOCK_BYTES],
        target: vec![0; BLOCK_BYTES],
    };
    Comparison { modes, blocks }.directories(source, target)
}

/// Returns the bytes stored in all files below `root`, whatever their names. For each file, that is the smaller of its
/// length and its allocated space.
pub(crate) fn stored_bytes(root: &Path) -> Result<u64> {
    let mut bytes = 0;
    for name in names(root)? {
        let path = root.join(name);
        let found = metadata(&path)?;
        bytes += match () {
            () if found.is_dir() => stored_bytes(&path)?,
            () if found.is_file() => found.len().min(found.blocks() * 512),
            () => 0,
        };
    }
    Ok(bytes)
}

struct Comparison {
    modes: Modes,
    blocks: Blocks,
}

struct Blocks {
    source: Vec<u8>,
    target: Vec<u8>,
}

impl Comparison {
    fn directories(&mut self, source: &Path, target: &Path) -> Result<Option<String>> {
        let (names, found) = (names(source)?, names(target)?);
        if let Some(name) = names.symmetric_difference(&found).next() {
            let path = target.join(name);
            let what = if found.contains(name) {
                "is not in the source"
            } else {
                "is missing"
            };
            return Ok(Some(format!("{} {what}", path.display())));
        }
        for name in &names {
            let different = self.entries(&source.join(name), &target.join(name))?;
            if different.is_some() {
                return Ok(different);
            }
        }
        Ok(None)
    }

    fn entries(&mut self, source: &Path, target: &Path) -> Result<Option<String>> {
        let (expected, found) = (metadata(source)?, metadata(target)?);
        let differs = |what: &str| Ok(Some(format!("{}: {what} differs", target.display())));
        if expected.file_type() != found.file_type() {
            return differs("kind");
        }
        if expected.is_symlink() {
            let same = fs::read_link(source)? == fs::read_link(target)?;
            return if same {
                Ok(None)
            } else {
                differs("target of the link")
            };
        }
        if self.modes == Modes::Compared
            && expected.permissions().mode() != found.permissions().mode()
        {
            return differs("mode");
        }
        if expected.is_dir() {
            return self.directories(source, target);
        }
        if expected.is_file()
            && !(expected.len() == found.len() && same_bytes(source, target, &mut self.blocks)?)
        {
            return differs("content");
        }
        Ok(None)
    }
}

/// Returns the names in a directory.
pub(crate) fn names(directory: &Path) -> Result<BTreeSet<OsString>> {
    let entries = fs::read_dir(directory)
        .with_context(|| format!("failed to read {}", directory.display()))?;
    entries.map(|entry| Ok(entry?.file_name())).collect()
}

/// Returns the metadata of an entry, without following symbolic links.
pub(crate) fn metadata(path: &Path) -> Result<Metadata> {
    fs::symlink_metadata(path).with_context(|| format!("failed to look at {}", path.display()))
}

fn same_bytes(source: &Path, target: &Path, blocks: &mut Blocks) -> Result<bool> {
    let (mut expected, mut found) = (File::open(source)?, File::open(target)?);
    loop {
        let length = read_block(&mut expected, &mut blocks.source)?;
        let found_length = read_block(&mut found, &mut blocks.target)?;
        if blocks.source[..length] != blocks.target[..found_length] {
            return Ok(false);
        }
        if length == 0 {
            return Ok(true);
        }
    }
}

/// Fills the block, except at the end of the file.
fn read_block(file: &mut File, block: &mut [u8]) -> Result<usize> {
    let mut filled = 0;
    while filled < block.len() {
        match file.read(&mut block[filled..]) {
            Ok(0) => break,
            Ok(length) => filled += length,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(filled)
}

const BLOCK_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    fn tree() -> TempDir {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join("d")).unwrap();
        fs::write(place.path().join("d/f"), b"content").unwrap();
        symlink("f", place.path().join("d/l")).unwrap();
        place
    }

    fn found(change: impl FnOnce(&Path)) -> Option<String> {
        let (source, target) = (tree(), tree());
        change(target.path());
        let words = difference(source.path(), target.path(), Modes::Compared).unwrap();
        words.map(|words| words.replace(&target.path().display().to_string(), ""))
    }

    #[test]
    fn equal_trees_do_not_differ() {
        assert_eq!(found(|_| ()), None);
    }

    #[test]
    fn a_changed_byte_is_found() {
        let words = found(|target| fs::write(target.join("d/f"), b"contenT").unwrap());
        assert_eq!(words.as_deref(), Some("/d/f: content differs"));
    }

    #[test]
    fn a_missing_and_an_extra_name_are_told_apart() {
        let missing = found(|target| fs::remove_file(target.join("d/l")).unwrap());
        assert_eq!(missing.as_deref(), Some("/d/l is missing"));
        let extra = found(|target| fs::write(target.join("d/g"), b"").unwrap());
        assert_eq!(extra.as_deref(), Some("/d/g is not in the source"));
    }

    #[test]
    fn what_is_stored_is_counted_without_holes() {
        let place = tree();
        let whole = stored_bytes(place.path()).unwrap();
        assert_eq!(whole, b"content".len() as u64);
        File::create(place.path().join("d/.hidden"))
            .unwrap()
            .set_len(1 << 20)
            .unwrap();
        assert_eq!(stored_bytes(place.path()).unwrap(), whole);
    }

    #[test]
    fn a_changed_mode_is_found() {
        let words = found(|target| {
            fs::set_permissions(target.join("d/f"), fs::Permissions::from_mode(0o600)).unwrap();
        });
        assert_eq!(words.as_deref(), Some("/d/f: mode differs"));
    }

    #[test]
    fn a_changed_mode_may_be_ignored() {
        let (source, target) = (tree(), tree());
        fs::set_permissions(target.path().join("d"), fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(
            difference(source.path(), target.path(), Modes::Ignored).unwrap(),
            None
        );
    }

    #[test]
    fn a_changed_link_is_found() {
        let words = found(|target| {
            fs::remove_file(target.join("d/l")).unwrap();
            symlink("g", target.join("d/l")).unwrap();
        });
        assert_eq!(words.as_deref(), Some("/d/l: target of the link differs"));
    }
}
