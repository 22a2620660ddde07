//! Tests of the messages that a session sends to its sender.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use zmove_chunk::group_cv;
use zmove_disk::{make_hidden, own_process};
use zmove_transport::{Frame, LaneBreaker, LaneError, control_pair, memory_control, memory_lane};
use zmove_types::{
    Buffer, BufferPool, Counters, DeliveryLog, ItemId, Lock, Metadata, Name, Origin, RelPath,
    StageClock, Stopwatch, ThreadState, Timestamp,
};
use zmove_wire::{
    Batch, BatchEntry, ControlHeader, DirectoryGroup, FileEntry, FileHead, FrameHeader, FrameKind,
    PublishedItem, decode_message, encode_message, encode_pong,
};

use super::*;
use crate::config::BUFFER_BYTES;
use crate::rights::grant::Rights;
use crate::store::target::WriteAccess;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;
use zmove_wire::ToReceiver;
use zmove_wire::{Refusal, RefusalCode};

fn opening() -> Vec<u8> {
    encode_message(&ToReceiver::Open(Open::new(Vec::new(), [1; 16])))
}

/// Returns a batch that creates a directory.
fn batch() -> Frame {
    let entries = vec![BatchEntry::Directory(
        Name::from_bytes(b"d").unwrap(),
        Metadata::default(),
    )];
    let groups = vec![DirectoryGroup {
        directory: RelPath::root(),
        entries,
    }];
    let head = Batch { groups }.encode();
    let header = FrameHeader {
        kind: FrameKind::Batch,
        head_bytes: u32::try_from(head.len()).unwrap(),
        item: ItemId(0),
        ..FrameHeader::default()
    };
    let digest = zmove_chunk::seal(&header.prefix(), blake3::hash(&head).as_bytes());
    Frame {
        header: FrameHeader { digest, ..header },
        head,
        data: Buffer::empty(),
    }
}

/// Returns a frame of the given kind. Frames of large files use the first large file.
fn frame(
    (kind, item, group): (FrameKind, u64, u32),
    (head, data): (Vec<u8>, &[u8]),
    content: &[u8; 32],
) -> Frame {
    let header = FrameHeader {
        kind,
        head_bytes: u32::try_from(head.len()).unwrap(),
        data_bytes: u32::try_from(data.len()).unwrap(),
        item: ItemId(item),
        group,
        ..FrameHeader::default()
    };
    let digest = zmove_chunk::seal(&header.prefix(), content);
    let mut buffer = BufferPool::new(data.len().max(1), 1).take().unwrap();
    buffer.room()[..data.len()].copy_from_slice(data);
    buffer.set_len(data.len());
    Frame {
        header: FrameHeader { digest, ..header },
        head,
        data: buffer,
    }
}

/// Returns the frames of a small file and of a large file with two groups.
fn files() -> Vec<Frame> {
    let contents = vec![7; BUFFER_BYTES];
    let (small_contents, last) = (&contents[..9], &contents[..1]);
    let small = FileEntry {
        name: Name::from_bytes(b"small").unwrap(),
        metadata: Metadata::default(),
        bytes: 9,
        root: zmove_chunk::file_root(small_contents),
        data: None,
    };
    let groups = vec![DirectoryGroup {
        directory: RelPath::root(),
        entries: vec![BatchEntry::File(small)],
    }];
    let batch = Batch { groups }.encode();
    let large = FileHead {
        path: RelPath::from_bytes(b"large").unwrap(),
        metadata: Metadata::default(),
        bytes: contents.len() as u64 + 1,
        ctime: Timestamp {
            seconds: 5,
            nanos: 6,
        },
        inode: 8,
        data: None,
    };
    let declaration = large.encode();
    let [batched, declared] = [&batch, &declaration].map(|head| *blake3::hash(head).as_bytes());
    vec![
        frame((FrameKind::Batch, 0, 0), (batch, small_contents), &batched),
        frame((FrameKind::Declare, 0, 0), (declaration, &[]), &declared),
        frame(
            (FrameKind::Chunk, 1, 0),
            (Vec::new(), &contents),
            &group_cv(0, &contents).0,
        ),
        frame(
            (FrameKind::Chunk, 2, 1),
            (Vec::new(), last),
            &group_cv(1, last).0,
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn files_and_groups_that_are_stored_are_noted_for_the_run() {
    let delivery_log = Arc::<Lock<DeliveryLog>>::default();
    for is_new in [true, false] {
        let config = ReceiverConfig {
            delivery_log: Some(Arc::clone(&delivery_log)),
            ..ReceiverConfig::default()
        };
        let said = said_by(config, opening(), files()).await;
        assert!(
            matches!(said.last(), Some(ToSender::Finished(_))),
            "{said:?}"
        );
        assert_eq!(delivery_log.lock().take_new(), is_new);
    }
    // The second session has created everything again.
    let expected = Counters {
        files: 2 * 2,
        bytes: 2 * (9 + BUFFER_BYTES as u64 + 1),
        ..Counters::default()
    };
    assert_eq!(delivery_log.lock().completed_counters(), expected);
    let mut delivery_log = delivery_log.lock();
    let path = |text: &str| RelPath::from_bytes(text.as_bytes()).unwrap();
    let mut is_new = |thing: &dyn Fn(&mut DeliveryLog)| {
        thing(&mut delivery_log);
        delivery_log.take_new()
    };
    assert!(
        !is_new(&|delivery_log| delivery_log.note(&path("small"))),
        "a small file"
    );
    assert!(
        !is_new(&|delivery_log| delivery_log.note(&path("large"))),
        "a large file"
    );
    assert!(
        !is_new(&|delivery_log| delivery_log.note_group(&path("large"), 1, Origin::Sent)),
        "a group"
    );
}

/// A lane that is lost before it has carried any data.
struct LostLane;

impl LaneSource for LostLane {
    fn receive(
        &mut self,
        _: &BufferPool,
        _: &mut Stopwatch<'_>,
    ) -> Result<Option<Frame>, LaneError> {
        Err(LaneError::Closed)
    }

    fn breaker(&self) -> LaneBreaker {
        LaneBreaker::new(|| ())
    }
}

/// A dialed sender may not know about a lane on which it has received nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_sender_that_was_dialled_is_told_of_lanes_that_bring_nothing() {
    let home = tempfile::tempdir().unwrap();
    let ((mut reader, mut writer), control) = memory_control();
    let (lanes_in, lanes) = mpsc::channel(1);
    let (failed, failed_lanes) = mpsc::unbounded_channel();
    let session = Session {
        failed_lanes: Some(failed_lanes),
        config: ReceiverConfig {
            rights: rights_at(home.path()),
            ..ReceiverConfig::default()
        },
        ..Session::new(TransferId([1; 16]), control, lanes)
    };
    let session = tokio::spawn(run_session(session, std::future::pending()));
    writer.send(&opening()).await.unwrap();
    reader.greeting().await.unwrap();
    let mut hear = async || decode_message(&reader.receive().await.unwrap().unwrap()).unwrap();
    assert!(matches!(hear().await, ToSender::Opened(_)));
    failed.send(()).unwrap();
    assert_eq!(hear().await, ToSender::LaneFailed);
    lanes_in.send(Box::new(LostLane)).await.unwrap();
    assert_eq!(hear().await, ToSender::LaneFailed);
    drop((reader, writer));
    session.await.unwrap().unwrap_err();
}

/// Returns the permissions of a sender that may write beneath a directory.
fn rights_at(root: &Path) -> Rights {
    Rights {
        access: WriteAccess::Beneath(vec![root.to_owned()].into()),
        ..Rights::default()
    }
}

/// Opens a session with this opening, sends these frames and announces them. Returns the messages to the sender. The
/// lanes report time that they have waited for a rate limit.
async fn said(opening: Vec<u8>, frames: Vec<Frame>) -> Vec<ToSender> {
    said_by(ReceiverConfig::default(), opening, frames).await
}

/// Runs a session like [`said`], with a receiver that has this configuration.
async fn said_by(config: ReceiverConfig, opening: Vec<u8>, frames: Vec<Frame>) -> Vec<ToSender> {
    let home = tempfile::tempdir().unwrap();
    let ((mut reader, mut writer), control) = memory_control();
    let (lanes_in, lanes) = mpsc::channel(1);
    let config = ReceiverConfig {
        rights: Rights {
            rate_max: Some("1GB".parse().unwrap()),
            ..rights_at(home.path())
        },
        ..config
    };
    config
        .meter
        .receive
        .add(ThreadState::Paced, Duration::from_millis(3));
    let session = Session {
        config,
        ..Session::new(TransferId([1; 16]), control, lanes)
    };
    let session = tokio::spawn(run_session(session, std::future::pending()));
    let items = frames
        .iter()
        .filter(|frame| frame.header.kind != FrameKind::Declare)
        .count() as u64;
    let announce = ToReceiver::Announce {
        items,
        mismatches: 0,
    };
    let (mut sink, source) = memory_lane();
    lanes_in.try_send(source).unwrap();
    let sending = tokio::task::spawn_blocking(move || {
        let clock = StageClock::default();
        frames
            .into_iter()
            .for_each(|frame| sink.send(frame, &mut clock.start()).unwrap());
        sink
    });
    writer.send(&opening).await.unwrap();
    // A receiver that refuses the opening may already have closed the connection.
    let _refused_early = writer.send(&encode_message(&announce)).await;
    reader.greeting().await.unwrap();
    let mut said = Vec::new();
    while let Some(message) = reader.receive().await.unwrap() {
        said.push(decode_message(&message).unwrap());
    }
    drop((reader, writer, sending.await.unwrap()));
    let ended = session.await.unwrap();
    assert_eq!(
        ended.is_ok(),
        matches!(said.last(), Some(ToSender::Finished(_))),
        "{ended:?}"
    );
    said
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sender_is_told_its_rate_before_it_may_begin_and_what_that_has_cost() {
    let told = said(opening(), Vec::new()).await;
    let rate = ToSender::RateMax {
        bytes_per_second: 1_000_000_000,
    };
    assert!(
        matches!(
            &told[..],
            [first, ToSender::Opened(_), ToSender::Finished(finished)]
                if *first == rate && finished.receive.paced_us == 3000
        ),
        "{told:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn each_batch_is_told_as_published_once_after_it_is_stored() {
    let said = said(opening(), vec![batch()]).await;
    let is_stored = |message: &ToSender| matches!(message, ToSender::Stored(_));
    let stored = said.iter().position(is_stored).unwrap();
    let published = |said: &[ToSender]| {
        let items = said.iter().filter_map(|message| match message {
            ToSender::Published { items } => Some(items.clone()),
            _ => None,
        });
        items.flatten().collect::<Vec<_>>()
    };
    let item = PublishedItem {
        item: 0,
        faults: vec![],
    };
    assert_eq!(published(&said[..stored]), []);
    assert_eq!(published(&said[stored..]), [item]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_opening_that_cannot_be_understood_is_refused_by_its_extension() {
    let extended = |critical: bool| {
        let mut opening = opening();
        // The empty list of extensions is replaced with one extension that has no value.
        assert_eq!(opening.pop(), Some(0));
        opening.extend([1, 77, u8::from(critical), 0]);
        opening[0] += 3;
        opening
    };
    let refused = said(extended(true), Vec::new()).await;
    let [
        ToSender::Refused(Refusal {
            code: RefusalCode::Protocol,
            text,
        }),
    ] = &refused[..]
    else {
        panic!("{refused:?}");
    };
    assert!(text.contains("extension 77 of the opening"), "{text}");
    let taken = said(extended(false), Vec::new()).await;
    assert!(
        matches!(taken.last(), Some(ToSender::Finished(_))),
        "{taken:?}"
    );
}

/// The operator ends a transfer in each phase. The peer reads only a limited number of bytes.
#[tokio::test(start_paused = true)]
async fn a_session_whose_peer_does_not_read_ends_when_it_is_stopped() {
    let open = |intent| Open {
        intent,
        ..Open::new(Vec::new(), [1; 16])
    };
    let elsewhere = Open::new(b"/".to_vec(), [1; 16]);
    for (phase, opening, bytes_read) in [
        ("greeting", None, 0),
        ("opening", None, Greeting::BYTES),
        ("refusal", Some(elsewhere), Greeting::BYTES),
        ("write", Some(open(Intent::Write)), Greeting::BYTES),
        ("inspect", Some(open(Intent::Inspect)), Greeting::BYTES),
        ("measure", Some(open(Intent::Measure)), Greeting::BYTES),
        ("clean", Some(open(Intent::Clean)), Greeting::BYTES),
    ] {
        let home = tempfile::tempdir().unwrap();
        let (near, far) = tokio::io::duplex(LITTLE_ROOM);
        let (mut near_read, mut near_write) = tokio::io::split(near);
        let (_lanes_in, lanes) = mpsc::channel(1);
        let session = Session {
            config: ReceiverConfig {
                rights: rights_at(home.path()),
                ..ReceiverConfig::default()
            },
            ..Session::new(TransferId([1; 16]), control_pair(far), lanes)
        };
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let stopped = async {
            stopped.await.unwrap();
            SessionError::Stopping
        };
        let session = tokio::spawn(run_session(session, stopped));
        near_read
            .read_exact(&mut vec![0; bytes_read])
            .await
            .unwrap();
        if let Some(open) = opening {
            let opening = encode_message(&ToReceiver::Open(open));
            near_write.write_all(&opening).await.unwrap();
        }
        // The paused clock advances only when all tasks are idle.
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!session.is_finished(), "{phase}");
        let since = tokio::time::Instant::now();
        stop.send(()).unwrap();
        let ended = session.await.unwrap().unwrap_err();
        assert!(since.elapsed() < Duration::from_secs(6), "{phase}");
        let is_right = match phase {
            "refusal" => matches!(ended, SessionError::Refused(_)),
            _ => matches!(ended, SessionError::Stopping),
        };
        assert!(is_right, "{phase}: {ended}");
    }
}

/// Creates a file as if a process that has ended had left it behind.
fn leave(directory: &Path) -> PathBuf {
    let opened = std::fs::File::open(directory).unwrap();
    let (name, ()) = make_hidden(opened.as_fd(), |_name| Ok(())).unwrap();
    // The process number was reused in the meantime.
    let (process, start) = own_process().rsplit_once('-').unwrap();
    let start = u64::from_str_radix(start, 16).unwrap() + 1;
    let name = name.as_os_str().to_str().unwrap();
    let name = name.replace(own_process(), &format!("{process}-{start:x}"));
    std::fs::write(directory.join(&name), "left").unwrap();
    directory.join(name)
}

/// Returns the value of a receiver's ping, or its next message as an error.
async fn next_frame(reader: &mut (impl AsyncRead + Unpin)) -> Result<u64, ToSender> {
    let mut header = [0; ControlHeader::BYTES];
    reader.read_exact(&mut header).await.unwrap();
    let ControlHeader::Message { bytes } = ControlHeader::decode(header).unwrap() else {
        return Ok(reader.read_u64_le().await.unwrap());
    };
    let mut message = vec![0; bytes];
    reader.read_exact(&mut message).await.unwrap();
    Err(decode_message(&message).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cleaning_removes_nothing_before_its_sender_has_answered_a_ping() {
    let home = tempfile::tempdir().unwrap();
    let left = leave(home.path());
    let (near, far) = tokio::io::duplex(1 << 16);
    let (mut reader, mut writer) = tokio::io::split(near);
    let (_lanes_in, lanes) = mpsc::channel(1);
    let session = Session {
        config: ReceiverConfig {
            rights: rights_at(home.path()),
            ..ReceiverConfig::default()
        },
        ..Session::new(TransferId([1; 16]), control_pair(far), lanes)
    };
    let session = tokio::spawn(run_session(session, std::future::pending()));
    let open = Open {
        intent: Intent::Clean,
        ..Open::new(Vec::new(), [1; 16])
    };
    let opening = encode_message(&ToReceiver::Open(open));
    writer.write_all(&opening).await.unwrap();
    let mut greeting = [0; Greeting::BYTES];
    reader.read_exact(&mut greeting).await.unwrap();
    let mut pings = Vec::new();
    while pings.len() < 4 {
        match next_frame(&mut reader).await {
            Ok(ping) => pings.push(ping),
            Err(message) => assert!(matches!(message, ToSender::Opened(_)), "{message:?}"),
        }
    }
    assert!(left.exists());
    let newest = *pings.last().unwrap();
    writer.write_all(&encode_pong(newest)).await.unwrap();
    let mut said = Vec::new();
    while !matches!(said.last(), Some(ToSender::Finished(_))) {
        match next_frame(&mut reader).await {
            Ok(ping) => writer.write_all(&encode_pong(ping)).await.unwrap(),
            Err(message) => said.push(message),
        }
    }
    assert!(!left.exists());
    let [ToSender::Leftover(leftover), ToSender::Finished(_)] = &said[..] else {
        panic!("{said:?}");
    };
    assert_eq!(
        leftover.path.as_path(),
        left.strip_prefix(home.path()).unwrap()
    );
    drop((reader, writer));
    let report = session.await.unwrap().unwrap();
    assert_eq!((report.items, report.faults), (1, 0));
}

/// A buffer size smaller than a greeting.
const LITTLE_ROOM: usize = 16;
