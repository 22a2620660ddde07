//! The nodes that share the work of a push, as reported by the head: `nodes` of `docs/schema/events.json`.

use serde::{Deserialize, Serialize};
use strum::AsRefStr;
use utoipa::ToSchema;

/// The nodes that take part in a push.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Nodes {
    /// The kind of the nodes.
    pub kind: Party,
    /// The number of nodes.
    pub count: u64,
    /// Items of work that no node has taken yet, if known.
    pub items_waiting: Option<u64>,
    /// At most 64 nodes, the slowest ones first.
    pub nodes: Vec<Node>,
    /// The receivers of a cluster's nodes, in the same order. Empty if the nodes are receivers themselves.
    pub receivers: Vec<Node>,
}

/// The kind of node that shares the work of a push.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, AsRefStr, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Party {
    /// A node of a cluster.
    #[default]
    Node,
    /// One of several receivers to which one node sends.
    Receiver,
}

/// The state and progress of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Node {
    /// The name of the node.
    pub name: String,
    /// The node's state.
    pub state: Pace,
    /// Files that the node has moved to the target.
    pub files: u64,
    /// Bytes that the node has moved to the target.
    pub bytes: u64,
    /// The recent rate, in bytes per second.
    pub bytes_per_second: u64,
    /// The recent rate in percent of the median rate of the other working nodes. `None` if no other node is working.
    pub percent_of_others: Option<u64>,
}

/// The state of a node.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, AsRefStr, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Pace {
    /// The node has not reported for a while.
    Silent,
    /// The node moves data at less than half the rate of the others.
    Slow,
    /// The node keeps up with the others.
    #[default]
    Works,
    /// The node has finished its part of the work.
    Ended,
}
