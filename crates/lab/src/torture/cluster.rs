//! `torture --cluster` runs one job at a time on several nodes, with a broker and with receivers that share the
//! target's storage. Heads, nodes, receivers and the broker are killed, or stopped and resumed, possibly only during
//! the next job. The broker loses its consumers, its queue, or all its data. The push is repeated until it succeeds.
//! Then the target must equal the source, and nothing may be left of the jobs.
//!
//! **Invariant:** the seed determines the order of the events, but their timing varies.

mod acts;
mod broker;
mod round;
mod stand;
mod tally;

pub(crate) use self::acts::{Crowd, Who};
pub(crate) use self::round::{host_of, run};
pub(crate) use self::stand::{CLUSTER, Stand};
pub(crate) use self::tally::ClusterTally;
