//! Atomic replacement of small files that hold hints. Losing such a file makes transfers slower but loses no data.

use std::fs;
use std::io;
use std::path::Path;

/// Replaces the text of `file` by renaming a temporary file next to it. A reader sees either the old or the new text,
/// even if several processes or hosts replace the file concurrently. The file is not flushed.
///
/// # Errors
/// Returns the system's error. The old file is kept in that case.
pub fn replace_file(file: &Path, text: &str) -> io::Result<()> {
    let mut name = [0; 8];
    rustix::rand::getrandom(&mut name[..], rustix::rand::GetRandomFlags::empty())?;
    let temporary = file.with_extension(format!("{:016x}", u64::from_le_bytes(name)));
    let replaced = fs::write(&temporary, text).and_then(|()| fs::rename(&temporary, file));
    if replaced.is_err() {
        let _never_made = fs::remove_file(&temporary);
    }
    replaced
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_or_left() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("paths");
        replace_file(&file, "one").unwrap();
        replace_file(&file, "two").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "two");
        fs::create_dir_all(place.path().join("full/x")).unwrap();
        assert!(replace_file(&place.path().join("full"), "three").is_err());
        let names = fs::read_dir(place.path()).unwrap().count();
        assert_eq!(names, 2, "no temporary file stays");
    }
}
