//! The sources of a push: their paths, whether they exist, and their names at the target.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use zmove_scan::{PathKind, ScanRoot, Selection, means_contents};
use zmove_sender::PushJob;
use zmove_types::{Name, RelPath};
use zmove_wire::{Durability, Open, TargetShape};

use crate::connecting::location::{Location, Start};
use crate::error::SourcesError;
use crate::notice::{Listener, Notice};

/// The sources of a push, each examined once.
#[derive(Debug)]
pub struct Sources {
    present: Vec<Source>,
    /// Number of sources that do not exist.
    pub missing: u64,
}

/// A source and its name at the target. If there is no name, the contents of the source directory are pushed.
#[derive(Debug)]
struct Source {
    path: PathBuf,
    top: Option<Name>,
    directory: bool,
}

impl Sources {
    /// Finds the sources that exist and reports each missing one.
    ///
    /// # Errors
    /// No source exists, a source is on another host, or two sources would have the same name at the target.
    pub fn examine(
        paths: &[OsString],
        selection: Option<&Selection>,
        listener: &dyn Listener,
    ) -> Result<Self, SourcesError> {
        let mut sources = Self {
            present: Vec::new(),
            missing: 0,
        };
        for path in paths {
            if matches!(
                Location::parse(path, Start::Daemon),
                Ok(Location::Remote(_))
            ) && !Path::new(path).exists()
            {
                return Err(SourcesError::OnAnotherHost { path: path.clone() });
            }
            match Source::examine(Path::new(path)) {
                Ok(source) => sources.present.push(source),
                Err(source) => {
                    listener.hear(&Notice::SourceMissing {
                        path: Path::new(path),
                        source,
                    });
                    sources.missing += 1;
                }
            }
        }
        if sources.present.is_empty() {
            return Err(SourcesError::Nothing);
        }
        sources.refuse_same_names(selection)?;
        Ok(sources)
    }

    /// Examines the directory to which the paths of a list are relative. Its contents are pushed, whether or not the
    /// path ends with a slash.
    ///
    /// # Errors
    /// The source does not exist or is on another host.
    pub fn examine_contents(path: &OsStr, listener: &dyn Listener) -> Result<Self, SourcesError> {
        Self::examine(&[Path::new(path).join("").into()], None, listener)
    }

    /// Returns the paths of the existing sources.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.present.iter().map(|source| source.path.as_path())
    }

    /// Returns the job that pushes these sources to `target` like `zmove push` without options.
    #[must_use]
    pub fn job(&self, target: impl Into<Vec<u8>>) -> PushJob {
        PushJob {
            sources: self.roots(),
            open: Open {
                shape: self.shape(),
                durability: Durability::End,
                ..Open::new(target.into(), [0; 16])
            },
            mirror: None,
            sources_missing: self.missing,
            list: None,
        }
    }

    /// Refuses sources that contain entries with the same name at the target, because the result would depend on
    /// timing.
    fn refuse_same_names(&self, selection: Option<&Selection>) -> Result<(), SourcesError> {
        if self.present.len() < 2 {
            return Ok(());
        }
        let mut owners = HashMap::new();
        for source in &self.present {
            for name in source.top_names(selection)? {
                if let Some(other) = owners.insert(name.clone(), &source.path) {
                    return Err(SourcesError::SameName {
                        first: other.clone(),
                        second: source.path.clone(),
                        name,
                    });
                }
            }
        }
        Ok(())
    }

    /// Returns the sources as roots of a scan.
    #[must_use]
    pub fn roots(&self) -> Vec<ScanRoot> {
        let root = |source: &Source| ScanRoot::new(source.path.clone(), source.prefix());
        self.present.iter().map(root).collect()
    }

    /// Returns the shape of the target that these sources produce.
    fn shape(&self) -> TargetShape {
        if let [
            Source {
                top: Some(name),
                directory: false,
                ..
            },
        ] = self.present.as_slice()
        {
            return TargetShape::Single { name: name.clone() };
        }
        let tops: Option<Vec<_>> = self
            .present
            .iter()
            .map(|source| source.top.clone())
            .collect();
        let few = |tops: &Vec<_>| tops.len() <= zmove_wire::limits::TOPS_MAX;
        TargetShape::Directory {
            tops: tops.filter(few).unwrap_or_default(),
        }
    }
}

impl Source {
    fn examine(path: &Path) -> io::Result<Self> {
        let contents = means_contents(path.as_os_str().as_bytes());
        let directory = if contents {
            path.metadata()
        } else {
            path.symlink_metadata()
        }?
        .is_dir();
        if contents && !directory {
            return Err(io::Error::other("not a directory"));
        }
        let name = path
            .file_name()
            .filter(|_| !contents)
            .map(|name| Name::from_bytes(name.as_bytes()));
        Ok(Self {
            path: path.to_owned(),
            top: name.transpose().map_err(io::Error::other)?,
            directory,
        })
    }

    /// Returns the names of the source's entries at the top level of the target.
    fn top_names(&self, selection: Option<&Selection>) -> io::Result<Vec<OsString>> {
        let wanted = |name: &OsStr, kind| {
            let path = RelPath::from_bytes(name.as_bytes());
            selection.is_none_or(|selection| path.is_ok_and(|path| selection.admits(&path, kind)))
        };
        let kind_of = |directory| {
            if directory {
                PathKind::Directory
            } else {
                PathKind::Other
            }
        };
        if let Some(top) = &self.top {
            let top = top.as_os_str();
            let tops = wanted(top, kind_of(self.directory)).then(|| top.to_owned());
            return Ok(tops.into_iter().collect());
        }
        // Ignore a directory that cannot be listed. The scan reports it.
        let Ok(listed) = std::fs::read_dir(&self.path) else {
            return Ok(Vec::new());
        };
        let mut tops = Vec::new();
        for entry in listed {
            let entry = entry?;
            if wanted(
                &entry.file_name(),
                kind_of(entry.file_type().is_ok_and(|kind| kind.is_dir())),
            ) {
                tops.push(entry.file_name());
            }
        }
        Ok(tops)
    }

    fn prefix(&self) -> RelPath {
        let prefix = self.top.as_ref().map(|name| RelPath::root().join(name));
        prefix.and_then(Result::ok).unwrap_or_else(RelPath::root)
    }
}
