//! QUIC instead of TCP: the same transfers with the same trust, and the fallback if one of the two is blocked.

use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, mpsc};

use rustix::net::{AddressFamily, SocketType, bind, listen, socket};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};
use zmove_transport::{
    Access, ChannelDialer, DialOptions, HostPolicy, Identity, LaneSink, LaneSource, Listener,
    SharedRate, SocketConfig, TransportChoice,
};
use zmove_types::{BufferPool, GROUP_BYTES, StageClock, Stopwatch};
use zmove_wire::Cipher;

use crate::connections::breakage::{Appearance, assert_connection_lost, clean_parts, interrupt};
use crate::support::command::{Runner, finish};
use crate::support::daemon::Daemon;
use crate::support::harness::{PATIENCE, Site};
use crate::support::hooks::HookedSink;
use crate::support::inprocess::InProcess;
use crate::support::ports::free_address;
use crate::support::tree::{assert_same, names, paint};

/// A daemon that listens only for QUIC and knows no keys.
fn strangers() -> (Site, Daemon) {
    let site = Site::local();
    paint(site.source().join("f"), 10);
    // The port is closed over TCP too.
    let listen = free_address().to_string();
    let options = ["--listen", &listen, "--transport", "quic"];
    let daemon = Daemon::start_with(&site.path("server"), &options, &Runner::default());
    (site, daemon)
}

fn push(site: &Site, options: &[&str], address: SocketAddr) -> crate::support::command::Outcome {
    site.zmove(&[&["push"], options, &["source/", &format!("{address}:x")]].concat())
        .outcome()
}

#[test]
fn an_unknown_key_gets_the_command_that_allows_it() {
    let (site, daemon) = strangers();
    let outcome = push(
        &site,
        &["--transport", "quic", "--accept-new"],
        daemon.address,
    )
    .expect(5);
    let key = Identity::load_or_create(&site.path("client"))
        .unwrap()
        .fingerprint();
    let advice = format!("zmove allow {key} --name NAME --root DIR --write");
    outcome.says(&["zmove: receiver: this key is not known here", &advice]);
    daemon.wait_for_log(&format!("unknown key {key}"));
    assert!(names(&site.target()).is_empty());
}

#[test]
fn an_unknown_host_is_named() {
    let (site, daemon) = strangers();
    site.authorize(Access::ReadWrite);
    for options in [&[][..], &["--transport", "quic"]] {
        let outcome = push(&site, options, daemon.address).expect(5);
        outcome
            .says(&[
                "zmove: ",
                "is not known",
                &daemon.fingerprint.to_string(),
                "--accept-new",
            ])
            .lines(1);
    }
    assert!(names(&site.target()).is_empty());
}

#[test]
fn the_summary_names_the_transport() {
    let cases = [
        (
            Site::daemon(),
            &["--transport", "tcp"][..],
            "tcp",
            "over TCP",
        ),
        (Site::quic(), &[], "quic", "over QUIC"),
    ];
    for (site, options, key, told) in cases {
        paint(site.source().join("f"), 10);
        let text = site.push(options, site.contents(), "").done().stdout;
        assert!(text.contains(told), "{text}");
        let options = [&["--json"], options].concat();
        let summary = site.push(&options, site.contents(), "").done().summary();
        assert_eq!(summary["transport"], key);
    }
    let site = Site::local();
    paint(site.source().join("f"), 10);
    assert!(site.push_contents()["transport"].is_null());
}

/// These values come from the lanes, not from the kernel, and must be present.
#[test]
fn the_summary_has_measurements_of_the_path_over_quic() {
    let site = Site::quic();
    let bytes = 20 << 20;
    paint(site.source().join("f"), bytes);
    let path = site.push_contents()["path"].take();
    assert!(path["bytes_sent"].as_u64().unwrap() > bytes, "{path}");
    assert!(
        path["round_trip_min_seconds"].as_f64().unwrap() > 0.0,
        "{path}"
    );
    let busy = path["busy_lane_seconds"].as_f64().unwrap();
    let idle = path["idle_share"].as_f64().unwrap();
    assert!(busy > 0.0 && (0.0..1.0).contains(&idle), "{path}");
}

#[test]
fn a_daemon_that_listens_for_quic_alone_is_found() {
    let mut site = Site::local();
    site.start_daemon_with(&["--transport", "quic"]);
    paint(site.source().join("f"), 10);
    assert_eq!(site.push_contents()["transport"], "quic");
    assert_same(&site.source(), &site.target());
    let outcome = site
        .push(&["--transport", "tcp"], site.contents(), "")
        .expect(10);
    outcome.says(&["zmove: connect to", "refused"]).lines(1);
}

/// A firewall that silently drops TCP.
#[test]
fn a_port_that_is_silent_over_tcp_is_reached_over_quic() {
    let mut site = Site::local();
    // No other test uses this address, so the port is free over TCP too.
    site.start_daemon_at("127.91.0.1:0", &["--transport", "quic"]);
    let address = site.the_daemon().address;
    let silent = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&silent, &address).unwrap();
    listen(&silent, 0).unwrap();
    // This connection fills the accept queue.
    let _queued = TcpStream::connect(address).unwrap();
    paint(site.source().join("f"), 10);
    assert_eq!(site.push_contents()["transport"], "quic");
    assert_same(&site.source(), &site.target());
}

#[test]
fn a_daemon_that_listens_for_tcp_alone_is_found() {
    let mut site = Site::local();
    site.start_daemon_with(&["--transport", "tcp"]);
    paint(site.source().join("f"), 10);
    assert_eq!(site.push_contents()["transport"], "tcp");
}

#[test]
fn a_port_that_is_closed_over_tcp_and_quic_is_one_error() {
    let site = Site::local();
    paint(site.source().join("f"), 10);
    let address = free_address();
    let identity = Identity::load_or_create(&site.path("server")).unwrap();
    site.pin(&address, identity.fingerprint());
    let outcome = push(&site, &[], address).expect(10);
    let stderr = outcome
        .says(&[
            "zmove: connect to",
            &address.to_string(),
            "refused",
            "is 'zmove serve' running",
        ])
        .lines(1)
        .stderr;
    assert!(!stderr.contains("QUIC"), "{stderr}");
}

#[test]
fn options_that_contradict_quic_are_refused() {
    let site = Site::quic();
    paint(site.source().join("f"), 10);
    site.push(&["--cipher", "none"], site.contents(), "")
        .expect(1)
        .says(&["--cipher none needs TCP"]);
    let outcome = site
        .push(&["--congestion", "vegas"], site.contents(), "")
        .expect(1);
    outcome.says(&["--congestion vegas", "tolerant, cubic, bbr and reno"]);
}

/// Starts a push that does not end. Its low rate leaves CPU time for the other programs of the case.
fn endless(site: &Site) -> std::process::Child {
    paint(site.source().join("small"), 1_000);
    std::fs::File::create(site.source().join("endless"))
        .unwrap()
        .set_len(1 << 40)
        .unwrap();
    let appeared = Appearance::of("small", &site.target());
    let options = [
        "--json",
        "--timeout",
        "0",
        "--sparse",
        "never",
        "--limit",
        "40MB",
    ];
    let client = site.push_command(&options, &[&site.contents()], "").start();
    appeared.wait();
    client
}

/// The restarted daemon does not know the connections and resets them.
#[test]
fn a_push_without_retries_fails_when_the_daemon_is_killed_and_the_next_one_completes() {
    let mut site = Site::quic();
    let client = endless(&site);
    let mut daemon = site.take_daemon();
    daemon.kill();
    let listen = daemon.address.to_string();
    let again = Daemon::start_with(
        &site.path("server"),
        &["--listen", &listen, "--transport", "quic"],
        &Runner::default(),
    );
    assert_connection_lost(finish(client));
    assert!(names(&site.target()).iter().all(|name| name != "endless"));
    std::fs::remove_file(site.source().join("endless")).unwrap();
    push(&site, &["--transport", "quic"], again.address).done();
    assert_same(&site.source(), &site.target().join("x"));
}

#[test]
fn an_interrupted_push_ends_at_both_sides_and_can_be_repeated() {
    let site = Site::quic();
    let client = endless(&site);
    interrupt(client)
        .expect(20)
        .says(&["zmove: interrupted"])
        .lines(1);
    site.the_daemon().wait_for_log("broken off by tester");
    std::fs::remove_file(site.source().join("endless")).unwrap();
    clean_parts(&site, "server");
    site.push_contents();
    assert_same(&site.source(), &site.target());
}

/// The sender does not report its end. Without the check, its files would be renamed into place and timestamps of
/// directories would change half a minute later.
#[test]
fn a_push_waits_for_the_end_of_the_push_of_a_killed_sender() {
    let site = Site::quic();
    let mut client = endless(&site);
    client.kill().unwrap();
    client.wait().unwrap();
    std::fs::remove_file(site.source().join("endless")).unwrap();
    site.push_contents();
    let ends = site.the_daemon().wait_for_logs(" into '", 2);
    assert!(
        ends[0].contains("broken off by tester") && ends[1].contains("received from tester"),
        "{ends:?}"
    );
    // Removing parts changes the timestamp of the directory.
    clean_parts(&site, "server");
    site.push_contents();
    assert_same(&site.source(), &site.target());
}

/// The receiver asks the first sender whether it is alive, since the second push has the same target.
#[test]
fn a_push_of_a_living_sender_continues_beside_another() {
    let site = Site::quic();
    let client = endless(&site);
    std::fs::write(site.path("other"), "x").unwrap();
    site.push(&[], site.path("other"), "").done();
    site.the_daemon().wait_for_log("received from tester");
    assert!(!site.the_daemon().has_logged("broken off"));
    interrupt(client).expect(20);
    site.the_daemon().wait_for_log("broken off by tester");
}

#[test]
fn a_push_names_the_cause_when_its_daemon_stops() {
    let mut site = Site::quic();
    let client = endless(&site);
    assert_eq!(site.take_daemon().terminate(), Some(0));
    let outcome = finish(client);
    assert!(
        matches!(outcome.code, Some(10 | 13)),
        "{:?}: {}",
        outcome.code,
        outcome.stderr
    );
    outcome.says(&["zmove: receiver: "]).lines(1);
}

/// Both ends of a lane over QUIC.
struct Lane {
    sink: Box<dyn LaneSink>,
    source: Box<dyn LaneSource>,
    _listener: Listener,
    _runtime: Runtime,
}

impl Lane {
    fn connect(site: &Site) -> Self {
        let identity = |home| Identity::load_or_create(&site.path(home)).unwrap();
        let (server, client) = (identity("server"), identity("client"));
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (sink, source, listener) = runtime.block_on(async {
            let (address, socket) = ("127.0.0.1:0".parse().unwrap(), SocketConfig::default());
            let listener = Listener::bind(address, &server, TransportChoice::Quic, &socket)
                .await
                .unwrap();
            let port = listener.local_addr().unwrap().port();
            let policy = HostPolicy::Pinned(server.fingerprint());
            let reach = DialOptions {
                transport: TransportChoice::Quic,
                ..DialOptions::default()
            };
            let dialer = ChannelDialer::new(&client, "127.0.0.1", port, policy, reach)
                .await
                .unwrap();
            let dialled = async {
                let mut near = dialer.dial(PATIENCE).await.unwrap();
                near.write_all(GREETING).await.unwrap();
                near
            };
            let accepted = async {
                let mut far = listener
                    .handshake(listener.accept().await.unwrap(), PATIENCE, || ())
                    .await
                    .unwrap();
                far.read_exact(&mut [0; GREETING.len()]).await.unwrap();
                far
            };
            let (near, far) = tokio::join!(dialled, accepted);
            (
                near.into_sink(Cipher::Tls, 2).unwrap(),
                far.into_source(Cipher::Tls, SharedRate::default()).unwrap(),
                listener,
            )
        });
        Self {
            sink,
            source,
            _listener: listener,
            _runtime: runtime,
        }
    }
}

const GREETING: &[u8] = b"whatever";

/// Receives the frames of a lane up to the first data, then breaks the lane.
fn take_and_break(mut source: Box<dyn LaneSource>) {
    let (pool, clock) = (
        BufferPool::new(usize::try_from(GROUP_BYTES).unwrap(), 1),
        StageClock::default(),
    );
    while source
        .receive(&pool, &mut clock.start())
        .unwrap()
        .unwrap()
        .data
        .is_empty()
    {}
    source.breaker().trip();
}

/// This is how a lane to a killed daemon is lost after control has connected to its successor: the lane's thread has
/// handed over all of its data and does not notice the loss.
#[test]
fn data_of_a_lane_that_is_lost_while_idle_goes_over_another() {
    let site = Site::local();
    paint(site.source().join("large"), 2 * GROUP_BYTES);
    let Lane {
        sink,
        source,
        _listener,
        _runtime,
    } = Lane::connect(&site);
    let (broken_in, broken) = mpsc::channel::<()>();
    let taking = std::thread::spawn(move || {
        take_and_break(source);
        drop(broken_in);
    });
    let (lane, broken) = (Mutex::new(Some(sink)), Arc::new(Mutex::new(broken)));
    let wrap = move |inner| {
        let broken = Arc::clone(&broken);
        // Each lane takes one of the two groups.
        let before_data = move |_: &mut Stopwatch<'_>| {
            let _broken = broken.lock().unwrap().recv_timeout(PATIENCE);
        };
        let other = || Box::new(HookedSink { inner, before_data }) as Box<dyn LaneSink>;
        lane.lock().unwrap().take().unwrap_or_else(other)
    };
    let push = InProcess {
        wrap: Box::new(wrap),
        ..InProcess::default()
    };
    let pushed = push.push(&site.source(), &site.target());
    let summary = pushed.summary();
    taking.join().unwrap();
    assert_eq!(
        (
            summary.counters.files,
            summary.counters.failed,
            summary.counters.bytes
        ),
        (1, 0, 2 * GROUP_BYTES)
    );
    assert_same(&site.source(), &site.target());
}
