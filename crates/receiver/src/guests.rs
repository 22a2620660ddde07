//! Whom a daemon lets in, and what for.

use std::path::PathBuf;

use zmove_transport::{AuthorizedKeys, AuthorizedKeysError, Fingerprint, Grant};

use crate::target::Access;

/// Whom a daemon lets in.
#[derive(Debug)]
#[non_exhaustive]
pub enum Guests {
    /// The keys in the list of this home, which is read for each connection, so that a new one counts at once.
    Listed(PathBuf),
    /// One key, which may do what this process may: that of the user who has started it.
    Only(Fingerprint),
}

/// Somebody who has proved a key that is let in.
#[derive(Debug)]
pub(crate) struct Guest {
    /// What the log calls them.
    pub(crate) name: String,
    pub(crate) access: Access,
    /// Whose transfers are theirs to go on with.
    pub(crate) owner: String,
}

impl Guests {
    /// Who has this key; `None` is nobody.
    ///
    /// # Errors
    /// The list cannot be read.
    pub(crate) fn find(&self, key: Fingerprint) -> Result<Option<Guest>, AuthorizedKeysError> {
        match self {
            Self::Listed(home) => Ok(AuthorizedKeys::load(home)?.find(&key).map(Guest::listed)),
            Self::Only(only) => Ok((*only == key).then(Guest::user)),
        }
    }
}

impl Guest {
    fn listed(grant: &Grant) -> Self {
        let access = match grant.access {
            zmove_transport::Access::ReadWrite => Access::Beneath(grant.roots.clone()),
            zmove_transport::Access::ReadOnly => Access::ReadOnly,
        };
        Self { name: grant.name.clone(), access, owner: grant.fingerprint.to_string() }
    }

    /// The user of this process, whose other pushes to this host's directories are theirs as well.
    fn user() -> Self {
        Self { name: "the user".to_owned(), access: Access::Anywhere, owner: String::new() }
    }
}
