//! The messages of a copy between two other hosts: a client orders it from the host that has the sources, and brings
//! that host a grant of the one that has the target.
//!
//! The client asks as a receiver that dials ([`ToSource`](super::ToSource)). **Invariant:** a grant is worth something
//! only to the holder of the key that it names, for the opening that it holds.

use serde::{Deserialize, Serialize};

use super::{Open, Refusal, SourcePath, TransferAccount, bytes, fetch::Fetch, list};
use crate::limits::{
    CERTIFICATE_BYTES_MAX, FETCH_SOURCES_MAX, REASON_CHARS_MAX, RECEIPT_BYTES_MAX,
    SIGNATURE_BYTES_MAX,
};

/// The secret by which a grant is found.
pub type GrantToken = [u8; 32];

/// The order for a copy, to the host that has the sources.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyOrder {
    /// The id of the copy, by which it is found again.
    pub id: [u8; 16],
    /// What is to be sent and how, with the target on the other host; its lanes are without meaning.
    pub fetch: Fetch,
    /// The host that has the target.
    pub to: Place,
    /// The number of lanes; `None`: by the path.
    pub streams: Option<u16>,
    /// The transport.
    pub transport: TransportChoice,
    /// Whether lanes are in clear.
    pub clear: bool,
    /// How long the host with the target is dialled again once connections are lost, in seconds.
    pub patience_secs: u64,
}

impl CopyOrder {
    /// The order as it would be said again: all but its id.
    #[must_use]
    pub fn anew(&self) -> Self {
        Self {
            id: [0; 16],
            ..self.clone()
        }
    }
}

/// A daemon, as a user would name it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The host's name or address.
    #[serde(
        serialize_with = "bytes::cut::<REASON_CHARS_MAX, _>",
        deserialize_with = "bytes::text::<REASON_CHARS_MAX, _>"
    )]
    pub host: String,
    /// The daemon's port.
    pub port: u16,
}

/// The transports that may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TransportChoice {
    /// TCP, and QUIC where that cannot be connected.
    #[default]
    Auto,
    /// TCP alone.
    Tcp,
    /// QUIC alone.
    Quic,
}

/// The answer to an order that is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CopyState {
    /// All is there but the grant, which [`ToSource::Begin`](super::ToSource) is to bring.
    Ready,
    /// The copy of this id runs, or has ended: what is told of it follows.
    Follows {
        /// The id of the copy.
        id: [u8; 16],
    },
}

/// What a copy begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begin {
    /// The grant.
    pub grant: GrantToken,
    /// The key of the host that has the target; no other host is spoken to.
    pub key: [u8; 32],
}

/// The order for a grant, to the host that has the target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantOrder {
    /// The id of the copy.
    pub id: [u8; 16],
    /// The key of the host that has the sources.
    pub source: [u8; 32],
    /// The only opening that the grant is good for, but for its shape and run.
    pub open: Open,
    /// The sources, whose names alone may come to the top of the target; none: any names.
    #[serde(deserialize_with = "list::at_most::<FETCH_SOURCES_MAX, _, _>")]
    pub sources: Vec<SourcePath>,
    /// The most bytes of contents.
    pub bytes_max: Option<u64>,
    /// The most entries.
    pub entries_max: Option<u64>,
}

/// What a host has received by a grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The id of the copy.
    pub id: [u8; 16],
    /// The key of the client that the grant was given to.
    pub client: [u8; 32],
    /// The key of the host that has sent.
    pub source: [u8; 32],
    /// The target as it was asked for.
    #[serde(with = "bytes")]
    pub target: Vec<u8>,
    /// Files that got their names.
    pub files: u64,
    /// The sum of their sizes.
    pub bytes: u64,
    /// Entries that failed here.
    pub faults: u64,
    /// When all was flushed, in seconds since 1970.
    pub ended: u64,
}

/// A receipt with the signature of the host that has received.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedReceipt {
    /// The encoded [`Receipt`], without a length.
    #[serde(
        serialize_with = "bytes::serialize",
        deserialize_with = "bytes::at_most::<RECEIPT_BYTES_MAX, _>"
    )]
    pub receipt: Vec<u8>,
    /// The certificate of the host's key.
    #[serde(
        serialize_with = "bytes::serialize",
        deserialize_with = "bytes::at_most::<CERTIFICATE_BYTES_MAX, _>"
    )]
    pub certificate: Vec<u8>,
    /// The signature of the receipt.
    #[serde(
        serialize_with = "bytes::serialize",
        deserialize_with = "bytes::at_most::<SIGNATURE_BYTES_MAX, _>"
    )]
    pub signature: Vec<u8>,
}

/// What has become of a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CopyResult {
    /// The copy runs.
    Runs,
    /// The copy has ended at the host that has sent.
    Ended(Box<EndedCopy>),
    /// The copy has ended at the host that has received.
    Received(SignedReceipt),
}

/// A copy that has ended, at the host that has sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedCopy {
    /// The host that has received.
    pub to: Place,
    /// The sender's account, or why the copy came to no good end.
    pub ended: Result<TransferAccount, Refusal>,
    /// Whether the copy is partial if entries lack something that was to be kept.
    pub strict: bool,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::error::WireError;
    use crate::message::fetch::tests::sample as fetch;
    use crate::message::open::tests::fixed;
    use crate::message::{ToSender, ToSource, decode_message, encode_message};

    pub(crate) fn sample() -> CopyOrder {
        CopyOrder {
            id: [1; 16],
            fetch: fetch(),
            to: Place {
                host: "h".into(),
                port: 300,
            },
            streams: Some(2),
            transport: TransportChoice::Quic,
            clear: false,
            patience_secs: 5,
        }
    }

    pub(crate) fn grant() -> GrantOrder {
        GrantOrder {
            id: [1; 16],
            source: [2; 32],
            open: Open::new(b"t".to_vec(), [3; 16]),
            sources: vec![SourcePath(b"a".to_vec())],
            bytes_max: Some(300),
            entries_max: None,
        }
    }

    #[test]
    fn orders_are_pinned() {
        let order = ToSource::Copy(Box::new(sample()));
        let bytes = encode_message(&order);
        assert_eq!(bytes[4..21], [&[2][..], &[1; 16]].concat());
        assert_eq!(bytes[bytes.len() - 9..], [1, b'h', 0xAC, 2, 1, 2, 2, 0, 5]);
        assert_eq!(decode_message(&bytes[4..]), Ok(order));
        let begin = ToSource::Begin(Begin {
            grant: [4; 32],
            key: [5; 32],
        });
        assert_eq!(
            encode_message(&begin)[4..],
            [&[3][..], &[4; 32], &[5; 32]].concat()
        );
        let order = ToSource::Grant(Box::new(grant()));
        let bytes = encode_message(&order);
        let open = fixed(b"t", 3);
        let rest = [1, 1, b'a', 1, 0xAC, 2, 0];
        assert_eq!(
            bytes[4..],
            [&[4][..], &[1; 16], &[2; 32], &open, &rest].concat()
        );
        assert_eq!(decode_message(&bytes[4..]), Ok(order));
        let result = ToSource::Result {
            id: [6; 16],
            stop: true,
        };
        assert_eq!(
            encode_message(&result)[4..],
            [&[5][..], &[6; 16], &[1]].concat()
        );
    }

    #[test]
    fn answers_are_pinned() {
        let granted = ToSender::Granted([1; 32]);
        assert_eq!(
            encode_message(&granted)[4..],
            [&[18][..], &[1; 32]].concat()
        );
        assert_eq!(
            encode_message(&ToSender::Copy(CopyState::Ready))[4..],
            [19, 0]
        );
        let follows = ToSender::Copy(CopyState::Follows { id: [7; 16] });
        assert_eq!(
            encode_message(&follows)[4..],
            [&[19, 1][..], &[7; 16]].concat()
        );
        let signed = SignedReceipt {
            receipt: vec![1],
            certificate: vec![2],
            signature: vec![3],
        };
        let receipt = ToSender::Receipt(signed.clone());
        assert_eq!(encode_message(&receipt)[4..], [20, 1, 1, 1, 2, 1, 3]);
        let result = ToSender::Result(CopyResult::Received(signed));
        assert_eq!(encode_message(&result)[4..], [21, 2, 1, 1, 1, 2, 1, 3]);
        assert_eq!(decode_message(&encode_message(&result)[4..]), Ok(result));
    }

    /// A host that has sent keeps it for a day.
    #[test]
    fn what_a_host_has_signed_is_bounded() {
        let most = [
            RECEIPT_BYTES_MAX,
            CERTIFICATE_BYTES_MAX,
            SIGNATURE_BYTES_MAX,
        ];
        let decoded = |[receipt, certificate, signature]: [usize; 3]| {
            let [receipt, certificate, signature] =
                [receipt, certificate, signature].map(|bytes| vec![0; bytes]);
            let signed = SignedReceipt {
                receipt,
                certificate,
                signature,
            };
            decode_message::<ToSender>(&encode_message(&ToSender::Receipt(signed))[4..])
        };
        assert!(decoded(most).is_ok());
        for at in 0..most.len() {
            let mut more = most;
            more[at] += 1;
            assert_eq!(decoded(more), Err(WireError::Message), "{at}");
        }
    }
}
