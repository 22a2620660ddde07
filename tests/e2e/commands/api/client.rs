//! A raw HTTP client that sends given requests, and a runner that serves the API.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Child;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::commands::jobs::{Yard, wait_for};
use crate::support::harness::PATIENCE;
use crate::support::ports::free_address;

/// A runner that serves the API, with its jobs.
pub(super) struct Served {
    // Declared before the yard, whose drop kills the remaining processes.
    process: Child,
    pub(super) yard: Yard,
    pub(super) client: Client,
    /// Address on which the runner listens.
    pub(super) address: String,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _gone = self.process.kill();
        let _ended = self.process.wait();
    }
}

impl Served {
    pub(super) fn local() -> Self {
        Self::of(Yard::local())
    }

    pub(super) fn daemon() -> Self {
        Self::of(Yard::daemon())
    }

    pub(super) fn of(yard: Yard) -> Self {
        Self::with(yard, &[&free_address().to_string()])
    }

    /// Starts a runner with these arguments of `--http`.
    pub(super) fn with(yard: Yard, words: &[&str]) -> Self {
        let client = Client {
            socket: yard.place().join("api.sock"),
        };
        let (process, address) = start(&yard, words);
        Self {
            process,
            yard,
            client,
            address,
        }
    }

    /// Kills the runner.
    pub(super) fn end(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Kills the runner and starts another one at the same address.
    pub(super) fn restart(&mut self) {
        self.end();
        (self.process, self.address) = start(&self.yard, &[&self.address]);
    }

    pub(super) fn token(&self) -> String {
        std::fs::read_to_string(self.yard.place().join("token"))
            .unwrap()
            .trim()
            .to_owned()
    }

    /// Returns a submission that transfers the whole source, with the fields of `more`.
    pub(super) fn submission(&self, more: &Value) -> Value {
        let source = format!("{}/", self.yard.site.source().display());
        let target = self.yard.site.address("").into_string().unwrap();
        let mut submission = json!({ "sources": [source], "target": target });
        let fields = submission.as_object_mut().unwrap();
        fields.extend(more.as_object().unwrap().clone());
        submission
    }

    #[track_caller]
    pub(super) fn submit(&self, more: &Value) -> i64 {
        let answer = self.client.post("/api/v1/jobs", &self.submission(more));
        assert_eq!(answer.status, 201, "{answer:?}");
        answer.body["id"].as_i64().unwrap()
    }

    #[track_caller]
    pub(super) fn wait_until(&self, id: i64, holds: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + PATIENCE;
        loop {
            let job = self.client.get(&format!("/api/v1/jobs/{id}")).ok();
            if holds(&job) {
                return job;
            }
            assert!(Instant::now() < until, "{job}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    #[track_caller]
    pub(super) fn wait_for_end(&self, id: i64) -> Value {
        self.wait_until(id, |job| !job["ended"].is_null())
    }
}

/// Starts a runner that serves the API, and returns its address.
fn start(yard: &Yard, words: &[&str]) -> (Child, String) {
    let mut process = yard
        .site
        .zmove(&[&["runner", "--http"], words].concat())
        .start();
    let mut words = BufReader::new(process.stdout.take().unwrap());
    let address = loop {
        let mut line = String::new();
        assert!(
            words.read_line(&mut line).unwrap() > 0,
            "the runner has ended"
        );
        if let Some((_, rest)) = line.split_once("the page is at ") {
            let address = rest.trim_start_matches("http://");
            break address.split('/').next().unwrap().to_owned();
        }
    };
    // Discards further output, so that the runner does not block on a full pipe.
    std::thread::spawn(move || std::io::copy(&mut words, &mut std::io::sink()));
    let socket = yard.place().join("api.sock");
    wait_for("the socket", || UnixStream::connect(&socket).is_ok());
    (process, address)
}

/// A client over the Unix socket.
pub(super) struct Client {
    pub(super) socket: PathBuf,
}

/// An HTTP response.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) head: String,
    /// Null if the body is not JSON.
    pub(super) body: Value,
    pub(super) text: String,
}

impl Answer {
    #[track_caller]
    pub(super) fn ok(self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        self.body
    }
}

impl Client {
    #[track_caller]
    pub(super) fn get(&self, path: &str) -> Answer {
        self.say(&format!(
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        ))
    }

    #[track_caller]
    pub(super) fn post(&self, path: &str, body: &Value) -> Answer {
        let body = body.to_string();
        self.say(&format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        ))
    }

    /// Opens a stream of events that continues after event `last`.
    #[track_caller]
    pub(super) fn events(&self, last: Option<i64>) -> Events {
        self.ask_for_events(last).expect("there is room")
    }

    /// Opens a stream of events. Returns `None` if there are too many streams.
    pub(super) fn try_events(&self) -> Option<Events> {
        self.ask_for_events(None)
    }

    fn ask_for_events(&self, last: Option<i64>) -> Option<Events> {
        let socket = UnixStream::connect(&self.socket).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Events::open(socket, "Host: localhost\r\n", last)
    }

    #[track_caller]
    pub(super) fn say(&self, words: &str) -> Answer {
        converse(UnixStream::connect(&self.socket).unwrap(), words)
    }
}

/// Sends a request over TCP.
#[track_caller]
pub(super) fn say_over_tcp(address: &str, words: &str) -> Answer {
    converse(TcpStream::connect(address).unwrap(), words)
}

/// Sends a request and returns the raw response.
pub(super) fn answered(mut socket: impl Read + Write, words: &str) -> String {
    // The server may close the connection of a refused request before the whole request is sent.
    let _refused = socket.write_all(words.as_bytes());
    let mut answer = Vec::new();
    let _cut = socket.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[track_caller]
pub(super) fn converse(socket: impl Read + Write, words: &str) -> Answer {
    let answer = answered(socket, words);
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .unwrap_or_else(|| panic!("no answer: {answer:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let (head, text) = (head.to_owned(), body.to_owned());
    Answer {
        status,
        head,
        body: serde_json::from_str(body).unwrap_or_default(),
        text,
    }
}

/// A stream of events.
pub(super) struct Events {
    reader: BufReader<Box<dyn Read>>,
    /// Number of the last event that had a number.
    pub(super) id: Option<i64>,
}

impl Events {
    /// Sends a request with these headers and returns the stream, or `None` if there are too many streams.
    pub(super) fn open(
        mut socket: impl Read + Write + 'static,
        headers: &str,
        last: Option<i64>,
    ) -> Option<Self> {
        let last_event = last.map_or_else(String::new, |last| format!("Last-Event-ID: {last}\r\n"));
        write!(
            socket,
            "GET /api/v1/events HTTP/1.1\r\n{headers}{last_event}\r\n"
        )
        .unwrap();
        let mut events = Self {
            reader: BufReader::new(Box::new(socket)),
            id: last,
        };
        (events.line() == "HTTP/1.1 200 OK").then_some(events)
    }

    #[track_caller]
    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(
            self.reader.read_line(&mut line).unwrap() > 0,
            "the stream has ended"
        );
        line.trim_end().to_owned()
    }

    /// Returns the next event with its number.
    #[track_caller]
    pub(super) fn next(&mut self) -> (String, Option<i64>, Value) {
        let (mut event, mut id) = (String::new(), None);
        let until = Instant::now() + PATIENCE;
        loop {
            // An idle stream sends keep-alive comments, so reading a line does not block.
            assert!(Instant::now() < until, "no event comes");
            // Skips chunk lengths and the lines between events.
            let line = self.line();
            match line.split_once(": ") {
                Some(("event", name)) => event = name.to_owned(),
                Some(("id", number)) => id = Some(number.parse().unwrap()),
                Some(("data", data)) => {
                    self.id = id.or(self.id);
                    return (event, id, serde_json::from_str(data).unwrap());
                }
                _ => {}
            }
        }
    }

    /// Returns the next event for which `holds` is true.
    #[track_caller]
    pub(super) fn find(&mut self, holds: impl Fn(&str, &Value) -> bool) -> Value {
        let until = Instant::now() + PATIENCE;
        loop {
            let (event, _, data) = self.next();
            if holds(&event, &data) {
                return data;
            }
            assert!(Instant::now() < until, "it does not come");
        }
    }
}
