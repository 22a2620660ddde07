//! A host that says it has sent, and has not.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use zmove_transport::{Fingerprint, Identity, Listener, SocketConfig, TransportChoice, control_pair};
use zmove_wire::{
    CopyState, Greeting, Relay, Role, SignedReceipt, ToReceiver, ToSender, TransferAccount, decode_message,
    encode_message,
};

/// A host that takes any order for the one that this receipt is of, and shows that.
pub(super) fn lying_sender(home: &Path, receipt: SignedReceipt) -> (SocketAddr, Fingerprint) {
    let identity = Identity::load_or_create(home).unwrap();
    let key = identity.fingerprint();
    let (address_in, address) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (socket, listen) = (SocketConfig::default(), "127.0.0.1:0".parse().unwrap());
            let listener = Listener::bind(listen, &identity, TransportChoice::Tcp, &socket).await.unwrap();
            address_in.send(listener.local_addr().unwrap()).unwrap();
            loop {
                let incoming = listener.accept().await.unwrap();
                let patience = Duration::from_secs(10);
                let Ok(mut channel) = listener.handshake_telling(incoming, patience, || ()).await else {
                    continue;
                };
                let mut greeting = [0; Greeting::BYTES];
                channel.read_exact(&mut greeting).await.unwrap();
                let transfer = Greeting::decode(&greeting).unwrap().transfer;
                let (mut reader, mut writer) = control_pair(channel);
                reader.receive().await.unwrap().unwrap();
                writer.greet(&Greeting::new(Role::Control, transfer)).await.unwrap();
                let read: zmove_wire::Receipt = decode_message(&receipt.receipt).unwrap();
                let follows = ToSender::Copy(CopyState::Follows { id: read.id });
                writer.send(&encode_message(&follows)).await.unwrap();
                let account =
                    Relay::Account(Box::new(TransferAccount { files: 1, ..TransferAccount::default() }));
                for relay in [Relay::Receipt(receipt.clone()), account] {
                    // a client that does not believe it is no longer there
                    drop(writer.send(&encode_message(&ToReceiver::Relay(relay))).await);
                }
                drop(writer.finish().await);
                drop(reader.receive().await);
            }
        });
    });
    (address.recv().unwrap(), key)
}
