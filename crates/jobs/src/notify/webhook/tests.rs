//! Tests webhooks against a local server, over real sockets and TLS.

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::thread::JoinHandle;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use tempfile::TempDir;

use super::super::event::tests::document;
use super::*;

const TIMEOUT: Duration = Duration::from_secs(30);

/// A server whose certificate is signed by a test authority.
pub(in crate::notify) struct Authority {
    pub(in crate::notify) directory: TempDir,
    config: Arc<ServerConfig>,
}

impl Authority {
    /// Creates the authority, whose certificate is in `ca.pem`, and the settings of a server with a certificate for
    /// these names.
    pub(in crate::notify) fn new() -> Self {
        Self::for_names(["localhost", "127.0.0.1"])
    }

    fn for_names(names: [&str; 2]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        std::fs::write(directory.path().join("ca.pem"), issuer.pem()).unwrap();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(names.map(str::to_owned)).unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = config
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        Self {
            directory,
            config: Arc::new(config),
        }
    }

    /// Answers one request with these bytes. Returns the request.
    pub(in crate::notify) fn answer(
        &self,
        answer: &'static str,
    ) -> (SocketAddr, JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let config = Arc::clone(&self.config);
        let server = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut tls = StreamOwned::new(ServerConnection::new(config).unwrap(), stream);
            let request = read_request(&mut tls);
            // A client that does not trust the server closes the connection.
            let _hung_up = tls.write_all(answer.as_bytes()).and_then(|()| tls.flush());
            request
        });
        (address, server)
    }

    fn webhook(&self, address: SocketAddr, keys: &str) -> Webhook {
        let url = format!("url = 'https://localhost:{}/hook?k=v'", address.port());
        let text = format!("{url}\nca_file = 'ca.pem'\n{keys}");
        let mut webhook: Webhook = toml::from_str(&text).unwrap();
        webhook.find_files_in(self.directory.path());
        webhook
    }
}

fn read_request(tls: &mut impl std::io::Read) -> String {
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let read = tls.read(&mut piece).unwrap_or(0);
        bytes.extend_from_slice(&piece[..read]);
        let text = String::from_utf8_lossy(&bytes);
        let is_whole = text.split_once("\r\n\r\n").is_some_and(|(head, body)| {
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            length.is_some_and(|length| body.len() >= length.parse::<usize>().unwrap())
        });
        if is_whole || read == 0 {
            return text.into_owned();
        }
    }
}

#[track_caller]
fn assert_refused(result: Result<(), String>, part: &str) {
    let why = result.unwrap_err();
    assert!(why.contains(part), "{why}");
}

#[test]
fn an_event_is_posted_with_a_signature() {
    let authority = Authority::new();
    let file = authority.directory.path().join("secret");
    std::fs::write(&file, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n").unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let (address, server) = authority.answer("HTTP/1.1 204 No Content\r\n\r\n");
    let webhook = authority.webhook(address, "secret_file = 'secret'");
    assert_eq!(webhook.send(&document(), TIMEOUT), Ok(()));
    let request = server.join().unwrap();
    assert!(
        request.starts_with("POST /hook?k=v HTTP/1.1\r\n"),
        "{request}"
    );
    let header = |name: &str| {
        let value = request
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        value.unwrap_or_else(|| panic!("no {name}: {request}"))
    };
    assert_eq!(header("host"), format!("localhost:{}", address.port()));
    assert_eq!(header("webhook-id"), "abc-7");
    let (_, body) = request.split_once("\r\n\r\n").unwrap();
    assert_eq!(body, document().json);
    let key = key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
    let seconds = header("webhook-timestamp").parse().unwrap();
    assert_eq!(
        header("webhook-signature"),
        signature(&key, "abc-7", seconds, body)
    );
}

/// The example is from the reference libraries of the specification.
#[test]
fn signatures_are_those_of_standard_webhooks() {
    let key = key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
    let signed = signature(
        &key,
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        1_614_265_330,
        "{\"test\": 2432232314}",
    );
    assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
}

#[test]
fn a_secret_that_others_can_read_signs_nothing() {
    let authority = Authority::new();
    let file = authority.directory.path().join("secret");
    std::fs::write(&file, "s").unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let webhook = authority.webhook(([127, 0, 0, 1], 1).into(), "secret_file = 'secret'");
    assert_refused(
        webhook.send(&document(), TIMEOUT),
        "other users can read it: run chmod 600",
    );
}

#[test]
fn errors_and_redirects_are_reported_without_the_path() {
    let authority = Authority::new();
    let send = |answer| {
        let (address, server) = authority.answer(answer);
        let result = authority.webhook(address, "").send(&document(), TIMEOUT);
        drop(server.join().unwrap());
        (address, result)
    };
    let (address, result) = send("HTTP/1.1 500 Oops\r\ncontent-length: 7\r\n\r\nno\x1broom");
    assert_eq!(
        result,
        Err(format!(
            "https://localhost:{}: the server answers 500 Internal Server Error",
            address.port()
        ))
    );
    let redirect =
        "HTTP/1.1 302 Found\r\nlocation: https://127.0.0.1/x\r\ncontent-length: 0\r\n\r\n";
    assert_refused(
        send(redirect).1,
        "302 Found, and redirects are not followed",
    );
    assert_refused(
        send("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").1,
        "404",
    );
    assert_refused(send("nonsense\r\n\r\n").1, "HTTP: ");
    assert_refused(send("").1, "HTTP: ");
}

#[test]
fn a_server_without_a_trusted_certificate_gets_nothing() {
    let authority = Authority::new();
    let (address, server) = authority.answer("HTTP/1.1 204 No Content\r\n\r\n");
    let other = Authority::new();
    let webhook = Webhook {
        ca_file: Some(other.directory.path().join("ca.pem")),
        ..authority.webhook(address, "")
    };
    assert_refused(
        webhook.send(&document(), TIMEOUT),
        "TLS: invalid peer certificate",
    );
    assert_eq!(server.join().unwrap(), "");
}

/// The name in the URL resolves to a server with another name, for example one on this host or its network.
#[test]
fn a_server_with_a_certificate_for_another_name_gets_nothing() {
    let authority = Authority::for_names(["intranet", "127.0.0.2"]);
    for host in ["localhost", "127.0.0.1"] {
        let (address, server) = authority.answer("HTTP/1.1 204 No Content\r\n\r\n");
        let webhook = Webhook {
            host: host.to_owned(),
            ..authority.webhook(address, "")
        };
        assert_refused(
            webhook.send(&document(), TIMEOUT),
            "TLS: invalid peer certificate",
        );
        assert_eq!(server.join().unwrap(), "");
    }
}

#[test]
fn a_server_that_hangs_is_left_at_the_time_limit() {
    // The server accepts the connection and sends nothing.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let authority = Authority::new();
    let webhook = authority.webhook(listener.local_addr().unwrap(), "");
    let result = webhook.send(&document(), Duration::from_secs(1));
    assert_refused(result, "no answer within 1 s");
}

#[test]
fn an_answer_without_end_is_not_read_to_its_end() {
    let authority = Authority::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let webhook = authority.webhook(listener.local_addr().unwrap(), "");
    let config = Arc::clone(&authority.config);
    let server = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut tls = StreamOwned::new(ServerConnection::new(config).unwrap(), stream);
        read_request(&mut tls);
        let _begun = tls.write_all(b"HTTP/1.1 500 Oops\r\n\r\n");
        while tls.write_all(&[b'x'; 4096]).is_ok() {}
    });
    assert_refused(webhook.send(&document(), TIMEOUT), "500");
    server.join().unwrap();
}
