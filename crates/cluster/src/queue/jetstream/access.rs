//! The address of a broker, and the credentials for it.

use std::fmt;
use std::io::{Error, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use async_nats::rustls::crypto::aws_lc_rs;
use async_nats::rustls::pki_types::CertificateDer;
use async_nats::rustls::pki_types::pem::PemObject;
use async_nats::rustls::{ClientConfig, RootCertStore};
use async_nats::{ConnectOptions, ServerAddr};
use nkeys::KeyPair;

/// The address of a broker, and the credentials for it.
#[derive(Clone, Default)]
pub struct Access {
    /// Addresses of the broker's servers: `nats://HOST:PORT` or `tls://HOST:PORT`. A server cannot add addresses to
    /// this list.
    pub urls: Vec<String>,
    /// Contents of a NATS credentials file, or of a file with the seed of an nkey.
    pub credentials: Option<String>,
    /// Certificates (PEM) of the authorities that are trusted for the servers. Default: the authorities that this host
    /// trusts.
    pub authorities: Option<String>,
}

impl Access {
    /// Checks the settings as far as possible without a connection.
    ///
    /// # Errors
    /// An address, the credentials or a certificate is invalid.
    pub fn check(&self) -> Result<(), Error> {
        for url in &self.urls {
            if !is_address(url) {
                return Err(unfit(&format!(
                    "{url}: write nats://HOST:PORT or tls://HOST:PORT"
                )));
            }
        }
        self.options().map(drop)
    }

    pub(super) fn options(&self) -> Result<ConnectOptions, Error> {
        let mut options = ConnectOptions::new()
            .name("zmove")
            .connection_timeout(ANSWER_MAX)
            .ping_interval(PING_EVERY)
            .ignore_discovered_servers();
        if let Some(text) = &self.credentials {
            options = if text.contains("NATS USER JWT") {
                options.credentials(text)?
            } else {
                options.nkey(seed_in(text)?.to_owned())
            };
        }
        if let Some(pem) = &self.authorities {
            options = options.tls_client_config(trusting(pem)?).require_tls(true);
        }
        Ok(options)
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access")
            .field("urls", &self.urls)
            .finish_non_exhaustive()
    }
}

fn is_address(url: &str) -> bool {
    let rest = url
        .strip_prefix("nats://")
        .or_else(|| url.strip_prefix("tls://"));
    let has_port = rest.and_then(|rest| rest.rsplit_once(':'));
    has_port.is_some_and(|(host, port)| {
        !host.is_empty()
            && !host.contains(['/', '@', '?'])
            && port.parse::<u16>().is_ok_and(|port| port > 0)
    }) && url.parse::<ServerAddr>().is_ok()
}

fn seed_in(text: &str) -> Result<&str, Error> {
    text.lines()
        .map(str::trim)
        .find(|line| KeyPair::from_seed(line).is_ok())
        .ok_or_else(|| unfit("not NATS credentials, and not the seed of an nkey"))
}

/// Returns a TLS configuration that trusts the given authorities.
fn trusting(pem: &str) -> Result<ClientConfig, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let certificate = certificate.map_err(|error| unfit(&error))?;
        roots.add(certificate).map_err(|error| unfit(&error))?;
    }
    if roots.is_empty() {
        return Err(unfit("not a certificate in PEM format"));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| unfit(&error))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

fn unfit(why: &(impl fmt::Display + ?Sized)) -> Error {
    Error::new(ErrorKind::InvalidInput, why.to_string())
}

/// Time limit for a request to a reachable broker.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Interval between pings. The connection is reopened after two pings without an answer.
pub(super) const PING_EVERY: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    fn check(url: &str, credentials: Option<&str>) -> Result<(), String> {
        let access = Access {
            urls: vec![url.to_owned()],
            credentials: credentials.map(str::to_owned),
            authorities: None,
        };
        access.check().map_err(|error| error.to_string())
    }

    #[test]
    fn an_address_has_a_scheme_a_host_and_a_port() {
        for good in ["nats://b:4222", "tls://[::1]:1"] {
            assert_eq!(check(good, None), Ok(()));
        }
        for bad in [
            "http://b:1",
            "nats://b",
            "b:4222",
            "nats://",
            "nats://:1",
            "nats://b:1/x",
            "nats://u@b:1",
            "nats://b:0",
        ] {
            assert!(check(bad, None).unwrap_err().contains("nats://HOST:PORT"));
        }
    }

    #[test]
    fn credentials_are_a_seed_or_a_credentials_file() {
        let seed = KeyPair::new_user().seed().unwrap();
        assert_eq!(check("nats://b:1", Some(&format!("# a\n{seed}\n"))), Ok(()));
        let creds = format!(
            "-----BEGIN NATS USER JWT-----\na.b.c\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        );
        assert_eq!(check("nats://b:1", Some(&creds)), Ok(()));
        assert_eq!(
            check("nats://b:1", Some("secret")),
            Err("not NATS credentials, and not the seed of an nkey".to_owned())
        );
    }
}
