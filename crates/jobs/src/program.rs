//! The program of this process, which an upgrade may replace while the process runs.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::place::number_of;

/// The file that this process executes, under the name that the kernel gives it. A child that is started by this name
/// has the version of its parent, also after the file was replaced or removed.
pub const THIS_PROGRAM: &str = "/proc/self/exe";

/// The name of this host.
#[must_use]
pub fn host_name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

/// A command that starts this program in the version of this process.
#[must_use]
pub fn this_program() -> Command {
    let mut command = Command::new(THIS_PROGRAM);
    command.arg0("zmove");
    command
}

/// The program of this process and the place at which its next version appears.
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    /// Device and inode.
    number: (u64, u64),
}

impl Program {
    /// The program of this process.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn of_this_process() -> io::Result<Self> {
        let path = std::fs::read_link(THIS_PROGRAM)?;
        // The kernel marks a file without a name.
        let plain = path.as_os_str().as_bytes().strip_suffix(b" (deleted)");
        let path = match plain.filter(|_| path.symlink_metadata().is_err()) {
            Some(plain) => OsString::from_vec(plain.to_vec()).into(),
            None => path,
        };
        let number = number_of(&std::fs::metadata(THIS_PROGRAM)?);
        Ok(Self { path, number })
    }

    /// Whether another program has taken the place of this one. A program that was only removed has no successor.
    #[must_use]
    pub fn is_replaced(&self) -> bool {
        self.path.metadata().is_ok_and(|there| {
            there.is_file()
                && there.permissions().mode() & 0o111 != 0
                && number_of(&there) != self.number
        })
    }

    /// Executes the program that has taken the place of this one, in this process and with the same arguments. Returns
    /// only the error.
    #[must_use]
    pub fn execute_successor(&self) -> io::Error {
        let mut arguments = std::env::args_os();
        let mut command = Command::new(&self.path);
        command.arg0(arguments.next().unwrap_or_default());
        command.args(arguments).env(SUCCESSOR, "1").exec()
    }

    /// Whether this process has executed this program by [`execute_successor`](Self::execute_successor).
    #[must_use]
    pub fn is_successor() -> bool {
        std::env::var_os(SUCCESSOR).is_some()
    }

    /// The place of the program.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The variable by which a program knows that it has replaced another version of itself in a process.
const SUCCESSOR: &str = "ZMOVE_JOB_RUNNER_SUCCESSOR";
