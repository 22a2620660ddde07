//! Path checks: exchanges of messages that are larger than any packet.

use tokio::net::TcpListener;
use zmove_transport::{
    AcceptError, Acceptor, ChannelDialer, DialOptions, HostPolicy, SocketConfig, TransportChoice,
};

use crate::party::{LONG, Party};

const LOOPBACK: &str = "127.0.0.1";

async fn dialer(host: &Party, port: u16) -> ChannelDialer {
    let reach = DialOptions {
        transport: TransportChoice::Tcp,
        ..DialOptions::default()
    };
    let policy = HostPolicy::Pinned(host.fingerprint());
    ChannelDialer::new(&Party::new().identity, LOOPBACK, port, policy, reach)
        .await
        .unwrap()
}

#[tokio::test]
async fn large_messages_arrive_in_segments_of_any_size() {
    let listener = std::net::TcpListener::bind((LOOPBACK, 0)).unwrap();
    let host = Party::new();
    let acceptor = Acceptor::on(listener, &host.identity, &SocketConfig::default()).unwrap();
    let dialer = dialer(&host, acceptor.local_addr().unwrap().port()).await;
    for segment_bytes in [None, Some(1_220)] {
        let accepted = async {
            let (socket, _) = acceptor.accept_tcp().await.unwrap();
            acceptor.handshake(socket, LONG, || ()).await
        };
        let (arrived, accepted) = tokio::join!(dialer.arrives(segment_bytes, LONG), accepted);
        assert!(arrived, "{segment_bytes:?}");
        assert!(matches!(accepted, Err(AcceptError::Unused)), "{accepted:?}");
    }
    assert_eq!(dialer.black_hole(), None);
}

#[tokio::test]
async fn a_host_that_closes_the_connection_is_no_black_hole() {
    let listener = TcpListener::bind((LOOPBACK, 0)).await.unwrap();
    let dialer = dialer(&Party::new(), listener.local_addr().unwrap().port()).await;
    tokio::spawn(async move {
        loop {
            drop(listener.accept().await);
        }
    });
    assert!(!dialer.arrives(None, LONG).await);
    dialer.check_path().await;
    assert_eq!(dialer.black_hole(), None);
}
