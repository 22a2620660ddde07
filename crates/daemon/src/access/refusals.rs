//! Sends refusals to peers, with a limit on the number sent concurrently.
//!
//! A refused peer holds a descriptor until it has read the refusal, and it may never read it. **Invariant:** the number
//! of refusals being sent to authorized peers is bounded, per key and in total ([`Admissions::admit_refusal`]). Further
//! peers are closed without a refusal. A peer with an unknown key is refused while it still counts as a pending
//! handshake.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use zmove_transport::Channel;
use zmove_types::TransferId;
use zmove_wire::{Greeting, Refusal, RefusalCode, Role, ToSender, encode_message};

use crate::access::admission::Admissions;

/// Maximum time for a refused peer to read the refusal.
pub(crate) const REFUSAL_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of bytes that a refused peer may still send before its connection is closed.
const DRAIN_BYTES_MAX: u64 = 64 << 10;

/// Returns the refusal for an action that the peer is not permitted to take.
pub(crate) fn denied(text: impl Into<String>) -> Refusal {
    Refusal::new(RefusalCode::Denied, text)
}

/// Returns the refusal for an opening other than the granted one.
pub(crate) fn granted_otherwise() -> Refusal {
    denied("the grant is for another target or other options")
}

/// Returns the refusal for a peer whose rights cannot be read.
pub(crate) fn rights_unreadable() -> Refusal {
    Refusal::new(
        RefusalCode::Busy,
        "the receiver cannot read its authorized_keys; see its log",
    )
}

/// Refuses an authorized peer without reading its messages.
pub(crate) async fn refuse_peer(admissions: &Admissions, channel: Channel, refusal: Refusal) {
    if let Some(_told) = admissions.admit_refusal(channel.peer()) {
        refuse(channel, refusal).await;
    }
}

/// Sends `answer` to an authorized peer without reading its messages, and closes the connection.
pub(crate) async fn send_and_close(admissions: &Admissions, channel: Channel, answer: &[u8]) {
    if let Some(_told) = admissions.admit_refusal(channel.peer()) {
        write_and_close(channel, answer).await;
    }
}

/// Refuses a peer whose connection is counted against another limit, for example as a pending handshake.
pub(crate) async fn refuse(channel: Channel, refusal: Refusal) {
    let mut answer = Greeting::new(Role::Control, TransferId([0; 16]))
        .encode()
        .to_vec();
    answer.extend(encode_message(&ToSender::Refused(refusal)));
    write_and_close(channel, &answer).await;
}

/// Sends `answer` and closes the connection. Incoming data is read and discarded, because closing a connection with
/// unread data resets it and can destroy the answer in transit.
async fn write_and_close(mut stream: Channel, answer: &[u8]) {
    let said = async {
        stream.write_all(answer).await?;
        stream.shutdown().await?;
        tokio::io::copy(&mut stream.take(DRAIN_BYTES_MAX), &mut tokio::io::sink()).await
    };
    let _in_time = tokio::time::timeout(REFUSAL_TIMEOUT, said).await;
}
