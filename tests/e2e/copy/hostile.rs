//! A host that says it has sent, and has not.

use std::net::SocketAddr;
use std::path::Path;

use zmove_transport::{Channel, Fingerprint, control_pair};
use zmove_wire::{
    CopyState, Greeting, Receipt, Relay, Role, SignedReceipt, ToReceiver, ToSender, TransferAccount,
    decode_message, encode_message,
};

use crate::host::host;

/// A host that takes any order for the one that this receipt is of, and shows that.
pub(super) fn lying_sender(home: &Path, receipt: SignedReceipt) -> (SocketAddr, Fingerprint) {
    host(home, move |channel, greeting| lie(channel, greeting, receipt.clone()))
}

async fn lie(channel: Channel, greeting: Greeting, receipt: SignedReceipt) {
    let (mut reader, mut writer) = control_pair(channel);
    reader.receive().await.unwrap().unwrap();
    writer.greet(&Greeting::new(Role::Control, greeting.transfer)).await.unwrap();
    let read: Receipt = decode_message(&receipt.receipt).unwrap();
    let follows = ToSender::Copy(CopyState::Follows { id: read.id });
    writer.send(&encode_message(&follows)).await.unwrap();
    let account = Relay::Account(Box::new(TransferAccount { files: 1, ..TransferAccount::default() }));
    for relay in [Relay::Receipt(receipt), account] {
        // a client that does not believe it is no longer there
        drop(writer.send(&encode_message(&ToReceiver::Relay(relay))).await);
    }
    drop(writer.finish().await);
    drop(reader.receive().await);
}
