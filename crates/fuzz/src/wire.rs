//! The public decoders of `zmove-wire`. An input that decodes is encoded and decoded again, and the result must be the
//! same.

use serde::{Serialize, de::DeserializeOwned};
use zmove_wire::{
    Batch, ControlHeader, FileHead, FrameHeader, Greeting, SignedJobGrant, ToReceiver, ToSender,
    ToSource, decode_message, encode_message,
};

/// Returns whether an input of one of these decoders can be decoded. `None` if `target` is not one of them.
#[must_use]
pub fn decodes(target: &str, input: &[u8]) -> Option<bool> {
    Some(match target {
        "greeting" => input
            .first_chunk()
            .is_some_and(|bytes| Greeting::decode(bytes).is_ok()),
        "frame_header" => input
            .first_chunk()
            .is_some_and(|bytes| FrameHeader::decode(bytes).is_ok()),
        "batch" => input.split_first_chunk().is_some_and(|(data_bytes, head)| {
            Batch::decode(head, u32::from_le_bytes(*data_bytes)).is_ok()
        }),
        "file_head" => FileHead::decode(input).is_ok(),
        "to_receiver" => decode_message::<ToReceiver>(input).is_ok(),
        "to_sender" => decode_message::<ToSender>(input).is_ok(),
        "to_source" => decode_message::<ToSource>(input).is_ok(),
        "job_grant" => SignedJobGrant::decode(input).is_ok(),
        "control" => input.split_first_chunk().is_some_and(|(greeting, rest)| {
            Greeting::decode(greeting).is_ok() && first_message_decodes(rest)
        }),
        _ => return None,
    })
}

/// Returns whether the first message of a control connection can be decoded.
fn first_message_decodes(bytes: &[u8]) -> bool {
    let Some((header, rest)) = bytes.split_first_chunk() else {
        return false;
    };
    let Ok(ControlHeader::Message { bytes }) = ControlHeader::decode(*header) else {
        return false;
    };
    rest.get(..bytes)
        .is_some_and(|message| decode_message::<ToReceiver>(message).is_ok())
}

pub(crate) fn greeting(bytes: &[u8]) {
    let Some(bytes) = bytes.first_chunk() else {
        return;
    };
    match Greeting::decode(bytes) {
        Ok(greeting) => {
            assert_eq!(Greeting::decode(&greeting.encode()), Ok(greeting));
        }
        Err(error) => drop(error.to_string()),
    }
}

pub(crate) fn frame_header(bytes: &[u8]) {
    let Some(bytes) = bytes.first_chunk() else {
        return;
    };
    match FrameHeader::decode(bytes) {
        Ok(header) => assert_eq!(FrameHeader::decode(&header.encode()), Ok(header)),
        Err(error) => drop(error.to_string()),
    }
}

/// Decodes a batch. The first four bytes are the amount of data in the frame, and the rest is its header.
pub(crate) fn batch(bytes: &[u8]) {
    let Some((data_bytes, head)) = bytes.split_first_chunk() else {
        return;
    };
    let data_bytes = u32::from_le_bytes(*data_bytes);
    match Batch::decode(head, data_bytes) {
        Ok(batch) => assert_eq!(Batch::decode(&batch.encode(), data_bytes), Ok(batch)),
        Err(error) => drop(error.to_string()),
    }
}

pub(crate) fn file_head(bytes: &[u8]) {
    match FileHead::decode(bytes) {
        Ok(head) => assert_eq!(FileHead::decode(&head.encode()), Ok(head)),
        Err(error) => drop(error.to_string()),
    }
}

pub(crate) fn to_receiver(bytes: &[u8]) {
    match message::<ToReceiver>(bytes) {
        Some(ToReceiver::Request(request)) => {
            drop(request.question.check().map_err(|error| error.to_string()));
        }
        Some(ToReceiver::Remove(remove)) => drop(remove.check().map_err(|error| error.to_string())),
        _ => {}
    }
}

pub(crate) fn to_sender(bytes: &[u8]) {
    match message::<ToSender>(bytes) {
        Some(ToSender::Fault(fault)) => drop(fault.to_string()),
        Some(ToSender::Refused(refusal)) => drop(format!("{refusal:?}")),
        _ => {}
    }
}

pub(crate) fn to_source(bytes: &[u8]) {
    drop(message::<ToSource>(bytes));
}

pub(crate) fn job_grant(bytes: &[u8]) {
    match SignedJobGrant::decode(bytes) {
        Ok(signed) => {
            assert_eq!(
                SignedJobGrant::decode(&signed.encode()).as_ref(),
                Ok(&signed)
            );
            assert!(signed.grant.encode().len() <= signed.text.len());
        }
        Err(error) => drop(error.to_string()),
    }
}

fn message<M: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(
    bytes: &[u8],
) -> Option<M> {
    let message = decode_message::<M>(bytes).ok()?;
    let encoded = encode_message(&message);
    let (length, body) = encoded
        .split_first_chunk()
        .expect("a length stands before it");
    assert_eq!(u32::from_le_bytes(*length) as usize, body.len());
    assert!(
        bytes.starts_with(body),
        "a message has one form, and extensions follow it"
    );
    assert_eq!(decode_message::<M>(body).as_ref(), Ok(&message));
    Some(message)
}
