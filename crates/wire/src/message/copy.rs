//! The messages of a copy between two other hosts. A client orders the copy from the host that has the sources, and
//! gives that host a grant issued by the host that has the target.
//!
//! The client uses the messages of a receiver that dials ([`ToSource`](super::ToSource)). **Invariant:** a grant can be
//! used only by the holder of the key that it names, and only for the opening that it contains.

use serde::{Deserialize, Serialize};

use super::{Open, Refusal, SourcePath, TransferAccount, bytes, fetch::Fetch, list};
use crate::limits::{
    CERTIFICATE_BYTES_MAX, FETCH_SOURCES_MAX, REASON_CHARS_MAX, RECEIPT_BYTES_MAX,
    SIGNATURE_BYTES_MAX,
};

/// The secret that identifies a grant.
pub type GrantToken = [u8; 32];

/// An order for a copy, sent to the host that has the sources.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyOrder {
    /// The ID of the copy, for later requests.
    pub id: [u8; 16],
    /// The files to send and the rules for sending them. The target is on the other host. The lanes are ignored.
    pub fetch: Fetch,
    /// The host that has the target.
    pub to: HostAddress,
    /// Number of lanes, or `None` to choose the number by the path.
    pub streams: Option<u16>,
    /// The transport.
    pub transport: TransportChoice,
    /// Whether lanes are sent unencrypted.
    pub clear: bool,
    /// How long the copying host tries to reconnect to the target's host after a lost connection, in seconds.
    pub patience_secs: u64,
}

impl CopyOrder {
    /// Returns the order without its ID, so that a repeated order compares equal.
    #[must_use]
    pub fn anew(&self) -> Self {
        Self {
            id: [0; 16],
            ..self.clone()
        }
    }
}

/// The address of a daemon, as a user would specify it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostAddress {
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
    /// TCP, or QUIC if TCP cannot connect.
    #[default]
    Auto,
    /// Only TCP.
    Tcp,
    /// Only QUIC.
    Quic,
}

/// The answer to an accepted order for a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CopyState {
    /// Everything is ready except for the grant, which [`ToSource::Begin`](super::ToSource) must deliver.
    Ready,
    /// The copy with this ID is already running or has ended. Reports about the copy follow.
    Follows {
        /// The ID of the copy.
        id: [u8; 16],
    },
}

/// The grant and the key with which a copy begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begin {
    /// The grant.
    pub grant: GrantToken,
    /// The key of the host that has the target. The copy connects to no other host.
    pub key: [u8; 32],
}

/// An order for a grant, sent to the host that has the target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantOrder {
    /// The ID of the copy.
    pub id: [u8; 16],
    /// The key of the host that has the sources.
    pub source: [u8; 32],
    /// The only opening that the grant permits. Its shape and run may differ.
    pub open: Open,
    /// The sources. Only their names may be the first component of a path at the target. An empty list allows any name.
    #[serde(deserialize_with = "list::at_most::<FETCH_SOURCES_MAX, _, _>")]
    pub sources: Vec<SourcePath>,
    /// Maximum number of bytes of file contents.
    pub bytes_max: Option<u64>,
    /// Maximum number of entries.
    pub entries_max: Option<u64>,
}

/// A record of the files that a host has received under a grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The ID of the copy.
    pub id: [u8; 16],
    /// The key of the client that obtained the grant.
    pub client: [u8; 32],
    /// The key of the sending host.
    pub source: [u8; 32],
    /// The target as requested.
    #[serde(with = "bytes")]
    pub target: Vec<u8>,
    /// Files that were renamed into place.
    pub files: u64,
    /// Total size of these files, in bytes.
    pub bytes: u64,
    /// Entries that failed at the receiving host.
    pub faults: u64,
    /// Time at which everything was flushed, in seconds since 1970.
    pub ended: u64,
}

/// A receipt with the signature of the receiving host.
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

/// The state of a copy, or its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CopyResult {
    /// The copy is running.
    Runs,
    /// The copy has ended, according to the sending host.
    Ended(Box<EndedCopy>),
    /// The copy has ended, according to the receiving host.
    Received(SignedReceipt),
}

/// A copy that has ended, as reported by the sending host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedCopy {
    /// The receiving host.
    pub to: HostAddress,
    /// The sender's account, or the reason for the failure of the copy.
    pub ended: Result<TransferAccount, Refusal>,
    /// Whether the copy counts as partial if entries lack metadata that was to be preserved.
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
            to: HostAddress {
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

    /// The sending host keeps receipts for a day, so their size must be bounded.
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
