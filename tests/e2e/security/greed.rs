//! A key that uses as many of a daemon's resources as it can. Only its own transfers may suffer, and a concurrent push
//! with another key completes.
//!
//! Each case speaks the protocol directly with a separate key, to a daemon in a separate process whose memory is then
//! checked.

mod lost;
mod paths;
mod turns;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use zmove_transport::{
    Access, AuthorizedKeys, Channel, ControlReader, ControlWriter, Grant, Identity, LaneSink,
    TransportChoice, control_pair,
};
use zmove_types::{FileId, GROUP_BYTES, ItemId, LaneId, StageClock, Timestamp, TransferId};
use zmove_wire::{
    Answer, Batch, BatchEntry, Cipher, Compare, DirectoryGroup, Durability, EntryGroup, Extraneous,
    FileEntry, FileHead, FrameHeader, FrameKind, Greeting, Intent, NameRange, Open, Question,
    RefusalCode, Remove, RemoveGroup, Reply, Request, Role, RuleText, SourceEntry, SourceKind,
    SourceMark, SourceMetadata, TargetShape, ToReceiver, ToSender, decode_message, encode_message,
};

use crate::security::intruder::{frame, metadata, name, path};
use crate::support::command::ZMOVE;
use crate::support::harness::{PATIENCE, PROMPT, Site, runtime, skip};
use crate::support::host::{greet, read_answers};
use crate::support::quiet_machine::quiet_machine;
use crate::support::tree::{assert_same, paint};

/// A client whose key is authorized for a separate directory.
struct Greedy<'a> {
    site: &'a Site,
    runtime: Runtime,
    identity: Identity,
    transfers: u8,
}

/// A transfer of the greedy client, with one lane.
struct Transfer {
    control: ControlWriter,
    answers: mpsc::Receiver<ToSender>,
    /// Task that reads the answers.
    reading: tokio::task::JoinHandle<()>,
    lane: Box<dyn LaneSink>,
    clock: Arc<StageClock>,
    item: u64,
}

/// A connection whose answers are not read.
struct Deaf(ControlReader, ControlWriter);

/// Maximum growth of the daemon's memory for a hostile key, in KiB, in addition to its normal use. Without limits, each
/// of these cases used far more.
const GROWTH_KIB_MAX: u64 = 160 << 10;

impl<'a> Greedy<'a> {
    fn new(site: &'a Site) -> Self {
        let identity = Identity::load_or_create(&site.path("greedy")).unwrap();
        std::fs::create_dir_all(site.path("theirs")).unwrap();
        let roots = vec![site.path("theirs").canonicalize().unwrap()];
        let grant = Grant::new(identity.fingerprint(), "greedy", roots, Access::ReadWrite);
        AuthorizedKeys::allow(&site.path("server"), grant).unwrap();
        Self {
            site,
            runtime: runtime(),
            identity,
            transfers: 0,
        }
    }

    fn root(&self) -> PathBuf {
        self.site.path("theirs")
    }

    async fn greet(&self, transfer: TransferId, role: Role) -> Channel {
        let daemon = self.site.the_daemon();
        let greeting = Greeting::new(role, transfer);
        greet(daemon, &self.identity, TransportChoice::Tcp, greeting).await
    }

    /// Opens a transfer and waits until it is accepted.
    fn open(&mut self, open: &Open) -> Transfer {
        self.try_open(open).unwrap()
    }

    /// Opens a transfer. Returns the daemon's answer if it is not accepted.
    fn try_open(&mut self, open: &Open) -> Result<Transfer, ToSender> {
        self.transfers += 1;
        let transfer = TransferId([self.transfers; 16]);
        let (control, (answers, reading), lane) = self.runtime.block_on(async {
            let control = self.greet(transfer, Role::Control).await;
            let (mut reader, mut writer) = control_pair(control);
            reader.greeting().await.unwrap();
            let run = [self.transfers; 16];
            writer
                .send(&encode_message(&ToReceiver::Open(Open {
                    run,
                    ..open.clone()
                })))
                .await
                .unwrap();
            let mut inbox = reader.into_inbox(decode_message::<ToSender>, 16);
            let opened = tokio::time::timeout(PATIENCE, inbox.recv())
                .await
                .unwrap()
                .unwrap()
                .unwrap();
            if !matches!(opened, ToSender::Opened(_)) {
                return Err(opened);
            }
            let answers = read_answers(inbox);
            let lane = self.greet(transfer, Role::Lane(LaneId(0))).await;
            Ok((writer, answers, lane.into_sink(Cipher::Tls, 1).unwrap()))
        })?;
        Ok(Transfer {
            control,
            answers,
            reading,
            lane,
            clock: Arc::default(),
            item: 0,
        })
    }

    /// Opens a transfer and sends requests without reading any answers, until the daemon reads no more. Returns the
    /// connection and the number of requests that the daemon has read.
    fn ask_without_reading(&mut self, open: &Open, ask: impl Fn(u64) -> ToReceiver) -> (Deaf, u64) {
        let (deaf, asked) = self.ask_some_without_reading(open, 10_000_000, ask);
        assert!(asked < 10_000_000, "it is never too much");
        (deaf, asked)
    }

    /// Like [`Self::ask_without_reading`], with at most `count` requests.
    fn ask_some_without_reading(
        &mut self,
        open: &Open,
        most: u64,
        ask: impl Fn(u64) -> ToReceiver,
    ) -> (Deaf, u64) {
        self.transfers += 1;
        let run = [self.transfers; 16];
        self.runtime.block_on(async {
            let control = self.greet(TransferId(run), Role::Control).await;
            let (unread, mut writer) = control_pair(control);
            writer
                .send(&encode_message(&ToReceiver::Open(Open {
                    run,
                    ..open.clone()
                })))
                .await
                .unwrap();
            let mut asked = 0;
            while asked < most
                && self
                    .send_unless_stopped(&mut writer, &encode_message(&ask(asked)))
                    .await
            {
                asked += 1;
            }
            (Deaf(unread, writer), asked)
        })
    }

    /// Sends the same message repeatedly until the daemon reads no more.
    fn say_without_end(&self, Deaf(_, writer): &mut Deaf, message: &ToReceiver) {
        let bytes = encode_message(message);
        self.runtime
            .block_on(async { while self.send_unless_stopped(writer, &bytes).await {} });
    }

    /// Sends these bytes. Returns `false` if the daemon stops reading. A daemon that still wants to read and only waits
    /// for a processor is not at rest.
    async fn send_unless_stopped(&self, writer: &mut ControlWriter, bytes: &[u8]) -> bool {
        let mut sending = std::pin::pin!(writer.send(bytes));
        let mut at_rest = 0;
        while at_rest < LOOKS_AT_REST {
            if let Ok(sent) = tokio::time::timeout(BETWEEN_LOOKS, &mut sending).await {
                return sent.is_ok();
            }
            at_rest = if is_at_rest(self.site) {
                at_rest + 1
            } else {
                0
            };
        }
        false
    }

    fn say(&self, transfer: &mut Transfer, message: &ToReceiver) {
        // The daemon may have closed the connection.
        drop(
            self.runtime
                .block_on(transfer.control.send(&encode_message(message))),
        );
    }
}

impl Transfer {
    fn send(&mut self, header: FrameHeader, head: Vec<u8>, content: &[u8; 32], data: &[u8]) {
        let header = FrameHeader {
            head_bytes: u32::try_from(head.len()).unwrap(),
            data_bytes: u32::try_from(data.len()).unwrap(),
            ..header
        };
        // The daemon may have closed the connection.
        drop(
            self.lane
                .send(frame(header, head, content, data), &mut self.clock.start()),
        );
    }

    fn next_item(&mut self) -> ItemId {
        self.item += 1;
        ItemId(self.item - 1)
    }

    fn send_batch(&mut self, group: DirectoryGroup) {
        let head = Batch {
            groups: vec![group],
        }
        .encode();
        let header = FrameHeader {
            kind: FrameKind::Batch,
            item: self.next_item(),
            ..FrameHeader::default()
        };
        let content = *blake3::hash(&head).as_bytes();
        self.send(header, head, &content, &[]);
    }

    /// Declares a file of `groups` groups and a byte, and sends that byte.
    fn begin_file(&mut self, file: u64, to: &str, groups: u64) {
        let bytes = groups * GROUP_BYTES + 1;
        let head = FileHead {
            path: path(to),
            metadata: metadata(0o644),
            bytes,
            ctime: Timestamp::default(),
            inode: file,
            data: None,
        };
        let head = head.encode();
        let content = *blake3::hash(&head).as_bytes();
        let header = FrameHeader {
            kind: FrameKind::Declare,
            file: FileId(file),
            ..FrameHeader::default()
        };
        self.send(header, head, &content, &[]);
        let last = u32::try_from(groups).unwrap();
        let header = FrameHeader {
            kind: FrameKind::Chunk,
            file: FileId(file),
            group: last,
            item: self.next_item(),
            ..FrameHeader::default()
        };
        self.send(
            header,
            Vec::new(),
            &zmove_chunk::group_cv(last, b"x").0,
            b"x",
        );
    }

    /// Returns the daemon's next answer, or `None` if the daemon has ended the transfer.
    fn next_answer(&mut self) -> Option<ToSender> {
        match self.answers.recv_timeout(PATIENCE) {
            Ok(answer) => Some(answer),
            Err(mpsc::RecvTimeoutError::Disconnected) => None,
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("the daemon says nothing"),
        }
    }

    /// Waits until `wanted` items are settled, and returns the number of failed files.
    fn wait_for_items(&mut self, wanted: usize) -> usize {
        let (mut settled, mut failed) = (0, 0);
        while settled < wanted {
            match self.next_answer() {
                Some(ToSender::Stored(stored)) => {
                    settled += stored.items.len();
                    failed += stored
                        .files
                        .iter()
                        .filter(|file| file.fault.is_some())
                        .count();
                }
                Some(_) => {}
                None => panic!("broken off after {settled} items"),
            }
        }
        failed
    }

    /// Waits until `batches` batches are published. If the daemon aborts the transfer, returns the reason.
    fn wait_until_published(&mut self, mut batches: usize) -> Option<String> {
        while batches > 0 {
            match self.next_answer() {
                Some(ToSender::Published { items }) => batches -= items.len(),
                Some(ToSender::Refused(refusal)) => return Some(refusal.text),
                Some(_) => {}
                None => panic!("broken off"),
            }
        }
        None
    }

    /// Waits until the daemon aborts the transfer, and returns the reason.
    fn wait_for_end(&mut self) -> String {
        let mut last = None;
        while let Some(answer) = self.next_answer() {
            last = Some(answer);
        }
        let Some(ToSender::Refused(refusal)) = last else {
            panic!("{last:?}")
        };
        refusal.text
    }
}

impl Drop for Transfer {
    /// The connection ends when both of its halves are dropped.
    fn drop(&mut self) {
        self.reading.abort();
    }
}

fn open() -> Open {
    Open::new(Vec::new(), [0; 16])
}

/// Creates `files` names of 250 bytes. They are names of one empty file, since links are created and removed faster
/// than files.
fn fill(directory: &Path, files: usize) {
    let name = |number: usize| directory.join(format!("{number:0250}"));
    std::fs::write(name(0), "").unwrap();
    (1..files).for_each(|number| std::fs::hard_link(name(0), name(number)).unwrap());
}

/// Asks for the names of a directory in which the sender has no entries.
fn list_all(directory: &str, number: u64) -> ToReceiver {
    let range = NameRange {
        directory: path(directory),
        after: None,
        names: Vec::new(),
        open: true,
    };
    list(number, vec![range])
}

fn list(number: u64, ranges: Vec<NameRange>) -> ToReceiver {
    ToReceiver::Request(Request {
        number,
        question: Question::Extraneous(ranges),
    })
}

/// Returns the number of the request to which this list of extraneous names belongs.
fn lists(answer: &ToSender) -> Option<u64> {
    match answer {
        ToSender::Reply(Reply {
            number,
            answer: Answer::Extraneous(_),
        }) => Some(*number),
        _ => None,
    }
}

fn site() -> Site {
    configured("")
}

/// A site with these limits, whose client's push takes a short time.
fn configured(limits: &str) -> Site {
    let site = Site::limited(limits);
    for number in 0..40 {
        paint(site.source().join(format!("f{number}")), 100_000);
    }
    site
}

/// Asserts that the push of the other key completes before any work for the greedy key, which takes longer.
#[track_caller]
fn assert_well_and_soon(site: &Site, resting_kib: u64) {
    let started = Instant::now();
    assert_well(site, resting_kib);
    assert!(started.elapsed() < PROMPT, "{:?}", started.elapsed());
}

/// Asserts that the push of the other key completes, and that the daemon's peak memory is below the limit.
#[track_caller]
fn assert_well(site: &Site, resting_kib: u64) {
    site.push(&["--timeout", "0"], site.contents(), "").done();
    assert_same(&site.source(), &site.target());
    let peak = site.the_daemon().peak_memory_kib();
    assert!(
        peak < resting_kib + GROWTH_KIB_MAX,
        "{resting_kib} KiB at rest, {peak} KiB at most"
    );
}

/// A path of nested directories that is nearly as long as allowed.
fn deep() -> String {
    vec!["d".repeat(250); 259].join("/")
}

/// 2,048 entries for one directory, each sent with the directory's path. They would need 130 MB if each kept a copy.
#[test]
fn a_path_that_is_named_thousands_of_times_is_kept_once() {
    let site = site();
    let mut greedy = Greedy::new(&site);
    let resting = site.the_daemon().memory_kib();
    let mut transfer = greedy.open(&open());
    for _ in 0..10 {
        let entries = vec![BatchEntry::Itself(metadata(0o755)); 2048];
        transfer.send_batch(DirectoryGroup {
            directory: path(&deep()),
            entries,
        });
    }
    assert_eq!(transfer.wait_for_items(10), 0);
    assert_well(&site, resting);
}

/// Entries for one directory are sent repeatedly, and each is remembered until the end.
#[test]
fn too_many_directories_to_remember_end_only_their_own_transfer() {
    let site = configured("memory_per_identity = \"64MiB\"");
    let mut greedy = Greedy::new(&site);
    let resting = site.the_daemon().memory_kib();
    let mut transfer = greedy.open(&open());
    let group = || DirectoryGroup {
        directory: path("d"),
        entries: vec![BatchEntry::Itself(metadata(0o755)); 2048],
    };
    // The batches need twice the allowed memory.
    (0..1000).for_each(|_| transfer.send_batch(group()));
    assert!(
        transfer
            .wait_for_end()
            .contains("limits.memory_per_identity")
    );
    assert_well(&site, resting);
}

/// Rules that protect directories. Each byte of a pattern needs some 64 bytes after compilation.
#[test]
fn the_rules_of_openings_are_limited_and_charged() {
    let site = configured("memory_per_identity = \"64MiB\"");
    let mut greedy = Greedy::new(&site);
    let rule = |bytes| RuleText {
        pattern: vec![b'a'; bytes],
        includes: false,
    };
    let mut open = Open {
        protected: vec![rule(65); 4096],
        ..open()
    };
    let Err(ToSender::Refused(refusal)) = greedy.try_open(&open) else {
        panic!("rules without a limit");
    };
    assert_eq!(refusal.code, RefusalCode::Protocol);
    assert!(
        refusal.text.contains("patterns of a selection"),
        "{refusal:?}"
    );
    // The rules of each opening take 16 MiB.
    open.protected = vec![rule(64); 4096];
    let opened: Vec<_> = (0..3).map(|_| greedy.open(&open)).collect();
    let Err(ToSender::Refused(refusal)) = greedy.try_open(&open) else {
        panic!("rules without a booking");
    };
    assert!(
        refusal.text.contains("limits.memory_per_identity"),
        "{refusal:?}"
    );
    // The end of these transfers releases the memory.
    drop(opened);
    let begun = Instant::now();
    while greedy.try_open(&open).is_err() {
        assert!(begun.elapsed() < PATIENCE, "the rules stay booked");
        // Limits the number of attempts, since the number of a transfer is a byte.
        std::thread::sleep(PATIENCE / 200);
    }
}

/// Names at the top of the target, as many as fit into a message, and the maximum number of offers in flight.
#[test]
fn offers_do_not_copy_the_names_of_the_opening() {
    let _quiet = quiet_machine();
    let site = site();
    let mut greedy = Greedy::new(&site);
    sparse(&greedy.root().join("huge"));
    let resting = site.the_daemon().memory_kib();
    let tops = (0..262_144)
        .map(|number| name(&format!("{number:x}")))
        .collect();
    let mut transfer = greedy.open(&Open {
        shape: TargetShape::Directory { tops },
        compare: Compare::Checksum,
        ..open()
    });
    for offer in 0..32 {
        greedy.say(&mut transfer, &offer_of("huge", offer));
    }
    wait_for_threads(&site, 32);
    assert_well(&site, resting);
}

/// Each request has an answer of a megabyte. The answers are not read.
#[test]
fn the_memory_of_unread_answers_is_limited() {
    let site = site();
    let mut greedy = Greedy::new(&site);
    std::fs::create_dir(greedy.root().join("many")).unwrap();
    fill(&greedy.root().join("many"), 4096);
    let resting = site.the_daemon().memory_kib();
    let keep = |number| list_all("many", number);
    let open = Open {
        extraneous: Extraneous::Goes,
        ..open()
    };
    let mut deaf = Vec::new();
    for _ in 0..4 {
        let (connection, asked) = greedy.ask_without_reading(&open, keep);
        assert!(asked >= 8, "{asked}");
        deaf.push(connection);
    }
    assert_well_and_soon(&site, resting);
}

/// The answers have 4 MiB each. Two are read, so that the following ones are about to be sent. Then no more are read.
#[test]
fn answers_of_which_only_the_first_are_read_stay_charged() {
    let site = configured("memory_per_identity = \"64MiB\"");
    let mut greedy = Greedy::new(&site);
    fill(&greedy.root(), 17_000);
    let resting = site.the_daemon().memory_kib();
    let keep = |number| list_all("", number);
    let open = Open {
        extraneous: Extraneous::Goes,
        ..open()
    };
    let mut deaf = Vec::new();
    for _ in 0..9 {
        let (Deaf(mut reader, writer), _) = greedy.ask_some_without_reading(&open, 8, keep);
        wait_until_idle(&site);
        greedy.runtime.block_on(async {
            // A connection without available memory is closed.
            if reader.greeting().await.is_ok() {
                for _opened_and_two_answers in 0..3 {
                    drop(reader.receive().await);
                }
            }
        });
        wait_until_idle(&site);
        deaf.push(Deaf(reader, writer));
    }
    assert_well_and_soon(&site, resting);
}

/// Number of consecutive checks after which an idle daemon counts as at rest.
const LOOKS_AT_REST: u32 = 4;
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// Whether all threads of the daemon sleep. A thread that waits for a processor or a disk does not.
fn is_at_rest(site: &Site) -> bool {
    let threads = site.the_daemon().threads();
    threads.iter().all(|status| status.contains("State:\tS"))
}

/// Waits until the daemon is idle.
#[track_caller]
fn wait_until_idle(site: &Site) {
    let started = Instant::now();
    let mut at_rest = 0;
    while at_rest < LOOKS_AT_REST {
        assert!(started.elapsed() < PATIENCE, "it goes on");
        at_rest = if is_at_rest(site) { at_rest + 1 } else { 0 };
        std::thread::sleep(BETWEEN_LOOKS);
    }
}

/// Waits until the daemon has `wanted` threads, so that it processes the requests.
#[track_caller]
fn wait_for_threads(site: &Site, wanted: usize) {
    let started = Instant::now();
    while site.the_daemon().threads().len() < wanted {
        assert!(
            started.elapsed() < PATIENCE,
            "{} threads",
            site.the_daemon().threads().len()
        );
        std::thread::sleep(BETWEEN_LOOKS);
    }
}

/// Waits until the daemon has few threads. The work for a request must end when its client disconnects.
#[track_caller]
fn wait_for_few_threads(site: &Site) {
    let (started, threads) = (Instant::now(), || site.the_daemon().threads().len());
    while threads() > 100 {
        assert!(started.elapsed() < PATIENCE, "{} threads go on", threads());
        std::thread::sleep(BETWEEN_LOOKS);
    }
}

/// Creates a sparse file that takes hours to hash and occupies no space.
fn sparse(path: &Path) {
    std::fs::File::create(path)
        .unwrap()
        .set_len(SPARSE_BYTES)
        .unwrap();
}

const SPARSE_BYTES: u64 = 8 << 40;

/// The mark of a source file that has not changed for a long time.
fn old_mark() -> SourceMark {
    let ctime = Timestamp {
        seconds: 1,
        nanos: 0,
    };
    SourceMark { inode: 1, ctime }
}

/// Asks whether this existing file is the one that would be sent.
fn offer_of(file: &str, number: u64) -> ToReceiver {
    let mark = Some(old_mark());
    let metadata = SourceMetadata {
        metadata: zmove_types::Metadata::new(0o644, old_mark().ctime),
        xattrs: None,
    };
    let kind = SourceKind::File {
        bytes: SPARSE_BYTES,
        mark,
    };
    let groups = vec![EntryGroup {
        directory: path(""),
        itself: None,
        entries: vec![SourceEntry {
            name: name(file),
            kind,
            metadata,
        }],
    }];
    ToReceiver::Request(Request {
        number,
        question: Question::Send(groups),
    })
}

/// A key has its maximum number of offers in flight, in its maximum number of transfers. This is more than the daemon
/// has threads for the work of other keys.
#[test]
fn files_that_take_hours_to_hash_do_not_delay_other_keys() {
    let _quiet = quiet_machine();
    let site = site();
    let mut greedy = Greedy::new(&site);
    sparse(&greedy.root().join("huge"));
    let resting = site.the_daemon().memory_kib();
    let mut transfers = Vec::new();
    for _ in 0..20 {
        let mut transfer = greedy.open(&Open {
            compare: Compare::Checksum,
            ..open()
        });
        for offer in 0..32 {
            greedy.say(&mut transfer, &offer_of("huge", offer));
        }
        transfers.push(transfer);
    }
    wait_for_threads(&site, 200);
    assert_well_and_soon(&site, resting);
    let threads = || site.the_daemon().threads().len();
    assert!(threads() < 600, "{} threads", threads());
    drop(transfers);
    wait_for_few_threads(&site);
}

/// A key has its maximum number of directory lists in flight, in its maximum number of transfers. Each list is 150
/// bytes long and has 80,000 entries to check, none of which is reported.
#[test]
fn directories_that_take_long_to_list_do_not_delay_other_keys() {
    let _quiet = quiet_machine();
    let site = site();
    let mut greedy = Greedy::new(&site);
    let ranges = (0..20).map(|number| {
        let directory = greedy.root().join(format!("{number}"));
        std::fs::create_dir(&directory).unwrap();
        // Hard links are created faster than files.
        let first = directory.join("first");
        std::fs::write(&first, "").unwrap();
        (0..4000).for_each(|file| {
            std::fs::hard_link(&first, directory.join(format!("{file}"))).unwrap()
        });
        NameRange {
            directory: path(&format!("{number}")),
            after: None,
            names: Vec::new(),
            open: false,
        }
    });
    let ranges: Vec<_> = ranges.collect();
    let resting = site.the_daemon().memory_kib();
    let mut ask = |intent| {
        let open = Open {
            extraneous: Extraneous::Goes,
            intent,
            ..open()
        };
        let mut transfers: Vec<_> = (0..30).map(|_| greedy.open(&open)).collect();
        for transfer in &mut transfers {
            for number in 0..8 {
                greedy.say(transfer, &list(number, ranges.clone()));
            }
        }
        wait_for_threads(&site, 150);
        transfers
    };
    for intent in [Intent::Write, Intent::Inspect] {
        let transfers = ask(intent);
        let before = site.the_daemon().cpu_time();
        drop(transfers);
        wait_for_few_threads(&site);
        let taken = site.the_daemon().cpu_time() - before;
        assert!(
            taken < Duration::from_secs(3),
            "{taken:?} when nobody asks any more"
        );
    }
    let _transfers = ask(Intent::Write);
    assert_well_and_soon(&site, resting);
}

/// A site whose daemon has a limit of 1,024 descriptors.
fn of_few_descriptors() -> Site {
    let mut site = Site::local();
    site.run_by_script(&format!(
        "ulimit -Sn 1024; ulimit -Hn 1024\nexec {ZMOVE} \"$@\""
    ));
    site.start_daemon();
    paint(site.source().join("f"), 100_000);
    paint(site.source().join("large"), 3 * GROUP_BYTES);
    site
}

/// Opens as many transfers with 33 lanes each as are accepted. Over TCP each lane has a descriptor.
#[test]
fn the_descriptors_of_lanes_are_limited_by_key() {
    let site = of_few_descriptors();
    site.the_daemon().wait_for_log("lanes_per_identity = 128");
    let mut greedy = Greedy::new(&site);
    let resting = site.the_daemon().memory_kib();
    let (mut transfers, mut lanes) = (Vec::new(), Vec::new());
    while let Ok(transfer) = greedy.try_open(&open()) {
        transfers.push(transfer);
        let id = TransferId([greedy.transfers; 16]);
        for lane in 1..33 {
            lanes.push(
                greedy
                    .runtime
                    .block_on(greedy.greet(id, Role::Lane(LaneId(lane)))),
            );
        }
    }
    assert!(transfers.len() > 4, "{} transfers", transfers.len());
    let open = site.the_daemon().open_files();
    assert!(open < 512, "{open} descriptors");
    assert_well_and_soon(&site, resting);
}

/// Sends one byte of each large file. Each of these files stays open.
#[test]
fn the_descriptors_of_unfinished_files_are_limited_by_key() {
    let site = of_few_descriptors();
    let mut greedy = Greedy::new(&site);
    let resting = site.the_daemon().memory_kib();
    let mut transfers = Vec::new();
    let mut failed = 0;
    for _ in 0..4 {
        let mut transfer = greedy.open(&open());
        for file in 0..400 {
            transfer.begin_file(file, &format!("{file}"), 1);
        }
        failed += transfer.wait_for_items(400);
        transfers.push(transfer);
    }
    assert!(failed > 1400, "{failed} files have failed");
    let open = site.the_daemon().open_files();
    assert!(open < 512, "{open} descriptors");
    assert_well(&site, resting);
}

/// The transfer is aborted while client data is in a program that belongs to root.
#[test]
fn setuid_is_removed_before_the_first_byte_is_written_in_place() {
    if !crate::targets::faults::can_inject() {
        return skip("strace cannot run here: nothing shows the order of system calls");
    }
    let mut site = Site::local();
    let log = site.path("strace.log");
    site.run_by_script(&format!(
        "exec strace -D -f -qq -o '{}' -P '{}' -e trace=fchmod,write,pwrite64,pwritev,pwritev2 {ZMOVE} \"$@\"",
        log.display(),
        site.path("theirs/tool").display()
    ));
    site.start_daemon_with(&["--io-engine", "threads"]);
    paint(site.source().join("f"), 100_000);
    let mut greedy = Greedy::new(&site);
    let tool = greedy.root().join("tool");
    std::fs::write(&tool, "of root").unwrap();
    let mode = || tool.metadata().unwrap().mode() & 0o7777;
    std::fs::set_permissions(&tool, PermissionsExt::from_mode(0o4755)).unwrap();
    let mut transfer = greedy.open(&Open {
        inplace: true,
        durability: Durability::End,
        ..open()
    });
    transfer.begin_file(1, "tool", 1);
    assert_eq!(transfer.wait_for_items(1), 0);
    // Nobody may execute the file that is being received.
    assert_eq!(mode(), 0o744, "while it is changed");
    drop(transfer);
    site.the_daemon().wait_for_log("broken off by greedy");
    assert_eq!(mode(), 0o744, "and when that has broken off");
    let log = std::fs::read_to_string(log).unwrap();
    let first = |call: &str| log.lines().position(|line| line.contains(call));
    let calls = [first(" fchmod("), first(" pwrite")];
    assert!(calls[0].is_some() && calls[0] < calls[1], "{log}");
    let resting = site.the_daemon().memory_kib();
    assert_well(&site, resting);
}

/// Transfers that are aborted one after the other, each in a different directory.
#[test]
fn the_leftovers_of_broken_transfers_are_limited_by_key() {
    let site = configured("journals_per_identity = 3");
    let mut greedy = Greedy::new(&site);
    let journals = || {
        std::fs::read_dir(site.path("server/journal")).map_or(0, |entries| {
            entries
                .filter(|entry| {
                    entry
                        .as_ref()
                        .unwrap()
                        .path()
                        .extension()
                        .is_some_and(|end| end == "journal")
                })
                .count()
        })
    };
    for number in 0..5 {
        let target = format!("to{number}").into_bytes();
        let mut transfer = greedy.open(&Open {
            target,
            durability: Durability::End,
            ..open()
        });
        transfer.begin_file(1, "large", 5);
        assert_eq!(transfer.wait_for_items(1), 0);
        let expected = (number + 1).min(3);
        assert_eq!(journals(), expected);
        drop(transfer);
        site.the_daemon()
            .wait_for_logs("broken off by greedy", number + 1);
    }
    assert_eq!(journals(), 3);
    let hidden = |number: usize| {
        std::fs::read_dir(greedy.root().join(format!("to{number}")))
            .unwrap()
            .count()
    };
    assert_eq!(
        (0..5).map(hidden).collect::<Vec<_>>(),
        [1, 1, 1, 0, 0],
        "without a journal nothing stays"
    );
    // The other key has separate journals.
    site.authorize(Access::ReadWrite);
    let resting = site.the_daemon().memory_kib();
    assert_well(&site, resting);
}

/// Gives up files that were never declared.
#[test]
fn giving_up_files_that_were_not_started_ends_the_transfer() {
    let site = site();
    let mut greedy = Greedy::new(&site);
    let resting = site.the_daemon().memory_kib();
    let mut transfer = greedy.open(&open());
    let flood: Vec<u8> = (0..5000)
        .flat_map(|file| encode_message(&ToReceiver::Abandon { file }))
        .collect();
    drop(greedy.runtime.block_on(transfer.control.send(&flood)));
    assert!(transfer.wait_for_end().contains("not started"));
    assert_well(&site, resting);
}

/// Sends lists of names with maximum length, 27 MB each in memory, that wait for sessions whose answers are not read.
#[test]
fn the_memory_of_waiting_messages_is_limited() {
    let site = configured("memory_per_identity = \"64MiB\"");
    let mut greedy = Greedy::new(&site);
    fill(&greedy.root(), 17_000);
    let resting = site.the_daemon().memory_kib();
    let names = |count: usize| {
        (0..count)
            .map(|number| name(&format!("{number:06}")))
            .collect()
    };
    let range = NameRange {
        directory: path(""),
        after: None,
        names: names(200_000),
        open: true,
    };
    let keep = list(1, vec![range]);
    let goes = Open {
        extraneous: Extraneous::Goes,
        ..open()
    };
    let ask = |number| list_all("", number);
    let mut deaf: Vec<_> = (0..2)
        .map(|_| greedy.ask_some_without_reading(&goes, 4, ask).0)
        .collect();
    deaf.iter_mut()
        .for_each(|deaf| greedy.say_without_end(deaf, &keep));
    site.the_daemon().wait_for_log("limits.memory_per_identity");
    assert_well_and_soon(&site, resting);
}

/// Sends openings with the maximum number of names, 12 MB each in memory, that wait for sessions whose answers are not
/// read.
#[test]
fn a_second_opening_is_charged_and_ends_the_transfer() {
    let site = site();
    let mut greedy = Greedy::new(&site);
    fill(&greedy.root(), 17_000);
    let resting = site.the_daemon().memory_kib();
    let keep = |number| list_all("", number);
    let goes = Open {
        extraneous: Extraneous::Goes,
        ..open()
    };
    let mut deaf: Vec<_> = (0..2)
        .map(|_| greedy.ask_some_without_reading(&goes, 4, keep).0)
        .collect();
    // By the time this last session is answered, the earlier ones would have been answered too.
    let mut transfer = greedy.open(&goes);
    (0..4).for_each(|number| greedy.say(&mut transfer, &keep(number)));
    for _ in 0..4 {
        assert!(transfer.next_answer().as_ref().and_then(lists).is_some());
    }
    let tops = (0..262_144)
        .map(|number| name(&format!("{number:x}")))
        .collect();
    let again = Open {
        shape: TargetShape::Directory { tops },
        ..open()
    };
    let again = ToReceiver::Open(again);
    for deaf in &mut deaf {
        greedy.say_without_end(deaf, &again);
    }
    assert_well_and_soon(&site, resting);
    greedy.say(&mut transfer, &again);
    assert!(transfer.wait_for_end().contains("a second opening"));
}

/// Nested lists, each of maximum length: 7.5 MiB to send, 190 MB in memory.
#[test]
fn nested_lists_are_decoded_up_to_the_limit_of_a_message() {
    let site = site();
    let mut greedy = Greedy::new(&site);
    let resting = site.the_daemon().memory_kib();
    let range = [
        &[0, 0, 0x80, 0x80, 16][..],
        &[1, b'a'].repeat(262_144),
        &[1],
    ]
    .concat();
    let body = [&[1, 1, 3, 15][..], &range.repeat(15)].concat();
    let message = [&u32::try_from(body.len()).unwrap().to_le_bytes()[..], &body].concat();
    let mut transfer = greedy.open(&Open {
        extraneous: Extraneous::Goes,
        ..open()
    });
    drop(greedy.runtime.block_on(transfer.control.send(&message)));
    assert!(
        transfer
            .wait_for_end()
            .contains("number of names and paths in a message")
    );
    assert_well(&site, resting);
}

/// Previews whose answers of 4 MiB each are not read. A request needs 20 bytes.
#[test]
fn unread_answers_of_previews_are_charged() {
    let site = configured("memory_per_identity = \"64MiB\"");
    let mut greedy = Greedy::new(&site);
    fill(&greedy.root(), 17_000);
    let resting = site.the_daemon().memory_kib();
    let list = |number| list_all("", number);
    let open = Open {
        intent: Intent::Inspect,
        extraneous: Extraneous::Goes,
        ..open()
    };
    let _deaf: Vec<_> = (0..8)
        .map(|_| greedy.ask_some_without_reading(&open, 8, list))
        .collect();
    // By the time this last session is answered, the earlier ones would have been answered too, if their answers were
    // read.
    if let Ok(mut last) = greedy.try_open(&open) {
        (0..8).for_each(|number| greedy.say(&mut last, &list(number)));
        // There may be no memory for the requests either.
        while let Some(number) = last.next_answer().as_ref().and_then(lists) {
            if number == 7 {
                break;
            }
        }
    }
    assert_well_and_soon(&site, resting);
}

/// The maximum number of requests in flight remove the same large directory. They would need 12 MB for names if each
/// request kept all of them.
#[test]
fn the_names_of_a_directory_are_not_kept_to_remove_it() {
    let site = site();
    let mut greedy = Greedy::new(&site);
    std::fs::create_dir(greedy.root().join("many")).unwrap();
    fill(&greedy.root().join("many"), 40_000);
    let resting = site.the_daemon().memory_kib();
    let open = Open {
        extraneous: Extraneous::Goes,
        ..open()
    };
    let mut transfers: Vec<_> = (0..8).map(|_| greedy.open(&open)).collect();
    for transfer in &mut transfers {
        for remove in 0..8 {
            let groups = vec![RemoveGroup {
                directory: path(""),
                names: vec![name("many")],
            }];
            greedy.say(transfer, &ToReceiver::Remove(Remove { remove, groups }));
        }
    }
    let mut removed = 0;
    for transfer in &mut transfers {
        for _ in 0..8 {
            let Some(ToSender::Removed { entries, .. }) = transfer.next_answer() else {
                panic!("no answer")
            };
            removed += entries;
        }
    }
    assert_eq!(
        (removed, greedy.root().join("many").exists()),
        (40_001, false)
    );
    assert_well(&site, resting);
}
