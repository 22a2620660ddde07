//! Tests of authentication and of TLS connections.

use std::fs;
use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;
use zmove_cluster::jetstream::{Access, JetStream, LocalBroker};
use zmove_cluster::{NodeRole, WorkQueue};

use crate::lab::{Lab, data, next, put_all, settings};

#[tokio::test]
async fn a_broker_lets_in_who_has_the_seed() {
    let [good, bad] = [(); 2].map(|()| LocalBroker::new_seed().unwrap());
    let nkey = LocalBroker::nkey_of(&good).unwrap();
    let users = format!("authorization {{ users: [{{ nkey: {nkey} }}] }}");
    let Some(lab) = Lab::start_with(|config| config.more = users).await else {
        return;
    };
    let with = |credentials| Access {
        credentials,
        ..lab.access()
    };
    let head = JetStream::open(&with(Some(good)), settings(NodeRole::Head)).await;
    assert!(head.unwrap().waiting().await.unwrap() == 0);
    for credentials in [None, Some(bad)] {
        let refused = JetStream::open(&with(credentials), settings(NodeRole::Follower)).await;
        assert!(refused.unwrap_err().to_string().contains("authorization"));
    }
}

/// Returns the configuration of a server with a certificate for the loopback address.
fn tls(directory: &Path, issuer: &CertifiedIssuer<'_, KeyPair>) -> String {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let signed = params.signed_by(&key, issuer).unwrap();
    let files = ["server.pem", "server.key"].map(|name| directory.join(name));
    fs::write(&files[0], signed.pem()).unwrap();
    fs::write(&files[1], key.serialize_pem()).unwrap();
    let [certificate, key] = files;
    format!("tls {{ cert_file: {certificate:?}, key_file: {key:?} }}")
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

#[tokio::test]
async fn a_connection_by_tls_is_made_to_a_server_for_which_its_authority_vouches() {
    let files = TempDir::new().unwrap();
    let [ours, others] = [(); 2].map(|()| authority());
    let tls = tls(files.path(), &ours);
    let Some(lab) = Lab::start_with(|config| config.more = tls).await else {
        return;
    };
    let with = |authorities| Access {
        authorities,
        ..lab.access()
    };
    let trusting = with(Some(others.pem() + &ours.pem()));
    let head = JetStream::open(&trusting, settings(NodeRole::Head)).await;
    let head = head.unwrap();
    put_all(&head, [data(1)]).await;
    assert_eq!(next(&head).await.item, data(1));
    for authorities in [None, Some(others.pem())] {
        let access = with(authorities);
        let refused = JetStream::open(&access, settings(NodeRole::Follower)).await;
        let why = refused.unwrap_err().to_string();
        assert!(why.contains("does not trust"), "{why}");
    }
}
