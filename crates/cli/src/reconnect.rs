//! A push to another host in as many sessions as it takes: what breaks off because connections are lost begins again.
//!
//! **Invariant:** only what has been up is dialled again, so a wrong name, key or target is told at once; and only a loss of
//! connections is a reason to, so that no error is hidden by trying. A receiver that is busy is waited for from the first.

use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::time::Instant;

use anyhow::{Context, Result};
use tokio::time::sleep_until;
use zmove_sender::{Need, Push, PushJob, Run, SenderConfig, SessionError, Summary};
use zmove_transport::{ControlError, DialError, Transport};

use crate::dial::{self, DialOptions};
use crate::display::progress::Display;
use crate::display::terminal;
use crate::location::Remote;
use crate::patience::{Next, Outage, Outages, Timeout};
use crate::ssh::SshFailed;
use crate::value::exit::{Exit, Failure};

/// What each session of a run needs anew.
pub(crate) struct Sessions<'a> {
    pub(crate) remote: &'a Remote,
    pub(crate) options: DialOptions,
    pub(crate) job: &'a dyn Fn() -> Result<PushJob>,
    pub(crate) config: SenderConfig,
    pub(crate) timeout: Timeout,
    /// How long a busy receiver is waited for where that needs no other session.
    pub(crate) patience: Timeout,
}

impl Sessions<'_> {
    /// Pushes until all is done, `stop` resolves, or there has been no connection for too long. `first` walks the sources
    /// already.
    pub(crate) async fn push(
        &self,
        first: Push,
        run: &mut Run,
        display: &mut Display,
        stop: impl Future<Output = ()>,
    ) -> Result<(Summary, Transport)> {
        let mut stop = pin!(stop);
        let mut outages = Outages::new(self.timeout);
        let need = first.need();
        let (mut push, mut until, mut closed) = (Some(first), None, 0);
        loop {
            let answered = run.answered();
            let now = Instant::now();
            run.wait_for(
                until.map_or(self.patience.0, |until: Instant| until.saturating_duration_since(now)),
            );
            let error = match self.session((push.take(), &need), run, display, until, stop.as_mut()).await {
                Ok(pushed) => return Ok(pushed),
                Err(error) if closed < CLOSED_MAX && is_closed(&error) && !self.is_settled(run) => {
                    closed += 1;
                    error
                }
                Err(error) if self.is_final(&error, run) => return Err(error),
                Err(error) => error,
            };
            if run.answered() > answered {
                outages.end();
            }
            let Next::Retry { at, until: end, outage } = outages.lost(Instant::now(), chance()?) else {
                return Err(self.given_up(error, run));
            };
            if is_busy(&error) && !run.was_up() {
                display.busy(&terminal::Causes(&error).to_string());
            } else if outage == Outage::Begins && run.was_up() {
                display.lost(self.remote, &error, self.timeout);
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

    /// One session; without a `push` the sources are walked from when the receiver has been reached.
    async fn session(
        &self,
        (push, need): (Option<Push>, &Need),
        run: &mut Run,
        display: &mut Display,
        until: Option<Instant>,
        mut stop: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<(Summary, Transport)> {
        let reached = tokio::select! {
            reached = dial::connect(self.remote, &self.options, Some(need)) => reached?,
            () = moment(until) => return Err(SessionError::Silent.into()),
            () = &mut stop => return Err(SessionError::Interrupted.into()),
        };
        display.start();
        let push = push.map_or_else(|| self.start_again(run), Ok)?;
        let pushed = push.run(run, reached.link, display.observer(), stop).await;
        reached.dialler.close().await;
        let summary = pushed?;
        if let Some(ssh) = reached.ssh {
            ssh.end().await;
        }
        reached.route.learn(&summary);
        Ok((summary, reached.transport))
    }

    fn start_again(&self, run: &mut Run) -> Result<Push> {
        Ok(Push::start((self.job)()?, self.config.clone(), run, Instant::now()))
    }

    /// Whether it is known that the host is what it was taken for, or nothing is to be tried again.
    fn is_settled(&self, run: &Run) -> bool {
        self.timeout.0.is_zero() || run.was_up()
    }

    fn is_final(&self, error: &anyhow::Error, run: &Run) -> bool {
        self.timeout.0.is_zero() || !(is_busy(error) || run.was_up() && is_lost(error))
    }

    fn given_up(&self, error: anyhow::Error, run: &Run) -> anyhow::Error {
        let (remote, timeout, causes) = (self.remote, self.timeout, terminal::Causes(&error));
        if !run.was_up() {
            let text = format!("{causes}; the receiver was busy for {timeout}");
            return if is_busy(&error) { Failure(Exit::Connection, text).into() } else { error };
        }
        let text =
            format!("the connection to {remote} was lost and has not come back for {timeout}: {causes}");
        Failure(Exit::Broken, text).into()
    }
}

/// How often a host is dialled again that closes connections before it has proved its key: it may do so with some of many that
/// come at once.
const CLOSED_MAX: u32 = 6;

fn is_closed(error: &anyhow::Error) -> bool {
    // this side may think that the handshake is over when the other one does not
    let early = matches!(error.downcast_ref(), Some(SessionError::Control(ControlError::Closed)));
    early || matches!(error.downcast_ref(), Some(DialError::Closed { .. }))
}

fn is_busy(error: &anyhow::Error) -> bool {
    error.downcast_ref::<SessionError>().is_some_and(SessionError::is_busy)
}

/// Whether dialling again may help.
fn is_lost(error: &anyhow::Error) -> bool {
    if let Some(error) = error.downcast_ref::<DialError>() {
        // a network that is gone takes its name server along
        return error.retryable() || matches!(error, DialError::Resolve { .. });
    }
    error.is::<SshFailed>() || error.downcast_ref::<SessionError>().is_some_and(SessionError::is_lost)
}

async fn moment(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at.into()).await,
        None => pending().await,
    }
}

/// Any number.
fn chance() -> Result<u32> {
    let mut bytes = [0; 4];
    rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty())
        .context("draw a number")?;
    Ok(u32::from_le_bytes(bytes))
}
