//! A push to another host in as many sessions as it takes: what breaks off because connections are lost begins again.
//!
//! **Invariant:** only what has been up is dialled again, so a wrong name, key or target is told at once; and only a loss of
//! connections is a reason to, so that no error is hidden by trying.

use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::time::Instant;

use anyhow::{Context, Result};
use tokio::time::sleep_until;
use zmove_sender::{Push, PushJob, Run, SenderConfig, SessionError, Summary};
use zmove_transport::{DialError, Transport};

use crate::dial::{self, DialOptions};
use crate::exit::{Exit, Failure};
use crate::location::Remote;
use crate::patience::{Next, Outage, Outages, Timeout};
use crate::progress::Display;
use crate::ssh::SshFailed;
use crate::terminal;

/// What each session of a run needs anew.
pub(crate) struct Sessions<'a> {
    pub(crate) remote: &'a Remote,
    pub(crate) options: DialOptions,
    pub(crate) job: &'a dyn Fn() -> Result<PushJob>,
    pub(crate) config: SenderConfig,
    pub(crate) timeout: Timeout,
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
        let (mut push, mut until) = (Some(first), None);
        loop {
            let answered = run.answered();
            let error = match self.session(push.take(), run, display, until, stop.as_mut()).await {
                Ok(pushed) => return Ok(pushed),
                Err(error) if self.is_final(&error, run) => return Err(error),
                Err(error) => error,
            };
            if run.answered() > answered {
                outages.end();
            }
            let Next::Retry { at, until: end, outage } = outages.lost(Instant::now(), chance()?) else {
                return Err(self.given_up(&error));
            };
            if outage == Outage::Begins {
                display.lost(self.remote, &error, self.timeout);
            }
            tokio::select! {
                () = sleep_until(at.into()) => {}
                () = &mut stop => return Err(SessionError::Interrupted.into()),
            }
            if at == end {
                return Err(self.given_up(&error));
            }
            until = Some(end);
        }
    }

    /// One session; without a `push` the sources are walked from when the receiver has been reached.
    async fn session(
        &self,
        push: Option<Push>,
        run: &mut Run,
        display: &mut Display,
        until: Option<Instant>,
        mut stop: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<(Summary, Transport)> {
        let reached = tokio::select! {
            reached = dial::connect(self.remote, &self.options) => reached?,
            () = moment(until) => return Err(SessionError::Silent.into()),
            () = &mut stop => return Err(SessionError::Interrupted.into()),
        };
        display.start();
        let push = push.map_or_else(|| self.start_again(), Ok)?;
        let pushed = push.run(run, reached.link, display.observer(), stop).await;
        reached.dialler.close().await;
        let summary = pushed?;
        if let Some(ssh) = reached.ssh {
            ssh.end().await;
        }
        reached.route.learn(&summary);
        Ok((summary, reached.transport))
    }

    fn start_again(&self) -> Result<Push> {
        Ok(Push::start((self.job)()?, self.config.clone(), Instant::now()))
    }

    fn is_final(&self, error: &anyhow::Error, run: &Run) -> bool {
        self.timeout.0.is_zero() || !run.was_up() || !is_lost(error)
    }

    fn given_up(&self, error: &anyhow::Error) -> anyhow::Error {
        let (remote, timeout, causes) = (self.remote, self.timeout, terminal::Causes(error));
        let text =
            format!("the connection to {remote} was lost and has not come back for {timeout}: {causes}");
        Failure(Exit::Broken, text).into()
    }
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
