//! `zmove serve --check`: reads what a daemon would read, changes nothing, and reports all faults.

use std::path::Path;

use zmove_transport::{AuthorizedKeys, Identity};

use super::{confinement, privileges};
use crate::args::{ConfineArg, ServeArgs};
use crate::commands::serve::config::Config;
use crate::display::terminal;
use crate::value::exit::Exit;

/// Runs `zmove serve --check`.
pub(super) fn run(args: &ServeArgs, home: &Path) -> Exit {
    let mut faults = Vec::new();
    let config = Config::read(args.config.as_deref(), home).unwrap_or_else(|wrong| {
        faults.extend(wrong.iter().map(ToString::to_string));
        Config::default()
    });
    let config = config.with(args);
    let user = config.user.as_ref().map(|name| privileges::known(name));
    // The rightful owners of the files depend on the user that will read them.
    let reader = match user {
        None => Some(rustix::process::geteuid().as_raw()),
        Some(Ok(user)) => Some(user.uid.as_raw()),
        Some(Err(error)) => {
            faults.push(terminal::causes(&error).to_string());
            None
        }
    };
    if config.confine == ConfineArg::On
        && let Err(error) = confinement::possible()
    {
        faults.push(terminal::causes(&error).to_string());
    }
    // A key that does not exist yet is made by the daemon.
    if let Some(reader) = reader
        && home.join("key.pem").exists()
        && let Err(error) = Identity::load_or_create_guarded(home, reader)
    {
        faults.push(terminal::causes(&error.into()).to_string());
    }
    if let Some(reader) = reader {
        match AuthorizedKeys::load_guarded(home, reader) {
            Ok(keys) => faults.extend(missing_roots(&keys)),
            Err(error) => faults.push(terminal::causes(&error.into()).to_string()),
        }
    }
    // A directory above several files is reported for each of them.
    faults.dedup();
    for fault in &faults {
        terminal::warn(fault);
    }
    if faults.is_empty() {
        terminal::say("ok");
        return Exit::Done;
    }
    Exit::Usage
}

fn missing_roots(keys: &AuthorizedKeys) -> Vec<String> {
    let roots = keys.grants().iter().flat_map(|grant| {
        grant
            .roots
            .iter()
            .chain(&grant.read_roots)
            .map(|root| (&grant.name, root))
    });
    let missing = roots.filter(|(_, root)| !root.is_dir());
    missing
        .map(|(name, root)| format!("the root '{}' of {name} is no directory", root.display()))
        .collect()
}
