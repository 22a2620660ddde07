//! A push to another host: each session that follows one that broke off dials, walks the sources again, and learns from
//! the receiver's answers what is there.
//!
//! **Invariant:** what of a push outlives a session is in its [`Run`].

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::time::Instant;
use zmove_sender::{
    Link, Need, PeerQuota, Push, PushJob, Run, SenderConfig, SessionError, Standing, Summary,
};
use zmove_types::Observer;

use crate::connecting::dial::{Reached, Transferred};
use crate::error::{BoxError, PushError};
use crate::retrying::{Retrying, Sessions, moment};

/// All that each session of a push to another host needs.
pub struct RemotePush<'a> {
    /// The receiver, and how the push goes on when connections are lost.
    pub receiver: Retrying<'a>,
    /// Makes the job of each later session, equal to the first session's. What blocks on files is done on another
    /// thread: a runtime may serve others as well.
    pub job: &'a (dyn Fn() -> JobMaking + Sync),
    /// The settings of the sender.
    pub config: SenderConfig,
    /// What the receiver may hold here.
    pub quota: Arc<dyn PeerQuota>,
    /// The observer of what happens in a session.
    pub observer: Arc<dyn Observer>,
}

/// A job that is being made. Nobody waits for it any more when it is dropped.
pub type JobMaking = Pin<Box<dyn Future<Output = Result<PushJob, BoxError>> + Send>>;

impl fmt::Debug for RemotePush<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("RemotePush");
        shown
            .field("receiver", &self.receiver)
            .finish_non_exhaustive()
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
    ) -> Result<Transferred, PushError> {
        let need = first.need();
        let mut sessions = PushSessions {
            of: self,
            push: Some(first),
            need,
            run,
        };
        self.receiver.run(&mut sessions, stop).await
    }

    /// Pushes over these connections; without a `push` the walk of the sources begins now.
    async fn push_over(
        &self,
        link: Link,
        push: Option<Push>,
        run: &mut Run,
        mut stop: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<Summary, PushError> {
        let push = match push {
            Some(push) => push,
            None => tokio::select! {
                push = self.start_again(run) => push?,
                () = &mut stop => return Err(SessionError::Interrupted.into()),
            },
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

/// The sessions of one push.
struct PushSessions<'a, 'b> {
    of: &'a RemotePush<'b>,
    /// The first session, whose walk of the sources has begun.
    push: Option<Push>,
    need: Need,
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
        let Reached { link, route, .. } = tokio::select! {
            reached = connector.connect(Some(&self.need)) => reached?,
            () = moment(until) => return Err(SessionError::Silent.into()),
            () = &mut stop => return Err(SessionError::Interrupted.into()),
        };
        connector.begin_session(&link);
        let asked = route.asked();
        self.run.leave_out(asked);
        let push = self.push.take().map(|push| push.without(asked));
        let pushed = self.of.push_over(link, push, self.run, stop).await;
        route.finish(pushed, connector.listener).await
    }

    fn standing(&mut self) -> &mut Standing {
        &mut self.run.standing
    }
}
