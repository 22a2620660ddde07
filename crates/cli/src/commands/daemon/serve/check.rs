//! `zmove serve --check`: reads the files that a daemon would read, and reports all faults. This command changes
//! nothing.

use std::io;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use zmove_disk::{RootGuard, Unanswered, answer_within};
use zmove_transport::{AuthorizedKeys, Identity};

use super::privileges::DaemonPaths;
use super::{confinement, privileges};
use crate::args::{ConfineArg, ServeArgs};
use crate::commands::serve::config::Config;
use crate::display::terminal;
use crate::ownership::{self, become_user, run_apart};
use crate::value::exit::Exit;

/// Runs `zmove serve --check`. Returns the exit code.
///
/// # Errors
/// Returns an error if this process cannot leave the terminal.
pub(super) fn run(args: &ServeArgs, own: &DaemonPaths) -> Result<u8> {
    let mut faults = Vec::new();
    if let Err(error) = own.require_root_settings() {
        // Root must not read files from this directory, because another user can change it.
        terminal::warn(terminal::causes(&error));
        return Ok(Exit::Usage.into());
    }
    let config = Config::read(args.config.as_deref(), &own.home).unwrap_or_else(|wrong| {
        faults.extend(wrong.iter().map(ToString::to_string));
        Config::default()
    });
    let config = config.with(args);
    if config.user.is_some()
        && ownership::is_root()
        && let Some(code) = run_apart(args.apart_from)?
    {
        return Ok(code);
    }
    if config.confine == ConfineArg::On
        && let Err(error) = confinement::possible()
    {
        faults.push(terminal::causes(&error).to_string());
    }
    match as_reader(&config, own) {
        Ok(()) => faults.extend(faults_of_files(own, &config)),
        Err(error) => faults.push(terminal::causes(&error).to_string()),
    }
    // If a directory has a fault, the same fault is reported for each file below the directory.
    faults.dedup();
    for fault in &faults {
        terminal::warn(fault);
    }
    if faults.is_empty() {
        terminal::say("ok");
        return Ok(Exit::Done.into());
    }
    Ok(Exit::Usage.into())
}

/// Becomes the user of the daemon, because the check must use the file permissions of that user.
fn as_reader(config: &Config, own: &DaemonPaths) -> Result<()> {
    let user = config.user.as_deref().map(privileges::known).transpose()?;
    match user {
        Some(user) if ownership::is_root() => {
            become_user(&user)?;
            own.check(&user)
        }
        _ => own.require_root_state(config.log.file.as_deref()),
    }
}

/// Returns the faults of keys and lists. A missing key is not a fault, because the daemon creates it.
fn faults_of_files(own: &DaemonPaths, config: &Config) -> Vec<String> {
    let reader = rustix::process::geteuid().as_raw();
    let mut faults = Vec::new();
    if own.state.join("key.pem").exists()
        && let Err(error) = Identity::load_or_create_guarded(&own.state, reader)
    {
        faults.push(terminal::causes(&error.into()).to_string());
    }
    match AuthorizedKeys::load_guarded(&own.home, reader) {
        Ok(keys) => {
            let guard = RootGuard::new(
                keys.writable_roots(),
                own.own_paths(config.log.file.as_deref()),
            );
            faults.extend(faults_of_roots(&keys, &guard));
        }
        Err(error) => faults.push(terminal::causes(&error.into()).to_string()),
    }
    faults
}

/// Returns the faults of the roots of all grants. Opens each root with `guard`.
pub(crate) fn faults_of_roots(keys: &AuthorizedKeys, guard: &RootGuard) -> Vec<String> {
    let mut faults = Vec::new();
    let mut silent = Vec::new();
    for grant in keys.grants() {
        for root in grant.every_root() {
            if let Err(error) = open(root, guard, &mut silent) {
                let root = root.display();
                faults.push(format!("the root '{root}' of {}: {error}", grant.name));
            }
        }
    }
    // Several grants may have the same root.
    faults.dedup();
    faults
}

/// Opens a root within the time limit. `silent` contains the mounts that did not answer before. A root on one of them
/// is not opened, so that a mount with many roots costs only one time limit.
fn open(root: &Path, guard: &RootGuard, silent: &mut Vec<Unanswered>) -> Result<(), io::Error> {
    let lies_on = |silent: &&Unanswered| {
        let mount = silent.mount.as_ref();
        mount.is_some_and(|mount| root.starts_with(&mount.point))
    };
    if let Some(silent) = silent.iter().find(lies_on) {
        return Err(unanswered("open", silent));
    }
    let guard = guard.clone();
    let path = root.to_owned();
    let opened = answer_within(ANSWER_MAX, root, move || guard.open(&path).map(drop));
    opened.unwrap_or_else(|error| {
        let fault = unanswered("open", &error);
        silent.push(error);
        Err(fault)
    })
}

/// Returns the error of an operation that did not end in time.
pub(crate) fn unanswered(operation: &str, error: &Unanswered) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("{operation}: {error}"))
}

/// Maximum time for a check of a root. The file system may never answer.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(10);
