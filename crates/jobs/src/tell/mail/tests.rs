//! Mails to a server of the test's own, over real sockets and TLS.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;

use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::super::message::tests::message;
use super::super::webhook::Authority;
use super::*;

/// What a server answers where it does not take a letter.
#[derive(Clone, Copy, Default)]
struct Answers {
    auth: Option<&'static str>,
    rcpt: Option<&'static str>,
}

trait Wire: Read + Write {}
impl<T: Read + Write> Wire for T {}

/// Reads a line and answers it, until the client leaves or turns to TLS; returns what it has said.
fn converse(
    stream: &mut dyn Wire,
    greeting: &str,
    extensions: &str,
    answers: Answers,
) -> (String, bool) {
    let mut said = String::new();
    let mut stream = BufReader::with_capacity(1, stream);
    let mut is_letter = false;
    let _gone = stream.get_mut().write_all(greeting.as_bytes());
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).unwrap_or(0) == 0 {
            return (said, false);
        }
        said += &line;
        let line = line.trim_end();
        let answer = match line.split(' ').next().unwrap_or_default() {
            "." => {
                is_letter = false;
                "250 taken"
            }
            _ if is_letter => continue,
            "EHLO" => extensions,
            "STARTTLS" => {
                let _gone = stream.get_mut().write_all(b"220 go on\r\n");
                return (said, true);
            }
            "AUTH" => answers.auth.unwrap_or("235 welcome"),
            "RCPT" => answers.rcpt.unwrap_or("250 known"),
            "DATA" => {
                is_letter = true;
                "354 go on"
            }
            _ => "250 good",
        };
        let _gone = stream
            .get_mut()
            .write_all(format!("{answer}\r\n").as_bytes());
    }
}

struct Server {
    address: SocketAddr,
    said: JoinHandle<String>,
}

impl Server {
    fn start(config: Arc<ServerConfig>, security: Security, answers: Answers) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let said = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let tls = |stream: TcpStream| {
                StreamOwned::new(ServerConnection::new(config).unwrap(), stream)
            };
            let (mut said, greeting) = match security {
                Security::Tls => (String::new(), "220 here\r\n"),
                Security::Starttls => {
                    let (said, turns) = converse(
                        &mut stream,
                        "220 here\r\n",
                        "250-here\r\n250 STARTTLS",
                        answers,
                    );
                    if !turns {
                        return said;
                    }
                    (said, "")
                }
                // It would take a password all the same.
                Security::None => {
                    return converse(
                        &mut stream,
                        "220 here\r\n",
                        "250-here\r\n250 AUTH PLAIN",
                        answers,
                    )
                    .0;
                }
            };
            said += &converse(
                &mut tls(stream),
                greeting,
                "250-here\r\n250 AUTH PLAIN",
                answers,
            )
            .0;
            said
        });
        Self { address, said }
    }
}

fn mail(authority: &Authority, address: SocketAddr, keys: &str) -> Mail {
    let path = authority.directory.path().join("password");
    std::fs::write(&path, "word\n").unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let text = format!(
        "server = 'localhost'\nport = {}\nfrom = 'dtn@example.org'\nto = ['Alice <alice@example.org>', 'b@example.org']
         ca_file = 'ca.pem'\ntimeout_seconds = 10\n{keys}",
        address.port()
    );
    Mail::parse(toml::from_str(&text).unwrap(), authority.directory.path()).unwrap()
}

const USER: &str = "user = 'alice'\npassword_file = 'password'";

#[track_caller]
fn sent(security: Security, keys: &str, answers: Answers) -> (Try, String) {
    let authority = Authority::new();
    let server = Server::start(Arc::clone(&authority.config), security, answers);
    let told = mail(&authority, server.address, keys).tell(&message());
    (told, server.said.join().unwrap())
}

fn assert_is_letter(said: &str) {
    for line in [
        "MAIL FROM:<dtn@example.org>",
        "RCPT TO:<alice@example.org>",
        "RCPT TO:<b@example.org>",
        "Message-ID: <abc-7@example.org>",
        "/data/run7",
    ] {
        assert!(said.contains(line), "no {line}: {said}");
    }
    assert!(
        !said.lines().any(|line| line.starts_with("Bcc")),
        "a name has made a line: {said}"
    );
}

#[test]
fn a_letter_is_sent_over_tls_with_a_password() {
    let (told, said) = sent(Security::Tls, USER, Answers::default());
    assert_eq!(told, Try::Delivered, "{said}");
    assert_is_letter(&said);
    // "\0alice\0word" in base 64
    assert!(said.contains("AUTH PLAIN AGFsaWNlAHdvcmQ="), "{said}");
}

#[test]
fn a_letter_is_sent_after_starttls() {
    let keys = format!("{USER}\nsecurity = 'starttls'");
    let (told, said) = sent(Security::Starttls, &keys, Answers::default());
    assert_eq!(told, Try::Delivered, "{said}");
    let (before, after) = said.split_once("STARTTLS").unwrap();
    assert!(!before.contains("AUTH"), "{said}");
    assert_is_letter(after);
}

#[test]
fn nothing_is_said_to_a_server_that_offers_no_tls() {
    let keys = format!("{USER}\nsecurity = 'starttls'");
    let (told, said) = sent(Security::None, &keys, Answers::default());
    assert!(matches!(told, Try::NotNow(_)), "{told:?}");
    assert!(!said.contains("AUTH") && !said.contains("MAIL"), "{said}");
}

#[test]
fn a_server_on_this_host_may_do_without_tls() {
    let (told, said) = sent(Security::None, "security = 'none'", Answers::default());
    assert_eq!(told, Try::Delivered, "{said}");
    let mail = |keys: &str| {
        let text = format!("from = 'a@b.org'\nto = ['a@b.org']\nsecurity = 'none'\n{keys}");
        Mail::parse(toml::from_str(&text).unwrap(), Path::new("/"))
    };
    mail("server = '127.0.0.1'").unwrap();
    assert!(mail("server = 'smtp.example.org'").is_err());
    assert!(mail(&format!("server = 'localhost'\n{USER}")).is_err());
}

#[test]
fn what_is_refused_for_good_is_not_tried_again_and_the_rest_is() {
    let refused = |rcpt, auth| sent(Security::Tls, USER, Answers { rcpt, auth }).0;
    let never = refused(Some("550 no such user\x1b"), None);
    assert!(
        matches!(&never, Try::Never(why) if why.contains("550") && !why.contains('\x1b')),
        "{never:?}"
    );
    let now = refused(Some("451 try later"), None);
    assert!(
        matches!(&now, Try::NotNow(why) if why.contains("451")),
        "{now:?}"
    );
    let password = refused(None, Some("535 wrong password"));
    assert!(
        matches!(&password, Try::NotNow(why) if why.contains("535")),
        "{password:?}"
    );
}

#[test]
fn a_server_that_nobody_vouches_for_hears_nothing() {
    let authority = Authority::new();
    let server = Server::start(
        Arc::clone(&authority.config),
        Security::Tls,
        Answers::default(),
    );
    let mail = Mail {
        ca_file: None,
        ..mail(&authority, server.address, USER)
    };
    let told = mail.tell(&message());
    assert!(
        matches!(&told, Try::NotNow(why) if why.contains("certificate")),
        "{told:?}"
    );
    assert_eq!(server.said.join().unwrap(), "");
}

#[test]
fn a_server_that_is_not_there_or_hangs_is_tried_again() {
    let authority = Authority::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mail = mail(&authority, listener.local_addr().unwrap(), "");
    let hangs = Mail {
        timeout: Duration::from_millis(100),
        ..mail.clone()
    }
    .tell(&message());
    assert!(matches!(hangs, Try::NotNow(_)), "{hangs:?}");
    drop(listener);
    assert!(matches!(mail.tell(&message()), Try::NotNow(_)));
}
