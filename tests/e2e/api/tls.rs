//! The API over TLS, as other hosts reach it, with certificates made by the commands that docs/GUIDE.md tells.

use std::fs::{Permissions, set_permissions};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;

use super::client::{Answer, Served, answered, converse};
use crate::authority::block;
use crate::harness::{PATIENCE, PROMPT, has_program, skip};
use crate::jobs::{Yard, wait_for};
use crate::quiet_machine::quiet_machine;

const OWN: &str = "page";

/// Makes an authority, and certificates of it for the runner at localhost and for alice, in a directory.
fn issue(site: &Path, authority: &str) {
    let directory = site.join(authority);
    std::fs::create_dir(&directory).unwrap();
    for mark in ["page authority", "page runner", "page client"] {
        run(&directory, mark, |commands| commands);
    }
}

/// Runs commands of the documentation in the directory of an authority, changed for this case.
fn run(directory: &Path, mark: &str, change: impl FnOnce(String) -> String) {
    let commands =
        block("docs/GUIDE.md", &format!("run: {mark}")).replace("dtn.example.org", "localhost");
    let commands = change(commands);
    let ran = Command::new("sh")
        .args(["-ec", &commands])
        .current_dir(directory)
        .output()
        .unwrap();
    assert!(
        ran.status.success(),
        "{commands}\n{}",
        String::from_utf8_lossy(&ran.stderr)
    );
}

/// A yard whose runner has certificates; `None` where there is no openssl.
fn issued() -> Option<Yard> {
    if !has_program("openssl") {
        skip("openssl is missing: no certificate can be issued");
        return None;
    }
    let yard = Yard::local();
    issue(&yard.site.path(""), OWN);
    Some(yard)
}

fn files(yard: &Yard) -> Vec<String> {
    let options = [
        ("--http-cert", "runner.pem"),
        ("--http-key", "runner.key"),
        ("--http-client-ca", "ca.pem"),
    ];
    options
        .iter()
        .flat_map(|(option, file)| [(*option).to_owned(), own(yard, file)])
        .collect()
}

fn own(yard: &Yard, file: &str) -> String {
    yard.site.path(OWN).join(file).display().to_string()
}

/// A runner that other hosts reach.
struct Secured {
    served: Served,
}

/// What a client shows: the files of a certificate and of its key.
type Shown = (PathBuf, PathBuf);

impl Secured {
    fn new() -> Option<Self> {
        issued().map(Self::at)
    }

    fn at(yard: Yard) -> Self {
        let files = files(&yard);
        let words: Vec<_> = ["0.0.0.0:0"]
            .into_iter()
            .chain(files.iter().map(String::as_str))
            .collect();
        Self {
            served: Served::with(yard, &words),
        }
    }

    fn path(&self, authority: &str, file: &str) -> PathBuf {
        self.served.yard.site.path(authority).join(file)
    }

    /// A certificate of an authority that the commands have issued.
    fn shown(&self, authority: &str, name: &str) -> Shown {
        (
            self.path(authority, &format!("{name}.pem")),
            self.path(authority, &format!("{name}.key")),
        )
    }

    /// A certificate for another client.
    fn other(&self, name: &str) -> Shown {
        run(&self.path(OWN, ""), "page client", |commands| {
            commands.replace("alice", name)
        });
        self.shown(OWN, name)
    }

    /// The answer to a client that asks for the events, and the connection by which they come.
    fn events(&self, shown: &Shown) -> (String, StreamOwned<ClientConnection, TcpStream>) {
        let mut socket = self.connect(Some(shown));
        write!(
            socket,
            "GET /api/v1/events HTTP/1.1\r\nHost: localhost:{}\r\n\r\n",
            self.port()
        )
        .unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            socket.read_exact(&mut byte).unwrap();
            head.extend(byte);
        }
        (String::from_utf8(head).unwrap(), socket)
    }

    fn port(&self) -> u16 {
        self.served
            .address
            .rsplit_once(':')
            .unwrap()
            .1
            .parse()
            .unwrap()
    }

    fn knock(&self) -> TcpStream {
        let socket = TcpStream::connect(("127.0.0.1", self.port())).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }

    fn connect(&self, shown: Option<&Shown>) -> StreamOwned<ClientConnection, TcpStream> {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_file(self.path(OWN, "ca.pem")).unwrap())
            .unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()));
        let config = config
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match shown {
            None => config.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = vec![CertificateDer::from_pem_file(certificate).unwrap()];
                config
                    .with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap())
                    .unwrap()
            }
        };
        let name = "localhost".try_into().unwrap();
        StreamOwned::new(
            ClientConnection::new(Arc::new(config), name).unwrap(),
            self.knock(),
        )
    }

    #[track_caller]
    fn say(&self, words: &str) -> Answer {
        converse(self.connect(Some(&self.shown(OWN, "alice"))), words)
    }

    #[track_caller]
    fn get(&self, headers: &str) -> Answer {
        self.say(&format!(
            "GET /api/v1/jobs HTTP/1.1\r\nConnection: close\r\n{headers}\r\n"
        ))
    }

    /// All of HTTP that comes back to who asks for the jobs.
    fn told(&self, shown: Option<&Shown>) -> String {
        let host = format!("Host: localhost:{}\r\nConnection: close\r\n", self.port());
        let words = format!("GET /api/v1/jobs HTTP/1.1\r\n{host}\r\n");
        answered(self.connect(shown), &words)
    }

    /// Writes a certificate of the authority for a client, in the year 2020 or of now.
    fn of_the_year(&self, year: Option<i32>) -> Shown {
        let (path, key) = (self.path(OWN, "dated.pem"), KeyPair::generate().unwrap());
        let mut authority = CertificateParams::default();
        authority.distinguished_name = rcgen::DistinguishedName::new();
        authority
            .distinguished_name
            .push(DnType::CommonName, "Page of alice");
        let own = std::fs::read_to_string(self.path(OWN, "ca.key")).unwrap();
        let issuer = Issuer::new(authority, KeyPair::from_pem(&own).unwrap());
        let mut client = CertificateParams::default();
        client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if let Some(year) = year {
            client.not_before = rcgen::date_time_ymd(year, 1, 1);
            client.not_after = rcgen::date_time_ymd(year, 2, 1);
        }
        std::fs::write(&path, client.signed_by(&key, &issuer).unwrap().pem()).unwrap();
        let key_path = self.path(OWN, "dated.key");
        std::fs::write(&key_path, key.serialize_pem()).unwrap();
        (path, key_path)
    }
}

#[test]
fn who_has_a_certificate_of_the_authority_submits_a_job_and_sees_it() {
    let Some(secured) = Secured::new() else {
        return;
    };
    let host = format!("Host: localhost:{}\r\n", secured.port());
    assert_eq!(secured.get(&host).ok()["jobs"], json!([]));
    let body = secured
        .served
        .submission(&json!({ "label": "from afar" }))
        .to_string();
    let order = secured.say(&format!(
        "POST /api/v1/jobs HTTP/1.1\r\n{host}Connection: close\r\nContent-Type: application/json\r\n\
         Origin: https://localhost:{}\r\nContent-Length: {}\r\n\r\n{body}",
        secured.port(),
        body.len()
    ));
    assert_eq!(order.status, 201, "{order:?}");
    secured
        .served
        .wait_for_end(order.body["id"].as_i64().unwrap());
    assert_eq!(secured.get(&host).ok()["jobs"][0]["label"], "from afar");
    assert!(
        !secured.served.yard.place().join("token").exists(),
        "there is no word that somebody could read"
    );
}

#[test]
fn who_has_no_right_certificate_is_answered_no_byte() {
    let Some(secured) = Secured::new() else {
        return;
    };
    issue(&secured.served.yard.site.path(""), "other");
    let of_now = secured.of_the_year(None);
    assert!(
        secured.told(Some(&of_now)).contains("200 OK"),
        "what is made here is as it should be, but for the year"
    );
    let refused = [
        ("none", None),
        (
            "one of another authority, of the same name",
            Some(secured.shown("other", "alice")),
        ),
        ("the runner's own", Some(secured.shown(OWN, "runner"))),
        (
            "one whose time is over",
            Some(secured.of_the_year(Some(2020))),
        ),
        (
            "one whose time has not come",
            Some(secured.of_the_year(Some(2120))),
        ),
    ];
    for (what, shown) in refused {
        assert_eq!(secured.told(shown.as_ref()), "", "{what}");
    }
    let plain = answered(secured.knock(), "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(!plain.contains("HTTP"), "{plain:?}");
    assert!(
        secured
            .told(Some(&secured.shown(OWN, "alice")))
            .contains("200 OK")
    );
}

#[test]
fn over_tls_another_host_or_site_is_refused() {
    let Some(secured) = Secured::new() else {
        return;
    };
    let port = secured.port();
    for host in [
        "127.0.0.1",
        "0.0.0.0",
        "evil.example",
        "localhost.evil.example",
    ] {
        assert_eq!(
            secured.get(&format!("Host: {host}:{port}\r\n")).status,
            421,
            "{host}"
        );
    }
    let host = format!("Host: localhost:{port}\r\n");
    for origin in [
        "https://evil.example",
        "null",
        &format!("http://localhost:{port}"),
        "https://localhost",
    ] {
        assert_eq!(
            secured.get(&format!("{host}Origin: {origin}\r\n")).status,
            403,
            "{origin}"
        );
    }
    assert_eq!(
        secured
            .get(&format!("{host}Sec-Fetch-Site: cross-site\r\n"))
            .status,
        403
    );
    secured
        .get(&format!(
            "{host}Origin: https://localhost:{port}\r\nSec-Fetch-Site: same-origin\r\n"
        ))
        .ok();
}

/// More of them than there are places: who comes last is let in before the time of the first is over.
#[test]
fn silent_strangers_hold_up_nobody() {
    let _quiet = quiet_machine();
    let Some(secured) = Secured::new() else {
        return;
    };
    let begun = Instant::now();
    let mut silent: Vec<_> = (0..300).map(|_| secured.knock()).collect();
    let host = format!("Host: localhost:{}\r\n", secured.port());
    secured.get(&host).ok();
    let waited = begun.elapsed();
    assert!(waited < Duration::from_secs(8), "{waited:?}");
    assert_eq!(
        silent[0].read(&mut [0]).unwrap_or(0),
        0,
        "the first has gone"
    );
    let last = silent.last_mut().unwrap();
    last.set_read_timeout(Some(Duration::from_millis(1)))
        .unwrap();
    assert!(
        last.read(&mut [0]).is_err() || begun.elapsed() > Duration::from_secs(8),
        "the last has its time"
    );
}

/// More of them than there are places, all of one client that is known.
#[test]
fn slow_clients_hold_up_nobody() {
    let Some(secured) = Secured::new() else {
        return;
    };
    let [alice, bob] = [secured.shown(OWN, "alice"), secured.other("bob")];
    let slow = |_| {
        let mut socket = secured.connect(Some(&alice));
        socket
            .write_all(b"GET /api/v1/jobs HTTP/1.1\r\nHost: local")
            .unwrap();
        socket
    };
    let slow: Vec<_> = (0..100).map(slow).collect();
    let begun = Instant::now();
    for shown in [&alice, &bob] {
        assert!(secured.told(Some(shown)).contains("200 OK"));
    }
    assert!(begun.elapsed() < PROMPT, "{:?}", begun.elapsed());
    drop(slow);
}

#[test]
fn a_client_has_half_of_the_streams_of_events_at_most_and_is_told_to_come_again() {
    let Some(secured) = Secured::new() else {
        return;
    };
    let [alice, bob] = [secured.shown(OWN, "alice"), secured.other("bob")];
    let mut streams = Vec::new();
    for _ in 0..16 {
        let (head, stream) = secured.events(&alice);
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        streams.push(stream);
    }
    let (refused, _) = secured.events(&alice);
    assert!(
        refused.starts_with("HTTP/1.1 503") && refused.contains("retry-after: 5\r\n"),
        "{refused}"
    );
    assert!(secured.events(&bob).0.starts_with("HTTP/1.1 200"));
    assert!(
        secured.told(Some(&alice)).contains("200 OK"),
        "all else is answered"
    );
    drop(streams);
    wait_for("room", || {
        secured.events(&alice).0.starts_with("HTTP/1.1 200")
    });
}

#[test]
fn a_certificate_whose_time_ends_soon_is_told_of() {
    let Some(yard) = issued() else { return };
    run(&yard.site.path(OWN), "page runner", |commands| {
        commands.replace("-days 365", "-days 3")
    });
    let mut secured = Secured::at(yard);
    // It is said before anything is answered.
    secured
        .get(&format!("Host: localhost:{}\r\n", secured.port()))
        .ok();
    secured.served.end();
    let said = secured.served.complaints();
    let runner = secured.path(OWN, "runner.pem").display().to_string();
    assert!(
        said.contains(&format!("the certificate in '{runner}' expires at ")),
        "{said}"
    );
}

#[test]
fn what_no_client_could_use_is_refused_by_name() {
    let Some(yard) = issued() else { return };
    let (own, files) = (|file: &str| own(&yard, file), files(&yard));
    // The file of an option is another one.
    let refused = |option: &str, file: &str, part: &str| {
        let mut words: Vec<_> = ["runner", "--http", "0.0.0.0:0"]
            .map(str::to_owned)
            .to_vec();
        words.extend(files.iter().cloned());
        let at = words.iter().position(|word| word == option).unwrap();
        words[at + 1] = own(file);
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        yard.run(&words).expect(11).says(&[&own(file), part]);
    };
    run(&yard.site.path(OWN), "page runner", |commands| {
        commands
            .replace("runner.", "unnamed.")
            .replace("subjectAltName=DNS:localhost", "")
    });
    refused("--http-cert", "unnamed.pem", "it names no host");
    refused("--http-cert", "alice.pem", "it is not for a server");
    refused(
        "--http-key",
        "alice.key",
        "it does not belong to the certificate in",
    );
    // Whatever the key of a client signs would be let in.
    refused("--http-client-ca", "alice.pem", "it is no authority's");
    let fifo = Path::new(&own("fifo")).to_owned();
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    for option in ["--http-cert", "--http-key", "--http-client-ca"] {
        refused(option, "fifo", "name a regular file");
        refused(option, "", "name a regular file");
    }
}

#[test]
fn a_key_that_others_may_read_is_refused_by_name() {
    let Some(yard) = issued() else { return };
    let files = files(&yard);
    let words: Vec<_> = ["runner", "--http", "0.0.0.0:0"]
        .into_iter()
        .chain(files.iter().map(String::as_str))
        .collect();
    let refused = |parts: &[&str]| drop(yard.run(&words).expect(11).says(parts));
    set_permissions(own(&yard, "runner.key"), Permissions::from_mode(0o640)).unwrap();
    refused(&[&own(&yard, "runner.key"), "has mode 640", "chmod 600"]);
    set_permissions(own(&yard, "runner.key"), Permissions::from_mode(0o600)).unwrap();
    std::fs::write(own(&yard, "ca.pem"), "nobody").unwrap();
    refused(&[
        &own(&yard, "ca.pem"),
        "the authority of clients",
        "holds none in PEM",
    ]);
    std::fs::remove_file(own(&yard, "runner.pem")).unwrap();
    refused(&[&own(&yard, "runner.pem"), "No such file"]);
    yard.run(&["runner", "--http", "0.0.0.0:0", "--http-cert", "a"])
        .expect(1)
        .says(&["arguments were not provided"]);
    let nowhere = [
        "runner",
        "--http",
        "--http-cert",
        "a",
        "--http-key",
        "b",
        "--http-client-ca",
        "c",
    ];
    yard.run(&nowhere)
        .expect(1)
        .says(&["needs '--http' with an address"]);
}
