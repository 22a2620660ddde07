//! A client that says exactly what it is told to, and a runner for it.

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

/// A runner that serves, with its jobs.
pub(super) struct Served {
    // before the yard, which kills what runs
    process: Child,
    pub(super) yard: Yard,
    pub(super) client: Client,
    /// Where it listens.
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

    /// At an address, with more options.
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

    /// Kills the runner, and starts another one at the same address.
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

    /// A transfer of all that is in the source, with what else is to be said.
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

/// Starts a runner that serves, and returns its address.
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
    // What else it says is of no interest, and must not stop it.
    std::thread::spawn(move || std::io::copy(&mut words, &mut std::io::sink()));
    let socket = yard.place().join("api.sock");
    wait_for("the socket", || UnixStream::connect(&socket).is_ok());
    (process, address)
}

/// A client over the socket.
pub(super) struct Client {
    pub(super) socket: PathBuf,
}

/// An answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) head: String,
    /// Null where it is no JSON.
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

    /// A stream of events that goes on behind this one.
    #[track_caller]
    pub(super) fn events(&self, last: Option<i64>) -> Events {
        self.ask_for_events(last).expect("there is room")
    }

    /// A stream of events, unless there are too many.
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

/// Says something over TCP.
#[track_caller]
pub(super) fn say_over_tcp(address: &str, words: &str) -> Answer {
    converse(TcpStream::connect(address).unwrap(), words)
}

/// Says something, and returns all that is answered, as it is.
pub(super) fn answered(mut socket: impl Read + Write, words: &str) -> String {
    // One that is refused may be closed before all has been said.
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
    /// The number of the last event that had one.
    pub(super) id: Option<i64>,
}

impl Events {
    /// The answer to a request with these headers, unless there are too many streams.
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

    /// The next event, with its number.
    #[track_caller]
    pub(super) fn next(&mut self) -> (String, Option<i64>, Value) {
        let (mut event, mut id) = (String::new(), None);
        let until = Instant::now() + PATIENCE;
        loop {
            // a stream that has nothing to tell says so
            assert!(Instant::now() < until, "no event comes");
            // lengths of chunks, and what is between events, are none of these
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

    /// The next event for which this holds.
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
