//! The roll of the nodes in a job: what each has moved and how fast, and which hold up the others.
//!
//! The head's own share is counted here too, as the observer of its movers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::time::{interval, timeout};
use zmove_cluster::WorkSource;
use zmove_cluster::jetstream::{NodePart, NodeState};
use zmove_types::{Event, Node, Nodes, Observer, Pace};

/// The roll of one job.
pub(super) struct Roll {
    observer: Arc<dyn Observer>,
    head: String,
    entries: Mutex<BTreeMap<String, Entry>>,
}

/// What is known of a node.
#[derive(Default)]
struct Entry {
    files: u64,
    bytes: u64,
    has_ended: bool,
    was_slow: bool,
    heard: Option<Instant>,
    /// How many bytes there were, at moments of the last seconds.
    marks: VecDeque<(Instant, u64)>,
}

/// A node as it is at one moment.
struct Look {
    node: Node,
    /// Whether it has been looked at for long enough to be compared.
    is_known: bool,
    /// Whether it has moved something of late.
    is_moving: bool,
    was_slow: bool,
}

impl Roll {
    /// The roll of a job with this head.
    pub(super) fn new(head: String, observer: Arc<dyn Observer>) -> Self {
        let entries = Mutex::new(BTreeMap::from([(head.clone(), Entry::default())]));
        Self { observer, head, entries }
    }

    /// Takes what a node tells, which it does each second.
    pub(super) fn hear(&self, node: &str, NodePart { state, moved, .. }: &NodePart) {
        let mut entries = self.entries();
        let entry = entries.entry(node.to_owned()).or_default();
        (entry.files, entry.bytes) = (moved.files, moved.bytes);
        entry.has_ended = *state == NodeState::HasEnded;
        entry.heard = Some(Instant::now());
    }

    /// Forgets a node that takes no part after all.
    pub(super) fn strike(&self, node: &str) {
        self.entries().remove(node);
    }

    /// Tells the observer each second how the nodes are, for ever.
    pub(super) async fn tell(&self, queue: Arc<impl WorkSource>) -> Infallible {
        let mut ticks = interval(TELL_EVERY);
        loop {
            ticks.tick().await;
            if self.entries().len() > 1 {
                // A broker that is away is not waited for: it is not what is wanted here.
                let waiting = timeout(TELL_EVERY, queue.waiting()).await;
                let waiting = waiting.ok().and_then(Result::ok).map(|waiting| waiting.waiting);
                self.observer.on(&Event::Nodes(self.look(waiting, Instant::now())));
            }
        }
    }

    /// How the nodes are now.
    fn look(&self, waiting: Option<u64>, now: Instant) -> Nodes {
        let mut entries = self.entries();
        let looks = entries.iter_mut().map(|(name, entry)| entry.look(name, now));
        let mut looks: Vec<_> = looks.collect();
        compare(&mut looks, waiting);
        for (entry, look) in entries.values_mut().zip(&looks) {
            entry.was_slow = look.node.pace == Pace::Slow;
        }
        drop(entries);
        let mut nodes: Vec<_> = looks.into_iter().map(|look| look.node).collect();
        let count = nodes.len() as u64;
        nodes.sort_by_key(|node| Reverse(matches!(node.pace, Pace::Slow | Pace::Silent)));
        nodes.truncate(NODES_MAX);
        Nodes { count, waiting, nodes }
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Roll {
    fn on(&self, event: &Event) {
        if let Event::Stored { files, bytes } = event {
            let mut entries = self.entries();
            let own = entries.entry(self.head.clone()).or_default();
            own.files += files;
            own.bytes += bytes;
        }
        self.observer.on(event);
    }
}

impl Entry {
    fn look(&mut self, name: &str, now: Instant) -> Look {
        let is_silent = self.heard.is_some_and(|heard| now.duration_since(heard) > SILENT_AFTER);
        let pace = match (self.has_ended, is_silent) {
            (true, _) => Pace::Ended,
            (false, true) => Pace::Silent,
            (false, false) => Pace::Works,
        };
        let bytes_per_second = self.rate(now);
        let (name, files, bytes) = (name.to_owned(), self.files, self.bytes);
        let node = Node { name, pace, files, bytes, bytes_per_second, percent_of_others: None };
        let ago = |span| move |(then, _): &&(Instant, u64)| now.duration_since(*then) >= span;
        let is_known = self.marks.iter().any(|mark| ago(WINDOW)(&mark));
        let before = self.marks.iter().rev().find(ago(IDLE_AFTER));
        let is_moving = before.is_some_and(|(_, before)| *before < bytes);
        Look { node, is_known, is_moving, was_slow: self.was_slow }
    }

    /// The bytes of a second, over the last seconds.
    fn rate(&mut self, now: Instant) -> u64 {
        self.marks.push_back((now, self.bytes));
        while self.marks.len() > 2 && now.duration_since(self.marks[1].0) >= WINDOW {
            self.marks.pop_front();
        }
        let (since, before) = self.marks[0];
        let millis = u64::try_from(now.duration_since(since).as_millis()).unwrap_or(u64::MAX);
        self.bytes.saturating_sub(before).saturating_mul(1000).checked_div(millis).unwrap_or_default()
    }
}

/// Compares the rates of the nodes at work that are known for long enough. Where no item waits, one that moves nothing
/// has nothing to do, and is not compared. One that was slow stays so when nobody else has anything to do: all wait for
/// it.
fn compare(looks: &mut [Look], waiting: Option<u64>) {
    let has_work = |look: &Look| look.is_moving || waiting.is_some_and(|waiting| waiting > 0);
    let works = |look: &Look| look.node.pace == Pace::Works && look.is_known && has_work(look);
    let rates: Vec<_> = looks.iter().map(|look| works(look).then_some(look.node.bytes_per_second)).collect();
    for (at, Look { node, is_moving, was_slow, .. }) in looks.iter_mut().enumerate() {
        let Some(rate) = rates[at] else { continue };
        let others = rates.iter().enumerate().filter(|(other, _)| *other != at);
        let mut others: Vec<_> = others.filter_map(|(_, rate)| *rate).collect();
        others.sort_unstable();
        let median = others.get(others.len() / 2).copied().filter(|median| *median > 0);
        node.percent_of_others = median.map(|median| rate.saturating_mul(100) / median);
        let below = if *was_slow { KEEPS_UP_PERCENT } else { SLOW_PERCENT };
        let is_slow = node.percent_of_others.map_or(*was_slow && *is_moving, |percent| percent < below);
        if is_slow {
            node.pace = Pace::Slow;
        }
    }
}

/// How often the observer is told.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// How long a node may say nothing: it tells each second.
const SILENT_AFTER: Duration = Duration::from_secs(5);
/// What rates are measured over: items come and go in less.
const WINDOW: Duration = Duration::from_secs(5);
/// How long a node moves nothing that has something to do, at most: what it moves is told in pieces of some MiB.
const IDLE_AFTER: Duration = Duration::from_secs(3);
/// Below so much of what others move a node is slow.
const SLOW_PERCENT: u64 = 50;
/// From so much on it is so no longer: rates of others that have just run out of work sink slowly.
const KEEPS_UP_PERCENT: u64 = 80;
/// The most nodes that are told of.
const NODES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use zmove_cluster::jetstream::NodeMoved;
    use zmove_types::NoObserver;

    use super::*;

    fn part(bytes: u64, state: NodeState) -> NodePart {
        let moved = NodeMoved { files: 1, bytes, ..NodeMoved::default() };
        NodePart { job: [0; 16], state, moved, items: 1, granted_until: None }
    }

    fn paces(nodes: &Nodes) -> Vec<(&str, Pace)> {
        nodes.nodes.iter().map(|node| (node.name.as_str(), node.pace)).collect()
    }

    /// A roll that the head and three nodes have told of so many bytes, as it is after 12 s.
    fn told(bytes: impl Fn(u64) -> [u64; 4], waiting: u64) -> Nodes {
        let roll = Roll::new("head".into(), Arc::new(NoObserver));
        let began = Instant::now();
        let mut nodes = Nodes::default();
        for second in 0..=12 {
            let [head, others @ ..] = bytes(second);
            for (node, bytes) in ["n1", "n2", "n3"].into_iter().zip(others) {
                roll.hear(node, &part(bytes, NodeState::Works));
            }
            let before = roll.entries()["head"].bytes;
            roll.on(&Event::Stored { files: 0, bytes: head - before });
            // that time has not passed
            roll.entries().values_mut().for_each(|entry| entry.heard = None);
            nodes = roll.look(Some(waiting), began + Duration::from_secs(second));
        }
        nodes
    }

    fn slow(nodes: &Nodes) -> Vec<&str> {
        paces(nodes).into_iter().filter(|(_, pace)| *pace == Pace::Slow).map(|(name, _)| name).collect()
    }

    #[test]
    fn a_node_that_moves_less_than_half_of_what_the_others_do_is_slow() {
        let nodes = told(|second| [1000, 1000, 300, 1100].map(|rate| rate * second), 7);
        assert_eq!((nodes.count, nodes.waiting), (4, Some(7)));
        let expected = [("n2", Pace::Slow), ("head", Pace::Works), ("n1", Pace::Works), ("n3", Pace::Works)];
        assert_eq!(paces(&nodes), expected);
        let first = &nodes.nodes[0];
        assert_eq!((first.bytes, first.bytes_per_second, first.percent_of_others), (3600, 300, Some(30)));
        assert_eq!(nodes.nodes[1].bytes, 12_000, "the head's own movers are counted");
    }

    #[test]
    fn who_has_nothing_to_do_is_not_slow_and_whom_all_wait_for_is() {
        let idle = |second: u64| [1000 * second, 1000 * second, 1000 * second.min(8), 1000 * second];
        assert_eq!(slow(&told(idle, 0)), [""; 0]);
        assert_eq!(slow(&told(idle, 1)), ["n2"]);
        let last =
            |second: u64| [1000 * second.min(8), 1000 * second.min(8), 300 * second, 1000 * second.min(8)];
        assert_eq!(slow(&told(last, 0)), ["n2"]);
    }

    #[test]
    fn a_node_that_says_nothing_is_silent_unless_it_has_ended() {
        let roll = Roll::new("head".into(), Arc::new(NoObserver));
        let began = Instant::now();
        roll.hear("n1", &part(10, NodeState::Works));
        roll.hear("n2", &part(10, NodeState::HasEnded));
        assert_eq!(roll.look(None, began).nodes[1].pace, Pace::Works);
        let later = roll.look(None, began + SILENT_AFTER + Duration::from_secs(2));
        assert_eq!(paces(&later), [("n1", Pace::Silent), ("head", Pace::Works), ("n2", Pace::Ended)]);
    }
}
