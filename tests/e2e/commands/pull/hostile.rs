//! Hosts that send entries that were not requested, and receivers that request too much.

use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::sync::mpsc as std_mpsc;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use zmove_scan::ScanRoot;
use zmove_sender::{Link, NoQuota, Push, PushJob, Relay, Run, SenderConfig};
use zmove_transport::{
    Channel, ControlError, ControlReader, ControlWriter, Fingerprint, Frame, control_pair,
};
use zmove_types::{Name, NoObserver, RelPath, StageClock, TransferId};
use zmove_wire::{
    Cipher, Extraneous, Fetching, Greeting, Open, Remove, RemoveGroup, Role, TargetShape,
    ToReceiver, ToSender, ToSource, decode_message, encode_message,
};

use super::site;
use crate::security::intruder::{Deed, batch, file};
use crate::support::harness::{PATIENCE, Site, runtime};
use crate::support::host::host;
use crate::support::tree::{names, paint};

/// Starts a host that sends `sources` of the site under the given target names, whatever was requested.
fn serve(site: &Site, sources: &[(&str, &str)], claimed: &str) -> (SocketAddr, Fingerprint) {
    serve_as(site, sources, directory(claimed))
}

fn directory(claimed: &str) -> TargetShape {
    TargetShape::Directory {
        tops: vec![name(claimed)],
    }
}

fn name(text: &str) -> Name {
    Name::from_bytes(text.as_bytes()).unwrap()
}

/// Starts a host that sends `sources` of the site and reports this `shape` of the target.
fn serve_as(
    site: &Site,
    sources: &[(&str, &str)],
    shape: TargetShape,
) -> (SocketAddr, Fingerprint) {
    let path = |text: &str| RelPath::from_bytes(text.as_bytes()).unwrap();
    let roots: Vec<_> = sources
        .iter()
        .map(|(source, prefix)| ScanRoot::new(site.path(source), path(prefix)))
        .collect();
    let (lanes_in, lanes) = mpsc::channel(64);
    let lanes = Arc::new(Mutex::new(Some(lanes)));
    host(&site.path("server"), move |channel, greeting| {
        let (lanes_in, lanes) = (lanes_in.clone(), Arc::clone(&lanes));
        let (roots, shape) = (roots.clone(), shape.clone());
        async move {
            if let Role::Lane(_) = greeting.role {
                return drop(
                    lanes_in
                        .send(Ok(channel.into_sink(Cipher::Tls, 8).unwrap()))
                        .await,
                );
            }
            let lanes = lanes.lock().unwrap().take();
            if let Some(lanes) = lanes {
                send(channel, greeting, lanes, roots, shape).await;
            }
        }
    })
}

async fn send(
    channel: Channel,
    greeting: Greeting,
    lanes: mpsc::Receiver<Result<Box<dyn zmove_transport::LaneSink>, zmove_transport::LaneError>>,
    sources: Vec<ScanRoot>,
    shape: TargetShape,
) {
    let (mut reader, mut writer) = control_pair(channel);
    let asked = reader.receive().await.unwrap().unwrap();
    if let Ok(ToSource::Fetch(fetch)) = decode_message(&asked)
        && fetch.list.is_some()
    {
        // A short list fits into one message.
        reader.receive().await.unwrap().unwrap();
    }
    let transfer = greeting.transfer;
    writer
        .greet(&Greeting::new(Role::Control, transfer))
        .await
        .unwrap();
    let fetching = ToSender::Fetching(Fetching { lanes_max: 8 });
    writer.send(&encode_message(&fetching)).await.unwrap();
    let open = Open {
        shape,
        ..Open::new(b"/".to_vec(), [0; 16])
    };
    let job = PushJob {
        sources,
        open,
        mirror: None,
        sources_missing: 0,
        list: None,
    };
    let mut run = Run::begin(None, Instant::now());
    let push = Push::start(job, SenderConfig::default(), &mut run, Instant::now());
    let (words_in, words) = mpsc::unbounded_channel();
    let last = Box::new(move |_: Result<&_, &_>| drop(words_in));
    let link = Link {
        transfer,
        cipher: Cipher::Tls,
        control: (reader, writer),
        lanes,
        supply: None,
        relay: Some(Relay { words, last }),
        quota: Arc::new(NoQuota),
    };
    drop(
        push.run(&mut run, link, Arc::new(NoObserver), std::future::pending())
            .await,
    );
}

/// A site with a requested directory and with entries that a hostile host would like to send.
fn tempting() -> Site {
    let site = Site::local();
    paint(site.path("good/f"), 10);
    paint(site.path("evil/authorized_keys"), 10);
    paint(site.path("large"), 5 << 20);
    site
}

/// Variants of CVE-2022-29154: a host answers with more names than were requested, in small files, large files and
/// directories, for a glob, and in its opening.
#[test]
fn a_host_brings_nothing_that_was_not_asked_for() {
    for (sources, claimed, asked) in [
        (&[("good", "good"), ("evil", ".ssh")][..], "good", "good"),
        (&[("good", "good"), ("large", "bashrc")], "good", "good"),
        (&[("good", "good"), ("evil", "bad")], "good", "g*"),
        (&[("evil", "bad")], "bad", "good"),
        // The entries of another directory, sent into the requested one.
        (&[("evil/", "")], "good", "good"),
    ] {
        let site = tempting();
        let (address, fingerprint) = serve(&site, sources, claimed);
        site.pin(&address, fingerprint);
        // Without this existing file, nothing would be offered.
        paint(site.target().join("there"), 1);
        let pull = site.zmove(&[
            "pull",
            "--timeout",
            "0",
            &format!("{address}:{asked}"),
            "target",
        ]);
        pull.outcome()
            .expect(12)
            .says(&["an entry that was not requested"])
            .lines(1);
        let allowed = ["good", "there"];
        let found = names(&site.target());
        assert!(
            found.iter().all(|name| allowed.contains(&name.as_str())),
            "{sources:?}: {found:?}"
        );
    }
}

/// The target does not exist. A host that claims to send a single file would get the target's parent as its target.
#[test]
fn a_host_that_sends_a_single_file_brings_nothing_beside_the_target() {
    for (sources, claimed, asked) in [
        // The contents of a directory under arbitrary names.
        (&[("evil", ".ssh")][..], "any", "good/"),
        (&[("large", "bashrc")], "any", "good/"),
        (&[("good/f", "f"), ("evil", ".ssh")], "f", "good/"),
        // An entry with the requested name that is not the file to be renamed.
        (&[("evil", "good")], "good", "good"),
        (&[("evil", "bad")], "good", "*"),
        (&[("large", "bad")], "good", "*"),
    ] {
        let site = tempting();
        std::fs::create_dir(site.path("home")).unwrap();
        let (address, fingerprint) = serve_as(
            &site,
            sources,
            TargetShape::Single {
                name: name(claimed),
            },
        );
        site.pin(&address, fingerprint);
        let pull = site.zmove(&[
            "pull",
            "--timeout",
            "0",
            &format!("{address}:{asked}"),
            "home/new",
        ]);
        let outcome = pull.outcome();
        let found = names(&site.path("home"));
        assert!(
            found.iter().all(|name| name == "new"),
            "{sources:?}: {found:?}"
        );
        outcome
            .expect(12)
            .says(&["an entry that was not requested"])
            .lines(1);
    }
}

/// The same host can send requested entries, so the other cases fail only because of their names.
#[test]
fn a_host_that_sends_what_was_asked_for_is_believed() {
    let site = tempting();
    let (address, fingerprint) = serve(&site, &[("good", "good")], "good");
    site.pin(&address, fingerprint);
    // The host sends no final report, so the command fails although all data arrives.
    site.zmove(&[
        "pull",
        "--timeout",
        "0",
        &format!("{address}:good"),
        "target",
    ])
    .outcome()
    .expect(12);
    assert_eq!(names(&site.target().join("good")), ["f"]);
}

/// Starts a host that sends `word`, then neither data nor a final report, and keeps the connection open. The
/// returned channel reports when the receiver has finished.
fn silent_host(site: &Site, word: ToReceiver) -> (SocketAddr, Fingerprint, std_mpsc::Receiver<()>) {
    let (finished_in, finished) = std_mpsc::channel();
    let word = encode_message(&word);
    let (address, fingerprint) = host(&site.path("server"), move |channel, greeting| {
        let (finished, word) = (finished_in.clone(), word.clone());
        async move {
            let _stays = fall_silent(channel, greeting, word, finished).await;
            std::future::pending::<()>().await;
        }
    });
    (address, fingerprint, finished)
}

/// Returns the connection, so that it stays open.
async fn fall_silent(
    channel: Channel,
    greeting: Greeting,
    word: Vec<u8>,
    finished: std_mpsc::Sender<()>,
) -> Result<(ControlReader, ControlWriter), ControlError> {
    let (mut reader, mut writer) = control_pair(channel);
    if greeting.role == Role::Fetch {
        reader.receive().await?;
        writer
            .greet(&Greeting::new(Role::Control, greeting.transfer))
            .await?;
        let fetching = encode_message(&ToSender::Fetching(Fetching { lanes_max: 8 }));
        let open = ToReceiver::Open(Open::new(Vec::new(), [0; 16]));
        writer
            .send(&[fetching, encode_message(&open), word].concat())
            .await?;
        while let Ok(Some(_)) = reader.receive().await {}
        let _nobody_waits = finished.send(());
    }
    Ok((reader, writer))
}

/// All data has arrived, and the client waits for the host's final report.
#[test]
fn a_host_that_tells_no_account_keeps_no_client_that_is_interrupted() {
    let site = tempting();
    let end = ToReceiver::Announce {
        items: 0,
        mismatches: 0,
    };
    let (address, fingerprint, finished) = silent_host(&site, end);
    site.pin(&address, fingerprint);
    let pull = site
        .zmove(&["pull", &format!("{address}:good/"), "target"])
        .start();
    finished.recv_timeout(PATIENCE).unwrap();
    crate::connections::breakage::interrupt(pull).expect(20);
}

/// The receiver also checks the names in every other message.
#[test]
fn a_host_removes_nothing_that_was_not_asked_for() {
    let site = tempting();
    let names_gone = vec![name("there")];
    let groups = vec![RemoveGroup {
        directory: RelPath::root(),
        names: names_gone,
    }];
    let word = ToReceiver::Remove(Remove { remove: 0, groups });
    let (address, fingerprint, _finished) = silent_host(&site, word);
    site.pin(&address, fingerprint);
    paint(site.target().join("there"), 1);
    let pull = site.zmove(&[
        "pull",
        "--timeout",
        "0",
        "--delete",
        &format!("{address}:good"),
        "target",
    ]);
    pull.outcome()
        .expect(12)
        .says(&["an entry that was not requested"])
        .lines(1);
    assert_eq!(names(&site.target()), ["there"]);
}

/// The receiver enforces the limit, whatever limit the host was given.
#[test]
fn a_host_removes_no_more_than_may_be_removed() {
    let site = tempting();
    let groups = vec![RemoveGroup {
        directory: RelPath::root(),
        names: vec![name("there")],
    }];
    let word = ToReceiver::Remove(Remove { remove: 0, groups });
    let (address, fingerprint, finished) = silent_host(&site, word);
    site.pin(&address, fingerprint);
    for number in 0..5 {
        paint(site.target().join(format!("there/{number}")), 1);
    }
    let mut pull = site.zmove(&["pull", "--timeout", "0", "--delete", "--max-delete", "2"]);
    pull.0.arg(format!("{address}:good/")).arg("target");
    let pull = pull.start();
    let since = Instant::now();
    while names(&site.target().join("there")).len() > 3 {
        assert!(since.elapsed() < PATIENCE, "nothing is removed");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    crate::connections::breakage::interrupt(pull).expect(20);
    drop(finished);
    assert_eq!(names(&site.target().join("there")).len(), 3);
}

/// A variant of CVE-2022-29154 below the top directory: entries next to a listed file or inside a listed directory were
/// not requested.
#[test]
fn a_host_brings_nothing_that_is_not_listed() {
    for (list, brought) in [
        ("good/f\n", "good"),
        ("good\n", "good"),
        ("good/f\nx\n", "x"),
    ] {
        let site = tempting();
        paint(site.path("loot/f"), 10);
        paint(site.path("loot/authorized_keys"), 10);
        std::fs::write(site.path("list"), list).unwrap();
        let (address, fingerprint) = serve(&site, &[("loot", brought)], brought);
        site.pin(&address, fingerprint);
        paint(site.target().join("there"), 1);
        let list = ["pull", "--timeout", "0", "--files-from", "list"];
        let pull = site.zmove(&[&list[..], &[&format!("{address}:all"), "target"]].concat());
        pull.outcome()
            .expect(12)
            .says(&["an entry that was not requested"])
            .lines(1);
        assert!(!site.target().join(brought).join("authorized_keys").exists());
    }
}

/// Starts a host that sends `words` and then this frame on its first lane. It stays connected until the receiver has
/// finished or disconnected.
fn talking_host(site: &Site, words: Vec<u8>, frame: Option<Frame>) -> (SocketAddr, Fingerprint) {
    let frame = Arc::new(Mutex::new(frame));
    host(&site.path("server"), move |channel, greeting| {
        let (words, frame) = (words.clone(), Arc::clone(&frame));
        async move {
            if let Role::Lane(_) = greeting.role {
                let frame = frame.lock().unwrap().take();
                if let Some(frame) = frame {
                    let mut sink = channel.into_sink(Cipher::Tls, 8).unwrap();
                    let send =
                        move || sink.send(frame, &mut Arc::new(StageClock::default()).start());
                    // The receiver may have closed the connection.
                    drop(tokio::task::spawn_blocking(send).await);
                }
                return;
            }
            let (mut reader, mut writer) = control_pair(channel);
            let ours = Greeting::new(Role::Control, greeting.transfer);
            writer.greet(&ours).await.unwrap();
            reader.receive().await.unwrap();
            let fetching = ToSender::Fetching(Fetching { lanes_max: 8 });
            let said = [encode_message(&fetching), words].concat();
            drop(writer.send(&said).await);
            while let Ok(Some(bytes)) = reader.receive().await
                && !matches!(decode_message(&bytes), Ok(ToSender::Finished(_)))
            {}
        }
    })
}

/// Encodes an opening whose tag has two bytes instead of one, so that its first byte is not the tag of an opening.
fn disguised(open: Open) -> Vec<u8> {
    let plain = encode_message(&ToReceiver::Open(open));
    let body = [&[0x80, 0][..], &plain[5..]].concat();
    let length = u32::try_from(body.len()).unwrap();
    [&length.to_le_bytes(), &body[..]].concat()
}

/// The target, the intent and the permission to remove are in the opening. If a host's own opening reached the
/// receiver, the host could write and remove anywhere.
#[test]
fn a_host_whose_opening_is_disguised_changes_nothing() {
    for options in [&[][..], &["--dry-run"]] {
        let site = tempting();
        let elsewhere = site.path("elsewhere");
        paint(elsewhere.join("there"), 1);
        let open = Open {
            extraneous: Extraneous::Goes,
            ..Open::new(elsewhere.as_os_str().as_bytes().to_vec(), [0; 16])
        };
        let groups = vec![RemoveGroup {
            directory: RelPath::root(),
            names: vec![name("there")],
        }];
        let remove = ToReceiver::Remove(Remove { remove: 0, groups });
        let end = |items| {
            encode_message(&ToReceiver::Announce {
                items,
                mismatches: 0,
            })
        };
        let write = [disguised(open.clone()), end(1)].concat();
        let removal = [disguised(open), encode_message(&remove), end(0)].concat();
        let Deed::Frame(frame) = batch(0, "", vec![file("stolen", 0o600)]) else {
            unreachable!("a batch is a frame")
        };
        for (words, frame) in [(write, Some(frame)), (removal, None)] {
            let (address, fingerprint) = talking_host(&site, words, frame);
            site.pin(&address, fingerprint);
            let from = format!("{address}:good/");
            let mut pull = site.zmove(&["pull", "--timeout", "0", "--streams", "1"]);
            pull.0.args(options).args([&from, "target"]);
            let outcome = pull.outcome();
            assert_eq!(names(&elsewhere), ["there"], "{options:?}");
            outcome
                .expect(12)
                .says(&["not in its canonical form"])
                .lines(1);
        }
    }
}

/// Opens transfer `id` as a pull, sends `bytes` after the greeting, and returns the daemon's answer.
fn say(site: &Site, id: u8, bytes: &[u8]) -> Vec<u8> {
    let greeting = Greeting::new(Role::Fetch, TransferId([id; 16])).encode();
    runtime().block_on(async {
        let mut connection = site.the_daemon().dial(&site.path("client")).await;
        connection
            .write_all(&[&greeting, bytes].concat())
            .await
            .unwrap();
        connection.flush().await.unwrap();
        let mut said = Vec::new();
        drop(tokio::time::timeout(PATIENCE, connection.read_to_end(&mut said)).await);
        said
    })
}

/// Only the length is sent. A daemon that waited for the message would not answer.
#[test]
fn a_length_over_the_limit_is_refused_before_the_message_is_read() {
    let site = site();
    let said = say(&site, 1, &(7_u32 << 20).to_le_bytes());
    let text = String::from_utf8_lossy(&said).into_owned();
    assert!(
        text.contains("message: 7340032 is over the limit of 2097152"),
        "{text}"
    );
    site.the_daemon().wait_for_log("over the limit of 2097152");
}

#[test]
fn an_order_of_nonsense_is_refused() {
    let site = site();
    // Each transfer has a different id, since the previous one may still be ending.
    for (id, nonsense) in [
        (1, &[5, 0, 0, 0, 1, 2, 3, 4, 5][..]),
        (2, &[1, 0, 0, 0, 9]),
        (3, &[3, 0, 0, 0, 1, 1, b'x']),
    ] {
        let said = say(&site, id, nonsense);
        assert!(said.len() > Greeting::BYTES, "{said:?}");
    }
    site.the_daemon().wait_for_logs("refused: ", 3);
    paint(site.source().join("f"), 10);
    site.pull(&[], &["f"], "").expect(0);
}
