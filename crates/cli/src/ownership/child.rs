//! The process that works in a directory of another user: `zmove as-user UID COMMAND...`, which root starts.
//!
//! **Invariant:** nothing but its identity is done before it has become the user, with nothing left of root.

use std::ffi::{CString, OsStr};
use std::fs;
use std::os::fd::RawFd;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use nix::unistd::{ROOT, Uid, User};
use zmove_jobs::THIS_PROGRAM;

use super::{is_root, name_of, terminal};
use crate::args::AsUserArgs;
use crate::value::exit::{Exit, failure, usage_error};

/// A command of zmove for another user.
#[derive(Debug)]
pub(crate) struct Child(pub(crate) Command);

impl Child {
    /// A command of zmove that `user` runs, with the home directories of that user and nothing of this process's
    /// environment but what concerns the terminal.
    ///
    /// # Errors
    /// The user has no account, so its groups are not known.
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

    /// Runs the command, and returns its exit code.
    ///
    /// # Errors
    /// It cannot be started, or was killed.
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

/// Gives this process that user's identity and groups, for good, and leaves the terminal of root before that.
///
/// # Errors
/// The system's error, or this process still has a terminal; the process must end then.
pub(crate) fn become_user(user: &User) -> Result<()> {
    terminal::leave()?;
    terminal::demand_none()?;
    let name = CString::new(user.name.as_str()).context("read the user's name")?;
    rustix::thread::set_no_new_privs(true).context("rule out that rights are gained again")?;
    // The groups come first: only root may change them.
    nix::unistd::initgroups(&name, user.gid).context("take on the user's groups")?;
    nix::unistd::setgid(user.gid).context("take on the user's group")?;
    nix::unistd::setuid(user.uid).with_context(|| format!("become the user '{}'", user.name))?;
    ensure!(
        nix::unistd::setuid(ROOT).is_err(),
        "the rights of root could not be given up"
    );
    Ok(())
}

/// Closes the descriptors that this process has from its parent, but the standard streams and the first `sockets` after
/// them: the files of root's shell are not for another user. Called before this process opens a file of its own.
///
/// # Errors
/// The descriptors cannot be listed.
pub(crate) fn close_inherited(sockets: usize) -> Result<()> {
    let listed = fs::read_dir("/proc/self/fd").context("list the descriptors of this process")?;
    let numbers: Vec<RawFd> = listed
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    for number in numbers {
        if usize::try_from(number).is_ok_and(|number| number >= STREAMS + sockets) {
            // The descriptor of the list itself is closed already.
            let _closed = nix::unistd::close(number);
        }
    }
    Ok(())
}

/// Runs `zmove as-user`: becomes the user, then does the command.
pub(crate) fn run_as(
    args: AsUserArgs,
    command: impl FnOnce(AsUserArgs) -> ExitCode,
) -> Result<ExitCode> {
    let user = args.user;
    if !is_root() || user == 0 {
        return Err(usage_error(format!(
            "only root becomes another user, and {} is root or this process is not",
            name_of(user)
        )));
    }
    close_inherited(0)?;
    become_user(&account(user)?)?;
    Ok(command(args))
}

/// The number of the standard streams.
const STREAMS: usize = 3;

/// The variables that the child keeps: none names a file that zmove opens.
const ENVIRONMENT: [&str; 7] = [
    "PATH",
    "TERM",
    "LANG",
    "LC_ALL",
    "COLUMNS",
    "NO_COLOR",
    "RUST_BACKTRACE",
];
