//! Tests of the work in flight, and a file that tests of other modules use.

use std::sync::atomic::AtomicUsize;
use std::thread;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use zmove_disk::Direct;
use zmove_scan::{ScanConfig, ScanItem, ScanRoot, scan};
use zmove_types::{GROUP_BYTES, NoObserver, RelPath};
use zmove_wire::FrameKind;

use super::*;
use crate::push::session::Session;
use crate::read::extras::Extras;
use crate::read::holes::HoleHandling;
use crate::read::source::SourceDirectory;

/// Returns an empty record and the queue of its messages.
fn nothing_in_flight() -> (InFlight, UnboundedReceiver<ToReceiver>) {
    let (outgoing, messages) = unbounded_channel();
    (InFlight::new(Arc::new(NoObserver), outgoing), messages)
}

/// Returns `count` copies of a large file that was scanned and no longer exists.
pub(crate) fn vanished(count: usize) -> Vec<Arc<LargeSource>> {
    let home = tempfile::tempdir().unwrap();
    std::fs::File::create(home.path().join("f"))
        .unwrap()
        .set_len(3 * GROUP_BYTES)
        .unwrap();
    let root = ScanRoot::new(home.path().to_owned(), RelPath::root());
    let items: Vec<_> = scan(vec![root], &ScanConfig::default())
        .receiver()
        .iter()
        .collect();
    let batch = items.iter().find_map(|item| match item {
        ScanItem::Batch(batch) => Some(batch),
        _ => None,
    });
    let batch = batch.expect("there is a file");
    let directory = SourceDirectory::held_open(&batch.directory);
    let ids = (0..).map(FileId);
    let fresh = |id| Arc::new(LargeSource::new(id, &directory, batch.entries[0].clone()));
    ids.map(fresh).take(count).collect()
}

/// Informs the other thread that this one has panicked, so that it does not wait forever.
struct PanicFlag<'a>(&'a AtomicBool);

impl Drop for PanicFlag<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.store(true, Ordering::SeqCst);
        }
    }
}

/// Two readers find at the same time that the file is missing, each while it reads its own group.
#[test]
fn a_large_file_that_fails_at_two_groups_at_once_is_told_once() {
    let (outgoing, mut messages) = unbounded_channel();
    let session = Session::new(
        Arc::new(NoObserver),
        Extras::default(),
        Instant::now(),
        outgoing,
        Arc::new(crate::control::relay::NoQuota),
    );
    let files = vanished(FILES);
    files
        .iter()
        .for_each(|file| session.in_flight.begin_file(Arc::clone(file), 3));
    let arrived = AtomicUsize::new(0);
    let has_panicked = AtomicBool::new(false);
    let fail_all = || {
        let _guard = PanicFlag(&has_panicked);
        for (round, file) in files.iter().enumerate() {
            arrived.fetch_add(1, Ordering::SeqCst);
            while arrived.load(Ordering::SeqCst) < 2 * (round + 1) {
                assert!(!has_panicked.load(Ordering::SeqCst), "the other thread");
                thread::yield_now();
            }
            let opened = file.open(
                Direct::default(),
                HoleHandling::Kept,
                || false,
                |_, read| read.metadata(),
            );
            session.fail_large(file, &opened.err().unwrap());
        }
    };
    thread::scope(|scope| [scope.spawn(fail_all), scope.spawn(fail_all)].map(drop));
    assert_eq!(session.account.totals.counters.failed.get(), FILES as u64);
    assert!(files.iter().all(|file| file.has_failed()));
    let abandoned = std::iter::from_fn(|| messages.try_recv().ok()).map(|message| match message {
        ToReceiver::Abandon { file } => file,
        other => panic!("{other:?}"),
    });
    let mut abandoned: Vec<_> = abandoned.collect();
    abandoned.sort_unstable();
    assert!(abandoned.into_iter().eq(0..FILES as u64));
}

const FILES: usize = 2000;

/// Large files may wait for a flush at the target. Until then, each file is remembered by the sender and kept open by
/// the receiver.
#[test]
fn no_large_file_is_begun_while_too_many_have_no_end() {
    let (in_flight, _messages) = nothing_in_flight();
    let count = usize::try_from(FILES_BEGUN_MAX).unwrap();
    let files = vanished(count + 1);
    files
        .iter()
        .for_each(|file| in_flight.begin_file(Arc::clone(file), 3));
    let (last, begun) = files.split_last().unwrap();
    for file in begun {
        assert!(!in_flight.lock().is_full(Some(file.id)));
        let span = GroupSpan::of(file.entry.size, 0).unwrap();
        let item = in_flight
            .issue(Sent::Group(Arc::clone(file), span, FrameKind::Chunk), 0)
            .unwrap();
        assert!(in_flight.stored(item, &[]).unwrap().work.is_some());
    }
    let full = |file| in_flight.lock().is_full(file);
    assert_eq!(
        [Some(last.id), Some(begun[0].id), None].map(full),
        [true, false, false]
    );
    in_flight.end_large(begun[0].id).unwrap();
    assert!(!full(Some(last.id)));
    // A file that has failed in the meantime does not count as begun.
    in_flight.end_large(last.id).unwrap();
    let span = GroupSpan::of(last.entry.size, 0).unwrap();
    in_flight
        .issue(Sent::Group(Arc::clone(last), span, FrameKind::Chunk), 0)
        .unwrap();
    assert_eq!(in_flight.lock().begun.len(), count - 1);
}

#[test]
fn nothing_goes_again_while_no_lane_is_idle_or_work_is_left() {
    let (in_flight, _messages) = nothing_in_flight();
    in_flight.begin(1);
    // Ten chunks were taken a minute ago. Nine were stored within a second, so the tenth is late.
    let taken = Instant::now() - Duration::from_secs(60);
    let mut items = Vec::new();
    for file in vanished(10) {
        let span = GroupSpan::of(file.entry.size, 0).unwrap();
        let work = Sent::Group(file, span, FrameKind::Chunk);
        items.push(in_flight.issue(work, 0).unwrap());
    }
    let mut state = in_flight.lock();
    for item in &items {
        state.record.note_taken(*item, 0, taken);
    }
    for item in &items[1..] {
        let stored = taken + Duration::from_secs(1);
        let _receipt = state.record.stored(*item, stored).unwrap();
    }
    drop(state);
    let late_for_idle_lane = || in_flight.while_idle(|| in_flight.choose_late(|_| true));
    assert!(late_for_idle_lane().is_empty(), "work is left");
    in_flight.end_work();
    in_flight.end_plan();
    assert!(
        in_flight.choose_late(|_| true).is_empty(),
        "no lane is idle"
    );
    let late: Vec<_> = late_for_idle_lane()
        .iter()
        .map(|(file, _)| file.id)
        .collect();
    assert_eq!(late, [FileId(0)]);
}
