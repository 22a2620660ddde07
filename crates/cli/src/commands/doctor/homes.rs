//! The directories of zmove on this host: who can change the names in them (`crate::ownership`).

use std::path::{Path, PathBuf};

use crate::commands::doctor::finding::{Finding, Level, Mend};
use crate::ownership::{self, Control, Fault};
use crate::settings::{self, Role};

/// Judges the directories in which root works: for root its own, for others those of the host's daemon.
pub(crate) fn judge() -> Vec<Finding> {
    let mut directories = vec![PathBuf::from(settings::SERVICE_HOME)];
    if ownership::is_root() {
        let homes = [Role::Daemon, Role::Client].map(settings::home);
        directories.extend(homes.into_iter().chain([settings::jobs()]).flatten());
    }
    directories.sort();
    directories.dedup();
    directories
        .iter()
        .filter(|directory| directory.exists())
        .map(|directory| judge_directory(directory))
        .collect()
}

fn judge_directory(directory: &Path) -> Finding {
    let Ok(control) = Control::with_entries(directory) else {
        return Finding::unknown(CHECK, &directory.to_string_lossy());
    };
    match control.fault() {
        None => Finding::ok(
            CHECK,
            format!("only root can change '{}'", directory.display()),
        ),
        Some(Fault { text, mend }) => Finding::new(
            Level::Bad,
            CHECK,
            format!(
                "root works in '{}', and others can change names in it: {text}",
                directory.display()
            ),
        )
        .mended_by(Mend::command(mend)),
    }
}

const CHECK: &str = "owner";
