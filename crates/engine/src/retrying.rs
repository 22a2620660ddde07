//! A transfer with another host in as many sessions as it takes: a session that breaks off because connections are lost
//! is followed by another.
//!
//! **Invariant:** only a host that has been up is dialled again, so a wrong name, key or target is reported at once;
//! and only after a loss of connections, so that no error is hidden by retries. There are two exceptions: a host that
//! is busy is waited for from the first, and one that closes connections before it has proved its key is dialled again
//! a few times, since it may do so with some of many that come at once.

use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::time::{Duration, Instant};

use tokio::time::sleep_until;

use crate::backoff::{Next, Outage, Outages, Timeout};
use crate::dial::Connector;
use crate::error::PushError;
use crate::notice::Notice;
use crate::random::random;

/// How a transfer goes on when its connections are lost.
pub(crate) struct Retrying<'a> {
    pub(crate) connector: Connector<'a>,
    /// How long the host is dialled again once connections are lost; zero: not at all.
    pub(crate) timeout: Timeout,
    /// How long one session waits in the queue of a busy host.
    pub(crate) busy_timeout: Timeout,
}

/// The sessions of one transfer, one after the other.
pub(crate) trait Sessions {
    /// What the last session returns.
    type Done;

    /// Runs one session, which dials until the moment `until` at most.
    fn session<S: Future<Output = ()>>(
        &mut self,
        until: Option<Instant>,
        stop: Pin<&mut S>,
    ) -> impl Future<Output = Result<Self::Done, PushError>>;

    /// Whether the host has ever begun the transfer.
    fn was_up(&self) -> bool;

    /// Whether another session follows one that has begun and lost its connections. None does in a preview, which would
    /// tell all of it again, or leave out what was told meanwhile.
    fn may_follow(&self) -> bool;

    /// What the sessions have come to so far.
    fn steps(&self) -> Steps;

    /// Sets how long the next session waits in the queue of a busy host.
    fn wait_for(&mut self, patience: Duration);

    /// The error for a transfer that `stop` has ended between two sessions.
    fn interrupted() -> PushError;
}

/// What the sessions of one transfer have come to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Steps {
    /// The number of sessions that the host has begun.
    pub(crate) begun: u64,
    /// The number of those in which it has answered.
    pub(crate) answered: u64,
    /// The number of those that have come further than all before.
    pub(crate) further: u64,
}

impl Retrying<'_> {
    /// Runs sessions until one comes to its end, `stop` resolves, or there has been no connection for too long.
    pub(crate) async fn run<S: Sessions>(
        &self,
        sessions: &mut S,
        stop: impl Future<Output = ()>,
    ) -> Result<S::Done, PushError> {
        let Connector { remote, listener, .. } = self.connector;
        let mut stop = pin!(stop);
        let mut outages = Outages::new(self.timeout);
        let mut until = None;
        let mut closed = 0;
        loop {
            let before = sessions.steps();
            let now = Instant::now();
            sessions.wait_for(
                until.map_or(self.busy_timeout.0, |until: Instant| until.saturating_duration_since(now)),
            );
            let error = match sessions.session(until, stop.as_mut()).await {
                Ok(done) => return Ok(done),
                Err(error)
                    if closed < CLOSED_MAX
                        && error.is_closed_early()
                        && !self.is_settled(sessions.was_up()) =>
                {
                    closed += 1;
                    error
                }
                Err(error) if sessions.was_up() && !sessions.may_follow() => return Err(error),
                Err(error) if self.is_final(&error, sessions.was_up()) => return Err(error),
                Err(error) => error,
            };
            let after = sessions.steps();
            let has_answered = after.answered > before.answered;
            if after.further > before.further {
                outages.end();
            } else if after.begun > before.begun {
                outages.began_in_vain(if has_answered { now.elapsed() } else { Duration::ZERO });
            }
            let chance = random().map(u32::from_le_bytes).map_err(PushError::Chance)?;
            let Next::Retry { at, until: end, outage } = outages.lost(Instant::now(), chance) else {
                return Err(self.given_up(error, sessions.was_up(), outages.in_vain()));
            };
            if error.is_busy() && !sessions.was_up() {
                listener.hear(&Notice::ReceiverBusy { cause: &error });
            } else if (outage == Outage::Begins || has_answered) && sessions.was_up() {
                listener.hear(&Notice::ConnectionLost { remote, cause: &error, timeout: self.timeout });
            }
            tokio::select! {
                () = sleep_until(at.into()) => {}
                () = &mut stop => return Err(S::interrupted()),
            }
            if at == end {
                return Err(self.given_up(error, sessions.was_up(), outages.in_vain()));
            }
            until = Some(end);
        }
    }

    /// Whether a host that closes early is not dialled again: it has been up before, or there are to be no retries.
    fn is_settled(&self, was_up: bool) -> bool {
        self.timeout.0.is_zero() || was_up
    }

    fn is_final(&self, error: &PushError, was_up: bool) -> bool {
        // A user who does not want to wait in the queue does not want to come again either.
        let no_wait = self.busy_timeout.0.is_zero() && error.is_busy() && !was_up;
        no_wait || self.timeout.0.is_zero() || !(error.is_busy() || was_up && error.is_lost())
    }

    fn given_up(&self, cause: PushError, was_up: bool, in_vain: u32) -> PushError {
        let timeout = self.timeout;
        let remote = self.connector.remote.to_string();
        if was_up && in_vain > 1 {
            return PushError::InVain { remote, sessions: in_vain, cause: Box::new(cause) };
        }
        if was_up {
            return PushError::GivenUp { remote, timeout, cause: Box::new(cause) };
        }
        if cause.is_busy() { PushError::StillBusy { timeout, cause: Box::new(cause) } } else { cause }
    }
}

/// How often a host that closes connections before it has proved its key is dialled again: it may do so with some of
/// many that come at once.
const CLOSED_MAX: u32 = 6;

/// Resolves at a moment; never without one.
pub(crate) async fn moment(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at.into()).await,
        None => pending().await,
    }
}
