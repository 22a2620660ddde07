//! `zmove serve --check`: reads the files that a daemon would read, and reports all faults. This command changes
//! nothing.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use zmove_disk::{OwnPaths, RootGuard};
use zmove_transport::{AuthorizedKeys, Grant, Identity};

use super::privileges::DaemonPaths;
use super::{confinement, privileges};
use crate::args::{ConfineArg, ServeArgs};
use crate::commands::serve::config::Config;
use crate::display::terminal;
use crate::ownership::{self, become_user, run_apart};
use crate::silent_paths::SilentPaths;
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
            let own = own.own_paths(config.log.file.as_deref());
            faults.extend(faults_of_roots(&keys, keys.writable_roots(), own));
        }
        Err(error) => faults.push(terminal::causes(&error.into()).to_string()),
    }
    faults
}

/// Returns the faults of the roots of all grants. Clients may have created links in the roots `writable`.
pub(crate) fn faults_of_roots(
    keys: &AuthorizedKeys,
    writable: Arc<[PathBuf]>,
    own: OwnPaths,
) -> Vec<String> {
    let roots = keys.grants().iter().flat_map(Grant::every_root);
    let silent = SilentPaths::find(roots.chain(&*writable), terminal::warn);
    let guard = RootGuard::new(writable, own).without(silent.roots);
    let mut faults = Vec::new();
    for grant in keys.grants() {
        for root in grant.every_root() {
            if let Err(error) = guard.open(root) {
                let root = root.display();
                faults.push(format!("the root '{root}' of {}: {error}", grant.name));
            }
        }
    }
    // Several grants may have the same root.
    faults.dedup();
    faults
}
