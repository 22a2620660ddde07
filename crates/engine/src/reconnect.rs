//! A push to another host, in one or more sessions. If a session loses its connections, the next session dials again,
//! scans the sources again, and learns from the receiver which data is already at the target.
//!
//! **Invariant:** all state that outlives a session is in its [`Run`].

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::time::Instant;
use zmove_sender::{
    LaneDemand, Link, PeerQuota, Push, PushJob, Run, RunState, SenderConfig, SessionError, Summary,
};
use zmove_types::Observer;

use crate::connecting::dial::{ConnectedHost, Transferred, in_time, unless_interrupted};
use crate::error::{BoxError, PushError};
use crate::retrying::{RetryPolicy, Sessions};

/// The parameters of a push to another host.
pub struct RemotePush<'a> {
    /// The receiver, and how the push reconnects to it.
    pub receiver: RetryPolicy<'a>,
    /// Creates the job of each later session. The job must equal that of the first session. Blocking file operations
    /// must run on a separate thread, because the runtime may serve other tasks too.
    pub job: &'a (dyn Fn() -> JobFuture + Sync),
    /// Settings of the sender.
    pub config: SenderConfig,
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
    /// long. `first` has already started to scan the sources.
    ///
    /// # Errors
    /// The receiver cannot be reached or refuses the push, or connections were lost for too long. Failed files are not
    /// an error: the summary counts them.
    pub async fn push(
        &self,
        first: Push,
        run: &mut Run,
        stop: impl Future<Output = ()>,
    ) -> Result<Transferred, PushError> {
        let need = first.lane_demand();
        let mut sessions = PushSessions {
            of: self,
            push: Some(first),
            need,
            run,
        };
        self.receiver.run(&mut sessions, stop).await
    }

    /// Pushes over the given connections. If `push` is `None`, the scan of the sources starts now.
    async fn push_over(
        &self,
        link: Link,
        push: Option<Push>,
        run: &mut Run,
        mut stop: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<Summary, PushError> {
        let push = match push {
            Some(push) => push,
            None => unless_interrupted(stop.as_mut(), self.start_again(run)).await?,
        };
        let link = Link {
            quota: self.quota.clone(),
            ..link
        };
        let pushing = Box::pin(push.run(run, link, Arc::clone(&self.observer), stop));
        Ok(pushing.await?)
    }

    async fn start_again(&self, run: &mut Run) -> Result<Push, PushError> {
        let job = (self.job)().await.map_err(PushError::Job)?;
        Ok(Push::start(
            job,
            self.config.clone(),
            run,
            Instant::now().into_std(),
        ))
    }
}

/// The sessions of a push.
struct PushSessions<'a, 'b> {
    of: &'a RemotePush<'b>,
    /// The first session, which has already started to scan the sources.
    push: Option<Push>,
    need: LaneDemand,
    run: &'a mut Run,
}

impl Sessions for PushSessions<'_, '_> {
    type Done = Transferred;

    async fn session<S: Future<Output = ()>>(
        &mut self,
        until: Option<Instant>,
        mut stop: Pin<&mut S>,
    ) -> Result<Transferred, PushError> {
        let connector = &self.of.receiver.connector;
        let dial = connector.open(Some(&self.need), stop.as_mut());
        let ConnectedHost { link, route, .. } = in_time(until, SessionError::Silent, dial).await?;
        let asked = route.asked();
        self.run.exclude_prompt_time(asked);
        let push = self.push.take().map(|push| push.exclude_prompt_time(asked));
        let pushed = self.of.push_over(link, push, self.run, stop).await;
        route.finish(pushed, connector.listener).await
    }

    fn standing(&mut self) -> &mut RunState {
        &mut self.run.standing
    }
}
