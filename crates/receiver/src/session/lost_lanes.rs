//! Lanes whose connections are lost while control lives: the sender reports their items, and sends them by other lanes.
//!
//! **Invariant:** a lost lane that the sender does not report ends the transfer in the end, so nobody waits for its
//! items.

use std::future::pending;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use zmove_transport::LaneError;

use crate::error::SessionError;

/// The lost lanes of one transfer; see the module.
#[derive(Debug, Default)]
pub(crate) struct LostLanes {
    /// Lanes that the sender has reported before their end was seen here, less those that it has not reported.
    ahead: i64,
    waiting: Option<(Instant, SessionError)>,
}

/// How long a sender may take to notice that a lane is lost.
const EXPLANATION_MAX: Duration = Duration::from_secs(60);

impl LostLanes {
    /// Counts a lane that has broken.
    pub(crate) fn note(&mut self, error: SessionError) {
        self.ahead -= 1;
        if self.ahead < 0 && self.waiting.is_none() {
            self.waiting = Some((Instant::now() + EXPLANATION_MAX, error));
        }
    }

    /// Counts a lane that the sender has reported.
    pub(crate) fn explained(&mut self) {
        self.ahead += 1;
        if self.ahead >= 0 {
            self.waiting = None;
        }
    }

    /// Waits until the sender has not reported a lane for too long.
    pub(crate) async fn overdue(&mut self) -> SessionError {
        match &self.waiting {
            Some((until, _)) => sleep_until(*until).await,
            None => pending().await,
        }
        self.waiting
            .take()
            .map_or(LaneError::Closed.into(), |(_, error)| error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_lane_that_nobody_speaks_of_is_overdue() {
        let mut lost = LostLanes::default();
        lost.note(LaneError::Closed.into());
        let start = Instant::now();
        lost.overdue().await;
        assert_eq!(start.elapsed(), EXPLANATION_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn it_does_not_matter_who_is_first() {
        let mut lost = LostLanes::default();
        lost.note(LaneError::Closed.into());
        lost.explained();
        lost.explained();
        lost.note(LaneError::Closed.into());
        assert!(
            tokio::time::timeout(EXPLANATION_MAX * 2, lost.overdue())
                .await
                .is_err()
        );
    }
}
