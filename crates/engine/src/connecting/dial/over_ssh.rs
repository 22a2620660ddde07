//! The ways to a receiver that ssh started: directly to its port, or through the login.
//!
//! The port is faster, because ssh adds a second encryption by one process and a window of its own. Since a session
//! keeps its way, the port gets a head start in which TCP can repeat a lost packet and QUIC can answer where TCP
//! cannot. It has none if it did not answer recently ([`ClosedPortMemory`]), and a short one if ssh uses a gateway. If
//! the port cannot be reached, ssh follows immediately. The first way that leads to the receiver is used.
//!
//! **Invariant:** all connections of a session go the same way.

use std::io;
use std::sync::OnceLock;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;
use zmove_sender::LaneDemand;
use zmove_transport::{ChannelDialer, DialError, Fingerprint, HostPolicy, Identity, Transport};

use super::{ConnectedHost, Connector, LaneEnd, PathRecall};
use crate::connecting::closed_port::ClosedPortMemory;
use crate::connecting::location::Login;
use crate::connecting::path_memory::PathMemory;
use crate::connecting::settings::ConnectionMethod;
use crate::connecting::ssh::{self, ReceiverPurpose, SshMaster, SshReceiver};
use crate::error::{ConnectError, SshError};
use crate::notice::Notice;

/// The receiver's address and the keys of both sides.
struct ReceiverAddress {
    identity: Identity,
    key: Fingerprint,
    host: String,
    port: u16,
    /// Path of the program on the receiver's host, if it has told.
    program: Option<String>,
    /// Whether ssh reaches the host through a gateway.
    is_behind_proxy: bool,
}

impl Connector<'_> {
    /// Starts a receiver with ssh, and connects to it.
    pub(super) async fn connect_over_ssh<L: LaneEnd>(
        &self,
        login: &Login,
        need: Option<&LaneDemand>,
    ) -> Result<ConnectedHost<L>, ConnectError> {
        let SshReceiver {
            identity,
            key,
            host,
            port,
            program,
            session,
            master,
            is_behind_proxy,
            asked,
        } = ssh::start(self.remote, login, self.settings, ReceiverPurpose::Session).await?;
        let receiver = ReceiverAddress {
            identity,
            key,
            host,
            port,
            program,
            is_behind_proxy,
        };
        let mut reached = match (self.settings.ssh.method, master) {
            (ConnectionMethod::Ssh, Some(master)) => {
                let reached = self.connect_through(&receiver, master, need);
                reached.await?
            }
            (ConnectionMethod::Ssh, None) => {
                let program = self.settings.ssh.program.clone();
                return Err(SshError::NoMaster { program }.into());
            }
            (ConnectionMethod::Auto, Some(master)) => {
                let memory = ClosedPortMemory::open(self.home, self.remote, login, &receiver.host);
                let memory = memory.await;
                self.connect_either_way(&receiver, master, &memory, need)
                    .await?
            }
            (ConnectionMethod::Direct, _) | (ConnectionMethod::Auto, None) => {
                let dialing = OnceLock::new();
                let reached = self.connect_directly(&receiver, &dialing, need).await;
                reached.map_err(|error| ConnectError::BehindSsh {
                    host: receiver.host.clone(),
                    source: Box::new(error),
                })?
            }
        };
        reached.route.ssh = Some(session);
        reached.route.asked = asked;
        Ok(reached)
    }

    /// Connects to the receiver's port. Publishes the dialer, which shows whether the port answers.
    async fn connect_directly<L: LaneEnd>(
        &self,
        receiver: &ReceiverAddress,
        dialing: &OnceLock<ChannelDialer>,
        need: Option<&LaneDemand>,
    ) -> Result<ConnectedHost<L>, ConnectError> {
        let policy = HostPolicy::Pinned(receiver.key);
        let known = self.recall(need).await;
        let reach = self.reach(&known);
        let ReceiverAddress {
            identity,
            host,
            port,
            ..
        } = receiver;
        let dialer = ChannelDialer::new(identity, host, *port, policy, reach).await?;
        dialing.get_or_init(|| dialer.clone());
        let reached = self.connect_with(dialer, known, need).await;
        reached.map_err(without_daemon)
    }

    /// Connects to the receiver through the login.
    async fn connect_through<L: LaneEnd>(
        &self,
        receiver: &ReceiverAddress,
        master: SshMaster,
        need: Option<&LaneDemand>,
    ) -> Result<ConnectedHost<L>, ConnectError> {
        let forwarded = master
            .open(receiver.port, receiver.program.as_deref())
            .await?;
        if forwarded.needs_sessions() {
            self.listener.hear(&Notice::LanesAreSessions {
                remote: self.remote,
            });
        }
        let policy = HostPolicy::Pinned(receiver.key);
        let ReceiverAddress { identity, host, .. } = receiver;
        let dialer = ChannelDialer::through(identity, host, forwarded, policy)?;
        let nothing_known = PathRecall {
            paths: PathMemory::of(self.home, self.remote),
            known: None,
            quic_first: None,
            window: None,
        };
        self.connect_with(dialer, nothing_known, need).await
    }

    async fn connect_either_way<L: LaneEnd>(
        &self,
        receiver: &ReceiverAddress,
        master: SshMaster,
        memory: &ClosedPortMemory,
        need: Option<&LaneDemand>,
    ) -> Result<ConnectedHost<L>, ConnectError> {
        let head_start = if memory.is_closed(self.listener) {
            Duration::ZERO
        } else if receiver.is_behind_proxy {
            HEAD_START_BEHIND_PROXY
        } else {
            HEAD_START
        };
        let dialing = OnceLock::new();
        let unreached = Notify::new();
        let mut direct = Box::pin(async {
            let reached = self.connect_directly(receiver, &dialing, need).await;
            reached.inspect_err(|_| unreached.notify_one())
        });
        let mut through_ssh = Box::pin(async {
            tokio::select! {
                () = unreached.notified() => {}
                () = has_lost_head_start(head_start, &dialing) => {}
            }
            self.connect_through(receiver, master, need).await
        });
        let neither_way = |direct, through_ssh| ConnectError::NeitherWay {
            host: receiver.host.clone(),
            direct: Box::new(direct),
            through_ssh: Box::new(through_ssh),
        };
        let reached = tokio::select! {
            biased;
            reached = &mut direct => match reached {
                // Only a port that was not reached is a reason to use ssh.
                Err(direct) if direct.is_lost() => {
                    let reached = through_ssh.await;
                    reached.map_err(|through_ssh| neither_way(direct, through_ssh))
                }
                reached => reached,
            },
            reached = &mut through_ssh => match reached {
                Err(through_ssh) => {
                    let reached = direct.await;
                    reached.map_err(|direct| neither_way(direct, through_ssh))
                }
                reached => reached,
            },
        };
        let reached = reached?;
        let is_through_ssh = reached.route.transport == Transport::Ssh;
        if is_through_ssh {
            self.listener.hear(&Notice::ThroughSsh {
                remote: self.remote,
            });
        }
        memory.keep(is_through_ssh, self.listener);
        Ok(reached)
    }
}

/// Resolves when the port has not answered in time. A port that has accepted a connection gets more time for the
/// handshake.
async fn has_lost_head_start(head_start: Duration, dialing: &OnceLock<ChannelDialer>) {
    // Several steps, because a process that did not run for a while has not heard the answer either.
    for _ in 0..HEAD_START_STEPS {
        sleep(head_start / HEAD_START_STEPS).await;
    }
    let accepted = dialing.get().and_then(ChannelDialer::round_trip);
    if accepted.is_some() {
        sleep(HANDSHAKE_MAX).await;
    }
}

/// Returns the error of dialing a receiver that ssh started. If the port is closed, the error does not name a daemon.
fn without_daemon(error: ConnectError) -> ConnectError {
    match error {
        ConnectError::Dial(DialError::Refused { host, address }) => DialError::Connect {
            host,
            address,
            source: io::ErrorKind::ConnectionRefused.into(),
        }
        .into(),
        error => error,
    }
}

/// Head start of the port: TCP repeats a lost packet after one second, and QUIC is tried after 1.5 s.
const HEAD_START: Duration = Duration::from_secs(3);
/// Head start of the port of a host behind a gateway: a long round trip, during which no packet is lost.
const HEAD_START_BEHIND_PROXY: Duration = Duration::from_millis(500);
const HEAD_START_STEPS: u32 = 8;
/// Maximum time for the handshake at a port that has accepted a connection. After it, ssh is tried as well.
const HANDSHAKE_MAX: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_port_that_answers_nothing_delays_ssh_by_its_head_start_only() {
        let began = tokio::time::Instant::now();
        has_lost_head_start(HEAD_START, &OnceLock::new()).await;
        assert_eq!(began.elapsed(), HEAD_START);
    }
}
