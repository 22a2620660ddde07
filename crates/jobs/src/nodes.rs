//! The nodes that share the work of one push, as its head reports them: `nodes` of `docs/schema/events.json`.

use serde::{Deserialize, Serialize};

/// The nodes of a push in which several take part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nodes {
    /// What they are.
    pub kind: Party,
    /// How many there are.
    pub count: u64,
    /// Items of work that nobody has taken yet; `None` where the queue does not say.
    pub items_waiting: Option<u64>,
    /// The nodes, those first that hold up the others; of very many not all.
    pub nodes: Vec<Node>,
    /// The receivers of the nodes of a cluster, in the same order. Empty if the nodes are receivers themselves.
    pub receivers: Vec<Node>,
}

/// What shares the work of a push.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Party {
    /// The nodes of a cluster.
    #[default]
    Node,
    /// Several receivers of one node.
    Receiver,
}

impl Party {
    /// One word for one of them.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Receiver => "receiver",
        }
    }
}

/// One of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// That rate in percent of the median of the other nodes at work; `None` where there is nothing to compare.
    pub percent_of_others: Option<u64>,
}

/// How a node is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pace {
    /// The node has not been heard of for a while.
    Silent,
    /// The node moves much less than the others.
    Slow,
    /// The node keeps up.
    #[default]
    Works,
    /// The node has ended its part.
    Ended,
}

impl Pace {
    /// One word for it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Silent => "silent",
            Self::Slow => "slow",
            Self::Works => "works",
            Self::Ended => "ended",
        }
    }
}
