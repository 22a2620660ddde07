//! Outstanding requests of a peer, by kind. Each kind has its own limit, because listings use much more memory than
//! verdicts.

use std::sync::Arc;

use zmove_wire::Question;
use zmove_wire::limits::{
    HASHES_OUTSTANDING_MAX, JOB_ORDERS_OUTSTANDING_MAX, LISTINGS_OUTSTANDING_MAX,
    REMOVES_OUTSTANDING_MAX, REQUESTS_OUTSTANDING_MAX,
};

use crate::error::SessionError;

/// A request of the peer. It counts as outstanding until this value is dropped.
pub(crate) type PendingRequest = Arc<()>;

/// The outstanding requests of each kind. Each counter has one reference here, and one for each outstanding request.
#[derive(Debug, Default)]
pub(super) struct OpenRequests {
    entries: PendingRequest,
    hashes: PendingRequest,
    listings: PendingRequest,
    removals: PendingRequest,
    orders: PendingRequest,
}

impl OpenRequests {
    /// Checks a question against the limits and counts it as outstanding.
    pub(super) fn ask(&self, question: &Question) -> Result<PendingRequest, SessionError> {
        question.check()?;
        let (open, most) = match question {
            Question::Send(_) | Question::Report(_) => (&self.entries, REQUESTS_OUTSTANDING_MAX),
            Question::Hash(_) => (&self.hashes, HASHES_OUTSTANDING_MAX),
            Question::Extraneous(_) => (&self.listings, LISTINGS_OUTSTANDING_MAX),
        };
        count(
            open,
            most,
            "a request before the replies to earlier requests",
        )
    }

    /// Counts a list of names to remove as outstanding.
    pub(super) fn remove(&self) -> Result<PendingRequest, SessionError> {
        count(
            &self.removals,
            REMOVES_OUTSTANDING_MAX,
            "a list of names to remove",
        )
    }

    /// Counts a request about a shared job as outstanding.
    pub(super) fn order(&self) -> Result<PendingRequest, SessionError> {
        let what = "an order before the replies to earlier orders";
        count(&self.orders, JOB_ORDERS_OUTSTANDING_MAX, what)
    }

    /// Returns whether no listings and removals are outstanding.
    pub(super) fn is_mirror_idle(&self) -> bool {
        [&self.listings, &self.removals].into_iter().all(is_idle)
    }

    /// Returns whether all questions have been answered.
    pub(super) fn has_no_questions(&self) -> bool {
        [&self.entries, &self.hashes, &self.listings]
            .into_iter()
            .all(is_idle)
    }
}

fn is_idle(open: &PendingRequest) -> bool {
    Arc::strong_count(open) == 1
}

fn count(
    open: &PendingRequest,
    most: usize,
    what: &'static str,
) -> Result<PendingRequest, SessionError> {
    if Arc::strong_count(open) > most {
        return Err(SessionError::out_of_order(what));
    }
    Ok(Arc::clone(open))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_counts_until_its_answer_is_dropped() {
        let requests = OpenRequests::default();
        let ask = || requests.remove();
        let mut open: Vec<_> = (0..REMOVES_OUTSTANDING_MAX)
            .map(|_| ask().unwrap())
            .collect();
        assert!(ask().is_err() && !requests.is_mirror_idle());
        open.pop();
        open.push(ask().unwrap());
        assert!(ask().is_err());
        drop(open);
        assert!(requests.is_mirror_idle() && requests.has_no_questions());
    }
}
