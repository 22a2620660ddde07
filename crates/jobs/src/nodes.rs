//! The nodes that share the work of one push, as its head reports them: `nodes` of `docs/schema/events.json`.

use serde::{Deserialize, Serialize};
use strum::AsRefStr;
use utoipa::ToSchema;

/// The nodes that take part in a push.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Nodes {
    /// What they are.
    pub kind: Party,
    /// How many there are.
    pub count: u64,
    /// Items of work that nobody has taken yet, if that is known.
    pub items_waiting: Option<u64>,
    /// The nodes, those first that hold up the others; 64 at most.
    pub nodes: Vec<Node>,
    /// The receivers of the nodes of a cluster, in the same order. Empty if the nodes are receivers themselves.
    pub receivers: Vec<Node>,
}

/// What shares the work of a push.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, AsRefStr, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Party {
    /// The nodes of a cluster.
    #[default]
    Node,
    /// Several receivers of one node.
    Receiver,
}

/// One node of several.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Node {
    /// The name of the node.
    pub name: String,
    /// How it is.
    pub state: Pace,
    /// Files that are at the target by it.
    pub files: u64,
    /// Bytes that it has brought there.
    pub bytes: u64,
    /// The rate of the last seconds.
    pub bytes_per_second: u64,
    /// That rate in percent of the median of the others at work, where there is one.
    pub percent_of_others: Option<u64>,
}

/// How a node is.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, AsRefStr, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Pace {
    /// The node has not been heard of for a while.
    Silent,
    /// The node moves less than half of what the others move.
    Slow,
    /// The node keeps up.
    #[default]
    Works,
    /// The node has ended its part.
    Ended,
}
