//! Limits of a copy: a client cannot exceed its permissions, and a daemon cannot exceed the grant.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde::Serialize;
use tokio::io::AsyncWriteExt;
use zmove_engine::{
    Causes, Connector, DialSettings, NoListener, PushJob, Remote, RemotePush, RetryPolicy,
    SenderConfig, StartedPush, Timeout,
};
use zmove_scan::ScanRoot;
use zmove_sender::Removals;
use zmove_transport::{Access, AuthorizedKeys, Fingerprint, Grant, Identity, control_pair};
use zmove_types::{GROUP_BYTES, NoObserver, RelPath, TransferId};
use zmove_wire::{
    Begin, CopyOrder, CopyState, Extraneous, Fetch, GrantOrder, GrantToken, Greeting, HostAddress,
    Open, Refusal, Relay, Role, SignedReceipt, SourcePath, ToReceiver, ToSender, ToSource,
    TransportChoice, decode_message, encode_message,
};

use super::{World, again, id_in};
use crate::support::command::finish;
use crate::support::daemon::Daemon;
use crate::support::harness::{PATIENCE, runtime};
use crate::support::tree::{names, paint};

static NEXT_TRANSFER: AtomicU64 = AtomicU64::new(1);

pub(super) fn key_of(home: &Path) -> Fingerprint {
    Identity::load_or_create(home).unwrap().fingerprint()
}

/// Sends these messages to a daemon, each after the answer to the previous one. Returns all answers.
pub(super) fn say(home: &Path, daemon: &Daemon, messages: &[ToSource]) -> Vec<Vec<u8>> {
    say_as(Role::Fetch, home, daemon, messages)
}

/// Like [`say`], on a connection with this role.
pub(super) fn say_as<M: Serialize>(
    role: Role,
    home: &Path,
    daemon: &Daemon,
    messages: &[M],
) -> Vec<Vec<u8>> {
    let talk = async {
        let mut connection = daemon.dial(home).await;
        // A daemon that has answered may not yet have removed the previous transfer, so each transfer gets a new id.
        let number = NEXT_TRANSFER.fetch_add(1, Ordering::Relaxed);
        let transfer = TransferId(u128::from(number).to_le_bytes());
        let greeting = Greeting::new(role, transfer).encode();
        connection.write_all(&greeting).await.unwrap();
        let (mut reader, mut writer) = control_pair(connection);
        let mut said = Vec::new();
        for (number, message) in messages.iter().enumerate() {
            writer.send(&encode_message(message)).await.unwrap();
            if number == 0 {
                reader.greeting().await.unwrap();
            }
            let Ok(Some(bytes)) = reader.receive().await else {
                return said;
            };
            said.push(bytes);
        }
        while let Ok(Some(bytes)) = reader.receive().await {
            said.push(bytes);
        }
        said
    };
    runtime().block_on(async {
        tokio::time::timeout(PATIENCE, talk)
            .await
            .expect("an answer in time")
    })
}

pub(super) fn grant_order(source: Fingerprint, target: &str) -> GrantOrder {
    GrantOrder {
        id: [7; 16],
        source: source.0,
        open: Open::new(target.as_bytes().to_vec(), [0; 16]),
        sources: vec![SourcePath(b"good".to_vec())],
        bytes_max: None,
        entries_max: None,
    }
}

/// Requests a grant for a third host.
fn token(world: &World, change: impl FnOnce(GrantOrder) -> GrantOrder) -> GrantToken {
    let order = change(grant_order(key_of(&world.site.path("third")), "in"));
    let said = say(
        &world.site.path("client"),
        &world.receiver,
        &[ToSource::Grant(Box::new(order))],
    );
    let Ok(ToSender::Granted(token)) = decode_message(&said[0]) else {
        panic!("no grant: {said:?}")
    };
    token
}

/// A world with a source and with a grant that the client has requested for a third host.
struct Granted {
    world: World,
    token: GrantToken,
}

impl Granted {
    fn new() -> Self {
        Self::by(|order| order)
    }

    fn by(change: impl FnOnce(GrantOrder) -> GrantOrder) -> Self {
        let world = World::new();
        paint(world.site.path("good/f"), 10);
        paint(world.site.path("evil/authorized_keys"), 10);
        let token = token(&world, change);
        Self { token, world }
    }

    /// Sends `good` with the grant.
    fn send(&self) -> Result<(), String> {
        self.send_as("third", |open| open, "good")
    }

    /// Sends a directory of the site as the host with its keys in `home`. The opening may differ from the granted one.
    fn send_as(
        &self,
        home: &str,
        open: impl Fn(Open) -> Open + Sync,
        source: &str,
    ) -> Result<(), String> {
        self.send_within(Timeout::NONE, home, open, source)
    }

    /// Like [`Self::send_as`], with this maximum wait in the receiver's queue.
    fn send_within(
        &self,
        busy_timeout: Timeout,
        home: &str,
        open: impl Fn(Open) -> Open + Sync,
        source: &str,
    ) -> Result<(), String> {
        self.push(busy_timeout, home, open, source, None)
    }

    fn push(
        &self,
        busy_timeout: Timeout,
        home: &str,
        open: impl Fn(Open) -> Open + Sync,
        source: &str,
        removals: Option<&Removals>,
    ) -> Result<(), String> {
        let World { site, receiver, .. } = &self.world;
        let prefix = RelPath::from_bytes(source.as_bytes()).unwrap();
        let job = || PushJob {
            sources: vec![ScanRoot::new(site.path(source), prefix.clone())],
            open: open(Open {
                grant: Some(self.token),
                ..Open::new(b"in".to_vec(), [0; 16])
            }),
            mirror: removals.cloned(),
            sources_missing: 0,
            list: None,
        };
        let address = receiver.address.to_string();
        let remote = Remote::parse_endpoint(&address).unwrap();
        let settings = DialSettings {
            key: Some(receiver.fingerprint),
            streams: Some(1),
            ..DialSettings::default()
        };
        let home: PathBuf = site.path(home);
        let first = StartedPush::new(job(), SenderConfig::default(), None, Instant::now());
        let pushing = RemotePush {
            receiver: RetryPolicy {
                connector: Connector {
                    home: &home,
                    remote: &remote,
                    settings: &settings,
                    listener: &NoListener,
                },
                timeout: Timeout::NONE,
                busy_timeout,
            },
            job: &|| Box::pin(std::future::ready(Ok(job()))),
            quota: std::sync::Arc::new(zmove_sender::NoQuota),
            observer: std::sync::Arc::new(NoObserver),
        };
        let pushed = runtime().block_on(pushing.push(first, std::future::pending()));
        pushed.map(drop).map_err(|error| Causes(&error).to_string())
    }

    fn found(&self) -> Vec<String> {
        names(&self.world.site.target())
    }

    #[track_caller]
    fn refused(&self, ended: Result<(), String>, why: &str) {
        let error = ended.expect_err("nothing is sent");
        assert!(error.contains(why), "{error}");
        assert_eq!(self.found(), [""; 0]);
    }
}

#[test]
fn a_grant_lets_its_host_send_what_it_is_for() {
    let granted = Granted::new();
    assert_eq!(granted.send(), Ok(()));
    assert_eq!(names(&granted.world.site.target().join("in/good")), ["f"]);
}

#[test]
fn a_grant_is_used_once() {
    let granted = Granted::new();
    assert_eq!(granted.send(), Ok(()));
    let error = granted.send().unwrap_err();
    assert!(
        error.contains("the grant was already used by another run"),
        "{error}"
    );
}

/// The result is the same after the receiver has been restarted.
#[test]
fn a_grant_stays_used_or_unused_after_a_restart() {
    let mut granted = Granted::new();
    let mut send_after_restart = || {
        granted.world.receiver.kill();
        granted.world.receiver = again("server", &granted.world, &granted.world.receiver);
        granted.send()
    };
    assert_eq!(send_after_restart(), Ok(()));
    let error = send_after_restart().unwrap_err();
    assert!(
        error.contains("the grant was already used by another run"),
        "{error}"
    );
}

/// A receiver that is killed after its answer knows after a restart that the grant was used.
#[test]
fn a_grant_is_marked_as_used_on_disk_before_its_opening_is_answered() {
    let granted = Granted::new();
    let World { site, receiver, .. } = &granted.world;
    let directory = site.path("server/copies/grants");
    let run = || {
        let path = directory.join(&names(&directory)[0]);
        kept::<Kept>(&path).run
    };
    assert_eq!(run(), None);
    let open = Open {
        grant: Some(granted.token),
        ..Open::new(b"in".to_vec(), [5; 16])
    };
    let opened = async {
        let connection = receiver.dial(&site.path("third")).await;
        let (mut reader, mut writer) = control_pair(connection);
        let greeting = Greeting::new(Role::Control, TransferId([6; 16]))
            .encode()
            .to_vec();
        let opening = encode_message(&ToReceiver::Open(open));
        writer.send(&[greeting, opening].concat()).await.unwrap();
        reader.greeting().await.unwrap();
        let answer = reader.receive().await.unwrap().unwrap();
        assert!(
            matches!(decode_message(&answer), Ok(ToSender::Opened(_))),
            "{answer:?}"
        );
        assert_eq!(run(), Some([5; 16]));
    };
    runtime().block_on(async {
        tokio::time::timeout(PATIENCE, opened)
            .await
            .expect("an answer in time")
    });
}

#[test]
fn a_grant_is_worth_nothing_without_its_host_s_key() {
    let granted = Granted::new();
    let ended = granted.send_as("thief", |open| open, "good");
    granted.refused(ended, "this key is not known here");
    // The grant is not valid for a key that is authorized for other reasons either, such as the client's own key.
    let ended = granted.send_as("client", |open| open, "good");
    granted.refused(ended, "no such grant exists for this key");
    let other = Granted {
        token: [0; 32],
        ..granted
    };
    let ended = other.send();
    other.refused(ended, "no such grant exists for this key");
}

#[test]
fn a_grant_is_for_one_target_and_its_options() {
    let granted = Granted::new();
    let elsewhere = |open| Open {
        target: b"elsewhere".to_vec(),
        ..open
    };
    let ended = granted.send_as("third", elsewhere, "good");
    granted.refused(ended, "for another target or other options");
    let in_place = |open| Open {
        inplace: true,
        ..open
    };
    let ended = granted.send_as("third", in_place, "good");
    granted.refused(ended, "for another target or other options");
    let without = |open| Open {
        grant: None,
        ..open
    };
    let ended = granted.send_as("third", without, "good");
    granted.refused(ended, "this key may not write");
    assert_eq!(granted.send(), Ok(()), "what was refused has not used it");
}

#[test]
fn a_granted_host_brings_no_names_that_were_not_asked_for() {
    let quiet = |open| Open {
        shape: zmove_wire::TargetShape::Directory { tops: Vec::new() },
        ..open
    };
    let named = |open| {
        let tops = vec![zmove_types::Name::from_bytes(b"evil").unwrap()];
        Open {
            shape: zmove_wire::TargetShape::Directory { tops },
            ..open
        }
    };
    let granted = Granted::new();
    let ended = granted.send_as("third", named, "evil");
    granted.refused(ended, "an entry that was not requested");
    // An opening without names does not allow it either.
    let error = granted.send_as("third", quiet, "evil").unwrap_err();
    assert!(error.contains("an entry that was not requested"), "{error}");
    assert_eq!(names(&granted.world.site.target().join("in")), [""; 0]);
}

/// The format of a grant on disk. The tests change its timestamps.
#[derive(serde::Serialize, serde::Deserialize)]
struct Kept {
    token: GrantToken,
    order: GrantOrder,
    client: [u8; 32],
    certificates: Vec<Vec<u8>>,
    name: String,
    rate_max: Option<u64>,
    begin_by: u64,
    end_by: u64,
    run: Option<[u8; 16]>,
    ended: Option<u64>,
    /// Files, bytes, counted bytes and entries, and removals.
    counts: [u64; 5],
    receipt: Option<SignedReceipt>,
}

/// The first line of each file in which a daemon keeps the state of copies.
const HEADER: &[u8] = b"zmove copy 1\n";

/// Reads the value in such a file.
fn kept<T: Serialize + serde::de::DeserializeOwned>(path: &Path) -> T {
    let bytes = std::fs::read(path).unwrap();
    decode_message(bytes.strip_prefix(HEADER).unwrap()).unwrap()
}

fn keep(path: &Path, contents: &impl Serialize) {
    let bytes = [HEADER, &encode_message(contents)[4..]].concat();
    std::fs::write(path, bytes).unwrap();
}

/// Changes the only grant on disk while its daemon is stopped.
fn change(world: &mut World, change: impl FnOnce(&mut Kept)) {
    world.receiver.kill();
    let directory = world.site.path("server/copies/grants");
    let path = directory.join(&names(&directory)[0]);
    let mut grant: Kept = kept(&path);
    change(&mut grant);
    keep(&path, &grant);
    world.receiver = again("server", world, &world.receiver);
}

#[test]
fn a_grant_that_has_not_begun_in_ten_minutes_is_over() {
    let mut granted = Granted::new();
    change(&mut granted.world, |kept| {
        let now = now();
        assert!(
            (now + 570..=now + 600).contains(&kept.begin_by),
            "{now} {}",
            kept.begin_by
        );
        kept.begin_by -= 601;
    });
    let ended = granted.send();
    granted.refused(ended, "this key is not known here");
    // An authorized key gets the same answer.
    granted.world.site.let_read("source");
    let grant = Grant::new(
        key_of(&granted.world.site.path("third")),
        "third",
        Vec::new(),
        Access::ReadOnly,
    );
    let read_roots = vec![granted.world.site.source().canonicalize().unwrap()];
    AuthorizedKeys::allow(
        &granted.world.site.path("server"),
        Grant {
            read_roots,
            ..grant
        },
    )
    .unwrap();
    let ended = granted.send();
    granted.refused(ended, "the grant has ended, or was not used in time");
}

#[test]
fn a_grant_is_over_at_its_end_time_and_ten_minutes_after_its_run() {
    type Edit = fn(&mut Kept);
    let changes: [(Edit, bool); 4] = [
        (|kept| kept.end_by = now() - 1, false),
        (|kept| kept.end_by = now() + 60, true),
        (|kept| kept.ended = Some(now() - 610), false),
        (|kept| kept.ended = Some(now() - 500), true),
    ];
    for (change_to, is_let_in) in changes {
        let mut granted = Granted::new();
        change(&mut granted.world, change_to);
        let ended = granted.send();
        if is_let_in {
            assert_eq!(ended, Ok(()));
        } else {
            granted.refused(ended, "this key is not known here");
        }
    }
}

/// The current time in seconds since 1970.
fn now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.unwrap().as_secs()
}

#[test]
fn a_grant_ends_with_its_client_s_key() {
    let granted = Granted::new();
    let client = key_of(&granted.world.site.path("client")).to_string();
    let removed = AuthorizedKeys::remove(&granted.world.site.path("server"), &client).unwrap();
    assert_eq!(removed.len(), 1);
    let ended = granted.send();
    granted.refused(
        ended,
        "the key of the client that had this grant is no longer allowed here",
    );
}

#[test]
fn a_grant_is_for_so_many_bytes_and_entries() {
    let fewer = Granted::by(|order| GrantOrder {
        bytes_max: Some(9),
        ..order
    });
    let error = fewer.send().unwrap_err();
    assert!(
        error.contains("number of bytes of this copy: 10 is over the limit of 9"),
        "{error}"
    );
    let fewer = Granted::by(|order| GrantOrder {
        entries_max: Some(1),
        ..order
    });
    let error = fewer.send().unwrap_err();
    assert!(
        error.contains("number of entries of this copy: 2 is over the limit of 1"),
        "{error}"
    );
    let enough = Granted::by(|order| GrantOrder {
        bytes_max: Some(10),
        entries_max: Some(2),
        ..order
    });
    assert_eq!(enough.send(), Ok(()));
}

/// Tests a large file too, whose groups arrive one by one.
#[test]
fn a_copy_of_more_than_was_allowed_ends() {
    let world = World::new();
    let bytes = 4 * GROUP_BYTES + 5;
    paint(world.site.source().join("large"), bytes);
    let copy = |bytes_max: u64| {
        let bytes_max = bytes_max.to_string();
        let options = ["--max-bytes", &bytes_max, "--max-entries", "2"];
        world.copy(&options, &[""], "")
    };
    let limit = format!("is over the limit of {}", bytes - 1);
    copy(bytes - 1)
        .expect(12)
        .says(&["number of bytes of this copy", &limit]);
    assert!(!world.site.target().join("large").exists());
    copy(bytes).expect(0);
}

/// The sending host asks to remove all existing entries, with no limit or with a limit other than the client's.
#[test]
fn a_granted_host_removes_no_more_than_the_client_allows() {
    let mirrored = |open: Open, removals_max| Open {
        extraneous: Extraneous::Goes,
        removals_max,
        ..open
    };
    let granted = Granted::by(|order| GrantOrder {
        open: mirrored(order.open, Some(3)),
        ..order
    });
    let there = granted.world.site.target().join("in/good/gone");
    for number in 0..9 {
        paint(there.join(number.to_string()), 1);
    }
    let push = |most| {
        let open = |open| mirrored(open, most);
        granted.push(
            Timeout::NONE,
            "third",
            open,
            "good",
            Some(&Removals::default()),
        )
    };
    for most in [None, Some(u64::MAX)] {
        let error = push(most).unwrap_err();
        assert!(
            error.contains("for another target or other options"),
            "{error}"
        );
    }
    assert_eq!(
        push(Some(3)),
        Ok(()),
        "what fails there is told, and ends nothing"
    );
    assert_eq!(names(&there).len(), 9 - 3);
}

#[test]
fn a_client_that_may_not_write_gets_no_grant() {
    let world = World::new();
    paint(world.site.source().join("f"), 10);
    let list = world.site.path("server/authorized_keys");
    let line = std::fs::read_to_string(&list).unwrap();
    std::fs::write(&list, line.replace(" write", "")).unwrap();
    world
        .copy(&[], &[""], "")
        .expect(3)
        .says(&["receiver: this key may not write here"])
        .lines(1);
    assert_eq!(names(&world.site.target()), [""; 0]);
}

#[test]
fn a_client_copies_only_what_it_may_read() {
    let world = World::new();
    paint(world.site.path("secret/f"), 10);
    for (source, why) in [
        ("../secret/f", "'.' or '..' in a path"),
        (
            "/etc/passwd",
            "lies in none of the roots that this key may read",
        ),
    ] {
        let refused = world.copy(&[], &[source], "").expect(3);
        refused.says(&[why]).lines(1);
    }
    let list = world.site.path("sender/authorized_keys");
    let line = std::fs::read_to_string(&list).unwrap();
    let only_writes = line.replace("read-root=", "write root=");
    std::fs::write(&list, only_writes).unwrap();
    world
        .copy(&[], &["f"], "")
        .expect(3)
        .says(&["this key may not read here"])
        .lines(1);
    assert_eq!(names(&world.site.target()), [""; 0]);
}

#[test]
fn a_daemon_dials_only_where_its_client_may_send() {
    let world = World::new();
    paint(world.site.source().join("f"), 10);
    let list = world.site.path("sender/authorized_keys");
    let line = std::fs::read_to_string(&list).unwrap();
    let port = world.receiver.address.port();
    for elsewhere in ["", " to=127.0.0.1", " to=localhost:PORT", " to=127.0.0.1:1"] {
        let to = elsewhere.replace("PORT", &port.to_string());
        let line = line.replace(&format!(" to={}", world.receiver.address), &to);
        std::fs::write(&list, line).unwrap();
        let said = format!(
            "zmove allow {} --name tester --read-root DIR --to 127.0.0.1:{port}",
            key_of(&world.site.path("client"))
        );
        let refused = world.copy(&[], &[""], "").expect(3);
        refused
            .says(&[
                "this key may not have files sent from there to 127.0.0.1:",
                &said,
            ])
            .lines(1);
    }
    assert_eq!(world.receiver.count_logged("granted to"), 0);
    assert_eq!(names(&world.site.target()), [""; 0]);
}

/// Each `zmove allow` adds a daemon to the list, which is shown.
#[test]
fn daemons_to_send_to_are_allowed_one_after_the_other() {
    let world = World::new();
    let key = key_of(&world.site.path("client")).to_string();
    let allow = |to: &str| {
        let words = [
            "allow",
            &key,
            "--name",
            "tester",
            "--read-root",
            "source",
            "--to",
            to,
        ];
        let mut allow = world.site.zmove(&words);
        allow.0.env("ZMOVE_HOME", world.site.path("sender"));
        allow.outcome()
    };
    allow("[::1]").expect(0);
    let told = allow("dtn.example.org:7").expect(0).stdout;
    let all = format!(
        "and have files sent to {}, [::1], dtn.example.org:7",
        world.receiver.address
    );
    assert!(told.contains(&all), "{told}");
    allow("a:b").expect(1);
    let mut list = world.site.zmove(&["allow", "list", "--json"]);
    list.0.env("ZMOVE_HOME", world.site.path("sender"));
    let list: serde_json::Value = serde_json::from_str(&list.outcome().done().stdout).unwrap();
    assert_eq!(list["to"].as_array().unwrap().len(), 3);
}

pub(super) fn copy_order(world: &World) -> CopyOrder {
    let HostAddress { host, port } = HostAddress {
        host: "127.0.0.1".into(),
        port: world.receiver.address.port(),
    };
    CopyOrder {
        id: [7; 16],
        fetch: Fetch::new(
            Open::new(b"in".to_vec(), [0; 16]),
            vec![SourcePath(b"".to_vec())],
        ),
        to: HostAddress { host, port },
        streams: None,
        transport: TransportChoice::Tcp,
        clear: false,
        patience_secs: 0,
    }
}

pub(super) fn last_relay(said: &[Vec<u8>]) -> Relay {
    match decode_message(said.last().unwrap()) {
        Ok(ToReceiver::Relay(relay)) => relay,
        other => panic!("{other:?}"),
    }
}

/// The client has pinned a key that differs from the key of the host at this address.
#[test]
fn a_daemon_speaks_only_to_the_host_whose_key_the_client_has_pinned() {
    let world = World::new();
    paint(world.site.source().join("f"), 10);
    let messages = |key: Fingerprint| {
        let begin = ToSource::Begin(Begin {
            grant: [1; 32],
            key: key.0,
        });
        [ToSource::Copy(Box::new(copy_order(&world))), begin]
    };
    let said = say(
        &world.site.path("client"),
        &world.sender,
        &messages(world.sender.fingerprint),
    );
    assert_eq!(
        decode_message(&said[0]),
        Ok(ToSender::Copy(CopyState::Ready))
    );
    let Relay::Broken(Refusal { text, .. }) = last_relay(&said) else {
        panic!("{said:?}")
    };
    assert!(
        text.contains("key") && text.contains(&world.receiver.fingerprint.to_string()),
        "{text}"
    );
    // The key is correct, but the grant is not valid.
    let mut order = copy_order(&world);
    order.id = [8; 16];
    let begin = ToSource::Begin(Begin {
        grant: [1; 32],
        key: world.receiver.fingerprint.0,
    });
    let said = say(
        &world.site.path("client"),
        &world.sender,
        &[ToSource::Copy(Box::new(order)), begin],
    );
    let Relay::Broken(Refusal { text, .. }) = last_relay(&said) else {
        panic!("{said:?}")
    };
    assert!(text.contains("this key is not known here"), "{text}");
    // Not even the grant was sent to that host: its log has no transfer.
    let log = world.receiver.end_and_read_log();
    assert!(log.iter().all(|line| !line.contains("begun by")), "{log:?}");
}

/// The permissions to read and to send are checked again before each session. A client whose permission was revoked
/// sends nothing after the next lost connection.
#[test]
fn a_client_s_copy_ends_at_the_next_connection_once_its_key_is_gone() {
    let mut world = World::new();
    let client = world.under_way(&[]);
    let key = key_of(&world.site.path("client")).to_string();
    AuthorizedKeys::remove(&world.site.path("server"), &key).unwrap();
    world.receiver.kill();
    world.receiver = again("server", &world, &world.receiver);
    let outcome = finish(client).expect(3);
    outcome.says(&["the key of the client that had this grant is no longer allowed here"]);
    assert!(!world.site.target().join("large").exists());

    let mut world = World::new();
    let client = world.under_way(&[]);
    AuthorizedKeys::remove(
        &world.site.path("sender"),
        &key_of(&world.site.path("client")).to_string(),
    )
    .unwrap();
    world.receiver.kill();
    world.receiver = again("server", &world, &world.receiver);
    finish(client).expect(11).says(&["copy: unknown key"]);
    assert!(!world.site.target().join("large").exists());
}

/// At the receiver, a copy is authorized by the key of the sending host and the grant of its client.
#[test]
fn a_client_s_copy_ends_when_the_operator_of_the_receiver_removes_its_key() {
    let world = World::new();
    let client = world.under_way(&[]);
    let operator = |words: &[&str]| {
        let mut zmove = world.site.zmove(words);
        zmove.0.env("ZMOVE_HOME", world.site.path("server"));
        zmove.outcome().done().stdout
    };
    let status: serde_json::Value = serde_json::from_str(&operator(&["status", "--json"])).unwrap();
    let key = key_of(&world.site.path("client")).to_string();
    assert_eq!(
        status["transfers"][0]["granter"],
        serde_json::json!({ "name": "tester", "key": key })
    );
    let said = operator(&["allow", "remove", "tester", "--now"]);
    assert!(said.contains("stopped "), "{said}");
    let outcome = finish(client).expect(5);
    outcome.says(&["the operator there removed this key"]);
    assert!(!world.site.target().join("large").exists());
}

/// A client accepts a result from the sender only with the signature of the receiving host.
#[test]
fn a_sender_s_word_without_the_receiver_s_signature_is_not_believed() {
    let mut world = World::new();
    paint(world.site.source().join("f"), 10);
    let id = id_in(&world.copy(&[], &[""], "").expect(0).stderr);
    world.result(&[], &id, &world.sender).expect(0);
    world.sender.kill();
    let directory = world.site.path("sender/copies/results");
    let path = directory.join(&names(&directory)[0]);
    let mut result: KeptResult = kept(&path);
    let receipt = receipt_of(&mut result.result);
    *receipt.signature.last_mut().unwrap() ^= 1;
    keep(&path, &result);
    world.sender = again("sender", &world, &world.sender);
    let said = ["the receipt is not signed by the key that is pinned for the target's host"];
    world
        .result(&[], &id, &world.sender)
        .expect(5)
        .says(&said)
        .lines(1);
    // The signature is valid, but was made with another key.
    world.sender.kill();
    let receipt = receipt_of(&mut result.result);
    let signed = Identity::load_or_create(&world.site.path("thief"))
        .unwrap()
        .sign(&receipt.receipt)
        .unwrap();
    (receipt.certificate, receipt.signature) = (signed.certificate, signed.signature);
    keep(&path, &result);
    world.sender = again("sender", &world, &world.sender);
    world
        .result(&[], &id, &world.sender)
        .expect(5)
        .says(&said)
        .lines(1);
}

/// Returns the receipt of a successful copy.
fn receipt_of(copy: &mut zmove_wire::EndedCopy) -> &mut SignedReceipt {
    let account = copy.ended.as_mut().unwrap();
    account.rest.receipt.as_mut().unwrap()
}

/// The format of a result on disk.
#[derive(serde::Serialize, serde::Deserialize)]
struct KeptResult {
    client: [u8; 32],
    id: [u8; 16],
    ended: u64,
    result: zmove_wire::EndedCopy,
}

/// A host that is authorized only by a grant uses the quota of the client, since the client can request grants for many
/// keys.
#[test]
fn what_a_granted_host_takes_is_booked_on_the_client() {
    let mut granted = Granted::new();
    let another = token(&granted.world, |order| order);
    granted.world.receiver.kill();
    let settings = "[limits]\ntransfers_per_identity = 1\n";
    std::fs::write(granted.world.site.path("server/zmove.toml"), settings).unwrap();
    granted.world.receiver = again("server", &granted.world, &granted.world.receiver);
    let World { site, receiver, .. } = &granted.world;
    paint(site.source().join("large"), super::LARGE_BYTES);
    let address = format!("{}:", receiver.address);
    let mut push = site
        .zmove(&["push", "--limit", "8MB", "source/", &address])
        .start();
    super::wait_for_journal_in(&granted.world.journals());
    let error = granted.send().unwrap_err();
    assert!(
        error.contains("limits.transfers_per_identity = 1"),
        "{error}"
    );
    push.kill().unwrap();
    push.wait().unwrap();
    receiver.wait_for_log("broken off by tester");
    // The slot is released shortly after the log line. The previous host may still hold it, and then the new host waits
    // and uses its grant afterwards.
    granted.token = another;
    let ended = granted.send_within(Timeout(PATIENCE), "third", |open| open, "good");
    assert_eq!(ended, Ok(()));
}

#[test]
fn a_granted_host_may_nothing_else() {
    let granted = Granted::new();
    let World { site, receiver, .. } = &granted.world;
    paint(site.target().join("there"), 10);
    let ask = |message| match decode_message(&say(&site.path("third"), receiver, &[message])[0]) {
        Ok(ToSender::Refused(refusal)) => refusal.text,
        other => panic!("{other:?}"),
    };
    let order = grant_order(key_of(&site.path("thief")), "in");
    assert!(ask(ToSource::Grant(Box::new(order))).contains("this key may not write here"));
    let fetch = copy_order(&granted.world).fetch;
    assert!(ask(ToSource::Fetch(Box::new(fetch))).contains("this key may not read here"));
    let copy = ToSource::Copy(Box::new(copy_order(&granted.world)));
    assert!(ask(copy).contains("this key may not read here"));
    let result = ToSource::Result {
        id: [7; 16],
        stop: true,
    };
    assert!(ask(result).contains("no copy with this key and id is known here"));
    assert_eq!(granted.send(), Ok(()), "nor has it ended anything");
}

#[test]
fn a_granted_host_keeps_the_client_s_rate() {
    let world = World::new();
    let list = world.site.path("server/authorized_keys");
    let line = std::fs::read_to_string(&list).unwrap();
    std::fs::write(&list, format!("{} max-rate=80Mbit\n", line.trim_end())).unwrap();
    paint(world.site.source().join("f"), 4 * GROUP_BYTES);
    let summary = world.copied(&[], &[""]);
    assert!(summary["seconds"].as_f64().unwrap() > 1.2, "{summary}");
}

/// Instead of sending, a sender presents an old receipt of a copy with another id. The client asks the receiver whether
/// that copy is running.
#[test]
fn an_old_receipt_is_not_taken_for_a_new_one() {
    let world = World::new();
    paint(world.site.source().join("f"), 10);
    let id = id_in(&world.copy(&[], &[""], "").expect(0).stderr);
    let id: Vec<_> = (0..16)
        .map(|at| u8::from_str_radix(&id[2 * at..2 * at + 2], 16).unwrap())
        .collect();
    let ask = ToSource::Result {
        id: id.try_into().unwrap(),
        stop: false,
    };
    let said = say(&world.site.path("client"), &world.receiver, &[ask]);
    let Ok(ToSender::Result(zmove_wire::CopyResult::Received(receipt))) = decode_message(&said[0])
    else {
        panic!("{said:?}")
    };
    let (address, key) = super::hostile::lying_sender(&world.site.path("liar"), receipt);
    world.site.pin(&address, key);
    let receiver = format!("{}:", world.receiver.address);
    let copy = world
        .site
        .zmove(&["copy", "--timeout", "0", &format!("{address}:"), &receiver]);
    copy.outcome().expect(12).lines(1);
}

#[test]
fn grants_of_one_key_are_bounded() {
    let mut world = World::new();
    let ask = |order: GrantOrder| {
        let order = ToSource::Grant(Box::new(order));
        match decode_message(&say(&world.site.path("client"), &world.receiver, &[order])[0]) {
            Ok(ToSender::Granted(_)) => Ok(()),
            Ok(ToSender::Refused(refusal)) => Err(refusal.text),
            other => panic!("{other:?}"),
        }
    };
    let order = grant_order(world.sender.fingerprint, "in");
    let long = GrantOrder {
        sources: vec![SourcePath(vec![b'n'; 1_000]); 140],
        ..order.clone()
    };
    assert!(
        ask(long)
            .unwrap_err()
            .contains("larger than 131072 bytes: name fewer sources")
    );
    let give = |id: u8| {
        ask(GrantOrder {
            id: [id; 16],
            ..order.clone()
        })
    };
    assert_eq!((0..64).map(give).filter(Result::is_ok).count(), 64);
    assert!(
        give(64)
            .unwrap_err()
            .contains("this key has the maximum number of grants")
    );
    // The client waits for a free grant in the same way as for a busy receiver.
    paint(world.site.source().join("f"), 10);
    world
        .copy(&["--timeout", "0"], &[""], "")
        .expect(13)
        .says(&["this key has the maximum number of grants"]);
    let mut waiting = world.command(&[], &[""], "").start();
    let mut said = BufReader::new(waiting.stderr.take().unwrap()).lines();
    let busy = "the receiver is busy: receiver: this key has the maximum number of grants";
    assert!(said.next().unwrap().unwrap().contains(busy));
    let grants = world.site.path("server/copies/grants");
    world.receiver.kill();
    std::fs::remove_file(grants.join(&names(&grants)[0])).unwrap();
    world.receiver = again("server", &world, &world.receiver);
    finish(waiting).expect(0);
    assert_eq!(names(&world.site.target()), ["f"]);
}
