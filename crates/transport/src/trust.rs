//! Who is who: keys, pins and grants, in the manner of ssh.
//!
//! Each side has one key ([`Identity`]), named by its [`Fingerprint`]. The client pins hosts in [`KnownHosts`], the
//! daemon binds keys to roots in [`AuthorizedKeys`]. All three are files below a home path that the caller chooses.
//! **Invariant:** a peer's fingerprint is believed only after the peer has signed the handshake with that key.

mod authority;
mod authorized_keys;
mod expiry;
mod file;
mod fingerprint;
mod guard;
mod identity;
mod known_hosts;
mod verify;
mod watched;

pub use authority::{CertificateFault, HostAuthority};
#[cfg(feature = "fuzzing")]
pub(crate) use authorized_keys::fuzzing as authorized_keys_fuzzing;
pub use authorized_keys::{Access, AuthorizedKeys, Denial, Grant, GrantFault, Holder, KeyList, Subject};
pub use expiry::{Expiry, ParseExpiryError};
pub use fingerprint::{Fingerprint, ParseFingerprintError};
pub use guard::Unguarded;
pub use identity::Identity;
#[cfg(feature = "fuzzing")]
pub(crate) use identity::fuzzing as identity_fuzzing;
pub(crate) use known_hosts::endpoint;
#[cfg(feature = "fuzzing")]
pub(crate) use known_hosts::fuzzing as known_hosts_fuzzing;
pub use known_hosts::{HostLineFault, KnownHosts};
#[cfg(test)]
pub(crate) use verify::client_config_with;
pub use verify::{FirstKey, HostPolicy};
pub(crate) use verify::{
    HostKeyFault, SERVER_NAME, client_config, client_config_watched, peer_fingerprint, server_config,
};
