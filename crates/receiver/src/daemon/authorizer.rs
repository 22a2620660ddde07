//! Which keys a daemon lets in, and what each may do.

use std::sync::Arc;
use std::time::SystemTime;

use zmove_transport::{AuthorizedKeysError, Claim, Denial, Fingerprint, Grant, KeyList};
use zmove_types::RateLimit;

use crate::store::rules::{Owning, SetIds};
use crate::store::target::WriteAccess;

/// The keys that a daemon lets in.
#[derive(Debug)]
#[non_exhaustive]
pub enum Authorizer {
    /// The keys in a list, which is looked at for each connection, so that a new one counts at once.
    Listed(KeyList),
    /// One key, which may do what this process may: that of the user who has started it.
    Only(Fingerprint),
}

/// A peer that has proved a key which is let in.
#[derive(Debug)]
pub(crate) struct Authorized {
    /// Name in the log.
    pub(crate) name: String,
    pub(crate) access: WriteAccess,
    pub(crate) set_ids: SetIds,
    pub(crate) owning: Owning,
    /// Owner of the journals that its transfers go on with.
    pub(crate) owner: String,
    /// Bytes per second that all its lanes together may bring.
    pub(crate) max_rate: Option<RateLimit>,
}

impl Authorizer {
    /// What the key at the other end of a connection may do, or why it is denied. May wait for files.
    ///
    /// # Errors
    /// The list cannot be read.
    pub(crate) fn authorize(
        &self,
        claim: &Claim,
    ) -> Result<Result<Authorized, Denial>, Arc<AuthorizedKeysError>> {
        let key = claim.key;
        match self {
            Self::Listed(list) => {
                let keys = list.current()?;
                Ok(keys.judge(claim, SystemTime::now()).map(|grant| Authorized::listed(grant, key)))
            }
            Self::Only(only) if *only == key => Ok(Ok(Authorized::user())),
            Self::Only(_) => Ok(Err(Denial::Unknown { key })),
        }
    }
}

impl Authorized {
    fn listed(grant: &Grant, key: Fingerprint) -> Self {
        let access = match grant.access {
            zmove_transport::Access::ReadWrite => WriteAccess::Beneath(grant.roots.clone()),
            zmove_transport::Access::ReadOnly => WriteAccess::ReadOnly,
        };
        let set_ids = if grant.set_ids { SetIds::Carried } else { SetIds::Dropped };
        let owning = if grant.set_owner { Owning::Allowed } else { Owning::Denied };
        let (name, owner) = (grant.name.clone(), key.to_string());
        Self { name, access, set_ids, owning, owner, max_rate: grant.max_rate }
    }

    /// The user of this process, whose other pushes to this host's directories are theirs as well.
    fn user() -> Self {
        Self {
            name: "the user".to_owned(),
            access: WriteAccess::Anywhere,
            set_ids: SetIds::Dropped,
            owning: Owning::Allowed,
            owner: String::new(),
            max_rate: None,
        }
    }
}
