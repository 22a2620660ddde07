//! `zmove journal`: lists what broken transfers have left at this receiver, and removes it, also for a daemon.

mod clean;
mod list;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use zmove_receiver::journal;
use zmove_transport::AuthorizedKeys;

use crate::args::JournalCommand;
use crate::display::terminal;
use crate::settings::{self, Role};
use crate::value::age::Age;
use crate::value::exit::Exit;

pub(crate) use clean::expire;

/// Runs `zmove journal`.
pub(crate) fn run(command: &JournalCommand) -> Result<Exit> {
    match command {
        JournalCommand::List { json } => {
            let mut journals = Vec::new();
            for directory in directories()? {
                journals.extend(journal::list(&directory)?);
            }
            let show = if *json {
                list::show_as_json
            } else {
                list::show
            };
            let names = names();
            journals.iter().for_each(|journal| show(journal, &names));
            if journals.is_empty() && !json {
                terminal::say("nothing is unfinished");
            }
            Ok(Exit::Done)
        }
        JournalCommand::Clean(args) => clean::run(args, &directories()?),
    }
}

/// The directories in which daemons and local pushes of this user keep their journals.
fn directories() -> Result<Vec<PathBuf>> {
    let mut directories = Vec::new();
    for role in [Role::Daemon, Role::Client] {
        let directory = settings::journals(&settings::home(role)?);
        if !directories.contains(&directory) {
            directories.push(directory);
        }
    }
    let service = PathBuf::from(settings::SERVICE_JOURNALS);
    let own = std::env::var_os("ZMOVE_HOME").is_none();
    if own && rustix::process::geteuid().is_root() && service.is_dir() {
        directories.push(service);
    }
    Ok(directories)
}

/// The names of the keys that are let in here; without them journals are listed by key alone.
fn names() -> list::Names {
    let keys = settings::home(Role::Daemon)
        .ok()
        .and_then(|home| AuthorizedKeys::load(&home).ok());
    let grants = keys.iter().flat_map(AuthorizedKeys::grants);
    grants
        .filter_map(|grant| Some((grant.key()?.to_string(), grant.name.clone())))
        .collect()
}

/// The name of a journal: its transfer's id, with which the file's name begins.
fn name(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    stem.split('-').next().unwrap_or_default().to_owned()
}

/// The time since a moment; zero if it is still to come.
fn age(moment: SystemTime) -> Age {
    Age(SystemTime::now().duration_since(moment).unwrap_or_default())
}

/// The time since a moment in seconds since 1970.
fn age_of_seconds(seconds: u64) -> Age {
    UNIX_EPOCH
        .checked_add(Duration::from_secs(seconds))
        .map_or(Age(Duration::ZERO), age)
}
