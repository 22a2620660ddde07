//! How many journals there are, and how large they are.

use std::path::Path;

/// What lies in a directory of journals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Journals {
    pub(super) count: u64,
    pub(super) bytes: u64,
}

/// Looks into a directory; one that is not there has none.
pub(super) fn look(directory: &Path) -> Journals {
    let mut journals = Journals::default();
    let Ok(entries) = std::fs::read_dir(directory) else { return journals };
    for metadata in entries.flatten().filter_map(|entry| entry.metadata().ok()) {
        if metadata.is_file() {
            journals.count += 1;
            journals.bytes += metadata.len();
        }
    }
    journals
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_counted_with_their_bytes() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(look(&directory.path().join("none")), Journals::default());
        std::fs::write(directory.path().join("a.journal"), [0; 7]).unwrap();
        std::fs::write(directory.path().join("b.journal"), [0; 5]).unwrap();
        std::fs::create_dir(directory.path().join("c")).unwrap();
        assert_eq!(look(directory.path()), Journals { count: 2, bytes: 12 });
    }
}
