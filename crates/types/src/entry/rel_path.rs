//! Relative paths as bytes, parsed once.
//!
//! **Invariant:** a [`RelPath`] holds no empty, `.` or `..` component, no NUL, no leading or trailing `/`,
//! and every component fits a directory entry. It therefore cannot name anything above the directory it is
//! opened from (symbolic links are the opener's concern). Names need not be UTF-8.

use std::borrow::Borrow;
use std::ffi::OsStr;
use std::fmt;
use std::iter;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::bytes;
use crate::escaped::Escaped;

/// One directory entry's name: 1 to 255 bytes, neither `.` nor `..`, without `/` and NUL.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "&[u8]")]
pub struct Name(#[serde(with = "bytes")] Box<[u8]>);

/// A path below some directory; zero components mean that directory itself.
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
    /// A NUL byte, or a `/` within a name.
    Forbidden,
    /// A component is longer than [`Name::BYTES_MAX`].
    NameTooLong,
    /// The path is longer than [`RelPath::BYTES_MAX`].
    PathTooLong,
}

impl Name {
    /// The longest name that Linux file systems store, in bytes (`NAME_MAX`).
    pub const BYTES_MAX: usize = 255;

    /// Parses one name.
    ///
    /// # Errors
    /// [`PathError`] when the bytes cannot be a directory entry of their own.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, PathError> {
        check_component(bytes)?;
        if bytes.contains(&b'/') {
            return Err(PathError::Forbidden);
        }
        Ok(Self(bytes.into()))
    }

    /// The name's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The name for system calls.
    #[must_use]
    pub fn as_os_str(&self) -> &OsStr {
        OsStr::from_bytes(&self.0)
    }
}

impl RelPath {
    /// The longest path that is carried, in bytes.
    pub const BYTES_MAX: usize = 65_535;

    /// The directory itself: a path of no components.
    #[must_use]
    pub fn root() -> Self {
        Self(Box::default())
    }

    /// Parses a path; no bytes at all are the [`root`](Self::root).
    ///
    /// # Errors
    /// [`PathError`] when a component or the whole breaks the invariant of this type.
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

    /// This path with one more component.
    ///
    /// # Errors
    /// [`PathError::PathTooLong`] when the result would pass [`BYTES_MAX`](Self::BYTES_MAX).
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

    /// The last component, or `None` for the root.
    #[must_use]
    pub fn file_name(&self) -> Option<Name> {
        self.components().last().map(|bytes| Name(bytes.into()))
    }

    /// The path without its last component, or `None` for the root.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        if self.is_root() {
            return None;
        }
        let end = self.0.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
        Some(Self(self.0[..end].into()))
    }

    /// The directory that the path lies in; the root lies in itself.
    #[must_use]
    pub fn directory(&self) -> Self {
        self.parent().unwrap_or_else(Self::root)
    }

    /// The directory that the path lies in, and its name there; `None` for the root.
    #[must_use]
    pub fn split(&self) -> Option<(Self, Name)> {
        self.parent().zip(self.file_name())
    }

    /// The path itself and each directory above it, from the path up to the root, as bytes.
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

    /// The components from the top down.
    pub fn components(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.0
            .split(|&byte| byte == b'/')
            .filter(|component| !component.is_empty())
    }

    /// How many components the path has.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.components().count()
    }

    /// Whether the path has no components.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The path's bytes, without a leading or trailing `/`.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The path for joining to a real directory.
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

/// A path equals, sorts and hashes as its bytes, which `Borrow` demands.
impl From<&Name> for RelPath {
    fn from(name: &Name) -> Self {
        Self(name.0.clone())
    }
}

impl Borrow<[u8]> for RelPath {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

/// Writes the path for people, [`Escaped`].
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

/// Writes the name for people, [`Escaped`].
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
