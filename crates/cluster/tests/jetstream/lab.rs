//! A broker in its own directory. Tests can kill it and restart it, with or without its files.

use std::fs;
use std::io::{Write, stderr};
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;
use zmove_cluster::jetstream::{Access, BrokerState, JetStream, JobKey, Lease, Settings, program};
use zmove_cluster::{ItemWork, NodeRole, Taken, WorkError, WorkItem, WorkQueue};
use zmove_scan::MarkedPath;
use zmove_types::{Name, RelPath, SharedJobId};

use crate::server::{Server, ServerConfig};

pub(crate) const JOB: SharedJobId = SharedJobId([7; 16]);

pub(crate) struct Lab {
    pub(crate) config: ServerConfig,
    pub(crate) server: Server,
    /// Directory of the server. It is removed after the server has been killed.
    _directory: TempDir,
    /// Sender that stops the watchdog ([`must_end`]) when the test ends.
    _ends: Sender<()>,
}

impl Lab {
    /// Starts a broker. Returns `None` if there is no nats-server, unless the lab is required.
    pub(crate) async fn start() -> Option<Self> {
        Self::start_with(|_| {}).await
    }

    pub(crate) async fn start_with(change: impl FnOnce(&mut ServerConfig)) -> Option<Self> {
        if !Self::has_server() {
            return None;
        }
        let directory = TempDir::new().unwrap();
        let mut config = ServerConfig::on_loopback(directory.path().join("broker"));
        change(&mut config);
        let server = config.start().await.unwrap();
        Some(Self {
            _directory: directory,
            config,
            server,
            _ends: must_end(),
        })
    }

    /// Returns whether there is a nats-server. Fails if there is none but the lab is required.
    pub(crate) fn has_server() -> bool {
        let has_server = program().arg("--version").output().is_ok();
        if !has_server {
            let required = std::env::var_os("ZMOVE_REQUIRE_LAB").is_some_and(|value| value == "1");
            assert!(
                !required,
                "ZMOVE_REQUIRE_LAB=1, but there is no nats-server"
            );
            println!("skipped: there is no nats-server");
        }
        has_server
    }

    pub(crate) fn access(&self) -> Access {
        Access {
            urls: vec![self.server.url().to_owned()],
            ..Access::default()
        }
    }

    pub(crate) async fn open(&self, settings: Settings) -> Result<JetStream, WorkError> {
        JetStream::open(&self.access(), settings).await
    }

    pub(crate) async fn head(&self) -> JetStream {
        self.open(settings(NodeRole::Head)).await.unwrap()
    }

    /// Opens the queue as head with this lease.
    pub(crate) async fn head_with_lease(&self, lease: Duration) -> JetStream {
        let settings = Settings {
            lease,
            ..settings(NodeRole::Head)
        };
        self.open(settings).await.unwrap()
    }

    pub(crate) async fn mover(&self) -> JetStream {
        self.open(settings(NodeRole::Follower)).await.unwrap()
    }

    pub(crate) fn kill(&mut self) {
        self.server.kill().unwrap();
    }

    pub(crate) async fn start_again(&mut self) {
        self.server = self.config.start().await.unwrap();
    }

    /// Deletes all streams of the broker.
    pub(crate) fn empty(&self) {
        fs::remove_dir_all(self.streams()).unwrap();
    }

    /// Truncates the file with the items to this percentage of its length.
    pub(crate) fn cut_to(&self, percent: u64) {
        let block = self.streams().join("$G/streams/zmove/msgs/1.blk");
        let file = fs::File::options().write(true).open(block).unwrap();
        let bytes = file.metadata().unwrap().len();
        file.set_len(bytes * percent / 100).unwrap();
    }

    /// Removes the files of the stream while the server runs, so that it cannot store items.
    pub(crate) async fn remove_files_of_stream(&self) {
        let stream = self.streams().join("$G/streams/zmove");
        fs::remove_dir_all(&stream).unwrap();
        // No directory can be made there.
        fs::write(&stream, "").unwrap();
        // The server keeps using the open file until it must make one, as it must when it purges.
        let context = self.context().await;
        let stream = context.get_stream(STREAM).await.unwrap();
        stream.purge().await.unwrap_err();
    }

    fn streams(&self) -> PathBuf {
        self.config.directory.join("jetstream")
    }

    /// Returns all future requests to the broker, as a separate client sees them.
    pub(crate) async fn requests(&self) -> Requests {
        let client = async_nats::connect(self.server.url()).await.unwrap();
        let mut requests = client.subscribe("$JS.API.>").await.unwrap();
        // A client that receives its own message is subscribed, and will also receive the messages of other clients.
        client
            .publish("$JS.API.SEEN", Vec::new().into())
            .await
            .unwrap();
        futures_util::StreamExt::next(&mut requests).await.unwrap();
        Requests(requests)
    }

    /// Returns the name of the only job at the broker.
    pub(crate) async fn job_name(&self) -> String {
        let stream = self.context().await.get_stream(STREAM).await.unwrap();
        let name = futures_util::StreamExt::next(&mut stream.consumer_names()).await;
        let name = name.unwrap().unwrap();
        name.split('-').next().unwrap().to_owned()
    }

    pub(crate) async fn delete_consumers(&self) {
        let stream = self.context().await.get_stream(STREAM).await.unwrap();
        let mut names = stream.consumer_names();
        while let Some(name) = futures_util::StreamExt::next(&mut names).await {
            stream.delete_consumer(&name.unwrap()).await.unwrap();
        }
    }

    /// Returns a JetStream context at the broker.
    pub(crate) async fn context(&self) -> async_nats::jetstream::Context {
        async_nats::jetstream::new(async_nats::connect(self.server.url()).await.unwrap())
    }
}

/// The requests that a broker receives.
pub(crate) struct Requests(async_nats::Subscriber);

impl Requests {
    /// Waits for `count` requests of one kind.
    pub(crate) async fn wait_for(&mut self, count: usize, kind: &str) {
        for _ in 0..count {
            loop {
                let request = futures_util::StreamExt::next(&mut self.0).await.unwrap();
                if request.subject.contains(kind) {
                    break;
                }
            }
        }
    }
}

/// The request for one item from a consumer.
pub(crate) const PULL: &str = "CONSUMER.MSG.NEXT";

/// The request of a mover that finds no consumer and checks for the end of the job.
pub(crate) const LOOK_FOR_END: &str = "STREAM.INFO.KV_zmove-ended";

/// Aborts the process, and with it all tests, if the current test is still waiting for its broker after `TEST_MAX`.
pub(crate) fn must_end() -> Sender<()> {
    let (ends, ended) = channel();
    let test = thread::current().name().unwrap_or_default().to_owned();
    thread::spawn(move || {
        if ended.recv_timeout(TEST_MAX) == Err(RecvTimeoutError::Timeout) {
            // Writes to stderr directly, because the output of a test is captured until the test ends.
            let _best_effort = writeln!(
                stderr(),
                "{test} has not ended after {} s",
                TEST_MAX.as_secs()
            );
            std::process::abort();
        }
    });
    ends
}

/// Ten times the duration of the slowest test when tests run in parallel.
const TEST_MAX: Duration = Duration::from_secs(240);

pub(crate) fn key(number: u8) -> JobKey {
    JobKey::new([number; JobKey::BYTES])
}

pub(crate) fn settings(role: NodeRole) -> Settings {
    let lease = Duration::from_secs(1);
    Settings {
        lease,
        patience: Duration::from_secs(60),
        ..Settings::new(role, JOB, key(1))
    }
}

/// The stream of all jobs.
pub(crate) const STREAM: &str = "zmove";

fn root() -> MarkedPath {
    let path = RelPath::root();
    MarkedPath { path, mark: None }
}

fn item_of(source: u32, work: ItemWork) -> WorkItem {
    WorkItem {
        pass: 1,
        source,
        work,
    }
}

pub(crate) fn walk(number: u32) -> WorkItem {
    item_of(number, ItemWork::Trees(vec![root()]))
}

pub(crate) fn data(number: u32) -> WorkItem {
    let names = vec![Name::from_bytes(b"n").unwrap()];
    let directory = root();
    item_of(number, ItemWork::Names { directory, names })
}

pub(crate) async fn next(queue: &JetStream) -> Taken<Lease> {
    queue.take().await.unwrap().unwrap()
}

pub(crate) async fn put_all(queue: &JetStream, items: impl IntoIterator<Item = WorkItem>) {
    let announced = queue.put(items.into_iter().collect()).await.unwrap();
    assert!(announced.refused.is_empty());
}

/// Processes items, some of which may be delivered again, until only `remaining` of `left` remain.
pub(crate) async fn do_until(remaining: usize, left: &mut Vec<WorkItem>, mover: &JetStream) {
    while left.len() > remaining {
        let taken = next(mover).await;
        left.retain(|item| *item != taken.item);
        mover.done(taken).await.unwrap();
    }
}

/// Puts in items one at a time, so that they keep their order.
pub(crate) async fn put_in_order(queue: &JetStream, items: impl IntoIterator<Item = WorkItem>) {
    for item in items {
        put_all(queue, [item]).await;
    }
}

pub(crate) async fn until(queue: &JetStream, wanted: BrokerState) {
    queue
        .state()
        .wait_for(|state| *state == wanted)
        .await
        .unwrap();
}
