//! Pings on control: each side echoes the value in every phase of a session.

use std::collections::VecDeque;

use tokio::io::AsyncWriteExt;
use zmove_transport::{
    ChannelDialer, ControlReader, ControlWriter, DialOptions, HostPolicy, Identity,
    TransportChoice, control_pair,
};
use zmove_types::{Beginning, SharedJobId, TransferId};
use zmove_wire::{
    Compare, Durability, Extensions, Fetch, Fetching, Greeting, Intent, Open, Opened, Role,
    SharedJobOpening, SourcePath, TargetState, ToReceiver, ToSender, ToSource, Waiting,
    decode_message, encode_message,
};

use crate::support::harness::{PATIENCE, Site, runtime};
use crate::support::host::host;
use crate::support::tree::paint;

/// A control connection of the test, which pings its peer.
struct Pinging {
    reader: ControlReader,
    writer: ControlWriter,
    /// Messages received while waiting for a pong.
    messages: VecDeque<Vec<u8>>,
    value: u64,
}

impl Pinging {
    fn over((reader, writer): (ControlReader, ControlWriter)) -> Self {
        Self {
            reader,
            writer,
            messages: VecDeque::new(),
            value: 1 << 40,
        }
    }

    /// Dials the site's daemon with this transport and reads its greeting.
    async fn dial(site: &Site, transport: TransportChoice, number: u8, role: Role) -> Self {
        let identity = Identity::load_or_create(&site.path("client")).unwrap();
        let daemon = site.the_daemon();
        let policy = HostPolicy::Pinned(daemon.fingerprint);
        let reach = DialOptions {
            transport,
            ..DialOptions::default()
        };
        let port = daemon.address.port();
        let dialer = ChannelDialer::new(&identity, "127.0.0.1", port, policy, reach)
            .await
            .unwrap();
        let mut channel = dialer.dial(PATIENCE).await.unwrap();
        let greeting = Greeting::new(role, TransferId([number; 16])).encode();
        channel.write_all(&greeting).await.unwrap();
        channel.flush().await.unwrap();
        let (reader, writer) = control_pair(channel);
        Self::over((reader, writer.greeted()))
    }

    /// Sends a ping and waits for its pong.
    #[track_caller]
    fn is_answered(&mut self, phase: &'static str) -> impl Future<Output = ()> {
        self.value += 1;
        let value = self.value;
        async move {
            let pinger = self.writer.pinger();
            let mut pongs = pinger.pongs();
            self.reader.listen();
            pinger.ping(value);
            // The pong arrives after messages that the peer sent before it.
            let heard = async {
                loop {
                    tokio::select! {
                        pong = pongs.wait_for(|pong| *pong == Some(value)) => break pong.is_ok(),
                        received = self.reader.receive() => match received {
                            Ok(Some(message)) => self.messages.push_back(message),
                            _ => break false,
                        },
                    }
                }
            };
            let is_answered = tokio::time::timeout(PATIENCE, heard).await;
            assert_eq!(is_answered, Ok(true), "{phase}");
        }
    }

    async fn send(&mut self, message: &ToReceiver) {
        self.writer.send(&encode_message(message)).await.unwrap();
    }

    async fn say(&mut self, message: &ToSender) {
        self.writer.send(&encode_message(message)).await.unwrap();
    }

    /// Returns the bytes of the next message.
    async fn message(&mut self) -> Vec<u8> {
        if let Some(message) = self.messages.pop_front() {
            return message;
        }
        let received = tokio::time::timeout(PATIENCE, self.reader.receive()).await;
        received.unwrap().unwrap().unwrap()
    }

    async fn next(&mut self) -> ToSender {
        decode_message(&self.message().await).unwrap()
    }

    /// Sends an opening, and pings before it, after it, and before the end of a session without data.
    async fn converse(&mut self, phase: &'static str, open: Open) {
        self.reader.greeting().await.unwrap();
        self.is_answered("before the opening").await;
        self.send(&ToReceiver::Open(open)).await;
        let opened = self.next().await;
        assert!(matches!(opened, ToSender::Opened(_)), "{phase}: {opened:?}");
        self.is_answered(phase).await;
        self.send(&ToReceiver::Announce {
            items: 0,
            mismatches: 0,
        })
        .await;
        let last = self.next().await;
        assert!(matches!(last, ToSender::Finished(_)), "{phase}: {last:?}");
    }
}

fn opened(state: TargetState) -> ToSender {
    ToSender::Opened(Opened {
        state,
        lanes_max: 1,
        single_name: None,
        free_bytes: None,
        process: String::new(),
        extensions: Extensions::NONE,
    })
}

fn waiting() -> ToSender {
    ToSender::Waiting(Waiting {
        ahead: 0,
        text: "full".to_owned(),
    })
}

/// One session of each kind.
fn openings() -> Vec<(&'static str, Open)> {
    let open = |run| Open::new(b"in".to_vec(), [run; 16]);
    let job = SharedJobOpening {
        job: SharedJobId([9; 16]),
        beginning: Beginning::Allowed,
        leads: true,
    };
    let inspect = |run| Open {
        intent: Intent::Inspect,
        ..open(run)
    };
    vec![
        ("transfer", open(1)),
        ("preview", inspect(2)),
        (
            "verification",
            Open {
                verify: true,
                compare: Compare::Checksum,
                ..inspect(3)
            },
        ),
        (
            "shared job",
            Open {
                durability: Durability::End,
                shared_job: Some(Box::new(job)),
                // This job stays open, and other sessions with its target would wait for it.
                target: b"job".to_vec(),
                ..open(4)
            },
        ),
    ]
}

#[test]
fn a_receiver_answers_pings_in_each_kind_of_session() {
    let site = Site::daemon();
    site.let_lead();
    runtime().block_on(async {
        for transport in [TransportChoice::Tcp, TransportChoice::Quic] {
            for (number, (phase, open)) in (1..).zip(openings()) {
                Pinging::dial(&site, transport, number, Role::Control)
                    .await
                    .converse(phase, open)
                    .await;
            }
            let mut probe = Pinging::dial(&site, transport, 9, Role::Control).await;
            probe.reader.greeting().await.unwrap();
            probe
                .send(&ToReceiver::Open(Open {
                    intent: Intent::Measure,
                    ..Open::new(b"in".to_vec(), [9; 16])
                }))
                .await;
            assert!(matches!(probe.next().await, ToSender::Opened(_)));
            probe.is_answered("probe").await;
        }
    });
}

/// The opening has been sent, and the receiver reads it only at its turn.
#[test]
fn a_receiver_answers_pings_of_a_transfer_that_waits_in_the_queue() {
    let mut site = Site::local();
    let limits = "[limits]\ntransfers = 1\n";
    std::fs::write(site.path("server/zmove.toml"), limits).unwrap();
    site.start_daemon();
    runtime().block_on(async {
        let mut first = Pinging::dial(&site, TransportChoice::Tcp, 1, Role::Control).await;
        first.reader.greeting().await.unwrap();
        let mut second = Pinging::dial(&site, TransportChoice::Tcp, 2, Role::Control).await;
        let open = Open::new(b"in".to_vec(), [2; 16]);
        second.send(&ToReceiver::Open(open)).await;
        second.reader.greeting().await.unwrap();
        assert!(matches!(second.next().await, ToSender::Waiting(_)));
        second.is_answered("in the queue").await;
        second.is_answered("in the queue, once more").await;
        drop(first);
        assert!(matches!(second.next().await, ToSender::Opened(_)));
        second.is_answered("after the queue").await;
    });
}

#[test]
fn a_daemon_that_sends_answers_pings_before_its_order_and_after_it() {
    let site = Site::reading(&[], &[]);
    paint(site.source().join("f"), 10);
    runtime().block_on(async {
        let mut pull = Pinging::dial(&site, TransportChoice::Tcp, 1, Role::Fetch).await;
        pull.reader.greeting().await.unwrap();
        pull.is_answered("before the order").await;
        let open = Open::new(Vec::new(), [1; 16]);
        let mut fetch = Fetch::new(open, vec![SourcePath(b"f".to_vec())]);
        // A sender without a lane ends immediately.
        fetch.lanes.dialled = 1;
        let order = encode_message(&ToSource::Fetch(Box::new(fetch)));
        pull.writer.send(&order).await.unwrap();
        assert!(matches!(pull.next().await, ToSender::Fetching(_)));
        pull.is_answered("before the answer to the opening").await;
        pull.say(&opened(TargetState::Populated)).await;
        pull.is_answered("transfer").await;
    });
}

/// A client as the sender, and as a receiver that has dialed, against a daemon that the test implements.
#[test]
fn a_client_answers_pings_in_a_push_and_in_a_pull() {
    let (checked, phases) = std::sync::mpsc::channel();
    let site = Site::local();
    paint(site.source().join("f"), 10);
    let (address, fingerprint) = host(&site.path("server"), move |channel, greeting| {
        let checked = checked.clone();
        async move {
            if matches!(greeting.role, Role::Lane(_)) {
                return std::future::pending().await;
            }
            let mut peer = Pinging::over(control_pair(channel));
            let ours = Greeting::new(Role::Control, greeting.transfer);
            peer.writer.greet(&ours).await.unwrap();
            peer.is_answered("opening").await;
            peer.say(&waiting()).await;
            peer.is_answered("in the queue").await;
            if greeting.role == Role::Fetch {
                let fetching = ToSender::Fetching(Fetching { lanes_max: 1 });
                peer.say(&fetching).await;
                let open = Open::new(Vec::new(), [0; 16]);
                peer.send(&ToReceiver::Open(open)).await;
                // The client's messages are received unchanged.
                peer.message().await;
                assert!(matches!(peer.next().await, ToSender::Opened(_)));
            } else {
                peer.say(&opened(TargetState::Populated)).await;
            }
            peer.is_answered("transfer").await;
            checked.send(greeting.role).unwrap();
        }
    });
    site.pin(&address, fingerprint);
    for (command, from, to) in [
        ("push", "source/".to_owned(), format!("{address}:in")),
        ("pull", format!("{address}:f"), "target".to_owned()),
    ] {
        let outcome = site.zmove(&[command, "--timeout", "3", &from, &to]);
        assert!(outcome.outcome().code != Some(0), "the host goes away");
    }
    // The client keeps redialing for a while.
    let mut roles: Vec<_> = phases.try_iter().collect();
    roles.dedup();
    assert_eq!(roles, [Role::Control, Role::Fetch]);
}
