//! Checks which users can create, rename or remove entries in zmove's directories on this host (`crate::ownership`).

use std::path::{Path, PathBuf};

use zmove_transport::AuthorizedKeys;

use crate::commands::doctor::finding::{Finding, Remedy, Severity};
use crate::commands::serve::check::faults_of_roots;
use crate::ownership::{self, Control};
use crate::settings::{self, Role};

/// Checks the ownership of zmove's directories. Root checks the directories of its own commands and of the host's
/// daemon. Other users check only the directories of the host's daemon.
pub(crate) fn judge() -> Vec<Finding> {
    let mut directories = vec![PathBuf::from(settings::SERVICE_HOME)];
    if ownership::is_root() {
        let homes = [Role::Daemon, Role::Client].map(settings::home);
        directories.extend(homes.into_iter().chain([settings::jobs()]).flatten());
    }
    directories.sort();
    directories.dedup();
    let existing = directories.iter().filter(|directory| directory.exists());
    let mut findings: Vec<_> = existing
        .map(|directory| judge_directory(directory))
        .collect();
    findings.extend(judge_roots());
    findings
}

/// Returns the faults of the roots that the `authorized_keys` of this user's daemon grants. Root reads that file only
/// if no other user can change it.
fn judge_roots() -> Vec<Finding> {
    let Ok(home) = settings::home(Role::Daemon) else {
        return Vec::new();
    };
    if ownership::require_root_control(&home, "the list of roots").is_err() {
        return Vec::new();
    }
    let keys = AuthorizedKeys::load(&home).unwrap_or_default();
    let own = settings::usual_own_paths(&home);
    faults_of_roots(&keys, keys.writable_roots(), own)
        .into_iter()
        .map(|fault| Finding::new(Severity::Bad, "root", fault))
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
        Some(fault) => {
            let place = directory.display();
            let text = format!(
                "root uses '{place}', but other users can change names in it: {}",
                fault.text
            );
            match fault.mend {
                Some(command) => {
                    Finding::new(Severity::Bad, CHECK, text).with_remedy(Remedy::command(command))
                }
                None => {
                    let text = format!("{text}; {}", fault.remedy());
                    Finding::new(Severity::Bad, CHECK, text)
                }
            }
        }
    }
}

const CHECK: &str = "owner";
