//! The metadata that a push preserves in addition to file contents.

use std::sync::Arc;

use zmove_sender::{Instead, Owners};
use zmove_types::{Kinds, NoAccounts, Timestamp, unix_now};
use zmove_wire::PreserveOptions;

use crate::args::{KeepingArgs, KindArg, SparseArg};
use crate::value::account::{AccountMap, SystemAccounts};

/// Returns the metadata that the receiver is asked to preserve.
pub(super) fn keeping(args: &KeepingArgs) -> PreserveOptions {
    let wanted = wanted(args);
    let kinds = Kinds::USUAL.and(wanted).without(unwanted(args));
    PreserveOptions {
        kinds,
        named: args.verbose,
        strict: args.strict_metadata,
    }
}

/// Returns the kinds of metadata that were requested in addition to the defaults.
fn wanted(args: &KeepingArgs) -> Kinds {
    let all = [
        (args.archive, KEPT),
        (args.acls, Kinds::ACLS),
        (args.xattrs, Kinds::XATTRS),
        (args.hard_links, Kinds::LINKS),
        (args.owner || users(args).is_some(), Kinds::OWNER),
        (args.group || groups(args).is_some(), Kinds::GROUP),
        (args.special_files, Kinds::SPECIALS.and(Kinds::DEVICES)),
        (args.holes || args.sparse == SparseArg::Zeros, Kinds::HOLES),
    ];
    chosen(&args.preserve, &all)
}

fn unwanted(args: &KeepingArgs) -> Kinds {
    let all = [
        (args.no_acls, Kinds::ACLS),
        (args.no_xattrs, Kinds::XATTRS.and(Kinds::PRIVILEGED)),
        (args.no_hard_links, Kinds::LINKS),
        (args.no_owner, Kinds::OWNER),
        (args.no_group, Kinds::GROUP),
        (args.no_special_files, Kinds::SPECIALS.and(Kinds::DEVICES)),
        (
            args.no_holes || args.sparse == SparseArg::Never,
            Kinds::HOLES,
        ),
        (args.no_perms, Kinds::MODE),
        (args.no_times, Kinds::TIMES),
        (args.omit_dir_times, Kinds::DIRECTORY_TIMES),
    ];
    let unwanted = chosen(&args.no_preserve, &all);
    // An access control list includes the mode bits, so it must be dropped with them.
    if unwanted.has_any(Kinds::MODE) {
        unwanted.and(Kinds::ACLS)
    } else {
        unwanted
    }
}

/// Returns whether the owners of entries depend on the accounts of the sending host.
pub(super) fn depends_on_accounts(args: &KeepingArgs) -> bool {
    let kept = keeping(args).kinds;
    let by_name = |kind, map: Option<&AccountMap>| {
        kept.has_any(kind) && (args.chown.is_none() || map.is_none())
    };
    !args.numeric_ids && (by_name(Kinds::OWNER, users(args)) || by_name(Kinds::GROUP, groups(args)))
}

/// Returns the values that entries get if their own mode or times are not preserved.
pub(super) fn instead(args: &KeepingArgs) -> Instead {
    let kinds = keeping(args).kinds;
    Instead {
        mtime: (!kinds.has_any(Kinds::TIMES)).then(now),
        umask: (!kinds.has_any(Kinds::MODE)).then(umask),
    }
}

fn now() -> Timestamp {
    let since = unix_now();
    Timestamp {
        seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nanos: since.subsec_nanos(),
    }
}

/// Returns the umask of this process from `/proc`, or 022 if Linux does not report it.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let said = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    said.and_then(|umask| u32::from_str_radix(umask.trim(), 8).ok())
        .unwrap_or(0o022)
}

/// Combines the kinds of a list with those of the active switches.
fn chosen(list: &[KindArg], switches: &[(bool, Kinds)]) -> Kinds {
    let switches = switches.iter().filter(|(is_on, _)| *is_on);
    let listed = list.iter().map(|kind| kinds(*kind));
    listed
        .chain(switches.map(|(_, kinds)| *kinds))
        .fold(Kinds::NONE, Kinds::and)
}

/// The kinds of metadata that `-a` preserves.
const KEPT: Kinds = Kinds::ALL.without(Kinds::ATIME);

fn kinds(kind: KindArg) -> Kinds {
    match kind {
        KindArg::Mode => Kinds::MODE,
        KindArg::Times => Kinds::TIMES,
        KindArg::Atime => Kinds::ATIME,
        KindArg::Owner => Kinds::OWNERSHIP,
        KindArg::Xattr => Kinds::XATTRS.and(Kinds::PRIVILEGED),
        KindArg::Acl => Kinds::ACLS,
        KindArg::Links => Kinds::LINKS,
        KindArg::Specials => Kinds::SPECIALS,
        KindArg::Devices => Kinds::DEVICES,
        KindArg::Holes => Kinds::HOLES,
        KindArg::All => KEPT,
    }
}

/// Returns how the owners of entries are mapped.
pub(super) fn owners(args: &KeepingArgs) -> Owners {
    let mappings = |map: Option<&AccountMap>| map.map_or_else(Vec::new, |map| map.0.clone());
    let accounts: Arc<dyn zmove_types::Accounts> = if args.numeric_ids {
        Arc::new(NoAccounts)
    } else {
        Arc::new(SystemAccounts)
    };
    Owners {
        accounts,
        users: mappings(users(args)),
        groups: mappings(groups(args)),
    }
}

fn users(args: &KeepingArgs) -> Option<&AccountMap> {
    let owner = args.chown.as_ref();
    owner.map_or(args.usermap.as_ref(), |owner| owner.users.as_ref())
}

fn groups(args: &KeepingArgs) -> Option<&AccountMap> {
    let owner = args.chown.as_ref();
    owner.map_or(args.groupmap.as_ref(), |owner| owner.groups.as_ref())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, Command};

    fn kept(words: &str) -> PreserveOptions {
        let typed = ["zmove", "push"]
            .into_iter()
            .chain(words.split_whitespace())
            .chain(["a", "b"]);
        let Command::Push(args) = Args::try_parse_from(typed).unwrap().command else {
            panic!("no push: {words}")
        };
        keeping(&args.keeping)
    }

    #[test]
    fn options_add_up_and_what_is_not_wanted_wins() {
        assert_eq!(kept(""), PreserveOptions::default());
        let usual = Kinds::USUAL;
        for (words, kinds) in [
            ("-a", KEPT),
            ("--preserve all", KEPT),
            ("-ptl", usual),
            ("-A", usual),
            ("-og", usual.and(Kinds::OWNERSHIP)),
            ("--preserve owner,acl --no-o", usual.and(Kinds::GROUP)),
            (
                "-a --no-preserve owner,xattr,links --no-D",
                Kinds::ALWAYS.and(Kinds::ACLS).and(Kinds::HOLES),
            ),
            ("-D --no-preserve devices", usual.and(Kinds::SPECIALS)),
            ("-H", usual),
            (
                "--no-A --no-X",
                Kinds::ALWAYS.and(Kinds::HOLES).and(Kinds::LINKS),
            ),
            ("--no-A --no-X --no-H --sparse never", Kinds::ALWAYS),
            ("--preserve holes", usual),
            ("--sparse zeros", usual),
            ("--no-preserve all", Kinds::NONE),
            ("-S", usual),
            ("-a --preserve atime", Kinds::ALL),
            ("-a --no-S", KEPT.without(Kinds::HOLES)),
            ("--no-p", usual.without(Kinds::MODE.and(Kinds::ACLS))),
            ("--no-t", usual.without(Kinds::TIMES)),
            ("-O", usual.without(Kinds::DIRECTORY_TIMES)),
            ("-aO", KEPT.without(Kinds::DIRECTORY_TIMES)),
            ("--chown ann:", usual.and(Kinds::OWNER)),
            ("--groupmap *:7", usual.and(Kinds::GROUP)),
        ] {
            assert_eq!(
                kept(words),
                PreserveOptions {
                    kinds,
                    ..PreserveOptions::default()
                },
                "{words}"
            );
        }
        assert!(kept("-v").named && !kept("-v").strict);
        assert!(kept("--strict-metadata").strict);
    }
}
