//! Probes with a sender that violates the protocol.

use super::*;

use tokio::task::JoinHandle;
use zmove_chunk::seal;
use zmove_transport::{ControlReader, ControlWriter, Frame, LaneSink, memory_control, memory_lane};
use zmove_types::{Buffer, StageClock, TransferId};
use zmove_wire::{
    FrameHeader, FrameKind, Greeting, Intent, Refusal, RefusalCode, Role, SweepOrder,
    decode_message, encode_message,
};

use crate::rights::grant::Rights;
use crate::session::{Session, run_session};
use crate::store::target::WriteAccess;

/// A sender in the middle of a probe, and the session of its receiver.
struct Peer {
    reader: ControlReader,
    writer: ControlWriter,
    lanes: mpsc::Sender<Box<dyn LaneSource>>,
    session: JoinHandle<Result<SessionReport, SessionError>>,
    meter: Arc<TransferMeter>,
}

impl Peer {
    async fn open(access: WriteAccess, target: &[u8]) -> Self {
        let ((reader, writer), control) = memory_control();
        let (lanes_in, lanes) = mpsc::channel(64);
        let config = ReceiverConfig {
            rights: Rights {
                access,
                ..Rights::default()
            },
            ..ReceiverConfig::default()
        };
        let meter = Arc::clone(&config.meter);
        let session = Session {
            config,
            ..Session::new(TransferId([1; 16]), control, lanes)
        };
        let session = tokio::spawn(run_session(session, std::future::pending()));
        let mut peer = Self {
            reader,
            writer,
            lanes: lanes_in,
            session,
            meter,
        };
        peer.reader.greeting().await.unwrap();
        peer.say(&ToReceiver::Open(open(target))).await;
        peer
    }

    async fn opened(access: WriteAccess) -> Self {
        let mut peer = Self::open(access, b"").await;
        assert!(matches!(peer.hear().await, ToSender::Opened(_)));
        peer
    }

    async fn say(&mut self, message: &ToReceiver) {
        self.writer.send(&encode_message(message)).await.unwrap();
    }

    async fn hear(&mut self) -> ToSender {
        decode_message(&self.reader.receive().await.unwrap().unwrap()).unwrap()
    }

    async fn sample(&mut self, sample: u64, when: SampleTime) -> Sampled {
        self.say(&ToReceiver::Sample { sample, when }).await;
        match self.hear().await {
            ToSender::Sampled(sampled) => sampled,
            other => panic!("{other:?}"),
        }
    }

    async fn lane(&self) -> Box<dyn LaneSink> {
        let (sink, source) = memory_lane();
        self.lanes.send(source).await.unwrap();
        sink
    }

    async fn refused(mut self) -> (Refusal, SessionError) {
        let ToSender::Refused(refusal) = self.hear().await else {
            panic!("no refusal")
        };
        drop((self.reader, self.writer, self.lanes));
        (refusal, self.session.await.unwrap().unwrap_err())
    }
}

fn open(target: &[u8]) -> Open {
    Open {
        intent: Intent::Measure,
        ..Open::new(target.to_vec(), [1; 16])
    }
}

fn frame(kind: FrameKind, data: &[u8], flip: u8) -> Frame {
    let data_bytes = u32::try_from(data.len()).unwrap();
    let header = FrameHeader {
        kind,
        data_bytes,
        ..FrameHeader::default()
    };
    let digest = seal(&header.prefix(), blake3::hash(data).as_bytes());
    let mut data = data.to_vec();
    data[0] ^= flip;
    Frame {
        header: FrameHeader { digest, ..header },
        head: Vec::new(),
        data: Buffer::copied(&data),
    }
}

fn send(sink: &mut dyn LaneSink, frame: Frame) {
    sink.send(frame, &mut StageClock::default().start())
        .unwrap();
}

fn beneath(home: &tempfile::TempDir) -> WriteAccess {
    WriteAccess::Beneath(vec![home.path().to_owned()].into())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_is_counted_and_nothing_is_stored() {
    let home = tempfile::tempdir().unwrap();
    let mut peer = Peer::opened(beneath(&home)).await;
    let before = peer.sample(1, SampleTime::Now).await;
    assert_eq!((before.sample, before.bytes, before.first_us), (1, 0, None));
    for _ in 0..3 {
        let mut lane = peer.lane().await;
        tokio::task::block_in_place(|| {
            send(lane.as_mut(), frame(FrameKind::Filler, &[7; 1000], 0));
            send(lane.as_mut(), frame(FrameKind::Filler, &[8; 500], 0));
            lane.finish().unwrap();
        });
    }
    let after = peer.sample(2, SampleTime::Ended(3)).await;
    assert_eq!((after.sample, after.bytes), (2, 4500));
    assert!(
        after
            .first_us
            .is_some_and(|first| before.clock_us <= first && first <= after.clock_us)
    );
    peer.say(&ToReceiver::Announce {
        items: 0,
        mismatches: 0,
    })
    .await;
    assert!(matches!(peer.hear().await, ToSender::Finished(_)));
    assert_eq!((peer.meter.probed(), peer.meter.bytes()), (Some(4500), 0));
    drop((peer.reader, peer.writer));
    peer.session.await.unwrap().unwrap();
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_write_may_not_probe() {
    let home = tempfile::tempdir().unwrap();
    for (access, target) in [
        (WriteAccess::ReadOnly, &b""[..]),
        (WriteAccess::Beneath(vec![].into()), b""),
        (beneath(&home), b"/etc"),
    ] {
        let (refusal, _) = Peer::open(access, target).await.refused().await;
        assert_eq!(refusal.code, RefusalCode::Denied, "{refusal:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_whole_filler_comes_over_lanes() {
    let home = tempfile::tempdir().unwrap();
    for bad in [
        frame(FrameKind::Chunk, &[7; 10], 0),
        frame(FrameKind::Filler, &[7; 10], 1),
    ] {
        let peer = Peer::opened(beneath(&home)).await;
        let mut lane = peer.lane().await;
        tokio::task::block_in_place(|| send(lane.as_mut(), bad));
        let (refusal, error) = peer.refused().await;
        assert_eq!(refusal.code, RefusalCode::Protocol, "{refusal:?}");
        assert!(
            matches!(error, SessionError::Lane(LaneError::Wire { .. })),
            "{error:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_belongs_to_no_probe_ends_it() {
    let home = tempfile::tempdir().unwrap();
    let strange = [
        ToReceiver::Announce {
            items: 1,
            mismatches: 0,
        },
        ToReceiver::Abandon { file: 1 },
        ToReceiver::Open(open(b"")),
        ToReceiver::Sweep(SweepOrder {
            bytes: u64::MAX,
            millis: 1,
        }),
    ];
    for message in strange {
        let mut peer = Peer::opened(beneath(&home)).await;
        peer.say(&message).await;
        assert_eq!(
            peer.refused().await.0.code,
            RefusalCode::Protocol,
            "{message:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_samples_wait_than_may() {
    let home = tempfile::tempdir().unwrap();
    let mut peer = Peer::opened(beneath(&home)).await;
    let waiting = |sample, lanes| ToReceiver::Sample {
        sample,
        when: SampleTime::Ended(lanes),
    };
    let most = SAMPLES_OUTSTANDING_MAX as u64;
    for sample in 0..most {
        peer.say(&waiting(sample, 1)).await;
    }
    let mut lane = peer.lane().await;
    tokio::task::block_in_place(|| lane.finish().unwrap());
    for sample in 0..most {
        let heard = peer.hear().await;
        assert!(matches!(heard, ToSender::Sampled(sampled) if sampled.sample == sample));
    }
    for sample in 0..=most {
        peer.say(&waiting(sample, 2)).await;
    }
    assert_eq!(peer.refused().await.0.code, RefusalCode::Protocol);
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_does_not_end_is_ended() {
    let home = tempfile::tempdir().unwrap();
    let peer = Peer::opened(beneath(&home)).await;
    let (refusal, error) = peer.refused().await;
    assert_eq!(
        (refusal.code, refusal.text.as_str()),
        (
            RefusalCode::Denied,
            "the probe takes longer than the limit of 300 s"
        )
    );
    assert!(matches!(error, SessionError::ProbeTooLong));
}

#[test]
fn bytes_are_bounded() {
    let tally = ProbeTally::new(1000, 1, Arc::default());
    tally.count(600).unwrap();
    tally.count(400).unwrap();
    assert!(matches!(tally.count(1), Err(SessionError::ProbeTooLarge)));
    assert_eq!(
        SessionError::ProbeTooLarge.to_string(),
        "the probe sends more than the limit of 1.00 TiB"
    );
}

/// A newer sender may send an intent that this receiver does not know.
#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_intent_is_refused_with_words() {
    let ((mut reader, mut writer), control) = memory_control();
    let (_lanes_in, lanes) = mpsc::channel(1);
    let session = Session::new(TransferId([1; 16]), control, lanes);
    let transfer = session.transfer;
    let session = tokio::spawn(run_session(session, std::future::pending()));
    let greeting = reader.greeting().await.unwrap();
    assert_eq!(greeting, Greeting::new(Role::Control, transfer));
    let mut opening = encode_message(&ToReceiver::Open(open(b"")));
    let other = Open {
        intent: Intent::Write,
        ..open(b"")
    };
    let other = encode_message(&ToReceiver::Open(other));
    let intent = (0..other.len()).find(|at| opening[*at] != other[*at]);
    opening[intent.unwrap()] = 99;
    writer.send(&opening).await.unwrap();
    let heard = decode_message(&reader.receive().await.unwrap().unwrap()).unwrap();
    let ToSender::Refused(refusal) = heard else {
        panic!("{heard:?}")
    };
    assert_eq!(refusal.code, RefusalCode::Protocol);
    assert_eq!(
        refusal.text,
        "the sender broke the protocol: decode a control message"
    );
    drop((reader, writer));
    session.await.unwrap().unwrap_err();
}
