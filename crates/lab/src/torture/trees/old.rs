//! A target that is older than the source. Some entries are equal, some are other versions, some have another type, and
//! some do not exist in the source.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::metadata::{Features, Kind};
use super::plant::{self, Contents, GROUP_BYTES, Moment};
use super::tree::{Tree, draw_link};
use super::versions::{Version, Versions};
use crate::torture::dice::Dice;

/// Creates the old entries in the empty directory `target`. Returns the paths that do not exist in the source.
pub(crate) fn plant(
    tree: &Tree,
    target: &Path,
    mut dice: Dice,
    versions: &mut Versions,
) -> Result<Vec<PathBuf>> {
    let share = dice.within(1..=4);
    let mut extra = Vec::new();
    for (path, kind) in tree.entries() {
        let there = path
            .parent()
            .is_some_and(|parent| is_directory(&target.join(parent)));
        if !there || (*kind != Kind::Directory && !dice.one_in(share)) {
            continue;
        }
        let (from, to) = (tree.root().join(path), target.join(path));
        match kind {
            Kind::Directory => directory(path, &to, &mut dice, versions)?,
            Kind::File => file(path, &from, &to, &mut dice, versions)?,
            Kind::Link | Kind::Special => other(path, &to, &mut dice, versions)?,
        }
        if dice.one_in(3) {
            dress(tree.features(), &to, &mut dice)?;
        }
        if *kind == Kind::Directory && is_directory(&to) && dice.one_in(4) {
            let path = path.join("only in the old target");
            new_file(&path, &target.join(&path), &mut dice, versions)?;
            extra.push(path);
        }
    }
    Ok(extra)
}

/// Creates a directory, or rarely another entry that the push must replace by a directory.
fn directory(path: &Path, to: &Path, dice: &mut Dice, versions: &mut Versions) -> Result<()> {
    if dice.one_in(20) {
        return other(path, to, dice, versions);
    }
    fs::create_dir(to).with_context(|| format!("failed to create {}", to.display()))
}

fn file(
    path: &Path,
    from: &Path,
    to: &Path,
    dice: &mut Dice,
    versions: &mut Versions,
) -> Result<()> {
    let metadata =
        fs::symlink_metadata(from).with_context(|| format!("failed to look at {path:?}"))?;
    match dice.within(0..=5) {
        // The same contents, and possibly the same time and mode.
        0..=2 => {
            plant::copy(from, to)?;
            if dice.one_in(2) {
                plant::set_mode(to, 0o604)?;
            }
            let same = Moment::of(&metadata);
            let moment = if dice.one_in(3) {
                Moment::draw(dice).unlike(same)
            } else {
                same
            };
            return moment.set(to);
        }
        3 if metadata.len() > GROUP_BYTES && dice.one_in(2) => {
            edited(path, from, to, dice, versions)?
        }
        3 => {
            let contents = Contents::draw(metadata.len(), dice);
            versions.add(path, contents.version());
            contents.write(to)?;
            Moment::draw(dice).set(to)?;
        }
        _ => other(path, to, dice, versions)?,
    }
    let there =
        fs::symlink_metadata(to).with_context(|| format!("failed to look at {}", to.display()))?;
    Moment::of(&there).unlike(Moment::of(&metadata)).set(to)
}

/// Creates a version of a large file that has most of its contents in common with the source.
fn edited(
    path: &Path,
    from: &Path,
    to: &Path,
    dice: &mut Dice,
    versions: &mut Versions,
) -> Result<()> {
    let mut contents = fs::read(from).with_context(|| format!("failed to read {path:?}"))?;
    for _ in 0..dice.within(1..=3) {
        let place = dice.index(contents.len());
        contents[place] ^= 1;
    }
    match dice.within(0..=3) {
        0 => contents.truncate(dice.index(contents.len())),
        1 => contents.extend(vec![7; dice.index(1 << 20)]),
        _ => {}
    }
    versions.add(
        path,
        Version::File(contents.len() as u64, *blake3::hash(&contents).as_bytes()),
    );
    fs::write(to, contents).with_context(|| format!("failed to write {}", to.display()))?;
    Moment::draw(dice).set(to)
}

/// Sets different metadata without changing the modification time.
fn dress(features: Features, to: &Path, dice: &mut Dice) -> Result<()> {
    let metadata =
        fs::symlink_metadata(to).with_context(|| format!("failed to look at {}", to.display()))?;
    let kind = match () {
        () if metadata.is_dir() => Kind::Directory,
        () if metadata.is_file() => Kind::File,
        () => Kind::Link,
    };
    features.dress(to, kind, dice)
}

/// Creates a file or link that is unrelated to the source.
fn other(path: &Path, to: &Path, dice: &mut Dice, versions: &mut Versions) -> Result<()> {
    if dice.one_in(3) {
        let leads = draw_link(dice);
        versions.add(path, Version::Link(leads.clone()));
        return plant::link(to, &leads);
    }
    new_file(path, to, dice, versions)
}

fn new_file(path: &Path, to: &Path, dice: &mut Dice, versions: &mut Versions) -> Result<()> {
    let contents = Contents::draw(dice.scaled_within(0..=OLD_BYTES_MAX), dice);
    versions.add(path, contents.version());
    contents.write(to)?;
    Moment::draw(dice).set(to)
}

fn is_directory(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir())
}

const OLD_BYTES_MAX: u64 = 9 << 20;
