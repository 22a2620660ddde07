//! Runs the sessions of a transfer with another host. If a session loses its connections, a new session follows.
//!
//! **Invariant:** a host is dialed again only if it has been up before, so that a wrong name, key or target is reported
//! immediately. It is dialed again only after a loss of connections, so that retries do not hide other errors. There
//! are three exceptions. A busy host is waited for even in the first session. A host behind a black hole is dialed
//! again with small segments. A host that closes connections before it has proved its key is dialed again a few times,
//! because it may do so when many connections arrive simultaneously.

use std::future::Future;
use std::pin::{Pin, pin};
use std::time::Duration;

use tokio::time::Instant;
use zmove_receiver::unless_stopped;
use zmove_sender::{RunState, SessionError, SessionProgress};

use crate::backoff::{OutageStage, Outages, RetryAction, Timeout};
use crate::connecting::dial::{Connector, Transferred};
use crate::error::PushError;
use crate::notice::Notice;

/// A host, and the time limits for reconnecting to it.
#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy<'a> {
    /// The host, and the listener for notices between sessions.
    pub connector: Connector<'a>,
    /// How long to try to reconnect after a loss of connections. Zero disables reconnecting.
    pub timeout: Timeout,
    /// How long one session waits in the queue of a busy host.
    pub busy_timeout: Timeout,
}

/// The consecutive sessions of a transfer.
pub(crate) trait Sessions {
    /// Runs a session. Dialing must succeed before `until`.
    fn session<S: Future<Output = ()>>(
        &mut self,
        until: Option<Instant>,
        stop: Pin<&mut S>,
    ) -> impl Future<Output = Result<Transferred, PushError>>;

    /// Returns the results of the sessions so far.
    fn standing(&mut self) -> &mut RunState;
}

impl RetryPolicy<'_> {
    /// Runs sessions. Returns when a session completes, `stop` resolves, or there has been no connection for too long.
    pub(crate) async fn run<S: Sessions>(
        &self,
        sessions: &mut S,
        stop: impl Future<Output = ()>,
    ) -> Result<Transferred, PushError> {
        let Connector {
            remote, listener, ..
        } = self.connector;
        let mut stop = pin!(stop);
        let mut outages = Outages::new(self.timeout);
        let mut closed = 0;
        loop {
            let until = outages.until();
            sessions.standing().patience = until.map_or(self.busy_timeout.0, |until| {
                until.duration_since(Instant::now())
            });
            let ended = {
                let session = pin!(sessions.session(until, stop.as_mut()));
                outages.watch(session).await
            };
            let standing = sessions.standing();
            let was_up = standing.begun > 0;
            let error = match ended {
                Ok(done) => return Ok(done),
                Err(error)
                    if closed < CLOSED_MAX
                        && error.is_closed_early()
                        && !self.is_retry_excluded(was_up) =>
                {
                    closed += 1;
                    error
                }
                Err(error) if was_up && standing.inspects => return Err(error),
                Err(error) if self.is_final(&error, was_up) => return Err(error),
                Err(error) => error,
            };
            let fate = std::mem::take(&mut standing.fate);
            let has_answered = fate != SessionProgress::NotBegun && fate != NO_ANSWER;
            let RetryAction::Retry(at, outage) = outages.lost(fate) else {
                return Err(self.given_up(error, was_up, outages.fruitless_sessions()));
            };
            if error.is_busy() && !was_up {
                listener.hear(&Notice::ReceiverBusy { cause: &error });
            } else if (outage == OutageStage::New || has_answered) && can_retry_host(&error, was_up)
            {
                listener.hear(&Notice::ConnectionLost {
                    remote,
                    cause: &error,
                    timeout: self.timeout,
                });
            }
            let waited = unless_stopped(stop.as_mut(), outages.wait(at)).await;
            if !waited.map_err(|()| SessionError::Interrupted)? {
                return Err(self.given_up(error, was_up, outages.fruitless_sessions()));
            }
        }
    }

    /// Returns whether to give up on a host that closes connections early, because retries are disabled or the host has
    /// been up before.
    fn is_retry_excluded(&self, was_up: bool) -> bool {
        self.timeout.0.is_zero() || was_up
    }

    fn is_final(&self, error: &PushError, was_up: bool) -> bool {
        // A user who disabled waiting in the host's queue does not want retries while the host is busy either.
        let no_wait = self.busy_timeout.0.is_zero() && error.is_busy() && !was_up;
        no_wait
            || self.timeout.0.is_zero()
            || !(error.is_busy() || can_retry_host(error, was_up) && error.is_lost())
    }

    fn given_up(&self, cause: PushError, was_up: bool, sessions: u32) -> PushError {
        if !was_up && !cause.is_busy() {
            return cause;
        }
        let cause = Box::new(cause);
        let timeout = self.timeout;
        let remote = self.connector.remote.to_string();
        match was_up {
            false => PushError::StillBusy { timeout, cause },
            true if sessions > 1 => PushError::InVain {
                remote,
                sessions,
                cause,
            },
            true => PushError::GivenUp {
                remote,
                timeout,
                cause,
            },
        }
    }
}

/// Returns whether to dial a host again after a loss. A host behind a black hole may never have been up, but the next
/// session can reach it with small segments.
fn can_retry_host(error: &PushError, was_up: bool) -> bool {
    was_up || matches!(error, PushError::BlackHole(_))
}

/// The progress of a session in which the host did not answer.
const NO_ANSWER: SessionProgress = SessionProgress::NoProgress {
    answered: Duration::ZERO,
};

/// Maximum number of retries if the host closes connections before it has proved its key. A host may do so when many
/// connections arrive simultaneously.
const CLOSED_MAX: u32 = 6;

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::path::Path;

    use tokio::time::{advance, sleep};
    use zmove_transport::{BlackHole, Endpoint};

    use super::*;
    use crate::connecting::dial::in_time;
    use crate::connecting::location::Remote;
    use crate::connecting::settings::DialSettings;
    use crate::error::PullError;
    use crate::notice::NoListener;

    const SECOND: Duration = Duration::from_secs(1);
    const TIMEOUT: Timeout = Timeout(Duration::from_secs(60));

    /// Sessions that all lose their connections. Each dial takes `dial`, and the host then answers for `answers`, if it
    /// answers at all.
    #[derive(Default)]
    struct Lost {
        dials: u32,
        dial: Duration,
        answers: Option<Duration>,
        /// Whether this process is stopped for an hour during the second dial.
        is_stopped: bool,
        /// Whether the first session ends in a black hole, and the host never begins the transfer.
        is_stuck: bool,
        standing: RunState,
    }

    impl Sessions for Lost {
        async fn session<S: Future<Output = ()>>(
            &mut self,
            until: Option<Instant>,
            _stop: Pin<&mut S>,
        ) -> Result<Transferred, PushError> {
            self.dials += 1;
            self.standing.begun = u64::from(!self.is_stuck);
            if self.is_stuck && self.dials == 1 {
                let host = Endpoint {
                    host: "dtn".into(),
                    port: 1,
                };
                return Err(PushError::BlackHole(BlackHole { host }));
            }
            if self.is_stopped && self.dials == 2 {
                advance(3600 * SECOND).await;
            }
            let dial = async {
                sleep(self.dial).await;
                Ok(())
            };
            in_time(until, PullError::Silent, dial).await?;
            if let Some(answered) = self.answers {
                sleep(answered).await;
                self.standing.fate = SessionProgress::NoProgress { answered };
            }
            Err(PullError::Silent.into())
        }

        fn standing(&mut self) -> &mut RunState {
            &mut self.standing
        }
    }

    /// Returns the number of dials of a transfer with these sessions until it fails, and the error.
    async fn dials(sessions: Lost, stop: impl Future<Output = ()>) -> (u32, PushError) {
        let remote = Remote {
            login: None,
            host: "dtn".into(),
            port: 1,
            path: Vec::new(),
        };
        let settings = DialSettings::default();
        let connector = Connector {
            home: Path::new("/"),
            remote: &remote,
            settings: &settings,
            listener: &NoListener,
        };
        let retrying = RetryPolicy {
            connector,
            timeout: TIMEOUT,
            busy_timeout: TIMEOUT,
        };
        let mut sessions = sessions;
        let ended = retrying.run(&mut sessions, stop).await;
        (sessions.dials, ended.unwrap_err())
    }

    #[tokio::test(start_paused = true)]
    async fn time_for_dialling_counts_towards_the_timeout() {
        let lost = Lost {
            dial: 20 * SECOND,
            answers: Some(SECOND),
            ..Lost::default()
        };
        let (dials, why) = dials(lost, pending()).await;
        // The outage begins with the first loss, and ends during the fourth dial.
        assert_eq!(dials, 4);
        assert!(
            matches!(why, PushError::InVain { sessions: 3, .. }),
            "{why}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn time_in_which_the_host_answers_does_not_count() {
        let lost = Lost {
            dial: SECOND,
            answers: Some(600 * SECOND),
            ..Lost::default()
        };
        let (dials, _) = dials(lost, pending()).await;
        assert!(dials > 8, "{dials}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_behind_a_black_hole_is_dialled_again_although_it_was_never_up() {
        let stuck = Lost {
            is_stuck: true,
            ..Lost::default()
        };
        let (dials, why) = dials(stuck, pending()).await;
        assert_eq!(dials, 2);
        assert!(matches!(why, PushError::Pull(PullError::Silent)), "{why}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_was_stopped_while_it_waited_dials_again() {
        let began = Instant::now();
        let (undisturbed, _) = dials(Lost::default(), pending()).await;
        assert!(began.elapsed() >= TIMEOUT.0);
        // The stop occurs during a wait of at least five seconds, close to the timeout.
        let stopped = async {
            sleep(55 * SECOND).await;
            advance(3600 * SECOND).await;
            pending().await
        };
        let (dials, why) = dials(Lost::default(), stopped).await;
        assert!(
            dials > undisturbed + 3,
            "{dials}, without a stop {undisturbed}"
        );
        assert!(matches!(why, PushError::GivenUp { .. }), "{why}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_was_stopped_while_it_dialled_dials_again() {
        let lost = Lost {
            dial: 2 * SECOND,
            is_stopped: true,
            ..Lost::default()
        };
        let (dials, _) = dials(lost, pending()).await;
        assert!(dials > 5, "{dials}");
    }
}
