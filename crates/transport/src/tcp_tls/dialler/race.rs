//! The first TCP connection out of several addresses, in the manner of "happy eyeballs" (RFC 8305).
//!
//! Called by the dialler alone. An address gets a head start over the next; a failure starts the next at once.
//! **Invariant:** one connection comes out, and all other attempts are dropped.

use std::{
    io,
    net::SocketAddr,
    time::{Duration, Instant},
};

use tokio::{
    net::TcpStream,
    task::{JoinError, JoinSet},
    time::timeout,
};

use super::super::SocketConfig;
use crate::error::SocketError;

/// The head start of an address over the next.
const HEAD_START: Duration = Duration::from_millis(250);

/// A TCP connection and the time it took.
pub(crate) struct Connected {
    pub(super) socket: TcpStream,
    pub(super) address: SocketAddr,
    pub(super) rtt: Duration,
}

/// Why an attempt failed.
#[derive(Debug)]
pub(super) enum Attempt {
    Socket(SocketError),
    Connect(SocketAddr, io::Error),
}

/// The addresses of the two families in turn, beginning with the family that comes first.
pub(super) fn interleave(addresses: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut addresses = addresses.peekable();
    let preferred = addresses.peek().is_some_and(SocketAddr::is_ipv6);
    let (first, second): (Vec<_>, Vec<_>) = addresses.partition(|address| address.is_ipv6() == preferred);
    let mut mixed = Vec::with_capacity(first.len() + second.len());
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    while mixed.len() < mixed.capacity() {
        mixed.extend(first.next());
        mixed.extend(second.next());
    }
    mixed
}

/// Connects to the first of `addresses` (at least one) that answers.
pub(super) async fn connect(addresses: &[SocketAddr], config: &SocketConfig) -> Result<Connected, Attempt> {
    first(addresses, |address| attempt(address, config.clone()), unfinished, more_telling).await
}

/// The first outcome that is good of one attempt for each address (at least one); of failures the more telling one.
pub(crate) async fn first<T, E, F>(
    addresses: &[SocketAddr],
    start: impl Fn(SocketAddr) -> F,
    unfinished: fn(io::Error) -> E,
    more_telling: fn(Option<E>, E) -> E,
) -> Result<T, E>
where
    T: Send + 'static,
    E: Send + 'static,
    F: Future<Output = Result<T, E>> + Send + 'static,
{
    let mut running = JoinSet::new();
    let mut waiting = addresses.iter();
    let mut failure = None;
    loop {
        match waiting.next() {
            Some(address) => drop(running.spawn(start(*address))),
            None if running.is_empty() => return Err(failure.expect("there is an address, and it failed")),
            None => {}
        }
        match outcome(&mut running, waiting.len()).await {
            Some(Ok(Ok(connected))) => return Ok(connected),
            Some(Ok(Err(attempt))) => failure = Some(more_telling(failure, attempt)),
            Some(Err(error)) => failure = Some(more_telling(failure, unfinished(cancelled(error)))),
            None => {}
        }
    }
}

/// The next outcome, or `None` when the head start over one of `others` is used up.
async fn outcome<T: 'static>(running: &mut JoinSet<T>, others: usize) -> Option<Result<T, JoinError>> {
    match others {
        0 => running.join_next().await,
        _ => timeout(HEAD_START, running.join_next()).await.ok()?,
    }
}

/// An attempt that panicked, or that a runtime dropped while it shuts down.
fn cancelled(error: JoinError) -> io::Error {
    match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(cancelled) => cancelled.into(),
    }
}

fn unfinished(error: io::Error) -> Attempt {
    Attempt::Socket(error.into())
}

async fn attempt(address: SocketAddr, config: SocketConfig) -> Result<Connected, Attempt> {
    let socket = config.open(address).map_err(Attempt::Socket)?;
    let started = Instant::now();
    match timeout(config.connect_timeout, socket.connect(address)).await {
        Ok(Ok(socket)) => Ok(Connected { socket, address, rtt: started.elapsed() }),
        Ok(Err(source)) => Err(Attempt::Connect(address, source)),
        Err(_) => Err(Attempt::Connect(address, io::ErrorKind::TimedOut.into())),
    }
}

/// A refusal tells more than an address that is out of reach: there is a host.
fn more_telling(before: Option<Attempt>, now: Attempt) -> Attempt {
    match before {
        Some(Attempt::Connect(address, error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
            Attempt::Connect(address, error)
        }
        _ => now,
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    /// An address of this host where nobody listens.
    async fn refusing() -> SocketAddr {
        TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
    }

    #[test]
    fn families_take_turns() {
        let found = addresses(&["[::1]:1", "[::2]:1", "[::3]:1", "1.1.1.1:1"]);
        let expected = addresses(&["[::1]:1", "1.1.1.1:1", "[::2]:1", "[::3]:1"]);
        assert_eq!(interleave(found.into_iter()), expected);
        assert_eq!(interleave(addresses(&["1.1.1.1:1", "[::1]:1"]).into_iter()).len(), 2);
        assert_eq!(interleave(std::iter::empty()), []);
    }

    #[tokio::test]
    async fn refusal_starts_the_next_address_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let good = listener.local_addr().unwrap();
        let started = Instant::now();
        let connected = connect(&[refusing().await, good], &SocketConfig::default()).await.unwrap();
        assert_eq!(connected.address, good);
        assert!(started.elapsed() < HEAD_START);
    }

    #[tokio::test]
    async fn silent_address_delays_by_its_head_start_only() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let good = listener.local_addr().unwrap();
        // A listener with a full backlog drops further connections without an answer.
        let silent = tokio::net::TcpSocket::new_v4().unwrap();
        silent.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let silent = silent.listen(0).unwrap();
        let blocked = silent.local_addr().unwrap();
        let _first = TcpStream::connect(blocked).await.unwrap();
        let connected = connect(&[blocked, good], &SocketConfig::default()).await.unwrap();
        assert_eq!(connected.address, good);
    }

    #[tokio::test]
    async fn all_refused_is_a_refusal() {
        let failure = connect(&[refusing().await, refusing().await], &SocketConfig::default()).await;
        let Err(Attempt::Connect(_, error)) = failure else { panic!("connected") };
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }
}
