//! A fuzz target for frames with valid seals, run by `crates/fuzz`.

use std::sync::atomic::AtomicBool;

use zmove_chunk::{group_cv, seal};
use zmove_disk::Task;
use zmove_transport::Frame;
use zmove_types::{Buffer, Cv, GroupSpan, Metadata, RelPath, Timestamp};
use zmove_wire::{FileHead, FrameHeader, FrameKind};

use super::{UnchangedGroup, VerifiedBatch, VerifiedChunk, check_declaration, is_filler};
use crate::rights::quota::Quota;

/// Verifies a frame with a valid seal. The input consists of the header, 8 bytes for the size of its file, 2 bytes for
/// the length of its head, the head, and the data. The digest and lengths in the header are corrected first.
///
/// # Panics
/// The check accepted data that was not sent.
pub fn sealed_frame(bytes: &[u8]) {
    let Some((header, rest)) = bytes.split_first_chunk() else {
        return;
    };
    let Some((file_bytes, rest)) = rest.split_first_chunk() else {
        return;
    };
    let Some((head_bytes, rest)) = rest.split_first_chunk() else {
        return;
    };
    let Ok(header) = FrameHeader::decode(header) else {
        return;
    };
    let (head, data) = rest.split_at(usize::from(u16::from_le_bytes(*head_bytes)).min(rest.len()));
    let length = |part: &[u8]| u32::try_from(part.len()).expect("inputs are short");
    let header = FrameHeader {
        head_bytes: length(head),
        data_bytes: length(data),
        ..header
    };
    let content = match header.kind {
        FrameKind::Chunk if !data.is_empty() => group_cv(header.group, data).0,
        FrameKind::Chunk | FrameKind::Same => TOLD.0,
        FrameKind::Batch | FrameKind::Guess | FrameKind::Declare => *blake3::hash(head).as_bytes(),
        FrameKind::Filler => *blake3::hash(data).as_bytes(),
    };
    let header = FrameHeader {
        digest: seal(&header.prefix(), &content),
        ..header
    };
    check(
        Frame {
            header,
            head: head.to_vec(),
            data: Buffer::copied(data),
        },
        u64::from_le_bytes(*file_bytes),
    );
}

fn check(frame: Frame, file_bytes: u64) {
    let header = frame.header;
    let quota = Quota::default();
    let turn = quota.turn(Task::Read, &NEVER_ENDS);
    match header.kind {
        FrameKind::Batch | FrameKind::Guess => match VerifiedBatch::check(frame, &quota, &turn) {
            Ok(Ok(batch)) => assert_eq!(batch.into_parts().0, header.item),
            Ok(Err(item)) => assert!(item.mismatch && !item.faults.is_empty()),
            Err(error) => drop(error.to_string()),
        },
        FrameKind::Declare => {
            let declared = check_declaration(&frame);
            assert!(!matches!(declared, Ok(None)), "it is sealed");
        }
        FrameKind::Chunk => {
            let head = FileHead {
                path: RelPath::root(),
                metadata: Metadata::default(),
                bytes: file_bytes,
                ctime: Timestamp::default(),
                inode: 0,
                data: None,
            };
            if let Ok(chunk) = VerifiedChunk::check(frame, &head, &turn) {
                let (item, span, cv, data) = chunk.into_parts();
                assert_eq!(
                    (item, span.index, span.len as usize),
                    (header.item, header.group, data.len())
                );
                assert_eq!(cv, group_cv(span.index, &data));
            }
        }
        FrameKind::Filler => assert!(is_filler(&frame), "it is sealed"),
        FrameKind::Same => {
            let named = UnchangedGroup::check(&header, file_bytes, |_| Some(TOLD));
            assert_eq!(
                named.is_ok(),
                GroupSpan::of(file_bytes, header.group).is_some()
            );
            assert!(UnchangedGroup::check(&header, file_bytes, |_| Some(Cv([0; 32]))).is_err());
        }
    }
}

static NEVER_ENDS: AtomicBool = AtomicBool::new(false);
/// The hash that the sender claims for every group.
const TOLD: Cv = Cv([7; 32]);
