//! The messages of a peer, with the memory that is reserved for them from decoding until they are answered.

use std::cell::Cell;
use std::sync::Arc;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;
use zmove_transport::{ControlReader, Inbox};
use zmove_types::{ALLOCATION_BYTES, Lock};
use zmove_wire::{
    BatchEntry, DirectoryGroup, EntryGroup, NameRange, RemoveGroup, SourceEntry, ToReceiver,
    WireError, decode_message_within,
};

use crate::rights::quota::{Charge, Quota};

/// A message and the memory reserved for it.
#[derive(Debug)]
pub(crate) struct ChargedMessage {
    pub(crate) message: ToReceiver,
    pub(crate) held: Charge,
}

/// The messages of one session, in order of arrival.
pub(crate) type Messages = Inbox<ChargedMessage>;

/// Reads the messages of a session and charges `quota` for their memory. If the opening uses a grant, the session
/// replaces `quota` with the quota of the key that issued the grant.
///
/// The session ends if the key has no memory left for a message. It also ends if the peer sends more than
/// `openings_max` openings: 1, or 0 if this side has ordered the transfer. A second opening would keep its names in
/// memory. The names in the first opening are dropped once the target is open.
pub(crate) fn messages(
    reader: ControlReader,
    quota: Arc<Lock<Quota>>,
    openings_max: usize,
) -> Messages {
    let openings = Cell::new(0);
    let decode = move |bytes: &[u8]| {
        // The raw bytes are charged first, so that a message is decoded only if there is memory for it.
        let mut held = quota.lock().charge_memory(bytes.len())?;
        let room = |strings| held.grow(ELEMENT_BYTES * strings);
        let message = decode_off_runtime(bytes.len(), || decode_message_within(bytes, room))?;
        if matches!(message, ToReceiver::Open(_))
            && openings.replace(openings.get() + 1) >= openings_max
        {
            return Err(WireError::OutOfOrder {
                what: "a second opening",
            });
        }
        Ok::<_, WireError>(ChargedMessage { message, held })
    };
    reader.into_inbox(decode, MESSAGES_MAX)
}

/// Decodes a message on this thread. While it decodes a large message, another thread runs the other tasks of the
/// runtime. So the operating system shares the cores among all decoding threads. The runtime's blocking threads, which
/// all keys share, are not used.
fn decode_off_runtime<T>(bytes: usize, decode: impl FnOnce() -> T) -> T {
    let is_shared = || Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread;
    if bytes > DECODED_AT_ONCE_BYTES_MAX && is_shared() {
        block_in_place(decode)
    } else {
        decode()
    }
}

/// Maximum size of a message that is decoded without moving other tasks to another thread. This is about 300 µs of
/// work.
const DECODED_AT_ONCE_BYTES_MAX: usize = 64 << 10;

/// Maximum number of messages in the queue.
const MESSAGES_MAX: usize = 16;

/// Memory used by a list element in a message or batch, in bytes. It includes the fields of the element and the
/// allocator's overhead, but not the bytes of its name or path.
pub(crate) const ELEMENT_BYTES: usize = 136;

const _: () = {
    let elements = [
        size_of::<EntryGroup>(),
        size_of::<SourceEntry>(),
        size_of::<NameRange>(),
        size_of::<RemoveGroup>(),
        size_of::<DirectoryGroup>(),
        size_of::<BatchEntry>(),
    ];
    let mut at = 0;
    while at < elements.len() {
        assert!(elements[at] + ALLOCATION_BYTES <= ELEMENT_BYTES);
        at += 1;
    }
};

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt as _;
    use zmove_types::{ByteCount, Name, RelPath};
    use zmove_wire::{Open, Question, Request, TargetShape, encode_message};

    fn open(names: usize) -> Open {
        let name = |number| Name::from_bytes(format!("{number}").as_bytes()).unwrap();
        Open {
            shape: TargetShape::Directory {
                tops: (0..names).map(name).collect(),
            },
            ..Open::new(Vec::new(), [0; 16])
        }
    }

    /// Reads messages like a session with this quota.
    async fn read(said: &[ToReceiver], quota: &Quota) -> Vec<Result<ChargedMessage, String>> {
        read_with(1, said, quota).await
    }

    /// Reads messages like a session whose peer may send `openings_max` openings.
    async fn read_with(
        openings_max: usize,
        said: &[ToReceiver],
        quota: &Quota,
    ) -> Vec<Result<ChargedMessage, String>> {
        let (mut peer, own) = tokio::io::duplex(1 << 20);
        let quota_now = Arc::new(Lock::new(quota.clone()));
        let mut inbox = messages(
            zmove_transport::control_pair(own).0,
            quota_now,
            openings_max,
        );
        for message in said {
            peer.write_all(&encode_message(message)).await.unwrap();
        }
        peer.shutdown().await.unwrap();
        let mut read = Vec::new();
        while let Some(message) = inbox.recv().await {
            read.push(message.map_err(|error| error.to_string()));
        }
        read
    }

    #[tokio::test]
    async fn an_opening_is_booked_and_said_once() {
        let opening = ToReceiver::Open(open(1000));
        let quota = Quota::default();
        let read = read(&[opening.clone(), opening], &quota).await;
        let [Ok(_), Err(error)] = &read[..] else {
            panic!("{read:?}")
        };
        assert!(
            error.ends_with("a second opening is out of order"),
            "{error}"
        );
        let held = quota.memory_held();
        assert!(
            (1000 * ELEMENT_BYTES..1100 * ELEMENT_BYTES).contains(&held),
            "{held}"
        );
        drop(read);
        assert_eq!(quota.memory_held(), 0);
    }

    #[tokio::test]
    async fn a_peer_that_was_asked_to_send_opens_nothing() {
        let quota = Quota::default();
        let said = [
            ToReceiver::LaneLost { items: vec![] },
            ToReceiver::Open(open(1)),
        ];
        let read = read_with(0, &said, &quota).await;
        let [Ok(_), Err(error)] = &read[..] else {
            panic!("{read:?}")
        };
        assert!(
            error.ends_with("a second opening is out of order"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn messages_are_booked_on_the_quota_that_is_the_session_s_by_then() {
        let quotas = [Quota::default(), Quota::default()];
        let current = Arc::new(Lock::new(quotas[0].clone()));
        let (mut peer, own) = tokio::io::duplex(1 << 20);
        let mut inbox = messages(zmove_transport::control_pair(own).0, current.clone(), 1);
        let mut held = Vec::new();
        for expected in [[true, false], [true, true]] {
            let message = ToReceiver::Announce {
                items: 0,
                mismatches: 0,
            };
            peer.write_all(&encode_message(&message)).await.unwrap();
            held.push(inbox.recv().await.unwrap().unwrap());
            assert_eq!(
                quotas.each_ref().map(|quota| quota.memory_held() > 0),
                expected
            );
            *current.lock() = quotas[1].clone();
        }
    }

    /// There is enough memory for the raw bytes, but not for the decoded message.
    #[tokio::test]
    async fn nothing_is_decoded_for_which_there_is_no_room() {
        let limits = crate::Limits {
            memory_per_identity: ByteCount(100_000),
            ..crate::Limits::default()
        };
        let quota = crate::rights::quota::Quotas::default()
            .of(zmove_transport::Fingerprint([1; 32]), &limits);
        let listing = |names| {
            let names = vec![Name::from_bytes(b"a").unwrap(); names];
            let range = NameRange {
                directory: RelPath::root(),
                after: None,
                names,
                open: true,
            };
            ToReceiver::Request(Request {
                number: 1,
                question: Question::Extraneous(vec![range]),
            })
        };
        let read = read(&[listing(600), listing(600)], &quota).await;
        let [Ok(_), Err(error)] = &read[..] else {
            panic!("{read:?}")
        };
        assert!(error.contains("limits.memory_per_identity"), "{error}");
        drop(read);
        assert_eq!(quota.memory_held(), 0);
    }
}
