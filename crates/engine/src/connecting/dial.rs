//! The way from a host to a [`Link`]: the host's key, ssh where no daemon runs, control, and lanes.

mod choice;
mod host_key;
mod lanes;
mod machine;
mod path_watch;
mod plan;

use std::fmt;
use std::path::Path;
use std::time::Duration;

use zmove_sender::{Learnt, Link, Need, Summary};
use zmove_transport::{
    BlackHole, CONTROL_SILENCE_MAX, Channel, ChannelDialler, FirstKey, HostPolicy, Identity,
    KnownHosts, LaneSink, PathEnds, PathProbe, Reach, Resumption, SavedWindow, Transport,
    TransportChoice,
};

use self::host_key::HostKey;
use self::lanes::dial_all;
use self::path_watch::PathWatch;
use self::plan::LanePlan;
use crate::connecting::location::{Login, Remote};
use crate::connecting::path_memory::{Found, Known, PathMemory, Window};
use crate::connecting::settings::{DIAL_TIMEOUT, DialSettings, PathCheck};
use crate::connecting::ssh::{self, Duty, SshReceiver, SshSession};
use crate::error::{ConnectError, PushError};
use crate::notice::{Listener, Notice};

use machine::{lanes_for, quic_lanes};

pub use self::lanes::LaneEnd;
pub use machine::{LANES_AT_ONCE, LOCAL_RTT, RATE_TARGET, lanes_for_machine};

/// All that it takes to reach a receiver.
#[derive(Clone, Copy)]
pub struct Connector<'a> {
    /// The directory with this side's key, the pinned keys, and the memory of paths.
    pub home: &'a Path,
    /// The receiver.
    pub remote: &'a Remote,
    /// The settings of its connections.
    pub settings: &'a DialSettings,
    /// The listener for notices about pinned keys and about a memory of paths that is of no use.
    pub listener: &'a dyn Listener,
}

/// A host that has been reached, with lanes of which this side has the ends `L`: those on which it sends, as a rule.
#[derive(Debug)]
pub struct Reached<L = Box<dyn LaneSink>> {
    /// The control connection and the lanes; lanes go on coming up.
    pub link: Link<L>,
    /// A probe of the control connection.
    pub(crate) connection: PathProbe,
    /// The path that was taken.
    pub route: Route,
}

/// The path that was taken: to be closed when the session is over, and to be remembered.
#[derive(Debug)]
pub struct Route {
    /// The transport that carries control and lanes.
    pub transport: Transport,
    /// The endpoint of all connections.
    dialler: ChannelDialler,
    watch: PathWatch,
    /// The ssh that has started the receiver, `None` with a daemon.
    ssh: Option<SshSession>,
    /// What was known of the path before.
    recalled: Recalled,
    round_trip: Duration,
    ends: Option<PathEnds>,
    /// The rate is not the path's.
    limited: bool,
    /// The time for which a user was asked, or may have been, before the host was reached. It is no part of a transfer.
    asked: Duration,
}

/// A transfer with another host that has come to its end.
#[derive(Clone, Debug)]
pub struct Transferred {
    /// The account of what was moved.
    pub summary: Summary,
    /// What has carried it.
    pub carriage: Carriage,
}

/// What has carried the last session of a transfer.
#[derive(Clone, Copy, Debug)]
pub struct Carriage {
    /// The transport.
    pub transport: Transport,
    /// What has become of the window that was remembered.
    pub resumption: Resumption,
}

impl Connector<'_> {
    /// Dials control and lanes; lanes go on coming up after this returns. `need` is the number of lanes that a push can
    /// use.
    ///
    /// # Errors
    /// The receiver cannot be reached, is not the one that was meant, or this side's own keys cannot be used.
    pub async fn connect<L: LaneEnd>(
        &self,
        need: Option<&Need>,
    ) -> Result<Reached<L>, ConnectError> {
        match &self.remote.login {
            Some(login) => self.connect_over_ssh(login, need).await,
            None => self
                .connect_to_daemon(need)
                .await
                .inspect_err(|_| self.tell_of_port()),
        }
    }

    /// Dials control alone, for a conversation without data.
    pub(crate) async fn connect_control(&self) -> Result<(Channel, ChannelDialler), ConnectError> {
        self.dial_control()
            .await
            .inspect_err(|_| self.tell_of_port())
    }

    async fn dial_control(&self) -> Result<(Channel, ChannelDialler), ConnectError> {
        let Self {
            remote, settings, ..
        } = *self;
        let identity = self.identity()?;
        let first_key = FirstKey::default();
        let HostKey { policy, .. } = self.host_policy(&identity, &first_key).await?;
        let reach = settings.reach.clone();
        let dialled = self.announced(Box::pin(async {
            let dialler =
                ChannelDialler::new(&identity, &remote.host, remote.port, policy, reach).await?;
            // No lanes would show a black hole.
            dialler.check_path().await;
            Ok::<_, ConnectError>((dialler.dial(DIAL_TIMEOUT).await?, dialler))
        }));
        let (channel, dialler) = dialled.await?;
        self.tell_of_black_hole(&dialler);
        self.pin(&first_key)?;
        channel
            .set_unacknowledged_max(CONTROL_SILENCE_MAX)
            .map_err(ConnectError::Control)?;
        Ok((channel, dialler))
    }

    /// Tells that a session begins over these connections.
    pub(crate) fn begin_session<L>(&self, link: &Link<L>) {
        self.listener.hear(&Notice::SessionBegins {
            transfer: Some(link.transfer),
        });
    }

    /// The key by which this side proves itself.
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

    /// Waits for a dial, and says so once that is long enough to be noticed.
    async fn announced<T>(&self, mut dial: impl Future<Output = T> + Unpin) -> T {
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
        need: Option<&Need>,
    ) -> Result<Reached<L>, ConnectError> {
        let remote = self.remote;
        let identity = self.identity()?;
        let first_key = FirstKey::default();
        let HostKey { policy, asked } = self.host_policy(&identity, &first_key).await?;
        let known = self.recall(need).await;
        let reach = self.reach(&known);
        let reached = self.announced(Box::pin(async {
            let dialler =
                ChannelDialler::new(&identity, &remote.host, remote.port, policy, reach).await?;
            self.reach_by(dialler, known, need).await
        }));
        let mut reached = reached.await?;
        reached.route.asked = asked;
        self.pin(&first_key)?;
        Ok(reached)
    }

    fn tell_of_port(&self) {
        let Self {
            remote, listener, ..
        } = *self;
        if remote.has_path_like_port() {
            listener.hear(&Notice::PathLikePort { remote });
        }
    }

    /// Pins the key of a host that was not known before and that somebody has agreed to.
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

    async fn connect_over_ssh<L: LaneEnd>(
        &self,
        login: &Login,
        need: Option<&Need>,
    ) -> Result<Reached<L>, ConnectError> {
        let SshReceiver {
            identity,
            key,
            host,
            port,
            session,
            asked,
        } = ssh::start(self.remote, login, self.settings, Duty::Session).await?;
        let policy = HostPolicy::Pinned(key);
        let known = self.recall(need).await;
        let reach = self.reach(&known);
        let dialler = ChannelDialler::new(&identity, &host, port, policy, reach).await?;
        match self.reach_by(dialler, known, need).await {
            Ok(mut reached) => {
                reached.route.ssh = Some(session);
                reached.route.asked = asked;
                Ok(reached)
            }
            Err(error) => Err(ConnectError::BehindSsh {
                host,
                source: Box::new(error),
            }),
        }
    }

    /// What is known of the path; a window that QUIC is to use is taken out of the memory.
    async fn recall(&self, need: Option<&Need>) -> Recalled {
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
        Recalled {
            paths,
            known,
            quic_first,
            window,
        }
    }

    fn reach(
        &self,
        Recalled {
            quic_first, window, ..
        }: &Recalled,
    ) -> Reach {
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
        Reach {
            saved,
            quic_first: *quic_first,
            ..self.settings.reach.clone()
        }
    }

    async fn reach_by<L: LaneEnd>(
        &self,
        dialler: ChannelDialler,
        recalled: Recalled,
        need: Option<&Need>,
    ) -> Result<Reached<L>, ConnectError> {
        if self.settings.path_check == PathCheck::First {
            dialler.check_path().await;
        }
        let plan = LanePlan::new(self.settings, &recalled, need.cloned());
        let reached = dial_all(dialler, self.settings, plan, recalled).await?;
        self.tell_of_black_hole(&reached.route.dialler);
        Ok(reached)
    }

    /// Reports that segments have been limited before or during the handshake.
    fn tell_of_black_hole(&self, dialler: &ChannelDialler) {
        if let Some(cause) = &dialler.black_hole() {
            self.listener.hear(&Notice::BlackHole { cause });
        }
    }
}

/// The time without an answer after which a user looks for a sign of life.
const NOTICED_AFTER: Duration = Duration::from_millis(700);

/// What is known before anything is dialled.
#[derive(Debug)]
struct Recalled {
    paths: PathMemory,
    known: Option<Known>,
    /// How long TCP waits for QUIC, where that goes first.
    quic_first: Option<Duration>,
    /// For QUIC.
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
    /// The time for which a user was asked, or may have been, before the host was reached.
    #[must_use]
    pub const fn asked(&self) -> Duration {
        self.asked
    }

    /// Closes all connections, however the session has ended.
    pub async fn close(&self) {
        self.watch.stop();
        self.dialler.close().await;
    }

    /// The black hole on the path that has ended the session, if one has. The next session has small segments.
    #[must_use]
    pub fn black_hole(&self) -> Option<&BlackHole> {
        self.watch.found()
    }

    /// The cause of a session's end: a loss of connections may be due to a black hole.
    fn cause(&self, error: PushError) -> PushError {
        match self.black_hole() {
            Some(cause) if error.is_lost() => PushError::BlackHole(cause.clone()),
            _ => error,
        }
    }

    /// Lets a receiver that ssh has started come to its end, after a session that has ended well.
    pub async fn end(self) {
        if let Some(ssh) = self.ssh {
            ssh.end().await;
        }
    }

    /// Closes the connections of a session that has ended like this. Keeps what one has learnt that has ended well, and
    /// lets a receiver that ssh has started come to its end.
    pub(crate) async fn finish(
        self,
        ended: Result<Summary, PushError>,
        listener: &dyn Listener,
    ) -> Result<Transferred, PushError> {
        self.close().await;
        let summary = ended.map_err(|error| self.cause(error))?;
        let resumption = self.dialler.resumption();
        self.learn(&summary, resumption, listener);
        let carriage = Carriage {
            transport: self.transport,
            resumption,
        };
        self.end().await;
        Ok(Transferred { summary, carriage })
    }

    /// Keeps what a session has learnt.
    fn learn(&self, summary: &Summary, resumption: Resumption, listener: &dyn Listener) {
        let millis = u64::try_from(summary.elapsed.as_millis())
            .unwrap_or(u64::MAX)
            .max(1);
        let rate = summary.counters.bytes * 1000 / millis;
        let learnt = summary.learnt.map(
            |Learnt {
                 lanes,
                 loss_tolerant,
             }| Known::new(lanes, loss_tolerant, self.round_trip, rate),
        );
        let before = self.recalled.known.map(|known| Known {
            bytes_per_second: rate,
            ..known
        });
        let by_quic = || Known::new(lanes_for(self.round_trip), false, self.round_trip, rate);
        let known = match self.transport {
            // where nothing was tuned, there is still what was taken away, and what did not get through
            Transport::Tcp => learnt.or(before),
            Transport::Quic => before.or_else(|| Some(by_quic())),
        };
        let Some(known) = known else { return };
        self.recalled
            .paths
            .keep(self.with_rates(known, summary, resumption), listener);
    }

    /// With what was known before of rates and window, and what has been found now.
    fn with_rates(&self, known: Known, summary: &Summary, resumption: Resumption) -> Known {
        // another push may have left a window meanwhile
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
        let found = Found {
            transport: self.transport,
            at_best: summary.at_best.filter(|_| !self.limited),
            ends: self.ends,
            has_lost: lost || resumption.is_refuted,
        };
        Known {
            rates,
            window,
            ..known
        }
        .after(&found)
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
            .announced(Box::pin(tokio::time::sleep(NOTICED_AFTER / 2)))
            .await;
        assert_eq!(listener.0.load(Ordering::Relaxed), 0);
        connector
            .announced(Box::pin(tokio::time::sleep(NOTICED_AFTER * 9)))
            .await;
        assert_eq!(listener.0.load(Ordering::Relaxed), 1);
    }
}
