//! Relative paths as bytes, parsed once.
//!
//! **Invariant:** a [`RelPath`] has no empty, `.` or `..` component, no NUL, and no leading or trailing `/`. Each
//! component is a valid file name. The path therefore cannot name anything above the directory from which it is opened.
//! This type does not protect against symbolic links. That is the task of the code that opens the path. Names need not
//! be UTF-8.

use std::borrow::Borrow;
use std::ffi::OsStr;
use std::fmt;
use std::iter;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::bytes;
use crate::escaped::Escaped;

/// The name of a directory entry: 1 to 255 bytes, neither `.` nor `..`, without `/` or NUL.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "&[u8]")]
pub struct Name(#[serde(with = "bytes")] Box<[u8]>);

/// A path relative to some directory. A path without components is that directory.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "&[u8]")]
pub struct RelPath(#[serde(with = "bytes")] Box<[u8]>);

/// The reason why some bytes are not a [`Name`] or [`RelPath`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PathError {
    /// A component is empty: a leading, trailing or doubled `/`, or an empty name.
    Empty,
    /// A component is `.` or `..`.
    Dots,
    /// A NUL byte, or a `/` in a name.
    Forbidden,
    /// A component is longer than [`Name::BYTES_MAX`].
    NameTooLong,
    /// The path is longer than [`RelPath::BYTES_MAX`].
    PathTooLong,
}

impl Name {
    /// The longest name that Linux file systems store, in bytes (`NAME_MAX`).
    pub const BYTES_MAX: usize = 255;

    /// Parses a name.
    ///
    /// # Errors
    /// Returns a [`PathError`] if the bytes are not a valid name.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, PathError> {
        check_component(bytes)?;
        if bytes.contains(&b'/') {
            return Err(PathError::Forbidden);
        }
        Ok(Self(bytes.into()))
    }

    /// Returns the bytes of the name.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the name as an argument for system calls.
    #[must_use]
    pub fn as_os_str(&self) -> &OsStr {
        OsStr::from_bytes(&self.0)
    }
}

impl RelPath {
    /// Maximum length of a path, in bytes.
    pub const BYTES_MAX: usize = 65_535;

    /// Returns the empty path, which stands for the base directory itself.
    #[must_use]
    pub fn root() -> Self {
        Self(Box::default())
    }

    /// Parses a path. An empty string is the [`root`](Self::root).
    ///
    /// # Errors
    /// Returns a [`PathError`] if a component or the whole path violates the invariant of this type.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, PathError> {
        if bytes.len() > Self::BYTES_MAX {
            return Err(PathError::PathTooLong);
        }
        if !bytes.is_empty() {
            bytes
                .split(|&byte| byte == b'/')
                .try_for_each(check_component)?;
        }
        Ok(Self(bytes.into()))
    }

    /// Returns this path with `name` appended.
    ///
    /// # Errors
    /// Returns [`PathError::PathTooLong`] if the result would exceed [`BYTES_MAX`](Self::BYTES_MAX).
    pub fn join(&self, name: &Name) -> Result<Self, PathError> {
        if self.is_root() {
            return Ok(Self(name.0.clone()));
        }
        if self.0.len() + 1 + name.0.len() > Self::BYTES_MAX {
            return Err(PathError::PathTooLong);
        }
        let mut bytes = Vec::with_capacity(self.0.len() + 1 + name.0.len());
        bytes.extend_from_slice(&self.0);
        bytes.push(b'/');
        bytes.extend_from_slice(&name.0);
        Ok(Self(bytes.into()))
    }

    /// Returns the last component, or `None` for the root.
    #[must_use]
    pub fn file_name(&self) -> Option<Name> {
        self.components().last().map(|bytes| Name(bytes.into()))
    }

    /// Returns the path without its last component, or `None` for the root.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        if self.is_root() {
            return None;
        }
        let end = self.0.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
        Some(Self(self.0[..end].into()))
    }

    /// Returns the directory that contains the path. For the root, this is the root.
    #[must_use]
    pub fn directory(&self) -> Self {
        self.parent().unwrap_or_else(Self::root)
    }

    /// Returns the parent directory and the name of the last component, or `None` for the root.
    #[must_use]
    pub fn split(&self) -> Option<(Self, Name)> {
        self.parent().zip(self.file_name())
    }

    /// Returns the path and each of its parent directories as bytes, from the path up to the root.
    pub fn lineage(&self) -> impl Iterator<Item = &[u8]> {
        let ends = self
            .0
            .iter()
            .enumerate()
            .rev()
            .filter(|(_, byte)| **byte == b'/')
            .map(|(end, _)| end);
        let above = (!self.is_root()).then_some(0);
        iter::once(self.0.len())
            .chain(ends)
            .chain(above)
            .map(|end| &self.0[..end])
    }

    /// Returns the components, starting at the root.
    pub fn components(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.0
            .split(|&byte| byte == b'/')
            .filter(|component| !component.is_empty())
    }

    /// Returns the number of components.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.components().count()
    }

    /// Returns whether the path is the root.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the bytes of the path, without a leading or trailing `/`.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the path in a form that can be joined to the path of a directory.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }
}

fn check_component(component: &[u8]) -> Result<(), PathError> {
    match component {
        b"" => Err(PathError::Empty),
        b"." | b".." => Err(PathError::Dots),
        _ if component.contains(&0) => Err(PathError::Forbidden),
        _ if component.len() > Name::BYTES_MAX => Err(PathError::NameTooLong),
        _ => Ok(()),
    }
}

impl AsRef<[u8]> for RelPath {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl AsRef<OsStr> for Name {
    fn as_ref(&self) -> &OsStr {
        self.as_os_str()
    }
}

impl AsRef<[u8]> for Name {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl TryFrom<&[u8]> for RelPath {
    type Error = PathError;

    fn try_from(bytes: &[u8]) -> Result<Self, Self::Error> {
        Self::from_bytes(bytes)
    }
}

impl TryFrom<&[u8]> for Name {
    type Error = PathError;

    fn try_from(bytes: &[u8]) -> Result<Self, Self::Error> {
        Self::from_bytes(bytes)
    }
}

/// A name is a path with one component.
impl From<&Name> for RelPath {
    fn from(name: &Name) -> Self {
        Self(name.0.clone())
    }
}

/// `Borrow` requires that a path compares, sorts and hashes like its bytes, which the derived traits ensure.
impl Borrow<[u8]> for RelPath {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

/// Formats the path for display, [escaped](Escaped).
impl fmt::Display for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_root() {
            f.write_str(".")
        } else {
            Escaped(&self.0).fmt(f)
        }
    }
}

impl fmt::Debug for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_path(), f)
    }
}

/// Formats the name for display, [escaped](Escaped).
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Escaped(&self.0).fmt(f)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_os_str(), f)
    }
}

impl fmt::Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "empty path component",
            Self::Dots => "'.' or '..' in a path",
            Self::Forbidden => "forbidden byte in a name",
            Self::NameTooLong => "name longer than 255 bytes",
            Self::PathTooLong => "path longer than 65535 bytes",
        })
    }
}

impl std::error::Error for PathError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_paths_do_not_parse() {
        let cases: [(&[u8], PathError); 9] = [
            (b"/etc", PathError::Empty),
            (b"a//b", PathError::Empty),
            (b"a/", PathError::Empty),
            (b"..", PathError::Dots),
            (b"a/../b", PathError::Dots),
            (b"a/./b", PathError::Dots),
            (b"a\0b", PathError::Forbidden),
            (&[b'x'; 256], PathError::NameTooLong),
            (&[b'/'; 65_536], PathError::PathTooLong),
        ];
        for (bytes, error) in cases {
            assert_eq!(RelPath::from_bytes(bytes), Err(error), "{bytes:?}");
        }
    }

    #[test]
    fn names_are_bytes_and_hold_no_slash() {
        assert_eq!(Name::from_bytes(b"caf\xe9").unwrap().as_bytes(), b"caf\xe9");
        assert_eq!(Name::from_bytes(b"a/b"), Err(PathError::Forbidden));
        assert_eq!(Name::from_bytes(b""), Err(PathError::Empty));
    }

    #[test]
    fn join_and_parent_undo_each_other() {
        let name = Name::from_bytes(b"c").unwrap();
        for base in [
            RelPath::root(),
            RelPath::from_bytes(b"a").unwrap(),
            RelPath::from_bytes(b"a/b").unwrap(),
        ] {
            let joined = base.join(&name).unwrap();
            assert_eq!(joined.parent(), Some(base));
            assert_eq!(joined.file_name(), Some(name.clone()));
        }
        assert_eq!(RelPath::root().parent(), None);
        assert_eq!(RelPath::root().depth(), 0);
    }

    #[test]
    fn a_lineage_goes_up_to_the_root() {
        let lineage = |text: &str| {
            let path = RelPath::from_bytes(text.as_bytes()).unwrap();
            path.lineage()
                .map(|path| String::from_utf8(path.to_vec()).unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(lineage("a/bc/d"), ["a/bc/d", "a/bc", "a", ""]);
        assert_eq!(
            (lineage("a"), lineage("")),
            (vec!["a".to_owned(), String::new()], vec![String::new()])
        );
    }
}
