//! The certificate authorities that are trusted for the webhook's server: the authorities of the host, or those in a
//! configured file.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

pub(super) fn config(ca_file: Option<&Path>) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    match ca_file {
        Some(path) => {
            let fail =
                |error: &dyn std::fmt::Display| format!("read '{}': {error}", path.display());
            for certificate in CertificateDer::pem_file_iter(path).map_err(|error| fail(&error))? {
                let certificate = certificate.map_err(|error| fail(&error))?;
                roots.add(certificate).map_err(|error| fail(&error))?;
            }
        }
        // One unreadable certificate does not prevent the use of the other certificates.
        None => {
            let system = rustls_native_certs::load_native_certs().certs;
            let (_added, _ignored) = roots.add_parsable_certificates(system);
        }
    }
    if roots.is_empty() {
        return Err(
            "no trusted certificate authorities found: install ca-certificates, or set ca_file"
                .to_owned(),
        );
    }
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions();
    let config = config.map_err(|error| error.to_string())?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}
