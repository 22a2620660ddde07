//! The source: a random tree with every type of entry that zmove transfers, and its changes between two attempts.

mod names;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::metadata::{self, Features, Kind};
use super::plant::{self, Contents, GROUP_BYTES, Moment};
use super::versions::{Version, Versions};
use crate::torture::dice::Dice;

/// A tree that was created.
#[derive(Debug)]
pub(crate) struct Tree {
    root: PathBuf,
    /// All entries except the root. Each directory comes after its parent.
    entries: Vec<(PathBuf, Kind)>,
    dice: Dice,
    features: Features,
    names: usize,
    bytes: u64,
}

/// The size and the composition of a tree.
#[derive(Debug)]
pub(crate) struct Shape {
    pub(crate) weight: u64,
    pub(crate) directories: u64,
    pub(crate) files: u64,
    /// Maximum number of additional hard links.
    pub(crate) hard_links: u64,
    /// The weight of each of the [`SIZES`].
    pub(crate) sizes: [u64; SIZES.len()],
}

impl Tree {
    /// Creates a tree at the new directory `root`.
    pub(crate) fn grow(
        root: &Path,
        features: Features,
        dice: Dice,
        versions: &mut Versions,
    ) -> Result<Self> {
        Self::grow_like(&SHAPES, root, features, dice, versions)
    }

    /// Creates a tree of one of these shapes.
    pub(crate) fn grow_like(
        shapes: &[Shape],
        root: &Path,
        features: Features,
        mut dice: Dice,
        versions: &mut Versions,
    ) -> Result<Self> {
        fs::create_dir(root).with_context(|| format!("failed to create {}", root.display()))?;
        let shape = &shapes[dice.weighted(shapes.iter().map(|shape| shape.weight))];
        let (entries, root) = (Vec::new(), root.to_owned());
        let mut tree = Self {
            root,
            entries,
            dice,
            features,
            names: 0,
            bytes: 0,
        };
        tree.add_directories(shape, versions)?;
        for _ in 0..tree.dice.within(1..=shape.files) {
            tree.add_file(&shape.sizes, versions)?;
        }
        for _ in 0..tree.dice.within(0..=shape.files / 10 + 1) {
            tree.add_link(versions)?;
        }
        for _ in 0..tree.dice.within(0..=SPECIALS_MAX) {
            tree.add_special(versions)?;
        }
        for _ in 0..tree.dice.within(0..=shape.hard_links) {
            tree.add_hard_link(versions)?;
        }
        tree.finish_directories()?;
        Ok(tree)
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn entries(&self) -> &[(PathBuf, Kind)] {
        &self.entries
    }

    pub(crate) fn features(&self) -> Features {
        self.features
    }

    /// Returns the total size of its files, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds a file that is larger than the random ones.
    pub(crate) fn add_large(&mut self, bytes: u64, versions: &mut Versions) -> Result<()> {
        let Some(path) = self.fresh_path(Path::new("")) else {
            return Ok(());
        };
        self.bytes += bytes;
        self.write(&path, bytes, versions)?;
        self.entries.push((path, Kind::File));
        Ok(())
    }

    /// Makes random changes, as a user would.
    pub(crate) fn change(&mut self, versions: &mut Versions) -> Result<()> {
        for _ in 0..self.dice.within(1..=5) {
            let files: Vec<usize> = self.places_of(Kind::File);
            match self.dice.within(0..=8) {
                0 => self.add_file(&SHAPES[0].sizes, versions)?,
                1 => self.add_link(versions)?,
                _ if files.is_empty() => {}
                2 => Moment::draw(&mut self.dice).set(&self.file(&files))?,
                3 => {
                    let mode = self.file_mode();
                    plant::set_mode(&self.file(&files), mode)?;
                }
                4..=5 => self.redress()?,
                6 => self.add_special(versions)?,
                _ => self.rewrite(&files, versions)?,
            }
        }
        Ok(())
    }

    /// Changes the metadata of an entry without changing its modification time.
    fn redress(&mut self) -> Result<()> {
        if self.entries.is_empty() {
            return Ok(());
        }
        let place = self.dice.index(self.entries.len());
        let (path, kind) = &self.entries[place];
        let (whole, kind) = (self.root.join(path), *kind);
        if self.dice.one_in(2) {
            metadata::strip(&whole)?;
        }
        self.features.dress(&whole, kind, &mut self.dice)
    }

    fn file(&mut self, files: &[usize]) -> PathBuf {
        let place = *self.dice.pick(files);
        self.root.join(&self.entries[place].0)
    }

    /// Writes different contents, of the same or another length.
    fn rewrite(&mut self, files: &[usize], versions: &mut Versions) -> Result<()> {
        let place = *self.dice.pick(files);
        let path = self.entries[place].0.clone();
        let whole = self.root.join(&path);
        let look =
            || fs::symlink_metadata(&whole).with_context(|| format!("failed to look at {path:?}"));
        let old = look()?;
        let bytes = if self.dice.one_in(2) {
            old.len()
        } else {
            draw_bytes(&mut self.dice, &SHAPES[0].sizes)
        };
        fs::remove_file(&whole).with_context(|| format!("failed to remove {path:?}"))?;
        self.write(&path, bytes, versions)?;
        Moment::of(&look()?).unlike(Moment::of(&old)).set(&whole)
    }

    fn add_directories(&mut self, shape: &Shape, versions: &mut Versions) -> Result<()> {
        let chain = self.dice.one_in(4);
        for _ in 0..self.dice.within(0..=shape.directories) {
            let parent = if chain {
                self.entries
                    .last()
                    .map_or_else(PathBuf::new, |(path, _)| path.clone())
            } else {
                self.parent()
            };
            let Some(path) = self.fresh_path(&parent) else {
                continue;
            };
            versions.add(&path, Version::Directory);
            let whole = self.root.join(&path);
            fs::create_dir(&whole).with_context(|| format!("failed to create {path:?}"))?;
            self.features
                .dress(&whole, Kind::Directory, &mut self.dice)?;
            self.entries.push((path, Kind::Directory));
        }
        Ok(())
    }

    fn add_file(&mut self, sizes: &[u64; SIZES.len()], versions: &mut Versions) -> Result<()> {
        let parent = self.parent();
        let Some(path) = self.fresh_path(&parent) else {
            return Ok(());
        };
        let bytes = draw_bytes(&mut self.dice, sizes);
        if self.bytes + bytes > BYTES_MAX {
            return Ok(());
        }
        self.bytes += bytes;
        self.write(&path, bytes, versions)?;
        self.entries.push((path, Kind::File));
        Ok(())
    }

    fn write(&mut self, path: &Path, bytes: u64, versions: &mut Versions) -> Result<()> {
        let contents = Contents::draw(bytes, &mut self.dice);
        versions.add(path, contents.version());
        let whole = self.root.join(path);
        contents.write(&whole)?;
        self.features.dress(&whole, Kind::File, &mut self.dice)?;
        plant::set_mode(&whole, self.file_mode())?;
        Moment::draw(&mut self.dice).set(&whole)
    }

    fn add_link(&mut self, versions: &mut Versions) -> Result<()> {
        let parent = self.parent();
        let Some(path) = self.fresh_path(&parent) else {
            return Ok(());
        };
        let to = draw_link(&mut self.dice);
        versions.add(&path, Version::Link(to.clone()));
        let whole = self.root.join(&path);
        plant::link(&whole, &to)?;
        self.features.dress(&whole, Kind::Link, &mut self.dice)?;
        Moment::draw(&mut self.dice).set(&whole)?;
        self.entries.push((path, Kind::Link));
        Ok(())
    }

    fn add_special(&mut self, versions: &mut Versions) -> Result<()> {
        let parent = self.parent();
        let Some(path) = self.fresh_path(&parent) else {
            return Ok(());
        };
        if !self.features.privileged {
            return Ok(());
        }
        let whole = self.root.join(&path);
        metadata::make_special(&whole, &mut self.dice)?;
        let metadata =
            fs::symlink_metadata(&whole).with_context(|| format!("failed to look at {path:?}"))?;
        versions.add(&path, Version::of_special(&metadata));
        self.features.dress(&whole, Kind::Special, &mut self.dice)?;
        plant::set_mode(&whole, self.file_mode())?;
        Moment::draw(&mut self.dice).set(&whole)?;
        self.entries.push((path, Kind::Special));
        Ok(())
    }

    /// Adds a hard link to a file, symbolic link, FIFO, socket or device.
    fn add_hard_link(&mut self, versions: &mut Versions) -> Result<()> {
        let kind = *self
            .dice
            .pick(&[Kind::File, Kind::File, Kind::Link, Kind::Special]);
        let entries = self.places_of(kind);
        let parent = self.parent();
        let Some(path) = self.fresh_path(&parent) else {
            return Ok(());
        };
        if entries.is_empty() {
            return Ok(());
        }
        let first = self.entries[*self.dice.pick(&entries)].0.clone();
        for version in versions.of(&first).to_vec() {
            versions.add(&path, version);
        }
        fs::hard_link(self.root.join(&first), self.root.join(&path))
            .with_context(|| format!("failed to link {path:?}"))?;
        self.entries.push((path, kind));
        Ok(())
    }

    /// Returns a random directory of the tree.
    fn parent(&mut self) -> PathBuf {
        let directories = self.places_of(Kind::Directory);
        match self.dice.index(directories.len() + 1) {
            0 => PathBuf::new(),
            place => self.entries[directories[place - 1]].0.clone(),
        }
    }

    fn places_of(&self, wanted: Kind) -> Vec<usize> {
        let all = self.entries.iter().enumerate();
        all.filter(|(_, (_, kind))| *kind == wanted)
            .map(|(place, _)| place)
            .collect()
    }

    /// Returns a path for a new entry. `None` if it would be too long for a system call.
    fn fresh_path(&mut self, parent: &Path) -> Option<PathBuf> {
        self.names += 1;
        let path = parent.join(names::draw(&mut self.dice, self.names));
        (path.as_os_str().len() <= PATH_BYTES_MAX).then_some(path)
    }

    /// Sets times and modes of directories, deepest first. A new entry changes the time of its directory, and the mode
    /// may not allow one afterwards.
    fn finish_directories(&mut self) -> Result<()> {
        for place in self.places_of(Kind::Directory).into_iter().rev() {
            let path = self.root.join(&self.entries[place].0);
            Moment::draw(&mut self.dice).set(&path)?;
            plant::set_mode(&path, self.directory_mode())?;
        }
        Ok(())
    }

    /// Draws the mode of a file. Root can push files that no other user can read. Other users can push only files that
    /// they can read. Setuid bits require that the owner is preserved.
    fn file_mode(&mut self) -> u32 {
        let all = FILE_MODES.len();
        let count = match () {
            () if self.features.privileged => all,
            () if rustix::process::geteuid().is_root() => all - 2,
            () => all - 4,
        };
        *self.dice.pick(&FILE_MODES[..count])
    }

    fn directory_mode(&mut self) -> u32 {
        let all = DIRECTORY_MODES.len();
        let count = match () {
            () if self.features.privileged => all,
            () if rustix::process::geteuid().is_root() => all - 1,
            () => all - 4,
        };
        *self.dice.pick(&DIRECTORY_MODES[..count])
    }
}

/// Draws a size from one of the classes.
pub(crate) fn draw_bytes(dice: &mut Dice, weights: &[u64; SIZES.len()]) -> u64 {
    let (first, last) = SIZES[dice.weighted(weights.iter().copied())];
    match dice.within(0..=3) {
        // Sizes near group boundaries, where the code paths differ.
        0 if last > GROUP_BYTES => {
            let groups = dice.within(1..=last / GROUP_BYTES) * GROUP_BYTES;
            (groups + dice.within(0..=2))
                .saturating_sub(1)
                .clamp(first, last)
        }
        _ => dice.scaled_within(first..=last),
    }
}

/// Draws the target of a symbolic link, which in most cases does not exist.
pub(crate) fn draw_link(dice: &mut Dice) -> OsString {
    match dice.within(0..=5) {
        0 => "..".into(),
        1 => "/dev/null".into(),
        2 => "l".repeat(1 + dice.index(LINK_BYTES_MAX)).into(),
        3 => format!("f{:x}", dice.within(0..=100)).into(),
        _ => format!("nowhere/{}", dice.within(0..=9)).into(),
    }
}

/// Modes of files. The last two require that the owner is preserved. The two before deny access to the owner.
const FILE_MODES: [u32; 13] = [
    0o644, 0o644, 0o644, 0o600, 0o755, 0o400, 0o444, 0o777, 0o640, 0o000, 0o200, 0o4755, 0o6711,
];
/// Modes of directories. The last mode requires that the owner is preserved. The three before restrict the access of
/// the owner.
const DIRECTORY_MODES: [u32; 9] = [
    0o755, 0o755, 0o755, 0o700, 0o1777, 0o555, 0o000, 0o111, 0o2775,
];

/// Minimum and maximum size of a file, in bytes.
const SIZES: [(u64, u64); 6] = [
    (0, 0),
    (1, 4_096),
    (4_097, 1 << 20),
    ((1 << 20) + 1, GROUP_BYTES),
    (GROUP_BYTES + 1, 4 * GROUP_BYTES),
    (4 * GROUP_BYTES + 1, 15 * GROUP_BYTES),
];

const SHAPES: [Shape; 5] = [
    Shape {
        weight: 4,
        directories: 20,
        files: 150,
        hard_links: 12,
        sizes: [10, 60, 20, 6, 4, 0],
    },
    Shape {
        weight: 2,
        directories: 60,
        files: 900,
        hard_links: 12,
        sizes: [10, 85, 5, 0, 0, 0],
    },
    Shape {
        weight: 2,
        directories: 4,
        files: 12,
        hard_links: 12,
        sizes: [1, 2, 2, 2, 6, 2],
    },
    Shape {
        weight: 1,
        directories: 1,
        files: 3,
        hard_links: 12,
        sizes: [1, 1, 1, 1, 3, 6],
    },
    Shape {
        weight: 1,
        directories: 30,
        files: 3,
        hard_links: 12,
        sizes: [1, 1, 1, 1, 0, 0],
    },
];

const SPECIALS_MAX: u64 = 6;
/// Maximum total size, so that a round takes only seconds.
const BYTES_MAX: u64 = 64 << 20;
/// Maximum length of a path. It leaves space for the directory of the round, because complete paths are passed to the
/// kernel.
const PATH_BYTES_MAX: usize = 3_500;
/// Maximum length of a link's target. The limit of XFS is 1,024 bytes.
const LINK_BYTES_MAX: usize = 1_000;
