//! `zmove journal`: lists or removes the unfinished transfers at this receiver, including those of a daemon.

mod clean;
mod list;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use zmove_receiver::journal;
use zmove_transport::AuthorizedKeys;

use crate::args::{JournalCleanArgs, JournalCommand};
use crate::display::terminal;
use crate::ownership::{self, Child};
use crate::settings::{self, Role};
use crate::value::age::Age;
use crate::value::exit::Exit;

pub(crate) use clean::expire;

/// Runs `zmove journal`.
pub(crate) fn run(command: &JournalCommand) -> Result<Exit> {
    let mut found = JournalResult::default();
    match command {
        JournalCommand::List { json, directory } => {
            for place in places(directory.as_deref())? {
                match place {
                    JournalDirectory::Own(directory) => list(&directory, *json, &mut found)?,
                    JournalDirectory::OfUser(user, directory) => {
                        found.merge(listed_by(user, &directory, *json)?);
                    }
                }
            }
            if found.is_nothing() && !json && directory.is_none() {
                terminal::say("no unfinished transfers");
            }
        }
        JournalCommand::Clean(args) => {
            for place in places(args.directory.as_deref())? {
                found.merge(match place {
                    JournalDirectory::Own(directory) => clean::run(args, &directory)?,
                    JournalDirectory::OfUser(user, directory) => {
                        cleaned_by(user, &directory, args)?
                    }
                });
            }
            if found.is_nothing() && args.directory.is_none() {
                terminal::say("nothing to remove");
            }
        }
    }
    Ok(found.exit(command))
}

/// The result of a command for one or more directories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum JournalResult {
    /// No journal was found.
    #[default]
    Nothing,
    /// All journals were shown or removed.
    Whole,
    /// At least one journal or file could not be removed.
    Partial,
}

impl JournalResult {
    fn is_nothing(self) -> bool {
        self == Self::Nothing
    }

    fn merge(&mut self, other: Self) {
        *self = other.max(*self);
    }

    /// Returns the exit code. A child process returns [`Exit::Busy`] to report that no journal was found. Journal
    /// commands use that code for nothing else.
    fn exit(self, command: &JournalCommand) -> Exit {
        let is_child = match command {
            JournalCommand::List { directory, .. } => directory.is_some(),
            JournalCommand::Clean(args) => args.directory.is_some(),
        };
        match self {
            Self::Nothing if is_child => Exit::Busy,
            Self::Nothing | Self::Whole => Exit::Done,
            Self::Partial => Exit::Partial,
        }
    }

    fn of_child(code: u8) -> Result<Self> {
        let known = [
            (Exit::Busy, Self::Nothing),
            (Exit::Done, Self::Whole),
            (Exit::Partial, Self::Partial),
        ];
        let found = known.into_iter().find(|(exit, _)| *exit as u8 == code);
        found
            .map(|(_, found)| found)
            .with_context(|| format!("zmove as another user ended with exit code {code}"))
    }
}

fn list(directory: &Path, json: bool, found: &mut JournalResult) -> Result<()> {
    let names = names();
    for journal in journal::list(directory)? {
        found.merge(JournalResult::Whole);
        if json {
            list::show_as_json(&journal, &names);
        } else {
            list::show(&journal, &names);
        }
    }
    Ok(())
}

fn child(user: u32, word: &str, directory: &Path) -> Result<Child> {
    let home = std::path::absolute(settings::home(Role::Daemon)?)?;
    let child = Child::new(user)?.env("ZMOVE_HOME", &home);
    Ok(child.arg("journal").arg(word).arg("--in").arg(directory))
}

/// Lists the journals in a directory, in a process of the user who owns the directory.
fn listed_by(user: u32, directory: &Path, json: bool) -> Result<JournalResult> {
    let child = child(user, "list", directory)?;
    let child = if json { child.arg("--json") } else { child };
    JournalResult::of_child(child.code()?)
}

/// Cleans the journals in a directory, in a process of the user who owns the directory. Removes files only below the
/// roots in root's settings.
fn cleaned_by(user: u32, directory: &Path, args: &JournalCleanArgs) -> Result<JournalResult> {
    let home = settings::home(Role::Daemon)?;
    ownership::require_root_control(
        &home,
        "the roots below which it cleans the journals of other users",
    )?;
    let keys = AuthorizedKeys::load(&home)?;
    let mut child = child(user, "clean", directory)?;
    for grant in keys.grants().iter().filter(|grant| grant.access.writes()) {
        child = grant
            .roots
            .iter()
            .fold(child, |child, root| child.arg("--below").arg(root));
    }
    if args.all {
        child = child.arg("--all");
    } else {
        child = child
            .arg("--older-than")
            .arg(format!("{}s", args.older_than.0.as_secs()));
    }
    if args.dry_run {
        child = child.arg("--dry-run");
    }
    JournalResult::of_child(child.code()?)
}

/// A directory of journals, and the process that reads it.
enum JournalDirectory {
    /// This process reads the directory.
    Own(PathBuf),
    /// A child process of this user reads the directory.
    OfUser(u32, PathBuf),
}

/// Returns the directories in which daemons and local pushes of this user keep their journals. If `only` is given,
/// returns only that directory.
fn places(only: Option<&Path>) -> Result<Vec<JournalDirectory>> {
    let directories = match only {
        Some(directory) => vec![directory.to_owned()],
        None => {
            let daemon = settings::daemon_journals(&settings::home(Role::Daemon)?);
            let own = settings::journals(&settings::home(Role::Client)?);
            let mut directories = vec![daemon, own];
            directories.dedup();
            directories
        }
    };
    directories.into_iter().map(JournalDirectory::of).collect()
}

impl JournalDirectory {
    fn of(directory: PathBuf) -> Result<Self> {
        let directory = std::path::absolute(directory)?;
        Ok(match ownership::other_owner(&directory, "journals")? {
            Some(user) => Self::OfUser(user, directory),
            None => Self::Own(directory),
        })
    }
}

/// Returns the names of the allowed keys. If the list of keys cannot be loaded, journals are listed without names of
/// keys.
fn names() -> list::Names {
    let keys = settings::home(Role::Daemon)
        .ok()
        .and_then(|home| AuthorizedKeys::load(&home).ok());
    let grants = keys.iter().flat_map(AuthorizedKeys::grants);
    grants
        .filter_map(|grant| Some((grant.key()?.to_string(), grant.name.clone())))
        .collect()
}

/// Returns the name of a journal, which is the ID of its transfer: the first component of the file name.
fn name(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    stem.split('-').next().unwrap_or_default().to_owned()
}

/// Returns the time that has passed since `moment`. Returns zero if `moment` is in the future.
fn age(moment: SystemTime) -> Age {
    Age(SystemTime::now().duration_since(moment).unwrap_or_default())
}

/// Returns the time that has passed since a timestamp in seconds since 1970.
fn age_of_seconds(seconds: u64) -> Age {
    UNIX_EPOCH
        .checked_add(Duration::from_secs(seconds))
        .map_or(Age(Duration::ZERO), age)
}
