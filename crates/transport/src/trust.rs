//! Authentication and authorization of peers by keys, pins and grants, similar to ssh.
//!
//! Each side has one key ([`Identity`]), identified by its [`Fingerprint`]. The client pins hosts in [`KnownHosts`],
//! and the daemon grants keys access to roots in [`AuthorizedKeys`]. All three are files in a home directory that the
//! caller chooses. **Invariant:** a peer's fingerprint is used only after the peer has signed the handshake with that
//! key.

use rustls::crypto::{CryptoProvider, aws_lc_rs};

mod authority;
mod authorized_keys;
mod expiry;
mod file;
mod file_cache;
mod fingerprint;
mod identity;
mod known_hosts;
mod strict_modes;
mod verify;

pub use authority::{CertificateFault, HostAuthority};
pub(crate) use authorized_keys::fuzzing as authorized_keys_fuzzing;
pub use authorized_keys::{
    Access, AuthorizedKeys, Denial, Grant, GrantFault, Holder, KeyList, Subject,
};
pub use expiry::{Expiry, ParseExpiryError};
pub use fingerprint::{Fingerprint, ParseFingerprintError};
pub(crate) use identity::fuzzing as identity_fuzzing;
pub use identity::{Identity, Signed, job_grant_signer};
pub(crate) use known_hosts::fuzzing as known_hosts_fuzzing;
pub use known_hosts::{HostLineFault, KnownHosts};
pub use verify::{FirstKey, HostPolicy};
pub(crate) use verify::{
    HandshakeFault, HostKeyFault, client_config, path_check_config, peer_fingerprint,
    server_config, version_query_config,
};

/// The server name in every certificate and every client hello. It is always the same, because hosts are identified by
/// key.
pub(crate) const SERVER_NAME: &str = "zmove";

/// Returns the AWS-LC provider with the TLS 1.3 cipher suites. The first suite is the fastest on CPUs with AES
/// instructions.
pub(crate) fn provider() -> CryptoProvider {
    let cipher_suites = vec![
        aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256,
        aws_lc_rs::cipher_suite::TLS13_AES_256_GCM_SHA384,
        aws_lc_rs::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    ];
    CryptoProvider {
        cipher_suites,
        ..aws_lc_rs::default_provider()
    }
}
