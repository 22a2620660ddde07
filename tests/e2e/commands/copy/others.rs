//! Neither a client's copies nor the target hosts of these copies affect the copies of other clients.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use zmove_engine::{
    Connector, DialSettings, NoListener, PushError, PushJob, Remote, RemotePush, RetryPolicy,
    SenderConfig, StartedPush, Timeout,
};
use zmove_scan::ScanRoot;
use zmove_sender::{NoQuota, SessionError};
use zmove_transport::{Access, AuthorizedKeys, Channel, Fingerprint, Grant, control_pair};
use zmove_types::{GROUP_BYTES, NoObserver, RelPath};
use zmove_wire::{
    Begin, Extensions, Greeting, Held, HostAddress, Open, Opened, Refusal, Relay, Role,
    TargetState, ToSender, ToSource, decode_message, encode_message,
};

use super::rights::{copy_order, grant_order, key_of, last_relay, say};
use super::{World, again};
use crate::support::harness::{PATIENCE, Site};
use crate::support::host::host;
use crate::support::tree::paint;

/// Starts a host that opens each transfer, then sends `words`, if any, and closes the connection.
fn brief_receiver(home: &std::path::Path, words: Vec<ToSender>) -> (SocketAddr, Fingerprint) {
    host(home, move |channel, greeting| {
        answer(channel, greeting, words.clone())
    })
}

/// Answers a control connection. Closes lanes if there are no words. Otherwise lanes get no answer, because a lost lane
/// would end the session before the words are read.
async fn answer(channel: Channel, greeting: Greeting, words: Vec<ToSender>) {
    if greeting.role != Role::Control && !words.is_empty() {
        std::future::pending::<()>().await;
    }
    let (mut reader, mut writer) = control_pair(channel);
    if greeting.role != Role::Control || reader.receive().await.is_err() {
        return;
    }
    drop(
        writer
            .greet(&Greeting::new(Role::Control, greeting.transfer))
            .await,
    );
    let opened = Opened {
        state: TargetState::Populated,
        lanes_max: 8,
        single_name: None,
        free_bytes: None,
        process: String::new(),
        extensions: Extensions::NONE,
    };
    for word in [&ToSender::Opened(opened)].into_iter().chain(&words) {
        drop(writer.send(&encode_message(word)).await);
    }
    // Closing the connection with unread data could discard the messages in flight.
    while !words.is_empty() && matches!(reader.receive().await, Ok(Some(_))) {}
}

/// A later session looks up the sources again, which may take long in large directories.
#[test]
fn a_push_is_interrupted_while_its_sources_are_looked_for_again() {
    let site = Site::local();
    paint(site.source().join("f"), 10);
    let (address, key) = brief_receiver(&site.path("server"), Vec::new());
    let remote = Remote::parse_endpoint(&address.to_string()).unwrap();
    let settings = DialSettings {
        key: Some(key),
        streams: Some(1),
        ..DialSettings::default()
    };
    let source = site.source();
    let job = move || PushJob {
        sources: vec![ScanRoot::new(source.clone(), RelPath::root())],
        open: Open::new(b"in".to_vec(), [0; 16]),
        mirror: None,
        sources_missing: 0,
        list: None,
    };
    let first = StartedPush::new(job(), SenderConfig::default(), None, Instant::now());
    let (ended, home) = (tokio::sync::Notify::new(), site.path("client"));
    let pushing = RemotePush {
        receiver: RetryPolicy {
            connector: Connector {
                home: &home,
                remote: &remote,
                settings: &settings,
                listener: &NoListener,
            },
            timeout: Timeout(PATIENCE),
            busy_timeout: Timeout(PATIENCE),
        },
        job: &|| {
            ended.notify_one();
            Box::pin(std::future::pending())
        },
        quota: Arc::new(NoQuota),
        observer: Arc::new(NoObserver),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let pushed = runtime.block_on(pushing.push(first, ended.notified()));
    let interrupted = matches!(pushed, Err(PushError::Session(SessionError::Interrupted)));
    assert!(interrupted, "{pushed:?}");
}

/// The memory for the other host's messages counts against the client, even if that host sends more than it was asked
/// for.
#[test]
fn messages_of_the_target_s_host_count_against_the_client() {
    let mut world = World::new();
    paint(world.site.source().join("f"), 10);
    let cvs = vec![[7; 32]; 65_536];
    let held = Held {
        request: 0,
        file: 0,
        first: 0,
        cvs,
        end: false,
    };
    let (address, key) = brief_receiver(&world.site.path("third"), vec![ToSender::Held(held)]);
    let list = world.site.path("sender/authorized_keys");
    let line = std::fs::read_to_string(&list).unwrap();
    std::fs::write(
        &list,
        line.replace(&world.receiver.address.to_string(), &address.to_string()),
    )
    .unwrap();
    world.sender.kill();
    let settings = "[limits]\nmemory_per_identity = \"64MiB\"\n";
    std::fs::write(world.site.path("sender/zmove.toml"), settings).unwrap();
    world.sender = again("sender", &world, &world.sender);
    let mut order = copy_order(&world);
    order.to = HostAddress {
        host: "127.0.0.1".into(),
        port: address.port(),
    };
    let begin = ToSource::Begin(Begin {
        grant: [1; 32],
        key: key.0,
    });
    let said = say(
        &world.site.path("client"),
        &world.sender,
        &[ToSource::Copy(Box::new(order)), begin],
    );
    let Relay::Broken(Refusal { text, .. }) = last_relay(&said) else {
        panic!("{said:?}")
    };
    assert!(text.contains("memory_per_identity"), "{text}");
}

/// If two clients order copies from one host, each rate limit applies only to that client's copies.
#[test]
fn a_client_s_rate_does_not_hold_for_another_s_copy() {
    let world = World::new();
    paint(world.site.source().join("f"), GROUP_BYTES);
    let (other, server) = (key_of(&world.site.path("other")), world.site.path("server"));
    let roots = vec![world.site.target().canonicalize().unwrap()];
    let slow = Grant::new(other, "other", roots, Access::WriteOnly);
    AuthorizedKeys::allow(
        &server,
        Grant {
            max_rate: Some("8kbit".parse().unwrap()),
            ..slow
        },
    )
    .unwrap();
    let order = ToSource::Grant(Box::new(grant_order(world.sender.fingerprint, "in")));
    let said = say(&world.site.path("other"), &world.receiver, &[order]);
    assert!(
        matches!(decode_message(&said[0]), Ok(ToSender::Granted(_))),
        "{said:?}"
    );
    // With the other client's rate limit, the copy would take an hour.
    world.copied(&[], &[""]);
}
