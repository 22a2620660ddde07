//! A client that sends arbitrary messages to an honest receiver in this process.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use zmove_receiver::{
    ReceiverConfig, Rights, Session, SessionError, SessionReport, WriteAccess, run_session,
};
use zmove_transport::{Frame, Inbox, memory_control, memory_lane};
use zmove_types::{
    Buffer, BufferPool, ItemId, Metadata, Name, RelPath, StageClock, Timestamp, TransferId,
};
use zmove_wire::{
    Answer, Batch, BatchEntry, DirectoryGroup, Extraneous, FileEntry, FrameHeader, FrameKind, Open,
    ToReceiver, ToSender, decode_message, encode_message,
};

use crate::support::harness::runtime;
use crate::support::quiet_machine::share_machine;

/// Maximum duration of a case. Some file systems are slow for very deep trees.
const PATIENCE_AT_MOST: Duration = Duration::from_secs(180);

/// A client that may write below a root.
pub(crate) struct Intruder {
    pub(crate) roots: Vec<PathBuf>,
    pub(crate) open: Open,
}

/// An action of the client.
pub(crate) enum Deed {
    Frame(Frame),
    /// The bytes of a message, which may be invalid.
    Message(Vec<u8>),
    /// Waits for the next answer about names to keep or remove.
    Wait,
    /// Waits until this many items are settled, then runs the function on the receiver's host.
    Meanwhile(usize, Box<dyn FnOnce() + Send>),
}

/// The result of the session.
pub(crate) struct Intruded {
    pub(crate) ended: Result<SessionReport, String>,
    pub(crate) answers: Vec<ToSender>,
}

impl Intruder {
    pub(crate) fn new(root: &Path) -> Self {
        let open = Open {
            extraneous: Extraneous::Goes,
            ..Open::new(Vec::new(), [1; 16])
        };
        Self {
            roots: vec![root.to_owned()],
            open,
        }
    }

    /// Performs all actions and then announces the end. The test fails if the receiver does not end.
    pub(crate) fn does(self, deeds: Vec<Deed>) -> Intruded {
        share_machine();
        runtime().block_on(self.converse(deeds))
    }

    async fn converse(self, deeds: Vec<Deed>) -> Intruded {
        let ((mut reader, mut writer), far) = memory_control();
        let (lanes_in, lanes) = mpsc::channel(1);
        let (mut sink, source) = memory_lane();
        lanes_in.try_send(source).unwrap();
        let session = Session {
            config: config_of(self.roots),
            ..Session::new(TransferId([5; 16]), far, lanes)
        };
        let stop = async {
            tokio::time::sleep(PATIENCE_AT_MOST).await;
            SessionError::Stopping
        };
        let receiving = tokio::spawn(run_session(session, stop));
        reader.greeting().await.unwrap();
        writer
            .send(&encode_message(&ToReceiver::Open(self.open)))
            .await
            .unwrap();
        let mut inbox = read_all(reader.into_inbox(decode_message::<ToSender>, 64));
        let mut answers = Vec::new();
        let mut items = 0;
        let clock = Arc::new(StageClock::default());
        for deed in deeds {
            match deed {
                Deed::Frame(frame) => {
                    items += u64::from(frame.header.kind != FrameKind::Declare);
                    let sent = tokio::task::spawn_blocking({
                        let clock = Arc::clone(&clock);
                        move || {
                            // The receiver may have closed the connection.
                            drop(sink.send(frame, &mut clock.start()));
                            sink
                        }
                    });
                    sink = sent.await.unwrap();
                }
                // The receiver may have closed the connection.
                Deed::Message(bytes) => drop(writer.send(&bytes).await),
                Deed::Wait => {
                    let before = about_names(&answers);
                    hear_until(&mut inbox, &mut answers, |heard| {
                        about_names(heard) > before
                    })
                    .await;
                }
                Deed::Meanwhile(wanted, happens) => {
                    hear_until(&mut inbox, &mut answers, |heard| settled(heard) >= wanted).await;
                    happens();
                }
            }
        }
        let announce = ToReceiver::Announce {
            items,
            mismatches: 0,
        };
        drop(writer.send(&encode_message(&announce)).await);
        while let Some(answer) = inbox.recv().await {
            answers.push(answer);
        }
        drop((writer, sink));
        let ended = receiving.await.unwrap().map_err(|error| error.to_string());
        assert!(
            !ended
                .as_ref()
                .is_err_and(|error| error.contains("shutting down")),
            "the receiver hangs"
        );
        Intruded { ended, answers }
    }
}

/// Settings of a receiver that lets the intruder write below these roots.
fn config_of(roots: Vec<PathBuf>) -> ReceiverConfig {
    ReceiverConfig {
        rights: Rights {
            owner: "intruder".to_owned(),
            access: WriteAccess::Beneath(roots.into()),
            ..Rights::default()
        },
        ..ReceiverConfig::default()
    }
}

/// Reads answers as they arrive. A receiver whose answers are not read accepts no more frames.
fn read_all(mut inbox: Inbox<ToSender>) -> mpsc::UnboundedReceiver<ToSender> {
    let (answers_in, answers) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(answer)) = inbox.recv().await
            && answers_in.send(answer).is_ok()
        {}
    });
    answers
}

/// Receives answers until `enough` returns `true` or there are no more.
async fn hear_until(
    inbox: &mut mpsc::UnboundedReceiver<ToSender>,
    answers: &mut Vec<ToSender>,
    are_enough: impl Fn(&[ToSender]) -> bool,
) {
    while !are_enough(answers) {
        let Some(answer) = inbox.recv().await else {
            return;
        };
        answers.push(answer);
    }
}

/// Returns the number of answers about names to keep or remove.
fn about_names(answers: &[ToSender]) -> usize {
    let about_names = |answer: &&ToSender| {
        let lists = |answer: &Answer| matches!(answer, Answer::Extraneous(_));
        match answer {
            ToSender::Reply(reply) => lists(&reply.answer),
            ToSender::Removed { .. } => true,
            _ => false,
        }
    };
    answers.iter().filter(about_names).count()
}

fn settled(answers: &[ToSender]) -> usize {
    let items = answers.iter().map(|answer| match answer {
        ToSender::Stored(stored) => stored.items.len(),
        _ => 0,
    });
    items.sum()
}

impl Intruded {
    /// Returns the number of entries that the receiver could not store.
    pub(crate) fn faults(&self) -> usize {
        let faults = self.answers.iter().map(|answer| match answer {
            ToSender::Stored(stored) => stored.items.iter().map(|item| item.faults.len()).sum(),
            ToSender::Fault(_) => 1,
            _ => 0,
        });
        faults.sum()
    }
}

pub(crate) fn message(message: &ToReceiver) -> Deed {
    Deed::Message(encode_message(message))
}

pub(crate) fn path(text: &str) -> RelPath {
    RelPath::from_bytes(text.as_bytes()).unwrap()
}

pub(crate) fn name(text: &str) -> Name {
    Name::from_bytes(text.as_bytes()).unwrap()
}

pub(crate) fn metadata(mode: u32) -> Metadata {
    Metadata::new(
        mode,
        Timestamp {
            seconds: 9,
            nanos: 0,
        },
    )
}

/// A batch of entries of one directory with this item number. Each file contains `x`.
pub(crate) fn batch(item: u64, directory: &str, entries: Vec<BatchEntry>) -> Deed {
    let files = entries
        .iter()
        .filter(|entry| matches!(entry, BatchEntry::File(_)))
        .count();
    let groups = vec![DirectoryGroup {
        directory: path(directory),
        entries,
    }];
    let batch = Batch { groups };
    raw_batch(item, batch.encode(), &vec![b'x'; files])
}

/// A batch with these bytes as its head and a valid seal.
pub(crate) fn raw_batch(item: u64, head: Vec<u8>, data: &[u8]) -> Deed {
    let header = FrameHeader {
        kind: FrameKind::Batch,
        head_bytes: u32::try_from(head.len()).unwrap(),
        data_bytes: u32::try_from(data.len()).unwrap(),
        item: ItemId(item),
        ..FrameHeader::default()
    };
    let content = *blake3::hash(&head).as_bytes();
    Deed::Frame(frame(header, head, &content, data))
}

/// A frame with a valid seal.
pub(crate) fn frame(header: FrameHeader, head: Vec<u8>, content: &[u8; 32], data: &[u8]) -> Frame {
    let digest = zmove_chunk::seal(&header.prefix(), content);
    Frame {
        header: FrameHeader { digest, ..header },
        head,
        data: buffer(data),
    }
}

fn buffer(bytes: &[u8]) -> Buffer {
    let mut buffer = BufferPool::new(bytes.len().max(1), 1).take().unwrap();
    buffer.room()[..bytes.len()].copy_from_slice(bytes);
    buffer.set_len(bytes.len());
    buffer
}

/// A file that contains `x`.
pub(crate) fn file(text: &str, mode: u32) -> BatchEntry {
    let root = zmove_chunk::file_root(b"x");
    BatchEntry::File(FileEntry {
        name: name(text),
        metadata: metadata(mode),
        bytes: 1,
        root,
        data: None,
    })
}
