//! A target that is only looked at: what is missing stays missing.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use zmove_disk::Tree;
use zmove_types::{Name, RelPath};
use zmove_wire::{Open, Refusal, RefusalCode, TargetShape};

use crate::store::target::{Access, cannot, check_length, choose_root, clean, open_root, refuse, renamed};

/// Where entries would go.
#[derive(Debug)]
pub(crate) struct Seen {
    /// The directory that paths are relative to, if it is there.
    pub(crate) tree: Option<Tree>,
    /// For a single entry: its name at the source and the name it would get.
    pub(crate) rename: Option<(Name, Name)>,
}

impl Seen {
    /// Finds the target, as [`Target::resolve`](crate::store::target::Target::resolve) would, and makes nothing.
    pub(crate) fn look(open: &Open, access: &Access) -> Result<Self, Refusal> {
        check_length(&open.target)?;
        let (tree, path) = locate(&open.target, access)?;
        let shown = Path::new(OsStr::from_bytes(&open.target));
        let TargetShape::Single { name } = &open.shape else {
            return Ok(Self { tree: directory(tree.as_ref(), &path, shown)?, rename: None });
        };
        let into_directory = shown.as_os_str().as_bytes().ends_with(b"/")
            || tree.as_ref().is_some_and(|tree| tree.open_directory(&path).is_ok());
        match (path.parent(), path.file_name()) {
            (Some(parent), Some(own_name)) if !into_directory => {
                let tree = directory(tree.as_ref(), &parent, shown)?;
                Ok(Self { tree, rename: Some((name.clone(), own_name)) })
            }
            _ => Ok(Self { tree: directory(tree.as_ref(), &path, shown)?, rename: None }),
        }
    }

    /// The name that an entry would get.
    pub(crate) fn name<'a>(&'a self, directory: &RelPath, name: &'a Name) -> &'a Name {
        renamed(self.rename.as_ref(), directory, name)
    }
}

fn directory(tree: Option<&Tree>, path: &RelPath, shown: &Path) -> Result<Option<Tree>, Refusal> {
    match tree.map(|tree| tree.open_directory(path)) {
        None => Ok(None),
        Some(Ok(directory)) => Ok(Some(Tree::at(directory))),
        Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Some(Err(error)) => Err(cannot("open directory", shown, &error)),
    }
}

/// The tree that the target lies in, if that is there, and where in it.
fn locate(target: &[u8], access: &Access) -> Result<(Option<Tree>, RelPath), Refusal> {
    let (root, rest) = match access {
        Access::ReadOnly => return Err(refuse(RefusalCode::Denied, "this key may not write here".into())),
        Access::Anywhere => return locate_own(target),
        Access::Beneath(roots) => choose_root(target, roots)?,
    };
    Ok((Some(open_root(root)?), clean(rest)?))
}

fn locate_own(target: &[u8]) -> Result<(Option<Tree>, RelPath), Refusal> {
    let path = Path::new(OsStr::from_bytes(if target.is_empty() { b"." } else { target }));
    if let Ok(tree) = Tree::open(path) {
        return Ok((Some(tree), RelPath::root()));
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path
        .file_name()
        .ok_or_else(|| refuse(RefusalCode::Target, format!("no such target: '{}'", path.display())))?;
    let tree = match Tree::open(parent) {
        Ok(tree) => Some(tree),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(cannot("open directory", parent, &error)),
    };
    Ok((tree, clean(name.as_bytes())?))
}
