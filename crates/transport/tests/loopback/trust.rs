//! Trust over real TLS on loopback: accepted peers and, above all, rejected ones.

use std::{io, sync::Arc, time::Duration};

use rustls::{HandshakeKind, sign::SingleCertAndKey};
use rustls_pki_types::ServerName;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket, TcpStream},
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use zmove_transport::{
    AcceptError, Acceptor, Connection, DialError, DialStage, FirstKey, HostPolicy, SocketConfig,
    TcpDialer,
};
use zmove_wire::{Greeting, GreetingError, PROTOCOL_NAME, Role};

use crate::party::{
    LONG, NEWER_GREETING, NEWER_NAMES, Party, client_config, host_config, serve_tls,
};

const SHORT: Duration = Duration::from_millis(100);
const LOOPBACK: &str = "127.0.0.1";

impl Party {
    async fn listen(&self) -> (Acceptor, u16) {
        let listener = std::net::TcpListener::bind((LOOPBACK, 0)).unwrap();
        let acceptor = Acceptor::on(listener, &self.identity, &SocketConfig::default()).unwrap();
        let port = acceptor.local_addr().unwrap().port();
        (acceptor, port)
    }

    /// Accepts handshakes in the background. Keeps the connections open without using them.
    async fn serve(&self) -> u16 {
        let (acceptor, port) = self.listen().await;
        tokio::spawn(async move {
            let mut kept = Vec::new();
            loop {
                kept.push(accept(&acceptor).await);
            }
        });
        port
    }

    async fn dialer(&self, port: u16, policy: HostPolicy) -> TcpDialer {
        TcpDialer::new(
            &self.identity,
            LOOPBACK,
            port,
            policy,
            SocketConfig::default(),
        )
        .await
        .unwrap()
    }

    async fn dial(&self, port: u16, policy: HostPolicy) -> Result<Connection, DialError> {
        self.dialer(port, policy).await.dial(LONG).await
    }
}

async fn accept(acceptor: &Acceptor) -> Result<Connection, AcceptError> {
    let (socket, _) = acceptor.accept_tcp().await.unwrap();
    acceptor.handshake(socket, LONG, || ()).await
}

/// Returns both ends of a successful connection.
async fn connected(host: &Party, user: &Party) -> (Connection, Connection) {
    let (acceptor, port) = host.listen().await;
    let policy = HostPolicy::Pinned(host.fingerprint());
    let (client, server) = tokio::join!(user.dial(port, policy), accept(&acceptor));
    (client.unwrap(), server.unwrap())
}

/// Returns the acceptor's error for a client that trusts every host and presents the given key, if any.
async fn accept_tls(
    acceptor: &Acceptor,
    key: Option<Arc<SingleCertAndKey>>,
    protocols: &[&[u8]],
) -> Result<Connection, AcceptError> {
    meet_tls(acceptor, key, protocols).await.1
}

/// Returns the client's end and the acceptor's result for a client that trusts every host.
async fn meet_tls(
    acceptor: &Acceptor,
    key: Option<Arc<SingleCertAndKey>>,
    protocols: &[&[u8]],
) -> (
    io::Result<TlsStream<TcpStream>>,
    Result<Connection, AcceptError>,
) {
    let config = client_config(key, protocols);
    let socket = TcpStream::connect(acceptor.local_addr().unwrap())
        .await
        .unwrap();
    let name = ServerName::try_from("zmove").unwrap();
    let client = TlsConnector::from(Arc::new(config)).connect(name, socket);
    tokio::join!(client, accept(acceptor))
}

#[tokio::test]
async fn both_sides_learn_the_other_key() {
    let [host, user] = [Party::new(), Party::new()];
    let (client, server) = connected(&host, &user).await;
    assert_eq!(
        (client.peer, server.peer),
        (host.fingerprint(), user.fingerprint())
    );
    assert!(client.rtt > Duration::ZERO && server.rtt > Duration::ZERO);
    let stream = client;
    let session = stream.session();
    assert_eq!(session.alpn_protocol(), Some(PROTOCOL_NAME));
    let suite = session.negotiated_cipher_suite().unwrap().suite();
    assert_eq!(suite, rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
}

/// This version and version 9 have only the name without a version in common. On such a connection, the host sends its
/// greeting.
#[tokio::test]
async fn a_host_that_speaks_another_version_is_recognized() {
    let [host, user] = [Party::new(), Party::new()];
    let newer = host_config(host.key_with(vec![host.certificate()]), &NEWER_NAMES);
    let listener = TcpListener::bind((LOOPBACK, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(newer));
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            // A client that does not know the key aborts the first handshake.
            if let Ok(mut stream) = acceptor.accept(socket).await {
                stream.write_all(&NEWER_GREETING).await.unwrap();
                stream.shutdown().await.unwrap();
            }
        }
    });
    let pinned = HostPolicy::Pinned(host.fingerprint());
    for policy in [pinned, HostPolicy::RefuseUnknown] {
        let error = user.dial(port, policy).await.unwrap_err();
        let DialError::OtherVersion { fault, .. } = error else {
            panic!("{error:?}")
        };
        assert_eq!(fault, GreetingError::OtherVersion { theirs: 9 });
    }
    let changed = HostPolicy::Pinned(user.fingerprint());
    let error = user.dial(port, changed).await.unwrap_err();
    assert!(
        matches!(error, DialError::HostKeyChanged { .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_client_that_speaks_another_version_is_sent_the_greeting() {
    let [host, user] = [Party::new(), Party::new()];
    let (acceptor, _) = host.listen().await;
    let key = user.key_with(vec![user.certificate()]);
    let (client, accepted) = meet_tls(&acceptor, Some(key), &NEWER_NAMES).await;
    assert!(
        matches!(accepted, Err(AcceptError::OtherVersion)),
        "{accepted:?}"
    );
    let mut greeting = Vec::new();
    client.unwrap().read_to_end(&mut greeting).await.unwrap();
    let greeting = Greeting::decode(greeting.as_slice().try_into().unwrap());
    assert_eq!(greeting.map(|greeting| greeting.role), Ok(Role::Control));
}

#[tokio::test]
async fn nothing_is_resumed() {
    let [host, user] = [Party::new(), Party::new()];
    let (acceptor, port) = host.listen().await;
    let dialer = user
        .dialer(port, HostPolicy::Pinned(host.fingerprint()))
        .await;
    for _ in 0..2 {
        let (client, server) = tokio::join!(dialer.dial(LONG), accept(&acceptor));
        drop(client.unwrap());
        assert_eq!(
            server.unwrap().session().handshake_kind(),
            Some(HandshakeKind::Full)
        );
    }
}

#[tokio::test]
async fn server_sends_no_tickets() {
    let [host, user] = [Party::new(), Party::new()];
    let (acceptor, _) = host.listen().await;
    let key = user.key_with(vec![user.certificate()]);
    let (client, server) = meet_tls(&acceptor, Some(key), &[PROTOCOL_NAME]).await;
    let mut client = client.unwrap();
    server.unwrap().shutdown().await.unwrap();
    // At the end of the stream, all tickets would have been counted.
    assert_eq!(client.read(&mut [0; 1]).await.unwrap(), 0);
    assert_eq!(client.get_ref().1.tls13_tickets_received(), 0);
}

#[tokio::test]
async fn accepted_sockets_are_set_up() {
    let [host, user] = [Party::new(), Party::new()];
    let (client, server) = connected(&host, &user).await;
    server.set_unacknowledged_max(LONG).unwrap();
    for connection in [client, server] {
        let socket = socket2::SockRef::from(&connection);
        assert!(socket.tcp_nodelay().unwrap() && socket.keepalive().unwrap());
    }
}

#[tokio::test]
async fn host_with_a_copied_certificate_is_refused() {
    let [victim, thief, user] = [Party::new(), Party::new(), Party::new()];
    let port = serve_tls(host_config(
        thief.key_with(vec![victim.certificate()]),
        &[PROTOCOL_NAME],
    ))
    .await;
    let error = user
        .dial(port, HostPolicy::Pinned(victim.fingerprint()))
        .await
        .unwrap_err();
    assert!(
        matches!(error, DialError::HostKeyUnproven { .. }),
        "{error:?}"
    );
    assert!(!error.retryable());
}

#[tokio::test]
async fn copied_certificate_is_never_pinned() {
    let [victim, thief, user] = [Party::new(), Party::new(), Party::new()];
    let first = FirstKey::default();
    let port = serve_tls(host_config(
        thief.key_with(vec![victim.certificate()]),
        &[PROTOCOL_NAME],
    ))
    .await;
    let error = user
        .dial(port, HostPolicy::AcceptNew(first.clone()))
        .await
        .unwrap_err();
    assert!(
        matches!(error, DialError::HostKeyUnproven { .. }),
        "{error:?}"
    );
    assert_eq!(first.get(), None);
}

#[tokio::test]
async fn host_is_judged_by_the_certificate_it_signs_with() {
    let [victim, thief, user] = [Party::new(), Party::new(), Party::new()];
    let chain = vec![thief.certificate(), victim.certificate()];
    let port = serve_tls(host_config(thief.key_with(chain), &[PROTOCOL_NAME])).await;
    let error = user
        .dial(port, HostPolicy::Pinned(victim.fingerprint()))
        .await
        .unwrap_err();
    assert!(
        matches!(error, DialError::HostKeyChanged { .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn client_with_a_copied_certificate_is_refused() {
    let [host, victim, thief] = [Party::new(), Party::new(), Party::new()];
    let (acceptor, _) = host.listen().await;
    let key = thief.key_with(vec![victim.certificate()]);
    let error = accept_tls(&acceptor, Some(key), &[PROTOCOL_NAME])
        .await
        .unwrap_err();
    assert!(matches!(error, AcceptError::ClientKeyUnproven), "{error:?}");
}

#[tokio::test]
async fn client_is_known_by_the_certificate_it_signs_with() {
    let [host, victim, thief] = [Party::new(), Party::new(), Party::new()];
    let (acceptor, _) = host.listen().await;
    let key = thief.key_with(vec![thief.certificate(), victim.certificate()]);
    let connection = accept_tls(&acceptor, Some(key), &[PROTOCOL_NAME])
        .await
        .unwrap();
    assert_eq!(connection.peer, thief.fingerprint());
}

#[tokio::test]
async fn client_without_a_certificate_is_refused() {
    let (acceptor, _) = Party::new().listen().await;
    let error = accept_tls(&acceptor, None, &[PROTOCOL_NAME])
        .await
        .unwrap_err();
    assert!(matches!(error, AcceptError::NoClientKey), "{error:?}");
}

#[tokio::test]
async fn peers_without_the_protocol_are_refused() {
    let [host, user] = [Party::new(), Party::new()];
    let (acceptor, _) = host.listen().await;
    for protocols in [&[][..], &[b"h2".as_slice()]] {
        let key = user.key_with(vec![user.certificate()]);
        let error = accept_tls(&acceptor, Some(key), protocols)
            .await
            .unwrap_err();
        assert!(matches!(error, AcceptError::NotZmove), "{error:?}");

        let port = serve_tls(host_config(
            host.key_with(vec![host.certificate()]),
            protocols,
        ))
        .await;
        let error = user
            .dial(port, HostPolicy::Pinned(host.fingerprint()))
            .await
            .unwrap_err();
        assert!(matches!(error, DialError::NotZmove { .. }), "{error:?}");
    }
}

/// Returns a record with a ClientHello that offers nothing newer than TLS 1.2.
fn tls12_hello() -> Vec<u8> {
    let mut hello = vec![3, 3];
    hello.extend([7; 32]); // random
    hello.push(0); // no session
    hello.extend([0, 2, 0xc0, 0x2b]); // ECDHE-ECDSA-AES128-GCM-SHA256
    hello.extend([1, 0]); // no compression
    let groups = [0, 10, 0, 4, 0, 2, 0, 29]; // x25519
    let signatures = [0, 13, 0, 4, 0, 2, 4, 3]; // ECDSA-P256-SHA256
    let points = [0, 11, 0, 2, 1, 0];
    let extensions = [&groups[..], &signatures, &points].concat();
    hello.extend([0, u8::try_from(extensions.len()).unwrap()]);
    hello.extend(extensions);
    let length = u8::try_from(hello.len()).unwrap();
    let mut record = vec![22, 3, 1, 0, length + 4, 1, 0, 0, length];
    record.append(&mut hello);
    record
}

#[tokio::test]
async fn tls_1_2_is_refused_with_an_alert() {
    let (acceptor, port) = Party::new().listen().await;
    let mut socket = TcpStream::connect((LOOPBACK, port)).await.unwrap();
    socket.write_all(&tls12_hello()).await.unwrap();
    let error = accept(&acceptor).await.unwrap_err();
    assert!(matches!(error, AcceptError::NotZmove), "{error:?}");
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).await.unwrap();
    let [21, 3, 3, 0, 2, 2, 70] = answer[..] else {
        panic!("no fatal alert protocol_version: {answer:?}")
    };
}

#[tokio::test]
async fn tls_1_2_host_is_refused() {
    let listener = TcpListener::bind((LOOPBACK, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        // Version 3.3, random, no session, ECDHE-ECDSA-AES128-GCM-SHA256, no compression, no extensions.
        let hello = [&[2, 0, 0, 38, 3, 3][..], &[7; 32], &[0, 0xc0, 0x2b, 0]].concat();
        let record = [&[22, 3, 3, 0, 42][..], &hello].concat();
        socket.write_all(&record).await.unwrap();
        drop(socket.read(&mut [0; 4096]).await);
    });
    let error = Party::new()
        .dial(port, HostPolicy::AcceptNew(FirstKey::default()))
        .await
        .unwrap_err();
    assert!(matches!(error, DialError::NotZmove { .. }), "{error:?}");
}

#[tokio::test]
async fn other_protocols_are_named_as_such() {
    let listener = TcpListener::bind((LOOPBACK, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        socket.write_all(b"SSH-2.0-OpenSSH_9.9\r\n").await.unwrap();
        drop(socket.read(&mut [0; 4096]).await);
    });
    let error = Party::new()
        .dial(port, HostPolicy::RefuseUnknown)
        .await
        .unwrap_err();
    assert!(matches!(error, DialError::NotTls { .. }), "{error:?}");
    assert!(
        error.to_string().contains(&format!("127.0.0.1:{port}")),
        "{error}"
    );

    let (acceptor, port) = Party::new().listen().await;
    let mut socket = TcpStream::connect((LOOPBACK, port)).await.unwrap();
    socket.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let error = accept(&acceptor).await.unwrap_err();
    assert!(matches!(error, AcceptError::NotTls { .. }), "{error:?}");
}

#[tokio::test]
async fn pinned_host_with_another_key_is_refused() {
    let [host, other, user] = [Party::new(), Party::new(), Party::new()];
    let port = host.serve().await;
    let error = user
        .dial(port, HostPolicy::Pinned(other.fingerprint()))
        .await
        .unwrap_err();
    let DialError::HostKeyChanged {
        expected, found, ..
    } = error
    else {
        panic!("{error:?}")
    };
    assert_eq!((expected, found), (other.fingerprint(), host.fingerprint()));
}

#[tokio::test]
async fn daemon_learns_that_its_key_was_refused() {
    let [host, other, user] = [Party::new(), Party::new(), Party::new()];
    let (acceptor, port) = host.listen().await;
    let dial = user.dial(port, HostPolicy::Pinned(other.fingerprint()));
    let error = tokio::join!(dial, accept(&acceptor)).1.unwrap_err();
    assert!(matches!(error, AcceptError::HostKeyRefused), "{error:?}");
}

#[tokio::test]
async fn unknown_host_is_refused_and_its_key_told() {
    let [host, user] = [Party::new(), Party::new()];
    let port = host.serve().await;
    let error = user
        .dial(port, HostPolicy::RefuseUnknown)
        .await
        .unwrap_err();
    let DialError::UnknownHost {
        host: asked,
        fingerprint,
    } = error
    else {
        panic!("{error:?}")
    };
    assert_eq!(
        (asked.host.as_str(), asked.port, fingerprint),
        (LOOPBACK, port, host.fingerprint())
    );
}

#[tokio::test]
async fn accept_new_pins_once_for_the_run() {
    let [host, other, user] = [Party::new(), Party::new(), Party::new()];
    let first = FirstKey::default();
    let policy = HostPolicy::AcceptNew(first.clone());
    user.dial(host.serve().await, policy.clone()).await.unwrap();
    assert_eq!(first.get(), Some(host.fingerprint()));
    user.dial(host.serve().await, policy.clone()).await.unwrap();
    let error = user.dial(other.serve().await, policy).await.unwrap_err();
    let DialError::HostKeyChanged {
        expected, found, ..
    } = error
    else {
        panic!("{error:?}")
    };
    assert_eq!((expected, found), (host.fingerprint(), other.fingerprint()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn racing_connections_agree_on_one_new_key() {
    let [host, other, user] = [Party::new(), Party::new(), Party::new()];
    let first = FirstKey::default();
    let mut dials = tokio::task::JoinSet::new();
    for port in [host.serve().await, other.serve().await] {
        let dialer = user
            .dialer(port, HostPolicy::AcceptNew(first.clone()))
            .await;
        for _ in 0..8 {
            let dialer = dialer.clone();
            dials.spawn(async move { dialer.dial(LONG).await });
        }
    }
    let good: Vec<_> = dials
        .join_all()
        .await
        .into_iter()
        .filter_map(Result::ok)
        .collect();
    assert_eq!(good.len(), 8);
    assert!(
        good.iter()
            .all(|connection| Some(connection.peer) == first.get())
    );
}

/// Timeout of a dial that connects, even on a busy host, and then receives nothing.
const LONG_ENOUGH_TO_CONNECT: Duration = Duration::from_secs(2);

#[tokio::test]
async fn silent_peers_time_out_and_hold_nobody_up() {
    let [host, user] = [Party::new(), Party::new()];
    let (acceptor, port) = host.listen().await;
    let _silent = TcpStream::connect((LOOPBACK, port)).await.unwrap();
    let (silent, _) = acceptor.accept_tcp().await.unwrap();
    let dial = user.dial(port, HostPolicy::Pinned(host.fingerprint()));
    let (slow, good, accepted) = tokio::join!(
        acceptor.handshake(silent, SHORT, || ()),
        dial,
        accept(&acceptor)
    );
    assert!(matches!(slow.unwrap_err(), AcceptError::TimedOut { .. }));
    assert!(good.is_ok() && accepted.is_ok());

    // The kernel completes the TCP connection, but no process accepts it.
    let error = user
        .dialer(port, HostPolicy::RefuseUnknown)
        .await
        .dial(LONG_ENOUGH_TO_CONNECT)
        .await
        .unwrap_err();
    let expected = DialStage::Handshaking;
    assert!(
        matches!(error, DialError::TimedOut { stage, .. } if stage == expected),
        "{error:?}"
    );
    assert!(error.retryable());
}

#[tokio::test]
async fn absent_and_vanishing_hosts_are_told_apart() {
    // The other socket reserves the port but does not listen.
    let listener = TcpSocket::new_v4().unwrap();
    listener.set_reuseport(true).unwrap();
    listener.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let keeps_port = TcpSocket::new_v4().unwrap();
    keeps_port.set_reuseport(true).unwrap();
    keeps_port.bind(listener.local_addr().unwrap()).unwrap();
    let listener = listener.listen(1).unwrap();
    let port = listener.local_addr().unwrap().port();
    let dialer = Party::new().dialer(port, HostPolicy::RefuseUnknown).await;
    let (error, _) = tokio::join!(dialer.dial(LONG), async {
        drop(listener.accept().await.unwrap())
    });
    let error = error.unwrap_err();
    assert!(matches!(error, DialError::Closed { .. }), "{error:?}");
    assert!(error.retryable());

    drop(listener);
    let error = dialer.dial(LONG).await.unwrap_err();
    assert!(matches!(error, DialError::Refused { .. }), "{error:?}");
    assert!(
        error
            .to_string()
            .contains("is 'zmove serve' running there?"),
        "{error}"
    );
}
