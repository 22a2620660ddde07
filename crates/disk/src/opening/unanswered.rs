//! Paths on file systems that never answer, for example because the server of an NFS or FUSE mount is gone.
//!
//! Not even SIGKILL ends some operations on such a path. A caller with a time limit must therefore run [`access_path`]
//! in a child process, and use the path only after the child has ended.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

use crate::opening::by_name::open_at;
use crate::opening::dead_mount::write_dead_mount;
use crate::opening::proc::{Mount, mounts};
use crate::opening::tree::open_listable_or_drop_box;
use crate::opening::tree::trusted_path::{path_of, walk_entries};

/// The access to a path did not end within its time limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unanswered {
    /// The mount that does not answer. `None` if the access has not begun.
    pub mount: Option<Box<Mount>>,
    /// The time limit.
    pub waited: Duration,
}

impl Unanswered {
    /// Creates the error of an access that has not ended. `last` is the last entry that [`access_path`] reported.
    #[must_use]
    pub fn at(last: Option<&Path>, waited: Duration) -> Self {
        let mount = last.and_then(|last| Mount::containing(&mounts(), last));
        let mount = mount.map(Box::new);
        Self { mount, waited }
    }
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no answer within {} s", self.waited.as_secs())?;
        self.mount
            .iter()
            .try_for_each(|mount| write_dead_mount(f, mount))
    }
}

impl Error for Unanswered {}

/// Accesses each entry on a path and the directory at its end. Reports each entry, as a path without links, before the
/// access. Does not follow links of other users.
///
/// # Errors
/// Returns the system's error, which is also an answer.
pub fn access_path(path: &Path, mut report: impl FnMut(&Path)) -> io::Result<()> {
    report(Path::new("/"));
    let reached = walk_entries(
        path,
        |directory, name| {
            if let Ok(directory) = path_of(directory) {
                report(&directory.join(name));
            }
        },
        |link| link.check_owner(),
    )?;
    let opened = open_listable_or_drop_box(|flags| open_at(&reached, ".", flags))?;
    rustix::fs::fstatvfs(opened)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn each_entry_of_a_path_is_reported_before_it_is_accessed() {
        let home = tempfile::tempdir().unwrap();
        let real = home.path().canonicalize().unwrap();
        let at = |name: &str| real.join(name);
        fs::create_dir_all(at("a/b")).unwrap();
        symlink("../a", at("a/up")).unwrap();
        symlink("round", at("round")).unwrap();
        let access = |path: PathBuf| {
            let mut last = None;
            let accessed = access_path(&path, |entry| last = Some(entry.to_owned()));
            (last.unwrap(), accessed.is_ok())
        };
        assert_eq!(access(at("a/up/b")), (at("a/b"), true));
        assert_eq!(access(at("round")), (at("round"), false));
        assert_eq!(access(at("none/x")), (at("none"), false));
        assert_eq!(access("/".into()), ("/".into(), true));
    }

    #[test]
    fn the_mount_of_the_last_entry_does_not_answer() {
        let error = Unanswered::at(Some(Path::new("/proc/self")), Duration::from_secs(2));
        assert_eq!(
            error.to_string(),
            "no answer within 2 s (the proc file system mounted at '/proc' does not answer; mount it again)"
        );
        let error = Unanswered::at(None, Duration::from_secs(2));
        assert_eq!(error.to_string(), "no answer within 2 s");
    }
}
