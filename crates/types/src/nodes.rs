//! Those who share the work of one push, as its head sees them.

/// The nodes of a push in which several take part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nodes {
    /// What they are.
    pub party: Party,
    /// How many there are.
    pub count: u64,
    /// Items of work that nobody has taken yet; `None` where the queue does not say.
    pub waiting: Option<u64>,
    /// The nodes, those first that hold up the others; of very many not all.
    pub nodes: Vec<Node>,
    /// The receivers of the nodes of a cluster, in the same order. Empty if the nodes are receivers themselves.
    pub receivers: Vec<Node>,
}

/// What shares the work of a push.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Party {
    /// The nodes of a cluster.
    #[default]
    Nodes,
    /// Several receivers of one node.
    Receivers,
}

impl Party {
    /// What is called by this word; nodes for an unknown one.
    #[must_use]
    pub fn of(word: &str) -> Self {
        if word == Self::Receivers.word() {
            Self::Receivers
        } else {
            Self::Nodes
        }
    }

    /// One word for one of them.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Nodes => "node",
            Self::Receivers => "receiver",
        }
    }
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The name of the node.
    pub name: String,
    /// How it is.
    pub pace: Pace,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// The node has not been heard of for a while.
    Silent,
    /// The node moves much less than the others.
    Slow,
    /// The node keeps up.
    Works,
    /// The node has ended its part.
    Ended,
}

impl Pace {
    /// The pace of this word; that of a node that keeps up for an unknown one.
    #[must_use]
    pub fn of(word: &str) -> Self {
        let all = [Self::Silent, Self::Slow, Self::Works, Self::Ended];
        all.into_iter()
            .find(|pace| pace.word() == word)
            .unwrap_or(Self::Works)
    }

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
