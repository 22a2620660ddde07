//! The listening receiver: accept, prove, admit, and hand on to a session or to the session a lane belongs to.
//!
//! **Invariant:** a peer whose key is not authorised gets no byte of its own parsed; connections that have not proved a
//! key are few ([`UNPROVEN_MAX`]) and short ([`HANDSHAKE_TIMEOUT`]).

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Semaphore, mpsc, watch};
use zmove_transport::{
    AcceptError, Channel, Denial, Fingerprint, Incoming, Listener, Transport, control_pair,
};
use zmove_types::{LaneId, TransferId};
use zmove_wire::{Cipher, Greeting, GreetingError, Refusal, RefusalCode, Role, ToSender, encode_message};

use crate::config::ReceiverConfig;
use crate::error::SessionError;
use crate::guests::{Guest, Guests};
use crate::rates::Rates;
use crate::registry::Registry;
use crate::session::{Session, SessionReport, run_session};
use crate::turns::Runs;

/// Connections that have not proved a key yet; more wait in the kernel's queue, or in that of QUIC.
const UNPROVEN_MAX: usize = 64;
/// With fewer than so many to spare, who comes by UDP has to show that it is where it says.
const UNPROVEN_SPARE: usize = UNPROVEN_MAX / 2;
/// How long transfers that are cut off may take to clean up.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a peer may take to prove its key and to greet.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// A control connection whose peer acknowledges nothing for so long is lost, and its transfer with it.
const CONTROL_SILENCE_MAX: Duration = Duration::from_secs(60);
/// How long an early lane waits for its control connection.
const EARLY_LANE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to pause when the system has no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// What a refused peer may still say before it is cut off.
const DRAIN_BYTES_MAX: u64 = 64 << 10;

/// A daemon that is listening.
pub struct Daemon {
    shared: Arc<Shared>,
    unproven: Arc<Semaphore>,
}

struct Shared {
    /// Turns true when the daemon is to end; each transfer listens.
    stopping: watch::Sender<bool>,
    listener: Listener,
    guests: Guests,
    config: ReceiverConfig,
    registry: Registry,
    rates: Rates,
    runs: Runs,
    log: Box<dyn Fn(&DaemonEvent) + Send + Sync>,
}

/// What a daemon has to tell its operator.
#[derive(Debug)]
#[non_exhaustive]
pub enum DaemonEvent {
    /// A connection came to nothing.
    Rejected {
        /// From where.
        address: SocketAddr,
        /// Why.
        reason: String,
    },
    /// A transfer has begun.
    Begun {
        /// Who sends.
        name: String,
        /// From where.
        address: SocketAddr,
    },
    /// A transfer came to its end.
    Received {
        /// Who sent it.
        name: String,
        /// From where.
        address: SocketAddr,
        /// How its lanes went.
        cipher: Cipher,
        /// What was done.
        report: SessionReport,
        /// How long it took.
        elapsed: Duration,
    },
    /// A transfer ended early.
    Broken {
        /// Who sent it.
        name: String,
        /// From where.
        address: SocketAddr,
        /// Why.
        error: SessionError,
    },
    /// The system would not accept a connection.
    Accept {
        /// Why.
        error: std::io::Error,
    },
}

impl Daemon {
    /// A daemon on a listening socket.
    pub fn new(
        listener: Listener,
        guests: Guests,
        config: ReceiverConfig,
        log: impl Fn(&DaemonEvent) + Send + Sync + 'static,
    ) -> Self {
        let shared = Shared {
            listener,
            guests,
            config,
            registry: Registry::default(),
            rates: Rates::default(),
            runs: Runs::default(),
            log: Box::new(log),
            stopping: watch::Sender::new(false),
        };
        Self { shared: Arc::new(shared), unproven: Arc::new(Semaphore::new(UNPROVEN_MAX)) }
    }

    /// Serves until `stop` resolves. Transfers that are running then are cut off, and given some time to clean up.
    pub async fn serve(&self, stop: impl Future<Output = ()>) {
        tokio::pin!(stop);
        loop {
            tokio::select! {
                () = self.accept_one() => {}
                () = &mut stop => break,
            }
        }
        self.shared.stopping.send_replace(true);
        let _in_time = tokio::time::timeout(STOP_TIMEOUT, self.shared.stopping.closed()).await;
        self.shared.listener.close();
    }

    async fn accept_one(&self) {
        let unproven =
            Arc::clone(&self.unproven).acquire_owned().await.expect("the semaphore is never closed");
        match self.shared.listener.accept().await {
            Ok(incoming) => {
                let crowded = self.unproven.available_permits() < UNPROVEN_SPARE;
                let asked = if crowded { incoming.ask_back() } else { Some(incoming) };
                let Some(incoming) = asked else { return };
                let shared = Arc::clone(&self.shared);
                tokio::spawn(async move {
                    let proven = shared.prove(incoming).await;
                    drop(unproven);
                    if let Some((channel, guest)) = proven {
                        shared.admit(channel, guest).await;
                    }
                });
            }
            Err(error) => {
                (self.shared.log)(&DaemonEvent::Accept { error });
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

impl Shared {
    fn reject(&self, address: SocketAddr, reason: impl fmt::Display) {
        (self.log)(&DaemonEvent::Rejected { address, reason: reason.to_string() });
    }

    /// Has the peer prove its key and looks it up.
    async fn prove(&self, incoming: Incoming) -> Option<(Channel, Guest)> {
        let address = incoming.address();
        let channel = match self.listener.handshake(incoming, HANDSHAKE_TIMEOUT).await {
            Ok(channel) => channel,
            Err(AcceptError::Unused { .. }) => return None,
            Err(error) => {
                self.reject(address, error);
                return None;
            }
        };
        match self.guests.judge(&channel) {
            Ok(Ok(guest)) => Some((channel, guest)),
            Ok(Err(denial)) => {
                self.reject(address, &denial);
                refuse(channel, |peer| not_admitted(peer, &denial)).await;
                None
            }
            Err(error) => {
                self.reject(address, error);
                refuse(channel, |_| busy("the receiver cannot read its authorized_keys; see its log")).await;
                None
            }
        }
    }

    /// Reads the greeting and does what it asks for.
    async fn admit(self: Arc<Self>, channel: Channel, guest: Guest) {
        let (address, key) = (channel.address(), channel.peer());
        let mut stream = channel;
        let mut greeting = [0; Greeting::BYTES];
        match tokio::time::timeout(HANDSHAKE_TIMEOUT, stream.read_exact(&mut greeting)).await {
            Ok(Ok(_)) => {}
            // a client dials more lanes than a short path needs
            Ok(Err(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => return,
            Ok(Err(error)) => return self.reject(address, error),
            Err(_) => return self.reject(address, "no greeting in time"),
        }
        let greeting = match agreed(&greeting) {
            Ok(greeting) => greeting,
            Err(error) => {
                self.reject(address, error);
                // our own greeting tells the peer which versions we speak
                let ours = Greeting::new(Role::Control, TransferId([0; 16]));
                return say_and_close(stream, &ours.encode()).await;
            }
        };
        let allowed = greeting.cipher == Cipher::Tls || self.config.allow_clear;
        match greeting.role {
            _ if greeting.cipher == Cipher::None && stream.transport() == Transport::Quic => {
                self.reject(address, "it asks for lanes in clear over QUIC, which has none");
                refuse(stream, clear_quic).await;
            }
            _ if !allowed => {
                self.reject(address, "it asks for lanes in clear, which need 'zmove serve --allow-clear'");
                refuse(stream, clear_lanes).await;
            }
            Role::Control => self.run_control(stream, address, key, guest, greeting).await,
            Role::Lane(number) => self.hand_over_lane(stream, address, guest, greeting, number).await,
        }
    }

    async fn run_control(
        &self,
        stream: Channel,
        address: SocketAddr,
        key: Fingerprint,
        Guest { name, access, owner, .. }: Guest,
        Greeting { transfer, cipher, .. }: Greeting,
    ) {
        let (lanes_in, lanes) = mpsc::channel(usize::from(self.config.lanes_max));
        let Some(_registered) = self.registry.register(key, transfer, lanes_in) else {
            return self.reject(address, "a transfer of that id is running already");
        };
        if let Err(error) = stream.set_unacknowledged_max(CONTROL_SILENCE_MAX) {
            return self.reject(address, error);
        }
        (self.log)(&DaemonEvent::Begun { name: name.clone(), address });
        let (control, config) = (control_pair(stream), self.config.clone());
        let started = Instant::now();
        // the daemon waits until nobody holds one of these any more
        let mut stopping = self.stopping.subscribe();
        let turns = self.runs.of(key);
        let session = Session { transfer, control, lanes, owner, access, turns, config };
        let stop = async { drop(stopping.wait_for(|stopping| *stopping).await) };
        let ended = run_session(session, stop).await;
        (self.log)(&match ended {
            Ok(report) => DaemonEvent::Received { name, address, cipher, report, elapsed: started.elapsed() },
            Err(error) => DaemonEvent::Broken { name, address, error },
        });
    }

    async fn hand_over_lane(
        &self,
        mut stream: Channel,
        address: SocketAddr,
        guest: Guest,
        greeting: Greeting,
        number: LaneId,
    ) {
        let key = stream.peer();
        if let Some(limit) = guest.max_rate {
            stream.set_receive_rate(self.rates.of(key, limit));
        }
        let Some(lanes) = self.registry.find(key, greeting.transfer, EARLY_LANE_TIMEOUT).await else {
            return self.reject(address, "a lane of a transfer that its key has not opened");
        };
        match stream.into_source(greeting.cipher, number.0) {
            // a few may wait for others to end; one that comes when its transfer is over is not needed
            Ok(lane) => match lanes.try_send(lane) {
                Err(TrySendError::Full(_)) => self.reject(address, "more lanes than its transfer may have"),
                Ok(()) | Err(TrySendError::Closed(_)) => {}
            },
            Err(error) => self.reject(address, error),
        }
    }
}

fn agreed(bytes: &[u8; Greeting::BYTES]) -> Result<Greeting, GreetingError> {
    let greeting = Greeting::decode(bytes)?;
    greeting.agree()?;
    Ok(greeting)
}

fn not_admitted(peer: Fingerprint, denial: &Denial) -> Refusal {
    let text = match denial {
        Denial::Expired { name, expires, .. } => format!(
            "the permission of this key expired at {expires}. On the receiving host, run: zmove allow {peer} --name {name} \
             --root DIR --expires DATE"
        ),
        Denial::Certificate { fault, .. } => format!("this key may not be used here: {fault}"),
        Denial::Authority { .. } => {
            return busy("the receiver cannot read what its site's authority has issued; see its log");
        }
        _ => format!(
            "this key is not known here. On the receiving host, run: zmove allow {peer} --name NAME --root DIR --write"
        ),
    };
    Refusal { code: RefusalCode::UnknownKey, text }
}

fn clear_lanes(_: Fingerprint) -> Refusal {
    let text = "this receiver takes nothing in clear: leave out '--cipher none', or have it run with \
                'zmove serve --allow-clear'";
    Refusal { code: RefusalCode::Denied, text: text.to_owned() }
}

fn clear_quic(_: Fingerprint) -> Refusal {
    let text = "QUIC is always encrypted: leave out '--cipher none', or use '--transport tcp'";
    Refusal { code: RefusalCode::Denied, text: text.to_owned() }
}

fn busy(text: &str) -> Refusal {
    Refusal { code: RefusalCode::Busy, text: text.to_owned() }
}

/// Refuses a peer, whatever it has to say.
async fn refuse(channel: Channel, refusal: impl FnOnce(Fingerprint) -> Refusal) {
    let refusal = refusal(channel.peer());
    let mut answer = Greeting::new(Role::Control, TransferId([0; 16])).encode().to_vec();
    answer.extend(encode_message(&ToSender::Refused(refusal)));
    say_and_close(channel, &answer).await;
}

/// Says one thing without listening: what the peer has sent is thrown away, so that the close does not destroy the
/// answer on its way.
async fn say_and_close(mut stream: Channel, answer: &[u8]) {
    let said = async {
        stream.write_all(answer).await?;
        stream.shutdown().await?;
        tokio::io::copy(&mut stream.take(DRAIN_BYTES_MAX), &mut tokio::io::sink()).await
    };
    let _in_time = tokio::time::timeout(HANDSHAKE_TIMEOUT, said).await;
}

impl fmt::Debug for Daemon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Daemon({:?})", self.shared.listener)
    }
}

impl fmt::Display for DaemonEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rejected { address, reason } => write!(f, "rejected {address}: {reason}"),
            Self::Begun { name, address } => write!(f, "begun by {name} at {address}"),
            Self::Received { name, address, cipher, report, elapsed } => {
                let target = String::from_utf8_lossy(&report.target);
                let (seconds, faults) = (elapsed.as_secs_f64(), report.faults);
                let clear = if *cipher == Cipher::None { ", in clear" } else { "" };
                write!(
                    f,
                    "received from {name} at {address} into '{target}' in {seconds:.2} s, {faults} faults{clear}"
                )?;
                let trouble = report.journal_trouble.as_ref();
                trouble.map_or(Ok(()), |trouble| write!(f, "; without a journal: {trouble}"))
            }
            Self::Broken { name, address, error } => write!(f, "broken off by {name} at {address}: {error}"),
            Self::Accept { error } => write!(f, "accept a connection: {error}"),
        }
    }
}
