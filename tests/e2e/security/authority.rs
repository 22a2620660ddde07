//! A site's certificate authority instead of pinned keys, created with the commands in docs/OPERATIONS.md.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use zmove_transport::Identity;

use crate::operation::limits::time_for_strangers;
use crate::support::command::{Outcome, Runner};
use crate::support::daemon::Daemon;
use crate::support::harness::{Site, has_program, skip};
use crate::support::quiet_machine::quiet_machine;
use crate::support::tree::{assert_same, names, paint, set_mode};

const TRANSPORTS: [&str; 2] = ["tcp", "quic"];
const AUTHORITY: &str = "ca";
const PAST: &str = "-startdate 20200101000000Z -enddate 20200201000000Z -batch";

fn documented(mark: &str) -> String {
    block("docs/OPERATIONS.md", mark)
}

/// Returns the contents of a block in the documentation, after its mark.
pub(crate) fn block(document: &str, mark: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(document);
    let text = std::fs::read_to_string(path).unwrap();
    let (_, behind) = text
        .split_once(&format!("<!-- {mark} -->\n```"))
        .expect("the block is there");
    let (_, lines) = behind.split_once('\n').unwrap();
    lines.split_once("```").unwrap().0.to_owned()
}

/// A site with an authority that has issued a certificate for its client `alice` and one for its host `localhost`.
struct Issued {
    site: Site,
}

impl Issued {
    /// Returns `None` if openssl is missing.
    fn new() -> Option<Self> {
        if !has_program("openssl") {
            skip("openssl is missing: no certificate can be issued");
            return None;
        }
        let issued = Self {
            site: Site::local(),
        };
        paint(issued.site.source().join("f"), 10);
        for home in ["client", "server"] {
            Identity::load_or_create(&issued.site.path(home)).unwrap();
        }
        issued.found(AUTHORITY);
        issued.client(AUTHORITY, |commands| commands);
        issued.host(AUTHORITY, |commands| commands);
        std::fs::copy(
            issued.path(AUTHORITY, "site-ca.pem"),
            issued.site.path("client/known_cas.pem"),
        )
        .unwrap();
        issued.publish("server/site-ca.pem", "site-ca.pem");
        issued.publish("server/site-ca.crl", "site-ca.crl");
        let root = issued.site.target().canonicalize().unwrap();
        issued.authorize(&format!(
            "ca=site-ca.pem crl=site-ca.crl cn=alice name=alice root={} write",
            root.display()
        ));
        Some(issued)
    }

    fn path(&self, authority: &str, file: &str) -> PathBuf {
        self.site.path(authority).join(file)
    }

    fn publish(&self, to: &str, file: &str) {
        std::fs::copy(self.path(AUTHORITY, file), self.site.path(to)).unwrap();
    }

    fn authorize(&self, line: &str) {
        let path = self.site.path("server/authorized_keys");
        std::fs::write(&path, format!("{line}\n")).unwrap();
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .unwrap();
    }

    /// Creates an authority.
    fn found(&self, authority: &str) {
        std::fs::create_dir(self.site.path(authority)).unwrap();
        std::fs::write(
            self.path(authority, "site-ca.cnf"),
            documented("file: site-ca.cnf"),
        )
        .unwrap();
        self.run(authority, documented("run: authority"));
    }

    /// Issues a certificate for the client with the documented commands, which `change` may modify.
    fn client(&self, authority: &str, change: impl Fn(String) -> String) {
        self.run(authority, change(documented("run: client")));
        std::fs::copy(
            self.path(authority, "alice.pem"),
            self.site.path("client/cert.pem"),
        )
        .unwrap();
    }

    /// Issues a certificate for the host in the same way.
    fn host(&self, authority: &str, change: impl Fn(String) -> String) {
        self.run(authority, change(documented("run: host")));
        std::fs::copy(
            self.path(authority, "dtn.pem"),
            self.site.path("server/cert.pem"),
        )
        .unwrap();
    }

    fn run(&self, authority: &str, commands: String) {
        let (client, server) = (self.site.path("client"), self.site.path("server"));
        let commands = commands
            .replace("~/.config/zmove", client.to_str().unwrap())
            .replace("/etc/zmove", server.to_str().unwrap())
            .replace("/var/lib/zmove", server.to_str().unwrap())
            .replace("dtn.example.org", "localhost");
        let mut shell = Command::new("sh");
        let output = shell
            .arg("-ec")
            .arg(&commands)
            .current_dir(self.site.path(authority))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{commands}\n{said}");
    }

    fn serve(&self) -> Daemon {
        Daemon::start(&self.site.path("server"), "127.0.0.1:0", &Runner::default())
    }

    fn push(&self, daemon: &Daemon, options: &[&str]) -> Outcome {
        let target = format!("localhost:{}:x", daemon.address.port());
        self.site
            .zmove(&[&["push"], options, &["source/", &target]].concat())
            .outcome()
    }

    /// Asserts that the client is refused on both transports with this reason, which is also in the log.
    #[track_caller]
    fn refused(&self, daemon: &Daemon, code: i32, reason: &str) {
        for transport in TRANSPORTS {
            let outcome = self
                .push(
                    daemon,
                    &["--strict", "--timeout", "0", "--transport", transport],
                )
                .expect(code);
            outcome.says(&["zmove: receiver: ", reason]).lines(1);
        }
        assert!(names(&self.site.target()).is_empty());
    }

    /// Asserts that the host is refused, also by a client that accepts new hosts.
    #[track_caller]
    fn host_refused(&self, daemon: &Daemon, reason: &str) {
        for transport in TRANSPORTS {
            for option in ["--strict", "--accept-new"] {
                let outcome = self
                    .push(daemon, &[option, "--transport", transport])
                    .expect(5);
                outcome.says(&["zmove: verify localhost", reason]).lines(1);
            }
        }
        assert!(
            !self.site.path("client/known_hosts").exists() && names(&self.site.target()).is_empty()
        );
    }
}

#[test]
fn an_authority_replaces_pins_on_both_sides() {
    let Some(issued) = Issued::new() else { return };
    let daemon = issued.serve();
    for transport in TRANSPORTS {
        issued
            .push(&daemon, &["--strict", "--transport", transport])
            .done();
    }
    assert_same(&issued.site.source(), &issued.site.target().join("x"));
    daemon.wait_for_log("received from alice");
    assert!(!issued.site.path("client/known_hosts").exists());
    let mut list = issued.site.zmove(&["allow", "list"]);
    list.0.env("ZMOVE_HOME", issued.site.path("server"));
    let listed = list.outcome().done().stdout;
    assert!(
        listed.starts_with("alice (CN=alice of site-ca.pem) may write below "),
        "{listed}"
    );
}

#[test]
fn a_revoked_client_certificate_is_refused() {
    let Some(issued) = Issued::new() else { return };
    let daemon = issued.serve();
    issued.run(AUTHORITY, documented("run: revoke"));
    issued.publish("server/site-ca.crl", "site-ca.crl");
    issued.refused(&daemon, 5, "its certificate is revoked");
    daemon.wait_for_log("certificate is revoked");
}

#[test]
fn an_expired_client_certificate_is_refused() {
    let Some(issued) = Issued::new() else { return };
    let daemon = issued.serve();
    issued.client(AUTHORITY, |commands| commands.replace("-batch", PAST));
    issued.refused(
        &daemon,
        5,
        "its certificate expired at 2020-02-01T00:00:00Z",
    );
}

/// The other authority has the same name, which must not matter.
#[test]
fn a_client_certificate_of_another_authority_is_refused() {
    let Some(issued) = Issued::new() else { return };
    let daemon = issued.serve();
    issued.found("other");
    issued.client("other", |commands| commands);
    issued.refused(&daemon, 5, "not issued by the site's authority");
}

#[test]
fn a_client_certificate_of_another_name_or_purpose_is_refused() {
    let Some(issued) = Issued::new() else { return };
    let daemon = issued.serve();
    issued.client(AUTHORITY, |commands| commands.replace("CN=alice", "CN=bob"));
    issued.refused(&daemon, 5, "this key is not known here");
    issued.client(AUTHORITY, |commands| {
        commands.replace("CN=alice", "CN=alice/CN=bob")
    });
    issued.refused(&daemon, 5, "this key is not known here");
    issued.client(AUTHORITY, |commands| {
        commands.replace("clientAuth", "serverAuth")
    });
    issued.refused(&daemon, 5, "its certificate is for another purpose");
}

#[test]
fn a_revocation_list_that_is_missing_damaged_or_stale_lets_nobody_in() {
    let Some(issued) = Issued::new() else { return };
    let daemon = issued.serve();
    let list = issued.site.path("server/site-ca.crl");
    std::fs::remove_file(&list).unwrap();
    issued.refused(&daemon, 10, "see its log");
    daemon.wait_for_log("site-ca.crl");
    std::fs::write(&list, "").unwrap();
    issued.refused(&daemon, 10, "see its log");
    let past = "openssl ca -config site-ca.cnf -gencrl -crl_lastupdate 20200101000000Z -crl_nextupdate 20200201000000Z \
                -out site-ca.crl";
    issued.run(AUTHORITY, past.to_owned());
    issued.publish("server/site-ca.crl", "site-ca.crl");
    issued.refused(&daemon, 5, "its renewal was due by 2020-02-01T00:00:00Z");
}

#[test]
fn a_key_with_its_own_line_has_only_the_permissions_of_that_line() {
    let Some(issued) = Issued::new() else { return };
    let daemon = issued.serve();
    let key = issued.site.zmove(&["key", "show"]).outcome().done().stdout;
    let line = std::fs::read_to_string(issued.site.path("server/authorized_keys")).unwrap();
    issued.authorize(&format!(
        "{line}{} name=alice root=/ write expires=2020-01-01",
        key.trim_end()
    ));
    issued.refused(&daemon, 5, "expired at 2020-01-01T00:00:00Z");
}

#[test]
fn a_certificate_for_another_key_is_not_used() {
    let Some(issued) = Issued::new() else { return };
    std::fs::copy(
        issued.site.path("client/cert.pem"),
        issued.site.path("server/cert.pem"),
    )
    .unwrap();
    let mut serve = issued.site.zmove(&["serve", "--listen", "127.0.0.1:0"]);
    serve.0.env("ZMOVE_HOME", issued.site.path("server"));
    serve
        .outcome()
        .expect(11)
        .says(&[
            "zmove: use the certificate",
            "cert.pem",
            "does not match the key",
        ])
        .lines(1);
}

#[test]
fn a_host_certificate_for_another_name_is_refused() {
    let Some(issued) = Issued::new() else { return };
    issued.host(AUTHORITY, |commands| {
        commands.replace("DNS:dtn.example.org", "DNS:dtn.example.net")
    });
    issued.host_refused(&issued.serve(), "its certificate is not for this host name");
}

#[test]
fn an_expired_or_revoked_host_certificate_is_refused() {
    let Some(issued) = Issued::new() else { return };
    issued.host(AUTHORITY, |commands| commands.replace("-batch", PAST));
    issued.host_refused(
        &issued.serve(),
        "its certificate expired at 2020-02-01T00:00:00Z",
    );
    issued.host(AUTHORITY, |commands| commands);
    issued.run(
        AUTHORITY,
        documented("run: revoke").replace("alice.pem", "dtn.pem"),
    );
    issued.publish("client/known_cas.crl", "site-ca.crl");
    issued.host_refused(&issued.serve(), "its certificate is revoked");
}

#[test]
fn a_host_with_a_certificate_of_another_authority_is_unknown() {
    let Some(issued) = Issued::new() else { return };
    issued.found("other");
    issued.host("other", |commands| commands);
    let daemon = issued.serve();
    let outcome = issued.push(&daemon, &["--strict"]).expect(5);
    outcome
        .says(&["zmove: verify the key of localhost", "not in known_hosts"])
        .lines(1);
    issued
        .push(&daemon, &["--accept-new"])
        .expect(0)
        .says(&["pinned the key of", &daemon.fingerprint.to_string()]);
    assert_same(&issued.site.source(), &issued.site.target().join("x"));
}

#[test]
fn an_authority_that_others_can_write_is_not_used() {
    let Some(issued) = Issued::new() else { return };
    let daemon = issued.serve();
    let push_with = |file: &str| {
        let file = issued.site.path(file);
        let mode = file.metadata().unwrap().permissions();
        set_mode(&file, 0o666);
        let outcome = issued.push(&daemon, &["--strict", "--timeout", "0"]);
        std::fs::set_permissions(&file, mode).unwrap();
        outcome
    };
    push_with("server/site-ca.pem").expect(10);
    daemon.wait_for_log("site-ca.pem: its mode 0666 lets other users write to it");
    push_with("client/known_cas.pem").expect(11).says(&[
        "known_cas.pem",
        "its mode 0666 lets other users write to it",
    ]);
    assert!(names(&issued.site.target()).is_empty());
}

/// The stranger's certificate has forty names. The list has a line for each of these names, but no line names this
/// authority. The revocation list is long. The daemon must not read the list once per name.
#[test]
fn an_unknown_certificate_with_many_names_costs_little() {
    let _quiet = quiet_machine();
    let Some(issued) = Issued::new() else { return };
    let gone =
        |serial: u32| format!("R\t350101000000Z\t250101000000Z\t{serial:08X}\tunknown\t/CN=gone\n");
    let index: String = (0x1000_0000..0x1000_C000).map(gone).collect();
    std::fs::write(issued.path(AUTHORITY, "index.txt"), index).unwrap();
    issued.run(
        AUTHORITY,
        "openssl ca -config site-ca.cnf -gencrl -out site-ca.crl".to_owned(),
    );
    issued.publish("server/site-ca.crl", "site-ca.crl");
    assert!(
        issued
            .site
            .path("server/site-ca.crl")
            .metadata()
            .unwrap()
            .len()
            > 1 << 20
    );
    let hosts: Vec<_> = (0..40)
        .map(|number| format!("n{number}.example.org"))
        .collect();
    let line = |host: &String| {
        format!("ca=site-ca.pem crl=site-ca.crl san={host} name=someone root=/nowhere write")
    };
    issued.authorize(&hosts.iter().map(line).collect::<Vec<_>>().join("\n"));
    let names: Vec<_> = hosts.iter().map(|host| format!("DNS:{host}")).collect();
    let home = issued.site.path("stranger");
    Identity::load_or_create(&home).unwrap();
    let (home_shown, names) = (home.display(), names.join(","));
    issued.run(
        AUTHORITY,
        format!(
            "openssl req -x509 -new -config site-ca.cnf -key {home_shown}/key.pem -days 1 -subj /CN=stranger \
             -addext subjectAltName={names} -out {home_shown}/cert.pem"
        ),
    );
    let stranger = Identity::load_or_create(&home).unwrap();
    let daemon = issued.serve();
    let taken = time_for_strangers(&daemon, &stranger, 30);
    assert!(
        taken < Duration::from_millis(1500),
        "{taken:?} for 30 connections"
    );
    daemon.wait_for_log("someone (SHA256:");
}

/// The stranger creates ten authorities with the same name, any of which may have signed any other. Without a limit,
/// webpki tried two hundred thousand paths and continued after the stranger had disconnected.
#[test]
fn an_unknown_certificate_with_many_issuers_costs_little() {
    let _quiet = quiet_machine();
    let Some(issued) = Issued::new() else { return };
    let home = issued.site.path("stranger");
    Identity::load_or_create(&home).unwrap();
    let home_shown = home.display();
    let own = format!(
        "openssl ecparam -name prime256v1 -genkey -noout -out x.key; echo basicConstraints=critical,CA:false > x.ext; \
         openssl req -new -key {home_shown}/key.pem -config site-ca.cnf -subj /CN=alice -out x.csr; \
         openssl req -x509 -new -key x.key -config site-ca.cnf -subj /CN=X -days 1 -out x0.pem; \
         openssl x509 -req -in x.csr -CA x0.pem -CAkey x.key -extfile x.ext -days 1 -out x.pem; \
         for n in 1 2 3 4 5 6 7 8 9 10; do openssl ecparam -name prime256v1 -genkey -noout -out x$n.key; \
         openssl req -x509 -new -key x$n.key -config site-ca.cnf -subj /CN=X -days 1 -out x$n.pem; \
         cat x$n.pem >> x.pem; done; cp x.pem {home_shown}/cert.pem"
    );
    issued.run(AUTHORITY, own);
    let stranger = Identity::load_or_create(&home).unwrap();
    let daemon = issued.serve();
    let taken = time_for_strangers(&daemon, &stranger, 20);
    assert!(
        taken < Duration::from_secs(1),
        "{taken:?} for 20 connections"
    );
    daemon.wait_for_log("it sent more than 4 certificates");
    issued.push(&daemon, &["--strict"]).done();
}
