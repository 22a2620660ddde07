//! The listening daemon. It accepts connections, authenticates and admits each peer, and hands the connection to a new
//! session or, for a lane, to the session that the lane belongs to. `zmove serve` and `zmove receive` run it.
//!
//! Every connection is accepted immediately. In the kernel's queue, the origin of a connection would not be visible.
//! Until the peer has proved a key, the connection counts against a limit on pending handshakes (`pending_handshakes`).
//! After that, the connection is charged to its key (`admission`) until it has sent its greeting. A lane is charged
//! until it has found its transfer.
//!
//! A transfer is admitted with a share of the lanes and buffers. `Opened` reports this share to the sender, and the
//! session does not exceed it. If no slot is free, the transfer waits in the queue (`wait_queue`) with one connection
//! and without any threads. Its sender is notified and closes the lanes that it has already dialed.
//!
//! **Invariant:** no message of a peer is parsed before its key is authorized. Connections that have not proved a key
//! are limited in number and duration ([`Limits`]).

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::AsyncReadExt;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, watch};
use zmove_transport::{
    AcceptError, CONTROL_SILENCE_MAX, Channel, Claim, Denial, Fingerprint, Incoming, LaneError,
    LaneSink, LaneSource, Listener, PathProbe, SharedRate, Transport, control_pair,
};
use zmove_types::TransferId;
use zmove_wire::limits::LANES_UNREQUESTED_MAX;
use zmove_wire::{Cipher, Greeting, Refusal, RefusalCode, Role};

use crate::access::admission::{Admissions, Slot};
use crate::access::authorizer::{Authorized, Authorizer};
use crate::access::authorizer_threads::AuthorizerThreads;
use crate::access::node_grant::NodeGrant;
use crate::access::pending_handshakes::PendingHandshakes;
use crate::access::rate_limits::Rates;
use crate::access::refusals::{denied, refuse, refuse_peer, send_and_close};
use crate::answering;
use crate::copies::Copies;
use crate::copies::grants::{PeerGrants, SessionResources};
use crate::event::{DaemonEvent, EndedTransfer, Moved, Rejection, TransferEnd};
use crate::node_session::NodeSession;
use crate::registry::{LaneLookup, LanesIn, Registry};
use crate::sending::{self, KeyShare, PeerControl, SendingSession, Sent};
use crate::transfers::{ActiveTransfer, Direction, PeerInfo, StopReason, Transfers};
use zmove_receiver::Quotas;
use zmove_receiver::ReceiverConfig;
use zmove_receiver::RunLeasesByKey;
use zmove_receiver::TransferMeter;
use zmove_receiver::{Grants, Limits};
use zmove_receiver::{Session, run_session};

mod authorizing;
mod leaving;
mod waiting;

use waiting::Waiter;

/// Maximum time for interrupted transfers to clean up.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time that a lane waits for its control connection to be opened.
const EARLY_LANE_TIMEOUT: Duration = Duration::from_secs(10);
const RUNNING_ALREADY: &str = "a transfer with that id is already running";
/// Pause after the system has refused to accept a connection, for example because no descriptors are left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A listening daemon.
pub struct Daemon {
    shared: Arc<Shared>,
    pending: PendingHandshakes,
}

struct Shared {
    /// True when the daemon stops. Each transfer watches it.
    stopping: watch::Sender<bool>,
    listener: Listener,
    authorizer: Arc<Authorizer>,
    config: ReceiverConfig,
    admissions: Admissions,
    transfers: Arc<Transfers>,
    /// True once the daemon abandons the transfers that have not ended. Each transfer watches it.
    leaving: watch::Sender<bool>,
    /// True when new transfers are refused while running transfers continue. Each queued transfer watches it.
    draining: watch::Sender<bool>,
    registry: Registry,
    rates: Arc<Rates>,
    quotas: Arc<Quotas>,
    run_leases: RunLeasesByKey,
    authorizer_threads: AuthorizerThreads,
    /// The state of copies between hosts. `None` if this daemon makes no copies.
    copies: Option<Arc<Copies>>,
    log: Box<dyn Fn(&DaemonEvent) + Send + Sync>,
}

/// A transfer that has its slot and is about to begin.
struct AdmittedTransfer<'a> {
    who: PeerInfo,
    live: &'a ActiveTransfer,
    control: PeerControl,
    slot: Slot,
    authorized: Authorized,
    greeting: Greeting,
}

impl Daemon {
    /// Creates a daemon on a listening socket.
    pub fn new(
        listener: Listener,
        authorizer: Authorizer,
        config: ReceiverConfig,
        log: impl Fn(&DaemonEvent) + Send + Sync + 'static,
    ) -> Self {
        let shared = Shared {
            listener,
            authorizer: Arc::new(authorizer),
            config,
            admissions: Admissions::new(Limits::default()),
            transfers: Arc::default(),
            draining: watch::Sender::new(false),
            leaving: watch::Sender::new(false),
            registry: Registry::default(),
            rates: Arc::default(),
            quotas: Arc::default(),
            run_leases: RunLeasesByKey::default(),
            authorizer_threads: AuthorizerThreads::default(),
            copies: None,
            log: Box::new(log),
            stopping: watch::Sender::new(false),
        };
        Self {
            shared: Arc::new(shared),
            pending: PendingHandshakes::default(),
        }
    }

    /// Enables the daemon to make copies between hosts and to issue grants for them.
    ///
    /// # Panics
    /// Panics if the daemon is already serving.
    #[must_use]
    pub fn with_copies(mut self, copies: Arc<Copies>) -> Self {
        Arc::get_mut(&mut self.shared)
            .expect("nobody else has it before it serves")
            .copies = Some(copies);
        self
    }

    /// Returns the current limits.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.shared.admissions.limits()
    }

    /// Replaces the limits. Active transfers stay admitted, even if they exceed the new limits.
    pub fn set_limits(&self, limits: Limits) {
        self.shared.admissions.set_limits(limits);
    }

    /// Returns this daemon's transfers.
    #[must_use]
    pub fn transfers(&self) -> Arc<Transfers> {
        Arc::clone(&self.shared.transfers)
    }

    /// Refuses new transfers from now on and waits until the running transfers have ended.
    pub async fn drain(&self) {
        self.shared.draining.send_replace(true);
        self.shared.admissions.idle().await;
    }

    /// Serves until `stop` resolves. Then closes the listening sockets, interrupts the running transfers, and waits up
    /// to ten seconds for them to clean up. Returns whether all transfers have ended.
    pub async fn serve(&self, stop: impl Future<Output = ()>) -> bool {
        let moving = self.pending.evict_late_handshakes();
        let pace = self.shared.transfers.update_rates();
        tokio::pin!(stop, moving, pace);
        loop {
            tokio::select! {
                () = self.accept_one() => {}
                () = &mut moving => {}
                () = &mut pace => {}
                () = &mut stop => break,
            }
        }
        self.shared.listener.stop_listening();
        self.shared.stopping.send_replace(true);
        let ended = tokio::time::timeout(STOP_TIMEOUT, self.shared.stopping.closed()).await;
        self.shared.listener.close();
        ended.is_ok()
    }

    async fn accept_one(&self) {
        let incoming = match self.shared.listener.accept().await {
            Ok(incoming) => incoming,
            Err(error) => {
                (self.shared.log)(&DaemonEvent::Accept { error });
                return tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        };
        let max = self.limits().unproven;
        // While many handshakes are pending, a QUIC client must prove that it owns its address.
        let crowded = self.pending.count() > max / 2;
        let asked = if crowded {
            incoming.send_retry()
        } else {
            Some(incoming)
        };
        let Some(incoming) = asked else { return };
        let address = incoming.address();
        let shared = Arc::clone(&self.shared);
        let place = self.pending.enter(address.ip(), max);
        tokio::spawn(async move {
            let Ok(mut place) = place.await else {
                return shared.reject(Rejection::Crowded, address, crowded_reason(max));
            };
            let proven = tokio::select! {
                proven = shared.prove(incoming, place.on_first_message()) => proven,
                () = place.evicted() => return shared.reject(Rejection::Crowded, address, crowded_reason(max)),
            };
            drop(place);
            if let Some((channel, authorized)) = proven {
                shared.admit(channel, authorized).await;
            }
        });
    }
}

impl Shared {
    fn reject(&self, kind: Rejection, address: SocketAddr, reason: impl fmt::Display) {
        (self.log)(&DaemonEvent::Rejected {
            kind,
            address,
            reason: reason.to_string(),
        });
    }

    /// Performs the handshake, in which the peer proves its key, and then authorizes the peer.
    async fn prove(
        &self,
        incoming: Incoming,
        spoken: impl FnOnce(),
    ) -> Option<(Channel, Authorized)> {
        let address = incoming.address();
        let patience = self.admissions.limits().unproven_time;
        let channel = match self.listener.handshake(incoming, patience, spoken).await {
            Ok(channel) => channel,
            Err(AcceptError::Unused) => return None,
            Err(error) => {
                self.reject(Rejection::Handshake, address, error);
                return None;
            }
        };
        match self.authorize(channel.claim(), address).await {
            Ok(authorized) => Some((channel, authorized)),
            Err(refusal) => {
                refuse(channel, refusal).await;
                None
            }
        }
    }

    /// Reads the greeting and handles the connection according to the role in the greeting.
    async fn admit(self: Arc<Self>, mut stream: Channel, authorized: Authorized) {
        let address = stream.address();
        let key = self.charged_key(stream.peer(), &authorized);
        let waiting = match self.admissions.wait(key) {
            Ok(waiting) => waiting,
            Err(full) => return self.refuse_full(stream, full).await,
        };
        let mut greeting = [0; Greeting::BYTES];
        let patience = self.admissions.limits().unproven_time;
        match tokio::time::timeout(patience, stream.read_exact(&mut greeting)).await {
            Ok(Ok(_)) => {}
            // Not an error. On a short path, a client dials more lanes than it needs and closes the unused lanes.
            Ok(Err(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => return,
            Ok(Err(error)) => return self.reject(Rejection::Greeting, address, error),
            Err(_) => return self.reject(Rejection::Greeting, address, "no greeting in time"),
        }
        let greeting = match Greeting::decode(&greeting) {
            Ok(greeting) => greeting,
            Err(error) => {
                self.reject(Rejection::Greeting, address, error);
                // Our greeting tells the peer which version this host supports.
                let ours = Greeting::new(Role::Control, TransferId([0; 16]));
                return send_and_close(&self.admissions, stream, &ours.encode()).await;
            }
        };
        match greeting.role {
            _ if greeting.cipher == Cipher::None && stream.transport() == Transport::Quic => {
                let reason =
                    "the peer asked for unencrypted lanes over QUIC, which is always encrypted";
                self.refuse_and_log(Rejection::Clear, stream, reason, denied(CLEAR_QUIC))
                    .await;
            }
            _ if greeting.cipher == Cipher::None && !self.config.allow_clear => {
                let reason = "the peer asked for unencrypted lanes, which require 'zmove serve --allow-clear'";
                self.refuse_and_log(Rejection::Clear, stream, reason, denied(CLEAR_LANES))
                    .await;
            }
            Role::Control | Role::Fetch => {
                drop(waiting);
                self.run_control(stream, authorized, greeting).await;
            }
            Role::Lane(_) => {
                self.hand_over_lane(stream, address, authorized, greeting)
                    .await
            }
        }
    }

    /// Returns the key to which a peer's connections and transfers are charged. This is the peer's own key, or the key
    /// of a client whose grant authorizes the peer. Once the peer has chosen a grant, its transfer is charged to the
    /// quota of the client that issued the grant.
    fn charged_key(&self, peer: Fingerprint, authorized: &Authorized) -> Fingerprint {
        let clients = authorized.by_grants_of.iter().map(|granter| granter.key);
        self.admissions
            .least_used(clients, |key| self.quotas.is_crowded(key))
            .unwrap_or(peer)
    }

    async fn run_control(&self, stream: Channel, authorized: Authorized, greeting: Greeting) {
        let address = stream.address();
        let key = stream.peer();
        if *self.draining.borrow() {
            return self.refuse_while_stopping(stream).await;
        }
        let place = match self.admissions.enqueue(self.charged_key(key, &authorized)) {
            Ok(place) => place,
            Err(full) => return self.refuse_full(stream, full).await,
        };
        let who = authorized.who(address, key);
        let entered =
            self.transfers
                .enter(greeting.transfer, who.clone(), authorized.rights.rate_max);
        let live = &*entered.live;
        if let Err(error) = stream.set_unacknowledged_max(CONTROL_SILENCE_MAX) {
            return self.reject(Rejection::Transfer, address, error);
        }
        let probe = stream.probe();
        let open_window = stream.control_window();
        let claim = stream.claim();
        let (mut reader, writer) = control_pair(stream);
        reader.listen();
        let waiter = Waiter {
            control: PeerControl { reader, writer },
            probe: &probe,
            live,
        };
        let seated = self.wait_in_queue(waiter, place, who.clone(), greeting);
        let Some((control, slot, told)) = seated.await else {
            return;
        };
        let ours = Greeting::new(Role::Control, greeting.transfer);
        let ours = told.is_none().then_some(&ours);
        let again = self.authorize_again(claim.clone(), address, control, ours);
        let Some((control, authorized)) = again.await else {
            return;
        };
        open_window();
        let has_waited = told.is_some();
        let register = |lanes_in| match told {
            Some(registered) => {
                registered.begin(lanes_in);
                Some(registered)
            }
            None => self.registry.enter(key, greeting.transfer, Some(lanes_in)),
        };
        // The channel has room for more lanes than were granted. Lanes may greet in any order, and some greet before
        // the sender knows how many lanes were granted.
        let room = usize::from(slot.portion.lanes.max(2 * LANES_UNREQUESTED_MAX));
        let admitted = AdmittedTransfer {
            who,
            live,
            control,
            slot,
            authorized,
            greeting,
        };
        if greeting.role == Role::Fetch {
            let (lanes_in, lanes) = mpsc::channel(room);
            if let Some(_registered) = register(LanesIn::Sending(lanes_in)) {
                return self.run_sending(admitted, lanes, claim, has_waited).await;
            }
        } else {
            let (lanes_in, lanes) = mpsc::channel(room);
            let rate = SharedRate::default();
            if let Some(_registered) = register(LanesIn::Receiving(lanes_in, rate.clone())) {
                return self.run_transfer(admitted, lanes, rate, probe).await;
            }
        }
        self.reject(Rejection::Transfer, address, RUNNING_ALREADY);
    }

    /// Refuses a transfer that was opened while this daemon is stopping.
    async fn refuse_while_stopping(&self, stream: Channel) {
        let reason = "this receiver is being stopped";
        self.refuse_and_log(
            Rejection::Stopping,
            stream,
            reason,
            StopReason::Stopping.refusal(),
        )
        .await;
    }

    /// Resolves when the daemon, the operator or an expired grant ends the transfer.
    fn cut_off(&self, live: &ActiveTransfer) -> impl Future<Output = StopReason> {
        let mut stopping = self.stopping.subscribe();
        async move {
            tokio::select! {
                _ = stopping.wait_for(|stopping| *stopping) => StopReason::Stopping,
                cut = live.stop_requested() => cut,
            }
        }
    }

    /// Records and logs the start of a transfer. A stopping daemon waits until all returned receivers are dropped, so
    /// that interrupted transfers can remove their unfinished files.
    fn begin(
        &self,
        live: &ActiveTransfer,
        direction: Direction,
        who: &PeerInfo,
    ) -> watch::Receiver<bool> {
        let until_it_has_ended = self.stopping.subscribe();
        live.set_running(direction);
        (self.log)(&DaemonEvent::Begun { who: who.clone() });
        until_it_has_ended
    }

    async fn run_transfer(
        &self,
        AdmittedTransfer {
            who,
            live,
            control,
            slot,
            authorized,
            greeting,
        }: AdmittedTransfer<'_>,
        lanes: mpsc::Receiver<Box<dyn LaneSource>>,
        rate: SharedRate,
        connection: PathProbe,
    ) {
        let _until_it_has_ended = self.begin(live, Direction::Receive, &who);
        let started = Instant::now();
        let node = authorized.node;
        let access = authorized.rights.access.clone();
        let quota = self.quotas.of(slot.key(), &self.admissions.limits());
        let config = ReceiverConfig {
            lanes_max: slot.portion.lanes,
            buffers_max: self.config.buffers_max.min(slot.portion.buffers),
            memory_max: slot.portion.buffers,
            rights: authorized.rights,
            file_io: quota.file_io(&self.config.file_io),
            quota,
            grants: self.grants(&who, live, node.clone(), rate),
            meter: Arc::clone(&live.meter),
            ..self.config.clone()
        };
        let session = Session {
            connection,
            run_leases: self.run_leases.of(who.key),
            config,
            ..Session::new(greeting.transfer, (control.reader, control.writer), lanes)
        };
        let stop = async {
            tokio::select! {
                cut = self.cut_off(live) => cut.of_receiver(),
                () = await_grant_expiry(node) => StopReason::GrantOver.of_receiver(),
            }
        };
        let ended = tokio::select! {
            ended = run_session(session, stop) => ended,
            () = self.abandoned() => return self.abandon(who, live, started, Some(&access)),
        };
        let moved = moved(&live.meter, started.elapsed());
        let end = match ended {
            Ok(_) if moved.probed.is_some() => TransferEnd::Probed,
            Ok(report) => TransferEnd::Received {
                cipher: greeting.cipher,
                report,
            },
            Err(error) => TransferEnd::Broken(error),
        };
        self.log_end(who, moved, end);
    }

    /// Returns the grants by which a peer may open a transfer. `rate` is the shared rate of the transfer's lanes.
    fn grants(
        &self,
        who: &PeerInfo,
        live: &ActiveTransfer,
        node: Option<Arc<NodeGrant>>,
        rate: SharedRate,
    ) -> Option<Arc<dyn Grants>> {
        let resources = SessionResources {
            rate,
            rates: Arc::clone(&self.rates),
            quotas: Arc::clone(&self.quotas),
            limits: self.admissions.limits(),
            granter: Arc::clone(&live.granter),
        };
        let authorizer = Arc::clone(&self.authorizer);
        match node {
            Some(grant) => Some(Arc::new(NodeSession {
                grant,
                authorizer,
                resources,
            })),
            None => {
                let copies = self.copies.clone()?;
                Some(PeerGrants::new(copies, authorizer, who.key, resources) as Arc<dyn Grants>)
            }
        }
    }

    async fn run_sending(
        &self,
        AdmittedTransfer {
            who,
            live,
            control,
            slot,
            authorized,
            greeting,
        }: AdmittedTransfer<'_>,
        lanes: mpsc::Receiver<Result<Box<dyn LaneSink>, LaneError>>,
        claim: Claim,
        has_waited: bool,
    ) {
        let _until_it_has_ended = self.begin(live, Direction::Send, &who);
        let started = Instant::now();
        let limits = self.admissions.limits();
        let session = SendingSession {
            transfer: greeting.transfer,
            cipher: greeting.cipher,
            control,
            lanes,
            claim,
            authorizer: Arc::clone(&self.authorizer),
            copies: self.copies.clone(),
            run_leases: self.run_leases.of(who.key),
            has_waited,
            share: KeyShare {
                quota: self.quotas.of(slot.key(), &limits),
                portion: slot.portion,
                rate: authorized
                    .rights
                    .rate_max
                    .map(|limit| self.rates.of(who.key, limit)),
                plan_bytes: sending::plan_bytes(&limits),
                config: self.config.clone(),
            },
            authorized,
            meter: Arc::clone(&live.meter),
        };
        // Boxed so that a waiting connection does not use as much memory as a session.
        let answering = Box::pin(answering::answer(session, self.cut_off(live)));
        let ended = tokio::select! {
            ended = answering => ended,
            () = self.abandoned() => return self.abandon(who, live, started, None),
        };
        let moved = moved(&live.meter, started.elapsed());
        match ended {
            Ok(Sent::Files(summary)) => {
                let end = TransferEnd::Sent {
                    cipher: greeting.cipher,
                    failed: summary.counters.failed,
                };
                self.log_end(who, moved.with_sender_counts(&summary.counters), end);
            }
            Ok(Sent::Copied(to, summary)) => {
                let failed = summary.counters.failed;
                let end = TransferEnd::Copied { to, failed };
                self.log_end(who, moved.with_sender_counts(&summary.counters), end);
            }
            Ok(Sent::Granted { source, target }) => (self.log)(&DaemonEvent::Granted {
                who,
                source,
                target,
            }),
            Ok(Sent::Answered) => {}
            Err(error) => self.log_end(who, moved, TransferEnd::SendingBroken(error)),
        }
    }

    /// Logs the end of a transfer.
    fn log_end(&self, who: PeerInfo, moved: Moved, end: TransferEnd) {
        (self.log)(&DaemonEvent::Ended(EndedTransfer { who, moved, end }));
    }

    async fn refuse_full(&self, stream: Channel, full: impl fmt::Display) {
        let text = format!("{full}; try again later");
        let refusal = Refusal::new(RefusalCode::Full, &text);
        self.refuse_and_log(Rejection::Limit, stream, text, refusal)
            .await;
    }

    /// Refuses an authorized peer and logs the reason.
    async fn refuse_and_log(
        &self,
        kind: Rejection,
        peer: Channel,
        reason: impl fmt::Display,
        refusal: Refusal,
    ) {
        self.reject(kind, peer.address(), reason);
        refuse_peer(&self.admissions, peer, refusal).await;
    }

    async fn hand_over_lane(
        &self,
        stream: Channel,
        address: SocketAddr,
        authorized: Authorized,
        greeting: Greeting,
    ) {
        let key = stream.peer();
        let lanes = match self
            .registry
            .find(key, greeting.transfer, EARLY_LANE_TIMEOUT)
            .await
        {
            LaneLookup::Lanes(lanes) => lanes,
            // The sender dialed this lane before it knew that its transfer is queued. Alternatively, the transfer has
            // ended and does not need this lane.
            LaneLookup::Queued | LaneLookup::Ended => return,
            LaneLookup::Nothing => {
                let reason = "a lane for a transfer that its key has not opened";
                return self.reject(Rejection::Transfer, address, reason);
            }
        };
        // The channel has room for a few lanes that wait for other lanes to end. If the channel is closed, the transfer
        // has ended and does not need this lane.
        let is_one_too_many = match lanes {
            LanesIn::Receiving(lanes, rate) => {
                let rate = authorized
                    .rights
                    .rate_max
                    .map_or(rate, |limit| self.rates.of(key, limit));
                stream
                    .into_source(greeting.cipher, rate)
                    .map(|lane| matches!(lanes.try_send(lane), Err(TrySendError::Full(_))))
            }
            LanesIn::Sending(lanes) => stream
                .into_sink(greeting.cipher, LANES_UNREQUESTED_MAX)
                .map(|lane| matches!(lanes.try_send(Ok(lane)), Err(TrySendError::Full(_)))),
        };
        match is_one_too_many {
            Ok(true) => self.reject(
                Rejection::Transfer,
                address,
                "too many lanes for its transfer",
            ),
            Ok(false) => {}
            Err(error) => self.reject(Rejection::Transfer, address, error),
        }
    }
}

fn denial_refusal(peer: Fingerprint, denial: &Denial) -> Refusal {
    let text = match denial {
        Denial::Expired { name, expires, .. } => format!(
            "the permission of this key expired at {expires}. On the receiving host, run: zmove allow {peer} --name {name} \
             --root DIR --expires DATE"
        ),
        Denial::JobGrant { fault, .. } => {
            format!("the grant of this node is not valid: {fault}")
        }
        Denial::Certificate { fault, .. } => format!("this key may not be used here: {fault}"),
        Denial::Authority { .. } => {
            let text = "the receiver cannot read the files of its site's authority; see its log";
            return Refusal::new(RefusalCode::Busy, text);
        }
        _ => format!(
            "this key is not known here. On the receiving host, run: zmove allow {peer} --name NAME --root DIR --write"
        ),
    };
    Refusal::new(RefusalCode::UnknownKey, text)
}

/// Resolves when the grant of a node has expired. Never resolves for other peers.
async fn await_grant_expiry(node: Option<Arc<NodeGrant>>) {
    match node {
        Some(grant) => grant.await_expiry().await,
        None => std::future::pending().await,
    }
}

/// Joins the text of an error and the texts of its causes. Omits a cause if the joined text already ends with the same
/// words.
fn with_causes(error: &dyn Error) -> String {
    let causes =
        std::iter::successors(error.source(), |&cause| cause.source()).map(ToString::to_string);
    causes.fold(error.to_string(), |told, cause| {
        if told.ends_with(&cause) {
            told
        } else {
            format!("{told}: {cause}")
        }
    })
}

const CLEAR_LANES: &str = "this receiver refuses unencrypted data: omit '--cipher none', or start it with 'zmove \
                           serve --allow-clear'";
const CLEAR_QUIC: &str = "QUIC is always encrypted: omit '--cipher none', or use '--transport tcp'";

fn crowded_reason(max: usize) -> String {
    format!(
        "dropped to admit other connections: {max} connections had not proved a key (limits.unproven)"
    )
}

fn moved(meter: &TransferMeter, elapsed: Duration) -> Moved {
    let reading = meter.reading();
    Moved {
        target: meter.target().map(<[u8]>::to_vec),
        bytes: reading.bytes + reading.sent_bytes,
        probed: meter.probed(),
        files: reading.files + reading.sent_files,
        elapsed,
        failures: meter.failures(),
    }
}

impl fmt::Debug for Daemon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Daemon({:?})", self.shared.listener)
    }
}
