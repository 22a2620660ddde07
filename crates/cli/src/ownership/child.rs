//! The process that works in a directory of another user: `zmove as-user UID COMMAND...`, which root starts.
//!
//! **Invariant:** until the process has become that user, it does nothing but change its identity. Afterwards, it has
//! no privileges of root.

use std::ffi::{CString, OsStr};
use std::fs;
use std::os::fd::RawFd;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use nix::unistd::{ROOT, Uid, User};
use zmove_jobs::THIS_PROGRAM;

use super::{is_root, name_of, terminal};
use crate::args::AsUserArgs;
use crate::value::exit::{Exit, failure, usage_error};

/// A zmove command that runs as another user.
#[derive(Debug)]
pub(crate) struct Child(pub(crate) Command);

impl Child {
    /// Creates a zmove command that runs as `user` with that user's home directory. The child inherits only the
    /// variables in `ENVIRONMENT`.
    ///
    /// # Errors
    /// Returns an error if the user has no account, because its groups are then unknown.
    pub(crate) fn new(user: u32) -> Result<Self> {
        let account = account(user)?;
        let mut command = Command::new(THIS_PROGRAM);
        command.env_clear();
        for name in ENVIRONMENT {
            command.envs(std::env::var_os(name).map(|value| (name, value)));
        }
        command
            .env("HOME", account.dir)
            .args(["as-user", &user.to_string()]);
        Ok(Self(command))
    }

    pub(crate) fn arg(mut self, word: impl AsRef<OsStr>) -> Self {
        self.0.arg(word);
        self
    }

    pub(crate) fn env(mut self, name: &str, path: &Path) -> Self {
        self.0.env(name, path);
        self
    }

    /// Runs the command and returns its exit code.
    ///
    /// # Errors
    /// Returns an error if the command cannot be started or was killed.
    pub(crate) fn code(self) -> Result<u8> {
        terminal::run(self.0)
    }
}

fn account(user: u32) -> Result<User> {
    let found = User::from_uid(Uid::from_raw(user))
        .with_context(|| format!("look for the account of user {user}"))?;
    found.ok_or_else(|| {
        let text = format!("root cannot act as user {user}, who has no account on this host");
        failure(Exit::File, text)
    })
}

/// Detaches this process from root's terminal, permanently gives it the identity and groups of the user, and leaves
/// root's session keyring, which may hold keys of root.
///
/// # Errors
/// Returns the system's error, or an error if this process still has a terminal. After an error, the process must exit.
pub(crate) fn become_user(user: &User) -> Result<()> {
    terminal::leave()?;
    terminal::require_no_terminal()?;
    let name = CString::new(user.name.as_str()).context("read the user's name")?;
    rustix::thread::set_no_new_privs(true).context("prevent regaining privileges")?;
    // Root has a larger quota for keyrings than the user.
    zmove_sockopt::leave_session_keyring().context("leave the session keyring of root")?;
    // The groups must be set before the user, because only root may set the groups.
    nix::unistd::initgroups(&name, user.gid).context("set the user's groups")?;
    nix::unistd::setgid(user.gid).context("set the user's group")?;
    nix::unistd::setuid(user.uid).with_context(|| format!("become the user '{}'", user.name))?;
    ensure!(
        nix::unistd::setuid(ROOT).is_err(),
        "the privileges of root could not be dropped"
    );
    Ok(())
}

/// Closes the file descriptors inherited from the parent, because another user must not get access to the files of
/// root's shell. Keeps the standard streams and the first `sockets` descriptors after them. Must be called before this
/// process opens its own files.
///
/// # Errors
/// Returns an error if the descriptors cannot be listed.
pub(crate) fn close_inherited(sockets: usize) -> Result<()> {
    let listed = fs::read_dir("/proc/self/fd").context("list the descriptors of this process")?;
    let numbers: Vec<RawFd> = listed
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    for number in numbers {
        if usize::try_from(number).is_ok_and(|number| number >= STREAMS + sockets) {
            // The list also contains the descriptor that was used to read the list. This descriptor is already closed,
            // so the error is ignored.
            let _closed = nix::unistd::close(number);
        }
    }
    Ok(())
}

/// Runs `zmove as-user`: becomes the user, then runs the command. Returns the exit code of the command.
pub(crate) fn run_as(args: AsUserArgs, command: impl FnOnce(AsUserArgs) -> u8) -> Result<u8> {
    let user = args.user;
    if !is_root() || user == 0 {
        return Err(usage_error(format!(
            "only root can become another user, and {} is root or this process is not",
            name_of(user)
        )));
    }
    close_inherited(0)?;
    become_user(&account(user)?)?;
    Ok(command(args))
}

/// Number of standard streams.
const STREAMS: usize = 3;

/// Environment variables that the child inherits. None of them names a file that zmove opens.
pub(super) const ENVIRONMENT: [&str; 7] = [
    "PATH",
    "TERM",
    "LANG",
    "LC_ALL",
    "COLUMNS",
    "NO_COLOR",
    "RUST_BACKTRACE",
];
