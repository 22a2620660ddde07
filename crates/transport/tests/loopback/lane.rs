//! Lanes on loopback from the greeting to the end, with TLS and in cleartext.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::AsFd,
    thread,
};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use zmove_transport::{
    Acceptor, ClearLane, Connection, FirstKey, Frame, HostPolicy, Identity, LaneError, LaneSink,
    LaneSource, SharedRate, SocketConfig, TcpDialer, TlsLane,
};
use zmove_types::{BufferPool, ItemId, StageClock};

use crate::frames::{BUFFER_BYTES, GREETING, frame, pattern};
use crate::party::LONG;

/// Returns both ends of a connection. `relay` maps the acceptor's address to the address that the dialer dials.
async fn connected(relay: impl FnOnce(SocketAddr) -> SocketAddr) -> (Connection, Connection) {
    let home = tempfile::tempdir().unwrap();
    let identity = Identity::load_or_create(home.path()).unwrap();
    let acceptor = Acceptor::on(
        TcpListener::bind("127.0.0.1:0").unwrap(),
        &identity,
        &SocketConfig::default(),
    )
    .unwrap();
    let port = relay(acceptor.local_addr().unwrap()).port();
    let policy = HostPolicy::AcceptNew(FirstKey::default());
    let dialer = TcpDialer::new(
        &identity,
        "127.0.0.1",
        port,
        policy,
        SocketConfig::default(),
    )
    .await
    .unwrap();
    let accepted = async {
        let (socket, _) = acceptor.accept_tcp().await.unwrap();
        acceptor.handshake(socket, LONG, || ()).await.unwrap()
    };
    let (dialled, accepted) = tokio::join!(dialer.dial(LONG), accepted);
    (dialled.unwrap(), accepted)
}

const SIZES: [(usize, usize); 12] = [
    (0, 0),
    (1, 0),
    (0, 1),
    (5, 16_383),
    (16_384, 16_384),
    (16_385, 16_385),
    (0, 16 * 16_384),
    (3, 17 * 16_384),
    (100, 300_000),
    (2 << 20, BUFFER_BYTES - 1),
    (0, BUFFER_BYTES),
    (0, 0),
];

fn send_all(lane: &mut dyn LaneSink) {
    let clock = StageClock::default();
    let mut watch = clock.start();
    for (number, (head, data)) in (0..).zip(SIZES) {
        lane.send(frame(number, &pattern(head), &pattern(data)), &mut watch)
            .unwrap();
    }
    lane.finish().unwrap();
}

fn receive(lane: &mut dyn LaneSource) -> Result<Option<Frame>, LaneError> {
    let clock = StageClock::default();
    lane.receive(&BufferPool::new(BUFFER_BYTES, 2), &mut clock.start())
}

fn receive_all(lane: &mut dyn LaneSource) {
    for (number, (head, data)) in (0..).zip(SIZES) {
        let frame = receive(lane).unwrap().unwrap();
        assert_eq!(frame.header.item, ItemId(number));
        assert!(
            frame.head == pattern(head) && *frame.data == pattern(data),
            "frame {number}"
        );
    }
    assert!(receive(lane).unwrap().is_none());
    assert!(receive(lane).unwrap().is_none());
}

/// Returns the source and the sink of a lane whose greeting has been sent. If `turned`, the acceptor sends.
async fn greeted(turned: bool) -> (Connection, Connection) {
    let (dialled, accepted) = connected(|address| address).await;
    let (source, mut sink) = if turned {
        (dialled, accepted)
    } else {
        (accepted, dialled)
    };
    sink.write_all(GREETING).await.unwrap();
    sink.flush().await.unwrap();
    (source, sink)
}

#[tokio::test]
async fn frames_arrive_from_the_dialler_and_from_the_acceptor() {
    for turned in [false, true] {
        let (mut source, sink) = greeted(turned).await;
        let mut sink = TlsLane::new(sink, SharedRate::default()).unwrap();
        let sender = thread::spawn(move || send_all(&mut sink));
        source.read_exact(&mut [0; GREETING.len()]).await.unwrap();
        receive_all(&mut TlsLane::new(source, SharedRate::default()).unwrap());
        sender.join().unwrap();
    }
}

#[tokio::test]
async fn frames_arrive_in_clear_from_the_dialler_and_from_the_acceptor() {
    for turned in [false, true] {
        let (mut source, sink) = greeted(turned).await;
        let mut sink = ClearLane::new(sink, SharedRate::default()).unwrap();
        // The first frame may arrive together with the greeting, or after it.
        let clock = StageClock::default();
        sink.send(frame(99, b"", b"early"), &mut clock.start())
            .unwrap();
        let sender = thread::spawn(move || send_all(&mut sink));
        source.read_exact(&mut [0; GREETING.len()]).await.unwrap();
        let mut source = ClearLane::new(source, SharedRate::default()).unwrap();
        assert_eq!(
            receive(&mut source).unwrap().unwrap().header.item,
            ItemId(99)
        );
        receive_all(&mut source);
        sender.join().unwrap();
    }
}

/// Each direction of each connection has a separate key.
#[tokio::test]
async fn what_was_said_on_another_lane_in_clear_is_refused() {
    let (one, other) = (
        connected(|address| address).await,
        connected(|address| address).await,
    );
    let mut sink = ClearLane::new(one.0, SharedRate::default()).unwrap();
    let clock = StageClock::default();
    sink.send(frame(0, b"head", b"data"), &mut clock.start())
        .unwrap();
    sink.finish().unwrap();
    let (mut said, mut back) = (Vec::new(), raw_socket(one.1));
    back.read_to_end(&mut said).unwrap();
    // The frames are sent back to their sender, and to the acceptor of another lane.
    back.write_all(&said).unwrap();
    raw_socket(&other.0).write_all(&said).unwrap();
    for mut source in [
        sink,
        ClearLane::new(other.1, SharedRate::default()).unwrap(),
    ] {
        let error = receive(&mut source).unwrap_err();
        assert!(matches!(error, LaneError::Forged), "{error:?}");
    }
}

#[tokio::test]
async fn what_tls_still_holds_is_no_part_of_a_lane_in_clear() {
    let (mut dialled, mut accepted) = connected(|address| address).await;
    dialled
        .write_all(&[GREETING, b"more"].concat())
        .await
        .unwrap();
    dialled.flush().await.unwrap();
    accepted.read_exact(&mut [0; GREETING.len()]).await.unwrap();
    assert!(matches!(
        ClearLane::new(accepted, SharedRate::default()),
        Err(LaneError::Forged)
    ));
}

#[tokio::test]
async fn broken_lane_in_clear_wakes_its_receiver() {
    let (_dialled, accepted) = connected(|address| address).await;
    let mut source = ClearLane::new(accepted, SharedRate::default()).unwrap();
    let breaker = LaneSource::breaker(&source);
    let receiver = thread::spawn(move || receive(&mut source));
    breaker.trip();
    assert!(matches!(receiver.join().unwrap(), Err(LaneError::Closed)));
}

#[tokio::test]
async fn frames_that_arrive_with_the_greeting_are_not_lost() {
    for turned in [false, true] {
        let (dialled, accepted) = connected(|address| address).await;
        let (mut source, mut sink) = if turned {
            (dialled, accepted)
        } else {
            (accepted, dialled)
        };
        // The first frame's header is in the record of the greeting. The rest of the frame is in other records of the
        // same segment.
        let early = frame(0, b"head", &pattern(5000));
        sink.write_all(&[GREETING, &early.header.encode()].concat())
            .await
            .unwrap();
        sink.write_all(&early.head).await.unwrap();
        sink.write_all(&early.data).await.unwrap();
        sink.flush().await.unwrap();
        let mut sink = TlsLane::new(sink, SharedRate::default()).unwrap();
        let clock = StageClock::default();
        for number in 1..100 {
            sink.send(frame(number, b"head", &pattern(700)), &mut clock.start())
                .unwrap();
        }
        sink.finish().unwrap();
        // All data was sent before the first byte is read.
        source.read_exact(&mut [0; GREETING.len()]).await.unwrap();
        let mut source = TlsLane::new(source, SharedRate::default()).unwrap();
        for number in 0..100 {
            let frame = receive(&mut source).unwrap().unwrap();
            assert_eq!(
                (frame.header.item, &frame.head[..]),
                (ItemId(number), &b"head"[..])
            );
            assert!(*frame.data == pattern(if number == 0 { 5000 } else { 700 }));
        }
        assert!(receive(&mut source).unwrap().is_none());
    }
}

#[tokio::test]
async fn lane_that_ends_without_a_word_is_closed() {
    for bytes in [0, 10, 72] {
        let (mut dialled, accepted) = connected(|address| address).await;
        let header = frame(0, b"head", b"data").header.encode();
        dialled.write_all(&header[..bytes]).await.unwrap();
        dialled.flush().await.unwrap();
        socket2::SockRef::from(&dialled)
            .shutdown(Shutdown::Write)
            .unwrap();
        let error =
            receive(&mut TlsLane::new(accepted, SharedRate::default()).unwrap()).unwrap_err();
        assert!(
            matches!(error, LaneError::Closed),
            "after {bytes} bytes: {error:?}"
        );
    }
}

#[tokio::test]
async fn lane_that_ends_within_a_frame_is_closed() {
    for bytes in [1, 71, 72, 75] {
        let (mut dialled, accepted) = connected(|address| address).await;
        let header = frame(0, b"head", b"data").header.encode();
        let sent = [&header[..], b"head", b"data"].concat();
        dialled.write_all(&sent[..bytes]).await.unwrap();
        dialled.shutdown().await.unwrap();
        let error =
            receive(&mut TlsLane::new(accepted, SharedRate::default()).unwrap()).unwrap_err();
        assert!(
            matches!(error, LaneError::Closed),
            "after {bytes} bytes: {error:?}"
        );
    }
}

#[tokio::test]
async fn lane_whose_bytes_are_changed_on_the_way_is_refused() {
    let (dialled, accepted) = connected(flip_one_bit_late).await;
    let mut sink = TlsLane::new(dialled, SharedRate::default()).unwrap();
    let sender = thread::spawn(move || {
        let clock = StageClock::default();
        // The other end may have closed the connection before all data is sent.
        let sent = sink.send(frame(0, b"", &pattern(BUFFER_BYTES)), &mut clock.start());
        drop(sent.and_then(|()| sink.finish()));
    });
    let error = receive(&mut TlsLane::new(accepted, SharedRate::default()).unwrap()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "data lane: a TLS record failed authentication"
    );
    sender.join().unwrap();
}

#[tokio::test]
async fn broken_lane_wakes_its_receiver() {
    let (_dialled, accepted) = connected(|address| address).await;
    let mut source = TlsLane::new(accepted, SharedRate::default()).unwrap();
    let breaker = LaneSource::breaker(&source);
    let receiver = thread::spawn(move || receive(&mut source));
    breaker.trip();
    assert!(matches!(receiver.join().unwrap(), Err(LaneError::Closed)));
}

/// Returns the socket below a connection, for reading and writing without TLS.
fn raw_socket(connection: impl AsFd) -> TcpStream {
    let socket = TcpStream::from(connection.as_fd().try_clone_to_owned().unwrap());
    socket.set_nonblocking(false).unwrap();
    socket
}

/// Starts a relay that flips a bit of the dialer's data long after the handshake.
fn flip_one_bit_late(acceptor: SocketAddr) -> SocketAddr {
    const FLIPPED: usize = 1 << 20;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut near, _) = listener.accept().unwrap();
        let mut far = TcpStream::connect(acceptor).unwrap();
        let (mut back_in, mut back_out) = (far.try_clone().unwrap(), near.try_clone().unwrap());
        thread::spawn(move || std::io::copy(&mut back_in, &mut back_out));
        let (mut bytes, mut passed) = (vec![0; 1 << 16], 0);
        loop {
            let taken = near.read(&mut bytes).unwrap();
            if (passed..passed + taken).contains(&FLIPPED) {
                bytes[FLIPPED - passed] ^= 1;
            }
            passed += taken;
            if taken == 0 || far.write_all(&bytes[..taken]).is_err() {
                break;
            }
        }
    });
    address
}
