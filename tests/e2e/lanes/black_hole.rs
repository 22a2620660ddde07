//! Paths that drop full-size packets. The links of both hosts allow packets of 9,000 bytes, a link between them allows
//! 1,500, and no ICMP message reports that. The kernel's own path MTU probing is off, as by default.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use zmove_transport::{Access, AuthorizedKeys, Grant, Identity};
use zmove_types::GROUP_BYTES;

use crate::operation::doctor::Findings;
use crate::support::command::{Outcome, ZMOVE};
use crate::support::daemon::Daemon;
use crate::support::harness::{Site, has_program, is_root, skip};
use crate::support::quiet_machine::{calm_machine, share_machine};
use crate::support::tree::{assert_same, paint};

/// Parts of the message about a black hole, without the host.
const CAUSE: [&str; 3] = [
    "exchange full-size packets with 10.9.2.2:",
    "over TCP: they are lost on the path while small ones arrive",
    "ICMP messages that report it are filtered",
];
/// Options with a timeout far shorter than that of TCP.
const OPTIONS: [&str; 3] = ["--json", "--timeout", "20s"];
/// Maximum duration of a push that detects the black hole. An undetected one takes several minutes.
const TRANSFER_MAX: Duration = Duration::from_secs(40);

const SMALL_FILES: u64 = 20;

/// A network namespace, which ends with its process.
pub(crate) struct Host(Child);

impl Host {
    pub(crate) fn start() -> Option<Self> {
        let mut child = Command::new("unshare")
            .args([
                "--net",
                "sh",
                "-c",
                "ip link set lo up && echo ready && read -r _",
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        said.read_line(&mut ready).unwrap();
        let host = Self(child);
        (ready == "ready\n").then_some(host)
    }

    pub(crate) fn run(&self, script: &str) {
        let mut shell = Command::new("nsenter");
        shell.args(self.enter().split(' ').skip(1));
        let output = shell.args(["sh", "-ec", script]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{script}\n{said}");
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Returns the words of the command prefix that runs a command in the namespace.
    pub(crate) fn words(&self) -> Vec<String> {
        self.enter().split(' ').map(str::to_owned).collect()
    }

    /// Returns the command prefix that runs a command in the namespace.
    fn enter(&self) -> String {
        format!("nsenter --target {} --net --", self.0.id())
    }

    /// Makes all later commands of a site run in the namespace.
    pub(crate) fn runs(&self, site: &mut Site) {
        site.run_by_script(&format!("exec {} {ZMOVE} \"$@\"", self.enter()));
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Two hosts and the router between them.
struct BlackHole {
    near: Host,
    far: Host,
    _router: Host,
}

impl BlackHole {
    fn new() -> Option<Self> {
        share_machine();
        let programs = ["unshare", "nsenter", "ip"];
        if !is_root() || !programs.into_iter().all(has_program) {
            skip("hosts with a router between them need root, unshare, nsenter and ip");
            return None;
        }
        let (Some(near), Some(router), Some(far)) = (Host::start(), Host::start(), Host::start())
        else {
            skip("this kernel does not let us make a network namespace");
            return None;
        };
        router.run("echo 1 >/proc/sys/net/ipv4/ip_forward");
        for (number, host) in [(1, &near), (2, &far)] {
            router.run(&format!(
                "ip link add name to{number} mtu 1500 type veth peer name path mtu 9000 netns {}
                ip addr add 10.9.{number}.1/24 dev to{number}
                ip link set dev to{number} up",
                host.0.id()
            ));
            host.run(&format!(
                "ip addr add 10.9.{number}.2/24 dev path
                ip link set dev path up
                ip route add default via 10.9.{number}.1
                test 0 = \"$(cat /proc/sys/net/ipv4/tcp_mtu_probing)\""
            ));
        }
        // Messages of the router itself are dropped.
        router.run(
            "ip rule add iif lo priority 1 table 100 && ip route add blackhole default table 100",
        );
        Some(Self {
            near,
            far,
            _router: router,
        })
    }

    /// A site whose daemon is on the far host and whose client is on the near one. The client may write to the target
    /// and read the source.
    fn site(&self) -> Site {
        let mut site = Site::local();
        self.far.runs(&mut site);
        site.let_read("source");
        site.start_daemon_at("10.9.2.2:0", &[]);
        self.near.runs(&mut site);
        for number in 0..SMALL_FILES {
            paint(site.source().join(format!("small/{number}")), 5_000);
        }
        paint(site.source().join("large"), 3 * GROUP_BYTES);
        site
    }
}

#[track_caller]
fn check(site: &Site, outcome: Outcome) {
    outcome.expect(0).says(&CAUSE);
    assert_same(&site.source(), &site.target());
}

#[test]
fn a_push_finds_its_way_around_a_black_hole() {
    let _calm = calm_machine();
    let Some(black_hole) = BlackHole::new() else {
        return;
    };
    let site = black_hole.site();
    let began = Instant::now();
    let outcome = site.push(&OPTIONS, site.contents(), "");
    let took = began.elapsed();
    println!("{took:?}: {}", outcome.stderr);
    check(&site, outcome);
    assert!(took < TRANSFER_MAX, "{took:?}");
}

#[test]
fn a_push_in_clear_finds_its_way_around_a_black_hole() {
    let Some(black_hole) = BlackHole::new() else {
        return;
    };
    let mut site = Site::local();
    black_hole.far.runs(&mut site);
    site.start_daemon_at("10.9.2.2:0", &["--allow-clear"]);
    black_hole.near.runs(&mut site);
    paint(site.source().join("large"), 3 * GROUP_BYTES);
    let options = [&OPTIONS[..], &["--cipher", "none"]].concat();
    check(&site, site.push(&options, site.contents(), ""));
}

#[test]
fn a_pull_finds_its_way_around_a_black_hole() {
    let Some(black_hole) = BlackHole::new() else {
        return;
    };
    let site = black_hole.site();
    let source = site.contents().into_string().unwrap();
    check(&site, site.pull(&OPTIONS, &[&source], ""));
}

#[test]
fn a_copy_finds_its_way_around_a_black_hole() {
    let Some(black_hole) = BlackHole::new() else {
        return;
    };
    let mut site = black_hole.site();
    let client = Identity::load_or_create(&site.path("client")).unwrap();
    let grant = Grant::new(client.fingerprint(), "tester", Vec::new(), Access::ReadOnly);
    let grant = Grant {
        read_roots: vec![site.source().canonicalize().unwrap()],
        to: vec![site.the_daemon().address.to_string()],
        ..grant
    };
    AuthorizedKeys::allow(&site.path("sender"), grant).unwrap();
    let sender = Daemon::start(&site.path("sender"), "10.9.1.2:0", &site.runner);
    site.pin(&sender.address, sender.fingerprint);
    let hosts = |address: &SocketAddr| format!("{address}:");
    let (from, to) = (hosts(&sender.address), hosts(&site.the_daemon().address));
    // The client is on the target's host, and its own path to the source also has the black hole.
    black_hole.far.runs(&mut site);
    let copy = [&["copy"], &OPTIONS[..], &[&from, &to]].concat();
    check(&site, site.zmove(&copy).outcome());
}

/// The handshake fails as well, because the host's certificate is longer than a packet.
#[test]
fn a_handshake_finds_its_way_around_a_black_hole() {
    if !has_program("openssl") {
        return skip("openssl is missing: no certificate can be issued");
    }
    let Some(black_hole) = BlackHole::new() else {
        return;
    };
    let mut site = Site::local();
    Identity::load_or_create(&site.path("server")).unwrap();
    let names: Vec<_> = (0..60)
        .map(|number| format!("DNS:host-{number}.of-a-long-name.example.org"))
        .collect();
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-new", "-subj", "/CN=dtn", "-key"]);
    openssl.arg(site.path("server/key.pem")).arg("-addext");
    openssl.arg(format!("subjectAltName={}", names.join(",")));
    openssl.arg("-out").arg(site.path("server/cert.pem"));
    let issued = openssl.output().unwrap();
    assert!(issued.status.success(), "{issued:?}");
    black_hole.far.runs(&mut site);
    site.start_daemon_at("10.9.2.2:0", &[]);
    black_hole.near.runs(&mut site);
    paint(site.source().join("f"), 100_000);
    check(&site, site.push(&OPTIONS, site.contents(), ""));
}

/// There is no second session, since it would report everything again.
#[test]
fn a_dry_run_and_a_probe_find_their_way_around_a_black_hole() {
    let Some(black_hole) = BlackHole::new() else {
        return;
    };
    let site = black_hole.site();
    let small = "continuing with small packets";
    let told = [&CAUSE[..], &[small]].concat();
    let dry_run = [&OPTIONS[..], &["--dry-run"]].concat();
    let outcome = site.push(&dry_run, site.contents(), "");
    assert_eq!(
        outcome.expect(0).says(&told).summary()["files"],
        SMALL_FILES + 1
    );
    let host = format!("{}:", site.the_daemon().address);
    let probe = [
        "probe",
        "--streams",
        "2",
        "--time",
        "1s",
        "--no-sweep",
        &host,
    ];
    site.zmove(&probe).outcome().expect(0).says(&told);
}

#[test]
fn without_retries_the_black_hole_ends_a_push_with_its_cause() {
    let Some(black_hole) = BlackHole::new() else {
        return;
    };
    let site = black_hole.site();
    site.push(&["--timeout", "0"], site.contents(), "")
        .expect(12)
        .says(&CAUSE);
}

#[test]
fn the_doctor_measures_which_packets_arrive() {
    let Some(black_hole) = BlackHole::new() else {
        return;
    };
    let site = black_hole.site();
    let address = site.the_daemon().address.to_string();
    let outcome = site.zmove(&["doctor", "--json", &address]).outcome();
    let findings = Findings::of(&outcome.expect(0));
    findings.assert_level("path MTU", "slow");
    let text = findings.the("path MTU")["text"].as_str().unwrap();
    assert!(
        text.starts_with("1500, measured with data: packets of up to 9000 bytes"),
        "{text}"
    );
}
