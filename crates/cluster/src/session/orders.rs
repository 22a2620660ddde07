//! The orders of a job's head to a receiver.
//!
//! **Invariant:** none is waited for without end. A receiver answers pings whatever its storage does; where that hangs,
//! another receiver is asked.

use std::time::Duration;

use tokio::time::timeout;
use zmove_sender::Feeder;
use zmove_wire::{NotKept, SharedJobOrder, SharedJobResult};

use crate::error::{Stop, refused};

/// The orders of one session. Clones share it.
#[derive(Clone)]
pub(crate) struct Orders {
    pub(crate) feeder: Feeder,
    /// How long each may take to be answered.
    pub(crate) answers_within: Duration,
}

impl Orders {
    /// The answer to an order, whatever it is.
    pub(crate) async fn answer(&self, order: SharedJobOrder) -> Result<SharedJobResult, Stop> {
        let answer = timeout(self.answers_within, self.feeder.order(order, None)).await;
        Ok(answer.map_err(|_elapsed| Stop::Hangs(self.answers_within))??)
    }

    /// Gives an order of which there is nothing to be told but that it is done.
    pub(crate) async fn give(&self, order: SharedJobOrder) -> Result<(), Stop> {
        match self.answer(order).await? {
            SharedJobResult::Done => Ok(()),
            other => Err(refused(other)),
        }
    }

    /// Has the receiver name and flush all that it has. Returns what entries did not get.
    pub(crate) async fn settle(&self) -> Result<Vec<NotKept>, Stop> {
        settled(self.answer(SharedJobOrder::Settle).await?)
    }
}

/// What entries did not get that were to be named and flushed.
pub(crate) fn settled(result: SharedJobResult) -> Result<Vec<NotKept>, Stop> {
    match result {
        SharedJobResult::Settled(not_kept) => Ok(not_kept),
        other => Err(refused(other)),
    }
}
