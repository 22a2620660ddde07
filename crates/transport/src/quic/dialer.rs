//! The client side. Each connection has its own UDP socket and thread, so that several connections use several cores.
//!
//! **Invariant:** after [`QuicDialer::close`], each thread ends as soon as it has closed its connection.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ConnectionError, Endpoint};
use rustls::AlertDescription;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout_at};
use zmove_types::Lock;
use zmove_wire::ANY_PROTOCOL_NAME;

use super::resume::{Resumption, SavedWindow, WindowAllowance};
use super::settings::{self, QuicCongestion};
use super::timer::FineRuntime;
use super::tolerant::PathAccount;
use super::{DONE, QuicConnection, protocol_of, socket};
use crate::endpoint::unspecified;
use crate::error::{DialError, DialStage};
use crate::tcp_tls::{
    ChosenAddress, Deadline, ResolvedHost, greeting_fault, tls_fault, unless_other_version,
};
use crate::trust::{
    HandshakeFault, HostPolicy, Identity, SERVER_NAME, client_config, provider,
    version_query_config,
};

/// Dials connections to one host. Cheap to clone. Clones use the same address.
#[derive(Clone, Debug)]
pub(crate) struct QuicDialer {
    address: ChosenAddress,
    identity: Identity,
    policy: HostPolicy,
    congestion: QuicCongestion,
    allowance: Option<Arc<WindowAllowance>>,
    threads: Arc<QuicThreads>,
}

/// The threads of the dialed connections.
#[derive(Debug)]
struct QuicThreads {
    /// True when all threads must close their connections and end.
    leave: watch::Sender<bool>,
    running: Lock<Vec<JoinHandle<()>>>,
}

impl QuicDialer {
    pub(crate) fn new(
        identity: &Identity,
        host: ResolvedHost,
        policy: HostPolicy,
        congestion: QuicCongestion,
        saved: Option<SavedWindow>,
    ) -> Self {
        let threads = QuicThreads {
            leave: watch::Sender::new(false),
            running: Lock::default(),
        };
        Self {
            address: ChosenAddress::of(host),
            identity: identity.clone(),
            policy,
            congestion,
            allowance: saved.map(WindowAllowance::new).map(Arc::new),
            threads: Arc::new(threads),
        }
    }

    /// Returns the result of using the saved window.
    pub(crate) fn resumption(&self) -> Resumption {
        self.allowance
            .as_ref()
            .map(|allowance| allowance.outcome())
            .unwrap_or_default()
    }

    /// Dials one connection in at most `deadline`.
    ///
    /// # Errors
    /// Returns [`DialError`] if no address responds, if the server does not speak the zmove protocol, or if the host's
    /// key is not accepted.
    pub(crate) async fn dial(&self, deadline: Duration) -> Result<QuicConnection, DialError> {
        let whole = Deadline::after(deadline);
        let mut patience = FIRST_HANDSHAKE_TIMEOUT;
        loop {
            let until = Deadline {
                due: whole.due.min(Instant::now() + patience),
                ..whole
            };
            match self
                .address
                .connect(|address| self.attempt(address, until))
                .await
            {
                // A daemon that was restarted cannot continue an earlier handshake, but it answers a new connection.
                Err(DialError::TimedOut { .. }) if until.due < whole.due => patience *= 2,
                dialled => return dialled,
            }
        }
    }

    /// Closes all connections gracefully and waits for their threads. Does not wait for data in flight.
    pub(crate) async fn close(&self) {
        self.threads.leave.send_replace(true);
        let running = std::mem::take(&mut *self.threads.running.lock());
        let joined =
            tokio::task::spawn_blocking(|| running.into_iter().try_for_each(JoinHandle::join));
        let _in_time = tokio::time::timeout(GOODBYE_MAX, joined).await;
    }

    /// Starts a thread that dials a connection and keeps it open.
    fn attempt(
        &self,
        address: SocketAddr,
        deadline: Deadline,
    ) -> impl Future<Output = Result<QuicConnection, DialError>> + Send + 'static {
        let (made_in, made) = oneshot::channel();
        let dialer = self.clone();
        let leave = self.threads.leave.subscribe();
        let started = std::thread::Builder::new()
            .name("zmove-quic".into())
            .spawn(move || {
                match tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                {
                    Ok(runtime) => {
                        runtime.block_on(dialer.serve(address, deadline, made_in, leave))
                    }
                    Err(error) => drop(made_in.send(Err(dialer.local(error)))),
                }
            });
        let started = started.map(|thread| self.threads.running.lock().push(thread));
        let started = started.map_err(|error| self.local(error));
        let ended = self.local(io::Error::other("the connection's thread has ended"));
        async move {
            started?;
            made.await.unwrap_or(Err(ended))
        }
    }

    /// Dials a connection and keeps it open until its end.
    async fn serve(
        &self,
        address: SocketAddr,
        deadline: Deadline,
        mut made: oneshot::Sender<Result<QuicConnection, DialError>>,
        mut leave: watch::Receiver<bool>,
    ) {
        let QuicConnected {
            endpoint,
            connection,
            account,
        } = tokio::select! {
            connected = self.connect(address, deadline) => match connected {
                Ok(connected) => connected,
                Err(error) => return drop(made.send(Err(error))),
            },
            // The caller no longer waits for the connection.
            () = made.closed() => return,
            _ = leave.wait_for(|leave| *leave) => return,
        };
        let (sending, receiving) = match connection.open_bi().await {
            Ok(stream) => stream,
            Err(error) => return drop(made.send(Err(self.lost(error, deadline)))),
        };
        let (whole, mut linger) = QuicConnection::new(connection, sending, receiving, account);
        if made
            .send(whole.ok_or_else(|| DialError::NotZmove {
                host: self.address.endpoint(),
            }))
            .is_err()
        {
            return;
        }
        tokio::select! {
            () = linger.wait() => {}
            _ = leave.wait_for(|leave| *leave) => {
                // Send finished data before the close.
                yield_to_driver().await;
                linger.connection.close(DONE, b"");
                linger.lane_bytes.mark_lost();
            }
        }
        yield_to_driver().await;
        drop(endpoint);
    }

    async fn connect(
        &self,
        address: SocketAddr,
        deadline: Deadline,
    ) -> Result<QuicConnected, DialError> {
        let fault = HandshakeFault::default();
        let tls = client_config(
            provider(),
            &self.identity,
            self.policy.clone(),
            fault.clone(),
        );
        let query = version_query_config(&tls);
        let made = self.connect_by(tls, &fault, address, deadline).await;
        unless_other_version(made, deadline, async |due| {
            self.connect_by(query, &fault, address, due).await
        })
        .await
    }

    /// Establishes a connection with these TLS settings. If the host is not accepted, the reason is stored in `fault`.
    async fn connect_by(
        &self,
        tls: rustls::ClientConfig,
        fault: &HandshakeFault,
        address: SocketAddr,
        deadline: Deadline,
    ) -> Result<QuicConnected, DialError> {
        let crypto =
            QuicClientConfig::try_from(tls).map_err(|error| self.local(io::Error::other(error)))?;
        let mut config = quinn::ClientConfig::new(Arc::new(crypto));
        let allowance = self
            .allowance
            .clone()
            .filter(|allowance| allowance.suits(address));
        let account = Arc::new(PathAccount {
            allowance,
            ..PathAccount::default()
        });
        let datagram_bytes_max = settings::datagram_bytes_max(address);
        let transport =
            settings::transport(self.congestion, datagram_bytes_max, Arc::clone(&account));
        config.transport_config(Arc::new(transport));
        let endpoint = open(address, &self.identity).map_err(|error| self.local(error))?;
        let connecting = endpoint.connect_with(config, address, SERVER_NAME);
        let connecting = connecting.map_err(|error| self.local(io::Error::other(error)))?;
        match timeout_at(deadline.due, connecting).await {
            Ok(Ok(connection))
                if protocol_of(&connection).as_deref() == Some(ANY_PROTOCOL_NAME) =>
            {
                Err(self.greeting_fault(&connection, deadline).await)
            }
            Ok(Ok(connection)) => Ok(QuicConnected {
                endpoint,
                connection,
                account,
            }),
            Ok(Err(error)) => Err(match fault.get() {
                Some(fault) => tls_fault(self.address.endpoint(), fault),
                None => self.lost(error, deadline),
            }),
            Err(_) => Err(self.address.timed_out(DialStage::Handshaking, deadline)),
        }
    }

    /// Returns the error for a host that speaks another version. The host sends its version as the reason of the close.
    async fn greeting_fault(
        &self,
        connection: &quinn::Connection,
        deadline: Deadline,
    ) -> DialError {
        match timeout_at(deadline.due, connection.closed()).await {
            Ok(ConnectionError::ApplicationClosed(close)) => {
                greeting_fault(self.address.endpoint(), &close.reason)
            }
            Ok(error) => self.lost(error, deadline),
            Err(_) => self.address.timed_out(DialStage::Handshaking, deadline),
        }
    }

    fn local(&self, source: io::Error) -> DialError {
        DialError::Socket {
            host: self.address.endpoint(),
            source: source.into(),
        }
    }

    fn lost(&self, error: ConnectionError, deadline: Deadline) -> DialError {
        let host = self.address.endpoint();
        // The close by a host with another version may be received before the connection counts as established.
        if let ConnectionError::ApplicationClosed(close) = &error
            && let other @ DialError::OtherVersion { .. } =
                greeting_fault(host.clone(), &close.reason)
        {
            return other;
        }
        match error {
            ConnectionError::TimedOut => self.address.timed_out(DialStage::Handshaking, deadline),
            ConnectionError::VersionMismatch => DialError::NotZmove { host },
            error if alert(&error) == Some(AlertDescription::NoApplicationProtocol) => {
                DialError::NotZmove { host }
            }
            error => DialError::Closed {
                host,
                source: error.into(),
            },
        }
    }
}

/// A connection and the objects that must live as long as the connection.
struct QuicConnected {
    endpoint: Endpoint,
    connection: quinn::Connection,
    account: Arc<PathAccount>,
}

/// Returns the TLS alert that ended a connection, if any.
pub(super) fn alert(error: &ConnectionError) -> Option<AlertDescription> {
    let code = match error {
        ConnectionError::TransportError(error) => error.code,
        ConnectionError::ConnectionClosed(close) => close.error_code,
        _ => return None,
    };
    let alert = u64::from(code).checked_sub(CRYPTO_ERRORS)?;
    u8::try_from(alert).ok().map(AlertDescription::from)
}

/// The first QUIC error code for TLS alerts.
const CRYPTO_ERRORS: u64 = 0x100;
/// Time limit of the first handshake, after which a new handshake begins. The limit doubles for each further handshake.
const FIRST_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum time that the threads may take to close their connections.
const GOODBYE_MAX: Duration = Duration::from_secs(1);

/// Opens a socket for one connection.
fn open(address: SocketAddr, identity: &Identity) -> io::Result<Endpoint> {
    let socket = UdpSocket::bind(unspecified(address))?;
    settings::enlarge_buffers(&socket)?;
    let config = settings::endpoint(identity);
    let socket = socket::wrap(socket)?;
    Endpoint::new_with_abstract_socket(config, None, socket, Arc::new(FineRuntime))
}

/// Lets the connection's driver, which runs on the same thread, send queued packets.
async fn yield_to_driver() {
    for _ in 0..YIELDS {
        tokio::task::yield_now().await;
    }
}

const YIELDS: usize = 8;
