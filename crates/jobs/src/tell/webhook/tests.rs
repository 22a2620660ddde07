//! Webhooks against a server of the test's own, over real sockets and TLS.

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::thread::JoinHandle;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use tempfile::TempDir;

use super::super::message::tests::message;
use super::*;

/// A server with a certificate of an authority of its own.
pub(in crate::tell) struct Authority {
    pub(in crate::tell) directory: TempDir,
    pub(in crate::tell) config: Arc<ServerConfig>,
}

impl Authority {
    /// The authority, whose certificate is in `ca.pem`, and the server's settings with a certificate for `localhost`.
    pub(in crate::tell) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        std::fs::write(directory.path().join("ca.pem"), issuer.pem()).unwrap();
        let key = KeyPair::generate().unwrap();
        let params =
            CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
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

    /// Answers one request with these bytes; returns what was asked.
    fn answer(&self, answer: &'static str) -> (SocketAddr, JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let config = Arc::clone(&self.config);
        let server = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut tls = StreamOwned::new(ServerConnection::new(config).unwrap(), stream);
            let request = read_request(&mut tls);
            // who does not trust it has hung up
            let _hung_up = tls.write_all(answer.as_bytes()).and_then(|()| tls.flush());
            request
        });
        (address, server)
    }

    fn webhook(&self, address: SocketAddr, keys: &str) -> Webhook {
        let url = format!("url = 'https://localhost:{}/hook?k=v'", address.port());
        let text = format!("{url}\nca_file = 'ca.pem'\nallow_private = true\n{keys}");
        Webhook::parse(toml::from_str(&text).unwrap(), self.directory.path()).unwrap()
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
fn assert_not_now(told: &Try, why: &str) {
    let Try::NotNow(said) = told else {
        panic!("{told:?}")
    };
    assert!(said.contains(why), "{said}");
}

#[test]
fn a_message_is_posted_with_a_signature() {
    let authority = Authority::new();
    let file = authority.directory.path().join("secret");
    std::fs::write(&file, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n").unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let (address, server) = authority.answer("HTTP/1.1 204 No Content\r\n\r\n");
    let told = authority
        .webhook(address, "secret_file = 'secret'")
        .tell(&message());
    assert_eq!(told, Try::Delivered);
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
    let key = key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").ok().unwrap();
    let seconds = header("webhook-timestamp").parse().unwrap();
    assert_eq!(
        header("webhook-signature"),
        signature(&key, "abc-7", seconds, body)
    );
}

/// The example of the specification's reference libraries.
#[test]
fn signatures_are_those_of_standard_webhooks() {
    let key = key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").ok().unwrap();
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
    let told = authority
        .webhook(([127, 0, 0, 1], 1).into(), "secret_file = 'secret'")
        .tell(&message());
    assert_not_now(&told, "others can read it: chmod 600");
}

#[test]
fn errors_and_redirects_are_told_and_tried_again_and_what_is_gone_is_not() {
    let authority = Authority::new();
    let tell = |answer| {
        let (address, server) = authority.answer(answer);
        let told = authority.webhook(address, "").tell(&message());
        drop(server.join().unwrap());
        told
    };
    let told = tell("HTTP/1.1 500 Oops\r\ncontent-length: 7\r\n\r\nno\x1broom");
    assert_not_now(&told, "it answers 500 Internal Server Error: no\\u{1b}room");
    let told =
        tell("HTTP/1.1 302 Found\r\nlocation: https://127.0.0.1/x\r\ncontent-length: 0\r\n\r\n");
    assert_not_now(&told, "redirects are not followed: to https://127.0.0.1/x");
    assert_not_now(
        &tell("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"),
        "404",
    );
    assert_not_now(&tell("nonsense\r\n\r\n"), "HTTP: ");
    assert_not_now(&tell(""), "HTTP: ");
    let told = tell("HTTP/1.1 410 Gone\r\ncontent-length: 0\r\n\r\n");
    assert!(matches!(told, Try::Never(_)), "{told:?}");
}

#[test]
fn a_certificate_that_is_not_trusted_is_refused() {
    let authority = Authority::new();
    let (address, _server) = authority.answer("HTTP/1.1 204 No Content\r\n\r\n");
    let other = Authority::new();
    let webhook = Webhook {
        ca_file: Some(other.directory.path().join("ca.pem")),
        ..authority.webhook(address, "")
    };
    assert_not_now(&webhook.tell(&message()), "TLS: invalid peer certificate");
}

#[test]
fn a_private_address_is_not_asked_by_name_or_as_itself() {
    let authority = Authority::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let webhook = authority.webhook(listener.local_addr().unwrap(), "");
    for host in [
        "localhost",
        "127.0.0.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "2130706433",
        "0x7f.1",
        "0",
    ] {
        let webhook = Webhook {
            host: host.to_owned(),
            allow_private: false,
            ..webhook.clone()
        };
        assert_not_now(
            &webhook.tell(&message()),
            "is no address of the public internet",
        );
    }
    assert!(listener.accept().is_err(), "somebody has connected");
}

#[test]
fn a_server_that_hangs_is_left() {
    // It is connected to, and says nothing.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let authority = Authority::new();
    let webhook = authority.webhook(listener.local_addr().unwrap(), "timeout_seconds = 1");
    assert_not_now(&webhook.tell(&message()), "no answer within 1 s");
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
    let told = webhook.tell(&message());
    assert_not_now(&told, &"x".repeat(SHOWN_MAX));
    server.join().unwrap();
}
