//! Orders from the head of a job to a receiver.
//!
//! **Invariant:** each order has a time limit. A receiver answers pings even if its storage hangs. In that case, the
//! head tries another receiver.

use std::time::Duration;

use tokio::time::timeout;
use zmove_sender::Feeder;
use zmove_wire::{NotKept, SharedJobOrder, SharedJobResult};

use crate::error::{SessionEnd, refused};

/// Gives orders in one session. Clones share the session.
#[derive(Clone)]
pub(crate) struct Orders {
    pub(crate) feeder: Feeder,
    /// Time limit for the answer to each order.
    pub(crate) answers_within: Duration,
}

impl Orders {
    /// Gives an order and returns the answer.
    pub(crate) async fn answer(
        &self,
        order: SharedJobOrder,
    ) -> Result<SharedJobResult, SessionEnd> {
        let answer = timeout(self.answers_within, self.feeder.order(order, None)).await;
        Ok(answer.map_err(|_elapsed| SessionEnd::OrderTimeout(self.answers_within))??)
    }

    /// Gives an order whose answer contains no data.
    pub(crate) async fn give(&self, order: SharedJobOrder) -> Result<(), SessionEnd> {
        match self.answer(order).await? {
            SharedJobResult::Done => Ok(()),
            other => Err(refused(other)),
        }
    }

    /// Orders the receiver to publish and flush all its data. Returns the metadata that could not be preserved.
    pub(crate) async fn settle(&self) -> Result<Vec<NotKept>, SessionEnd> {
        settled(self.answer(SharedJobOrder::Settle).await?)
    }
}

/// Returns the metadata that could not be preserved from the answer to a settle order.
pub(crate) fn settled(result: SharedJobResult) -> Result<Vec<NotKept>, SessionEnd> {
    match result {
        SharedJobResult::Settled(not_kept) => Ok(not_kept),
        other => Err(refused(other)),
    }
}
