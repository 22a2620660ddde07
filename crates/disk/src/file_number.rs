//! Which file is which.

use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, Stat};
use zmove_types::FileNumber;

/// Which file an open one is.
///
/// # Errors
/// What the system says.
pub fn number_of(file: impl AsFd) -> io::Result<FileNumber> {
    Ok(of_stat(&rustix::fs::fstat(file)?))
}

/// Which file a name in a directory leads to; a symbolic link is one by itself.
///
/// # Errors
/// What the system says.
pub fn number_at(directory: impl AsFd, name: &OsStr) -> io::Result<FileNumber> {
    Ok(of_stat(&rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?))
}

/// Whether two open files are one; not where the system does not tell.
#[must_use]
pub fn is_same_file(one: impl AsFd, other: impl AsFd) -> bool {
    matches!((number_of(one), number_of(other)), (Ok(one), Ok(other)) if one == other)
}

const fn of_stat(stat: &Stat) -> FileNumber {
    FileNumber { device: stat.st_dev, inode: stat.st_ino }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_file_is_the_same_under_all_its_names_and_a_link_is_not() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        let (file, other) = (File::create(at("file")).unwrap(), File::create(at("other")).unwrap());
        std::fs::hard_link(at("file"), at("name")).unwrap();
        std::os::unix::fs::symlink("file", at("link")).unwrap();
        assert!(is_same_file(&file, File::open(at("name")).unwrap()) && !is_same_file(&file, &other));
        let directory = File::open(home.path()).unwrap();
        let number = |name: &str| number_at(&directory, name.as_ref()).unwrap();
        assert_eq!(number("name"), number_of(&file).unwrap());
        assert!(![number("file"), number("other")].contains(&number("link")));
        assert!(number_at(&directory, "nothing".as_ref()).is_err());
    }
}
