//! Jobs whose queue or sessions fail: items that the queue loses are found again.

mod ranges;

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use zmove_cluster::{
    Announced, Head, ItemWork, JobEnd, JobError, LocalQueue, Node, Receiver, SharedJob, WorkError,
    WorkItem, WorkQueue,
};
use zmove_engine::{DialSettings, NoListener, Remote, SenderConfig};
use zmove_scan::ScanRoot;
use zmove_types::{NoObserver, Observer, RelPath};
use zmove_wire::{Durability, Open};

use super::Spread;
use crate::security::deceiver::Failures;
use crate::support::harness::PATIENCE;
use crate::support::hooked_queue::{HookedQueue, Hooks, JOB, Now};
use crate::support::proxy::Proxy;
use crate::support::tree::paint;

/// A queue that loses a third of the items of the first passes, and hands out a fifth of the remaining ones twice.
struct Careless {
    seed: AtomicU64,
    lost: AtomicU64,
}

impl Careless {
    fn queue(seed: u64) -> Arc<HookedQueue<Self>> {
        HookedQueue::new(Self {
            seed: AtomicU64::new(seed),
            lost: AtomicU64::new(0),
        })
    }

    /// Returns a pseudorandom number below `count` (splitmix64).
    fn draw(&self, count: u64) -> u64 {
        let step = 0x9E37_79B9_7F4A_7C15_u64;
        let mut mixed = self
            .seed
            .fetch_add(step, Ordering::Relaxed)
            .wrapping_add(step);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % count
    }

    fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

impl Hooks for Careless {
    fn again(&self, now: Now<'_>) -> Vec<WorkItem> {
        match now {
            Now::Taken(item) if self.draw(5) == 0 => vec![item.clone()],
            _ => Vec::new(),
        }
    }

    async fn put(&self, queue: &LocalQueue, items: Vec<WorkItem>) -> Result<Announced, WorkError> {
        let all = items.len();
        let kept: Vec<_> = items
            .into_iter()
            .filter(|item| item.pass > LOSING_PASSES || self.draw(3) > 0)
            .collect();
        self.lost
            .fetch_add((all - kept.len()) as u64, Ordering::Relaxed);
        queue.put(kept).await
    }

    fn losses(&self) -> u64 {
        self.lost()
    }
}

/// Number of passes in which the queue loses items.
const LOSING_PASSES: u32 = 4;

/// The point at which a queue hands out walks again.
enum Again {
    /// After a large file has been renamed into place.
    Named,
    /// After the job has ended, for a mover that has not noticed the end.
    Over,
}

/// A queue that hands out walks a second time.
struct Repeating {
    again_when: Again,
    walks: Mutex<Vec<WorkItem>>,
}

impl Repeating {
    fn queue(again_when: Again) -> Arc<HookedQueue<Self>> {
        HookedQueue::new(Self {
            again_when,
            walks: Mutex::default(),
        })
    }
}

impl Hooks for Repeating {
    fn again(&self, now: Now<'_>) -> Vec<WorkItem> {
        let mut walks = self.walks.lock().unwrap();
        match (now, &self.again_when) {
            (Now::Taken(item), _) if matches!(item.work, ItemWork::Trees(_)) => {
                walks.push(item.clone())
            }
            (
                Now::Done(WorkItem {
                    work: ItemWork::Large(_),
                    ..
                }),
                Again::Named,
            )
            | (Now::Closed, Again::Over) => {
                return std::mem::take(&mut *walks);
            }
            _ => {}
        }
        Vec::new()
    }
}

impl Spread {
    /// Leads a job to its end, with a mover for each receiver.
    fn lead<W: WorkQueue>(&self, queue: &Arc<W>, receivers: Vec<Receiver>) -> JobEnd {
        Self::lead_job(self.job(), queue, receivers, Arc::new(NoObserver))
    }

    /// Leads a job. When `relay` stalls, its connections are reset.
    fn lead_while_breaking<W: WorkQueue>(
        &self,
        queue: &Arc<W>,
        receivers: Vec<Receiver>,
        relay: &Proxy,
        upstream: std::net::SocketAddr,
    ) -> JobEnd {
        std::thread::scope(|scope| {
            let leading = scope.spawn(|| self.lead(queue, receivers));
            relay.wait_for_stall();
            relay.reset(upstream);
            leading.join().unwrap()
        })
    }

    /// A job whose nodes compare their views of the sources.
    fn job(&self) -> SharedJob {
        let sources = vec![ScanRoot::new(self.source(), RelPath::root())];
        let open = Open {
            durability: Durability::End,
            ..Open::new(b"t".to_vec(), [0; 16])
        };
        SharedJob::new(JOB, sources, open, SenderConfig::default()).with_marks()
    }

    fn lead_job<W: WorkQueue>(
        job: SharedJob,
        queue: &Arc<W>,
        receivers: Vec<Receiver>,
        observer: Arc<dyn Observer>,
    ) -> JobEnd {
        Self::run_job(job, queue, receivers, observer).expect("it ends well")
    }

    fn run_job<W: WorkQueue>(
        job: SharedJob,
        queue: &Arc<W>,
        receivers: Vec<Receiver>,
        observer: Arc<dyn Observer>,
    ) -> Result<JobEnd, JobError> {
        let movers = receivers.len();
        let head = Head::new(Node::new(
            job,
            Arc::clone(queue),
            receivers,
            movers,
            PATIENCE,
        ));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .unwrap();
        let running = head.run(observer, Arc::new(NoListener), std::future::pending());
        let ended = runtime.block_on(async { tokio::time::timeout(2 * PATIENCE, running).await });
        ended.expect("the job ends")
    }

    fn receivers(&self) -> Vec<Receiver> {
        (0..self.daemons.len())
            .map(|number| self.receiver(number, self.daemons[number].address))
            .collect()
    }

    /// A receiver that is reached at this address.
    fn receiver(&self, number: usize, address: std::net::SocketAddr) -> Receiver {
        let remote = Remote::parse_endpoint(&address.to_string()).unwrap();
        let key = Some(self.daemons[number].fingerprint);
        Receiver {
            home: self.home(),
            remote,
            settings: DialSettings {
                key,
                ..DialSettings::default()
            },
        }
    }
}

#[test]
fn a_queue_that_loses_and_repeats_work_costs_passes_and_nothing_else() {
    for seed in [1, 2] {
        let spread = Spread::new(2);
        spread.paint();
        // Without the large file, the queue contains no ranges. The job would wait for ranges that were lost.
        std::fs::remove_file(spread.source().join("large")).unwrap();
        crate::support::tree::set_old(spread.source());
        let queue = Careless::queue(seed);
        let JobEnd {
            tally,
            passes,
            is_inexact,
        } = spread.lead(&queue, spread.receivers());
        let (lost, repeated) = (queue.hooks.lost(), queue.repeated());
        assert!(
            lost > 0 && repeated > 0 && passes > 1,
            "seed {seed}: {lost} {repeated} {passes}"
        );
        let counters = tally.counters();
        assert_eq!((counters.failed, is_inexact), (0, true), "seed {seed}");
        // Each pass skips the files that earlier passes have sent.
        let all = crate::support::tree::count_files(&spread.source());
        assert!(counters.files <= all, "{} of {all}", counters.files);
        spread.assert_done();
    }
}

/// A queue that loses items in each pass.
struct Losing(AtomicU64);

impl Hooks for Losing {
    fn losses(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

#[test]
fn a_job_whose_queue_loses_work_in_each_pass_ends_and_names_its_sources() {
    let spread = Spread::new(1);
    std::fs::create_dir_all(spread.source()).unwrap();
    paint(spread.source().join("file"), 1000);
    let queue = HookedQueue::new(Losing(AtomicU64::new(0)));
    let ended = Spread::run_job(
        spread.job(),
        &queue,
        spread.receivers(),
        Arc::new(NoObserver),
    );
    let error = ended.unwrap_err().to_string();
    let named = format!(
        "'{}' may be incomplete at the target",
        spread.source().display()
    );
    assert!(error.contains("in each of 6 passes"), "{error}");
    assert!(error.contains(&named), "{error}");
}

/// After a while, the mover that is to publish the file sends the ranges that no other mover sends.
#[test]
fn ranges_of_a_large_file_that_the_queue_loses_are_sent_all_the_same() {
    let spread = Spread::new(2);
    std::fs::create_dir_all(spread.source()).unwrap();
    paint(spread.source().join("huge"), 160 << 20);
    let queue = Careless::queue(7);
    let counters = spread.lead(&queue, spread.receivers()).tally.counters();
    assert!(queue.hooks.lost() > 0);
    assert_eq!((counters.failed, counters.files), (0, 1));
    spread.assert_done();
}

/// A mover may die after it has announced a large file and before its walk ends. Others repeat the walk after the file
/// has been renamed into place.
#[test]
fn a_walk_repeated_after_its_large_file_was_published_counts_once() {
    let spread = Spread::new(2);
    std::fs::create_dir_all(spread.source()).unwrap();
    paint(spread.source().join("huge"), 70 << 20);
    paint(spread.source().join("small"), 7);
    // An empty target is not queried.
    std::fs::create_dir_all(spread.target_directory().join("other")).unwrap();
    let queue = Repeating::queue(Again::Named);
    let JobEnd { tally, passes, .. } = spread.lead(&queue, spread.receivers());
    assert!(queue.repeated() > 0);
    let counters = tally.counters();
    assert_eq!(
        (passes, counters.failed, counters.files, counters.skipped),
        (1, 0, 2, 0),
        "{tally:?}"
    );
    std::fs::remove_dir(spread.target_directory().join("other")).unwrap();
    crate::support::tree::set_old(spread.source());
    crate::support::tree::set_old(spread.target_directory());
    spread.assert_done();
}

/// A mover that was stopped during its work may resume after the timestamps of the directories have been set.
#[test]
fn work_repeated_after_the_end_keeps_times_and_modes_of_directories() {
    let spread = Spread::new(2);
    let source = spread.source();
    for directory in ["d", "d/e"] {
        std::fs::create_dir_all(source.join(directory)).unwrap();
        (0..20).for_each(|file| paint(source.join(format!("{directory}/f{file}")), 1000));
        std::os::unix::fs::symlink("f1", source.join(directory).join("link")).unwrap();
    }
    ["d/e", "d", ""]
        .into_iter()
        .for_each(|directory| crate::support::tree::set_old(source.join(directory)));
    crate::support::tree::set_mode(source.join("d/e"), 0);
    let queue = Repeating::queue(Again::Over);
    let counters = spread.lead(&queue, spread.receivers()).tally.counters();
    assert!(queue.repeated() > 0 && counters.failed == 0, "{counters:?}");
    let mode = spread
        .target_directory()
        .join("d/e")
        .metadata()
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o7777, 0);
    spread.assert_done();
}

/// Replaces a directory with a link when entries of it are taken from the queue.
struct Swapping {
    directory: PathBuf,
    elsewhere: PathBuf,
}

impl Hooks for Swapping {
    fn again(&self, now: Now<'_>) -> Vec<WorkItem> {
        if matches!(
            now,
            Now::Taken(WorkItem {
                work: ItemWork::Names { .. },
                ..
            })
        ) && !self.directory.is_symlink()
        {
            let above = self.directory.parent().unwrap();
            let mode = above.metadata().unwrap().permissions().mode();
            [above, &self.directory]
                .into_iter()
                .for_each(|closed| crate::support::tree::set_mode(closed, 0o700));
            std::fs::rename(&self.directory, &self.elsewhere).unwrap();
            std::os::unix::fs::symlink("/", &self.directory).unwrap();
            crate::support::tree::set_mode(above, mode);
        }
        Vec::new()
    }
}

#[test]
fn a_wide_directory_that_becomes_a_link_is_reported_once_and_each_file_counts() {
    let spread = Spread::new(1);
    let wide = spread.source().join("wide");
    std::fs::create_dir_all(&wide).unwrap();
    (0..4500_u64).for_each(|file| paint(wide.join(file.to_string()), 1));
    let failures = Arc::new(Failures::default());
    let elsewhere = spread.site.path("elsewhere");
    let queue = HookedQueue::new(Swapping {
        directory: wide,
        elsewhere,
    });
    let JobEnd { tally, .. } = Spread::lead_job(
        spread.job(),
        &queue,
        spread.receivers(),
        Arc::clone(&failures) as Arc<dyn Observer>,
    );
    let told = failures.0.lock().unwrap();
    let of_directory = told
        .iter()
        .filter(|message| message.contains("sender: open directory '"));
    assert_eq!(of_directory.count(), 1, "{told:?}");
    let there = std::fs::read_dir(spread.target_directory().join("wide"))
        .unwrap()
        .count() as u64;
    let counters = tally.counters();
    assert_eq!((counters.files, counters.failed), (there, 4500 - there));
    assert!(counters.failed >= 3500, "{counters:?}");
}

/// The head detects the replacement, and no other node can replace the head.
#[test]
fn a_source_that_was_replaced_fails_and_the_job_ends() {
    let spread = Spread::new(1);
    paint(spread.source().join("d/f"), 7);
    let mut job = spread.job();
    job.source_marks[0].as_mut().unwrap().inode += 1;
    let end = Spread::lead_job(
        job,
        &Arc::new(LocalQueue::default()),
        spread.receivers(),
        Arc::new(NoObserver),
    );
    let counters = end.tally.counters();
    assert_eq!((end.passes, counters.files), (1, 0));
    assert_eq!(counters.failed, 1, "{end:?}");
}

#[test]
fn others_do_the_work_of_a_broken_session_without_another_walk() {
    let mut spread = Spread::new(2);
    spread.paint();
    let relay = Proxy::start(spread.daemons[1].address, 300 << 10);
    let receivers = vec![
        spread.receiver(0, spread.daemons[0].address),
        spread.receiver(1, relay.address),
    ];
    let upstream = spread.daemons[1].address;
    let queue = Arc::new(LocalQueue::default());
    let end = spread.lead_while_breaking(&queue, receivers, &relay, upstream);
    assert_eq!((end.passes, end.tally.counters().failed), (1, 0));
    spread.assert_done();
    spread.daemons.clear();
}

/// A queue that has room only for the first item.
struct Full;

impl Hooks for Full {
    async fn put(&self, queue: &LocalQueue, items: Vec<WorkItem>) -> Result<Announced, WorkError> {
        let is_first = |item: &WorkItem| matches!(item.work, ItemWork::Begin(_));
        let (first, refused) = items.into_iter().partition(is_first);
        let Announced { put, .. } = queue.put(first).await?;
        Ok(Announced { put, refused })
    }
}

/// One mover keeps all of the work, since the queue is full.
#[test]
fn others_do_the_work_that_a_full_queue_refused_if_a_session_breaks() {
    let mut spread = Spread::new(1);
    spread.paint();
    let upstream = spread.daemons[0].address;
    let relay = Proxy::start(upstream, 300 << 10);
    let receivers = vec![spread.receiver(0, relay.address); 2];
    let queue = HookedQueue::new(Full);
    let end = spread.lead_while_breaking(&queue, receivers, &relay, upstream);
    assert_eq!((end.passes, end.tally.counters().failed), (1, 0));
    spread.assert_done();
    spread.daemons.clear();
}

/// A queue that does not accept the first item of a job.
struct Deaf {
    asked: Mutex<mpsc::Sender<()>>,
    has_been_asked: AtomicBool,
}

impl Hooks for Deaf {
    async fn put(&self, queue: &LocalQueue, items: Vec<WorkItem>) -> Result<Announced, WorkError> {
        if !self.has_been_asked.swap(true, Ordering::Relaxed) {
            self.asked.lock().unwrap().send(()).unwrap();
            std::future::pending::<()>().await;
        }
        queue.put(items).await
    }
}

#[test]
fn a_job_whose_first_session_breaks_before_the_queue_has_an_item_is_done_by_the_next() {
    let mut spread = Spread::new(1);
    paint(spread.source().join("d/f"), 7);
    let upstream = spread.daemons[0].address;
    let relay = Proxy::start(upstream, u64::MAX);
    let receivers = vec![spread.receiver(0, relay.address)];
    let (asked, is_asked) = mpsc::channel();
    let queue = HookedQueue::new(Deaf {
        asked: Mutex::new(asked),
        has_been_asked: AtomicBool::new(false),
    });
    let end = std::thread::scope(|scope| {
        let leading = scope.spawn(|| spread.lead(&queue, receivers));
        is_asked.recv().unwrap();
        relay.reset(upstream);
        leading.join().unwrap()
    });
    assert_eq!(end.tally.counters().failed, 0);
    spread.assert_done();
    spread.daemons.clear();
}

/// Neither connection ends: the kernel of the stopped receiver still accepts data.
#[test]
fn others_do_the_work_of_a_receiver_that_stops_answering() {
    let spread = Spread::new(2);
    spread.paint();
    let relay = Proxy::start(spread.daemons[1].address, 300 << 10);
    let receivers = vec![
        spread.receiver(1, relay.address),
        spread.receiver(0, spread.daemons[0].address),
    ];
    let mut job = spread.job();
    job.config.silence_max = Duration::from_secs(8);
    let end = Spread::lead_job(
        job,
        &Arc::new(LocalQueue::default()),
        receivers,
        Arc::new(NoObserver),
    );
    relay.wait_for_stall();
    assert_eq!(end.tally.counters().failed, 0);
    spread.assert_done();
}
