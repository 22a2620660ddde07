//! Small files that cache the results of earlier work. The first line names the format version. Each further line holds
//! a key without spaces and a JSON value, with the newest line last. The file is replaced atomically.
//!
//! The contents are only hints. A file that cannot be read or parsed is ignored and rewritten.

use std::fs::{self, DirBuilder};
use std::io;
use std::marker::PhantomData;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use serde::{Serialize, de::DeserializeOwned};
use zmove_types::{Escaped, unix_now};

use crate::replace_file::replace_file;

/// A file that stores one value of type `V` per key.
#[derive(Debug)]
pub struct CacheFile<V> {
    file: PathBuf,
    header: &'static str,
    lines_max: usize,
    values: PhantomData<fn() -> V>,
}

/// A value that can be stored in a [`CacheFile`].
pub trait CacheValue: Serialize + DeserializeOwned {
    /// Returns whether this program could have written a value that was parsed from a file.
    fn is_plausible(&self) -> bool;
}

impl<V: CacheValue> CacheFile<V> {
    /// Creates a reference to a file whose first line is `header` and that has at most `lines_max` further lines.
    #[must_use]
    pub const fn new(file: PathBuf, header: &'static str, lines_max: usize) -> Self {
        Self {
            file,
            header,
            lines_max,
            values: PhantomData,
        }
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Returns the value of `key`.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or parsed.
    pub fn get(&self, key: &str) -> io::Result<Option<V>> {
        Ok(self
            .read()?
            .into_iter()
            .find(|(of, _)| of == key)
            .map(|(_, value)| value))
    }

    /// Stores `value` for `key`, or removes the key if `value` is `None`. Drops the oldest lines beyond the limit.
    /// Creates a missing directory with mode 0700. The directory is missing at the first push over ssh, which needs no
    /// keys.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn put(&self, key: &str, value: Option<V>) -> io::Result<()> {
        let lines = self.read().unwrap_or_default();
        if value.is_none() && lines.iter().all(|(of, _)| of != key) {
            return Ok(());
        }
        if let Some(home) = self.file.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(home)?;
        }
        replace_file(&self.file, &self.with(lines, key, value))
    }

    fn read(&self) -> io::Result<Vec<(String, V)>> {
        match fs::read_to_string(&self.file) {
            Ok(text) => self
                .parse(&text)
                .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, self.fault(&text))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Returns the reason why a text cannot be parsed.
    fn fault(&self, text: &str) -> String {
        let versioned = self.header.rsplit_once(' ').and_then(|(name, known)| {
            let found = text.lines().next()?.strip_prefix(name)?.trim();
            (found != known).then_some((found, known))
        });
        match versioned {
            Some((found, known)) => format!(
                "it has format version {}, and this zmove reads {known}",
                Escaped(found.as_bytes())
            ),
            None => "it is damaged".to_owned(),
        }
    }

    /// Parses the text of the file. Returns `None` unless every line can be parsed.
    #[must_use]
    pub fn parse(&self, text: &str) -> Option<Vec<(String, V)>> {
        if text.is_empty() {
            return Some(Vec::new());
        }
        let mut lines = text.lines();
        let is_one = lines.next()? == self.header && text.len() <= BYTES_MAX;
        let split = |line: &str| {
            let (key, value) = line.split_once(' ')?;
            let value = serde_json::from_str(value).ok().filter(V::is_plausible)?;
            Some((key.to_owned(), value))
        };
        if is_one {
            lines.map(split).collect()
        } else {
            None
        }
    }

    /// Returns the text of a file with these lines, in which `value` replaces the previous value of `key`.
    #[must_use]
    pub fn with(&self, mut lines: Vec<(String, V)>, key: &str, value: Option<V>) -> String {
        lines.retain(|(of, _)| of != key);
        lines.extend(value.map(|value| (key.to_owned(), value)));
        let surplus = lines.len().saturating_sub(self.lines_max);
        let mut text = format!("{}\n", self.header);
        for (key, value) in &lines[surplus..] {
            let value = serde_json::to_string(value).expect("it is plain data");
            text += &format!("{key} {value}\n");
        }
        text
    }
}

/// Returns the number of days since 1970-01-01. Callers use it to discard old values.
#[must_use]
pub fn today() -> u64 {
    unix_now().as_secs() / (24 * 60 * 60)
}

const BYTES_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    impl CacheValue for u64 {
        fn is_plausible(&self) -> bool {
            true
        }
    }

    #[test]
    fn what_is_kept_is_recalled_until_it_is_forgotten() {
        let home = tempfile::tempdir().unwrap();
        let remembered = CacheFile::<u64>::new(home.path().join("numbers"), "# numbers 1", 3);
        remembered.put("one", None).unwrap();
        assert!(!remembered.file().exists(), "there was nothing to forget");
        for (key, value) in [("one", 1), ("two", 2), ("one", 11)] {
            remembered.put(key, Some(value)).unwrap();
        }
        assert_eq!(
            fs::read_to_string(remembered.file()).unwrap(),
            "# numbers 1\ntwo 2\none 11\n"
        );
        assert_eq!(
            (
                remembered.get("one").unwrap(),
                remembered.get("three").unwrap()
            ),
            (Some(11), None)
        );
        remembered.put("three", Some(3)).unwrap();
        remembered.put("four", Some(4)).unwrap();
        assert_eq!(remembered.get("two").unwrap(), None, "the oldest");
        remembered.put("one", None).unwrap();
        assert_eq!(
            fs::read_to_string(remembered.file()).unwrap(),
            "# numbers 1\nthree 3\nfour 4\n"
        );
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_missing_directory_is_made_for_its_owner_only() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("zmove/numbers");
        let remembered = CacheFile::<u64>::new(file, "# numbers 1", 3);
        remembered.put("one", Some(1)).unwrap();
        assert_eq!(remembered.get("one").unwrap(), Some(1));
        let made = home.path().join("zmove").metadata().unwrap();
        assert_eq!(made.permissions().mode() & 0o7777, 0o700);
    }

    #[test]
    fn a_file_that_is_no_such_file_is_written_anew() {
        let home = tempfile::tempdir().unwrap();
        let remembered = CacheFile::<u64>::new(home.path().join("numbers"), "# numbers 1", 3);
        let of_another_version = "it has format version 2, and this zmove reads 1";
        for (text, fault) in [
            ("x", "it is damaged"),
            ("# numbers 2\none 1\n", of_another_version),
            ("# numbers 1\none\n", "it is damaged"),
            ("# numbers 1\none 1\ntwo x\n", "it is damaged"),
        ] {
            fs::write(remembered.file(), text).unwrap();
            let error = remembered.get("one").unwrap_err();
            assert_eq!(error.to_string(), fault, "{text}");
        }
        remembered.put("two", Some(2)).unwrap();
        assert_eq!(
            (
                remembered.get("one").unwrap(),
                remembered.get("two").unwrap()
            ),
            (None, Some(2))
        );
    }
}
