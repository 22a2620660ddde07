//! Checks that a message has its canonical encoding.
//!
//! Postcard accepts numbers that use more bytes than necessary, and some decoders ignore unknown contents. Without this
//! check, a peer could hide data in a message, or could make two readers interpret the same bytes differently.

use postcard::ser_flavors::Flavor;
use postcard::{Error, Result, serialize_with_flavor};
use serde::Serialize;

use crate::error::WireError;

/// Checks that `message` encodes to the `bytes` from which it was decoded. Allocates no memory.
pub(crate) fn check<M: Serialize>(message: &M, bytes: &[u8]) -> std::result::Result<(), WireError> {
    let compared = serialize_with_flavor(message, EncodingCheck { left: bytes });
    compared.map_err(|_differs| WireError::OtherForm)
}

/// A serializer that compares the encoded bytes instead of storing them.
struct EncodingCheck<'a> {
    /// The remaining bytes to compare with.
    left: &'a [u8],
}

impl Flavor for EncodingCheck<'_> {
    type Output = ();

    fn try_push(&mut self, byte: u8) -> Result<()> {
        self.try_extend(&[byte])
    }

    fn try_extend(&mut self, bytes: &[u8]) -> Result<()> {
        self.left = self
            .left
            .strip_prefix(bytes)
            .ok_or(Error::SerializeBufferFull)?;
        Ok(())
    }

    fn finalize(self) -> Result<()> {
        if self.left.is_empty() {
            Ok(())
        } else {
            Err(Error::SerializeBufferFull)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{
        Answer, Differences, Open, Refusal, RefusalCode, Relay, Reply, ToReceiver, ToSender,
        Verdict, decode_message, encode_message,
    };
    use zmove_types::Event;

    /// Returns messages that contain numbers, lists, texts and tags.
    fn messages() -> Vec<Vec<u8>> {
        let encoded = [
            encode_message(&ToReceiver::Open(Open::new(b"/target".to_vec(), [7; 16]))),
            encode_message(&ToReceiver::Announce {
                items: 300,
                mismatches: 0,
            }),
            encode_message(&ToReceiver::LaneLost {
                items: vec![0, 127, 128, u64::MAX],
            }),
            encode_message(&ToReceiver::Relay(Relay::Told(vec![
                Event::Warned {
                    message: "text".to_owned(),
                },
                Event::LaneUp { lanes: 1 },
            ]))),
        ];
        encoded.iter().map(|bytes| bytes[4..].to_vec()).collect()
    }

    /// Encodes the number that ends at index `at` in one more byte, and returns the longer bytes. If no number ends
    /// there, the result is a different message or not valid.
    fn lengthened(bytes: &[u8], at: usize) -> Vec<u8> {
        let mut longer = bytes.to_vec();
        longer[at] |= 0x80;
        longer.insert(at + 1, 0);
        longer
    }

    #[test]
    fn a_number_in_more_bytes_than_it_needs_is_refused() {
        for bytes in messages() {
            let message = decode_message::<ToReceiver>(&bytes).unwrap();
            let mut others = 0;
            for at in 0..bytes.len() {
                let longer = lengthened(&bytes, at);
                match decode_message::<ToReceiver>(&longer) {
                    // The byte is part of a text or an array, so the longer bytes encode a different message.
                    Ok(other) => assert_eq!(encode_message(&other)[4..], longer),
                    Err(error) => others += usize::from(error == WireError::OtherForm),
                }
                let plain = postcard::take_from_bytes::<ToReceiver>(&longer);
                let is_the_same =
                    plain.is_ok_and(|(other, rest)| other == message && rest.is_empty());
                let refused = decode_message::<ToReceiver>(&longer) == Err(WireError::OtherForm);
                assert!(!is_the_same || refused, "{at} of {bytes:?}");
            }
            assert!(others > 1, "the tag of a message and more: {bytes:?}");
        }
    }

    #[test]
    fn an_overlong_tag_hides_no_message() {
        let open = encode_message(&ToReceiver::Open(Open::new(b"/".to_vec(), [0; 16])));
        for tag in [
            &[0x80, 0][..],
            &[0x80, 0x80, 0],
            &[0x80, 0x80, 0x80, 0x80, 0],
        ] {
            let hidden = [tag, &open[5..]].concat();
            assert_eq!(
                decode_message::<ToReceiver>(&hidden),
                Err(WireError::OtherForm),
                "{tag:?}"
            );
        }
    }

    #[test]
    fn what_a_decoder_would_drop_is_refused() {
        // The mode has a bit without a meaning, and the kind is unknown.
        let mode = [1, b'a', 1, 0x80, 0x80, 4, 0, 0, 0, 0];
        assert_eq!(
            decode_message::<crate::message::SourceEntry>(&mode),
            Err(WireError::OtherForm)
        );
        assert_eq!(
            decode_message::<crate::message::PreserveOptions>(&[0x80, 0x80, 4, 0, 0]),
            Err(WireError::OtherForm)
        );
    }

    #[test]
    fn messages_without_lists_and_with_long_ones_have_the_form() {
        let verdict = Verdict::Contents(Differences::XATTRS, [200; 32]);
        let answer = ToSender::Reply(Reply {
            number: u64::MAX,
            answer: Answer::Verdicts(vec![verdict; 1000]),
        });
        let refused = ToSender::Refused(Refusal::new(RefusalCode::Denied, ""));
        for message in [answer, refused, ToSender::LaneFailed] {
            assert_eq!(decode_message(&encode_message(&message)[4..]), Ok(message));
        }
    }
}
