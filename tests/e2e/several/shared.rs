//! Several daemons in separate processes that write one job into one directory, like receivers on different hosts.
//!
//! The test implements the senders: each is connected to one daemon and sends the orders that a queue would cause.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::runtime::Runtime;
use zmove_transport::{
    Access, AuthorizedKeys, Channel, ControlWriter, Grant, Identity, LaneSink, TransportChoice,
    control_pair,
};
use zmove_types::{
    Beginning, FileId, GROUP_BYTES, ItemId, LaneId, SharedJobId, StageClock, Timestamp, TransferId,
};
use zmove_wire::{
    Batch, BatchEntry, Cipher, DirectoryGroup, Durability, FaultCode, FileEntry, FileHead,
    FrameHeader, FrameKind, Greeting, Open, Operation, RefusalCode, Role, SharedJobAnswer,
    SharedJobOpening, SharedJobOrder, SharedJobRequest, SharedJobResult, ToReceiver, ToSender,
    decode_message, encode_message,
};

use crate::security::intruder::{frame, metadata, name, path};
use crate::support::command::Runner;
use crate::support::daemon::Daemon;
use crate::support::harness::{PATIENCE, Site, allow_to_lead, runtime};
use crate::support::host::{greet, read_answers};

const JOB: SharedJobId = SharedJobId([9; 16]);

/// Hosts that share a directory, and a key that may write there.
struct Cluster {
    site: Site,
    runtime: Runtime,
    identity: Identity,
    sessions: std::cell::Cell<u8>,
    nodes: usize,
}

/// A daemon of the cluster.
struct Node(Daemon);

/// A session of a sender with a node.
struct Mover<'a> {
    cluster: &'a Cluster,
    control: ControlWriter,
    answers: mpsc::Receiver<ToSender>,
    reading: tokio::task::JoinHandle<()>,
    lane: Box<dyn LaneSink>,
    clock: StageClock,
    items: u64,
    orders: u64,
    faults: Vec<FaultCode>,
}

impl Cluster {
    fn new() -> Self {
        let site = Site::local();
        let identity = Identity::load_or_create(&site.path("mover")).unwrap();
        std::fs::create_dir_all(site.path("shared")).unwrap();
        Self {
            site,
            runtime: runtime(),
            identity,
            sessions: std::cell::Cell::new(0),
            nodes: 0,
        }
    }

    fn root(&self) -> PathBuf {
        self.site.path("shared")
    }

    /// Starts another node.
    fn start(&mut self) -> Node {
        self.nodes += 1;
        let home = self.site.path(&format!("node{}", self.nodes));
        std::fs::create_dir_all(&home).unwrap();
        let roots = vec![self.root().canonicalize().unwrap()];
        let grant = Grant::new(
            self.identity.fingerprint(),
            "mover",
            roots,
            Access::ReadWrite,
        );
        allow_to_lead(&home, grant);
        let options = ["--listen", "127.0.0.1:0"];
        Node(Daemon::start_with(&home, &options, &Runner::default()))
    }

    /// Begins a session with another identity. Returns the node's answer if it is refused.
    fn try_begin_as(&mut self, other: Identity, node: &Node) -> Result<(), ToSender> {
        let own = std::mem::replace(&mut self.identity, other);
        let begun = self.try_begin(node).map(drop);
        self.identity = own;
        begun
    }

    async fn greet(&self, node: &Node, transfer: TransferId, role: Role) -> Channel {
        let greeting = Greeting::new(role, transfer);
        greet(&node.0, &self.identity, TransportChoice::Tcp, greeting).await
    }

    /// Begins a session with a node. Returns the node's answer if it is refused.
    fn try_begin(&self, node: &Node) -> Result<Mover<'_>, ToSender> {
        self.sessions.set(self.sessions.get() + 1);
        let run = [self.sessions.get(); 16];
        let transfer = TransferId(run);
        let job = SharedJobOpening {
            job: JOB,
            beginning: Beginning::Allowed,
            leads: true,
        };
        let open = Open {
            durability: Durability::End,
            shared_job: Some(Box::new(job)),
            ..Open::new(Vec::new(), run)
        };
        let (control, answers, reading, lane) = self.runtime.block_on(async {
            let (mut reader, mut writer) =
                control_pair(self.greet(node, transfer, Role::Control).await);
            reader.greeting().await.unwrap();
            writer
                .send(&encode_message(&ToReceiver::Open(open)))
                .await
                .unwrap();
            let mut inbox = reader.into_inbox(decode_message::<ToSender>, 16);
            loop {
                match tokio::time::timeout(PATIENCE, inbox.recv())
                    .await
                    .unwrap()
                    .unwrap()
                    .unwrap()
                {
                    ToSender::RateMax { .. } | ToSender::Waiting(_) => {}
                    ToSender::Opened(_) => break,
                    other => return Err(other),
                }
            }
            let (answers, reading) = read_answers(inbox);
            let lane = self.greet(node, transfer, Role::Lane(LaneId(0))).await;
            Ok((
                writer,
                answers,
                reading,
                lane.into_sink(Cipher::Tls, 1).unwrap(),
            ))
        })?;
        let (clock, faults) = (StageClock::default(), Vec::new());
        Ok(Mover {
            cluster: self,
            control,
            answers,
            reading,
            lane,
            clock,
            items: 0,
            orders: 0,
            faults,
        })
    }

    fn begin(&self, node: &Node) -> Mover<'_> {
        self.try_begin(node)
            .unwrap_or_else(|said| panic!("{said:?}"))
    }

    /// Number of files that have not been renamed into place.
    fn waiting(&self) -> usize {
        let Ok(sessions) = std::fs::read_dir(self.root().join(format!(".zmove-job-{JOB}"))) else {
            return 0;
        };
        let files = |session: std::io::Result<std::fs::DirEntry>| {
            std::fs::read_dir(session.unwrap().path()).map_or(0, Iterator::count)
        };
        sessions.map(files).sum()
    }
}

impl Mover<'_> {
    fn send(&mut self, header: FrameHeader, head: Vec<u8>, content: &[u8; 32], data: &[u8]) {
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap();
        let header = FrameHeader {
            head_bytes: length(&head),
            data_bytes: length(data),
            ..header
        };
        // The node may have been killed.
        drop(
            self.lane
                .send(frame(header, head, content, data), &mut self.clock.start()),
        );
    }

    fn item(&mut self) -> ItemId {
        self.items += 1;
        ItemId(self.items - 1)
    }

    /// Sends files with these names, each with one byte.
    fn files(&mut self, directory: &str, names: impl Iterator<Item = String>, byte: u8) {
        let entry = |text: String| {
            let root = zmove_chunk::file_root(&[byte]);
            BatchEntry::File(FileEntry {
                name: name(&text),
                metadata: metadata(0o644),
                bytes: 1,
                root,
                data: None,
            })
        };
        let entries: Vec<_> = names.map(entry).collect();
        let data = vec![byte; entries.len()];
        let head = Batch {
            groups: vec![DirectoryGroup {
                directory: path(directory),
                entries,
            }],
        }
        .encode();
        let content = *blake3::hash(&head).as_bytes();
        let header = FrameHeader {
            kind: FrameKind::Batch,
            item: self.item(),
            ..FrameHeader::default()
        };
        self.send(header, head, &content, &data);
    }

    fn declare(&mut self, head: &FileHead) {
        let head = head.encode();
        let content = *blake3::hash(&head).as_bytes();
        let header = FrameHeader {
            kind: FrameKind::Declare,
            file: FileId(1),
            ..FrameHeader::default()
        };
        self.send(header, head, &content, &[]);
    }

    fn chunk(&mut self, group: u32, contents: &[u8]) {
        let at = usize::try_from(GROUP_BYTES).unwrap() * group as usize;
        let data = &contents[at..contents
            .len()
            .min(at + usize::try_from(GROUP_BYTES).unwrap())];
        let item = self.item();
        let header = FrameHeader {
            kind: FrameKind::Chunk,
            file: FileId(1),
            group,
            item,
            ..FrameHeader::default()
        };
        self.send(
            header,
            Vec::new(),
            &zmove_chunk::group_cv(group, data).0,
            data,
        );
    }

    fn next(&mut self) -> Option<ToSender> {
        let said = match self.answers.recv_timeout(PATIENCE) {
            Ok(answer) => answer,
            Err(mpsc::RecvTimeoutError::Disconnected) => return None,
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("the node says nothing"),
        };
        match &said {
            ToSender::Stored(told) => {
                self.faults.extend(
                    told.items
                        .iter()
                        .flat_map(|item| &item.faults)
                        .map(|fault| fault.code),
                );
            }
            ToSender::Published { items } => {
                self.faults.extend(
                    items
                        .iter()
                        .flat_map(|item| &item.faults)
                        .map(|fault| fault.code),
                );
            }
            _ => {}
        }
        Some(said)
    }

    fn stored(&mut self, wanted: usize) {
        let mut stored = 0;
        while stored < wanted {
            match self.next() {
                Some(ToSender::Stored(told)) => stored += told.items.len(),
                Some(_) => {}
                None => panic!("broken off after {stored} items"),
            }
        }
    }

    fn order(&mut self, order: SharedJobOrder) -> SharedJobResult {
        let number = self.say(order);
        loop {
            match self.next().expect("an answer") {
                ToSender::SharedJob(SharedJobAnswer {
                    number: answered,
                    result,
                }) if answered == number => {
                    return result;
                }
                _ => {}
            }
        }
    }

    fn say(&mut self, order: SharedJobOrder) -> u64 {
        self.orders += 1;
        let request = encode_message(&ToReceiver::SharedJob(SharedJobRequest {
            number: self.orders,
            order,
        }));
        self.cluster
            .runtime
            .block_on(self.control.send(&request))
            .unwrap();
        self.orders
    }

    fn finish(mut self) {
        let announce = encode_message(&ToReceiver::Announce {
            items: self.items,
            mismatches: 0,
        });
        self.cluster
            .runtime
            .block_on(self.control.send(&announce))
            .unwrap();
        let mut last = None;
        while let Some(said) = self.next() {
            last = Some(said);
        }
        assert!(matches!(last, Some(ToSender::Finished(_))), "{last:?}");
    }
}

impl Drop for Mover<'_> {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

/// Returns all files and directories below the root except those of the job, with contents and change times.
fn tree(root: &Path) -> BTreeMap<PathBuf, (u64, i64, i64, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            if path
                .file_name()
                .unwrap()
                .as_encoded_bytes()
                .starts_with(b".zmove-job-")
            {
                continue;
            }
            let there = path.symlink_metadata().unwrap();
            let contents = if there.is_file() {
                std::fs::read(&path).unwrap()
            } else {
                Vec::new()
            };
            if there.is_dir() {
                directories.push(path.clone());
            }
            found.insert(
                path,
                (there.ino(), there.ctime(), there.ctime_nsec(), contents),
            );
        }
    }
    found
}

fn contents(bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|at| (at / 11 + (at >> 15)).to_le_bytes()[0])
        .collect()
}

fn large(to: &str, contents: &[u8]) -> FileHead {
    let (bytes, ctime) = (
        contents.len() as u64,
        Timestamp {
            seconds: 1,
            nanos: 2,
        },
    );
    FileHead {
        path: path(to),
        metadata: metadata(0o640),
        bytes,
        ctime,
        inode: 3,
        data: None,
    }
}

/// The other key may write below the same root, and knows the job's id from the name of its directory.
#[test]
fn a_key_that_may_not_lead_cannot_take_over_or_begin_a_job() {
    let mut cluster = Cluster::new();
    let node = cluster.start();
    let other = || Identity::load_or_create(&cluster.site.path("other")).unwrap();
    let roots = vec![cluster.root().canonicalize().unwrap()];
    let grant = Grant::new(other().fingerprint(), "other", roots, Access::ReadWrite);
    AuthorizedKeys::allow(&cluster.site.path("node1"), grant).unwrap();
    let others = [other(), other()];
    let mut mover = cluster.begin(&node);
    let work = mover.order(SharedJobOrder::Settle);
    mover.finish();
    for other in others {
        let refusal = match cluster.try_begin_as(other, &node) {
            Err(ToSender::Refused(refusal)) => refusal,
            begun => panic!("{begun:?}"),
        };
        assert_eq!(refusal.code, RefusalCode::Denied);
        assert!(
            refusal.text.contains("zmove allow KEY --lead"),
            "{refusal:?}"
        );
    }
    assert_eq!(work, SETTLED);
    let mut mover = cluster.begin(&node);
    assert_eq!(mover.order(SharedJobOrder::Close), SharedJobResult::Done);
}

/// A node is stopped in the middle of a batch, like a client of a shared file system that hangs. The job ends, and then
/// the node resumes.
#[test]
fn a_node_that_was_stopped_and_wakes_up_after_the_end_of_the_job_changes_nothing() {
    let mut cluster = Cluster::new();
    let (old, new) = (cluster.start(), cluster.start());
    let names = |range: std::ops::Range<u32>| range.map(|number| format!("f{number}"));
    let file = contents(3 << 22);
    let head = large("large", &file);
    let mut sleeper = cluster.begin(&old);
    sleeper.declare(&head);
    sleeper.chunk(0, &file);
    sleeper.stored(1);
    // Stops the node while files wait to be renamed into place. The node renames them a fifth of a second after the
    // last file, and after a second at the latest.
    let began = Instant::now();
    let mut batches = 0;
    loop {
        sleeper.files("d", names(1000 * batches..1000 * (batches + 1)), b'o');
        batches += 1;
        while cluster.waiting() == 0 && began.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        old.0.signal(Signal::STOP);
        if cluster.waiting() > 0 {
            break;
        }
        old.0.signal(Signal::CONT);
    }
    let mut mover = cluster.begin(&new);
    mover.files("d", names(0..20), b'n');
    mover.stored(1);
    assert_eq!(mover.order(SharedJobOrder::Settle), SETTLED);
    assert_eq!(mover.order(SharedJobOrder::Close), SharedJobResult::Done);
    mover.finish();
    let before = tree(&cluster.root());
    old.0.signal(Signal::CONT);
    sleeper.chunk(1, &file);
    sleeper.files("d", names(0..20), b'o');
    sleeper.stored(usize::try_from(batches).unwrap() + 2);
    let ended = SharedJobResult::Failed(Operation::Rename, FaultCode::JobEnded);
    assert_eq!(sleeper.order(SharedJobOrder::Settle), ended);
    let commit = SharedJobOrder::Commit {
        head: head.encode(),
    };
    assert_eq!(sleeper.order(commit), ended);
    let failed = sleeper
        .faults
        .iter()
        .filter(|code| **code == FaultCode::JobEnded)
        .count();
    assert!(
        failed >= 20 && failed == sleeper.faults.len(),
        "{failed} of {}",
        sleeper.faults.len()
    );
    sleeper.finish();
    assert!(tree(&cluster.root()) == before, "something has changed");
}

/// Each of two nodes stores half of a file, in any order. One is killed, and others repeat all of its work.
#[test]
fn a_large_file_of_two_nodes_arrives_if_one_is_killed() {
    for seed in 0..3_u32 {
        let mut cluster = Cluster::new();
        let file = contents((9 << 22) + 77);
        let head = large("d/large", &file);
        let groups: Vec<u32> = (0..10).map(|at| (at * 7 + seed) % 10).collect();
        let (one, other) = (cluster.start(), cluster.start());
        let mut movers = [cluster.begin(&one), cluster.begin(&other)];
        for (mover, groups) in movers.iter_mut().zip(groups.chunks(5)) {
            mover.declare(&head);
            groups[..3]
                .iter()
                .for_each(|group| mover.chunk(*group, &file));
        }
        movers.iter_mut().for_each(|mover| mover.stored(3));
        assert_eq!(movers[0].order(SharedJobOrder::Settle), SETTLED);
        // The rest of its work is in progress.
        movers[1].say(SharedJobOrder::Settle);
        other.0.signal(Signal::KILL);
        drop(movers);
        assert!(!cluster.root().join("d/large").exists());
        let again = cluster.start();
        let mut movers = [cluster.begin(&one), cluster.begin(&again)];
        for (mover, groups) in movers.iter_mut().zip(groups.chunks(5)) {
            mover.declare(&head);
            groups.iter().for_each(|group| mover.chunk(*group, &file));
        }
        movers.iter_mut().for_each(|mover| mover.stored(5));
        let commit = || SharedJobOrder::Commit {
            head: head.encode(),
        };
        assert_eq!(movers[0].order(SharedJobOrder::Settle), SETTLED);
        assert_eq!(movers[1].order(SharedJobOrder::Settle), SETTLED);
        // Both are asked before either has answered.
        let numbers = movers.each_mut().map(|mover| mover.say(commit()));
        let await_commit = |mover: &mut Mover<'_>, number: u64| loop {
            match mover.next().expect("an answer") {
                ToSender::SharedJob(SharedJobAnswer {
                    number: answered,
                    result: SharedJobResult::Done,
                }) if answered == number => return,
                ToSender::SharedJob(other) => panic!("{other:?}"),
                _ => {}
            }
        };
        let [first, second] = &mut movers;
        await_commit(first, numbers[0]);
        await_commit(second, numbers[1]);
        let there = cluster.root().join("d/large");
        assert!(std::fs::read(&there).unwrap() == file);
        movers.into_iter().for_each(Mover::finish);
    }
}

/// Neither a push nor one with `--delete` treats the directory of a job as data.
#[test]
fn the_directory_of_a_job_is_neither_sent_nor_removed() {
    let mut cluster = Cluster::new();
    let node = cluster.start();
    let mover = cluster.begin(&node);
    let job = cluster.root().join(format!(".zmove-job-{JOB}"));
    std::fs::write(cluster.root().join("f"), "x").unwrap();
    let copied = cluster.site.path("copied");
    let site = &cluster.site;
    site.zmove(&["push", "shared/", copied.to_str().unwrap()])
        .outcome()
        .expect(0);
    assert!(copied.join("f").exists() && !copied.join(job.file_name().unwrap()).exists());
    std::fs::create_dir(site.path("empty")).unwrap();
    site.zmove(&["push", "--delete", "--allow-empty", "empty/", "shared"])
        .outcome()
        .expect(0);
    assert!(job.exists() && !cluster.root().join("f").exists());
    mover.finish();
    assert!(job.exists(), "its end is ordered");
}

const SETTLED: SharedJobResult = SharedJobResult::Settled(Vec::new());
