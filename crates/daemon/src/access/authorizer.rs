//! The keys that a daemon authorizes, and what each may do.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use zmove_disk::{OwnPaths, RootGuard, Roots};
use zmove_transport::{AuthorizedKeysError, Claim, Denial, Fingerprint, Grant, KeyList};

use zmove_receiver::{Leading, Owning, Rights, SetIds, WriteAccess};

use crate::access::node_grant::NodeGrant;
use crate::sources::ReadAccess;
use crate::transfers::Who;

/// The keys that a daemon authorizes.
#[derive(Debug)]
#[non_exhaustive]
pub enum Authorizer {
    /// The keys in a list, which is checked for changes at each connection, so that a new key counts at once. None of
    /// them may reach the daemon's own files.
    Listed(KeyList, OwnPaths),
    /// One key, which may do what this process may: that of the user who has started it.
    Only(Fingerprint),
}

/// A peer whose proved key is authorized.
#[derive(Debug)]
pub(crate) struct Authorized {
    /// The name of the peer in the log.
    pub(crate) name: String,
    pub(crate) rights: Rights,
    /// Where the peer may read; `None`: nowhere.
    pub(crate) reads: Option<ReadAccess>,
    pub(crate) to: Destinations,
    /// The clients of the grants by which alone a peer is let in; empty for others.
    pub(crate) by_grants_of: Vec<Granter>,
    /// The grant of the head of a job, by which alone a node is let in.
    pub(crate) node: Option<Arc<NodeGrant>>,
}

/// The hosts that a peer may have files sent to.
#[derive(Debug)]
pub(crate) enum Destinations {
    Anywhere,
    /// Each as `HOST` or `HOST:PORT`.
    Listed(Vec<String>),
}

/// A client that has had a grant given for another host.
#[derive(Clone, Debug)]
pub(crate) struct Granter {
    pub(crate) key: Fingerprint,
    pub(crate) name: String,
}

impl Authorizer {
    /// What a peer may do by its key, or why it is denied. May block on files.
    ///
    /// # Errors
    /// The list cannot be read.
    pub(crate) fn authorize(
        &self,
        claim: &Claim,
    ) -> Result<Result<Authorized, Denial>, Arc<AuthorizedKeysError>> {
        let key = claim.key;
        match self {
            Self::Listed(list, own) => {
                let keys = list.current()?;
                let guard = RootGuard::new(keys.writable_roots(), own.clone());
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
            Owning::Allowed
        } else {
            Owning::Denied
        };
        let leading = if grant.lead {
            Leading::Allowed
        } else {
            Leading::Denied
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

    /// The user of this process. The empty owner is that of the user's pushes to local directories: they share
    /// journals.
    fn user() -> Self {
        Self {
            name: "the user".to_owned(),
            rights: Rights {
                owning: Owning::Allowed,
                ..Rights::default()
            },
            reads: Some(ReadAccess::Anywhere),
            to: Destinations::Anywhere,
            by_grants_of: Vec::new(),
            node: None,
        }
    }

    /// A peer that has no line of its own, and is let in for the grants of these clients.
    pub(crate) fn by_grants(clients: Vec<Granter>) -> Self {
        Self {
            name: format!(
                "the grant of {}",
                clients.first().map_or("nobody", |granter| &granter.name)
            ),
            // the others are those of the client whose grant is taken up
            rights: Rights {
                access: WriteAccess::ReadOnly,
                leading: Leading::Denied,
                ..Rights::default()
            },
            reads: None,
            to: Destinations::Listed(Vec::new()),
            by_grants_of: clients,
            node: None,
        }
    }

    /// A node that has no line of its own, and is let in for the grant of a head of this name.
    pub(crate) fn by_head(name: String, grant: NodeGrant) -> Self {
        let head = Granter {
            key: grant.head.key,
            name: name.clone(),
        };
        Self {
            name,
            node: Some(Arc::new(grant)),
            ..Self::by_grants(vec![head])
        }
    }

    /// The peer, as it is shown and logged.
    pub(crate) fn who(&self, address: SocketAddr, key: Fingerprint) -> Who {
        let by_head = self.node.as_ref().map(|node| node.head.key);
        Who {
            name: self.name.clone(),
            address,
            key,
            by_head,
        }
    }

    /// Whether the peer may open jobs that several receivers write together by a line of its own.
    pub(crate) fn may_lead(&self) -> bool {
        self.may_write() && self.rights.leading == Leading::Allowed
    }

    pub(crate) fn may_write(&self) -> bool {
        !matches!(self.rights.access, WriteAccess::ReadOnly)
    }
}
