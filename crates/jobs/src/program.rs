//! The executable file of this process, which an upgrade may replace while the process runs.

use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::place::file_id;

/// The kernel's path of the file that this process executes. A child started from this path runs the same version as
/// its parent, even if the file was replaced or removed.
pub const THIS_PROGRAM: &str = "/proc/self/exe";

/// Returns the name of this host.
#[must_use]
pub fn host_name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

/// Returns a hash of the machine ID and the host name. Clones of one image may share the machine ID.
pub(crate) fn machine_hash() -> u64 {
    let id = std::fs::read("/etc/machine-id").unwrap_or_default();
    let mut hasher = DefaultHasher::new();
    (id, host_name()).hash(&mut hasher);
    hasher.finish()
}

/// Returns a command that starts the program version of this process.
#[must_use]
pub fn this_program() -> Command {
    let mut command = Command::new(THIS_PROGRAM);
    command.arg0("zmove");
    command
}

/// The executable file of this process, and the path at which an upgrade installs the next version.
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    /// Device and inode numbers.
    number: (u64, u64),
}

impl Program {
    /// Returns the program of this process.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn of_this_process() -> io::Result<Self> {
        let path = std::fs::read_link(THIS_PROGRAM)?;
        // The kernel appends this suffix to the path of a file that was removed.
        let plain = path.as_os_str().as_bytes().strip_suffix(b" (deleted)");
        let path = match plain.filter(|_| path.symlink_metadata().is_err()) {
            Some(plain) => OsString::from_vec(plain.to_vec()).into(),
            None => path,
        };
        let number = file_id(&std::fs::metadata(THIS_PROGRAM)?);
        Ok(Self { path, number })
    }

    /// Returns whether a different executable exists at the program's path. If the program was only removed, the result
    /// is `false`.
    #[must_use]
    pub fn is_replaced(&self) -> bool {
        self.path.metadata().is_ok_and(|there| {
            there.is_file()
                && there.permissions().mode() & 0o111 != 0
                && file_id(&there) != self.number
        })
    }

    /// Replaces this process with the program at the same path, with the same arguments. Returns only if that fails.
    #[must_use]
    pub fn execute_successor(&self) -> io::Error {
        let mut arguments = std::env::args_os();
        let mut command = Command::new(&self.path);
        command.arg0(arguments.next().unwrap_or_default());
        command.args(arguments).env(SUCCESSOR, "1").exec()
    }

    /// Returns whether this process was started by [`execute_successor`](Self::execute_successor).
    #[must_use]
    pub fn is_successor() -> bool {
        std::env::var_os(SUCCESSOR).is_some()
    }

    /// Returns the path of the program.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The variable that marks a process which has replaced another version of the program.
const SUCCESSOR: &str = "ZMOVE_JOB_RUNNER_SUCCESSOR";
