//! QUIC on loopback: accepted and refused peers, and lanes from the greeting to the end.

use std::collections::HashMap;
use std::{io, net::SocketAddr, net::UdpSocket, sync::Arc, thread, time::Duration};

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::sign::SingleCertAndKey;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net;
use tokio::sync::mpsc;
use zmove_transport::{
    AcceptError, Channel, ChannelDialer, DialError, DialOptions, FirstKey, HostPolicy, LaneError,
    LaneWindow, Listener, QuicCongestion, SharedRate, SocketConfig, Transport, TransportChoice,
};
use zmove_types::{BufferPool, ItemId, StageClock};
use zmove_wire::Cipher;

use crate::frames::{BUFFER_BYTES, GREETING, frame, pattern};
use crate::party::{LONG, NEWER_GREETING, NEWER_NAMES, Party, client_config, host_config};

impl Party {
    async fn listen_by(&self, choice: TransportChoice) -> (Listener, u16) {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = Listener::bind(address, &self.identity, choice, &SocketConfig::default())
            .await
            .unwrap();
        let port = listener.local_addr().unwrap().port();
        (listener, port)
    }

    async fn quic_dialer(&self, port: u16, policy: HostPolicy) -> ChannelDialer {
        let reach = DialOptions {
            transport: TransportChoice::Quic,
            ..DialOptions::default()
        };
        ChannelDialer::new(&self.identity, "127.0.0.1", port, policy, reach)
            .await
            .unwrap()
    }

    async fn dial_quic(&self, port: u16, policy: HostPolicy) -> Result<Channel, DialError> {
        self.quic_dialer(port, policy).await.dial(LONG).await
    }
}

async fn accept(listener: &Listener) -> Result<Channel, AcceptError> {
    listener
        .handshake(listener.accept().await.unwrap(), LONG, || ())
        .await
}

/// Returns the client's end, which has sent its greeting, and the daemon's end, which has read it.
async fn connected() -> (Channel, Channel) {
    let (host, user) = (Party::new(), Party::new());
    let (listener, port) = host.listen_by(TransportChoice::Quic).await;
    let policy = HostPolicy::Pinned(host.fingerprint());
    let dialled = async {
        let mut channel = user.dial_quic(port, policy).await.unwrap();
        channel.write_all(GREETING).await.unwrap();
        channel
    };
    let (near, far) = tokio::join!(dialled, accept(&listener));
    let mut far = far.unwrap();
    far.read_exact(&mut [0; GREETING.len()]).await.unwrap();
    assert_eq!(
        (near.peer(), far.peer()),
        (host.fingerprint(), user.fingerprint())
    );
    assert_eq!(
        (near.transport(), far.transport()),
        (Transport::Quic, Transport::Quic)
    );
    // The socket stays open until the end of the connection.
    tokio::spawn(async move {
        let _kept = listener;
        std::future::pending::<()>().await;
    });
    (near, far)
}

/// Sizes of heads and data around the thresholds for copying, and sizes above the windows.
const SIZES: [(usize, usize); 11] = [
    (0, 0),
    (1, 0),
    (0, 1),
    (5, 16_383),
    (100, 300_000),
    (0, (2 << 20) - 1),
    (7, 2 << 20),
    (2 << 20, BUFFER_BYTES - 1),
    (0, BUFFER_BYTES),
    (0, BUFFER_BYTES),
    (0, 0),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_arrive_and_the_end_is_one() {
    let (near, far) = connected().await;
    let sender = thread::spawn(move || {
        let clock = StageClock::default();
        let mut sink = near.into_sink(Cipher::Tls, 1).unwrap();
        for round in 0..3 {
            for (number, (head, data)) in (0..).zip(SIZES) {
                let frame = frame(100 * round + number, &pattern(head), &pattern(data));
                sink.send(frame, &mut clock.start()).unwrap();
            }
        }
        sink.finish().unwrap();
        sink.path().read().unwrap()
    });
    let received = tokio::task::spawn_blocking(move || {
        let clock = StageClock::default();
        let pool = BufferPool::new(BUFFER_BYTES, 2);
        let mut source = far.into_source(Cipher::Tls, SharedRate::default()).unwrap();
        for round in 0..3 {
            for (number, (head, data)) in (0..).zip(SIZES) {
                let frame = source.receive(&pool, &mut clock.start()).unwrap().unwrap();
                assert_eq!(frame.header.item, ItemId(100 * round + number));
                assert!(
                    frame.head == pattern(head) && *frame.data == pattern(data),
                    "frame {number}"
                );
            }
        }
        assert!(source.receive(&pool, &mut clock.start()).unwrap().is_none());
        assert!(source.receive(&pool, &mut clock.start()).unwrap().is_none());
    });
    received.await.unwrap();
    let told = sender.join().unwrap();
    assert!(told.bytes_sent.unwrap() > 0 && told.busy.unwrap() > Duration::ZERO);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lane_that_is_dropped_has_no_end() {
    let (near, far) = connected().await;
    let clock = StageClock::default();
    let mut sink = near.into_sink(Cipher::Tls, 1).unwrap();
    sink.send(frame(0, b"head", b"data"), &mut clock.start())
        .unwrap();
    drop(sink);
    let ended = tokio::task::spawn_blocking(move || {
        let (clock, pool) = (StageClock::default(), BufferPool::new(BUFFER_BYTES, 1));
        let mut source = far.into_source(Cipher::Tls, SharedRate::default()).unwrap();
        loop {
            match source.receive(&pool, &mut clock.start()) {
                Ok(Some(_)) => {}
                ended => return ended.map(|_| ()),
            }
        }
    });
    assert!(matches!(ended.await.unwrap(), Err(LaneError::Closed)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_breaker_ends_whoever_waits() {
    let (near, far) = connected().await;
    let source = far.into_source(Cipher::Tls, SharedRate::default()).unwrap();
    let breaker = source.breaker();
    let waiting = thread::spawn(move || {
        let (clock, pool, mut source) = (
            StageClock::default(),
            BufferPool::new(BUFFER_BYTES, 1),
            source,
        );
        source.receive(&pool, &mut clock.start()).map(|_| ())
    });
    breaker.trip();
    assert!(matches!(waiting.join().unwrap(), Err(LaneError::Closed)));
    // The sender gets the error, regardless of how much data it sends.
    let sending = thread::spawn(move || {
        let (clock, mut sink) = (
            StageClock::default(),
            near.into_sink(Cipher::Tls, 1).unwrap(),
        );
        let mut send = || sink.send(frame(0, b"", &pattern(BUFFER_BYTES)), &mut clock.start());
        std::iter::repeat_with(&mut send)
            .find(Result::is_err)
            .unwrap()
    });
    assert!(matches!(sending.join().unwrap(), Err(LaneError::Closed)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lane_whose_connection_is_lost_does_not_end_in_order() {
    let (near, far) = connected().await;
    let (source, mut sink) = (
        far.into_source(Cipher::Tls, SharedRate::default()).unwrap(),
        near.into_sink(Cipher::Tls, 1).unwrap(),
    );
    let path = sink.path();
    assert_eq!(path.read().unwrap().established, Some(true));
    source.breaker().trip();
    let ended = tokio::task::spawn_blocking(move || {
        let clock = StageClock::default();
        while sink
            .send(frame(0, b"", b"data"), &mut clock.start())
            .is_ok()
        {}
        sink.finish()
    });
    assert!(matches!(ended.await.unwrap(), Err(LaneError::Closed)));
    assert_eq!(path.read().unwrap().established, Some(false));
}

#[tokio::test]
async fn there_are_no_lanes_in_clear() {
    let (near, far) = connected().await;
    assert!(near.into_sink(Cipher::None, 1).is_err());
    assert!(
        far.into_source(Cipher::None, SharedRate::default())
            .is_err()
    );
}

#[tokio::test]
async fn a_pinned_host_with_another_key_is_refused_on_both_sides() {
    let (host, user, other) = (Party::new(), Party::new(), Party::new());
    let (listener, port) = host.listen_by(TransportChoice::Quic).await;
    let policy = HostPolicy::Pinned(other.fingerprint());
    let (dialled, accepted) = tokio::join!(user.dial_quic(port, policy), accept(&listener));
    let (expected, found) = (other.fingerprint(), host.fingerprint());
    assert!(matches!(
        dialled,
        Err(DialError::HostKeyChanged { expected: e, found: f, .. }) if e == expected && f == found
    ));
    assert!(
        matches!(accepted, Err(AcceptError::HostKeyRefused)),
        "{accepted:?}"
    );
}

#[tokio::test]
async fn an_unknown_host_is_refused_and_its_key_told() {
    let (host, user) = (Party::new(), Party::new());
    let (listener, port) = host.listen_by(TransportChoice::Auto).await;
    let dialled = async {
        tokio::join!(
            user.dial_quic(port, HostPolicy::RefuseUnknown),
            accept(&listener)
        )
        .0
    };
    let found = host.fingerprint();
    assert!(
        matches!(dialled.await, Err(DialError::UnknownHost { fingerprint, .. }) if fingerprint == found)
    );
}

/// Starts a host with this key and these protocols. It closes each connection with a greeting.
fn serve_quic(key: Arc<SingleCertAndKey>, protocols: &[&[u8]]) -> u16 {
    let tls = host_config(key, protocols);
    let crypto = QuicServerConfig::try_from(tls).unwrap();
    let config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
    let endpoint = quinn::Endpoint::server(config, SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let port = endpoint.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Some(incoming) = endpoint.accept().await {
            tokio::spawn(async move {
                if let Ok(connection) = incoming.await {
                    connection.close(0_u32.into(), &NEWER_GREETING);
                }
            });
        }
    });
    port
}

#[tokio::test]
async fn a_host_with_a_copied_certificate_is_refused_and_never_pinned() {
    let (thief, host, user) = (Party::new(), Party::new(), Party::new());
    let port = serve_quic(
        thief.key_with(vec![host.certificate()]),
        &[zmove_wire::PROTOCOL_NAME],
    );
    let pinned = user
        .dial_quic(port, HostPolicy::Pinned(host.fingerprint()))
        .await;
    assert!(
        matches!(pinned, Err(DialError::HostKeyUnproven { .. })),
        "{pinned:?}"
    );
    let first = FirstKey::default();
    let new = user
        .dial_quic(port, HostPolicy::AcceptNew(first.clone()))
        .await;
    assert!(
        matches!(new, Err(DialError::HostKeyUnproven { .. })),
        "{new:?}"
    );
    assert_eq!(first.get(), None);
}

#[tokio::test]
async fn a_host_that_speaks_another_version_is_told_from_one_that_is_not_zmove() {
    let (host, user) = (Party::new(), Party::new());
    let dial = async |protocols: &[&[u8]], policy| {
        let port = serve_quic(host.key_with(vec![host.certificate()]), protocols);
        user.dial_quic(port, policy).await.unwrap_err()
    };
    let pinned = HostPolicy::Pinned(host.fingerprint());
    for policy in [pinned.clone(), HostPolicy::RefuseUnknown] {
        let error = dial(&NEWER_NAMES, policy).await;
        let DialError::OtherVersion { fault, .. } = error else {
            panic!("{error:?}")
        };
        assert_eq!(fault, zmove_wire::GreetingError::OtherVersion { theirs: 9 });
    }
    let error = dial(&[b"h3"], pinned).await;
    assert!(matches!(error, DialError::NotZmove { .. }), "{error:?}");
}

#[tokio::test]
async fn a_client_that_speaks_another_version_is_sent_the_greeting() {
    let (host, user) = (Party::new(), Party::new());
    let (listener, port) = host.listen_by(TransportChoice::Quic).await;
    let key = user.key_with(vec![user.certificate()]);
    let endpoint = quinn::Endpoint::client(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let connecting = connect_quic(&endpoint, port, Some(key), &NEWER_NAMES);
    let asking = async { connecting.await.unwrap().closed().await };
    let (closed, accepted) = tokio::join!(asking, accept(&listener));
    assert!(
        matches!(accepted, Err(AcceptError::OtherVersion)),
        "{accepted:?}"
    );
    let quinn::ConnectionError::ApplicationClosed(close) = closed else {
        panic!("{closed:?}")
    };
    let greeting = zmove_wire::Greeting::decode(close.reason.as_ref().try_into().unwrap());
    assert_eq!(
        greeting.map(|greeting| greeting.role),
        Ok(zmove_wire::Role::Control)
    );
}

/// Connects as a client that trusts every host, presents the given key, if any, and offers these protocols.
fn connect_quic(
    endpoint: &quinn::Endpoint,
    port: u16,
    key: Option<Arc<SingleCertAndKey>>,
    protocols: &[&[u8]],
) -> quinn::Connecting {
    let tls = client_config(key, protocols);
    let config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
    endpoint
        .connect_with(config, SocketAddr::from(([127, 0, 0, 1], port)), "zmove")
        .unwrap()
}

/// Returns the listener's error for a client that trusts every host and presents the given key, if any.
async fn accept_quic(
    listener: &Listener,
    port: u16,
    key: Option<Arc<SingleCertAndKey>>,
) -> AcceptError {
    let endpoint = quinn::Endpoint::client(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let connecting = connect_quic(&endpoint, port, key, &[zmove_wire::PROTOCOL_NAME]);
    let talking = async {
        // The client receives a refusal only after its own handshake is complete.
        let connection = connecting.await?;
        let (mut stream, _answer) = connection.open_bi().await?;
        stream.write_all(GREETING).await.map_err(io::Error::from)?;
        connection.closed().await;
        io::Result::Ok(())
    };
    let (_refused, accepted) = tokio::join!(talking, accept(listener));
    accepted.unwrap_err()
}

#[tokio::test]
async fn clients_prove_their_keys() {
    let (thief, host, user) = (Party::new(), Party::new(), Party::new());
    let (listener, port) = host.listen_by(TransportChoice::Quic).await;
    let copied = accept_quic(
        &listener,
        port,
        Some(thief.key_with(vec![user.certificate()])),
    )
    .await;
    assert!(
        matches!(copied, AcceptError::ClientKeyUnproven),
        "{copied:?}"
    );
    let none = accept_quic(&listener, port, None).await;
    assert!(matches!(none, AcceptError::NoClientKey), "{none:?}");
}

#[tokio::test]
async fn clients_that_are_asked_back_come_again() {
    let (host, user) = (Party::new(), Party::new());
    let (listener, port) = host.listen_by(TransportChoice::Quic).await;
    let policy = HostPolicy::Pinned(host.fingerprint());
    let dialled = async {
        let mut channel = user.dial_quic(port, policy).await?;
        channel.write_all(GREETING).await.unwrap();
        Ok::<_, DialError>(channel)
    };
    let accepted = async {
        assert!(listener.accept().await.unwrap().send_retry().is_none());
        let again = listener.accept().await.unwrap().send_retry().unwrap();
        listener.handshake(again, LONG, || ()).await
    };
    let (dialled, accepted) = tokio::join!(dialled, accepted);
    assert_eq!(
        (dialled.unwrap().transport(), accepted.unwrap().transport()),
        (Transport::Quic, Transport::Quic)
    );
}

/// A client sends nothing on a lane that it has dialed but does not need.
#[tokio::test]
async fn a_connection_that_is_not_needed_is_told_from_a_failure() {
    let (host, user) = (Party::new(), Party::new());
    let (listener, port) = host.listen_by(TransportChoice::Quic).await;
    let policy = HostPolicy::Pinned(host.fingerprint());
    let dialled = async { drop(user.dial_quic(port, policy).await.unwrap()) };
    let ((), accepted) = tokio::join!(dialled, accept(&listener));
    assert!(matches!(accepted, Err(AcceptError::Unused)), "{accepted:?}");
}

#[tokio::test]
async fn what_was_said_last_arrives_though_the_dialler_closes_at_once() {
    let (host, user) = (Party::new(), Party::new());
    let (listener, port) = host.listen_by(TransportChoice::Quic).await;
    let dialer = user
        .quic_dialer(port, HostPolicy::Pinned(host.fingerprint()))
        .await;
    let dialled = async {
        let mut channel = dialer.dial(LONG).await.unwrap();
        channel.write_all(GREETING).await.unwrap();
        channel.shutdown().await.unwrap();
        drop(channel);
        dialer.close().await;
    };
    let ((), accepted) = tokio::join!(dialled, accept(&listener));
    let mut said = Vec::new();
    accepted.unwrap().read_to_end(&mut said).await.unwrap();
    assert_eq!(said, GREETING);
}

#[tokio::test]
async fn a_silent_port_is_given_up_and_may_be_tried_again() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let user = Party::new();
    let dialer = user
        .quic_dialer(
            silent.local_addr().unwrap().port(),
            HostPolicy::RefuseUnknown,
        )
        .await;
    let failed = dialer.dial(Duration::from_millis(100)).await.unwrap_err();
    assert!(
        failed.retryable() && matches!(failed, DialError::TimedOut { .. }),
        "{failed:?}"
    );
    dialer.close().await;
}

/// A port with two hosts, one after the other. The first host begins to answer the first datagram and disappears. The
/// second host replaces it, as if the host was killed and restarted.
struct Succession {
    near: net::UdpSocket,
    first: SocketAddr,
    second: SocketAddr,
}

impl Succession {
    async fn begin(first: u16, second: u16) -> u16 {
        let near = net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let port = near.local_addr().unwrap().port();
        let [first, second] = [first, second].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        tokio::spawn(
            Arc::new(Self {
                near,
                first,
                second,
            })
            .pass_on(),
        );
        port
    }

    async fn pass_on(self: Arc<Self>) {
        let mut ways = HashMap::<SocketAddr, Arc<net::UdpSocket>>::new();
        let mut datagram = [0; 65_536];
        let mut host = self.first;
        loop {
            let (bytes, client) = self.near.recv_from(&mut datagram).await.unwrap();
            let way = match ways.get(&client) {
                Some(way) => Arc::clone(way),
                None => {
                    let way = Arc::new(net::UdpSocket::bind("127.0.0.1:0").await.unwrap());
                    tokio::spawn(Arc::clone(&self).pass_back(Arc::clone(&way), client));
                    ways.insert(client, Arc::clone(&way));
                    way
                }
            };
            way.send_to(&datagram[..bytes], host).await.unwrap();
            host = self.second;
        }
    }

    async fn pass_back(self: Arc<Self>, way: Arc<net::UdpSocket>, client: SocketAddr) {
        let mut datagram = [0; 65_536];
        let mut begun = false;
        loop {
            let (bytes, host) = way.recv_from(&mut datagram).await.unwrap();
            if host == self.second {
                self.near.send_to(&datagram[..bytes], client).await.unwrap();
            } else if !begun {
                // The first packet in the datagram stays intact, so the client learns only the ID of its connection.
                datagram[bytes / 2] ^= 1;
                self.near.send_to(&datagram[..bytes], client).await.unwrap();
                begun = true;
            }
        }
    }
}

/// The second host does not know about the handshake with the first host. So it does not answer the packets of that
/// handshake, not even with a reset.
#[tokio::test]
async fn a_host_that_is_started_again_amid_a_handshake_is_reached() {
    let (host, user) = (Party::new(), Party::new());
    let (first, first_port) = host.listen_by(TransportChoice::Quic).await;
    let (second, second_port) = host.listen_by(TransportChoice::Quic).await;
    tokio::spawn(async move { accept(&first).await });
    let port = Succession::begin(first_port, second_port).await;
    let (accepted_in, mut accepted) = mpsc::unbounded_channel();
    let second = Arc::new(second);
    tokio::spawn(async move {
        // Later packets of the first handshake may look like the start of another one.
        while let Ok(incoming) = second.accept().await {
            let (second, accepted_in) = (Arc::clone(&second), accepted_in.clone());
            tokio::spawn(async move {
                let handshake = second.handshake(incoming, LONG, || ()).await;
                handshake.map(|channel| accepted_in.send(channel))
            });
        }
    });
    let mut near = user
        .dial_quic(port, HostPolicy::Pinned(host.fingerprint()))
        .await
        .unwrap();
    near.write_all(GREETING).await.unwrap();
    let mut far = accepted.recv().await.unwrap();
    far.read_exact(&mut [0; GREETING.len()]).await.unwrap();
}

#[test]
fn names_of_congestion_controls_are_pinned() {
    use QuicCongestion::{Bbr, Cubic, NewReno, Tolerant};
    let names = [
        (Tolerant, "tolerant"),
        (Cubic, "cubic"),
        (Bbr, "bbr"),
        (NewReno, "reno"),
    ];
    for (control, name) in names {
        assert_eq!(name.parse::<QuicCongestion>().unwrap(), control);
    }
    assert!("vegas".parse::<QuicCongestion>().is_err());
}

/// Measures how much unread data a peer can make the other side buffer.
#[tokio::test]
async fn little_is_held_of_who_is_not_let_in_and_of_a_lane_that_nobody_has_taken() {
    let (host, user) = (Party::new(), Party::new());
    let (listener, port) = host.listen_by(TransportChoice::Quic).await;
    let key = user.key_with(vec![user.certificate()]);
    let endpoint = quinn::Endpoint::client(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let connecting = connect_quic(&endpoint, port, Some(key), &[zmove_wire::PROTOCOL_NAME]);
    let dialled = async {
        let connection = connecting.await.unwrap();
        let (mut stream, answer) = connection.open_bi().await.unwrap();
        let taken = stream.write(&vec![0; 40 << 20]).await.unwrap();
        (connection, stream, answer, taken)
    };
    let (dialled, far) = tokio::join!(dialled, accept(&listener));
    let (_connection, mut stream, _answer, mut taken) = dialled;
    assert_eq!(taken, 64 << 10);
    let far = far.unwrap();
    far.control_window()();
    fill_up(&mut stream, &mut taken, 1 << 20).await;
    let mut lane = far.into_source(Cipher::Tls, SharedRate::default()).unwrap();
    assert!(lane.has_window());
    for window in [LaneWindow::Narrow, LaneWindow::Wide] {
        lane.open_window(window);
        fill_up(&mut stream, &mut taken, window.bytes() as usize).await;
    }
}

/// Writes until `bytes` bytes have been accepted in total.
async fn fill_up(stream: &mut quinn::SendStream, taken: &mut usize, bytes: usize) {
    while *taken < bytes {
        let written = tokio::time::timeout(LONG, stream.write(&vec![0; 40 << 20])).await;
        *taken += written.unwrap().unwrap();
    }
    assert_eq!(*taken, bytes);
}
