//! Tests of a broker with three servers that loses some or all of them.

use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::sleep;
use zmove_cluster::jetstream::{Access, JetStream, Settings, program};
use zmove_cluster::{NodeRole, WorkQueue};

use crate::lab::{Lab, STREAM, data, do_until, must_end, next, put_all, settings};
use crate::ports::free_port;

/// How long a test waits before it asks the servers again.
const BETWEEN_TRIES: Duration = Duration::from_millis(20);

/// Three servers on the loopback address that form one broker.
struct Three {
    directory: TempDir,
    clients: [u16; 3],
    routes: [u16; 3],
    running: [Option<Child>; 3],
    /// Sender that stops the watchdog ([`must_end`]) when the test ends.
    _ends: Sender<()>,
}

impl Three {
    async fn start() -> Option<Self> {
        if !Lab::has_server() {
            return None;
        }
        let mut three = Self {
            directory: TempDir::new().unwrap(),
            clients: [(); 3].map(|()| free_port()),
            routes: [(); 3].map(|()| free_port()),
            running: [const { None }; 3],
            _ends: must_end(),
        };
        (0..3).for_each(|number| three.start_one(number));
        three.until_complete().await;
        Some(three)
    }

    fn start_one(&mut self, number: usize) {
        let store = self.directory.path().join(number.to_string());
        let routes = self
            .routes
            .map(|port| format!("nats-route://127.0.0.1:{port}"));
        let text = format!(
            "server_name: s{number}\nlisten: \"127.0.0.1:{}\"\njetstream {{ store_dir: {store:?} }}\n\
             cluster {{ name: three, listen: \"127.0.0.1:{}\", routes: {routes:?} }}\n",
            self.clients[number], self.routes[number],
        );
        let config = store.with_extension("conf");
        std::fs::write(&config, text).unwrap();
        let mut command = program();
        command.arg("-c").arg(config).stderr(Stdio::null());
        self.running[number] = Some(command.spawn().unwrap());
    }

    /// Waits until each server has found the others. A stream that is created earlier has one replica.
    async fn until_complete(&self) {
        let config = async_nats::jetstream::stream::Config {
            name: "complete".to_owned(),
            num_replicas: 3,
            ..Default::default()
        };
        loop {
            if let Ok(client) = async_nats::connect(self.access().urls).await {
                let context = async_nats::jetstream::new(client);
                if context.create_stream(config.clone()).await.is_ok() {
                    context.delete_stream(&config.name).await.unwrap();
                    return;
                }
            }
            sleep(BETWEEN_TRIES).await;
        }
    }

    fn kill(&mut self, number: usize) {
        let mut server = self.running[number].take().unwrap();
        server.kill().unwrap();
        server.wait().unwrap();
    }

    fn access(&self) -> Access {
        Access {
            urls: self
                .clients
                .map(|port| format!("nats://127.0.0.1:{port}"))
                .into(),
            ..Access::default()
        }
    }

    async fn open(&self, role: NodeRole) -> JetStream {
        let settings = Settings {
            patience: Duration::from_secs(120),
            lease: Duration::from_secs(10),
            ..settings(role)
        };
        loop {
            if let Ok(opened) = JetStream::open(&self.access(), settings.clone()).await {
                return opened;
            }
            sleep(BETWEEN_TRIES).await;
        }
    }

    /// Returns the number of the server that leads the stream, according to one of the running servers.
    async fn leader(&self) -> usize {
        let number = self.running.iter().position(Option::is_some).unwrap();
        let client = async_nats::connect(&self.access().urls[number]).await;
        let context = async_nats::jetstream::new(client.unwrap());
        loop {
            // During an election there is no leader, and the request may fail.
            if let Ok(stream) = context.get_stream(STREAM).await {
                let info = stream.cached_info();
                assert_eq!(info.config.num_replicas, 3);
                let cluster = info.cluster.as_ref();
                if let Some(leader) = cluster.and_then(|cluster| cluster.leader.as_ref()) {
                    return leader.strip_prefix('s').unwrap().parse().unwrap();
                }
            }
            sleep(BETWEEN_TRIES).await;
        }
    }
}

impl Drop for Three {
    fn drop(&mut self) {
        for server in self.running.iter_mut().flatten() {
            // A server that has already ended needs no cleanup.
            let _ended_in_any_case = server.kill();
            let _waited_for = server.wait();
        }
    }
}

/// Ends the job, which must not have lost items.
async fn end(head: &JetStream, mover: &JetStream) {
    head.note_stored(mover.stored());
    assert_eq!(head.losses().await.unwrap(), 0);
    head.close().await.unwrap();
    assert!(mover.take().await.unwrap().is_none());
}

/// Waits until the queue is empty. Each server removes an item at a different time, and an item may be delivered again.
async fn until_empty(head: &JetStream, mover: &JetStream) {
    while head.waiting().await.unwrap() > 0 {
        let again = tokio::time::timeout(Duration::from_secs(1), next(mover)).await;
        if let Ok(again) = again {
            mover.done(again).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_of_three_servers_outlives_the_loss_of_its_leader() {
    let Some(mut three) = Three::start().await else {
        return;
    };
    let head = three.open(NodeRole::Head).await;
    let mover = Arc::new(three.open(NodeRole::Follower).await);
    put_all(&head, (0..50).map(data)).await;
    assert_eq!(head.losses().await.unwrap(), 0);
    let mut left: Vec<_> = (0..60).map(data).collect();
    do_until(40, &mut left, &mover).await;

    let leader = three.leader().await;
    three.kill(leader);
    put_all(&mover, (50..60).map(data)).await;
    do_until(20, &mut left, &mover).await;
    three.start_one(leader);
    do_until(0, &mut left, &mover).await;
    until_empty(&head, &mover).await;
    end(&head, &mover).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_of_three_servers_that_has_lost_two_is_waited_for() {
    let Some(mut three) = Three::start().await else {
        return;
    };
    let head = three.open(NodeRole::Head).await;
    let mover = Arc::new(three.open(NodeRole::Follower).await);
    put_all(&head, [data(60)]).await;
    assert_eq!(head.losses().await.unwrap(), 0);
    let leader = three.leader().await;
    let others = [(leader + 1) % 3, (leader + 2) % 3];
    for number in others {
        three.kill(number);
    }
    let taker = tokio::spawn({
        let mover = Arc::clone(&mover);
        async move { do_until(0, &mut vec![data(60), data(61)], &mover).await }
    });
    let putting = tokio::time::timeout(Duration::from_secs(2), head.put(vec![data(61)]));
    assert!(putting.await.is_err(), "one server of three stores nothing");
    for number in others {
        three.start_one(number);
    }
    put_all(&head, [data(61)]).await;
    taker.await.unwrap();
    end(&head, &mover).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_of_three_servers_that_loses_all_disks_is_filled_again() {
    let Some(mut three) = Three::start().await else {
        return;
    };
    let head = three.open(NodeRole::Head).await;
    let mover = three.open(NodeRole::Follower).await;
    put_all(&head, [data(62)]).await;
    assert_eq!(head.losses().await.unwrap(), 0);
    for number in 0..3 {
        three.kill(number);
        std::fs::remove_dir_all(three.directory.path().join(number.to_string())).unwrap();
    }
    (0..3).for_each(|number| three.start_one(number));
    put_all(&head, [data(63)]).await;
    // The head counts another loss if it has to create its consumers again because there was no leader.
    assert!(head.losses().await.unwrap() > 0);
    do_until(0, &mut vec![data(63)], &mover).await;
    until_empty(&head, &mover).await;
    head.close().await.unwrap();
    assert!(mover.take().await.unwrap().is_none());
}
