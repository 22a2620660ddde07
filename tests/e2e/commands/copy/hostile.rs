//! Hosts that report a copy that did not take place, and clients that check the results of hosts.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use zmove_transport::{
    Channel, ControlReader, ControlWriter, Fingerprint, Identity, Signed, control_pair,
};
use zmove_types::{Counters, Hex};
use zmove_wire::{
    CopyResult, CopyState, EndedCopy, Greeting, HostAddress, Receipt, Relay, Role, SignedReceipt,
    Summary, ToReceiver, ToSender, ToSource, decode_message, encode_message,
};

use super::World;
use crate::support::host::host;

fn one_file() -> Counters {
    Counters {
        files: 1,
        ..Counters::default()
    }
}

/// Starts a host that accepts any order as the one for which `receipt` was made, and presents the receipt.
pub(super) fn lying_sender(home: &Path, receipt: SignedReceipt) -> (SocketAddr, Fingerprint) {
    host(home, move |channel, greeting| {
        lie(channel, greeting, receipt.clone())
    })
}

/// Receives an order and answers with a greeting.
async fn take_order(
    channel: Channel,
    greeting: Greeting,
) -> (ControlReader, ControlWriter, Vec<u8>) {
    let (mut reader, mut writer) = control_pair(channel);
    let order = reader.receive().await.unwrap().unwrap();
    let ours = Greeting::new(Role::Control, greeting.transfer);
    writer.greet(&ours).await.unwrap();
    (reader, writer, order)
}

async fn lie(channel: Channel, greeting: Greeting, receipt: SignedReceipt) {
    let (mut reader, mut writer, _) = take_order(channel, greeting).await;
    let read: Receipt = decode_message(&receipt.receipt).unwrap();
    let follows = ToSender::Copy(CopyState::Follows { id: read.id });
    writer.send(&encode_message(&follows)).await.unwrap();
    // A client that rejects the account has closed the connection.
    drop(writer.send(&all_done(Some(receipt))).await);
    drop(writer.finish().await);
    drop(reader.receive().await);
}

/// Encodes the account of a copy of one file, with this receipt.
fn all_done(receipt: Option<SignedReceipt>) -> Vec<u8> {
    let summary = Summary {
        counters: one_file(),
        receipt: receipt.map(Box::new),
        ..Summary::default()
    };
    encode_message(&ToReceiver::Relay(Relay::Account(Box::new(summary.into()))))
}

/// Accepts an order, sends no data, and reports that all is done, with this receipt of the target's host.
async fn take_and_lie(
    channel: Channel,
    greeting: Greeting,
    receipt: impl Fn([u8; 16]) -> Option<SignedReceipt>,
) {
    let (mut reader, mut writer, order) = take_order(channel, greeting).await;
    let Ok(ToSource::Copy(order)) = decode_message(&order) else {
        return;
    };
    writer
        .send(&encode_message(&ToSender::Copy(CopyState::Ready)))
        .await
        .unwrap();
    // Receives the grant.
    reader.receive().await.unwrap().unwrap();
    drop(writer.send(&all_done(receipt(order.id))).await);
    drop(writer.finish().await);
    drop(reader.receive().await);
}

#[test]
fn the_exit_code_of_a_copy_follows_the_signed_receipt() {
    let world = World::new();
    let site = &world.site;
    let identity = |home: &str| Arc::new(Identity::load_or_create(&site.path(home)).unwrap());
    let (target, other) = (identity("server"), identity("other"));
    let cases = [
        (Some((&target, 0)), 0),
        (None, 12),
        (Some((&other, 0)), 12),
        (Some((&target, 1)), 23),
    ];
    for (number, (receipt, exit)) in cases.into_iter().enumerate() {
        let receipt = receipt.map(|(identity, faults)| (Arc::clone(identity), faults));
        let (address, key) = host(
            &site.path(&format!("liar{number}")),
            move |channel, greeting| {
                let receipt = receipt.clone();
                take_and_lie(channel, greeting, move |id| {
                    receipt
                        .as_ref()
                        .map(|(identity, faults)| signed(identity, id, *faults))
                })
            },
        );
        site.pin(&address, key);
        let receiver = format!("{}:", world.receiver.address);
        let copy = site.zmove(&["copy", "--timeout", "0", &format!("{address}:"), &receiver]);
        let outcome = copy.outcome();
        assert_eq!(
            outcome.code,
            Some(exit),
            "case {number}: {}",
            outcome.stderr
        );
    }
}

/// Starts a host that reports this result for every copy.
fn host_with_a_result(home: &Path, ended: EndedCopy) -> (SocketAddr, Fingerprint) {
    host(home, move |channel, greeting| {
        tell(channel, greeting, ended.clone())
    })
}

async fn tell(channel: Channel, greeting: Greeting, ended: EndedCopy) {
    let (mut reader, mut writer, _) = take_order(channel, greeting).await;
    let result = ToSender::Result(CopyResult::Ended(Box::new(ended)));
    writer.send(&encode_message(&result)).await.unwrap();
    drop(writer.finish().await);
    drop(reader.receive().await);
}

const ID: [u8; 16] = [7; 16];

fn signed(identity: &Identity, id: [u8; 16], faults: u64) -> SignedReceipt {
    let (client, source, target) = ([1; 32], [2; 32], Vec::new());
    let receipt = Receipt {
        id,
        client,
        source,
        target,
        files: 1,
        bytes: 1,
        faults,
        ended: 1,
    };
    let receipt = encode_message(&receipt)[4..].to_vec();
    let Signed {
        certificate,
        signature,
    } = identity.sign(&receipt).unwrap();
    SignedReceipt {
        receipt,
        certificate,
        signature,
    }
}

/// `zmove result` ends with the exit code of the copy.
#[test]
fn a_result_is_a_success_only_where_nothing_is_missing_and_the_target_s_host_has_signed() {
    let world = World::new();
    let site = &world.site;
    let identity = Identity::load_or_create(&site.path("server")).unwrap();
    let to = HostAddress {
        host: "127.0.0.1".into(),
        port: world.receiver.address.port(),
    };
    let account = |is_preview, change: fn(&mut Counters)| {
        let mut counters = one_file();
        change(&mut counters);
        Summary {
            counters,
            is_preview,
            ..Summary::default()
        }
    };
    let well = || account(false, |_| ());
    let cases = [
        (well(), Some(0), 0),
        (well(), None, 12),
        (well(), Some(1), 23),
        (account(false, |counters| counters.failed = 1), Some(1), 23),
        (account(false, |counters| counters.failed = 1), None, 23),
        (
            account(false, |counters| counters.source_changed_kept = 1),
            Some(0),
            23,
        ),
        (
            account(false, |counters| counters.max_delete_kept = 1),
            Some(0),
            25,
        ),
        (account(true, |_| ()), None, 0),
        (account(true, |counters| counters.changed = 1), None, 6),
        (account(true, |counters| counters.removed = 1), None, 6),
    ];
    for (number, (summary, faults, exit)) in cases.into_iter().enumerate() {
        let receipt = faults.map(|faults| Box::new(signed(&identity, ID, faults)));
        let summary = Summary { receipt, ..summary };
        let ended = EndedCopy {
            to: to.clone(),
            ended: Ok(summary.into()),
            strict: false,
        };
        let (address, key) = host_with_a_result(&site.path(&format!("host{number}")), ended);
        site.pin(&address, key);
        site.zmove(&["result", &Hex(&ID).to_string(), &address.to_string()])
            .outcome()
            .expect(exit);
    }
}
