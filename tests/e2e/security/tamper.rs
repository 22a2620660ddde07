//! A bit that flips between the sender's read and the receiver's store is detected and reported, and the data is sent
//! again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use zmove_transport::{Frame, LaneBreaker, LaneError, LaneSink};
use zmove_types::{GROUP_BYTES, Stopwatch};
use zmove_wire::FrameKind;

use crate::support::harness::Site;
use crate::support::inprocess::{InProcess, Pushed};
use crate::support::tree::{assert_same, names, paint, set_mode};

/// The part of a frame in which the bit flips.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Head,
    Data,
}

/// The damaged frames: a number of frames of one kind, from a given index.
#[derive(Clone, Copy, Debug)]
struct Damage {
    kind: FrameKind,
    part: Part,
    first: u64,
    count: u64,
    /// Frames with less data are forwarded and not counted.
    bytes_min: usize,
    /// Position of the damaged byte, in thousandths of the part.
    permille: usize,
}

const KINDS: usize = 4;

/// A lane that damages frames.
struct BadLane {
    inner: Box<dyn LaneSink>,
    damages: Vec<Damage>,
    seen: Arc<[AtomicU64; KINDS]>,
}

impl LaneSink for BadLane {
    fn send(&mut self, mut frame: Frame, watch: &mut Stopwatch<'_>) -> Result<(), LaneError> {
        let bytes = frame.data.len();
        // A speculative batch is a batch that is sent early.
        let kind = match frame.header.kind {
            FrameKind::Guess => FrameKind::Batch,
            kind => kind,
        };
        if self
            .damages
            .iter()
            .any(|damage| damage.kind == kind && bytes < damage.bytes_min)
        {
            return self.inner.send(frame, watch);
        }
        let number = self.seen[kind as usize].fetch_add(1, Ordering::Relaxed);
        for damage in self.damages.iter().filter(|damage| damage.kind == kind) {
            if (damage.first..damage.first.saturating_add(damage.count)).contains(&number) {
                damage.strike(&mut frame);
            }
        }
        self.inner.send(frame, watch)
    }

    fn finish(&mut self) -> Result<(), LaneError> {
        self.inner.finish()
    }

    fn breaker(&self) -> LaneBreaker {
        self.inner.breaker()
    }
}

impl Damage {
    fn once(kind: FrameKind, part: Part, first: u64) -> Self {
        // The source directory itself may be sent first, in a batch without data.
        let bytes_min = usize::from(part == Part::Data);
        Self {
            kind,
            part,
            first,
            count: 1,
            bytes_min,
            permille: 500,
        }
    }

    fn always(kind: FrameKind, part: Part) -> Self {
        Self {
            count: u64::MAX,
            ..Self::once(kind, part, 0)
        }
    }

    fn strike(self, frame: &mut Frame) {
        let len = frame.data.len();
        let bytes = match self.part {
            Part::Head => &mut frame.head[..],
            Part::Data => &mut frame.data.room()[..len],
        };
        let at = bytes.len() * self.permille / 1000;
        if let Some(byte) = bytes.get_mut(at) {
            *byte ^= 0x10;
        }
    }
}

fn push(site: &Site, lanes: usize, damages: &[Damage]) -> Pushed {
    let (damages, seen) = (
        damages.to_vec(),
        Arc::new([const { AtomicU64::new(0) }; KINDS]),
    );
    let wrap = move |inner| {
        let (damages, seen) = (damages.clone(), Arc::clone(&seen));
        Box::new(BadLane {
            inner,
            damages,
            seen,
        }) as Box<dyn LaneSink>
    };
    InProcess {
        lanes,
        wrap: Box::new(wrap),
        ..InProcess::default()
    }
    .push(&site.source(), &site.target())
}

#[track_caller]
fn expect_repaired(site: &Site, pushed: &Pushed, times: u64) {
    let summary = pushed.summary();
    assert_eq!(
        (summary.counters.resent, summary.counters.failed),
        (times, 0),
        "{:?} {summary:?}",
        pushed.failed()
    );
    assert_eq!(pushed.resent().len() as u64, times);
    assert_same(&site.source(), &site.target());
}

#[test]
fn a_clean_lane_resends_nothing() {
    let site = Site::local();
    crate::support::tree::paint_interesting_sizes(&site.source());
    expect_repaired(&site, &push(&site, 2, &[]), 0);
}

#[test]
fn damaged_data_of_a_small_file_is_sent_again() {
    let site = Site::local();
    paint(site.source().join("only"), 1_000);
    let pushed = push(&site, 1, &[Damage::once(FrameKind::Batch, Part::Data, 0)]);
    expect_repaired(&site, &pushed, 1);
    assert!(
        pushed.resent()[0].contains("'only'"),
        "{:?}",
        pushed.resent()
    );
}

/// The error names the damaged file, not just its batch.
#[test]
fn damaged_data_of_one_small_file_among_many_names_that_file() {
    let site = Site::local();
    // One file fills most of its batch, in any scan order.
    paint(site.source().join("d/bbb"), 1_000_000);
    for number in 0..40 {
        paint(site.source().join(format!("d/{number}")), 10);
    }
    let damage = Damage {
        bytes_min: 900_000,
        ..Damage::once(FrameKind::Batch, Part::Data, 0)
    };
    let pushed = push(&site, 1, &[damage]);
    expect_repaired(&site, &pushed, 1);
    assert!(
        pushed.resent()[0].contains("d/bbb"),
        "{:?} does not name d/bbb",
        pushed.resent()
    );
}

#[test]
fn a_damaged_batch_header_is_sent_again() {
    let site = Site::local();
    for number in 0..10 {
        paint(site.source().join(format!("d{number}/f")), number);
        set_mode(site.source().join(format!("d{number}/f")), 0o640);
    }
    for permille in [0, 100, 300, 600, 999] {
        let site = Site::local();
        paint(site.source().join("d/f"), 77);
        let damage = Damage {
            permille,
            ..Damage::once(FrameKind::Batch, Part::Head, 0)
        };
        expect_repaired(&site, &push(&site, 1, &[damage]), 1);
    }
    // The directories may be sent before the files, in a batch without data.
    let damage = Damage {
        bytes_min: 1,
        ..Damage::once(FrameKind::Batch, Part::Head, 0)
    };
    let pushed = push(&site, 1, &[damage]);
    expect_repaired(&site, &pushed, 1);
    assert!(pushed.resent()[0].contains("/f'"), "{:?}", pushed.resent());
}

#[test]
fn damaged_data_of_each_chunk_of_a_large_file_is_sent_again() {
    for number in 0..3 {
        let site = Site::local();
        paint(site.source().join("big"), 2 * GROUP_BYTES + 5);
        let pushed = push(
            &site,
            2,
            &[Damage::once(FrameKind::Chunk, Part::Data, number)],
        );
        expect_repaired(&site, &pushed, 1);
        let (what, name) = (pushed.resent()[0], site.source().join("big"));
        assert!(
            what.starts_with("bytes ") && what.contains(name.to_str().unwrap()),
            "{what}"
        );
    }
}

#[test]
fn a_damaged_file_declaration_is_sent_again() {
    for lanes in [1, 3] {
        let site = Site::local();
        paint(site.source().join("big"), 3 * GROUP_BYTES + 5);
        let pushed = push(
            &site,
            lanes,
            &[Damage::once(FrameKind::Declare, Part::Head, 0)],
        );
        let summary = pushed.summary();
        assert_eq!((summary.counters.files, summary.counters.failed), (1, 0));
        // On several lanes, some chunks may already have arrived when the declaration is sent again.
        if lanes == 1 {
            assert!(summary.counters.resent > 0);
        }
        assert!(
            pushed.resent().iter().all(|what| what.contains("big'")),
            "{:?}",
            pushed.resent()
        );
        assert_same(&site.source(), &site.target());
    }
}

#[test]
fn repeated_damage_is_repaired_each_time() {
    let site = Site::local();
    paint(site.source().join("small"), 1_000);
    paint(site.source().join("big"), GROUP_BYTES + 1);
    let three = |kind, part| Damage {
        count: 3,
        ..Damage::once(kind, part, 0)
    };
    let pushed = push(
        &site,
        1,
        &[
            three(FrameKind::Batch, Part::Data),
            three(FrameKind::Chunk, Part::Data),
        ],
    );
    expect_repaired(&site, &pushed, 6);
}

#[test]
fn files_that_are_always_damaged_are_given_up_and_reported() {
    let everything = [
        Damage::always(FrameKind::Batch, Part::Data),
        Damage::always(FrameKind::Chunk, Part::Data),
        Damage::always(FrameKind::Declare, Part::Head),
    ];
    for damages in [
        &everything[..1],
        &everything[1..2],
        &everything[2..],
        &everything,
    ] {
        let site = Site::local();
        paint(site.source().join("one"), 10);
        paint(site.source().join("two"), 20);
        paint(site.source().join("big"), GROUP_BYTES + 5);
        let pushed = push(&site, 2, damages);
        let summary = pushed.summary();
        let small = damages.iter().any(|damage| damage.kind == FrameKind::Batch);
        let large = damages.iter().any(|damage| damage.kind != FrameKind::Batch);
        // The source directory itself is sent with the two small files or before them.
        let failed = 2 * u64::from(small) + u64::from(large);
        assert!(
            (failed..=failed + u64::from(small)).contains(&summary.counters.failed),
            "{:?}",
            pushed.failed()
        );
        let expected: Vec<_> = if small { vec![] } else { vec!["one", "two"] }
            .into_iter()
            .chain((!large).then_some("big"))
            .collect();
        let mut found = names(&site.target());
        found.sort_by_key(|name| (name == "big", name.clone()));
        assert_eq!(found, expected);
        for name in ["one", "two", "big"]
            .into_iter()
            .filter(|name| !expected.contains(name))
        {
            let told = pushed
                .failed()
                .into_iter()
                .filter(|line| line.contains(name) && line.contains("damaged"));
            assert_eq!(told.count(), 1, "{:?}", pushed.failed());
        }
    }
}

/// Directories and links that never arrived must also count as failed.
#[test]
fn directories_and_links_that_are_always_damaged_are_failures() {
    let site = Site::local();
    std::fs::create_dir_all(site.source().join("d")).unwrap();
    std::os::unix::fs::symlink("elsewhere", site.source().join("link")).unwrap();
    let pushed = push(&site, 1, &[Damage::always(FrameKind::Batch, Part::Head)]);
    assert!(names(&site.target()).is_empty());
    assert!(
        pushed.summary().counters.failed > 0,
        "nothing arrived and nothing failed"
    );
    assert!(
        pushed.failed().iter().any(|line| line.contains("link")),
        "{:?}",
        pushed.failed()
    );
}
