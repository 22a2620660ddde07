//! Path checks: exchanges of messages that are larger than any packet.

use tokio::net::TcpListener;
use zmove_transport::{
    AcceptError, Acceptor, ChannelDialler, HostPolicy, Reach, SocketConfig, TransportChoice,
};

use crate::party::{LONG, Party};

const LOOPBACK: &str = "127.0.0.1";

async fn dialler(host: &Party, port: u16) -> ChannelDialler {
    let reach = Reach {
        transport: TransportChoice::Tcp,
        ..Reach::default()
    };
    let policy = HostPolicy::Pinned(host.fingerprint());
    ChannelDialler::new(&Party::new().identity, LOOPBACK, port, policy, reach)
        .await
        .unwrap()
}

#[tokio::test]
async fn large_messages_arrive_in_segments_of_any_size() {
    let listener = std::net::TcpListener::bind((LOOPBACK, 0)).unwrap();
    let host = Party::new();
    let acceptor = Acceptor::on(listener, &host.identity, &SocketConfig::default()).unwrap();
    let dialler = dialler(&host, acceptor.local_addr().unwrap().port()).await;
    for segment_bytes in [None, Some(1_220)] {
        let accepted = async {
            let (socket, _) = acceptor.accept_tcp().await.unwrap();
            acceptor.handshake(socket, LONG, || ()).await
        };
        let (arrived, accepted) = tokio::join!(dialler.arrives(segment_bytes, LONG), accepted);
        assert!(arrived, "{segment_bytes:?}");
        assert!(matches!(accepted, Err(AcceptError::Unused)), "{accepted:?}");
    }
    assert_eq!(dialler.black_hole(), None);
}

#[tokio::test]
async fn a_host_that_closes_the_connection_is_no_black_hole() {
    let listener = TcpListener::bind((LOOPBACK, 0)).await.unwrap();
    let dialler = dialler(&Party::new(), listener.local_addr().unwrap().port()).await;
    tokio::spawn(async move {
        loop {
            drop(listener.accept().await);
        }
    });
    assert!(!dialler.arrives(None, LONG).await);
    dialler.check_path().await;
    assert_eq!(dialler.black_hole(), None);
}
