//! The page and the API behind nginx as a reverse proxy with TLS, configured as in docs/OPERATIONS.md.

use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use rustls_pki_types::CertificateDer;
use serde_json::json;
use tempfile::TempDir;

use super::browser::Browser;
use super::client::{Answer, Events, Served, converse};
use crate::commands::jobs::{Yard, wait_for};
use crate::security::authority::block;
use crate::support::harness::{PATIENCE, has_program, skip};
use crate::support::ports::free_port;

/// The host name in the document.
const NAME: &str = "dtn.example.org";

/// A runner behind nginx.
struct Proxied {
    // Declared before the directory that nginx uses.
    nginx: Child,
    served: Served,
    /// The address that clients use: name and port.
    public: String,
    certificate: CertificateDer<'static>,
    _prefix: TempDir,
}

impl Drop for Proxied {
    fn drop(&mut self) {
        let _gone = self.nginx.kill();
        let _ended = self.nginx.wait();
    }
}

impl Proxied {
    /// Returns `None` if nginx is missing.
    fn start() -> Option<Self> {
        if !has_program("nginx") {
            skip("there is no nginx (Debian: nginx-light)");
            return None;
        }
        let port = free_port();
        let public = format!("{NAME}:{port}");
        let served = Served::with(Yard::daemon(), &["127.0.0.1:0", "--http-name", &public]);
        let prefix = tempfile::tempdir().unwrap();
        let issued = rcgen::generate_simple_self_signed([NAME.to_owned()]).unwrap();
        std::fs::write(prefix.path().join("dtn.pem"), issued.cert.pem()).unwrap();
        let key = issued.signing_key.serialize_pem();
        std::fs::write(prefix.path().join("dtn.key"), key).unwrap();
        let settings = settings(prefix.path(), port, &served.address);
        std::fs::write(prefix.path().join("nginx.conf"), settings).unwrap();
        let nginx = Command::new("nginx")
            .arg("-p")
            .arg(prefix.path())
            .args(["-c", "nginx.conf", "-e", "stderr"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let proxied = Self {
            nginx,
            served,
            public,
            certificate: issued.cert.der().clone(),
            _prefix: prefix,
        };
        wait_for("nginx", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Some(proxied)
    }

    fn connect(&self) -> StreamOwned<ClientConnection, TcpStream> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let session = ClientConnection::new(Arc::new(config), NAME.try_into().unwrap()).unwrap();
        let (_, port) = self.public.split_once(':').unwrap();
        let socket = TcpStream::connect(("127.0.0.1", port.parse().unwrap())).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        StreamOwned::new(session, socket)
    }

    #[track_caller]
    fn get(&self, path: &str, headers: &str) -> Answer {
        let words = format!("GET {path} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n");
        converse(self.connect(), &words)
    }

    fn host(&self) -> String {
        format!("Host: {}\r\n", self.public)
    }

    fn bearer(&self) -> String {
        format!("Authorization: Bearer {}\r\n", self.served.token())
    }
}

/// Returns the documented settings, with the addresses and files of this case.
fn settings(prefix: &Path, port: u16, runner: &str) -> String {
    let mut server = block("docs/OPERATIONS.md", "nginx: page");
    for (documented, own) in [
        ("listen 443 ", format!("listen 127.0.0.1:{port} ")),
        ("/etc/nginx/", format!("{}/", prefix.display())),
        ("http://127.0.0.1:8470;", format!("http://{runner};")),
    ] {
        assert!(server.contains(documented), "{documented}: {server}");
        server = server.replace(documented, &own);
    }
    // A single process, which is a child of this one, and no files outside its directory.
    format!(
        "daemon off; master_process off; pid nginx.pid; error_log stderr;\nevents {{}}\nhttp {{\n\
         access_log off; client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi;\n\
         uwsgi_temp_path uwsgi; scgi_temp_path scgi;\n{server}}}\n"
    )
}

#[test]
fn behind_nginx_the_page_loads_the_api_needs_the_token_and_events_arrive_at_once() {
    let Some(proxied) = Proxied::start() else {
        return;
    };
    let host = proxied.host();
    let bearer = proxied.bearer();
    let page = proxied.get("/", &host);
    assert!(
        page.status == 200 && page.text.contains("<html") && !page.text.contains(&bearer),
        "{page:?}"
    );
    for said in ["", "Authorization: Bearer 0123\r\n"] {
        for path in ["/api/v1/jobs", "/api/v1/events"] {
            let answer = proxied.get(path, &format!("{host}{said}"));
            assert_eq!(answer.status, 401, "{answer:?}");
        }
    }
    let jobs = proxied.get("/api/v1/jobs", &format!("{host}{bearer}"));
    assert_eq!(jobs.ok()["jobs"], json!([]));

    let mut events = Events::open(proxied.connect(), &format!("{host}{bearer}"), None).unwrap();
    let (hello, _, _) = events.next();
    assert_eq!(hello, "hello");
    let id = proxied.served.submit(&json!({}));
    let submitted = events.find(|event, _| event == "job");
    assert_eq!(submitted["event"]["job"], id);
}

#[test]
fn behind_nginx_other_hosts_and_sites_are_refused_whatever_is_forwarded() {
    let Some(proxied) = Proxied::start() else {
        return;
    };
    let host = proxied.host();
    let bearer = proxied.bearer();
    let jobs = |headers: &str| {
        let headers = format!("{bearer}{headers}");
        proxied.get("/api/v1/jobs", &headers).status
    };
    let own = format!("Origin: https://{}\r\n", proxied.public);
    assert_eq!(jobs(&format!("{host}{own}")), 200);
    let forwarded = format!(
        "X-Forwarded-Host: {0}\r\nX-Forwarded-For: 127.0.0.1\r\nForwarded: host={0}\r\n",
        proxied.public
    );
    for other in ["evil.example", NAME] {
        let other = format!("Host: {other}\r\n{forwarded}");
        assert_eq!(jobs(&other), 421, "{other}");
    }
    for origin in [
        "https://evil.example".to_owned(),
        format!("http://{}", proxied.public),
        format!("https://{NAME}"),
    ] {
        let origin = format!("{host}Origin: {origin}\r\n{forwarded}X-Forwarded-Proto: http\r\n");
        assert_eq!(jobs(&origin), 403, "{origin}");
    }
    let answer = proxied.get("/api/v1/jobs", &format!("{host}{forwarded}"));
    assert_eq!(answer.status, 401, "{answer:?}");
}

#[test]
fn behind_nginx_the_page_submits_a_transfer_and_shows_its_end() {
    let Some(proxied) = Proxied::start() else {
        return;
    };
    let Some(browser) = Browser::start() else {
        return;
    };
    let served = &proxied.served;
    browser.visit(&format!(
        "https://{}/#token={}",
        proxied.public,
        served.token()
    ));
    browser.wait_until("document.querySelector('#link')?.dataset.state === 'live'");
    let submission = served.submission(&json!({}));
    browser.click("#open-new");
    browser.write("#sources", submission["sources"][0].as_str().unwrap());
    browser.write("#target", submission["target"].as_str().unwrap());
    browser.click("#preview");
    browser.wait_until("!document.querySelector('#submit').disabled");
    browser.click("#submit");
    browser.wait_until("document.querySelector('#history .badge')?.textContent === 'done'");
    assert_eq!(browser.errors(), Vec::<String>::new());
}
