//! The user that a daemon becomes once its sockets are open (`--user`), and a check that this user can read the
//! daemon's files.
//!
//! **Invariant:** a daemon that has become another user has nothing left of root, in none of its threads: it becomes so
//! before it starts any, and before a byte of a client is read.

use std::ffi::CString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use nix::unistd::{ROOT, Uid, User};
use rustix::fs::Access;
use rustix::io::Errno;
use zmove_transport::AuthorizedKeys;

use crate::display::log;
use crate::display::terminal::quoted;
use crate::value::exit::{Exit, failure, usage_error};

/// The user of that name, who may not be root.
///
/// # Errors
/// There is no such user, or it is root.
pub(super) fn known(name: &str) -> Result<User> {
    let found =
        User::from_name(name).with_context(|| format!("look for the user '{name}' (--user)"))?;
    let user = found.ok_or_else(|| usage_error(format!("there is no user '{name}' (--user)")))?;
    if user.uid.is_root() {
        return Err(usage_error(format!(
            "--user is there to give up the rights of root, and '{name}' is root"
        )));
    }
    Ok(user)
}

/// The user that this process has to become; `None` where it is that user already.
///
/// # Errors
/// There is no such user, or this process may not become it.
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

/// Gives this process that user's identity and groups, for good.
///
/// # Errors
/// The system's error; the process must end then.
pub(super) fn become_user(user: &User) -> Result<()> {
    let name = CString::new(user.name.as_str()).context("read the user's name")?;
    rustix::thread::set_no_new_privs(true).context("rule out that rights are gained again")?;
    // The groups come first: only root may change them.
    nix::unistd::initgroups(&name, user.gid).context("take on the user's groups")?;
    nix::unistd::setgid(user.gid).context("take on the user's group")?;
    nix::unistd::setuid(user.uid).with_context(|| format!("become the user '{}'", user.name))?;
    ensure!(
        nix::unistd::setuid(ROOT).is_err(),
        "the rights of root could not be given up"
    );
    Ok(())
}

/// The files that a daemon reads and writes beside its roots.
#[derive(Debug)]
pub(super) struct Belongings {
    pub(super) home: PathBuf,
    pub(super) config: PathBuf,
    pub(super) journals: PathBuf,
}

impl Belongings {
    /// Checks that the user, whom this process has become, can use all of them.
    ///
    /// # Errors
    /// The first file or directory that the user cannot use, and the command that mends it.
    pub(super) fn check(&self, user: &User) -> Result<()> {
        let home = &self.home;
        self.check_directory(user, home, home.join("key.pem").exists())?;
        for name in ["key.pem", "cert.pem", "authorized_keys"] {
            let whole = format!("chown -R {} {}", user.name, quoted(home));
            check_file(user, &home.join(name), &whole)?;
        }
        check_file(
            user,
            &self.config,
            &format!("chown {} {}", user.name, quoted(&self.config)),
        )?;
        self.check_directory(user, &self.journals, false)
    }

    fn check_directory(&self, user: &User, directory: &Path, only_read: bool) -> Result<()> {
        check_way(user, directory)?;
        let access = if only_read {
            READ
        } else {
            READ | Access::WRITE_OK
        };
        if denied(directory, access) {
            // The home holds private files, and the journals may lie in it.
            let whole = if directory.starts_with(&self.home) {
                &self.home
            } else {
                directory
            };
            return refused(
                user,
                directory,
                &format!("chown -R {} {}", user.name, quoted(whole)),
            );
        }
        let there = directory.ancestors().find(|path| path.exists());
        if there.is_some_and(|there| there != directory && denied(there, READ | Access::WRITE_OK)) {
            return refused(
                user,
                directory,
                &format!("install -d -o {} -m 700 {}", user.name, quoted(directory)),
            );
        }
        Ok(())
    }
}

const READ: Access = Access::READ_OK.union(Access::EXEC_OK);

/// Warns of roots that the user cannot write to.
pub(super) fn warn_of_closed_roots(user: &User, keys: &AuthorizedKeys) {
    for grant in keys.grants().iter().filter(|grant| grant.access.writes()) {
        for root in grant
            .roots
            .iter()
            .filter(|root| denied(root, READ | Access::WRITE_OK))
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

fn check_file(user: &User, file: &Path, mend: &str) -> Result<()> {
    check_way(user, file)?;
    if denied(file, Access::READ_OK) {
        refused(user, file, mend)
    } else {
        Ok(())
    }
}

/// Checks that the directories above a path can be passed.
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

/// Whether the process's user is denied access. A path that does not exist is not denied.
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
