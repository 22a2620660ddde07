//! Information that a dialed sender sends in addition to the data: its events, the hashes of files, and the summary at
//! the end. With it, the output of a pull is the same as that of a push.
//!
//! **Invariant:** nothing in this module changes the data that the receiver writes.

use serde::{Deserialize, Serialize};
use zmove_types::{Event, RelPath, Root};

use super::{Refusal, TransferAccount, list};
use crate::limits::{HASHED_MAX, TOLD_MAX};

/// Information in addition to a transfer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Relay {
    /// Events at the sender. Counts are increments since the previous event of their kind.
    Told(#[serde(deserialize_with = "list::at_most::<TOLD_MAX, _, _>")] Vec<Event>),
    /// Hashes of files that are complete at the target.
    Hashed(#[serde(deserialize_with = "list::at_most::<HASHED_MAX, _, _>")] Vec<FileHash>),
    /// Number of additional lanes requested.
    Lanes(u16),
    /// The summary of the transfer, sent after a successful end.
    Account(Box<TransferAccount>),
    /// The reason why the sender cannot continue.
    Broken(Refusal),
    /// Hashes of files that existed at the target with the same size and time. The sender has computed these hashes
    /// from its own files.
    Looked(#[serde(deserialize_with = "list::at_most::<HASHED_MAX, _, _>")] Vec<FileHash>),
    /// Another session of a copy begins. Event counts start at zero again.
    SessionBegins,
}

/// The hash of one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileHash {
    /// The file's path below the target.
    pub path: RelPath,
    /// The BLAKE3 hash of its contents.
    pub root: Root,
}

/// A number of regular files, and their total size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileTotal {
    /// Number of files.
    pub files: u64,
    /// Number of bytes.
    pub bytes: u64,
}

impl FileTotal {
    /// Adds `more`.
    pub const fn add(&mut self, more: Self) {
        self.files = self.files.saturating_add(more.files);
        self.bytes = self.bytes.saturating_add(more.bytes);
    }

    /// Subtracts `less`, but not below 0.
    pub const fn take(&mut self, less: Self) {
        self.files = self.files.saturating_sub(less.files);
        self.bytes = self.bytes.saturating_sub(less.bytes);
    }

    /// Subtracts the files in `found` from this total, but not below 0. Returns the part of `found` that exceeds this
    /// total, which is the number of new files.
    #[must_use]
    pub const fn subtract_found(&mut self, found: Self) -> Self {
        let before = *self;
        self.take(found);
        let mut new = found;
        new.take(before);
        new
    }
}

/// Progress of a transfer, or of a part of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferProgress {
    /// Files found by the scan.
    pub found: FileTotal,
    /// Files completed, and bytes stored.
    pub stored: FileTotal,
    /// Files that were equal at the target, and bytes that are not sent.
    pub skipped: FileTotal,
}

impl TransferProgress {
    /// Adds the progress that an event reports. Returns whether the event reports progress.
    pub const fn hear(&mut self, event: &Event) -> bool {
        let (total, files, bytes) = match event {
            Event::Found { files, bytes } => (&mut self.found, *files, *bytes),
            Event::Stored { files, bytes } => (&mut self.stored, *files, *bytes),
            Event::Skipped { files, bytes } => (&mut self.skipped, *files, *bytes),
            _ => return false,
        };
        total.add(FileTotal { files, bytes });
        true
    }

    /// Adds `more`.
    pub const fn add(&mut self, more: &Self) {
        self.found.add(more.found);
        self.stored.add(more.stored);
        self.skipped.add(more.skipped);
    }

    /// Returns the progress since `before`. If any count is lower than in `before`, counting was restarted, and this
    /// function returns all progress.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut since = *self;
        since.found.take(before.found);
        since.stored.take(before.stored);
        since.skipped.take(before.skipped);
        let mut sum = *before;
        sum.add(&since);
        if sum == *self { since } else { *self }
    }

    /// Returns this progress as events.
    pub fn events(&self) -> impl Iterator<Item = Event> {
        let Self {
            found,
            stored,
            skipped,
        } = *self;
        let event = |total: FileTotal, event: fn(u64, u64) -> Event| {
            (total != FileTotal::default()).then(|| event(total.files, total.bytes))
        };
        let events = [
            event(found, |files, bytes| Event::Found { files, bytes }),
            event(stored, |files, bytes| Event::Stored { files, bytes }),
            event(skipped, |files, bytes| Event::Skipped { files, bytes }),
        ];
        events.into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use zmove_types::{Change, ChangeKind, EntryForm, Sample};

    /// The first byte of an encoded [`ToReceiver::Relay`].
    const RELAY_TAG: u8 = 8;

    use crate::error::WireError;
    use crate::message::Summary;
    use crate::message::{ToReceiver, decode_message, encode_message};
    use zmove_types::Counters;

    #[test]
    fn events_are_pinned() {
        let sample = Sample {
            elapsed: Duration::from_micros(300),
            bytes_acked: Some(1),
            lanes: 2,
            ..Sample::default()
        };
        let text = || "x".to_owned();
        for (event, bytes) in [
            (Event::Found { files: 1, bytes: 0 }, &[0, 1, 0][..]),
            (Event::ScanEnded, &[1]),
            (Event::FirstByte(Duration::from_secs(2)), &[2, 2, 0]),
            (Event::LaneUp { lanes: 2 }, &[3, 2]),
            (Event::Stored { files: 1, bytes: 0 }, &[4, 1, 0]),
            (
                Event::Skipped {
                    files: 0,
                    bytes: 300,
                },
                &[5, 0, 0xAC, 2],
            ),
            (Event::Resent { what: text() }, &[6, 1, b'x']),
            (Event::Failed { message: text() }, &[7, 1, b'x']),
            (Event::NotKept { message: text() }, &[8, 1, b'x']),
            (Event::Warned { message: text() }, &[9, 1, b'x']),
            (Event::Limited { by: "x".into() }, &[12, 1, b'x']),
            (
                Event::Sampled(sample),
                &[13, 0, 0xE0, 0xA7, 0x12, 0, 0, 1, 1, 0, 0, 0, 0, 2, 0],
            ),
            (Event::Flushing, &[15]),
            (Event::Answered, &[16]),
        ] {
            assert_eq!(encode_message(&event)[4..], *bytes, "{event:?}");
            assert_eq!(decode_message(bytes), Ok(event));
        }
    }

    #[test]
    fn words_beside_a_transfer_are_pinned() {
        let bytes = |relay: Relay| {
            let message = ToReceiver::Relay(relay);
            let bytes = encode_message(&message)[4..].to_vec();
            assert_eq!(decode_message(&bytes), Ok(message));
            bytes
        };
        let told = vec![Event::ScanEnded, Event::LaneUp { lanes: 2 }];
        assert_eq!(bytes(Relay::Told(told)), [RELAY_TAG, 0, 2, 1, 3, 2]);
        assert_eq!(bytes(Relay::SessionBegins), [RELAY_TAG, 6]);
        let path = || RelPath::from_bytes(b"p").unwrap();
        let hashed = FileHash {
            path: path(),
            root: Root([9; 32]),
        };
        assert_eq!(
            bytes(Relay::Hashed(vec![hashed])),
            [&[RELAY_TAG, 1, 1, 1, b'p'][..], &[9; 32]].concat()
        );
        let looked = FileHash {
            path: path(),
            root: Root([9; 32]),
        };
        assert_eq!(
            bytes(Relay::Looked(vec![looked])),
            [&[RELAY_TAG, 5, 1, 1, b'p'][..], &[9; 32]].concat()
        );
        assert_eq!(bytes(Relay::Lanes(4)), [RELAY_TAG, 2, 4]);
        let change = Change {
            path: path(),
            kind: ChangeKind::Changed("t".into()),
            form: EntryForm::Link(path()),
        };
        assert_eq!(
            bytes(Relay::Told(vec![Event::Listed {
                changes: vec![change]
            }])),
            [RELAY_TAG, 0, 1, 14, 1, 1, b'p', 1, 1, b't', 3, 1, b'p']
        );
        let failed = Counters {
            failed: 300,
            ..Counters::default()
        };
        let summary = Summary {
            counters: failed,
            ..Summary::default()
        };
        assert_eq!(
            bytes(Relay::Account(Box::new(summary.into()))),
            [&[RELAY_TAG, 3, 1, 16, 0xAC, 2][..], &[0; 28]].concat()
        );
    }

    #[test]
    fn progress_is_told_as_it_was_heard_and_begins_anew_where_less_is_told() {
        let events = [
            Event::Found { files: 3, bytes: 9 },
            Event::Stored { files: 1, bytes: 4 },
            Event::Skipped { files: 2, bytes: 5 },
        ];
        let mut progress = TransferProgress::default();
        assert!(events.iter().all(|event| progress.hear(event)));
        assert!(!progress.hear(&Event::Flushing));
        assert!(progress.events().eq(events.clone()));
        let before = progress;
        progress.hear(&events[1]);
        let more = progress.since(&before);
        assert!(more.events().eq([events[1].clone()]));
        assert_eq!(before.since(&progress), before);
        assert_eq!(TransferProgress::default().events().next(), None);
    }

    #[test]
    fn words_are_few_at_a_time() {
        let many = |count| {
            let message = ToReceiver::Relay(Relay::Told(vec![Event::ScanEnded; count]));
            decode_message::<ToReceiver>(&encode_message(&message)[4..]).map(drop)
        };
        assert_eq!(
            (many(TOLD_MAX), many(TOLD_MAX + 1)),
            (Ok(()), Err(WireError::Message))
        );
    }
}
