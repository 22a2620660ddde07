//! The directories of each command, and the user who works in them.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::{Child, demand_root, is_root, other_owner};
use crate::args::Command;
use crate::settings::{self, Role};

/// How a command uses its directory.
enum Use {
    /// The command needs nothing else, so the user who owns the directory can run it.
    ByOwner {
        directory: Result<PathBuf>,
        /// The environment variable that passes the directory to the child process.
        variable: &'static str,
    },
    /// The command also needs root's privileges elsewhere.
    ByRoot(Vec<Result<PathBuf>>),
    /// The command uses no directory, or consults this module for each one.
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
        Use::None => {}
        // The command itself reports a missing home directory.
        Use::ByRoot(directories) => directories
            .into_iter()
            .flatten()
            .try_for_each(|directory| demand_root(&directory, PURPOSE))?,
        Use::ByOwner {
            directory: Ok(directory),
            variable,
        } => return by_owner(&std::path::absolute(&directory)?, variable),
        Use::ByOwner { .. } => {}
    }
    Ok(None)
}

fn use_of(command: &Command) -> Use {
    let home = || settings::home(Role::Client);
    match command {
        Command::Allow(_) => Use::ByOwner {
            directory: settings::home(Role::Daemon),
            variable: "ZMOVE_HOME",
        },
        Command::Key(command) if command.is_of_daemon() => Use::ByOwner {
            directory: settings::home(Role::Daemon).map(|home| settings::state(&home)),
            variable: "STATE_DIRECTORY",
        },
        Command::Key(_) | Command::Trust(_) => Use::ByOwner {
            directory: home(),
            variable: "ZMOVE_HOME",
        },
        Command::Jobs(_) | Command::Job(_) => Use::ByOwner {
            directory: settings::jobs(),
            variable: "ZMOVE_JOBS",
        },
        Command::Submit(_) | Command::Runner(_) | Command::RunJob(_) => {
            Use::ByRoot(vec![home(), settings::jobs()])
        }
        Command::Doctor(args) if args.host.is_none() => Use::None,
        Command::Serve(_)
        | Command::Status(_)
        | Command::Stop(_)
        | Command::Drain(_)
        | Command::Journal(_)
        | Command::AskDaemon { .. }
        | Command::AsUser(_)
        | Command::Trace(_)
        | Command::Completions { .. }
        | Command::Man { .. } => Use::None,
        // Any other command may read the keys of its user.
        _ => Use::ByRoot(vec![home()]),
    }
}

/// Runs the whole command of this process as the user who controls the directory, unless that is root.
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

/// Returns the directories named by environment variables, for a child whose environment is cleared.
fn places() -> impl Iterator<Item = (&'static str, PathBuf)> {
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
