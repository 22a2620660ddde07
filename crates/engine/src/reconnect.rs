//! A push to another host in as many sessions as it takes: a session that breaks off because connections are lost is
//! followed by another, which dials, walks the sources again, and learns from the receiver's answers what is there.
//!
//! **Invariant:** only a receiver that has been up is dialled again, so a wrong name, key or target is reported at
//! once; and only after a loss of connections, so that no error is hidden by retries. There are two exceptions: a
//! receiver that is busy is waited for from the first, and a host that closes connections before it has proved its key
//! is dialled again a few times, since it may do so with some of many that come at once.

use std::fmt;
use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Instant;

use tokio::time::sleep_until;
use zmove_sender::{Need, Push, PushJob, Run, SenderConfig, SessionError, Summary};
use zmove_transport::{Resumption, Transport};
use zmove_types::Observer;

use crate::backoff::{Next, Outage, Outages, Timeout};
use crate::dial::Connector;
use crate::error::{BoxError, PushError};
use crate::notice::Notice;
use crate::random::random;

/// All that each session of a push to another host needs.
pub struct RemotePush<'a> {
    /// The receiver, and the listener for what happens between sessions.
    pub connector: Connector<'a>,
    /// Makes the job of each later session, equal to the first session's.
    pub job: &'a (dyn Fn() -> Result<PushJob, BoxError> + Sync),
    /// The settings of the sender.
    pub config: SenderConfig,
    /// How long the receiver is dialled again once connections are lost; zero: not at all.
    pub timeout: Timeout,
    /// How long one session waits in the queue of a busy receiver.
    pub busy_timeout: Timeout,
    /// The observer of what happens in a session.
    pub observer: Arc<dyn Observer>,
}

/// A push that has come to its end.
#[derive(Clone, Debug)]
pub struct Pushed {
    /// The account of what the push has moved.
    pub summary: Summary,
    /// The transport of the last session.
    pub transport: Transport,
    /// What has become of the window that was remembered.
    pub resumption: Resumption,
}

impl fmt::Debug for RemotePush<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("RemotePush");
        shown.field("connector", &self.connector).field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl RemotePush<'_> {
    /// Pushes until all is done, `stop` resolves, or there has been no connection for too long. `first` has already
    /// begun to walk the sources.
    ///
    /// # Errors
    /// The receiver cannot be reached, refuses the push, or connections were lost for too long. Files that failed are
    /// no such error: the summary counts them.
    pub async fn push(
        &self,
        first: Push,
        run: &mut Run,
        stop: impl Future<Output = ()>,
    ) -> Result<Pushed, PushError> {
        let Connector { remote, listener, .. } = self.connector;
        let mut stop = pin!(stop);
        let mut outages = Outages::new(self.timeout);
        let need = first.need();
        let mut push = Some(first);
        let mut until = None;
        let mut closed = 0;
        loop {
            let answered = run.answered();
            let now = Instant::now();
            run.wait_for(
                until.map_or(self.busy_timeout.0, |until: Instant| until.saturating_duration_since(now)),
            );
            let error = match self.session(push.take(), &need, run, until, stop.as_mut()).await {
                Ok(pushed) => return Ok(pushed),
                Err(error) if closed < CLOSED_MAX && error.is_closed_early() && !self.is_settled(run) => {
                    closed += 1;
                    error
                }
                Err(error) if self.is_final(&error, run) => return Err(error),
                Err(error) => error,
            };
            if run.answered() > answered {
                outages.end();
            }
            let chance = random().map(u32::from_le_bytes).map_err(PushError::Chance)?;
            let Next::Retry { at, until: end, outage } = outages.lost(Instant::now(), chance) else {
                return Err(self.given_up(error, run));
            };
            if error.is_busy() && !run.was_up() {
                listener.hear(&Notice::ReceiverBusy { cause: &error });
            } else if outage == Outage::Begins && run.was_up() {
                listener.hear(&Notice::ConnectionLost { remote, cause: &error, timeout: self.timeout });
            }
            tokio::select! {
                () = sleep_until(at.into()) => {}
                () = &mut stop => return Err(SessionError::Interrupted.into()),
            }
            if at == end {
                return Err(self.given_up(error, run));
            }
            until = Some(end);
        }
    }

    /// Runs one session; without a `push` the walk of the sources begins when the receiver has been reached.
    async fn session(
        &self,
        push: Option<Push>,
        need: &Need,
        run: &mut Run,
        until: Option<Instant>,
        mut stop: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<Pushed, PushError> {
        let Self { connector, .. } = self;
        let reached = tokio::select! {
            reached = connector.connect(Some(need)) => reached?,
            () = moment(until) => return Err(SessionError::Silent.into()),
            () = &mut stop => return Err(SessionError::Interrupted.into()),
        };
        connector.listener.hear(&Notice::SessionBegins);
        let push = push.map_or_else(|| self.start_again(run), Ok)?;
        let pushed = push.run(run, reached.link, Arc::clone(&self.observer), stop).await;
        reached.dialler.close().await;
        let summary = pushed?;
        if let Some(ssh) = reached.ssh {
            ssh.end().await;
        }
        let resumption = reached.dialler.resumption();
        reached.route.learn(&summary, resumption, connector.listener);
        Ok(Pushed { summary, transport: reached.transport, resumption })
    }

    fn start_again(&self, run: &mut Run) -> Result<Push, PushError> {
        let job = (self.job)().map_err(PushError::Job)?;
        Ok(Push::start(job, self.config.clone(), run, Instant::now()))
    }

    /// Whether a host that closes early is not dialled again: it has been up before, or there are to be no retries.
    fn is_settled(&self, run: &Run) -> bool {
        self.timeout.0.is_zero() || run.was_up()
    }

    fn is_final(&self, error: &PushError, run: &Run) -> bool {
        self.timeout.0.is_zero() || !(error.is_busy() || run.was_up() && error.is_lost())
    }

    fn given_up(&self, cause: PushError, run: &Run) -> PushError {
        let timeout = self.timeout;
        if run.was_up() {
            let remote = self.connector.remote.to_string();
            return PushError::GivenUp { remote, timeout, cause: Box::new(cause) };
        }
        if cause.is_busy() { PushError::StillBusy { timeout, cause: Box::new(cause) } } else { cause }
    }
}

/// How often a host that closes connections before it has proved its key is dialled again: it may do so with some of
/// many that come at once.
const CLOSED_MAX: u32 = 6;

async fn moment(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at.into()).await,
        None => pending().await,
    }
}
