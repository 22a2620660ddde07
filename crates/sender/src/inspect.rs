//! A session that inspects: either a preview of a push, which only reports what it would do, or a verification. The
//! planner receives the entries of the scan as in any push, but passes them to a [`Listing`](listing::Listing), which
//! asks the receiver about all of them.
//!
//! **Invariant:** no data is sent, because no reader or lane thread is started. The receiver knows from the intent of
//! the opening that it must not change anything. An inspection that loses its connections ends, because another session
//! would print everything again.

pub(crate) mod hashing;
pub(crate) mod listing;
mod verification;
