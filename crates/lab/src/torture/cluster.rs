//! `torture --cluster`: one job at a time by several nodes, with receivers that share the storage of the target and a
//! broker. Heads, nodes, receivers and the broker are killed, or stopped and woken, which may be when the next job is
//! under way; the broker loses messages, its streams, or all that it has. The push is given again until it ends well.
//! Then the target must be the source, and nothing may be left of the jobs.
//!
//! **Invariant:** what happens in which order is the seed's; when it strikes is a matter of time.

mod acts;
mod broker;
mod round;
mod stand;
mod tally;

pub(crate) use self::acts::{Crowd, Who};
pub(crate) use self::round::{host_of, run};
pub(crate) use self::stand::{CLUSTER, Stand};
pub(crate) use self::tally::ClusterTally;
