//! The ways to a receiver that ssh started: directly to its port, or through the login.
//!
//! The port is faster, because ssh adds a second encryption by one process and a window of its own. It therefore gets a
//! head start of about the time in which it can answer. If the port refuses, ssh follows immediately. The first way
//! that leads to the receiver is used. **Invariant:** all connections of a session go the same way.

use std::io;
use std::pin::pin;
use std::sync::OnceLock;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;
use zmove_sender::LaneDemand;
use zmove_transport::{ChannelDialer, DialError, Fingerprint, HostPolicy, Identity};

use super::{ConnectedHost, Connector, LaneEnd, PathRecall};
use crate::connecting::location::Login;
use crate::connecting::path_memory::PathMemory;
use crate::connecting::settings::ConnectionMethod;
use crate::connecting::ssh::{self, ReceiverPurpose, SshMaster, SshReceiver, SshSession};
use crate::error::{ConnectError, SshError};
use crate::notice::Notice;

/// The receiver's address and the keys of both sides.
struct ReceiverAddress {
    identity: Identity,
    key: Fingerprint,
    host: String,
    port: u16,
    /// Head start of the port over ssh.
    head_start: Duration,
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
            mut session,
            master,
            answered_after,
            asked,
        } = ssh::start(self.remote, login, self.settings, ReceiverPurpose::Session).await?;
        let receiver = ReceiverAddress {
            identity,
            key,
            host,
            port,
            head_start: head_start(answered_after),
        };
        let mut reached = match (self.settings.ssh.method, master) {
            (ConnectionMethod::Ssh, Some(master)) => {
                let reached = self.connect_through(&receiver, master, &mut session, need);
                reached.await?
            }
            (ConnectionMethod::Ssh, None) => {
                let program = self.settings.ssh.program.clone();
                return Err(SshError::NoMaster { program }.into());
            }
            (ConnectionMethod::Auto, Some(master)) => {
                self.connect_either_way(&receiver, master, &mut session, need)
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
        session: &mut SshSession,
        need: Option<&LaneDemand>,
    ) -> Result<ConnectedHost<L>, ConnectError> {
        let (forwarded, shared) = master.forward(receiver.port).await?;
        session.keep(shared);
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
        session: &mut SshSession,
        need: Option<&LaneDemand>,
    ) -> Result<ConnectedHost<L>, ConnectError> {
        let dialing = OnceLock::new();
        let failed = Notify::new();
        let direct = async {
            let reached = self.connect_directly(receiver, &dialing, need).await;
            reached.inspect_err(|_| failed.notify_one())
        };
        let through_ssh = async {
            tokio::select! {
                () = failed.notified() => {}
                () = has_lost_head_start(receiver.head_start, &dialing) => {}
            }
            let reached = self
                .connect_through(receiver, master, session, need)
                .await?;
            self.listener.hear(&Notice::ThroughSsh {
                remote: self.remote,
            });
            Ok::<_, ConnectError>(reached)
        };
        let reached = first_success(Box::pin(direct), Box::pin(through_ssh)).await;
        reached.map_err(|errors| ConnectError::NeitherWay {
            host: receiver.host.clone(),
            direct: Box::new(errors.first),
            through_ssh: Box::new(errors.second),
        })
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

/// Returns the head start of the port. The receiver's answer took at least two round trips after the login. A port
/// accepts a connection after one.
fn head_start(answered_after: Option<Duration>) -> Duration {
    answered_after.map_or(HEAD_START_MAX, |time| {
        time.clamp(HEAD_START_MIN, HEAD_START_MAX)
    })
}

/// The errors of two attempts.
struct BothErrors<E> {
    first: E,
    second: E,
}

/// Returns the result of the first attempt that succeeds, and drops the other one.
async fn first_success<T, E>(
    first: impl Future<Output = Result<T, E>>,
    second: impl Future<Output = Result<T, E>>,
) -> Result<T, BothErrors<E>> {
    let mut first = pin!(first);
    let mut second = pin!(second);
    tokio::select! {
        biased;
        done = &mut first => match done {
            Ok(done) => Ok(done),
            Err(first) => second.await.map_err(|second| BothErrors { first, second }),
        },
        done = &mut second => match done {
            Ok(done) => Ok(done),
            Err(second) => first.await.map_err(|first| BothErrors { first, second }),
        },
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

/// Minimum head start of the port: the time that a busy host needs to accept a connection.
const HEAD_START_MIN: Duration = Duration::from_millis(200);
/// Maximum head start of the port: a long round trip, during which no packet is lost.
const HEAD_START_MAX: Duration = Duration::from_millis(500);
const HEAD_START_STEPS: u32 = 8;
/// Maximum time for the handshake at a port that has accepted a connection. After it, ssh is tried as well.
const HANDSHAKE_MAX: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test]
    async fn the_first_success_counts_and_both_errors_are_kept() {
        let late = async {
            tokio::task::yield_now().await;
            Ok::<_, u8>(2)
        };
        assert!(matches!(first_success(ready(Err(1)), late).await, Ok(2)));
        let ready_too = first_success(ready(Ok::<_, u8>(1)), ready(Ok(2)));
        assert!(matches!(ready_too.await, Ok(1)));
        assert!(matches!(
            first_success(pending(), ready(Ok::<_, u8>(2))).await,
            Ok(2)
        ));
        let both = first_success(ready(Err::<u8, _>(1)), ready(Err(2))).await;
        assert!(matches!(
            both,
            Err(BothErrors {
                first: 1,
                second: 2
            })
        ));
    }

    #[tokio::test(start_paused = true)]
    async fn a_port_that_answers_nothing_delays_ssh_by_its_head_start_only() {
        let began = tokio::time::Instant::now();
        has_lost_head_start(head_start(Some(Duration::ZERO)), &OnceLock::new()).await;
        assert_eq!(began.elapsed(), HEAD_START_MIN);
        assert_eq!(head_start(Some(HEAD_START_MAX * 2)), HEAD_START_MAX);
        assert_eq!(head_start(None), HEAD_START_MAX);
    }
}
