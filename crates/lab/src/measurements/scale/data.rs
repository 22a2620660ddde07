//! The data sets: files of one size, in many directories or in one.

use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};

use crate::data::datasets::{self, DataSet};
use crate::units::ByteCount;

/// A data set to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Set {
    kind: Kind,
    files: u64,
    file_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Losf,
    LosfFlat,
    Medium,
    Large,
    Huge,
}

/// The default data sets. Over two links, the larger ones take about 20 s at 400 Mbit/s. The small files take as long
/// at 35 Mbit/s.
const SETS: [(&str, Set); 5] = [
    (
        "losf",
        Set {
            kind: Kind::Losf,
            files: 40_000,
            file_bytes: 4 << 10,
        },
    ),
    (
        "losf-flat",
        Set {
            kind: Kind::LosfFlat,
            files: 40_000,
            file_bytes: 4 << 10,
        },
    ),
    (
        "medium",
        Set {
            kind: Kind::Medium,
            files: 2_000,
            file_bytes: 512 << 10,
        },
    ),
    (
        "large",
        Set {
            kind: Kind::Large,
            files: 32,
            file_bytes: 64 << 20,
        },
    ),
    (
        "huge",
        Set {
            kind: Kind::Huge,
            files: 1,
            file_bytes: 2 << 30,
        },
    ),
];

impl Set {
    pub(super) fn name(self) -> &'static str {
        SETS.iter()
            .find(|(_, set)| set.kind == self.kind)
            .map_or("", |(name, _)| name)
    }

    /// Returns this set with `nodes` times as much data.
    pub(super) fn grown(self, nodes: usize) -> Self {
        match self.kind {
            Kind::Huge => Self {
                file_bytes: self.file_bytes * nodes as u64,
                ..self
            },
            _ => Self {
                files: self.files * nodes as u64,
                ..self
            },
        }
    }

    /// Returns a set with the same number of bytes and at least as many files as nodes.
    pub(super) fn cut(self, nodes: usize) -> Self {
        let files = self.files.max(nodes as u64);
        Self {
            files,
            file_bytes: self.files * self.file_bytes / files,
            ..self
        }
    }

    pub(super) fn ensure(self, directory: &Path) -> Result<DataSet> {
        match self.kind {
            Kind::LosfFlat => datasets::ensure_flat(self.files, self.file_bytes, directory),
            _ => datasets::ensure_uniform(self.files, self.file_bytes, directory),
        }
    }
}

impl FromStr for Set {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (name, size) = text
            .split_once(':')
            .map_or((text, None), |(name, size)| (name, Some(size)));
        let Some(&(_, usual)) = SETS.iter().find(|(known, _)| *known == name) else {
            bail!(
                "no data set {name}; there are {}",
                SETS.map(|(name, _)| name).join(" ")
            );
        };
        let Some(size) = size else { return Ok(usual) };
        let (files, file_bytes) = size
            .split_once('x')
            .context("a size is FILESxSIZE, as 32x64MiB")?;
        let files = files.parse().context("not a number of files")?;
        let ByteCount(file_bytes) = file_bytes.parse()?;
        ensure!(
            files > 0 && (files == 1 || usual.kind != Kind::Huge),
            "{name} is one file, others are some"
        );
        Ok(Self {
            files,
            file_bytes,
            ..usual
        })
    }
}

/// Returns the paths of all files of a set in order, divided into one list per node.
pub(super) fn shares(set: &DataSet, nodes: usize) -> Result<Vec<Vec<String>>> {
    let mut paths = Vec::new();
    datasets::visit(&set.root, &mut |path, _| {
        let path = path
            .strip_prefix(&set.root)
            .context("the path lies below the root")?;
        paths.push(
            path.to_str()
                .context("the names of a data set are ASCII")?
                .to_owned(),
        );
        Ok(())
    })?;
    paths.sort_unstable();
    let cut = |node: usize| paths.len() * node / nodes;
    Ok((0..nodes)
        .map(|node| paths[cut(node)..cut(node + 1)].to_vec())
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_its_usual_size_or_the_one_that_is_told() {
        let large: Set = "large".parse().unwrap();
        assert_eq!(
            (large.files, large.file_bytes, large.name()),
            (32, 64 << 20, "large")
        );
        let told: Set = "losf-flat:500x1KiB".parse().unwrap();
        assert_eq!(
            told,
            Set {
                kind: Kind::LosfFlat,
                files: 500,
                file_bytes: 1 << 10
            }
        );
        for wrong in ["tiny", "large:32", "large:0x1KiB", "huge:2x1GiB"] {
            assert!(wrong.parse::<Set>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn one_file_grows_in_size_and_many_in_number_and_a_cut_keeps_the_bytes() {
        let huge: Set = "huge:1x8MiB".parse().unwrap();
        assert_eq!(
            (huge.grown(4).files, huge.grown(4).file_bytes),
            (1, 32 << 20)
        );
        assert_eq!((huge.cut(4).files, huge.cut(4).file_bytes), (4, 2 << 20));
        let large: Set = "large:32x1MiB".parse().unwrap();
        assert_eq!((large.grown(4).files, large.cut(4)), (128, large));
    }

    #[test]
    fn shares_are_neighbours_and_have_each_file_once() {
        let place = tempfile::tempdir().unwrap();
        let set = Set {
            kind: Kind::Losf,
            files: 1_003,
            file_bytes: 1,
        }
        .ensure(place.path())
        .unwrap();
        let shares = shares(&set, 3).unwrap();
        assert_eq!(
            shares.iter().map(Vec::len).collect::<Vec<_>>(),
            [334, 334, 335]
        );
        assert_eq!(
            (&*shares[0][0], &*shares[2][334]),
            ("d000/f000000", "d001/f001002")
        );
        assert!(shares.concat().is_sorted());
    }
}
