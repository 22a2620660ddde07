//! A session that inspects: a push that only reports what it would do, or a verification. The planner takes what the
//! scan finds, as in any push, and gives it to a [`Listing`](listing::Listing), which asks the receiver about all of
//! it.
//!
//! **Invariant:** no data leaves, since no thread is started that reads for a lane or sends on one. The receiver knows
//! from the intent of the opening that nothing may change. An inspection whose connections are lost ends: another
//! session would print all of it again.

pub(crate) mod hashing;
pub(crate) mod listing;
mod verification;
