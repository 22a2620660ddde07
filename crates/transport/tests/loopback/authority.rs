//! An authority for hosts, over real TLS and QUIC: its certificates are valid only for the holder of the key.

use std::{net::SocketAddr, path::Path, sync::Arc};

use quinn::crypto::rustls::QuicServerConfig;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls_pki_types::CertificateDer;
use zmove_transport::{
    CertificateFault, ChannelDialer, DialError, DialOptions, HostAuthority, HostPolicy,
    TransportChoice,
};

use crate::party::{LONG, Party, host_config, serve_tls};

const HOST: &str = "127.0.0.1";

/// An authority, and the home of a client that trusts it.
struct Site {
    issuer: Issuer<'static, KeyPair>,
    home: tempfile::TempDir,
}

impl Site {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("known_cas.pem"), certificate.pem()).unwrap();
        Self {
            issuer: Issuer::new(params, key),
            home,
        }
    }

    /// Issues a certificate for `name` and the key of `party`.
    fn issue(&self, party: &Party, name: &str) -> CertificateDer<'static> {
        let key = KeyPair::from_pem(&party.pem()).unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        params.signed_by(&key, &self.issuer).unwrap().der().clone()
    }

    fn policy(&self) -> HostPolicy {
        HostPolicy::Vouched(
            HostAuthority::load(self.home.path(), HOST)
                .unwrap()
                .unwrap(),
        )
    }

    /// Dials a host by each transport. The host presents `certificate` and signs with the key of `holder`.
    async fn dial(
        &self,
        holder: &Party,
        certificate: &CertificateDer<'static>,
    ) -> [Result<(), DialError>; 2] {
        let mut outcomes = Vec::new();
        for transport in [TransportChoice::Tcp, TransportChoice::Quic] {
            let config = host_config(
                holder.key_with(vec![certificate.clone()]),
                &[zmove_wire::PROTOCOL_NAME],
            );
            let port = serve(config, transport).await;
            let reach = DialOptions {
                transport,
                ..DialOptions::default()
            };
            let user = Party::new();
            let dialer = ChannelDialer::new(&user.identity, HOST, port, self.policy(), reach)
                .await
                .unwrap();
            outcomes.push(
                dialer
                    .dial(LONG)
                    .await
                    .map(|channel| assert_eq!(channel.peer(), holder.fingerprint())),
            );
        }
        outcomes.try_into().unwrap()
    }
}

async fn serve(config: rustls::ServerConfig, transport: TransportChoice) -> u16 {
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    if transport == TransportChoice::Quic {
        let config =
            quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(config).unwrap()));
        let endpoint = quinn::Endpoint::server(config, address).unwrap();
        let port = endpoint.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Some(incoming) = endpoint.accept().await {
                // A client may disconnect before it has opened its stream.
                tokio::spawn(async { Some(incoming.await.ok()?.closed().await) });
            }
        });
        return port;
    }
    serve_tls(config).await
}

#[tokio::test]
async fn a_host_with_a_certificate_of_the_authority_is_taken() {
    let (site, host) = (Site::new(), Party::new());
    for outcome in site.dial(&host, &site.issue(&host, HOST)).await {
        outcome.unwrap();
    }
}

/// The thief presents the correct certificate but signs with another key.
#[tokio::test]
async fn a_host_with_a_copied_certificate_of_the_authority_is_refused() {
    let (site, host, thief) = (Site::new(), Party::new(), Party::new());
    for outcome in site.dial(&thief, &site.issue(&host, HOST)).await {
        let error = outcome.unwrap_err();
        assert!(
            matches!(error, DialError::HostKeyUnproven { .. }),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn a_host_with_a_certificate_for_another_name_is_refused() {
    let (site, host) = (Site::new(), Party::new());
    for outcome in site
        .dial(&host, &site.issue(&host, "dtn.example.org"))
        .await
    {
        let error = outcome.unwrap_err();
        let DialError::HostCertificate { fault, .. } = error else {
            panic!("{error:?}")
        };
        assert_eq!(fault, CertificateFault::OtherName);
    }
}

#[tokio::test]
async fn a_host_with_a_certificate_of_another_authority_or_its_own_is_unknown() {
    let (site, other, host) = (Site::new(), Site::new(), Party::new());
    for certificate in [other.issue(&host, HOST), host.certificate()] {
        for outcome in site.dial(&host, &certificate).await {
            let error = outcome.unwrap_err();
            assert!(matches!(error, DialError::UnknownHost { .. }), "{error:?}");
        }
    }
}

#[test]
fn a_list_of_authorities_that_cannot_be_trusted_is_an_error() {
    let site = Site::new();
    let home: &Path = site.home.path();
    let load = || HostAuthority::load(home, HOST).map(|authority| authority.is_some());
    assert!(load().unwrap());
    std::fs::write(home.join("known_cas.crl"), "").unwrap();
    assert!(load().unwrap_err().to_string().contains("known_cas.crl"));
    std::fs::remove_file(home.join("known_cas.crl")).unwrap();
    for damaged in [
        "",
        "junk",
        "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n",
    ] {
        std::fs::write(home.join("known_cas.pem"), damaged).unwrap();
        assert!(load().unwrap_err().to_string().contains("known_cas.pem"));
    }
    std::fs::remove_file(home.join("known_cas.pem")).unwrap();
    assert!(!load().unwrap());
}
