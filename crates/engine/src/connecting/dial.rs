//! Establishes a [`Link`] to a host. Checks the host's key, starts a receiver with ssh if no daemon runs there, and
//! dials the control connection and the lanes.

mod choice;
mod host_key;
mod lanes;
mod machine;
mod over_ssh;
mod path_watch;
mod plan;

use std::fmt;
use std::path::Path;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use zmove_receiver::unless_stopped;
use zmove_sender::{LaneDemand, LearnedSettings, Link, SessionError, Summary};
use zmove_transport::{
    BlackHole, CONTROL_SILENCE_MAX, Channel, ChannelDialer, DialOptions, FirstKey, Identity,
    KnownHosts, LaneSink, PathEnds, PathProbe, Resumption, SavedWindow, Transport, TransportChoice,
};
use zmove_wire::Receipt;

use self::host_key::HostKey;
use self::lanes::dial_all;
use self::path_watch::PathWatch;
use self::plan::LanePlan;
use crate::connecting::location::Remote;
use crate::connecting::path_memory::{PathMeasurement, PathMemory, PathRecord, Window};
use crate::connecting::settings::{DIAL_TIMEOUT, DialSettings, PathCheck};
use crate::connecting::ssh::SshSession;
use crate::error::{ConnectError, PushError};
use crate::notice::{Listener, Notice};

use machine::{lanes_for, quic_lanes};

pub use self::lanes::LaneEnd;
pub use machine::{LANES_AT_ONCE, LOCAL_RTT, RATE_TARGET, lanes_for_machine};

/// The parameters for connecting to a receiver.
#[derive(Clone, Copy)]
pub struct Connector<'a> {
    /// The directory with this side's key, the pinned keys and the path memory.
    pub home: &'a Path,
    /// The receiver.
    pub remote: &'a Remote,
    /// The connection settings.
    pub settings: &'a DialSettings,
    /// Receives notices about pinned keys and about an unusable path memory.
    pub listener: &'a dyn Listener,
}

/// A connected host, with lanes whose local ends are of type `L`. By default, the local ends send.
#[derive(Debug)]
pub struct ConnectedHost<L = Box<dyn LaneSink>> {
    /// The control connection and the lanes. Further lanes may still connect.
    pub link: Link<L>,
    /// A probe that measures the control connection.
    pub(crate) connection: PathProbe,
    /// The route to the host.
    pub route: Route,
}

/// The route that a session uses. It is closed when the session is over, and its measurements are remembered.
#[derive(Debug)]
pub struct Route {
    /// Transport of the control connection and the lanes.
    pub transport: Transport,
    /// Dialer of all connections.
    dialer: ChannelDialer,
    watch: PathWatch,
    /// The ssh process that started the receiver, or `None` for a daemon.
    ssh: Option<SshSession>,
    /// The remembered properties of the path, as they were before the session.
    recalled: PathRecall,
    round_trip: Duration,
    ends: Option<PathEnds>,
    /// Whether a rate limit is set. The measured rate then does not reflect the path.
    limited: bool,
    /// Time spent waiting for answers from the user before the host was reached. It does not count as transfer time.
    asked: Duration,
}

/// The result of a transfer.
#[derive(Clone, Debug)]
pub struct Transferred {
    /// Summary of the transfer.
    pub summary: Summary,
    /// The transport of the last session with this process. `None` if all data stayed inside this process, or went
    /// directly from one other host to another.
    pub transport_use: Option<TransportUse>,
    /// Receipt signed by the target host of a copy between two other hosts. `None` for other transfers and for a dry
    /// run.
    pub receipt: Option<Receipt>,
}

impl From<Summary> for Transferred {
    fn from(summary: Summary) -> Self {
        Self {
            summary,
            transport_use: None,
            receipt: None,
        }
    }
}

/// The transport of a transfer's last session.
#[derive(Clone, Copy, Debug)]
pub struct TransportUse {
    /// Transport.
    pub transport: Transport,
    /// Whether and how QUIC used the remembered window.
    pub resumption: Resumption,
}

impl Connector<'_> {
    /// Connects for a session, and notifies the listener that the session begins. Gives up once `stop` resolves. `need`
    /// limits the number of lanes to the number that the session can use.
    ///
    /// # Errors
    /// The receiver cannot be reached, or `stop` has resolved.
    pub async fn open<L: LaneEnd>(
        &self,
        need: Option<&LaneDemand>,
        stop: impl Future<Output = ()>,
    ) -> Result<ConnectedHost<L>, PushError> {
        let reached = unless_interrupted(stop, Box::pin(self.connect(need))).await?;
        self.listener.hear(&Notice::SessionBegins {
            transfer: Some(reached.link.transfer),
        });
        Ok(reached)
    }

    /// Dials the control connection and the lanes. Further lanes continue to connect after this returns. `need` limits
    /// the number of lanes to the number that the push can use.
    ///
    /// # Errors
    /// The receiver cannot be reached, the receiver has an unexpected key, or this side's own keys cannot be used.
    pub async fn connect<L: LaneEnd>(
        &self,
        need: Option<&LaneDemand>,
    ) -> Result<ConnectedHost<L>, ConnectError> {
        match &self.remote.login {
            Some(login) => self.connect_over_ssh(login, need).await,
            None => self
                .connect_to_daemon(need)
                .await
                .inspect_err(|_| self.notify_path_like_port()),
        }
    }

    /// Dials only the control connection, for an exchange of messages without data.
    pub(crate) async fn connect_control(&self) -> Result<(Channel, ChannelDialer), ConnectError> {
        self.dial_control()
            .await
            .inspect_err(|_| self.notify_path_like_port())
    }

    async fn dial_control(&self) -> Result<(Channel, ChannelDialer), ConnectError> {
        let Self {
            remote, settings, ..
        } = *self;
        let identity = self.identity()?;
        let first_key = FirstKey::default();
        let HostKey { policy, .. } = self.host_policy(&identity, &first_key).await?;
        let reach = settings.reach.clone();
        let dialled = self.with_dial_notice(Box::pin(async {
            let dialer =
                ChannelDialer::new(&identity, &remote.host, remote.port, policy, reach).await?;
            // Without lanes, no stall would reveal a black hole, so the path is checked now.
            dialer.check_path().await;
            Ok::<_, ConnectError>((dialer.dial(DIAL_TIMEOUT).await?, dialer))
        }));
        let (channel, dialer) = dialled.await?;
        self.notify_black_hole(&dialer);
        self.pin(&first_key)?;
        channel
            .set_unacknowledged_max(CONTROL_SILENCE_MAX)
            .map_err(ConnectError::Control)?;
        Ok((channel, dialer))
    }

    /// Returns the identity of this side, including the job grant if there is one.
    fn identity(&self) -> Result<Identity, ConnectError> {
        let identity = match &self.settings.identity {
            Some(identity) => identity.clone(),
            None => Identity::load_or_create(self.home)?,
        };
        Ok(match &self.settings.job_grant {
            Some(grant) => identity.with_job_grant(grant),
            None => identity,
        })
    }

    /// Awaits a dial. Notifies the listener if there is no answer after [`NOTICED_AFTER`].
    async fn with_dial_notice<T>(&self, mut dial: impl Future<Output = T> + Unpin) -> T {
        tokio::select! {
            dialled = &mut dial => return dialled,
            () = tokio::time::sleep(NOTICED_AFTER) => {}
        }
        self.listener.hear(&Notice::Dialling {
            remote: self.remote,
        });
        dial.await
    }

    async fn connect_to_daemon<L: LaneEnd>(
        &self,
        need: Option<&LaneDemand>,
    ) -> Result<ConnectedHost<L>, ConnectError> {
        let remote = self.remote;
        let identity = self.identity()?;
        let first_key = FirstKey::default();
        let HostKey { policy, asked } = self.host_policy(&identity, &first_key).await?;
        let known = self.recall(need).await;
        let reach = self.reach(&known);
        let reached = self.with_dial_notice(Box::pin(async {
            let dialer =
                ChannelDialer::new(&identity, &remote.host, remote.port, policy, reach).await?;
            self.connect_with(dialer, known, need).await
        }));
        let mut reached = reached.await?;
        reached.route.asked = asked;
        self.pin(&first_key)?;
        Ok(reached)
    }

    fn notify_path_like_port(&self) {
        let Self {
            remote, listener, ..
        } = *self;
        if remote.has_path_like_port() {
            listener.hear(&Notice::PathLikePort { remote });
        }
    }

    /// Pins the key of a previously unknown host after the user has accepted it.
    fn pin(&self, first_key: &FirstKey) -> Result<(), ConnectError> {
        let Self {
            home,
            remote,
            listener,
            ..
        } = *self;
        if let Some(key) = first_key.get() {
            KnownHosts::open(home)?.pin(&remote.host, remote.port, key)?;
            listener.hear(&Notice::KeyPinned { remote, key });
        }
        Ok(())
    }

    /// Reads the remembered properties of the path. If QUIC will use the remembered window, the window is removed from
    /// the memory.
    async fn recall(&self, need: Option<&LaneDemand>) -> PathRecall {
        let Self {
            home,
            remote,
            settings,
            listener,
        } = *self;
        let paths = PathMemory::of(home, remote);
        let known = paths.recall(listener);
        let quic_first = choice::quic_head_start(settings, known, need).await;
        let by_quic = quic_first.is_some() || settings.reach.transport == TransportChoice::Quic;
        let window = known.and_then(|known| known.window).filter(|_| by_quic);
        if let Some(known) = known.filter(|_| window.is_some()) {
            paths.take_window(known, listener);
        }
        PathRecall {
            paths,
            known,
            quic_first,
            window,
        }
    }

    fn reach(
        &self,
        PathRecall {
            quic_first, window, ..
        }: &PathRecall,
    ) -> DialOptions {
        let connections = self.settings.streams.unwrap_or_else(quic_lanes);
        let saved = window.map(
            |Window {
                 bytes,
                 round_trip,
                 ends,
                 ..
             }| SavedWindow {
                bytes,
                round_trip,
                ends,
                connections,
            },
        );
        DialOptions {
            saved,
            quic_first: *quic_first,
            ..self.settings.reach.clone()
        }
    }

    async fn connect_with<L: LaneEnd>(
        &self,
        dialer: ChannelDialer,
        recalled: PathRecall,
        need: Option<&LaneDemand>,
    ) -> Result<ConnectedHost<L>, ConnectError> {
        if self.settings.path_check == PathCheck::First {
            dialer.check_path().await;
        }
        let plan = LanePlan::new(self.settings, &recalled, need.cloned());
        let reached = dial_all(dialer, self.settings, plan, recalled).await?;
        self.notify_black_hole(&reached.route.dialer);
        Ok(reached)
    }

    /// Notifies the listener if the segment size was reduced before or during the handshake.
    fn notify_black_hole(&self, dialer: &ChannelDialer) {
        if let Some(cause) = &dialer.black_hole() {
            self.listener.hear(&Notice::BlackHole { cause });
        }
    }
}

/// Time without an answer after which the user is notified.
const NOTICED_AFTER: Duration = Duration::from_millis(700);

/// The remembered properties of the path, read before dialing.
#[derive(Debug)]
struct PathRecall {
    paths: PathMemory,
    known: Option<PathRecord>,
    /// How long QUIC is tried alone before TCP is dialed, or `None` if QUIC is not tried first.
    quic_first: Option<Duration>,
    /// Remembered window for QUIC.
    window: Option<Window>,
}

impl fmt::Debug for Connector<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            home,
            remote,
            settings,
            ..
        } = self;
        let mut shown = f.debug_struct("Connector");
        shown
            .field("home", home)
            .field("remote", remote)
            .field("settings", settings)
            .finish_non_exhaustive()
    }
}

impl Route {
    /// Returns the time spent waiting for answers from the user before the host was reached.
    #[must_use]
    pub const fn asked(&self) -> Duration {
        self.asked
    }

    /// Closes all connections. Returns the black hole that ended the session, if any. The next session uses small
    /// segments.
    pub async fn close(&self) -> Option<&BlackHole> {
        self.watch.stop();
        self.dialer.close().await;
        self.watch.found()
    }

    /// Ends a session with the given result. Closes all connections. After a successful session, waits until a receiver
    /// that ssh started has exited.
    ///
    /// # Errors
    /// Returns the error of the session, or the black hole that caused it.
    pub async fn end<T>(self, ended: Result<T, impl Into<PushError>>) -> Result<T, PushError> {
        let done = self.close_after(ended).await?;
        self.await_ssh().await;
        Ok(done)
    }

    /// Like [`end`](Self::end), and stores the measurements of the path after a successful session.
    pub(crate) async fn finish(
        self,
        ended: Result<Summary, PushError>,
        listener: &dyn Listener,
    ) -> Result<Transferred, PushError> {
        let summary = self.close_after(ended).await?;
        let resumption = self.dialer.resumption();
        self.remember_measurements(&summary, resumption, listener);
        let transport_use = TransportUse {
            transport: self.transport,
            resumption,
        };
        self.await_ssh().await;
        Ok(Transferred {
            transport_use: Some(transport_use),
            ..Transferred::from(summary)
        })
    }

    /// Closes all connections. If a black hole caused the loss of the session's connections, returns it as the error.
    async fn close_after<T>(&self, ended: Result<T, impl Into<PushError>>) -> Result<T, PushError> {
        let black_hole = self.close().await;
        let ended = ended.map_err(Into::into);
        ended.map_err(|error: PushError| match black_hole {
            Some(cause) if error.is_lost() => PushError::BlackHole(cause.clone()),
            _ => error,
        })
    }

    async fn await_ssh(self) {
        if let Some(ssh) = self.ssh {
            ssh.end().await;
        }
    }

    /// Stores the measurements of a session in the path memory.
    fn remember_measurements(
        &self,
        summary: &Summary,
        resumption: Resumption,
        listener: &dyn Listener,
    ) {
        let millis = u64::try_from(summary.elapsed.as_millis())
            .unwrap_or(u64::MAX)
            .max(1);
        let rate = summary.counters.bytes * 1000 / millis;
        let learnt = summary.learnt.map(
            |LearnedSettings {
                 lanes,
                 loss_tolerant,
             }| PathRecord::new(lanes, loss_tolerant, self.round_trip, rate),
        );
        let before = self.recalled.known.map(|known| PathRecord {
            bytes_per_second: rate,
            ..known
        });
        let by_quic = || PathRecord::new(lanes_for(self.round_trip), false, self.round_trip, rate);
        let known = match self.transport {
            // Even without tuning, the path memory must record that the window was removed and whether QUIC failed.
            Transport::Tcp => learnt.or(before),
            Transport::Quic => before.or_else(|| Some(by_quic())),
            // The memory is about the path of direct lanes.
            Transport::Ssh => None,
        };
        let Some(known) = known else { return };
        self.recalled
            .paths
            .keep(self.with_rates(known, summary, resumption), listener);
    }

    /// Returns `known` with the remembered rates and window, updated with the measurements of this session.
    fn with_rates(
        &self,
        known: PathRecord,
        summary: &Summary,
        resumption: Resumption,
    ) -> PathRecord {
        // Another push may have stored a window since this session read the file.
        let before = self.recalled.paths.known();
        let window = before
            .and_then(|known| known.window)
            .or(self.recalled.known.and_then(|known| known.window));
        let mut rates = before
            .or(self.recalled.known)
            .map(|known| known.rates)
            .unwrap_or_default();
        if self.recalled.quic_first.is_some() && self.transport == Transport::Tcp {
            rates.quic = Some(0);
        }
        let lost = summary
            .path
            .as_ref()
            .is_some_and(|path| path.bytes_retransmitted > 0);
        let found = PathMeasurement {
            transport: self.transport,
            at_best: summary.at_best.filter(|_| !self.limited),
            ends: self.ends,
            has_lost: lost || resumption.is_refuted,
        };
        PathRecord {
            rates,
            window,
            ..known
        }
        .updated_with(&found)
    }
}

/// Awaits a dial. Returns the error `silent` if the dial does not end before `until`.
pub(crate) async fn in_time<T>(
    until: Option<Instant>,
    silent: impl Into<PushError>,
    dial: impl Future<Output = Result<T, PushError>>,
) -> Result<T, PushError> {
    match until {
        Some(until) => timeout_at(until, dial)
            .await
            .unwrap_or_else(|_elapsed| Err(silent.into())),
        None => dial.await,
    }
}

/// Awaits one step of a session. Fails once `stop` resolves.
pub(crate) async fn unless_interrupted<T, E: Into<PushError>>(
    stop: impl Future<Output = ()>,
    step: impl Future<Output = Result<T, E>>,
) -> Result<T, PushError> {
    match unless_stopped(stop, step).await {
        Ok(done) => done.map_err(E::into),
        Err(()) => Err(SessionError::Interrupted.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[derive(Default)]
    struct Dials(AtomicUsize);

    impl Listener for Dials {
        fn hear(&self, notice: &Notice<'_>) {
            assert!(matches!(notice, Notice::Dialling { .. }));
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_dial_that_takes_its_time_is_announced_once() {
        let remote = Remote {
            login: None,
            host: "dtn".into(),
            port: 1,
            path: Vec::new(),
        };
        let (settings, listener) = (DialSettings::default(), Dials::default());
        let connector = Connector {
            home: Path::new("/"),
            remote: &remote,
            settings: &settings,
            listener: &listener,
        };
        connector
            .with_dial_notice(Box::pin(tokio::time::sleep(NOTICED_AFTER / 2)))
            .await;
        assert_eq!(listener.0.load(Ordering::Relaxed), 0);
        connector
            .with_dial_notice(Box::pin(tokio::time::sleep(NOTICED_AFTER * 9)))
            .await;
        assert_eq!(listener.0.load(Ordering::Relaxed), 1);
    }
}
