//! Peers in this process that speak the protocol themselves: a host and a client.

use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, mpsc};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;
use zmove_transport::{
    Channel, ChannelDialer, DialOptions, Fingerprint, HostPolicy, Identity, Inbox, Listener,
    SocketConfig, TransportChoice,
};
use zmove_wire::{Greeting, ToSender};

use crate::support::daemon::Daemon;
use crate::support::harness::PATIENCE;
use crate::support::quiet_machine::share_machine;

/// Listens with the key in `home` and calls `take` with each connection that has sent a greeting. An unneeded lane
/// sends no greeting and is closed.
pub(crate) fn host<Taking>(
    home: &Path,
    take: impl Fn(Channel, Greeting) -> Taking + Send + Sync + 'static,
) -> (SocketAddr, Fingerprint)
where
    Taking: Future<Output = ()> + Send + 'static,
{
    share_machine();
    let identity = Identity::load_or_create(home).unwrap();
    let key = identity.fingerprint();
    let (address_in, address) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let (socket, listen) = (SocketConfig::default(), "127.0.0.1:0".parse().unwrap());
            let listener = Listener::bind(listen, &identity, TransportChoice::Tcp, &socket)
                .await
                .unwrap();
            address_in.send(listener.local_addr().unwrap()).unwrap();
            let (listener, take) = (Arc::new(listener), Arc::new(take));
            loop {
                let incoming = listener.accept().await.unwrap();
                let (listener, take) = (Arc::clone(&listener), Arc::clone(&take));
                tokio::spawn(async move {
                    let channel = listener.handshake(incoming, PATIENCE, || ()).await;
                    let Ok(mut channel) = channel else { return };
                    let mut greeting = [0; Greeting::BYTES];
                    if channel.read_exact(&mut greeting).await.is_ok() {
                        take(channel, Greeting::decode(&greeting).unwrap()).await;
                    }
                });
            }
        });
    });
    (address.recv().unwrap(), key)
}

/// Dials a daemon as `identity` and sends a greeting.
pub(crate) async fn greet(
    daemon: &Daemon,
    identity: &Identity,
    transport: TransportChoice,
    greeting: Greeting,
) -> Channel {
    let policy = HostPolicy::Pinned(daemon.fingerprint);
    let port = daemon.address.port();
    let reach = DialOptions {
        transport,
        ..DialOptions::default()
    };
    let dialer = ChannelDialer::new(identity, "127.0.0.1", port, policy, reach);
    let mut channel = dialer.await.unwrap().dial(PATIENCE).await.unwrap();
    channel.write_all(&greeting.encode()).await.unwrap();
    channel.flush().await.unwrap();
    channel
}

/// Reads the answers of a daemon in a task until the connection ends or the receiver of the answers is dropped.
pub(crate) fn read_answers(
    mut inbox: Inbox<ToSender>,
) -> (mpsc::Receiver<ToSender>, JoinHandle<()>) {
    let (told, answers) = mpsc::channel();
    let reading = tokio::spawn(async move {
        while let Some(Ok(answer)) = inbox.recv().await
            && told.send(answer).is_ok()
        {}
    });
    (answers, reading)
}
