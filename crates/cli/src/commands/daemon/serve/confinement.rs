//! Landlock (`--confine`): the kernel denies this process everything that it does not need, even if its code is
//! compromised.
//!
//! **Invariant:** the confinement applies to all threads, because it starts before any thread does. It cannot be
//! lifted, so a new root requires a restart.

use std::collections::BTreeSet;
use std::fs::DirBuilder;
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible as _, NetPort,
    PathBeneath, PathFd, Ruleset, RulesetAttr as _, RulesetCreated, RulesetCreatedAttr as _,
    RulesetError, Scope, make_bitflags,
};
use zmove_disk::{RootGuard, SilentRoots, Tree};
use zmove_engine::Remote;
use zmove_transport::{AuthorizedKeys, Holder};

use super::privileges::DaemonPaths;
use crate::args::ConfineArg;
use crate::display::log;

const NEEDED: &str = "confine this process (--confine needs Landlock, in Linux 6.2 or later)";
/// The first Landlock version that controls truncation, in Linux 6.2.
const LEAST: ABI = ABI::V3;
/// The operations that a receiver needs below its roots. It creates no devices and executes nothing.
const WRITE: BitFlags<AccessFs> = make_bitflags!(AccessFs::{
    ReadFile | ReadDir | WriteFile | Truncate | RemoveFile | RemoveDir | MakeDir | MakeReg | MakeSym | MakeFifo
        | MakeSock | Refer
});
/// Additional operations below the roots of a key that may set owners.
const OWN: BitFlags<AccessFs> = make_bitflags!(AccessFs::{MakeChar | MakeBlock});
const LOG: BitFlags<AccessFs> = make_bitflags!(AccessFs::{WriteFile | MakeReg});
const READ: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | ReadDir});
/// System paths that the daemon reads for its descriptors, the boot ID, and the number of CPU cores.
const SYSTEM: [&str; 3] = ["/proc", "/sys/fs/cgroup", "/sys/devices/system/cpu"];

/// The directory of the files of user and group names. The daemon reads it if a grant permits setting owners.
const ACCOUNTS: [&str; 1] = ["/etc"];

/// Confines this process and all threads that it starts to its files and to the roots of `keys`, except those in
/// `silent`. Returns the roots that this process must not open because of that.
///
/// # Errors
/// Returns an error if the kernel cannot confine the process and the user requires confinement.
pub(super) fn confine(
    when: ConfineArg,
    own: &DaemonPaths,
    keys: &AuthorizedKeys,
    silent: &SilentRoots,
    log: Option<&Path>,
) -> Result<SilentRoots> {
    if when == ConfineArg::Off {
        return Ok(SilentRoots::default());
    }
    match enforce(own, keys, silent, log) {
        Ok(()) => {
            log::note("confined to its roots by Landlock: restart the daemon to use a new root");
            Ok(silent.clone())
        }
        Err(error) if when == ConfineArg::Auto => {
            log::note(format_args!("not confined to its roots: {error}"));
            Ok(SilentRoots::default())
        }
        Err(error) => Err(error).context(NEEDED),
    }
}

/// Checks that the kernel can confine a process.
///
/// # Errors
/// Returns an error if the kernel cannot do so.
pub(super) fn possible() -> Result<()> {
    rules().map(drop).context(NEEDED)
}

fn rules() -> Result<RulesetCreated, RulesetError> {
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(LEAST))?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::IoctlDev)?
        // The daemon's sockets are already bound, and the daemon sends no signals to other processes. It connects only
        // to the ports of other daemons to which its clients may send files. The service manager listens on a Unix
        // socket, which this rule does not restrict.
        .handle_access(AccessNet::from_all(ABI::V4))?
        .scope(Scope::from_all(ABI::V6))?
        .create()
}

fn enforce(
    own: &DaemonPaths,
    keys: &AuthorizedKeys,
    silent: &SilentRoots,
    log: Option<&Path>,
) -> Result<(), RulesetError> {
    let mut rules = rules()?;
    // A rule can allow only an existing directory. If a directory is missing, an error is reported when the daemon
    // opens it.
    let learnt = crate::settings::storage_records(&own.journals);
    for directory in [
        own.journals.clone(),
        crate::settings::copies(&own.journals),
        learnt,
    ] {
        let _shown = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory);
        rules = allow(rules, &directory, PathFd::new(&directory), WRITE)?;
    }
    // After rotation, the log is created again in this directory.
    if let Some(directory) = log.and_then(Path::parent) {
        rules = allow(rules, directory, PathFd::new(directory), LOG)?;
    }
    for port in ports_of_others(keys) {
        rules = rules.add_rule(NetPort::new(port, AccessNet::ConnectTcp))?;
    }
    for directory in read(own, keys) {
        rules = allow(rules, &directory, PathFd::new(&directory), READ)?;
    }
    // A root is opened in the same way as by a push.
    let guard = RootGuard::new(keys.writable_roots(), own.own_paths(log)).without(silent.clone());
    for (grant, root) in keys
        .grants()
        .iter()
        .flat_map(|grant| grant.roots.iter().map(move |root| (grant, root)))
    {
        let access = match (grant.access.writes(), grant.set_owner) {
            (false, _) => READ,
            (true, false) => WRITE,
            (true, true) => WRITE | OWN,
        };
        let opened = guard.open(root);
        rules = allow(rules, root, opened.as_ref().map(Tree::fd), access)?;
    }
    for root in keys.grants().iter().flat_map(|grant| &grant.read_roots) {
        let opened = guard.open(root);
        rules = allow(rules, root, opened.as_ref().map(Tree::fd), READ)?;
    }
    rules.restrict_self().map(drop)
}

/// Allows access to a path. If the path does not exist, warns the operator.
fn allow<E: std::error::Error>(
    rules: RulesetCreated,
    path: &Path,
    opened: Result<impl AsFd, E>,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, RulesetError> {
    match opened {
        Ok(opened) => rules.add_rule(PathBeneath::new(opened, access)),
        Err(error) => {
            let path = path.display();
            log::warning(format_args!(
                "'{path}' is not accessible until a restart (--confine): {error}"
            ));
            Ok(rules)
        }
    }
}

/// Returns the ports of other daemons to which clients may send files.
fn ports_of_others(keys: &AuthorizedKeys) -> BTreeSet<u16> {
    let others = keys.grants().iter().flat_map(|grant| &grant.to);
    others
        .filter_map(|to| Remote::parse_endpoint(to).ok())
        .map(|remote| remote.port)
        .collect()
}

/// Returns the directories that the daemon reads: system directories, its home, and the directories of other files that
/// are reloaded. A replaced file has a different inode, so the rule must allow the file's directory instead of the
/// file.
fn read(own: &DaemonPaths, keys: &AuthorizedKeys) -> Vec<PathBuf> {
    let mut files = vec![own.config.clone()];
    for grant in keys.grants() {
        if let Holder::Certified {
            authority, revoked, ..
        } = &grant.holder
        {
            files.extend(
                [Some(authority), revoked.as_ref()]
                    .into_iter()
                    .flatten()
                    .map(|path| own.home.join(path)),
            );
        }
    }
    // The files that resolve host names are in the same directory.
    let owns = keys
        .grants()
        .iter()
        .any(|grant| grant.set_owner || !grant.to.is_empty());
    let system = SYSTEM.iter().chain(if owns { &ACCOUNTS[..] } else { &[] });
    let system = system.map(PathBuf::from).filter(|path| path.exists());
    let real = files.iter().filter_map(|file| file.canonicalize().ok());
    let around = real.filter_map(|file| file.parent().map(Path::to_owned));
    system.chain(around).chain([own.home.clone()]).collect()
}
