//! Changes the process to the user of the daemon (`--user`) after the network sockets are bound. Also checks that only
//! root can change the daemon's settings and state, and that the new user can access the daemon's files.
//!
//! **Invariant:** no thread of a daemon that has become another user has any privilege of root. The process becomes
//! that user before it starts a thread, before it opens any file other than its settings, and before it reads data from
//! a client.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::unistd::{Uid, User};
use rustix::fs::Access;
use rustix::io::Errno;
use zmove_disk::{OwnPaths, SilentRoots};
use zmove_transport::AuthorizedKeys;

use crate::display::log;
use crate::display::terminal::quoted;
use crate::ownership::{self, Control};
use crate::settings;
use crate::value::exit::{Exit, failure, usage_error};

/// Looks up a user by name. The user must not be root.
///
/// # Errors
/// Returns an error if the user does not exist or is root.
pub(super) fn known(name: &str) -> Result<User> {
    let found =
        User::from_name(name).with_context(|| format!("look for the user '{name}' (--user)"))?;
    let user = found.ok_or_else(|| {
        usage_error(format!(
            "there is no user '{name}' on this host: create it, or name another with --user"
        ))
    })?;
    if user.uid.is_root() {
        return Err(usage_error(format!(
            "--user must name a user without root privileges, but '{name}' is root"
        )));
    }
    Ok(user)
}

/// Returns the user that this process must become, or `None` if it already runs as that user.
///
/// # Errors
/// Returns an error if the user does not exist, or if this process may not become that user.
pub(super) fn to_become(name: &str) -> Result<Option<User>> {
    let user = known(name)?;
    let own = Uid::effective();
    if user.uid == own {
        return Ok(None);
    }
    if !own.is_root() {
        let text =
            format!("only root can become another user: run it as root, or as '{name}' (--user)");
        return Err(usage_error(text));
    }
    Ok(Some(user))
}

/// The files that a daemon reads and writes outside its roots.
#[derive(Debug)]
pub(super) struct DaemonPaths {
    /// Directory of the settings: lists of keys, and CA certificates.
    pub(super) home: PathBuf,
    pub(super) config: PathBuf,
    /// Directory of the daemon's key and records.
    pub(super) state: PathBuf,
    pub(super) journals: PathBuf,
}

impl DaemonPaths {
    /// Returns the paths that clients must not access.
    pub(super) fn own_paths(&self, log: Option<&Path>) -> OwnPaths {
        settings::own_paths(&self.home, &self.config, log)
    }

    /// Checks that only root controls the settings, if this process is root.
    ///
    /// # Errors
    /// Returns an error if another user can change the settings.
    pub(super) fn require_root_settings(&self) -> Result<()> {
        ownership::require_root_control(&self.home, SETTINGS)?;
        ownership::require_root_control_of(&self.config, SETTINGS)
    }

    /// Checks that only root controls the directories of state, socket and log. A daemon that keeps running as root
    /// requires this.
    ///
    /// # Errors
    /// Returns an error if another user can change one of these directories.
    pub(super) fn require_root_state(&self, log: Option<&Path>) -> Result<()> {
        let socket = settings::control_socket(&self.home);
        let directories = [Some(self.state.as_path()), socket.parent()];
        let demand = |directory: &Path| ownership::require_root_control(directory, STATE);
        directories
            .into_iter()
            .flatten()
            .try_for_each(demand)
            .and_then(|()| {
                log.map_or(Ok(()), |log| {
                    ownership::require_root_control_of(log, "its log")
                })
            })
            .context("a daemon that stays root: set 'user' in zmove.toml, or give --user")
    }

    /// Warns if the user of this process can change the settings of the host's daemon.
    pub(super) fn warn_of_shared_settings(&self) {
        if ownership::is_root() || self.home != Path::new(settings::SERVICE_HOME) {
            return;
        }
        let fault = Control::with_entries(&self.home)
            .ok()
            .and_then(|control| control.fault());
        if let Some(fault) = fault {
            log::warning(format_args!(
                "the settings of this host's daemon should belong to root, but {}; {}",
                fault.text,
                fault.remedy()
            ));
        }
    }

    /// Checks that this process can access all these files. The process has already become `user`.
    ///
    /// # Errors
    /// Returns an error for the first inaccessible file or directory, with the command that repairs it.
    pub(super) fn check(&self, user: &User) -> Result<()> {
        let group = user.gid;
        let home = quoted(&self.home);
        check_way(user, &self.home)?;
        if denied(&self.home, READ) {
            let mend = format!("chgrp {group} {home} && chmod 2750 {home}");
            return refused(user, &self.home, &mend);
        }
        for file in [&self.home.join("authorized_keys"), &self.config] {
            check_way(user, file)?;
            if denied(file, Access::READ_OK) {
                let file_name = quoted(file);
                let mend = format!("chgrp {group} {file_name} && chmod g+r {file_name}");
                return refused(user, file, &mend);
            }
        }
        self.check_state(user)
    }

    fn check_state(&self, user: &User) -> Result<()> {
        let mend = |directory: &Path| {
            format!(
                "install -d -o {} -g {} -m 700 {}",
                user.name,
                user.gid,
                quoted(directory)
            )
        };
        if self.state == self.home {
            let text = format!(
                "'{}' holds root's settings, so a daemon with --user needs a separate state directory; run: {}, and \
                 set STATE_DIRECTORY={}",
                self.home.display(),
                mend(Path::new(settings::SERVICE_STATE)),
                settings::SERVICE_STATE
            );
            return Err(failure(Exit::File, text));
        }
        for directory in [&self.state, &self.journals] {
            check_way(user, directory)?;
            let there = directory.ancestors().find(|path| path.exists());
            if there.is_some_and(|there| denied(there, READ | Access::WRITE_OK)) {
                return refused(user, directory, &mend(directory));
            }
        }
        for name in ["key.pem", "cert.pem"] {
            let file = self.state.join(name);
            if denied(&file, Access::READ_OK) {
                return refused(
                    user,
                    &file,
                    &format!("chown -h {} {}", user.name, quoted(&file)),
                );
            }
        }
        Ok(())
    }
}

const SETTINGS: &str = "the settings of a daemon";
const STATE: &str = "the state of a daemon";
const READ: Access = Access::READ_OK.union(Access::EXEC_OK);

/// Warns about roots to which the user cannot write, except roots that do not answer.
pub(super) fn warn_of_closed_roots(user: &User, keys: &AuthorizedKeys, silent: &SilentRoots) {
    for grant in keys.grants().iter().filter(|grant| grant.access.writes()) {
        for root in grant
            .roots
            .iter()
            .filter(|root| silent.check(root).is_ok() && denied(root, READ | Access::WRITE_OK))
        {
            let root = root.display();
            let name = &grant.name;
            log::warning(format_args!(
                "the user '{}' cannot write to the root '{root}' of {name}",
                user.name
            ));
        }
    }
}

/// Checks that the user can traverse the directories above a path.
fn check_way(user: &User, path: &Path) -> Result<()> {
    let whole = std::path::absolute(path).with_context(|| format!("find '{}'", path.display()))?;
    let above: Vec<_> = whole.ancestors().skip(1).collect();
    match above
        .into_iter()
        .rev()
        .find(|directory| denied(directory, Access::EXEC_OK))
    {
        Some(closed) => refused(user, closed, &format!("chmod o+x {}", quoted(closed))),
        None => Ok(()),
    }
}

/// Returns whether the user of this process is denied access to a path. Returns false if the path does not exist.
fn denied(path: &Path, access: Access) -> bool {
    matches!(
        rustix::fs::access(path, access),
        Err(Errno::ACCESS | Errno::ROFS)
    )
}

fn refused(user: &User, path: &Path, mend: &str) -> Result<()> {
    let text = format!(
        "the user '{}' cannot use '{}'; run: {mend}",
        user.name,
        path.display()
    );
    Err(failure(Exit::File, text))
}
