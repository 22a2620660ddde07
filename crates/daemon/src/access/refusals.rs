//! How refusals are sent, and to how many peers at a time.
//!
//! A refused peer keeps a descriptor until it has taken the answer, and need not take it. **Invariant:** of the peers
//! whose key is authorized few are sent a refusal at a time, of each key and in all ([`Admissions::tell`]); the others
//! are closed without an answer. A peer with an unknown key is refused while it still counts as a pending handshake.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use zmove_transport::Channel;
use zmove_types::TransferId;
use zmove_wire::{Greeting, Refusal, RefusalCode, Role, ToSender, encode_message};

use crate::access::admission::Admissions;

/// How long a refused peer may take to take the refusal.
pub(crate) const REFUSAL_TIMEOUT: Duration = Duration::from_secs(10);
/// The most bytes that a refused peer may still send before it is cut off.
const DRAIN_BYTES_MAX: u64 = 64 << 10;

/// The refusal of what a peer may not do.
pub(crate) fn denied(text: impl Into<String>) -> Refusal {
    Refusal::new(RefusalCode::Denied, text)
}

/// The refusal of an opening that is not the one that was granted.
pub(crate) fn granted_otherwise() -> Refusal {
    denied("the grant is for another target, or for other options")
}

/// The refusal of a peer whose rights cannot be read.
pub(crate) fn rights_unreadable() -> Refusal {
    Refusal::new(
        RefusalCode::Busy,
        "the receiver cannot read its authorized_keys; see its log",
    )
}

/// Refuses a peer whose key is authorized, without looking at what it sends.
pub(crate) async fn refuse_peer(admissions: &Admissions, channel: Channel, refusal: Refusal) {
    if let Some(_told) = admissions.tell(channel.peer()) {
        refuse(channel, refusal).await;
    }
}

/// Sends `answer` to a peer whose key is authorized, without looking at what it sends, and closes.
pub(crate) async fn say_and_close(admissions: &Admissions, channel: Channel, answer: &[u8]) {
    if let Some(_told) = admissions.tell(channel.peer()) {
        write_and_close(channel, answer).await;
    }
}

/// Refuses a peer that is counted elsewhere, such as a pending handshake.
pub(crate) async fn refuse(channel: Channel, refusal: Refusal) {
    let mut answer = Greeting::new(Role::Control, TransferId([0; 16]))
        .encode()
        .to_vec();
    answer.extend(encode_message(&ToSender::Refused(refusal)));
    write_and_close(channel, &answer).await;
}

/// Sends `answer` and closes. What the peer sends is read and thrown away: a close with unread data resets the
/// connection, which can destroy the answer on its way.
async fn write_and_close(mut stream: Channel, answer: &[u8]) {
    let said = async {
        stream.write_all(answer).await?;
        stream.shutdown().await?;
        tokio::io::copy(&mut stream.take(DRAIN_BYTES_MAX), &mut tokio::io::sink()).await
    };
    let _in_time = tokio::time::timeout(REFUSAL_TIMEOUT, said).await;
}
