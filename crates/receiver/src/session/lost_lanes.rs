//! Lanes whose connections are lost while the control connection works. The sender reports their items and resends them
//! over other lanes.
//!
//! **Invariant:** if the sender does not report a lost lane in time, the transfer ends, so no thread waits forever for
//! the items of that lane.

use std::future::pending;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use zmove_transport::LaneError;

use crate::error::SessionError;

/// Tracks the lost lanes of one transfer.
#[derive(Debug, Default)]
pub(crate) struct LostLanes {
    /// Number of lost lanes that the sender has reported, minus the number that this side has detected.
    ahead: i64,
    waiting: Option<(Instant, SessionError)>,
}

/// Time limit for a sender to report a lost lane.
const LANE_REPORT_TIMEOUT: Duration = Duration::from_secs(60);

impl LostLanes {
    /// Records that this side has lost a lane.
    pub(crate) fn note(&mut self, error: SessionError) {
        self.ahead -= 1;
        if self.ahead < 0 && self.waiting.is_none() {
            self.waiting = Some((Instant::now() + LANE_REPORT_TIMEOUT, error));
        }
    }

    /// Records that the sender has reported a lost lane.
    pub(crate) fn note_reported(&mut self) {
        self.ahead += 1;
        if self.ahead >= 0 {
            self.waiting = None;
        }
    }

    /// Waits until the sender is overdue to report a lost lane, and returns the error of that lane.
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
        assert_eq!(start.elapsed(), LANE_REPORT_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn it_does_not_matter_who_is_first() {
        let mut lost = LostLanes::default();
        lost.note(LaneError::Closed.into());
        lost.note_reported();
        lost.note_reported();
        lost.note(LaneError::Closed.into());
        assert!(
            tokio::time::timeout(LANE_REPORT_TIMEOUT * 2, lost.overdue())
                .await
                .is_err()
        );
    }
}
