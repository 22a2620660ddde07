//! A receiver that sends arbitrary answers to an honest sender in this process.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::sync::mpsc;
use zmove_sender::{Link, NoQuota, Push, PushJob, Run, SenderConfig, SessionError, Summary};
use zmove_transport::{Frame, LaneSource, control_pair, memory_lane};
use zmove_types::{BufferPool, Event, GROUP_BYTES, Observer, StageClock, TransferId};
use zmove_wire::{
    Batch, BatchEntry, Cipher, Extensions, FileHead, Finished, FrameKind, Greeting, Opened,
    PublishedItem, Role, Stored, StoredItem, TargetState, ToReceiver, ToSender, decode_message,
    encode_message,
};

use crate::support::harness::{PATIENCE, runtime};
use crate::support::inprocess::job;
use crate::support::quiet_machine::share_machine;

/// A message or frame from the sender.
pub(crate) enum Heard {
    Message(ToReceiver),
    Frame(Frame),
}

/// Returns the answer to a message or frame as encoded bytes, which may be invalid, or `None` for an honest answer.
pub(crate) type Answer = Box<dyn FnMut(&Heard) -> Option<Vec<Vec<u8>>> + Send>;

/// A receiver that reports `state` of its target and answers with `answers`. Where `answers` returns `None`, it answers
/// honestly.
pub(crate) struct Deceiver {
    pub(crate) state: TargetState,
    pub(crate) job: fn(PushJob) -> PushJob,
    pub(crate) answers: Answer,
    /// Number of writes to control that succeed before the sender's writes fail.
    pub(crate) writes_max: usize,
}

/// The result of the push.
pub(crate) struct Deceived {
    pub(crate) ended: Result<Summary, SessionError>,
    /// Paths of all entries of which the sender has sent data.
    pub(crate) paths: Vec<String>,
    /// The concatenated contents of all small files that the sender has sent.
    pub(crate) contents: Vec<u8>,
    pub(crate) failed: Vec<String>,
}

#[derive(Default)]
pub(crate) struct Failures(pub(crate) Mutex<Vec<String>>);

impl Observer for Failures {
    fn on(&self, event: &Event) {
        if let Event::Failed { message } = event {
            self.0.lock().unwrap().push(message.clone());
        }
    }
}

impl Deceiver {
    /// Creates a receiver that answers with `answers`.
    pub(crate) fn new(
        state: TargetState,
        answers: impl FnMut(&Heard) -> Option<Vec<Vec<u8>>> + Send + 'static,
    ) -> Self {
        Self {
            state,
            job: |job| job,
            answers: Box::new(answers),
            writes_max: usize::MAX,
        }
    }

    /// Pushes the contents of `source` to the receiver. A sender that does not end is stopped, and the test fails.
    pub(crate) fn deceive(self, source: &Path) -> Deceived {
        share_machine();
        let failures = Arc::new(Failures::default());
        let observer = Arc::clone(&failures) as Arc<dyn Observer>;
        let (ended, frames) = runtime().block_on(self.converse(source, observer));
        assert!(
            !matches!(ended, Err(SessionError::Interrupted)),
            "the sender hangs"
        );
        let mut deceived = Deceived {
            ended,
            paths: Vec::new(),
            contents: Vec::new(),
            failed: Vec::new(),
        };
        frames
            .iter()
            .for_each(|(kind, head, data)| deceived.note(*kind, head, data));
        deceived.failed = std::mem::take(&mut *failures.0.lock().unwrap());
        deceived
    }

    async fn converse(
        self,
        source: &Path,
        observer: Arc<dyn Observer>,
    ) -> (Result<Summary, SessionError>, Vec<Noted>) {
        let started = Instant::now();
        let mut job = job(source, "x");
        job.open.delta = true;
        let job = (self.job)(job);
        let mut run = Run::begin(None, started);
        // Holes are sent as data, so large sources need no space.
        let config = SenderConfig::default();
        let push = Push::start(job, config, &mut run, started);
        let (near, far) = tokio::io::duplex(CONTROL_BYTES_MAX);
        let near = control_pair(Failing {
            stream: near,
            writes_left: self.writes_max,
        });
        let far = control_pair(far);
        let (sinks_in, sinks) = mpsc::channel(1);
        let (sink, lane) = memory_lane();
        sinks_in.try_send(Ok(sink)).unwrap();
        let (heard_in, heard) = mpsc::unbounded_channel();
        let frames = heard_in.clone();
        let hearing = std::thread::spawn(move || listen(lane, &frames));
        let speaking = tokio::spawn(speak(self.state, far, (heard_in, heard), self.answers));
        let transfer = TransferId([9; 16]);
        let cipher = Cipher::Tls;
        let link = Link {
            transfer,
            cipher,
            control: near,
            lanes: sinks,
            supply: None,
            relay: None,
            quota: Arc::new(NoQuota),
        };
        let ended = push
            .run(&mut run, link, observer, tokio::time::sleep(PATIENCE))
            .await;
        speaking.abort();
        (ended, hearing.join().unwrap())
    }
}

const CONTROL_BYTES_MAX: usize = 1 << 20;

/// A connection whose write direction fails after a number of writes.
struct Failing {
    stream: DuplexStream,
    writes_left: usize,
}

impl AsyncRead for Failing {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, bytes)
    }
}

impl AsyncWrite for Failing {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.writes_left == 0 {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.writes_left -= usize::from(written.is_ready());
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Kind, head and data of a frame.
type Noted = (FrameKind, Vec<u8>, Vec<u8>);

/// Receives the frames of a lane up to its end.
fn listen(mut lane: Box<dyn LaneSource>, heard: &mpsc::UnboundedSender<Heard>) -> Vec<Noted> {
    let (pool, clock) = (
        BufferPool::new(usize::try_from(GROUP_BYTES).unwrap(), 1),
        StageClock::default(),
    );
    let (mut watch, mut noted) = (clock.start(), Vec::new());
    while let Ok(Some(frame)) = lane.receive(&pool, &mut watch) {
        noted.push((frame.header.kind, frame.head.clone(), frame.data.to_vec()));
        drop(heard.send(Heard::Frame(frame)));
    }
    noted
}

type Control = (
    zmove_transport::ControlReader,
    zmove_transport::ControlWriter,
);
type Ears = (mpsc::UnboundedSender<Heard>, mpsc::UnboundedReceiver<Heard>);

async fn speak(
    state: TargetState,
    control: Control,
    (heard_in, mut heard): Ears,
    mut answers: Answer,
) {
    let (mut reader, mut writer) = control;
    reader.greeting().await.unwrap();
    writer
        .send(&Greeting::new(Role::Control, TransferId([9; 16])).encode())
        .await
        .unwrap();
    let mut inbox = reader.into_inbox(decode_message::<ToReceiver>, 8);
    tokio::spawn(async move {
        while let Some(Ok(message)) = inbox.recv().await {
            drop(heard_in.send(Heard::Message(message)));
        }
    });
    let mut honest = Honest {
        state,
        stored: 0,
        announced: None,
    };
    // A receiver reads frames only after the opening, which arrives on another connection.
    let mut is_open = false;
    let mut early = Vec::new();
    while let Some(heard) = heard.recv().await {
        is_open |= matches!(heard, Heard::Message(_));
        if !is_open {
            early.push(heard);
            continue;
        }
        for heard in std::iter::once(heard).chain(early.drain(..)) {
            let said = answers(&heard).unwrap_or_else(|| honest.answer(&heard));
            for bytes in said {
                if writer.send(&bytes).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// A receiver that accepts everything and stores nothing.
struct Honest {
    state: TargetState,
    stored: u64,
    announced: Option<u64>,
}

impl Honest {
    fn answer(&mut self, heard: &Heard) -> Vec<Vec<u8>> {
        let mut said = Vec::new();
        match heard {
            Heard::Message(ToReceiver::Open(_)) => said.push(opened(self.state)),
            Heard::Message(ToReceiver::Announce { items, .. }) => self.announced = Some(*items),
            Heard::Frame(frame) if frame.header.kind != FrameKind::Declare => {
                self.stored += 1;
                said.push(stored(frame.header.item.0));
                if matches!(frame.header.kind, FrameKind::Batch | FrameKind::Guess) {
                    said.push(published(frame.header.item.0));
                }
            }
            _ => return Vec::new(),
        }
        if self.announced == Some(self.stored) {
            said.push(ToSender::Finished(Finished::default()));
        }
        said.iter().map(encode_message).collect()
    }
}

pub(crate) fn opened(state: TargetState) -> ToSender {
    ToSender::Opened(Opened {
        state,
        lanes_max: 8,
        single_name: None,
        free_bytes: None,
        process: String::new(),
        extensions: Extensions::NONE,
    })
}

pub(crate) fn stored(item: u64) -> ToSender {
    let items = vec![StoredItem {
        item,
        mismatch: false,
        faults: Vec::new(),
    }];
    ToSender::Stored(Stored {
        items,
        files: Vec::new(),
    })
}

pub(crate) fn published(item: u64) -> ToSender {
    ToSender::Published {
        items: vec![PublishedItem {
            item,
            faults: Vec::new(),
        }],
    }
}

impl Deceived {
    fn note(&mut self, kind: FrameKind, head: &[u8], data: &[u8]) {
        match kind {
            FrameKind::Batch | FrameKind::Guess => {
                let batch = Batch::decode(head, u32::try_from(data.len()).unwrap()).unwrap();
                for group in batch.groups {
                    let files = group.entries.iter().filter_map(|entry| match entry {
                        BatchEntry::File(file) => Some(&file.name),
                        _ => None,
                    });
                    self.paths
                        .extend(files.map(|name| group.directory.join(name).unwrap().to_string()));
                }
                self.contents.extend(data);
            }
            FrameKind::Declare => self
                .paths
                .push(FileHead::decode(head).unwrap().path.to_string()),
            FrameKind::Chunk | FrameKind::Same | FrameKind::Filler => {}
        }
    }

    /// Asserts that the push failed with an error that contains `part` and is not a lost connection.
    #[track_caller]
    pub(crate) fn is_broken_off(&self, part: &str) {
        let error = self.ended.as_ref();
        let error = error.expect_err("the push has come to its end");
        assert!(!error.is_lost(), "{error}");
        let error = error.to_string();
        assert!(error.contains(part), "{error}");
    }
}
