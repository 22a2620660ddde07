//! Small files of advice: the loss of one costs time, never data.

use std::fs;
use std::io;
use std::path::Path;

/// Replaces the text of `file` by way of a temporary name beside it, so that a reader sees the old text or the new,
/// also where several replace it, on this host or another. Nothing is flushed.
///
/// # Errors
/// The system's error; the old file then stays.
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
