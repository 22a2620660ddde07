//! Detects targets on a file system that is gone or has no free inodes. The error of the first failed operation may
//! hide this: creating the mount point again fails because it exists, and missing inodes look like missing space.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use zmove_disk::{PathCause, is_file_system_gone, lacks_inodes};
use zmove_types::Escaped;
use zmove_wire::{FaultCode, Open, Refusal, RefusalCode};

use super::{WriteAccess, choose_root};

impl WriteAccess {
    /// Returns the path of a target on this host without accessing its storage. Returns `None` if the path cannot be
    /// determined.
    #[must_use]
    pub fn path_of(&self, target: &[u8]) -> Option<PathBuf> {
        let path = |bytes| Path::new(OsStr::from_bytes(bytes));
        match self {
            Self::Beneath(roots) => {
                let (root, rest) = choose_root(target, roots.paths(), "write to").ok()?;
                Some(root.join(path(rest)))
            }
            Self::Anywhere => Some(path(target).to_owned()),
            Self::ReadOnly => None,
        }
    }
}

/// Returns `refusal`, or a refusal that names the cause if the file system of the target is gone or has no free inodes.
pub(super) fn named(refusal: Refusal, open: &Open, access: &WriteAccess) -> Refusal {
    let named = || {
        let path = access.path_of(&open.target)?;
        let error = path.metadata().err().filter(is_file_system_gone)?;
        let cause = PathCause {
            error: &error,
            path: &path,
        };
        let shown = Escaped(&open.target);
        let text = format!("open directory '{shown}': {cause}");
        Some(Refusal::new(RefusalCode::Target, text))
    };
    match refusal.code {
        RefusalCode::Target => named().unwrap_or_else(|| {
            let target = access.path_of(&open.target);
            with_inodes(refusal, target.as_deref())
        }),
        _ => refusal,
    }
}

/// Adds the cause to a refusal for lack of space, if the file system of the target has no free inodes.
fn with_inodes(mut refusal: Refusal, target: Option<&Path>) -> Refusal {
    let full = FaultCode::Os(Errno::NOSPC.raw_os_error()).to_string();
    let existing = || target?.ancestors().find(|path| path.exists());
    if refusal.text.contains(&full)
        && let Some(path) = existing()
        && rustix::fs::statvfs(path).is_ok_and(|stat| lacks_inodes(&stat))
    {
        refusal.text = refusal
            .text
            .replace(&full, &FaultCode::NoInodes.to_string());
    }
    refusal
}
