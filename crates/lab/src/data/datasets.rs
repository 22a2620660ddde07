//! Data sets. They are deterministic and incompressible, and are created once and kept for later runs.
//!
//! The set `k1` is a directory `k1` next to a marker file `k1.complete`. Without the marker, the set is created again.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Serialize;

use crate::processes::run;

/// The default directory of data sets.
pub(crate) const DEFAULT_DIRECTORY: &str = "/var/tmp/zmove-lab";

/// A data set on disk.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct DataSet {
    pub(crate) name: String,
    pub(crate) root: PathBuf,
    pub(crate) files: u64,
    pub(crate) bytes: u64,
}

struct Recipe<'a> {
    name: &'a str,
    files: u64,
    file_bytes: u64,
    files_per_directory: u64,
}

impl<'a> Recipe<'a> {
    const fn of(name: &'a str, files: u64, file_bytes: u64) -> Self {
        Self {
            name,
            files,
            file_bytes,
            files_per_directory: 1_000,
        }
    }

    /// Returns a recipe of 5,000 files in ten directories.
    const fn few(name: &'a str, file_bytes: u64) -> Self {
        Self {
            name,
            files: 5_000,
            file_bytes,
            files_per_directory: 500,
        }
    }
}

/// Returns the set `name` below `directory`. Creates the set if it does not exist.
pub(crate) fn ensure(name: &str, directory: &Path) -> Result<DataSet> {
    ensure_made(name, directory, |root| make(name, root))
}

/// Returns a set of `files` files of one size below `directory`. Creates the set if it does not exist.
pub(crate) fn ensure_uniform(files: u64, file_bytes: u64, directory: &Path) -> Result<DataSet> {
    let name = format!("uniform-{files}x{file_bytes}");
    ensure_made(&name, directory, |root| {
        fill(&Recipe::of(&name, files, file_bytes), root)
    })
}

/// Returns a set like `ensure_uniform`, but in a single directory.
pub(crate) fn ensure_flat(files: u64, file_bytes: u64, directory: &Path) -> Result<DataSet> {
    let name = format!("flat-{files}x{file_bytes}");
    let recipe = Recipe {
        files_per_directory: files,
        ..Recipe::of(&name, files, file_bytes)
    };
    ensure_made(&name, directory, |root| fill(&recipe, root))
}

fn ensure_made(
    name: &str,
    directory: &Path,
    make: impl FnOnce(&Path) -> Result<()>,
) -> Result<DataSet> {
    let root = directory.join(name);
    let marker = directory.join(format!("{name}.complete"));
    if !marker.exists() {
        eprintln!(
            "zmove-lab: making data set {name} in {}",
            directory.display()
        );
        if root.exists() {
            fs::remove_dir_all(&root)
                .with_context(|| format!("failed to remove {}", root.display()))?;
        }
        make(&root)?;
        File::create(&marker).with_context(|| format!("failed to create {}", marker.display()))?;
    }
    let mut set = DataSet {
        name: name.to_owned(),
        root,
        files: 0,
        bytes: 0,
    };
    let root = set.root.clone();
    count(&root, &mut set)?;
    Ok(set)
}

/// Returns a copy of `set`, such as `g2.changed` next to `g2`. In the copy, some bytes of one in a hundred groups of
/// the large files are different, as are the files' times. Creates the copy if it does not exist.
pub(crate) fn ensure_changed(set: &DataSet) -> Result<DataSet> {
    let name = format!("{}.changed", set.name);
    let directory = set
        .root
        .parent()
        .context("a data set has a parent directory")?;
    ensure_made(&name, directory, |root| {
        let (from, to) = (set.root.to_str(), root.to_str());
        run::output(
            "cp",
            &["-a", from.context(NOT_UTF8)?, to.context(NOT_UTF8)?],
        )?;
        visit(root, &mut |path, bytes| {
            change(path, bytes).with_context(|| format!("failed to change {}", path.display()))
        })
    })
}

/// Overwrites some of the file's groups with different bytes.
fn change(path: &Path, bytes: u64) -> Result<()> {
    let file = File::options().read(true).write(true).open(path)?;
    let mut piece = [0; CHANGED_BYTES];
    for offset in changed_places(bytes) {
        file.read_exact_at(&mut piece, offset)?;
        for byte in &mut piece {
            *byte = !*byte;
        }
        file.write_all_at(&piece, offset)?;
    }
    Ok(())
}

/// Returns the offsets at which a file of this size is changed: in one of a hundred groups, evenly distributed.
fn changed_places(bytes: u64) -> Vec<u64> {
    let groups = bytes / GROUP_BYTES;
    let changed = groups / 100;
    (0..changed)
        .map(|number| (number * 2 + 1) * groups / (changed * 2) * GROUP_BYTES + GROUP_BYTES / 3)
        .collect()
}

/// Reads every file once, so that the page cache contains the set as far as memory allows.
pub(crate) fn warm(set: &DataSet) -> Result<()> {
    let mut buffer = vec![0; BLOCK_BYTES];
    visit(&set.root, &mut |path, _| {
        let mut file = File::open(path)?;
        while file.read(&mut buffer)? > 0 {}
        Ok(())
    })
}

fn count(root: &Path, set: &mut DataSet) -> Result<()> {
    visit(root, &mut |_, bytes| {
        set.files += 1;
        set.bytes += bytes;
        Ok(())
    })
}

/// Calls `each` for every regular file with its path and size.
pub(crate) fn visit(
    directory: &Path,
    each: &mut dyn FnMut(&Path, u64) -> Result<()>,
) -> Result<()> {
    let entries = fs::read_dir(directory)
        .with_context(|| format!("failed to read {}", directory.display()))?;
    for entry in entries {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            visit(&entry.path(), each)?;
        } else if kind.is_file() {
            each(&entry.path(), entry.metadata()?.len())?;
        }
    }
    Ok(())
}

fn make(name: &str, root: &Path) -> Result<()> {
    if name == REAL {
        return copy_toolchain(root);
    }
    let Some(recipe) = RECIPES.iter().find(|recipe| recipe.name == name) else {
        let known: Vec<&str> = RECIPES.iter().map(|recipe| recipe.name).collect();
        bail!(
            "no data set {name}; there are {} and {REAL}",
            known.join(" ")
        );
    };
    fill(recipe, root)
}

fn fill(recipe: &Recipe<'_>, root: &Path) -> Result<()> {
    let mut stream = blake3::Hasher::new_derive_key(SEED)
        .update(recipe.name.as_bytes())
        .finalize_xof();
    let mut block = vec![0; BLOCK_BYTES];
    for index in 0..recipe.files {
        let directory = root.join(format!("d{:03}", index / recipe.files_per_directory));
        if index % recipe.files_per_directory == 0 {
            fs::create_dir_all(&directory)
                .with_context(|| format!("failed to create {}", directory.display()))?;
        }
        let path = directory.join(format!("f{index:06}"));
        write_file(&path, recipe.file_bytes, &mut block, &mut stream)
            .with_context(|| format!("failed to write {}", path.display()))?;
    }
    Ok(())
}

fn write_file(
    path: &Path,
    bytes: u64,
    block: &mut [u8],
    stream: &mut blake3::OutputReader,
) -> Result<()> {
    let mut file = File::create(path)?;
    let mut left = bytes;
    while left > 0 {
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(block.len());
        stream.fill(&mut block[..length]);
        file.write_all(&block[..length])?;
        left -= length as u64;
    }
    Ok(())
}

/// Creates a data set from a real tree: the Rust toolchain in use.
fn copy_toolchain(root: &Path) -> Result<()> {
    let sysroot = run::output("rustc", &["--print", "sysroot"])?;
    let parent = root.parent().context("a data set has a parent directory")?;
    fs::create_dir_all(parent)?;
    let target = root.to_str().context(NOT_UTF8)?;
    run::output("cp", &["-a", "--reflink=never", sysroot.trim(), target])?;
    Ok(())
}

const RECIPES: [Recipe<'_>; 10] = [
    Recipe::few("k1s", 1 << 10),
    Recipe::few("k16s", 16 << 10),
    Recipe::of("k1", 50_000, 1 << 10),
    Recipe::of("k16", 20_000, 16 << 10),
    Recipe::of("k128", 6_000, 128 << 10),
    Recipe::of("m1", 1_000, 1 << 20),
    Recipe::of("m8", 8, 8 << 20),
    Recipe::of("m64", 32, 64 << 20),
    Recipe::of("g2", 1, 2 << 30),
    Recipe::of("e500k", 500_000, 16),
];
const REAL: &str = "real";
const NOT_UTF8: &str = "the data directory is not UTF-8";
/// The size of the groups into which zmove splits large files.
const GROUP_BYTES: u64 = 4 << 20;
const CHANGED_BYTES: usize = 1_000;
const SEED: &str = "zmove-lab data sets, version 1";
const BLOCK_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::super::trees::{Modes, difference};
    use super::*;

    #[test]
    fn a_set_is_spread_over_directories_and_the_same_each_time() {
        let place = tempfile::tempdir().unwrap();
        let recipe = Recipe::of("test", 1_001, 3);
        fill(&recipe, &place.path().join("a")).unwrap();
        fill(&recipe, &place.path().join("b")).unwrap();
        let last = "d001/f001000";
        let first_time = fs::read(place.path().join("a").join(last)).unwrap();
        assert_eq!(first_time.len(), 3);
        let [first, second] = ["a", "b"].map(|name| place.path().join(name));
        assert_eq!(difference(&first, &second, Modes::Compared).unwrap(), None);
    }

    #[test]
    fn one_in_a_hundred_groups_is_changed_and_they_are_spread() {
        let places = changed_places(2 << 30);
        let groups: Vec<u64> = places.iter().map(|place| place / GROUP_BYTES).collect();
        assert_eq!(groups, [51, 153, 256, 358, 460]);
        assert!(changed_places(99 * GROUP_BYTES).is_empty());
    }

    #[test]
    fn a_changed_set_differs_in_some_bytes_and_keeps_its_sizes() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("test");
        fs::create_dir(&root).unwrap();
        let file = File::create(root.join("f")).unwrap();
        file.set_len(200 * GROUP_BYTES).unwrap();
        let set = DataSet {
            name: "test".to_owned(),
            root,
            files: 1,
            bytes: 200 * GROUP_BYTES,
        };
        let changed = ensure_changed(&set).unwrap();
        assert_eq!(changed.root, place.path().join("test.changed"));
        let after = File::open(changed.root.join("f")).unwrap();
        assert_eq!(after.metadata().unwrap().len(), set.bytes);
        let mut piece = [0; CHANGED_BYTES];
        for offset in changed_places(set.bytes) {
            after.read_exact_at(&mut piece, offset).unwrap();
            assert_eq!(piece, [0xFF; CHANGED_BYTES]);
        }
        let unchanged = vec![0; usize::try_from(GROUP_BYTES).unwrap()];
        let mut group = unchanged.clone();
        let mut changed_bytes = 0;
        for offset in (0..set.bytes).step_by(group.len()) {
            after.read_exact_at(&mut group, offset).unwrap();
            if group != unchanged {
                changed_bytes += group.iter().filter(|byte| **byte != 0).count();
            }
        }
        let places = changed_places(set.bytes).len();
        assert_eq!(changed_bytes, places * CHANGED_BYTES, "no others differ");
    }

    #[test]
    fn an_unknown_set_is_refused() {
        let place = tempfile::tempdir().unwrap();
        assert!(ensure("k3", place.path()).is_err());
    }
}
