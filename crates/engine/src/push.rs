//! A push, from the start of its scan. It runs in this process (`local`), over connections that a receiver has dialed,
//! or in one or more sessions with another host. If a session loses its connections, the next session dials again,
//! scans the sources again, and learns from the receiver which data is already at the target.
//!
//! **Invariant:** all state that outlives a session is in the [`Run`].

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use zmove_sender::{
    LaneDemand, Link, Manifest, PeerQuota, Push, PushJob, Run, RunState, SenderConfig,
    SessionError, Summary,
};
use zmove_types::{Observer, TransferId};

use crate::connecting::dial::{ConnectedHost, Transferred, in_time, unless_interrupted};
use crate::error::{BoxError, PushError};
use crate::retrying::{RetryPolicy, Sessions};

/// A push that has started to scan its sources.
#[derive(Debug)]
pub struct StartedPush {
    run: Run,
    first: Push,
    /// Settings of each session.
    config: SenderConfig,
}

impl StartedPush {
    /// Starts to scan the sources of a job. Blocks on file operations. `started` is the time at which the user's wait
    /// started.
    #[must_use]
    pub fn new(
        job: PushJob,
        config: SenderConfig,
        manifest: Option<Manifest>,
        started: Instant,
    ) -> Self {
        let mut run = Run::begin(manifest, started);
        let first = Push::start(job, config.clone(), &mut run, started);
        Self { run, first, config }
    }

    /// Continues a run that an earlier process may have begun. Before the push begins, the receiver ends an earlier
    /// transfer of the run, so that the push can resume from the data that this transfer stored.
    pub fn join_run(&mut self, run: TransferId) {
        self.run.join(run);
    }

    /// Pushes over the given connections, in a single session. Returns when the push is complete or `stop` resolves.
    ///
    /// # Errors
    /// The session failed. Failed files are not an error: the summary counts them.
    pub async fn push_over(
        self,
        link: Link,
        observer: Arc<dyn Observer>,
        stop: impl Future<Output = ()>,
    ) -> Result<Summary, SessionError> {
        let Self { mut run, first, .. } = self;
        Box::pin(first.run(&mut run, link, observer, stop)).await
    }
}

/// The parameters of a push to another host.
pub struct RemotePush<'a> {
    /// The receiver, and how the push reconnects to it.
    pub receiver: RetryPolicy<'a>,
    /// Creates the job of each later session. The job must equal the job of the first session. Blocking file operations
    /// must run on a separate thread, because the runtime may serve other tasks too.
    pub job: &'a (dyn Fn() -> JobFuture + Sync),
    /// Limits the resources that the receiver may use on this side.
    pub quota: Arc<dyn PeerQuota>,
    /// Observer of the session's events.
    pub observer: Arc<dyn Observer>,
}

/// The future that creates a job. It may be dropped before it completes.
pub type JobFuture = Pin<Box<dyn Future<Output = Result<PushJob, BoxError>> + Send>>;

impl fmt::Debug for RemotePush<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("RemotePush");
        shown
            .field("receiver", &self.receiver)
            .finish_non_exhaustive()
    }
}

impl RemotePush<'_> {
    /// Pushes the sources. Returns when the push is complete, `stop` resolves, or there has been no connection for too
    /// long.
    ///
    /// # Errors
    /// The receiver cannot be reached or refuses the push, or connections were lost for too long. Failed files are not
    /// an error: the summary counts them.
    pub async fn push(
        &self,
        push: StartedPush,
        stop: impl Future<Output = ()>,
    ) -> Result<Transferred, PushError> {
        let StartedPush { run, first, config } = push;
        let mut sessions = PushSessions {
            of: self,
            need: first.lane_demand(),
            first: Some(first),
            config,
            run,
        };
        self.receiver.run(&mut sessions, stop).await
    }
}

/// The sessions of a push.
struct PushSessions<'a, 'b> {
    of: &'a RemotePush<'b>,
    /// The first session, until it is connected. It has already started to scan the sources.
    first: Option<Push>,
    need: LaneDemand,
    config: SenderConfig,
    run: Run,
}

impl PushSessions<'_, '_> {
    /// Pushes over the given connections. In a later session, the scan of the sources starts now.
    async fn push_over(
        &mut self,
        link: Link,
        mut stop: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<Summary, PushError> {
        let push = match self.first.take() {
            Some(first) => first,
            None => unless_interrupted(stop.as_mut(), self.start_again()).await?,
        };
        let link = Link {
            quota: self.of.quota.clone(),
            ..link
        };
        let observer = Arc::clone(&self.of.observer);
        Ok(Box::pin(push.run(&mut self.run, link, observer, stop)).await?)
    }

    async fn start_again(&mut self) -> Result<Push, PushError> {
        let job = (self.of.job)().await.map_err(PushError::Job)?;
        let started = tokio::time::Instant::now().into_std();
        Ok(Push::start(
            job,
            self.config.clone(),
            &mut self.run,
            started,
        ))
    }
}

impl Sessions for PushSessions<'_, '_> {
    async fn session<S: Future<Output = ()>>(
        &mut self,
        until: Option<tokio::time::Instant>,
        mut stop: Pin<&mut S>,
    ) -> Result<Transferred, PushError> {
        let connector = &self.of.receiver.connector;
        let dial = connector.open(Some(&self.need), stop.as_mut());
        let ConnectedHost { link, route, .. } = in_time(until, SessionError::Silent, dial).await?;
        let asked = route.asked();
        self.run.exclude_prompt_time(asked);
        let first = self.first.take();
        self.first = first.map(|first| first.exclude_prompt_time(asked));
        let pushed = self.push_over(link, stop).await;
        route.finish(pushed, connector.listener).await
    }

    fn standing(&mut self) -> &mut RunState {
        &mut self.run.standing
    }
}
