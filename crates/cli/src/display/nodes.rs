//! Describes the nodes of a push as parts of a status line.

use zmove_jobs::{Node, Nodes, Pace};
use zmove_types::{ByteCount, ByteRate};

use crate::display::format::counted;

/// Returns a text with the number of nodes and the number of nodes that hold up the others. The text is short because
/// it is near the start of a line that the terminal may truncate.
fn node_count(nodes: &Nodes) -> String {
    let of = |state: Pace| {
        let of_it = nodes.nodes.iter().filter(|node| node.state == state);
        let of_it = of_it.count();
        (of_it > 0).then(|| format!("{of_it} {}", state.as_ref()))
    };
    let held_up: Vec<_> = SLOWING_STATES.into_iter().filter_map(of).collect();
    let all = counted(nodes.count, nodes.kind.as_ref());
    if held_up.is_empty() {
        all
    } else {
        format!("{all} ({})", held_up.join(", "))
    }
}

/// Returns a text with the rate of a push, if known, and the number of its nodes. Further text follows it on the same
/// line.
pub(crate) fn rate_and_nodes(bytes_per_second: Option<f64>, nodes: Option<&Nodes>) -> String {
    let rate = match bytes_per_second {
        Some(rate) => format!(", {}", ByteRate(rate)),
        None if nodes.is_some() => ",".to_owned(),
        None => String::new(),
    };
    let by = nodes.map(|nodes| format!(" by {}", node_count(nodes)));
    rate + &by.unwrap_or_default()
}

/// Returns a text with the number of waiting items and the names of the nodes that hold up the others. It ends the
/// line.
pub(crate) fn waiting_and_slow(nodes: &Nodes) -> String {
    let waiting = nodes.items_waiting;
    let waiting = waiting.map(|waiting| format!("; {} waiting", counted(waiting, "item")));
    let named = |state: Pace| {
        let all = nodes.nodes.iter().chain(&nodes.receivers);
        let of_it: Vec<_> = all.filter(|node| node.state == state).map(name).collect();
        if of_it.is_empty() {
            String::new()
        } else {
            format!("; {}: {}", state.as_ref(), of_it.join(", "))
        }
    };
    waiting.unwrap_or_default() + &SLOWING_STATES.map(named).concat()
}

/// The states in which a node holds up the others.
const SLOWING_STATES: [Pace; 2] = [Pace::Silent, Pace::Slow];

#[expect(clippy::cast_precision_loss, reason = "it is shown with one digit")]
fn name(node: &Node) -> String {
    let name = &node.name;
    match node.percent_of_others {
        Some(percent) if node.state == Pace::Slow => {
            format!("{name} ({:.1} of the median)", percent as f64 / 100.0)
        }
        _ => name.clone(),
    }
}

/// Returns the files and bytes moved by each node, for the end of a push, or `None` if nothing was moved.
pub(crate) fn took_part(nodes: &Nodes) -> Option<String> {
    let has_moved = |node: &&Node| node.files > 0 || node.bytes > 0;
    let moved = |node: &Node| {
        let files = counted(node.files, "file");
        format!("{} ({files}, {})", node.name, ByteCount(node.bytes))
    };
    let mut moved: Vec<_> = nodes.nodes.iter().filter(has_moved).map(moved).collect();
    let untold = nodes.count.saturating_sub(nodes.nodes.len() as u64);
    let by = counted(moved.len() as u64 + untold, nodes.kind.as_ref());
    if untold > 0 {
        moved.push(format!("{untold} more"));
    }
    (!moved.is_empty()).then(|| format!("moved by {by}: {}", moved.join(", ")))
}

#[cfg(test)]
mod tests {
    use zmove_jobs::Party;

    use super::*;

    #[test]
    fn who_holds_up_the_others_is_counted_and_named() {
        let node = |name: &str, state, percent_of_others| Node {
            name: name.to_owned(),
            state,
            files: 1,
            bytes: 2,
            bytes_per_second: 3,
            percent_of_others,
        };
        let mut nodes = Nodes {
            kind: Party::Node,
            count: 4,
            items_waiting: Some(12),
            nodes: vec![node("node3", Pace::Slow, Some(31))],
            receivers: vec![
                node("dtn2", Pace::Slow, Some(40)),
                node("dtn1", Pace::Works, None),
            ],
        };
        assert_eq!(node_count(&nodes), "4 nodes (1 slow)");
        assert_eq!(
            waiting_and_slow(&nodes),
            "; 12 items waiting; slow: node3 (0.3 of the median), dtn2 (0.4 of the median)"
        );
        nodes.nodes = vec![
            node("node2", Pace::Silent, None),
            node("node1", Pace::Works, Some(100)),
        ];
        nodes.items_waiting = None;
        nodes.receivers = Vec::new();
        assert_eq!(
            (
                node_count(&nodes).as_str(),
                waiting_and_slow(&nodes).as_str()
            ),
            ("4 nodes (1 silent)", "; silent: node2")
        );
        let receivers = Nodes {
            kind: Party::Receiver,
            nodes: Vec::new(),
            ..nodes.clone()
        };
        assert_eq!(
            (
                node_count(&receivers).as_str(),
                waiting_and_slow(&receivers).as_str()
            ),
            ("4 receivers", "")
        );
        assert_eq!(
            took_part(&nodes).unwrap(),
            "moved by 4 nodes: node2 (1 file, 2 B), node1 (1 file, 2 B), 2 more"
        );
        assert_eq!(
            took_part(&Nodes {
                count: 0,
                ..receivers
            }),
            None
        );
    }
}
