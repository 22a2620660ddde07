//! The keys that a daemon authorizes, and the rights of each key.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use zmove_disk::{RootGuard, Roots};
use zmove_transport::{AuthorizedKeysError, Claim, Denial, Fingerprint, Grant, KeyList};

use zmove_receiver::{LeaderPermission, OwnerPermission, Rights, SetIds, WriteAccess};

use crate::access::node_grant::NodeGrant;
use crate::sources::ReadAccess;
use crate::transfers::PeerInfo;

/// The keys that a daemon authorizes.
#[derive(Debug)]
#[non_exhaustive]
pub enum Authorizer {
    /// The keys in a list, and the rule for opening their roots. Each connection checks the list for changes, so a new
    /// key is accepted immediately.
    Listed(KeyList, RootGuard),
    /// A single key, with all rights of this process. It is the key of the user who started the process.
    Only(Fingerprint),
}

/// A peer whose proven key is authorized.
#[derive(Debug)]
pub(crate) struct Authorized {
    /// The peer's name in the log.
    pub(crate) name: String,
    pub(crate) rights: Rights,
    /// The paths that the peer may read. `None` if the peer may not read any path.
    pub(crate) reads: Option<ReadAccess>,
    pub(crate) to: Destinations,
    /// The clients whose grants authorize the peer. Empty if the peer is authorized in any other way.
    pub(crate) by_grants_of: Vec<Granter>,
    /// The grant with which the head of a job authorizes this node.
    pub(crate) node: Option<Arc<NodeGrant>>,
}

/// The hosts to which a peer may order copies.
#[derive(Debug)]
pub(crate) enum Destinations {
    Anywhere,
    /// Each entry is `HOST` or `HOST:PORT`.
    Listed(Vec<String>),
}

/// A client that obtained a grant for another host.
#[derive(Clone, Debug)]
pub(crate) struct Granter {
    pub(crate) key: Fingerprint,
    pub(crate) name: String,
}

impl Authorizer {
    /// Returns the rights of a peer by its key, or the reason for the denial. May block on file I/O.
    ///
    /// # Errors
    /// Returns an error if the list cannot be read.
    pub(crate) fn authorize(
        &self,
        claim: &Claim,
    ) -> Result<Result<Authorized, Denial>, Arc<AuthorizedKeysError>> {
        let key = claim.key;
        match self {
            Self::Listed(list, guard) => {
                let keys = list.current()?;
                let guard = guard.for_writable(keys.writable_roots());
                Ok(keys
                    .authorize(claim, SystemTime::now())
                    .map(|grant| Authorized::listed(grant, key, &guard)))
            }
            Self::Only(only) if *only == key => Ok(Ok(Authorized::user())),
            Self::Only(_) => Ok(Err(Denial::Unknown { key })),
        }
    }
}

impl Authorized {
    fn listed(grant: &Grant, key: Fingerprint, guard: &RootGuard) -> Self {
        let roots = |paths| Roots::new(paths, guard.clone());
        let access = if grant.access.writes() {
            WriteAccess::Beneath(roots(grant.roots.clone()))
        } else {
            WriteAccess::ReadOnly
        };
        let mut read_roots = if grant.access.reads() {
            grant.roots.clone()
        } else {
            Vec::new()
        };
        read_roots.extend(grant.read_roots.iter().cloned());
        let reads = (!read_roots.is_empty()).then(|| ReadAccess::Beneath(roots(read_roots)));
        let set_ids = if grant.set_ids {
            SetIds::Carried
        } else {
            SetIds::Dropped
        };
        let owning = if grant.set_owner {
            OwnerPermission::Allowed
        } else {
            OwnerPermission::Denied
        };
        let leading = if grant.lead {
            LeaderPermission::Allowed
        } else {
            LeaderPermission::Denied
        };
        Self {
            name: grant.name.clone(),
            rights: Rights {
                access,
                owner: key.to_string(),
                set_ids,
                owning,
                leading,
                rate_max: grant.max_rate,
            },
            reads,
            to: Destinations::Listed(grant.to.clone()),
            by_grants_of: Vec::new(),
            node: None,
        }
    }

    /// Returns the rights of this process's user. The owner is empty, as it is for the user's pushes to local
    /// directories, so that both use the same journals.
    fn user() -> Self {
        Self {
            name: "the user".to_owned(),
            rights: Rights {
                owning: OwnerPermission::Allowed,
                ..Rights::default()
            },
            reads: Some(ReadAccess::Anywhere),
            to: Destinations::Anywhere,
            by_grants_of: Vec::new(),
            node: None,
        }
    }

    /// Returns the rights of a peer that has no line of its own in the list and is authorized by grants of these
    /// clients.
    pub(crate) fn from_grants(clients: Vec<Granter>) -> Self {
        Self {
            name: format!(
                "the grant of {}",
                clients.first().map_or("nobody", |granter| &granter.name)
            ),
            // All other rights come from the client whose grant the session uses.
            rights: Rights {
                access: WriteAccess::ReadOnly,
                leading: LeaderPermission::Denied,
                ..Rights::default()
            },
            reads: None,
            to: Destinations::Listed(Vec::new()),
            by_grants_of: clients,
            node: None,
        }
    }

    /// Returns the rights of a node that has no line of its own in the list and is authorized by a grant of the head
    /// with this name.
    pub(crate) fn from_head_grant(name: String, grant: NodeGrant) -> Self {
        let head = Granter {
            key: grant.head.key,
            name: name.clone(),
        };
        Self {
            name,
            node: Some(Arc::new(grant)),
            ..Self::from_grants(vec![head])
        }
    }

    /// Returns the peer's identity for status output and the log.
    pub(crate) fn who(&self, address: SocketAddr, key: Fingerprint) -> PeerInfo {
        let by_head = self.node.as_ref().map(|node| node.head.key);
        PeerInfo {
            name: self.name.clone(),
            address,
            key,
            by_head,
        }
    }

    /// Returns whether the peer's own line allows it to open jobs that several receivers write together.
    pub(crate) fn may_lead(&self) -> bool {
        self.may_write() && self.rights.leading == LeaderPermission::Allowed
    }

    pub(crate) fn may_write(&self) -> bool {
        !matches!(self.rights.access, WriteAccess::ReadOnly)
    }
}
