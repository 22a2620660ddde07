//! Determines the directories that each command uses, and the user who must run the command.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::{Child, is_root, other_owner, require_root_control};
use crate::args::Command;
use crate::settings::{self, Role};

/// How a command uses its directory.
enum DirectoryUse {
    /// The command uses nothing but this directory, so the user who owns the directory can run the command.
    ByOwner {
        directory: Result<PathBuf>,
        /// The environment variable that passes the directory to the child process.
        variable: &'static str,
    },
    /// The command uses these directories, and also needs root's privileges for other work.
    ByRoot(Vec<Result<PathBuf>>),
    /// The command uses no directory, or applies the ownership rule to each directory itself.
    None,
}

/// Applies the ownership rule to a command run by root, before the command opens a file. Returns the exit code if a
/// child process ran the command as the directory's user, or `None` if this process must run it.
///
/// # Errors
/// Returns an error if a directory of the command is refused or the child process cannot be started.
pub(crate) fn settle(command: &Command) -> Result<Option<u8>> {
    if !is_root() {
        return Ok(None);
    }
    match use_of(command) {
        DirectoryUse::None => {}
        // A missing home directory is not an error here, because the command reports it.
        DirectoryUse::ByRoot(directories) => directories
            .into_iter()
            .flatten()
            .try_for_each(|directory| require_root_control(&directory, PURPOSE))?,
        DirectoryUse::ByOwner {
            directory: Ok(directory),
            variable,
        } => return by_owner(&std::path::absolute(&directory)?, variable),
        DirectoryUse::ByOwner { .. } => {}
    }
    Ok(None)
}

fn use_of(command: &Command) -> DirectoryUse {
    let home = || settings::home(Role::Client);
    match command {
        Command::Allow(_) => DirectoryUse::ByOwner {
            directory: settings::home(Role::Daemon),
            variable: "ZMOVE_HOME",
        },
        Command::Key(command) if command.is_of_daemon() => DirectoryUse::ByOwner {
            directory: settings::home(Role::Daemon).map(|home| settings::state(&home)),
            variable: "STATE_DIRECTORY",
        },
        Command::Key(_) | Command::Trust(_) => DirectoryUse::ByOwner {
            directory: home(),
            variable: "ZMOVE_HOME",
        },
        Command::Jobs(_) | Command::Job(_) => DirectoryUse::ByOwner {
            directory: settings::jobs(),
            variable: "ZMOVE_JOBS",
        },
        Command::Submit(_) | Command::Runner(_) | Command::RunJob(_) => {
            DirectoryUse::ByRoot(vec![home(), settings::jobs()])
        }
        Command::Doctor(args) if args.host.is_none() => DirectoryUse::None,
        Command::Serve(_)
        | Command::Status(_)
        | Command::Stop(_)
        | Command::Drain(_)
        | Command::Journal(_)
        | Command::AskDaemon { .. }
        | Command::Look { .. }
        | Command::AsUser(_)
        | Command::Trace(_)
        | Command::Completions { .. }
        | Command::Man { .. } => DirectoryUse::None,
        // Every other command may read the keys of its user.
        _ => DirectoryUse::ByRoot(vec![home()]),
    }
}

/// Runs the whole command as the user who controls the directory. Does nothing if this user is root.
fn by_owner(directory: &Path, variable: &'static str) -> Result<Option<u8>> {
    let Some(user) = other_owner(directory, PURPOSE)? else {
        return Ok(None);
    };
    let child = places().fold(Child::new(user)?, |child, (name, path)| {
        child.env(name, &path)
    });
    let child = child.env(variable, directory);
    let words = std::env::args_os().skip(1);
    words.fold(child, Child::arg).code().map(Some)
}

/// Returns the directories that are named by environment variables, as absolute paths. A process of another user needs
/// them because it does not inherit the environment.
pub(super) fn places() -> impl Iterator<Item = (&'static str, PathBuf)> {
    PLACES
        .into_iter()
        .filter_map(|name| Some((name, std::path::absolute(std::env::var_os(name)?).ok()?)))
}

const PLACES: [&str; 4] = [
    "ZMOVE_HOME",
    "ZMOVE_JOBS",
    "STATE_DIRECTORY",
    "RUNTIME_DIRECTORY",
];
const PURPOSE: &str = "keys, lists and records";
