//! Filters the control messages that the host of a pull sends to this side's receiver. Additional messages for the
//! observer are extracted. The host's opening is dropped, except for the shape of the host's sources.
//!
//! **Invariant:** this module passes neither an opening nor raw bytes of the host to the receiver. Each message is
//! decoded, and the messages for the receiver are encoded again.

use std::sync::Arc;

use tokio::io::{AsyncWriteExt, DuplexStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use zmove_transport::{ControlError, ControlReader, control_pair};
use zmove_types::{Name, RelPath};
use zmove_wire::{
    Refusal, RefusalCode, TargetShape, ToReceiver, WireError, decode_message, encode_message,
};

use super::relayed::RelayedEvents;
use super::sources::RemoteSources;

/// The parts of a host's messages that the receiver needs.
pub(super) struct FilteredControl {
    /// Reads the host's messages to the receiver.
    pub(super) reader: ControlReader,
    /// Receives the shape of the host's sources.
    pub(super) shape: oneshot::Receiver<TargetShape>,
    /// The task that reads the host's messages. It ends after the last message.
    pub(super) filter_task: JoinHandle<Ended>,
}

/// The reason why this side stopped reading the host's messages, or `None` if the connection ended.
pub(super) type Ended = Option<Refusal>;

/// Capacity of the pipe between the host's connection and the receiver, in bytes.
const PIPE_BYTES: usize = 1 << 20;

/// Starts to read the messages of a host that was asked for `sources`.
pub(super) fn filter_control(
    sources: RemoteSources,
    relayed: Arc<RelayedEvents>,
    host: ControlReader,
) -> FilteredControl {
    let (near, far) = tokio::io::duplex(PIPE_BYTES);
    let (shape_in, shape) = oneshot::channel();
    let conversation = ControlFilter {
        sources,
        relayed,
        shape: Some(shape_in),
    };
    FilteredControl {
        reader: control_pair(near).0,
        shape,
        filter_task: tokio::spawn(conversation.run(host, far)),
    }
}

struct ControlFilter {
    sources: RemoteSources,
    relayed: Arc<RelayedEvents>,
    /// Sends the shape of the host's sources to the receiver. `None` after the host's opening was processed.
    shape: Option<oneshot::Sender<TargetShape>>,
}

impl ControlFilter {
    async fn run(mut self, mut host: ControlReader, mut pipe: DuplexStream) -> Ended {
        let refusal = |code, text| Some(Refusal { code, text });
        loop {
            let bytes = match host.receive().await {
                Ok(Some(bytes)) => bytes,
                // The receiver notices that its connection was closed.
                Ok(None) | Err(ControlError::Closed) => return None,
                Err(error) if error.is_lost() => {
                    return refusal(RefusalCode::Broken, error.to_string());
                }
                Err(error) => return refusal(RefusalCode::Protocol, error.to_string()),
            };
            match self.take(&bytes) {
                Ok(Some(message)) => {
                    // A receiver that has ended reads no further messages. Messages for the observer are still
                    // processed.
                    let _over = pipe.write_all(&encode_message(&message)).await;
                }
                Ok(None) => {}
                Err(error) => return refusal(RefusalCode::Protocol, error.to_string()),
            }
        }
    }

    /// Processes a message of the host. Returns the message if it is meant for the receiver.
    fn take(&mut self, bytes: &[u8]) -> Result<Option<ToReceiver>, WireError> {
        match decode_message(bytes)? {
            ToReceiver::Relay(relay) => {
                self.relayed.take(relay);
                Ok(None)
            }
            ToReceiver::Open(open) => {
                self.forward_shape(open.shape)?;
                Ok(None)
            }
            _ if self.shape.is_some() => Err(WireError::OutOfOrder {
                what: "a message before the opening",
            }),
            message => Ok(Some(message)),
        }
    }

    /// Passes on the shape of the host's sources if it contains only requested names.
    fn forward_shape(&mut self, shape: TargetShape) -> Result<(), WireError> {
        let Some(receiver) = self.shape.take() else {
            return Err(WireError::OutOfOrder {
                what: "a second opening",
            });
        };
        let names = self.sources.top_names();
        let check = |name: &Name| {
            let path = RelPath::root().join(name).map_err(WireError::Path)?;
            names.check(&path)
        };
        match &shape {
            TargetShape::Single { name } => check(name)?,
            TargetShape::Directory { tops } => tops.iter().try_for_each(check)?,
        }
        // The receiver may have ended already.
        let _over = receiver.send(shape);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{Just, Strategy, any, prop_oneof, proptest};
    use std::time::Duration;
    use zmove_types::NoObserver;
    use zmove_wire::{FoundSoFar, Intent, Open, Relay};

    /// The result of a conversation with a host.
    #[derive(Debug, PartialEq, Eq)]
    struct Heard {
        shape: Option<TargetShape>,
        /// The messages that the receiver received.
        passed: Vec<ToReceiver>,
        ended: Ended,
    }

    fn name(text: &str) -> Name {
        Name::from_bytes(text.as_bytes()).unwrap()
    }

    fn single(text: &str) -> TargetShape {
        TargetShape::Single { name: name(text) }
    }

    fn directory(text: &str) -> TargetShape {
        TargetShape::Directory {
            tops: vec![name(text)],
        }
    }

    /// Returns the opening of a malicious host that would write elsewhere.
    fn opening(shape: TargetShape) -> ToReceiver {
        ToReceiver::Open(Open {
            shape,
            inplace: true,
            intent: Intent::Write,
            ..Open::new(b"/etc".to_vec(), [2; 16])
        })
    }

    fn announce() -> ToReceiver {
        ToReceiver::Announce {
            items: 300,
            mismatches: 0,
        }
    }

    fn encoded(messages: &[ToReceiver]) -> Vec<u8> {
        messages.iter().flat_map(encode_message).collect()
    }

    /// Returns a message with these bytes.
    fn framed(bytes: &[u8]) -> Vec<u8> {
        let length = u32::try_from(bytes.len()).unwrap();
        [&length.to_le_bytes(), bytes].concat()
    }

    /// Processes the bytes sent by a host whose source `asked` was requested.
    fn heard(words: &[u8]) -> Heard {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        runtime.block_on(async {
            let (more, _wanted) = tokio::sync::mpsc::unbounded_channel();
            let relayed = RelayedEvents::new(Arc::new(NoObserver), None, more, Duration::ZERO);
            let sources = RemoteSources::new(vec![b"d/asked".to_vec()], None);
            let (mut host, near) = tokio::io::duplex(1 << 20);
            host.write_all(words).await.unwrap();
            drop(host);
            let FilteredControl {
                mut reader,
                mut shape,
                filter_task,
            } = filter_control(sources, Arc::new(relayed), control_pair(near).0);
            let mut passed = Vec::new();
            while let Some(bytes) = reader.receive().await.unwrap() {
                passed.push(decode_message(&bytes).unwrap());
            }
            Heard {
                ended: filter_task.await.unwrap(),
                shape: shape.try_recv().ok(),
                passed,
            }
        })
    }

    fn refused(words: &[u8]) -> (Heard, String) {
        let mut heard = heard(words);
        let refusal = heard.ended.take().unwrap();
        assert_eq!(refusal.code, RefusalCode::Protocol);
        (heard, refusal.text)
    }

    #[test]
    fn the_host_s_opening_counts_for_its_shape_alone() {
        for shape in [single("asked"), directory("asked")] {
            let expected = Heard {
                shape: Some(shape.clone()),
                passed: vec![announce()],
                ended: None,
            };
            assert_eq!(heard(&encoded(&[opening(shape), announce()])), expected);
        }
        for shape in [single("other"), directory("other")] {
            let (heard, text) = refused(&encoded(&[opening(shape), announce()]));
            assert_eq!(text, WireError::Unasked.to_string());
            assert_eq!((heard.shape, heard.passed), (None, vec![]));
        }
    }

    #[test]
    fn an_opening_in_another_form_does_not_pass() {
        let open = encode_message(&opening(single("asked")));
        let overlong = [&[0x80, 0][..], &open[5..]].concat();
        let words = framed(&overlong);
        for (words, shape) in [
            (words.clone(), None),
            (
                [encoded(&[opening(single("asked"))]), words].concat(),
                Some(single("asked")),
            ),
        ] {
            let (heard, text) = refused(&words);
            assert_eq!(text, WireError::OtherForm.to_string());
            assert_eq!((heard.shape, heard.passed), (shape, vec![]));
        }
    }

    #[test]
    fn there_is_one_opening_and_it_comes_first() {
        let twice = [
            opening(single("asked")),
            announce(),
            opening(directory("asked")),
            announce(),
        ];
        let (heard, text) = refused(&encoded(&twice));
        assert!(text.contains("a second opening"), "{text}");
        let passed = (Some(single("asked")), vec![announce()]);
        assert_eq!((heard.shape, heard.passed), passed);
        let (heard, text) = refused(&encoded(&[announce(), opening(single("asked"))]));
        assert!(text.contains("a message before the opening"), "{text}");
        assert_eq!((heard.shape, heard.passed), (None, vec![]));
    }

    #[test]
    fn words_beside_the_transfer_may_come_at_any_time_and_stay_here() {
        let word = || ToReceiver::Relay(Relay::Lanes(1));
        let words = [word(), opening(single("asked")), word(), announce(), word()];
        let expected = Heard {
            shape: Some(single("asked")),
            passed: vec![announce()],
            ended: None,
        };
        assert_eq!(heard(&encoded(&words)), expected);
    }

    /// Generates messages of a host, valid or with a byte changed or inserted.
    fn any_words() -> impl Strategy<Value = Vec<u8>> {
        let message = prop_oneof![
            Just(opening(single("asked"))),
            Just(opening(directory("asked"))),
            Just(announce()),
            Just(ToReceiver::Found(FoundSoFar::default())),
            Just(ToReceiver::Relay(Relay::Lanes(1))),
        ];
        (message, any::<u16>(), any::<u8>(), 0..4_u8).prop_map(|(message, at, byte, change)| {
            let mut bytes = encode_message(&message)[4..].to_vec();
            let at = usize::from(at) % bytes.len();
            match change {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                // Encodes a number with more bytes than necessary.
                2 => {
                    bytes[at] |= 0x80;
                    bytes.insert(at + 1, 0);
                }
                _ => {}
            }
            framed(&bytes)
        })
    }

    proptest! {
        #[test]
        fn whatever_a_host_says_no_opening_reaches_the_receiver(
            words in proptest::collection::vec(any_words(), 0..6)
        ) {
            let heard = heard(&words.concat());
            let is_open = |message: &ToReceiver| matches!(message, ToReceiver::Open(_));
            assert!(!heard.passed.iter().any(is_open), "{heard:?}");
            assert!(heard.passed.is_empty() || heard.shape.is_some(), "{heard:?}");
        }
    }
}
