//! What listens at the address of a broker, by the first line that it says.
//!
//! A `nats-server` names itself before anybody says who asks, and the name of a broker that zmove makes follows from
//! the key of its cluster. So another server is not taken for it.
//!
//! **Invariant:** a name proves nothing, and nothing relies on it: whoever means harm and listens there can do what a
//! broker can in any case (`seal.rs`).

use std::fmt::Display;
use std::time::Duration;

use serde::Deserialize;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpStream, ToSocketAddrs};
use tokio::time::timeout;
use zmove_types::Escaped;

/// What listens at an address.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Listener {
    /// A NATS server, and its name.
    Server(String),
    /// Another program, and the first line that it says, if any.
    Program(Vec<u8>),
}

/// What a server says first, as far as it is wanted.
#[derive(Deserialize)]
struct Info {
    #[serde(default)]
    server_name: String,
}

impl Listener {
    /// What listens at an address; `None` where nothing takes a connection.
    pub(super) async fn at(address: impl ToSocketAddrs) -> Option<Self> {
        let connected = timeout(ANSWER_MAX, TcpStream::connect(address)).await;
        Some(Self::behind(connected.ok()?.ok()?).await)
    }

    /// What has taken a connection.
    pub(super) async fn behind(connection: TcpStream) -> Self {
        let mut said = Vec::new();
        let mut connection = connection.take(LINE_MAX);
        let read = async {
            while !said.contains(&b'\n')
                && connection
                    .read_buf(&mut said)
                    .await
                    .is_ok_and(|bytes| bytes > 0)
            {}
        };
        let _what_has_come_by_then = timeout(ANSWER_MAX, read).await;
        let is_whole = said.contains(&b'\n');
        let line = said
            .split(|byte| matches!(byte, b'\r' | b'\n'))
            .next()
            .unwrap_or_default();
        match line.strip_prefix(b"INFO ").map(serde_json::from_slice) {
            // the rest is on its way
            Some(_) if !is_whole => Self::Program(Vec::new()),
            Some(info) => {
                Self::Server(info.map_or_else(|_| String::new(), |info: Info| info.server_name))
            }
            None => Self::Program(line[..line.len().min(SHOWN_MAX)].to_vec()),
        }
    }

    /// Whether this is the broker of that name.
    pub(super) fn is(&self, name: &str) -> bool {
        matches!(self, Self::Server(its) if its == name)
    }

    /// Whether this is surely not the broker of that name: one that says nothing may be slow, or stand still.
    pub(super) fn is_another_than(&self, name: &str) -> bool {
        match self {
            Self::Server(its) => its != name,
            Self::Program(line) => !line.is_empty(),
        }
    }

    /// The words for it where it listens in place of the broker.
    pub(super) fn in_place(&self, address: impl Display) -> String {
        match self {
            Self::Server(_) => {
                format!("at {address} listens a NATS server that is not of this cluster")
            }
            Self::Program(line) if line.is_empty() => format!(
                "at {address} listens another program, which says nothing (or a NATS server that stands still)"
            ),
            Self::Program(line) => {
                format!(
                    "at {address} listens another program, which says '{}'",
                    Escaped(line)
                )
            }
        }
    }
}

/// How long whoever listens may take to take a connection, and to say something.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// More than a server says of itself.
const LINE_MAX: u64 = 1 << 16;
/// How much is shown of what another program says.
const SHOWN_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    /// The result for a listener that sends these pieces and closes the connection.
    async fn heard(pieces: &'static [&'static str]) -> Listener {
        let listens = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listens.local_addr().unwrap();
        let says = async {
            let mut taken = listens.accept().await.unwrap().0;
            for piece in pieces {
                taken.write_all(piece.as_bytes()).await.unwrap();
                tokio::task::yield_now().await;
            }
        };
        tokio::join!(says, Listener::at(address)).1.unwrap()
    }

    #[tokio::test]
    async fn a_server_is_known_by_its_name_and_another_program_by_what_it_says() {
        let ours = heard(&[
            "INFO {\"server_id\":\"x\",\"server_",
            "name\":\"zmove-1\"} \r\n",
            "PING\r\n",
        ])
        .await;
        assert!(ours.is("zmove-1") && !ours.is("zmove-2"), "{ours:?}");
        assert!(!ours.is_another_than("zmove-1") && ours.is_another_than("zmove-2"));
        let nameless = heard(&["INFO {}\r\n"]).await;
        assert!(!nameless.is("zmove-1"));
        assert_eq!(
            nameless.in_place("h:1"),
            "at h:1 listens a NATS server that is not of this cluster"
        );
        let other = heard(&["SSH-2.0-x\r\n"]).await;
        assert_eq!(
            other.in_place("h:1"),
            "at h:1 listens another program, which says 'SSH-2.0-x'"
        );
        assert!(other.is_another_than("zmove-1"));
        for cut_off in [&[][..], &["INFO {\"server_id\":\"x\","]] {
            assert_is_unknown(&heard(cut_off).await);
        }
    }

    #[track_caller]
    fn assert_is_unknown(listener: &Listener) {
        assert!(
            listener
                .in_place("h:1")
                .starts_with("at h:1 listens another program, which says nothing")
        );
        assert!(!listener.is("zmove-1") && !listener.is_another_than("zmove-1"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_listener_that_is_slow_is_not_waited_for() {
        let listens = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connection = TcpStream::connect(listens.local_addr().unwrap());
        let connection = connection.await.unwrap();
        let mut open = listens.accept().await.unwrap().0;
        open.write_all(b"INFO {\"server_id\":").await.unwrap();
        let began = tokio::time::Instant::now();
        assert_is_unknown(&Listener::behind(connection).await);
        assert_eq!(began.elapsed(), ANSWER_MAX);
    }

    #[tokio::test]
    async fn where_nothing_listens_there_is_nothing() {
        let refusing = TcpSocket::new_v4().unwrap();
        refusing.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let address = refusing.local_addr().unwrap();
        assert_eq!(Listener::at(address).await, None);
    }
}
