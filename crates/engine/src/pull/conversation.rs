//! Control of a pull, between the host and this side's receiver: words beside the transfer are taken out of it, and in
//! the host's opening everything is replaced by what this side wants, but for the shape of the target.
//!
//! **Invariant:** of the host's opening the receiver gets its shape alone, and that only where the host names nothing
//! but what was asked for.

use std::sync::Arc;

use tokio::io::AsyncWriteExt;
use tokio::task::JoinHandle;
use zmove_transport::{ControlError, ControlReader, control_pair};
use zmove_wire::{
    Open, Refusal, RefusalCode, TargetShape, ToReceiver, WireError, decode_message, encode_message,
};

use super::relayed::Relayed;
use super::sources::RemoteSources;

/// See the module.
pub(super) struct Conversation {
    /// How this side writes.
    pub(super) open: Open,
    pub(super) sources: RemoteSources,
    pub(super) relayed: Arc<Relayed>,
}

/// Why the host's words came to an end before its connection did.
pub(super) type Ended = Option<Refusal>;

/// What may wait between the host's connection and the receiver.
const PIPE_BYTES: usize = 1 << 20;

impl Conversation {
    /// The reader for the receiver, and the task that ends with the host's words.
    pub(super) fn between(self, reader: ControlReader) -> (ControlReader, JoinHandle<Ended>) {
        let (near, far) = tokio::io::duplex(PIPE_BYTES);
        let conversing = tokio::spawn(self.converse(reader, far));
        (control_pair(near).0, conversing)
    }

    async fn converse(self, mut reader: ControlReader, mut pipe: tokio::io::DuplexStream) -> Ended {
        loop {
            let bytes = match reader.receive().await {
                Ok(Some(bytes)) => bytes,
                // the receiver finds its connection closed
                Ok(None) | Err(ControlError::Closed) => return None,
                Err(error) => {
                    let code = if error.is_lost() {
                        RefusalCode::Broken
                    } else {
                        RefusalCode::Protocol
                    };
                    return Some(Refusal {
                        code,
                        text: error.to_string(),
                    });
                }
            };
            let passed = match bytes.first() {
                Some(&ToReceiver::RELAY_TAG) => self.relayed.take(&bytes).map(|()| None),
                Some(&ToReceiver::OPEN_TAG) => self.own_opening(&bytes).map(Some),
                _ => Ok(Some(framed(&bytes))),
            };
            match passed {
                Ok(Some(bytes)) => {
                    // A receiver that has ended reads no more; what else comes beside is still heard.
                    let _over = pipe.write_all(&bytes).await;
                }
                Ok(None) => {}
                Err(error) => {
                    return Some(Refusal {
                        code: RefusalCode::Protocol,
                        text: error.to_string(),
                    });
                }
            }
        }
    }

    /// This side's opening, with the shape that the host's sources have.
    fn own_opening(&self, bytes: &[u8]) -> Result<Vec<u8>, WireError> {
        let ToReceiver::Open(theirs) = decode_message(bytes)? else {
            return Err(WireError::OutOfOrder {
                what: "the opening",
            });
        };
        let names = self.sources.top_names();
        let check = |name: &zmove_types::Name| {
            names.check(
                &zmove_types::RelPath::root()
                    .join(name)
                    .map_err(WireError::Path)?,
            )
        };
        match &theirs.shape {
            TargetShape::Single { name } => check(name)?,
            TargetShape::Directory { tops } => tops.iter().try_for_each(|top| check(&top.0))?,
        }
        let open = Open {
            shape: theirs.shape,
            ..self.open.clone()
        };
        Ok(encode_message(&ToReceiver::Open(open)))
    }
}

fn framed(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).expect("a message is within its limit");
    [&length.to_le_bytes(), bytes].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use zmove_types::{Name, NoObserver};
    use zmove_wire::{Intent, TopName};

    fn opening(shape: TargetShape) -> Result<Open, WireError> {
        let (more, _wanted) = tokio::sync::mpsc::unbounded_channel();
        let relayed = Relayed::new(Arc::new(NoObserver), None, more, std::time::Duration::ZERO);
        let sources = RemoteSources::new(vec![b"d/asked".to_vec()], None);
        let open = Open::new(b"/mine".to_vec(), [1; 16]);
        let conversation = Conversation {
            open,
            sources,
            relayed: Arc::new(relayed),
        };
        let theirs = Open {
            shape,
            inplace: true,
            intent: Intent::Inspect,
            ..Open::new(b"/etc".to_vec(), [2; 16])
        };
        let bytes = encode_message(&ToReceiver::Open(theirs));
        let own = conversation.own_opening(&bytes[4..])?;
        match decode_message(&own[4..]).unwrap() {
            ToReceiver::Open(open) => Ok(open),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_host_s_word_counts_for_the_shape_alone() {
        let name = |text: &str| Name::from_bytes(text.as_bytes()).unwrap();
        let single = |text| TargetShape::Single { name: name(text) };
        let directory = |text| TargetShape::Directory {
            tops: vec![TopName(name(text))],
        };
        for shape in [single("asked"), directory("asked")] {
            let expected = Open {
                shape: shape.clone(),
                ..Open::new(b"/mine".to_vec(), [1; 16])
            };
            assert_eq!(opening(shape), Ok(expected));
        }
        for shape in [single("other"), directory("other")] {
            assert_eq!(opening(shape), Err(WireError::Unasked));
        }
    }
}
