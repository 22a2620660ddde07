//! Landlock (`--confine`): the kernel refuses this process everything that it does not need, whatever becomes of its
//! code.
//!
//! **Invariant:** the confinement holds for all threads, because it begins before any is started; nothing takes it
//! back, so a new root takes a restart.

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
use zmove_disk::{RootGuard, Tree};
use zmove_engine::Remote;
use zmove_transport::{AuthorizedKeys, Holder};

use super::privileges::Belongings;
use crate::args::ConfineArg;
use crate::display::log;

const NEEDED: &str =
    "confine this process, which takes Landlock, in Linux 6.2 or later (--confine)";
/// The first version of Landlock that rules over truncation, in Linux 6.2.
const LEAST: ABI = ABI::V3;
/// What a receiver does below its roots: it makes no devices, and runs nothing.
const WRITE: BitFlags<AccessFs> = make_bitflags!(AccessFs::{
    ReadFile | ReadDir | WriteFile | Truncate | RemoveFile | RemoveDir | MakeDir | MakeReg | MakeSym | MakeFifo
        | MakeSock | Refer
});
/// What a receiver does below its roots for a key that may set owners.
const OWN: BitFlags<AccessFs> = make_bitflags!(AccessFs::{MakeChar | MakeBlock});
const LOG: BitFlags<AccessFs> = make_bitflags!(AccessFs::{WriteFile | MakeReg});
const READ: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | ReadDir});
/// The system's files that are read: this process's own descriptors, the id of the boot, and the number of cores.
const SYSTEM: [&str; 3] = ["/proc", "/sys/fs/cgroup", "/sys/devices/system/cpu"];

/// What users and groups are called, where a grant says that entries may get owners.
const ACCOUNTS: [&str; 1] = ["/etc"];

/// Confines this process, and all threads that it starts, to what belongs to it and to the roots of `keys`.
///
/// # Errors
/// The kernel cannot confine it, and the user insists.
pub(super) fn confine(
    when: ConfineArg,
    own: &Belongings,
    keys: &AuthorizedKeys,
    log: Option<&Path>,
) -> Result<()> {
    if when == ConfineArg::Off {
        return Ok(());
    }
    match enforce(own, keys, log) {
        Ok(()) => {
            log::note("confined to its roots by Landlock: a root that is new takes a restart")
        }
        Err(error) if when == ConfineArg::Auto => {
            log::note(format_args!("not confined to its roots: {error}"))
        }
        Err(error) => return Err(error).context(NEEDED),
    }
    Ok(())
}

/// Checks that the kernel can confine a process.
///
/// # Errors
/// The kernel cannot.
pub(super) fn possible() -> Result<()> {
    rules().map(drop).context(NEEDED)
}

fn rules() -> Result<RulesetCreated, RulesetError> {
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(LEAST))?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::IoctlDev)?
        // The daemon's sockets are bound, and it signals nobody and connects to no port but those of the daemons that
        // clients may have files sent to; the service manager listens at a file.
        .handle_access(AccessNet::from_all(ABI::V4))?
        .scope(Scope::from_all(ABI::V6))?
        .create()
}

fn enforce(
    own: &Belongings,
    keys: &AuthorizedKeys,
    log: Option<&Path>,
) -> Result<(), RulesetError> {
    let mut rules = rules()?;
    // Only a directory that exists can be allowed; an error shows when it is opened.
    let learnt = crate::settings::learnt(&own.journals);
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
    // where the log is made again once it has been rotated
    if let Some(directory) = log.and_then(Path::parent) {
        rules = allow(rules, directory, PathFd::new(directory), LOG)?;
    }
    for port in ports_of_others(keys) {
        rules = rules.add_rule(NetPort::new(port, AccessNet::ConnectTcp))?;
    }
    for directory in read(own, keys) {
        rules = allow(rules, &directory, PathFd::new(&directory), READ)?;
    }
    let guard = RootGuard::new(keys.writable_roots(), own.own_paths(log));
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
        // as a push opens it
        let opened = guard.open(root);
        rules = allow(rules, root, opened.as_ref().map(Tree::fd), access)?;
    }
    for root in keys.grants().iter().flat_map(|grant| &grant.read_roots) {
        let opened = guard.open(root);
        rules = allow(rules, root, opened.as_ref().map(Tree::fd), READ)?;
    }
    rules.restrict_self().map(drop)
}

/// Allows a path that exists; the operator is warned of any other.
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
                "'{path}' stays out of reach until a restart (--confine): {error}"
            ));
            Ok(rules)
        }
    }
}

/// The ports of the daemons that clients may have files sent to.
fn ports_of_others(keys: &AuthorizedKeys) -> BTreeSet<u16> {
    let others = keys.grants().iter().flat_map(|grant| &grant.to);
    others
        .filter_map(|to| Remote::parse_endpoint(to).ok())
        .map(|remote| remote.port)
        .collect()
}

/// The places to be read: system places, the home, and the directories of other files that are read again. A file that
/// is replaced is another one, so its directory is allowed instead.
fn read(own: &Belongings, keys: &AuthorizedKeys) -> Vec<PathBuf> {
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
    // names of hosts are looked up by files of the same directory
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
