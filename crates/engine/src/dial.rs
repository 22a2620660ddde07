//! The way from a host to a [`Link`]: the host's key, ssh where no daemon runs, control, and lanes.

mod host_key;
mod lanes;
mod machine;
mod plan;

use std::fmt;
use std::path::Path;
use std::time::Duration;

use zmove_sender::{Learnt, Link, Need, Summary};
use zmove_transport::{ChannelDialler, FirstKey, HostPolicy, Identity, KnownHosts, Transport};

use self::host_key::host_policy;
use self::lanes::dial_all;
use self::plan::LanePlan;
use crate::error::ConnectError;
use crate::location::{Login, Remote};
use crate::notice::{Listener, Notice};
use crate::path_memory::{Known, PathMemory};
use crate::settings::DialSettings;
use crate::ssh::{self, SshReceiver, SshSession};

pub use machine::{LANES_AT_ONCE, LOCAL_RTT, LOSS_TOLERANT, RATE_TARGET, lanes_for_machine};

/// All that it takes to reach a receiver.
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

/// A receiver that has been reached.
#[derive(Debug)]
pub struct Reached {
    /// The control connection and the lanes; lanes go on coming up.
    pub link: Link,
    /// The transport that carries them.
    pub transport: Transport,
    /// The endpoint of all connections: to be closed when the session is over.
    pub dialler: ChannelDialler,
    /// The path that was taken.
    pub route: Route,
    /// The ssh that has started the receiver, `None` with a daemon: to be ended after the dialler.
    pub ssh: Option<SshSession>,
}

/// The path that was taken, to be remembered.
#[derive(Debug)]
pub struct Route {
    paths: PathMemory,
    round_trip: Duration,
    transport: Transport,
}

impl Connector<'_> {
    /// Dials control and lanes; lanes go on coming up after this returns. `need` is the number of lanes that a push can
    /// use.
    ///
    /// # Errors
    /// The receiver cannot be reached, is not the one that was meant, or this side's own keys cannot be used.
    pub async fn connect(&self, need: Option<&Need>) -> Result<Reached, ConnectError> {
        match &self.remote.login {
            Some(login) => self.connect_over_ssh(login, need).await,
            None => self.connect_to_daemon(need).await,
        }
    }

    async fn connect_to_daemon(&self, need: Option<&Need>) -> Result<Reached, ConnectError> {
        let Self { home, remote, settings, listener } = *self;
        let identity = Identity::load_or_create(home)?;
        let first_key = FirstKey::default();
        let policy = host_policy(remote, &identity, home, settings, &first_key).await?;
        let reach = settings.reach.clone();
        let dialler = ChannelDialler::new(&identity, &remote.host, remote.port, policy, reach).await?;
        let reached = self.reach_by(dialler, need).await?;
        if let Some(key) = first_key.get() {
            KnownHosts::open(home)?.pin(&remote.host, remote.port, key)?;
            listener.hear(&Notice::KeyPinned { remote, key });
        }
        Ok(reached)
    }

    async fn connect_over_ssh(&self, login: &Login, need: Option<&Need>) -> Result<Reached, ConnectError> {
        let SshReceiver { identity, key, host, port, session } =
            ssh::start(self.remote, login, self.settings).await?;
        let policy = HostPolicy::Pinned(key);
        let reach = self.settings.reach.clone();
        let dialler = ChannelDialler::new(&identity, &host, port, policy, reach).await?;
        match self.reach_by(dialler, need).await {
            Ok(reached) => Ok(Reached { ssh: Some(session), ..reached }),
            Err(error) => Err(ConnectError::BehindSsh { host, source: Box::new(error) }),
        }
    }

    async fn reach_by(&self, dialler: ChannelDialler, need: Option<&Need>) -> Result<Reached, ConnectError> {
        let paths = PathMemory::of(self.home, self.remote);
        let plan = LanePlan::new(self.settings, paths.recall(self.listener), need.cloned());
        dial_all(dialler, self.settings, plan, paths).await
    }
}

impl fmt::Debug for Connector<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { home, remote, settings, .. } = self;
        let mut shown = f.debug_struct("Connector");
        shown.field("home", home).field("remote", remote).field("settings", settings).finish_non_exhaustive()
    }
}

impl Route {
    /// Remembers what a push over TCP has learnt.
    pub fn learn(&self, summary: &Summary, listener: &dyn Listener) {
        if self.transport == Transport::Quic {
            return;
        }
        if let Some(Learnt { lanes, loss_tolerant }) = summary.learnt {
            let millis = u64::try_from(summary.elapsed.as_millis()).unwrap_or(u64::MAX).max(1);
            let rate = summary.bytes * 1000 / millis;
            self.paths.keep(Known::new(lanes, loss_tolerant, self.round_trip, rate), listener);
        }
    }
}
