//! Measures the rates of the nodes or receivers of a push, and finds the nodes or receivers that hold up the others.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use zmove_jobs::{Node, Pace};
use zmove_wire::FileTotal;

/// The bytes that a node or receiver had moved at several times during the last seconds.
#[derive(Default)]
pub(super) struct Rate {
    marks: VecDeque<(Instant, u64)>,
    was_slow: bool,
}

/// The state of a node or receiver at one point in time.
pub(super) struct RateSample<'a> {
    node: Node,
    was_slow: &'a mut bool,
    /// Whether the rate was measured for long enough to be compared.
    is_known: bool,
    /// Whether data was moved in the last seconds.
    is_moving: bool,
}

impl Rate {
    /// Takes a sample of a node or receiver, given the total that it has moved so far.
    pub(super) fn sample(
        &mut self,
        name: &str,
        state: Pace,
        moved: FileTotal,
        now: Instant,
    ) -> RateSample<'_> {
        let FileTotal { files, bytes } = moved;
        let age = |then: Instant| now.duration_since(then);
        self.marks.push_back((now, bytes));
        while self.marks.len() > 2 && age(self.marks[1].0) >= WINDOW {
            self.marks.pop_front();
        }
        let (since, before) = self.marks[0];
        let measured = age(since);
        let millis = u64::try_from(measured.as_millis()).unwrap_or(u64::MAX);
        let more = bytes.saturating_sub(before).saturating_mul(1000);
        let mut newest_first = self.marks.iter().rev();
        let recently = newest_first.find(|(then, _)| age(*then) >= IDLE_AFTER);
        RateSample {
            node: Node {
                name: name.to_owned(),
                state,
                files,
                bytes,
                bytes_per_second: more.checked_div(millis).unwrap_or_default(),
                percent_of_others: None,
            },
            was_slow: &mut self.was_slow,
            is_known: measured >= WINDOW,
            is_moving: recently.is_some_and(|(_, before)| *before < bytes),
        }
    }
}

/// Compares the rates of the participants at work. Returns the first `NODES_MAX` participants, starting with those that
/// hold up the others.
///
/// If no item is waiting, a node that moves nothing has no work and is not compared. If no other node has work, a node
/// that was slow stays slow, because all the other nodes wait for it.
pub(super) fn compare(mut looks: Vec<RateSample<'_>>, waiting: Option<u64>) -> Vec<Node> {
    let is_waiting = waiting.is_some_and(|waiting| waiting > 0);
    let rate = |look: &RateSample<'_>| {
        let is_at_work = look.node.state == Pace::Works && (look.is_moving || is_waiting);
        (is_at_work && look.is_known).then_some(look.node.bytes_per_second)
    };
    let mut rates: Vec<_> = looks.iter().filter_map(rate).collect();
    rates.sort_unstable();
    let middle = rates.len().saturating_sub(1) / 2;
    for look in &mut looks {
        let was_slow = std::mem::take(look.was_slow);
        let Some(rate) = rate(look) else { continue };
        // The median of the rates of all other participants. Removing this participant's rate shifts the higher rates
        // down by one index.
        let median = rates.get(middle + usize::from(rate <= rates[middle]));
        let median = median.filter(|median| **median > 0);
        let percent = median.map(|median| rate.saturating_mul(100) / median);
        let below = if was_slow {
            KEEPS_UP_PERCENT
        } else {
            SLOW_PERCENT
        };
        look.node.percent_of_others = percent;
        if percent.map_or(was_slow && look.is_moving, |percent| percent < below) {
            *look.was_slow = true;
            look.node.state = Pace::Slow;
        }
    }
    let mut nodes: Vec<_> = looks.into_iter().map(|look| look.node).collect();
    nodes.sort_by_key(|node| Reverse(matches!(node.state, Pace::Slow | Pace::Silent)));
    nodes.truncate(NODES_MAX);
    nodes
}

/// Duration over which rates are measured. A node needs less time than this to start and finish an item.
const WINDOW: Duration = Duration::from_secs(5);
/// A node at work that has moved nothing for this time counts as idle.
const IDLE_AFTER: Duration = Duration::from_secs(3);
/// A node is slow if its rate is below this percentage of the others' median.
const SLOW_PERCENT: u64 = 50;
/// A slow node counts as slow until its rate reaches this percentage of the others' median. The limit is higher than
/// `SLOW_PERCENT` because the measured rates of nodes that have run out of work decrease slowly.
const KEEPS_UP_PERCENT: u64 = 80;
/// Maximum number of nodes to show.
pub(super) const NODES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns four nodes after 12 s. `bytes` returns the bytes that each node has moved by a given second.
    fn after_12_seconds(bytes: impl Fn(u64) -> [u64; 4], waiting: u64) -> Vec<Node> {
        let began = Instant::now();
        let mut rates: [Rate; 4] = Default::default();
        let mut nodes = Vec::new();
        for second in 0..=12 {
            let now = began + Duration::from_secs(second);
            let names = ["n0", "n1", "n2", "n3"].into_iter().zip(bytes(second));
            let looks = names.zip(&mut rates).map(|((name, bytes), rate)| {
                rate.sample(name, Pace::Works, FileTotal { files: 1, bytes }, now)
            });
            nodes = compare(looks.collect(), Some(waiting));
        }
        nodes
    }

    fn slow(nodes: &[Node]) -> Vec<&str> {
        let slow = nodes.iter().filter(|node| node.state == Pace::Slow);
        slow.map(|node| node.name.as_str()).collect()
    }

    #[test]
    fn a_node_that_moves_less_than_half_of_what_the_others_do_is_slow() {
        let nodes = after_12_seconds(
            |second| [1000, 1000, 300, 1100].map(|rate| rate * second),
            7,
        );
        let names = nodes.iter().map(|node| node.name.as_str());
        assert_eq!(names.collect::<Vec<_>>(), ["n2", "n0", "n1", "n3"]);
        let first = &nodes[0];
        assert_eq!(
            (first.bytes, first.bytes_per_second, first.percent_of_others),
            (3600, 300, Some(30))
        );
        for (rate, expected) in [(490, &["n2"][..]), (510, &[])] {
            let nodes = after_12_seconds(
                |second| [1000, 1000, rate, 1000].map(|rate| rate * second),
                7,
            );
            assert_eq!(slow(&nodes), expected, "{rate}");
        }
    }

    #[test]
    fn who_has_nothing_to_do_is_not_slow_and_whom_all_wait_for_is() {
        let idle = |second: u64| {
            [
                1000 * second,
                1000 * second,
                1000 * second.min(8),
                1000 * second,
            ]
        };
        assert_eq!(slow(&after_12_seconds(idle, 0)), [""; 0]);
        assert_eq!(slow(&after_12_seconds(idle, 1)), ["n2"]);
        let last = |second: u64| {
            let ended = 1000 * second.min(8);
            [ended, ended, 300 * second, ended]
        };
        assert_eq!(slow(&after_12_seconds(last, 0)), ["n2"]);
    }
}
