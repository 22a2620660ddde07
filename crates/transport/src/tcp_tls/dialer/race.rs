//! Establishes the first connection to any of several addresses, like "happy eyeballs" (RFC 8305).
//!
//! Used only by the dialers. Each address gets a head start over the next one. A failure starts the next attempt
//! immediately. **Invariant:** exactly one connection results, and all other attempts are dropped.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use tokio::{
    net::TcpStream,
    task::{JoinError, JoinSet},
    time::timeout,
};
use zmove_sockopt::tcp_info;

use super::super::{SocketConfig, StreamSocket};
use super::{Deadline, ResolvedHost};
use crate::endpoint::Endpoint;
use crate::error::{DialError, DialStage};

/// Head start of an address over the next one in the list.
const HEAD_START: Duration = Duration::from_millis(250);

/// Maximum time for one address to accept a TCP connection. A shorter time would skip unreachable addresses sooner. A
/// longer time would tolerate more lost packets.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// A connection before its handshake.
pub(crate) struct TcpConnected {
    pub(super) socket: StreamSocket,
    pub(super) address: SocketAddr,
    /// The round-trip time, or `None` if only the handshake can show it.
    pub(super) rtt: Option<Duration>,
}

/// The address of a host that all connections of a dialer use. It is the first address that answers.
#[derive(Clone, Debug)]
pub(crate) struct ChosenAddress {
    pub(super) host: ResolvedHost,
    chosen: Arc<OnceLock<SocketAddr>>,
}

impl ChosenAddress {
    pub(crate) fn of(host: ResolvedHost) -> Self {
        Self {
            host,
            chosen: Arc::default(),
        }
    }

    /// Returns the host as entered by the user.
    pub(crate) fn endpoint(&self) -> Endpoint {
        self.host.endpoint.clone()
    }

    pub(crate) fn timed_out(&self, stage: DialStage, deadline: Deadline) -> DialError {
        DialError::TimedOut {
            host: self.endpoint(),
            stage,
            waited: deadline.waited,
        }
    }

    /// Calls `start` for the chosen address. If none is chosen yet, calls it for all addresses and chooses the first
    /// one that answers.
    pub(crate) async fn connect<T, F>(
        &self,
        start: impl Fn(SocketAddr) -> F,
    ) -> Result<T, DialError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, DialError>> + Send + 'static,
    {
        if let Some(chosen) = self.chosen.get() {
            return start(*chosen).await;
        }
        let (address, connected) = first(&self.host, &start).await?;
        let chosen = *self.chosen.get_or_init(|| address);
        // Another connection of this run may have chosen another address in the meantime.
        if chosen == address {
            Ok(connected)
        } else {
            start(chosen).await
        }
    }
}

/// Returns the addresses with the two families alternating, starting with the family of the first address.
pub(super) fn interleave(addresses: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut addresses = addresses.peekable();
    let preferred = addresses.peek().is_some_and(SocketAddr::is_ipv6);
    let (first, second): (Vec<_>, Vec<_>) =
        addresses.partition(|address| address.is_ipv6() == preferred);
    let mut mixed = Vec::with_capacity(first.len() + second.len());
    let mut first = first.into_iter();
    let mut second = second.into_iter();
    while mixed.len() < mixed.capacity() {
        mixed.extend(first.next());
        mixed.extend(second.next());
    }
    mixed
}

/// Starts one attempt for each address. Returns the first success with its address, or the most informative failure.
async fn first<T, F>(
    host: &ResolvedHost,
    start: impl Fn(SocketAddr) -> F,
) -> Result<(SocketAddr, T), DialError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, DialError>> + Send + 'static,
{
    let mut running = JoinSet::new();
    let mut waiting = host.addresses.iter();
    let mut failure = None;
    loop {
        match waiting.next() {
            Some(&address) => {
                let attempt = start(address);
                running.spawn(async move { attempt.await.map(|connected| (address, connected)) });
            }
            None if running.is_empty() => {
                return Err(failure.expect("there is an address, and it failed"));
            }
            None => {}
        }
        let Some(outcome) = outcome(&mut running, waiting.len()).await else {
            continue;
        };
        let failed = match outcome {
            Ok(Ok(connected)) => return Ok(connected),
            Ok(Err(error)) => error,
            Err(error) => {
                let source = cancelled(error).into();
                DialError::Socket {
                    host: host.endpoint.clone(),
                    source,
                }
            }
        };
        failure = Some(failed.or_more_informative(failure));
    }
}

/// Returns the result of the next attempt that ends. If `others` more attempts can be started, returns `None` when the
/// head start ends before any result.
async fn outcome<T: 'static>(
    running: &mut JoinSet<T>,
    others: usize,
) -> Option<Result<T, JoinError>> {
    match others {
        0 => running.join_next().await,
        _ => timeout(HEAD_START, running.join_next()).await.ok()?,
    }
}

/// Returns an error for an attempt that was dropped because its runtime is shutting down. If the attempt has panicked,
/// the panic continues in the caller.
fn cancelled(error: JoinError) -> io::Error {
    match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(cancelled) => cancelled.into(),
    }
}

/// Connects to one address of a host.
pub(super) async fn attempt(
    host: Endpoint,
    address: SocketAddr,
    config: SocketConfig,
) -> Result<TcpConnected, DialError> {
    let socket = match config.open(address) {
        Ok(socket) => socket,
        Err(source) => return Err(DialError::Socket { host, source }),
    };
    let started = Instant::now();
    let connected = timeout(CONNECT_MAX, socket.connect(address)).await;
    match connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
        Ok(socket) => {
            let rtt = round_trip(&socket, started.elapsed());
            Ok(TcpConnected {
                socket: StreamSocket::Tcp(socket),
                rtt: Some(rtt),
                address,
            })
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            Err(DialError::Refused { host, address })
        }
        Err(source) => Err(DialError::Connect {
            host,
            address,
            source,
        }),
    }
}

/// Returns the round-trip time that the kernel measured in the TCP handshake. `took`, the time that this process has
/// measured, is only the fallback. On a busy host, it includes milliseconds of waiting for a CPU. So a short path would
/// look like a long one and get too many lanes.
fn round_trip(socket: &TcpStream, took: Duration) -> Duration {
    let measured = tcp_info(socket).ok().and_then(|info| info.round_trip);
    // The kernel may have no measurement if the first packet was retransmitted.
    measured
        .filter(|round_trip| !round_trip.is_zero())
        .map_or(took, |round_trip| round_trip.min(took))
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    async fn connect(addresses: &[SocketAddr]) -> Result<TcpConnected, DialError> {
        let host = ResolvedHost {
            endpoint: Endpoint::new("a", 1),
            addresses: addresses.into(),
        };
        let start = |address| attempt(Endpoint::new("a", 1), address, SocketConfig::default());
        ChosenAddress::of(host).connect(start).await
    }

    /// Returns a socket that refuses connections, because it has an address but does not listen.
    fn refusing() -> TcpSocket {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        socket
    }

    /// Connects to two addresses. `first` returns the result for the first address. The second address answers
    /// immediately. Returns the address that answered and the elapsed virtual time.
    async fn connect_after<F>(first: impl Fn() -> F) -> (SocketAddr, Duration)
    where
        F: Future<Output = Result<SocketAddr, DialError>> + Send + 'static,
    {
        let addresses = addresses(&["1.1.1.1:1", "2.2.2.2:2"]);
        let host = ResolvedHost {
            endpoint: Endpoint::new("a", 1),
            addresses: addresses.clone().into(),
        };
        let start = |address| {
            let first = (address == addresses[0]).then(&first);
            async move {
                match first {
                    Some(first) => first.await,
                    None => Ok(address),
                }
            }
        };
        let began = tokio::time::Instant::now();
        let answered = ChosenAddress::of(host).connect(start).await.unwrap();
        (answered, began.elapsed())
    }

    #[test]
    fn families_take_turns() {
        let found = addresses(&["[::1]:1", "[::2]:1", "[::3]:1", "1.1.1.1:1"]);
        let expected = addresses(&["[::1]:1", "1.1.1.1:1", "[::2]:1", "[::3]:1"]);
        assert_eq!(interleave(found.into_iter()), expected);
        assert_eq!(
            interleave(addresses(&["1.1.1.1:1", "[::1]:1"]).into_iter()).len(),
            2
        );
        assert_eq!(interleave(std::iter::empty()), []);
    }

    #[tokio::test]
    async fn the_address_that_answers_is_taken() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let good = listener.local_addr().unwrap();
        let refusing = refusing();
        let bad = refusing.local_addr().unwrap();
        assert_eq!(connect(&[bad, good]).await.unwrap().address, good);
        // A listener with a full backlog drops new connections without an answer.
        let silent = TcpSocket::new_v4().unwrap();
        silent.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let silent = silent.listen(0).unwrap();
        let blocked = silent.local_addr().unwrap();
        let _first = TcpStream::connect(blocked).await.unwrap();
        assert_eq!(connect(&[blocked, good]).await.unwrap().address, good);
    }

    #[tokio::test(start_paused = true)]
    async fn refusal_starts_the_next_address_at_once() {
        let refused = || async {
            Err(DialError::Refused {
                host: Endpoint::new("a", 1),
                address: "1.1.1.1:1".parse().unwrap(),
            })
        };
        let (answered, time) = connect_after(refused).await;
        assert_eq!(answered, "2.2.2.2:2".parse().unwrap());
        assert_eq!(time, Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn silent_address_delays_by_its_head_start_only() {
        let (answered, time) = connect_after(std::future::pending).await;
        assert_eq!(answered, "2.2.2.2:2".parse().unwrap());
        assert_eq!(time, HEAD_START);
    }

    #[tokio::test]
    async fn a_round_trip_does_not_last_until_a_busy_process_looks() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let looked_after = Duration::from_secs(3600);
        assert!(round_trip(&socket, looked_after) < looked_after);
        let at_once = Duration::from_nanos(1);
        assert_eq!(round_trip(&socket, at_once), at_once);
    }

    #[tokio::test]
    async fn all_refused_is_a_refusal() {
        let refusing = [refusing(), refusing()];
        let addresses = refusing
            .each_ref()
            .map(|socket| socket.local_addr().unwrap());
        let failure = connect(&addresses).await;
        assert!(matches!(failure.err(), Some(DialError::Refused { .. })));
    }
}
