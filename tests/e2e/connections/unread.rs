//! A peer that pings without reading: its pongs fill the send window, and the operator can still end its transfer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, Endpoint, RecvStream, SendStream, TransportConfig};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::Value;
use zmove_transport::Identity;
use zmove_types::TransferId;
use zmove_wire::{
    Greeting, Intent, Open, PROTOCOL_NAME, Role, ToReceiver, encode_message, encode_ping,
};

use crate::support::command::{ZMOVE, Zmove};
use crate::support::harness::{PATIENCE, Site, runtime};

#[path = "../../../crates/transport/tests/loopback/trust_all.rs"]
mod trust_all;

use self::trust_all::TrustAll;

/// Bytes that the daemon may send without a read: its greeting and a few pongs.
const WINDOW_BYTES: u32 = 256;
/// Number of pings. Their pongs do not fit into the window, even though pings that are read together are answered by
/// one pong.
const PINGS: u64 = 20_000;
/// Maximum time until a stopped transfer has ended. A peer has 10 s to read the reason.
const GONE_MAX: Duration = Duration::from_secs(40);

/// A connection whose window is exhausted.
type Unread = (Connection, RecvStream, SendStream);

/// QUIC settings with the key of the site's client and a small window.
fn settings(site: &Site) -> ClientConfig {
    let home = site.path("client");
    Identity::load_or_create(&home).unwrap();
    let pem = home.join("key.pem");
    let key = PrivateKeyDer::from_pem_file(&pem).unwrap();
    let chain = CertificateDer::pem_file_iter(&pem).unwrap();
    let chain = chain.collect::<Result<Vec<_>, _>>().unwrap();
    let mut crypto = rustls::ClientConfig::builder_with_provider(default_provider().into())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(TrustAll))
        .with_client_auth_cert(chain, key)
        .unwrap();
    crypto.alpn_protocols = vec![PROTOCOL_NAME.to_vec()];
    let mut settings = ClientConfig::new(Arc::new(QuicClientConfig::try_from(crypto).unwrap()));
    let mut transport = TransportConfig::default();
    transport.stream_receive_window(WINDOW_BYTES.into());
    settings.transport_config(Arc::new(transport));
    settings
}

/// Opens a control connection with this role, pings until the daemon has no room for pongs, and then sends `words`.
async fn flood(site: &Site, number: u8, role: Role, words: &[u8]) -> Unread {
    let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = site.the_daemon().address;
    let connecting = endpoint.connect_with(settings(site), address, "zmove");
    let connection = connecting.unwrap().await.unwrap();
    let (mut send, recv) = connection.open_bi().await.unwrap();
    let greeting = Greeting::new(role, TransferId([number; 16])).encode();
    send.write_all(&greeting).await.unwrap();
    for value in 0..PINGS {
        send.write_all(&encode_ping(value)).await.unwrap();
    }
    send.write_all(words).await.unwrap();
    (connection, recv, send)
}

fn opening(target: &[u8], intent: Intent, number: u8) -> Vec<u8> {
    encode_message(&ToReceiver::Open(Open {
        intent,
        ..Open::new(target.to_vec(), [number; 16])
    }))
}

fn operator(site: &Site, words: &[&str]) -> crate::support::command::Outcome {
    let mut zmove = std::process::Command::new(ZMOVE);
    zmove.env("ZMOVE_HOME", site.path("server")).args(words);
    Zmove(zmove).outcome()
}

fn transfers(site: &Site) -> Vec<Value> {
    let status = operator(site, &["status", "--json"]).done().stdout;
    let status: Value = serde_json::from_str(&status).unwrap();
    status["transfers"].as_array().unwrap().clone()
}

/// Waits until `holds` is true of the daemon's transfers.
fn wait_for(site: &Site, most: Duration, holds: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let until = Instant::now() + most;
    loop {
        let transfers = transfers(site);
        if holds(&transfers) {
            return transfers;
        }
        assert!(Instant::now() < until, "{transfers:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Stops these transfers and waits until they have ended.
fn stop(site: &Site, transfers: &[Value]) {
    for transfer in transfers {
        // A transfer that has just ended no longer has an id.
        drop(operator(site, &["stop", transfer["id"].as_str().unwrap()]));
    }
    wait_for(site, GONE_MAX, <[Value]>::is_empty);
}

#[test]
fn a_transfer_whose_peer_pings_and_does_not_read_can_be_stopped_in_each_phase() {
    let site = Site::quic();
    let phases = [
        (Role::Control, Vec::new()),
        (Role::Control, opening(b"/", Intent::Write, 2)),
        (Role::Control, opening(b"write", Intent::Write, 3)),
        (Role::Control, opening(b"inspect", Intent::Inspect, 4)),
        (Role::Control, opening(b"measure", Intent::Measure, 5)),
        (Role::Fetch, Vec::new()),
    ];
    let runtime = runtime();
    let mut unread = Vec::new();
    for (number, (role, words)) in (1..).zip(&phases) {
        unread.push(runtime.block_on(flood(&site, number, *role, words)));
    }
    // The daemon has read each opening after the pings. A refused transfer may have ended already.
    let are_opened = |transfers: &[Value]| {
        ["write", "inspect", "measure"]
            .iter()
            .all(|path| transfers.iter().any(|transfer| transfer["path"] == **path))
    };
    let shown = wait_for(&site, PATIENCE, are_opened);
    assert!(shown.len() >= 5, "{shown:?}");
    stop(&site, &shown);
    drop(unread);
}

#[test]
fn a_transfer_whose_peer_does_not_read_can_be_stopped_in_the_queue() {
    let mut site = Site::local();
    std::fs::write(site.path("server/zmove.toml"), "[limits]\ntransfers = 1\n").unwrap();
    site.start_daemon_with(&["--transport", "quic"]);
    let runtime = runtime();
    let first = runtime.block_on(flood(&site, 1, Role::Control, &[]));
    wait_for(&site, PATIENCE, |transfers| transfers.len() == 1);
    let second = runtime.block_on(flood(&site, 2, Role::Control, &[]));
    let waits = |transfers: &[Value]| transfers.iter().any(|transfer| transfer["waits"] == true);
    let shown = wait_for(&site, PATIENCE, waits);
    let waiting: Vec<_> = shown
        .into_iter()
        .filter(|transfer| transfer["waits"] == true)
        .collect();
    for transfer in &waiting {
        operator(&site, &["stop", transfer["id"].as_str().unwrap()]).done();
    }
    let is_there = |transfer: &Value| waiting.iter().any(|known| known["id"] == transfer["id"]);
    wait_for(&site, GONE_MAX, |transfers| !transfers.iter().any(is_there));
    drop((first, second));
}
