//! Peers that are absent, that are not zmove, or that are another version of zmove.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, mpsc};

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::version::TLS13;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use zmove_transport::{Acceptor, Connection, Fingerprint, Identity, SocketConfig};
use zmove_types::TransferId;
use zmove_wire::{Greeting, Role};

use crate::support::command::Outcome;
use crate::support::harness::{PATIENCE, Site, runtime};
use crate::support::quiet_machine::share_machine;
use crate::support::tree::{assert_same, names, paint};

fn site() -> Site {
    let site = Site::local();
    paint(site.source().join("f"), 10);
    site
}

fn push_to(site: &Site, target: &str) -> Outcome {
    site.zmove(&["push", "--accept-new", "source", target])
        .outcome()
}

/// The greeting of a zmove with protocol version 9.
fn newer_greeting(transfer: u8) -> Vec<u8> {
    let mut greeting = Greeting::new(Role::Control, TransferId([transfer; 16])).encode();
    greeting[8] = 9;
    greeting.to_vec()
}

/// Starts a TLS server with zmove's handshake that sends only `greeting` on each connection.
fn serve_greeting(site: &Site, greeting: Vec<u8>) -> (SocketAddr, Fingerprint) {
    let identity = Identity::load_or_create(&site.path("server")).unwrap();
    let fingerprint = identity.fingerprint();
    let (address_in, address) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let acceptor = Acceptor::on(listener, &identity, &SocketConfig::default()).unwrap();
            address_in.send(acceptor.local_addr().unwrap()).unwrap();
            loop {
                let (socket, _) = acceptor.accept_tcp().await.unwrap();
                if let Ok(connection) = acceptor.handshake(socket, PATIENCE, || ()).await {
                    tokio::spawn(say(connection, greeting.clone()));
                }
            }
        });
    });
    (address.recv().unwrap(), fingerprint)
}

async fn say(mut connection: Connection, greeting: Vec<u8>) {
    let mut theirs = [0; Greeting::BYTES];
    let lane = connection.read_exact(&mut theirs).await.is_err() || theirs[10] == 1;
    if !lane {
        drop(connection.write_all(&greeting).await);
        drop(connection.flush().await);
    }
    // Keeps the connection open until the client closes it.
    drop(tokio::io::copy(&mut connection, &mut tokio::io::sink()).await);
}

/// TLS settings of a zmove with protocol version 9 and the key in `home`.
fn newer_tls(home: &Path) -> ServerConfig {
    let pem = home.join("key.pem");
    let certificates = vec![CertificateDer::from_pem_file(&pem).unwrap()];
    let key = PrivateKeyDer::from_pem_file(&pem).unwrap();
    let mut tls = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(certificates, key)
        .unwrap();
    tls.alpn_protocols = vec![b"zmove/9".to_vec(), b"zmove".to_vec()];
    tls
}

/// Starts a zmove over TCP with protocol version 9.
fn serve_newer(site: &Site) -> (SocketAddr, Fingerprint) {
    let home = site.path("server");
    let fingerprint = Identity::load_or_create(&home).unwrap().fingerprint();
    let tls = Arc::new(newer_tls(&home));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let session = ServerConnection::new(Arc::clone(&tls)).unwrap();
            let mut stream = StreamOwned::new(session, stream);
            std::thread::spawn(move || {
                // A client that does not accept the key aborts the handshake.
                let said = stream.write_all(&newer_greeting(0));
                drop(said.and_then(|()| stream.read_to_end(&mut Vec::new())));
            });
        }
    });
    (address, fingerprint)
}

/// The key that the client has pinned for a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pin {
    Right,
    Missing,
    Other,
}

/// The step in which a peer shows that it speaks another version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    InTls,
    /// The peer has already agreed on the current version in TLS, which a zmove of another version never does.
    InTheGreeting,
}

/// Runs all commands that dial a host against a peer of another version.
fn meet_another_version(shown: Shown, pin: Pin) {
    let site = site();
    let (address, fingerprint) = match shown {
        Shown::InTls => serve_newer(&site),
        Shown::InTheGreeting => serve_greeting(&site, newer_greeting(0)),
    };
    match pin {
        Pin::Right => site.pin(&address, fingerprint),
        Pin::Missing => {}
        Pin::Other => site.pin(&address, Fingerprint([7; 32])),
    }
    let host = address.to_string();
    let path = format!("{address}:x");
    let commands: [&[&str]; 7] = [
        &["push", "source", &path],
        &["push", "--strict", "source", &path],
        &["pull", &path, "pulled"],
        &["verify", "source", &path],
        &["probe", &path],
        &["clean", &path],
        &["doctor", "--json", &host],
    ];
    let key = fingerprint.to_string();
    for words in commands {
        let is_doctor = words[0] == "doctor";
        let (code, parts): (_, &[&str]) = match (shown, pin) {
            // A message under a key other than the pinned one is not trusted.
            (_, Pin::Other) => (5, &["it shows ", "somebody may be intercepting"]),
            (Shown::InTheGreeting, Pin::Missing) if !is_doctor => (5, &[&key]),
            _ => (
                2,
                &[
                    "a zmove that speaks protocol version 9",
                    "this one speaks version 1",
                    "install the same release",
                ],
            ),
        };
        let outcome = site.zmove(words).outcome();
        let case = format!(
            "{shown:?}, {pin:?}, {words:?}: {}{}",
            outcome.stderr, outcome.stdout
        );
        let said = if is_doctor {
            &outcome.stdout
        } else {
            &outcome.stderr
        };
        assert!(parts.iter().all(|part| said.contains(part)), "{case}");
        assert_eq!(
            outcome.code,
            Some(if is_doctor { 4 } else { code }),
            "{case}"
        );
        assert!(
            is_doctor || code == 5 || said.lines().count() == 1,
            "{case}"
        );
    }
    let is_pinned = site.path("client/known_hosts").exists();
    assert_eq!(is_pinned, pin != Pin::Missing, "no command pins a key");
}

#[test]
fn a_peer_of_another_version_is_named_by_each_command() {
    share_machine();
    std::thread::scope(|cases| {
        for shown in [Shown::InTls, Shown::InTheGreeting] {
            for pin in [Pin::Right, Pin::Missing, Pin::Other] {
                cases.spawn(move || meet_another_version(shown, pin));
            }
        }
    });
}

/// Starts a zmove over QUIC with protocol version 9, and reports this version in the reason of its close.
fn serve_newer_over_quic(site: &Site) -> (SocketAddr, Fingerprint) {
    let home = site.path("server");
    let fingerprint = Identity::load_or_create(&home).unwrap().fingerprint();
    let tls = newer_tls(&home);
    let crypto = quinn::crypto::rustls::QuicServerConfig::try_from(tls).unwrap();
    let config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
    let (address_in, address) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let listen = SocketAddr::from(([127, 0, 0, 1], 0));
            let endpoint = quinn::Endpoint::server(config, listen).unwrap();
            address_in.send(endpoint.local_addr().unwrap()).unwrap();
            while let Some(incoming) = endpoint.accept().await {
                // A push ends while it dials lanes. Its unfinished handshakes must not delay the next client.
                tokio::spawn(async move {
                    if let Ok(connection) = incoming.await {
                        connection.close(0_u32.into(), &newer_greeting(0));
                    }
                });
            }
        });
    });
    (address.recv().unwrap(), fingerprint)
}

#[test]
fn a_peer_of_another_version_is_named_over_quic() {
    let site = site();
    let (address, fingerprint) = serve_newer_over_quic(&site);
    site.pin(&address, fingerprint);
    let target = format!("{address}:x");
    let versions = [
        "a zmove that speaks protocol version 9",
        "this one speaks version 1",
    ];
    let push = ["push", "--transport", "quic", "source", &target];
    site.zmove(&push).outcome().expect(2).says(&versions);
    let doctor = site.zmove(&["doctor", &address.to_string()]).outcome();
    // The output wraps lines.
    let told: Vec<_> = doctor.stdout.split_whitespace().collect();
    let told = told.join(" ");
    versions
        .iter()
        .for_each(|part| assert!(told.contains(part), "{told}"));
}

#[test]
fn a_peer_with_another_greeting_is_not_zmove() {
    let site = site();
    let (address, fingerprint) = serve_greeting(&site, vec![b'#'; Greeting::BYTES]);
    site.pin(&address, fingerprint);
    let outcome = push_to(&site, &format!("{address}:x")).expect(2);
    outcome.says(&["zmove: ", "the peer is not zmove"]).lines(1);
}

/// A valid greeting is followed by an invalid message, or by a message that claims an enormous length.
#[test]
fn a_peer_that_breaks_the_protocol_ends_the_push() {
    for nonsense in [&[4, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF][..], &[0xFF; 8]] {
        let site = site();
        let greeting = Greeting::new(Role::Control, TransferId([0; 16])).encode();
        let (address, fingerprint) = serve_greeting(&site, [&greeting[..], nonsense].concat());
        site.pin(&address, fingerprint);
        push_to(&site, &format!("{address}:x")).expect(12).lines(1);
    }
}

#[test]
fn a_host_without_an_address_is_reported() {
    let outcome = push_to(&site(), "no-such-host.invalid:x").expect(10);
    outcome
        .says(&["zmove: find the address of", "no-such-host.invalid"])
        .lines(1);
}

#[test]
fn a_port_of_another_service_is_reported() {
    let banners: [&[u8]; 2] = [
        b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u5\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ];
    for banner in banners {
        let site = site();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let mut open = Vec::new();
            for mut stream in listener.incoming().map_while(Result::ok) {
                stream.write_all(banner).unwrap();
                open.push(stream);
            }
        });
        let outcome = push_to(&site, &format!("{address}:x"))
            .expect(10)
            .says(&["zmove: connect to", &address.to_string(), "is not zmove"])
            .lines(1);
        assert!(outcome.stderr.ends_with("; is the port right?\n"));
    }
}

#[test]
fn a_port_that_closes_its_connections_is_reported() {
    let site = site();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || listener.incoming().for_each(drop));
    let outcome = push_to(&site, &format!("{address}:x")).expect(10);
    outcome
        .says(&[
            "zmove: connect to",
            &address.to_string(),
            "closed the connection",
        ])
        .lines(1);
}

#[test]
fn garbage_at_the_daemon_is_logged_and_survived() {
    let site = Site::daemon();
    paint(site.source().join("f"), 10);
    let address = site.the_daemon().address;
    // The first bytes of a TLS record that is never completed. The daemon may wait for it, but must serve other
    // clients.
    let mut slow = TcpStream::connect(address).unwrap();
    slow.write_all(&[22, 3, 1, 2, 0]).unwrap();
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 1000], &[0xFF; 70_000]] {
        let mut stream = TcpStream::connect(address).unwrap();
        // The daemon may close the connection before all bytes are written.
        drop(stream.write_all(garbage));
        drop(stream.read_to_end(&mut Vec::new()));
        let own = stream.local_addr().unwrap();
        let line = site.the_daemon().wait_for_log(&format!("rejected {own}"));
        assert!(line.contains(" zmove: rejected "), "{line}");
    }
    drop(TcpStream::connect(address).unwrap());
    site.push_contents();
    assert_same(&site.source(), &site.target());
    site.the_daemon().wait_for_log("received from tester");
    drop(slow);
}

/// A client with a known key sends invalid data after the handshake.
#[test]
fn garbage_from_a_known_key_is_logged_and_survived() {
    let site = Site::daemon();
    paint(site.source().join("f"), 10);
    let daemon = site.the_daemon();
    // Each case has its own transfer id, since the daemon logs the end of a transfer shortly before the id may be
    // reused.
    let greeting = |transfer| Greeting::new(Role::Control, TransferId([transfer; 16]));
    let nonsense = [&greeting(2).encode()[..], &[5, 0, 0, 0, 1, 2, 3, 4, 5]].concat();
    let endless = [&greeting(3).encode()[..], &[0xFF, 0xFF, 0xFF, 0]].concat();
    let cases = [
        (vec![b'#'; 200], "the peer is not zmove"),
        (newer_greeting(1), "protocol version 9"),
        (nonsense, "broken off by tester"),
        (endless, "is over the limit of"),
    ];
    for (bytes, logged) in cases {
        runtime().block_on(async {
            let mut connection = daemon.dial(&site.path("client")).await;
            connection.write_all(&bytes).await.unwrap();
            connection.flush().await.unwrap();
            drop(tokio::time::timeout(PATIENCE, connection.read_to_end(&mut Vec::new())).await);
        });
        daemon.wait_for_log(logged);
    }
    site.push_contents();
    assert_eq!(names(&site.target()), ["f"]);
}
