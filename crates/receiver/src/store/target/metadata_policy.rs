//! The metadata that a transfer preserves in addition to contents, mode and time. This module maps user and group names
//! to this host, applies the rights of the key, and counts metadata that was requested but could not be preserved.
//!
//! The sender receives the counts at the end, by kind and reason, and each affected entry if it asked for that.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use rustix::io::Errno;
use zmove_disk::{MetadataFailure, WantedMetadata};
use zmove_types::{Account, Accounts, Metadata, MetadataKinds, Name, RelPath, Timestamp};
use zmove_wire::limits::MISSED_MAX;
use zmove_wire::{Missed, NotKept, NotKeptReason, ToSender};

use crate::rights::grant::{OwnerPermission, SetIds};
use crate::store::reports::Reports;
use crate::store::rules::Rules;
use zmove_types::Lock;

/// The policy for preserving metadata, and the counts of metadata that was not preserved. See the module documentation.
#[derive(Debug)]
pub(crate) struct MetadataPolicy {
    pub(crate) rules: Rules,
    accounts: Arc<dyn Accounts>,
    /// IDs of the received user names. `None` marks a name that is unknown on this host.
    users: Lock<HashMap<Box<str>, Option<u32>>>,
    groups: Lock<HashMap<Box<str>, Option<u32>>>,
    lacks: Lock<BTreeMap<(MetadataKinds, NotKeptReason), u64>>,
    /// The channel for reporting each affected entry, if the sender asked for that.
    entry_reports: Option<Reports>,
}

/// Maximum number of user names, and of group names, to remember. Further names are looked up each time.
const NAMES_MAX: usize = 4096;

impl MetadataPolicy {
    pub(crate) fn new(
        rules: Rules,
        accounts: &Arc<dyn Accounts>,
        entry_reports: Option<Reports>,
    ) -> Self {
        Self {
            rules,
            accounts: Arc::clone(accounts),
            users: Lock::default(),
            groups: Lock::default(),
            lacks: Lock::default(),
            entry_reports,
        }
    }

    /// Returns the metadata to set on an entry. `mtime` is the modification time to set, or `None` to leave it
    /// unchanged.
    pub(crate) fn wanted<'a>(
        &self,
        metadata: &'a Metadata,
        mtime: Option<Timestamp>,
    ) -> WantedMetadata<'a> {
        let rules = &self.rules;
        let extra = metadata.extra.as_deref();
        let owner = extra
            .and_then(|extra| extra.owner.as_ref())
            .filter(|_| rules.kinds.has_any(MetadataKinds::OWNER));
        let group = extra
            .and_then(|extra| extra.group.as_ref())
            .filter(|_| rules.kinds.has_any(MetadataKinds::GROUP));
        WantedMetadata {
            mode: metadata.mode,
            mtime,
            atime: extra
                .and_then(|extra| extra.atime)
                .filter(|_| rules.kinds.has_any(MetadataKinds::ATIME)),
            owner: owner.map(|user| number(&self.users, user, |name| self.accounts.user_id(name))),
            group: group
                .map(|group| number(&self.groups, group, |name| self.accounts.group_id(name))),
            xattrs: metadata.xattrs(),
            kinds: rules.xattr_kinds(),
            may_set_owner: rules.owning == OwnerPermission::Allowed,
            set_ids_need_owner: rules.set_ids == SetIds::Dropped,
        }
    }

    /// Counts the metadata that could not be set on an entry. Reports the entry to the sender if the sender asked for
    /// that.
    pub(crate) fn note(
        &self,
        wanted: &WantedMetadata<'_>,
        misses: &[MetadataFailure],
        at: EntryLocation<'_>,
    ) {
        let rules = &self.rules;
        let denied = rules.owning == OwnerPermission::Denied;
        let mut lacks = self.miss_reasons(misses);
        let kind = |xattr: &zmove_types::Xattr| MetadataKinds::of_xattr(&xattr.name);
        if denied {
            let kinds = wanted.xattrs.iter().filter_map(kind);
            let refused = kinds
                .fold(MetadataKinds::NONE, MetadataKinds::and)
                .common(rules.kinds.common(MetadataKinds::PRIVILEGED));
            lacks.extend(refused.each().map(|kind| (kind, NotKeptReason::NotGranted)));
        }
        if lacks.is_empty() {
            return;
        }
        self.count(&lacks);
        if let Some(reports) = &self.entry_reports {
            let lacks = lacks
                .into_iter()
                .map(|(kind, why)| NotKept::new(kind, why, 1))
                .collect();
            let missed = Missed {
                path: at.path(),
                lacks,
            };
            let entries = vec![missed];
            reports.send(ToSender::Missed { entries }, None);
        }
    }

    /// Counts metadata that cannot be set on an entry, without an attempt to set it.
    pub(crate) fn count_expected(&self, misses: &[MetadataFailure]) {
        self.count(&self.miss_reasons(misses));
    }

    fn miss_reasons(&self, misses: &[MetadataFailure]) -> Vec<(MetadataKinds, NotKeptReason)> {
        let lack = |miss| miss_reason(self.rules.owning, miss);
        misses.iter().map(|miss| (miss.kind, lack(miss))).collect()
    }

    fn count(&self, lacks: &[(MetadataKinds, NotKeptReason)]) {
        let mut counts = self.lacks.lock();
        for lack in lacks {
            *counts.entry(*lack).or_default() += 1;
        }
    }

    /// Returns the counts of metadata that was not preserved, by kind and reason.
    pub(crate) fn counts(&self) -> Vec<NotKept> {
        NotKept::all(&self.lacks.lock()).take(MISSED_MAX).collect()
    }

    /// Returns the counts of metadata that was not preserved since the last call, by kind and reason.
    pub(crate) fn take_counts(&self) -> Vec<NotKept> {
        let lacks = std::mem::take(&mut *self.lacks.lock());
        NotKept::all(&lacks).take(MISSED_MAX).collect()
    }
}

/// Returns the reason why one kind of metadata could not be set.
fn miss_reason(owning: OwnerPermission, miss: &MetadataFailure) -> NotKeptReason {
    let rights = MetadataKinds::OWNERSHIP
        .and(MetadataKinds::PRIVILEGED)
        .and(MetadataKinds::DEVICES);
    match miss.error {
        _ if owning == OwnerPermission::Denied && rights.has_any(miss.kind) => {
            NotKeptReason::NotGranted
        }
        Errno::PERM | Errno::ACCESS => NotKeptReason::NotPermitted,
        Errno::OPNOTSUPP | Errno::NOSYS | Errno::XDEV => NotKeptReason::Unsupported,
        Errno::NOSPC | Errno::DQUOT | Errno::TOOBIG | Errno::RANGE => NotKeptReason::NoRoom,
        Errno::INVAL => NotKeptReason::Invalid,
        MetadataFailure::OUT_OF_RANGE => NotKeptReason::BeyondRange,
        error => NotKeptReason::Os(error.raw_os_error()),
    }
}

/// Returns the ID of a user or group on this host. If the name of the account is known on this host, this is the ID of
/// that name. Otherwise it is the received ID.
fn number(
    known: &Lock<HashMap<Box<str>, Option<u32>>>,
    account: &Account,
    find: impl Fn(&str) -> Option<u32>,
) -> u32 {
    if account.name.is_empty() {
        return account.id;
    }
    if let Some(found) = known.lock().get(&account.name) {
        return found.unwrap_or(account.id);
    }
    let found = find(&account.name);
    let mut known = known.lock();
    if known.len() < NAMES_MAX {
        known.insert(account.name.clone(), found);
    }
    found.unwrap_or(account.id)
}

/// The location of an entry: the path of its directory and its name. Without a name, the location is the directory
/// itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryLocation<'a>(pub(crate) &'a RelPath, pub(crate) Option<&'a Name>);

impl EntryLocation<'_> {
    fn path(self) -> RelPath {
        let Self(directory, name) = self;
        name.and_then(|name| directory.join(name).ok())
            .unwrap_or_else(|| directory.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rights::grant::Rights;
    use zmove_types::ExtraMetadata;
    use zmove_wire::{Open, PreserveOptions};

    #[derive(Debug)]
    struct Known;

    impl Accounts for Known {
        fn user_name(&self, _id: u32) -> Option<String> {
            None
        }
        fn group_name(&self, _id: u32) -> Option<String> {
            None
        }
        fn user_id(&self, name: &str) -> Option<u32> {
            (name == "ann").then_some(7)
        }
        fn group_id(&self, name: &str) -> Option<u32> {
            (name == "staff").then_some(8)
        }
    }

    fn rules(kinds: MetadataKinds, owning: OwnerPermission) -> Rules {
        let keeping = PreserveOptions {
            kinds,
            ..PreserveOptions::default()
        };
        Rules::of(
            &Open {
                keeping,
                ..Open::new(Vec::new(), [0; 16])
            },
            &Rights {
                owning,
                ..Rights::default()
            },
        )
    }

    fn owned(owner: &str, group: &str) -> Metadata {
        let account = |name: &str, id| {
            Some(Account {
                id,
                name: name.into(),
            })
        };
        let extra = ExtraMetadata {
            owner: account(owner, 1000),
            group: account(group, 100),
            ..ExtraMetadata::default()
        };
        Metadata {
            extra: Some(Arc::new(extra)),
            ..Metadata::new(0o4755, Timestamp::default())
        }
    }

    fn policy(rules: Rules) -> MetadataPolicy {
        let accounts: Arc<dyn Accounts> = Arc::new(Known);
        MetadataPolicy::new(rules, &accounts, None)
    }

    #[test]
    fn a_name_counts_where_it_is_known_and_else_the_number() {
        let policy = policy(rules(MetadataKinds::ALL, OwnerPermission::Allowed));
        let ids = |owner, group| {
            let metadata = owned(owner, group);
            let wanted = policy.wanted(&metadata, None);
            (wanted.owner, wanted.group)
        };
        for _ in 0..2 {
            assert_eq!(ids("ann", "staff"), (Some(7), Some(8)));
            assert_eq!(ids("bob", "bobs"), (Some(1000), Some(100)));
            assert_eq!(ids("", ""), (Some(1000), Some(100)));
        }
    }

    #[test]
    fn what_was_not_asked_for_is_not_set() {
        let metadata = owned("ann", "staff");
        let usual = rules(MetadataKinds::USUAL, OwnerPermission::Allowed);
        let policy = policy(usual);
        let wanted = policy.wanted(&metadata, None);
        assert_eq!(
            (wanted.owner, wanted.group, wanted.kinds),
            (None, None, MetadataKinds::XATTRS.and(MetadataKinds::ACLS))
        );
        assert_eq!(
            usual.of_file(&metadata).mode,
            0o755,
            "no owner, no rights of one"
        );
        assert_eq!(
            rules(MetadataKinds::ALL, OwnerPermission::Denied)
                .of_file(&metadata)
                .mode,
            0o755
        );
        assert_eq!(
            rules(MetadataKinds::ALL, OwnerPermission::Allowed)
                .of_file(&metadata)
                .mode,
            0o4755
        );
    }

    /// If a setgid program kept the bit without its group, it would give users the privileges of the receiver's group.
    #[test]
    fn each_of_setuid_and_setgid_needs_what_it_lends_to_be_kept() {
        let metadata = Metadata {
            mode: 0o6755,
            ..owned("ann", "staff")
        };
        let mode = |kinds| {
            rules(kinds, OwnerPermission::Allowed)
                .of_file(&metadata)
                .mode
        };
        assert_eq!(mode(MetadataKinds::USUAL.and(MetadataKinds::OWNER)), 0o4755);
        assert_eq!(mode(MetadataKinds::USUAL.and(MetadataKinds::GROUP)), 0o2755);
        assert_eq!(mode(MetadataKinds::ALL), 0o6755);
        let owner = metadata.extra.as_ref().unwrap().owner.clone();
        let extra = Some(Arc::new(ExtraMetadata {
            owner,
            ..ExtraMetadata::default()
        }));
        let of_nobodys_group = Metadata {
            extra,
            ..metadata.clone()
        };
        assert_eq!(
            rules(MetadataKinds::ALL, OwnerPermission::Allowed)
                .of_file(&of_nobodys_group)
                .mode,
            0o4755
        );
        let carried = Rules {
            set_ids: SetIds::Carried,
            ..rules(MetadataKinds::USUAL, OwnerPermission::Denied)
        };
        assert_eq!(carried.of_file(&metadata).mode, 0o6755);
    }

    #[test]
    fn what_is_lacking_is_counted_by_kind_and_reason() {
        let counts = |owning, lacks: &[(MetadataKinds, Errno)]| {
            let policy = policy(rules(MetadataKinds::ALL, owning));
            for &(kind, error) in lacks {
                let misses = [MetadataFailure { kind, error }];
                policy.note(
                    &WantedMetadata::default(),
                    &misses,
                    EntryLocation(&RelPath::root(), None),
                );
            }
            policy.counts()
        };
        let denied = [MetadataKinds::OWNER, MetadataKinds::ACLS].map(|kind| (kind, Errno::PERM));
        let expected = [
            NotKept::new(MetadataKinds::OWNER, NotKeptReason::NotGranted, 1),
            NotKept::new(MetadataKinds::ACLS, NotKeptReason::NotPermitted, 1),
        ];
        assert_eq!(counts(OwnerPermission::Denied, &denied), expected);
        let owner = (MetadataKinds::OWNER, Errno::PERM);
        let failed = [owner, owner, (MetadataKinds::XATTRS, Errno::NOSPC)];
        let expected = [
            NotKept::new(MetadataKinds::OWNER, NotKeptReason::NotPermitted, 2),
            NotKept::new(MetadataKinds::XATTRS, NotKeptReason::NoRoom, 1),
        ];
        assert_eq!(counts(OwnerPermission::Allowed, &failed), expected);
    }
}
