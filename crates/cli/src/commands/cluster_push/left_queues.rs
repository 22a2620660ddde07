//! Queues at the broker whose heads were killed. A broker gives each queue room for itself, and has no more at last.
//!
//! A head tells all nodes of its job each second. So nobody leads a job any more of which nothing has been heard for as
//! long as a dead job is silent at its target, while the broker was there.

use anyhow::Result;
use tokio::time::{Instant, sleep_until};
use zmove_cluster::WorkError;
use zmove_cluster::jetstream::{
    Access, JetStream, JobKey, JobNotice, Notice, Notices, OtherQueue, Settings,
};
use zmove_disk::DEAD_AFTER;

/// The queues of other jobs of the cluster of which nothing has been heard yet.
#[derive(Clone)]
pub(super) struct LeftQueues {
    access: Access,
    settings: Settings,
    silent: Vec<OtherQueue>,
    since: Instant,
}

impl LeftQueues {
    /// The queues of a cluster with this key that are not of the job of these settings; none where the broker does not
    /// tell of them.
    pub(super) async fn find(access: &Access, settings: Settings, key: &JobKey) -> Self {
        let found = JetStream::other_queues(access, settings.clone(), key).await;
        Self {
            access: access.clone(),
            settings,
            silent: found.unwrap_or_default(),
            since: Instant::now(),
        }
    }

    /// A head has told of its job.
    pub(super) fn hear(&mut self, notice: &JobNotice) {
        self.silent.retain(|queue| queue.job != notice.id());
    }

    /// The broker was away, and nobody could be heard.
    pub(super) fn hears_anew(&mut self) {
        self.since = Instant::now();
    }

    /// Resolves when those that are silent still have no head any more; never where there are none.
    pub(super) async fn are_left(&self) {
        if self.silent.is_empty() {
            return std::future::pending().await;
        }
        sleep_until(self.since + DEAD_AFTER).await;
    }

    /// Takes those that are silent, to be removed.
    pub(super) fn take(&mut self) -> Self {
        let silent = std::mem::take(&mut self.silent);
        Self {
            silent,
            ..self.clone()
        }
    }

    /// Removes the queues. A head that was stopped, and goes on, makes its queue again.
    pub(super) async fn remove(self) -> Result<(), WorkError> {
        JetStream::remove_queues(&self.access, self.settings, &self.silent).await
    }

    /// Listens until it is known which are left, and removes those.
    pub(super) async fn remove_in_time(&mut self, notices: &Notices) -> Result<()> {
        while !self.silent.is_empty() {
            tokio::select! {
                () = self.are_left() => self.take().remove().await?,
                heard = notices.hear() => {
                    if let Ok(Notice::Job(notice)) = heard?.notice {
                        self.hear(&notice);
                    }
                }
            }
        }
        Ok(())
    }
}
