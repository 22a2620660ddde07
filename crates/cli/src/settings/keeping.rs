//! The metadata that a push preserves in addition to file contents.

use std::sync::Arc;

use zmove_sender::{FallbackAttributes, OwnerMapping};
use zmove_types::{MetadataKinds, NoAccounts, Timestamp, unix_now};
use zmove_wire::PreserveOptions;

use crate::args::{KeepingArgs, KindArg, SparseArg};
use crate::value::account::{AccountMap, SystemAccounts};

/// Returns the metadata that the receiver is asked to preserve.
pub(super) fn keeping(args: &KeepingArgs) -> PreserveOptions {
    let wanted = wanted(args);
    let kinds = MetadataKinds::USUAL.and(wanted).without(unwanted(args));
    PreserveOptions {
        kinds,
        named: args.verbose,
        strict: args.strict_metadata,
    }
}

/// Returns the kinds of metadata that the user requested in addition to the default kinds.
fn wanted(args: &KeepingArgs) -> MetadataKinds {
    let all = [
        (args.archive, KEPT),
        (args.acls, MetadataKinds::ACLS),
        (args.xattrs, MetadataKinds::XATTRS),
        (args.hard_links, MetadataKinds::LINKS),
        (args.owner || users(args).is_some(), MetadataKinds::OWNER),
        (args.group || groups(args).is_some(), MetadataKinds::GROUP),
        (
            args.special_files,
            MetadataKinds::SPECIALS.and(MetadataKinds::DEVICES),
        ),
        (
            args.holes || args.sparse == SparseArg::Zeros,
            MetadataKinds::HOLES,
        ),
    ];
    chosen(&args.preserve, &all)
}

fn unwanted(args: &KeepingArgs) -> MetadataKinds {
    let all = [
        (args.no_acls, MetadataKinds::ACLS),
        (
            args.no_xattrs,
            MetadataKinds::XATTRS.and(MetadataKinds::PRIVILEGED),
        ),
        (args.no_hard_links, MetadataKinds::LINKS),
        (args.no_owner, MetadataKinds::OWNER),
        (args.no_group, MetadataKinds::GROUP),
        (
            args.no_special_files,
            MetadataKinds::SPECIALS.and(MetadataKinds::DEVICES),
        ),
        (
            args.no_holes || args.sparse == SparseArg::Never,
            MetadataKinds::HOLES,
        ),
        (args.no_perms, MetadataKinds::MODE),
        (args.no_times, MetadataKinds::TIMES),
        (args.omit_dir_times, MetadataKinds::DIRECTORY_TIMES),
    ];
    let unwanted = chosen(&args.no_preserve, &all);
    // An access control list includes the mode bits. If the mode is not preserved, the list must not be preserved
    // either.
    if unwanted.has_any(MetadataKinds::MODE) {
        unwanted.and(MetadataKinds::ACLS)
    } else {
        unwanted
    }
}

/// Returns whether the options map owners by the names of accounts on the sending host.
pub(super) fn depends_on_accounts(args: &KeepingArgs) -> bool {
    let kept = keeping(args).kinds;
    let by_name = |kind, map: Option<&AccountMap>| {
        kept.has_any(kind) && (args.chown.is_none() || map.is_none())
    };
    !args.numeric_ids
        && (by_name(MetadataKinds::OWNER, users(args))
            || by_name(MetadataKinds::GROUP, groups(args)))
}

/// Returns the mode and times of entries whose own mode or times are not preserved.
pub(super) fn fallback_attributes(args: &KeepingArgs) -> FallbackAttributes {
    let kinds = keeping(args).kinds;
    FallbackAttributes {
        mtime: (!kinds.has_any(MetadataKinds::TIMES)).then(now),
        umask: (!kinds.has_any(MetadataKinds::MODE)).then(umask),
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

/// Combines the kinds in a list with the kinds of the switches that are on.
fn chosen(list: &[KindArg], switches: &[(bool, MetadataKinds)]) -> MetadataKinds {
    let switches = switches.iter().filter(|(is_on, _)| *is_on);
    let listed = list.iter().map(|kind| kinds(*kind));
    listed
        .chain(switches.map(|(_, kinds)| *kinds))
        .fold(MetadataKinds::NONE, MetadataKinds::and)
}

/// The kinds of metadata that `-a` preserves.
const KEPT: MetadataKinds = MetadataKinds::ALL.without(MetadataKinds::ATIME);

fn kinds(kind: KindArg) -> MetadataKinds {
    match kind {
        KindArg::Mode => MetadataKinds::MODE,
        KindArg::Times => MetadataKinds::TIMES,
        KindArg::Atime => MetadataKinds::ATIME,
        KindArg::Owner => MetadataKinds::OWNERSHIP,
        KindArg::Xattr => MetadataKinds::XATTRS.and(MetadataKinds::PRIVILEGED),
        KindArg::Acl => MetadataKinds::ACLS,
        KindArg::Links => MetadataKinds::LINKS,
        KindArg::Specials => MetadataKinds::SPECIALS,
        KindArg::Devices => MetadataKinds::DEVICES,
        KindArg::Holes => MetadataKinds::HOLES,
        KindArg::All => KEPT,
    }
}

/// Returns how the owners of entries are mapped.
pub(super) fn owners(args: &KeepingArgs) -> OwnerMapping {
    let mappings = |map: Option<&AccountMap>| map.map_or_else(Vec::new, |map| map.0.clone());
    let accounts: Arc<dyn zmove_types::Accounts> = if args.numeric_ids {
        Arc::new(NoAccounts)
    } else {
        Arc::new(SystemAccounts)
    };
    OwnerMapping {
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
        let usual = MetadataKinds::USUAL;
        for (words, kinds) in [
            ("-a", KEPT),
            ("--preserve all", KEPT),
            ("-ptl", usual),
            ("-A", usual),
            ("-og", usual.and(MetadataKinds::OWNERSHIP)),
            (
                "--preserve owner,acl --no-o",
                usual.and(MetadataKinds::GROUP),
            ),
            (
                "-a --no-preserve owner,xattr,links --no-D",
                MetadataKinds::ALWAYS
                    .and(MetadataKinds::ACLS)
                    .and(MetadataKinds::HOLES),
            ),
            (
                "-D --no-preserve devices",
                usual.and(MetadataKinds::SPECIALS),
            ),
            ("-H", usual),
            (
                "--no-A --no-X",
                MetadataKinds::ALWAYS
                    .and(MetadataKinds::HOLES)
                    .and(MetadataKinds::LINKS),
            ),
            ("--no-A --no-X --no-H --sparse never", MetadataKinds::ALWAYS),
            ("--preserve holes", usual),
            ("--sparse zeros", usual),
            ("--no-preserve all", MetadataKinds::NONE),
            ("-S", usual),
            ("-a --preserve atime", MetadataKinds::ALL),
            ("-a --no-S", KEPT.without(MetadataKinds::HOLES)),
            (
                "--no-p",
                usual.without(MetadataKinds::MODE.and(MetadataKinds::ACLS)),
            ),
            ("--no-t", usual.without(MetadataKinds::TIMES)),
            ("-O", usual.without(MetadataKinds::DIRECTORY_TIMES)),
            ("-aO", KEPT.without(MetadataKinds::DIRECTORY_TIMES)),
            ("--chown ann:", usual.and(MetadataKinds::OWNER)),
            ("--groupmap *:7", usual.and(MetadataKinds::GROUP)),
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
