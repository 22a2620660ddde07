//! What TLS at a door needs: the runner's certificate and key, and the authority of its clients.
//!
//! **Invariant:** who has no certificate of that authority is read no request of.

use std::fs::File;
use std::io::{self, Read as _};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use rustls::client::verify_server_name;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

use crate::error::ApiError;

/// Files in PEM.
#[derive(Clone, Copy, Debug)]
pub struct TlsFiles<'a> {
    /// The runner's certificate, and those that lead to its authority.
    pub certificate: &'a Path,
    /// The key of the certificate, for its owner alone.
    pub key: &'a Path,
    /// The authority of the clients' certificates: each of them is the user.
    pub client_authority: &'a Path,
}

/// What TLS at a door needs.
#[derive(Clone, Debug)]
pub struct Tls {
    config: Arc<ServerConfig>,
    certificate: CertificateDer<'static>,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// One cannot be read, does not hold what it should, or is a key that others may read.
    pub fn read(files: &TlsFiles<'_>) -> Result<Self, ApiError> {
        let (chain, key) = (certificates(files.certificate)?, key(files.key)?);
        let unfit = |path: &Path, what| {
            let path = path.to_owned();
            move |cause: &dyn ToString| ApiError::Tls { what, path, cause: cause.to_string() }
        };
        let certificate = chain[0].clone();
        ParsedCertificate::try_from(&certificate)
            .map_err(|error| unfit(files.certificate, "the certificate")(&error))?;
        let mut roots = RootCertStore::empty();
        for root in certificates(files.client_authority)? {
            roots.add(root).map_err(|error| unfit(files.client_authority, "the authority")(&error))?;
        }
        let provider = Arc::new(default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(&provider));
        let verifier =
            verifier.build().map_err(|error| unfit(files.client_authority, "the authority")(&error))?;
        let config = ServerConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13]);
        let config = config.expect("the provider has suites of TLS 1.3").with_client_cert_verifier(verifier);
        // Here it is seen whether the key is the certificate's.
        let config = config.with_single_cert(chain, key);
        let mut config = config.map_err(|error| unfit(files.key, "the key")(&error))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        // Each connection shows its certificate anew, so that none is used beyond its time.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Self { config: Arc::new(config), certificate })
    }

    /// What takes clients in.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        Arc::clone(&self.config).into()
    }

    /// How clients may name the door at an address.
    pub(crate) fn names_at(&self, address: IpAddr) -> Names {
        Names { certificate: self.certificate.clone(), address }
    }
}

/// How clients may name a door: by a name of its certificate, or its address.
#[derive(Clone, Debug)]
pub struct Names {
    certificate: CertificateDer<'static>,
    address: IpAddr,
}

impl Names {
    /// Whether a client may name the door so; an address of IPv6 stands in brackets.
    pub(crate) fn contain(&self, name: &str) -> bool {
        let inner = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        if inner.unwrap_or(name).parse() == Ok(self.address) {
            return true;
        }
        let (Ok(certificate), Ok(name)) =
            (ParsedCertificate::try_from(&self.certificate), ServerName::try_from(inner.unwrap_or(name)))
        else {
            return false;
        };
        verify_server_name(&certificate, &name).is_ok()
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ApiError> {
    let (bytes, _) = read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let found =
        found.and_then(|found| if found.is_empty() { Err(pem::Error::NoItemsFound) } else { Ok(found) });
    found.map_err(|error| not_pem(path, "the certificate", &error))
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, ApiError> {
    let (bytes, mode) = read(path)?;
    if mode & 0o077 != 0 {
        return Err(ApiError::Exposed { path: path.to_owned(), mode });
    }
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| not_pem(path, "the key", &error))
}

fn not_pem(path: &Path, what: &'static str, error: &pem::Error) -> ApiError {
    let cause = match error {
        pem::Error::NoItemsFound => "the file holds none in PEM, or an encrypted one".to_owned(),
        error => error.to_string(),
    };
    ApiError::Tls { what, path: path.to_owned(), cause }
}

/// What a file holds, and who may use it, both of the same one.
fn read(path: &Path) -> Result<(Vec<u8>, u32), ApiError> {
    let read = || -> io::Result<_> {
        let file = File::open(path)?;
        let mode = file.metadata()?.mode() & 0o777;
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok((bytes, mode))
    };
    read().map_err(|source| ApiError::Io { operation: "read", path: path.to_owned(), source })
}

/// What is read of a file; a bundle of all public authorities is smaller.
const FILE_BYTES_MAX: u64 = 1 << 20;
