//! The environment of a daemon that root starts and that becomes another user. Like a login or a service of that user,
//! the daemon gets the user's variables, and not those of root's shell, which name root's files and agents.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context, Result};
use nix::unistd::User;
use zmove_jobs::THIS_PROGRAM;

use super::child::ENVIRONMENT;
use super::commands::places;

type Environment = BTreeMap<OsString, OsString>;

/// Replaces the environment of this process with that of `user`. Returns if the process already has that environment.
/// Otherwise, the process executes the program again, because a running process cannot change its variables safely.
/// Must be called before this process opens files or binds sockets.
///
/// # Errors
/// Returns the system's error if the program cannot be executed again.
pub(crate) fn adopt_environment(user: &User) -> Result<()> {
    let present: Environment = std::env::vars_os().collect();
    let wanted = environment_of(user, &present);
    if wanted == present {
        return Ok(());
    }
    let mut words = std::env::args_os();
    let mut command = Command::new(THIS_PROGRAM);
    if let Some(name) = words.next() {
        command.arg0(name);
    }
    let failed = command.args(words).env_clear().envs(wanted).exec();
    Err(failed).context("start again with the environment of the daemon's user")
}

/// Returns the environment of `user`. If `present` is already such an environment, the result equals `present`.
fn environment_of(user: &User, present: &Environment) -> Environment {
    let kept = present.iter().filter(|(name, _)| is_kept(name));
    let mut wanted: Environment = kept
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    wanted.extend(places().map(|(name, path)| (OsString::from(name), OsString::from(path))));
    let own: [(&str, OsString); 5] = [
        ("HOME", user.dir.clone().into()),
        ("LOGNAME", user.name.clone().into()),
        ("PATH", PATH.into()),
        ("SHELL", user.shell.clone().into()),
        ("USER", user.name.clone().into()),
    ];
    wanted.extend(own.map(|(name, value)| (OsString::from(name), value)));
    wanted
}

fn is_kept(name: &OsStr) -> bool {
    let is_listed = |names: &[&str]| names.iter().any(|listed| name == *listed);
    let is_of_family = |name: &str| FAMILIES.iter().any(|family| name.starts_with(family));
    is_listed(&ENVIRONMENT) || is_listed(&SERVICE) || name.to_str().is_some_and(is_of_family)
}

/// The search path of users without privileges, as in login.defs(5).
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Variables with which the service manager talks to the daemon.
const SERVICE: [&str; 8] = [
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "LISTEN_FDNAMES",
    "LISTEN_FDS",
    "LISTEN_PID",
    "NOTIFY_SOCKET",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
];

/// Prefixes of variables for languages and for the memory allocator.
const FAMILIES: [&str; 2] = ["LC_", "MALLOC_"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_of_a_user_has_nothing_of_root_s_shell() {
        let user = User::from_name("nobody").unwrap().unwrap();
        let of = |variables: &[(&str, &str)]| -> Environment {
            let variables = variables.iter();
            variables
                .map(|(name, value)| (name.into(), value.into()))
                .collect()
        };
        let kept = [("LANG", "C"), ("LC_TIME", "C"), ("NOTIFY_SOCKET", "/run/n")];
        let roots = [
            ("HOME", "/root"),
            ("PATH", "/root/bin:/sbin"),
            ("SSH_AUTH_SOCK", "/root/agent"),
            ("SUDO_USER", "alice"),
            ("XDG_RUNTIME_DIR", "/run/user/0"),
        ];
        let home = user.dir.to_str().unwrap();
        let shell = user.shell.to_str().unwrap();
        let own = [
            ("HOME", home),
            ("LOGNAME", "nobody"),
            ("PATH", PATH),
            ("SHELL", shell),
            ("USER", "nobody"),
        ];
        let found = environment_of(&user, &of(&[&kept[..], &roots].concat()));
        let is_test_s = |name: &OsStr| places().any(|(place, _)| name == place);
        let named: Environment = found
            .clone()
            .into_iter()
            .filter(|(name, _)| !is_test_s(name))
            .collect();
        assert_eq!(named, of(&[&kept[..], &own].concat()));
        assert_eq!(environment_of(&user, &found), found);
    }
}
